(* Histograms and sums of weights: a record adds to each column numbers of 0 or more that add up to
   1 at most (one count in one bin, or the parts of its weight in each class). Then the release moves
   by sqrt(d) for d columns, and by sqrt(2 d) where a record is replaced. *)
Require Import Vectors.

Section Parts.
Context {A J T : Type} (columns : list J) (bins : list T) (null : A) (part : A -> J * T -> R).
Notation places := (list_prod columns bins).
Hypothesis null_is_zero : forall p, part null p = 0.
Hypothesis part_pos : forall r p, 0 <= part r p.
Hypothesis part_sum : forall r j, Sum bins (fun b => part r (j, b)) <= 1.

Lemma sum_of_squares l (f : T -> R) : (forall b, 0 <= f b) -> Sum l (fun b => f b * f b) <= Sum l f * Sum l f.
Proof.
  intro H; induction l as [|b l IH]; simpl; [lra|]. pose proof (H b).
  assert (0 <= Sum l f) by (apply Sum_nonneg; auto). nra.
Qed.
Lemma parts_norm r : norm places (part r) <= sqrt (INR (length columns)).
Proof.
  apply sqrt_le_1_alt; unfold dot; rewrite Sum_prod, <- (Rmult_1_r (INR _)), <- Sum_const.
  apply Sum_le; intros j _. pose proof (sum_of_squares bins (fun b => part r (j, b)) (fun b => part_pos r (j, b))).
  assert (0 <= Sum bins (fun b => part r (j, b))) by (apply Sum_nonneg; auto). pose proof (part_sum r j). nra.
Qed.
(* Of dpglm/privacy/vault.py, magnitude_sensitivity. *)
Theorem parts_move : moves places null part (fun rel => magnitude_sensitivity rel (INR (length columns))).
Proof.
  unfold magnitude_sensitivity; rewrite sqrt_mult by (lra || apply pos_INR).
  apply apart_moves; [auto | apply parts_norm |]. intros; apply Sum_nonneg; intro; apply Rmult_le_pos; auto.
Qed.
End Parts.
