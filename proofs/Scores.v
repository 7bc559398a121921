(* Private scores: sums of centred terms, pairs in the right order (the area under a ROC curve), and the
   table of predictions by label, in exact arithmetic. *)
Require Import Vectors.

(* Of dpglm/workflow/releases.py, ScoreVault.sensitivity. *)
Theorem noisy_sum_moves {A} (null : A) (term : A -> R) half : term null = 0 ->
  (forall r, Rabs (term r) <= half) ->
  moves [tt] null (fun r _ => term r) (fun rel => clip_sensitivity rel half).
Proof. intros; apply clipped_moves; auto. intro; rewrite norm_one; auto. Qed.

(* Terms are numbers from 0 to 1, less 1/2. *)
(* Of dpglm/workflow/releases.py, ScoreVault.sensitivity. *)
Theorem centred_terms x : 0 <= x <= 1 -> Rabs (x - number_half) <= number_half.
Proof. intros; unfold number_half; apply Rabs_le; lra. Qed.

Section Pairs.
(* sign r s: 1 if r is ranked above s, -1 if below, 0 if equal. A null record has no label. *)
Context {A : Type} (positive negative : A -> bool) (sign : A -> A -> R).
Hypothesis one_label : forall r, positive r = true -> negative r = false.
Hypothesis sign_range : forall r s, Rabs (sign r s) <= 1.
Definition pair r s := if (positive r && negative s)%bool then sign r s / 2 else 0.
Definition pairs D := Sum D (fun r => Sum D (fun s => pair r s)).
Definition with_ r s := pair r s + pair s r.

Lemma with_range r s : Rabs (with_ r s) <= 1 / 2.
Proof.
  pose proof (sign_range r s) as H1; pose proof (sign_range s r) as H2.
  pose proof (one_label r); pose proof (one_label s). unfold with_, pair.
  destruct (positive r), (positive s), (negative r), (negative s); simpl;
    try (specialize (H eq_refl); discriminate); try (specialize (H0 eq_refl); discriminate);
    apply Rabs_le; apply abs_le_inv in H1; apply abs_le_inv in H2; lra.
Qed.
Lemma pairs_middle D1 D2 r :
  pairs (D1 ++ r :: D2) = Sum (D1 ++ D2) (with_ r) + pairs (D1 ++ D2).
Proof.
  assert (Hr : pair r r = 0) by (unfold pair; pose proof (one_label r);
    destruct (positive r), (negative r); auto; specialize (H eq_refl); discriminate).
  unfold pairs, with_; rewrite Sum_middle, Sum_middle, Hr, Sum_plus.
  rewrite (Sum_ext (D1 ++ D2) (fun s => Sum (D1 ++ r :: D2) _)
    (fun s => pair s r + Sum (D1 ++ D2) (pair s))) by (intro; apply Sum_middle).
  rewrite Sum_plus, Rplus_0_l, Rplus_assoc; reflexivity.
Qed.
Lemma rest_range D r : Rabs (Sum D (with_ r)) <= INR (length D) / 2.
Proof.
  induction D as [|s D IH]; [simpl; rewrite Rabs_R0; lra|]. simpl length; rewrite S_INR; pose proof (with_range r s).
  simpl Sum; eapply Rle_trans; [apply Rabs_triang | lra].
Qed.
(* Of dpglm/workflow/releases.py, ScoreVault.sensitivity. *)
Theorem pairs_move rel D1 D2 r r' : rel = replace_one \/ rel = zero_out /\ positive r' = false /\ negative r' = false ->
  Rabs (pairs (D1 ++ r :: D2) - pairs (D1 ++ r' :: D2)) <= clip_sensitivity rel (pairs_half (INR (length (D1 ++ r :: D2)))).
Proof.
  unfold pairs_half; rewrite app_length; simpl length; rewrite Nat.add_succ_r, <- app_length, S_INR, !pairs_middle.
  pose proof (abs_le_inv _ _ (rest_range (D1 ++ D2) r)). intros [->|[-> [P N]]]; apply Rabs_le; simpl.
  - pose proof (abs_le_inv _ _ (rest_range (D1 ++ D2) r')); lra.
  - rewrite (Sum_ext _ (with_ r') (fun _ => 0)), Sum_zero; [lra|]. intro s; unfold with_, pair; rewrite P, N.
    destruct (positive s); simpl; ring.
Qed.
End Pairs.

(* noisy_table: a record in bin j adds column j of a triangular Toeplitz matrix to one of two parts. *)
Section Table.
Context (n : nat) (root : nat -> R).
Hypothesis root_nonneg : forall k, 0 <= root k.
Notation places := (list_prod [true; false] (seq 0 n)).
Definition first := norm (seq 0 n) root.
Definition column (label : bool) (j : nat) (place : bool * nat) :=
  if Bool.eqb label (fst place) then if le_dec j (snd place) then root (snd place - j) else 0 else 0.
Lemma shifted j m : Sum (seq 0 m) (fun i => (if le_dec j i then root (i - j) else 0) * (if le_dec j i then root (i - j) else 0))
  = Sum (seq 0 (m - j)) (fun k => root k * root k).
Proof.
  induction m as [|m IH]; auto. rewrite seq_S, Sum_app, IH; cbn [Sum Nat.add]. destruct (le_dec j m).
  - replace (S m - j)%nat with (S (m - j)) by lia. rewrite seq_S, Sum_app; cbn [Sum Nat.add]; ring.
  - replace (S m - j)%nat with (m - j)%nat by lia. ring.
Qed.
Lemma column_norm label j : norm places (column label j) <= first.
Proof.
  apply sqrt_le_1_alt; unfold dot; rewrite Sum_prod; unfold column; cbn [Sum fst snd].
  assert (O : Sum (seq 0 n) (fun _ => 0 * 0) = 0) by (rewrite (Sum_ext _ _ (fun _ => 0)) by (intro; ring); apply Sum_zero).
  assert (H : Sum (seq 0 (n - j)) (fun k => root k * root k) <= Sum (seq 0 n) (fun k => root k * root k)).
  { replace n with (n - j + (n - (n - j)))%nat at 2 by lia. rewrite seq_app, Sum_app.
    assert (0 <= Sum (seq (0 + (n - j)) (n - (n - j))) (fun k => root k * root k)) by (apply Sum_nonneg; intro; nra). lra. }
  destruct label; cbn [Bool.eqb]; rewrite O, shifted; lra.
Qed.
(* Of dpglm/workflow/releases.py, ScoreVault.sensitivity. *)
Theorem noisy_table_moves {A} (null : A) (term : A -> bool * nat -> R) : (forall i, term null i = 0) ->
  (forall r, (exists label j, term r = column label j) \/ forall i, term r i = 0) ->
  moves places null term (fun rel => match rel with replace_one => sqrt 2 * first | _ => first end).
Proof.
  intros H0 H. assert (N : forall r i, 0 <= term r i).
  { intros r i; destruct (H r) as [[label [j E]]|E]; rewrite E; [|lra]. unfold column.
    destruct (Bool.eqb _ _); [destruct (le_dec _ _)|]; auto; lra. }
  assert (B : forall r, norm places (term r) <= first).
  { intro r; destruct (H r) as [[label [j E]]|E]; [rewrite E; apply column_norm|].
    rewrite (norm_ext _ _ (scale 0 (fun _ => 0))) by (intro; rewrite E; unfold scale; ring).
    rewrite norm_scale, Rabs_R0, Rmult_0_l; apply norm_pos. }
  apply apart_moves; auto. intros; apply Sum_nonneg; intro; apply Rmult_le_pos; auto.
Qed.
End Table.
