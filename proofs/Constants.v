(* Numbers and formulas that stand in the code too. tests/test_proofs.py reads them from this file and
   compares them by value with what dpglm returns; the other files prove what they claim. *)
Require Export Reals.
Open Scope R_scope.

(* NEIGHBORING_RELATIONS of dpglm/privacy/gaussian.py. *)
Inductive relation := zero_out | replace_one | add_or_remove_one.

(* PrivacyBudget.sensitivity: what a record moves, where it adds a vector of norm C at most. *)
Definition clip_sensitivity rel C := match rel with replace_one => 2 * C | _ => C end.
(* moment_sensitivity, for rows of norm R; and for rows of a single column. *)
Definition moment_sensitivity rel R := match rel with replace_one => sqrt 2 * R ^ 2 | _ => R ^ 2 end.
Definition single_moment_sensitivity (rel : relation) R := R ^ 2.
(* magnitude_sensitivity, for d columns. *)
Definition magnitude_sensitivity rel d := match rel with replace_one => sqrt (2 * d) | _ => sqrt d end.

(* Objective.rounding_slack and moment_rounding without a basis: B rows in a chunk, n records, d
   columns, K outputs, unit roundoff u. *)
Definition chain u B n := B + n / B + 2 + n ^ 2 * u.
Definition rounding_slack u B n d K := 2 * (2 * (d + K + 2) + (chain u B n + 2 * d) * n) * u.
Definition moment_rounding u B n d := 2 * (2 * (d + 12) + (chain u B n + 4) * n) * u.
(* GaussianSum.noise_std for d numbers, before a last factor of 1 + arithmetic_slack. *)
Definition noise_std z moved slack grid d := z * (moved + grid * sqrt d + slack).
Definition arithmetic_slack := 1 / 10 ^ 12.

(* ScoreVault.sensitivity: the largest size of a number from 0 to 1, less 1/2, and half of what a
   record moves the pairs of n records. *)
Definition number_half := 1 / 2.
Definition pairs_half n := (n - 1) / 2.

(* Powers of two: the unit roundoff; SMALL_SQUARE, CLIP_RANGE and _LARGEST_STEP are no smaller. *)
Definition unit_roundoff := (-53)%Z.
Definition small_square := (-900)%Z.
Definition small_clip := (-333)%Z.
