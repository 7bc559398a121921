(* The filter of an adaptive fit: whatever an analyst asks, and whatever is answered, the releases that
   were admitted cost no more than the capacity. That a mechanism of such releases has the guarantee
   of the capacity is cited, as a hypothesis that everybody sees. *)
Require Import Vectors.

Section Filter.
(* Costs are mu^2, or rho. `limit` is the capacity times (1 + 1e-12). *)
Context {Answer : Type} (limit : R).
Hypothesis limit_pos : 0 <= limit.
Definition transcript := list (R * Answer).   (* the newest release first *)
Definition spent (t : transcript) := Sum t fst.

(* An analyst chooses each cost by all answers before; nature chooses answers in any way. *)
Definition step (ask : transcript -> R) (answer : transcript -> Answer) t :=
  match Rle_dec 0 (ask t), Rle_dec (spent t + ask t) limit with
  | left _, left _ => (ask t, answer t) :: t | _, _ => t end.
Fixpoint run ask answer n := match n with O => [] | S n => step ask answer (run ask answer n) end.

Theorem filter_within_limit ask answer n : 0 <= spent (run ask answer n) <= limit.
Proof.
  induction n as [|n IH]; unfold spent in *; simpl; [lra|]. unfold step.
  destruct (Rle_dec 0 _); auto. destruct (Rle_dec _ limit); auto. simpl; unfold spent in *; lra.
Qed.
(* THE STEP THAT IS CITED, NOT PROVED (Smith & Thakurta 2022, fully adaptive GDP composition): where
   each release costs mu_i^2 and is mu_i-GDP given all before, and no transcript that can happen has
   costs above the limit, the transcript is sqrt(limit)-GDP. A hypothesis here, and never an axiom. *)
Context (Mechanism : Type) (gdp : Mechanism -> R -> Prop) (each_release_is_gdp : Mechanism -> Prop)
  (can_happen : Mechanism -> transcript -> Prop).
Hypothesis fully_adaptive_composition : forall M L, each_release_is_gdp M ->
  (forall t, can_happen M t -> spent t <= L) -> gdp M (sqrt L).
(* Vault._release is the one way out: what can happen was charged, whatever the analyst does. *)
Definition filtered M := forall t, can_happen M t -> exists ask answer n, t = run ask answer n.
(* Of dpglm/privacy/vault.py, PrivacyFilter. *)
Theorem filter_guarantee M : each_release_is_gdp M -> filtered M -> gdp M (sqrt limit).
Proof.
  intros E F; apply fully_adaptive_composition; auto. intros t H.
  destruct (F t H) as [ask [answer [n ->]]]. apply filter_within_limit.
Qed.
End Filter.
