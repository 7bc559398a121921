(* The end of the chain, for each method of the vault that releases: the two values that are drawn around,
   for any two neighbouring data sets, are at most 1 / noise_multiplier of the noise apart. So a release
   is 1 / noise_multiplier-GDP, by the definition of the Gaussian mechanism (Dong, Roth & Su 2022).
   A batch is a data set here: the records that were drawn. Under Poisson sampling and "replace_one" it
   is a neighbour, under add_or_remove_one, of the batch without the record, with twice the multiplier. *)
From Flocq Require Import Core.
Require Import Vectors Moments Histograms Rounding Slack Float64.

(* GaussianSum: a sum v is cut off at M, snapped to s, on a grid of spacing g, and noise is drawn with std. *)
Definition snapped {T} (M g : R) (v s : T -> R) := forall i, Rabs (s i - cut M (v i)) <= g / 2.
Definition enough {T} (l : list T) z std moved slack g :=
  0 < g /\ 0 < z /\ noise_std z moved slack g (INR (length l)) <= std.
(* Of dpglm/privacy/vault.py, GaussianSum. *)
Theorem release_mu {T} (l : list T) v v' s s' M g z std moved slack : 0 < moved + slack ->
  norm l (minus v v') <= moved + slack -> snapped M g v s -> snapped M g v' s' ->
  enough l z std moved slack g -> norm l (minus s s') / std <= 1 / z.
Proof.
  intros H0 H S S' [g0 [z0 E]]. apply (snapped_apart l s s' v v' g (moved + slack)); auto.
  - intro i; apply (snapped_entry M g); auto.
  - unfold noise_std in E; lra.
Qed.
Lemma exact_mu {A T} (l : list T) (null : A) f c rel D D' s s' M g z std : moves l null f c -> neighbors null rel D D' ->
  0 < c rel -> snapped M g (total f D) s -> snapped M g (total f D') s' -> enough l z std (c rel) 0 g ->
  norm l (minus s s') / std <= 1 / z.
Proof.
  intros H N C0 S S' E. apply (release_mu l (total f D) (total f D') s s' M g z std (c rel) 0); auto; rewrite Rplus_0_r; auto.
Qed.

(* Sums of up to 2^25 additions one after another, 2^100 in all, of 2^40 numbers. *)
Definition feasible {T} (l : list T) (h w n : nat) :=
  (1 <= n)%nat /\ INR h <= bpow radix2 25 /\ INR w <= bpow radix2 100 /\ INR (length l) <= bpow radix2 40.
Lemma computed_mu {A T} (l : list T) (null : A) p c C e h w n rel D D' v v' s s' M g z std moved slack :
  moves l null p c -> (forall r, norm l (p r) <= (1 + e) * C) -> feasible l h w n -> 0 <= e <= bpow radix2 (-30) ->
  bpow radix2 (2 * small_clip) <= C -> c rel + 2 * ((INR h + 5 / 2) * (u * C * INR n)) <= moved + slack ->
  neighbors null rel D D' -> (length D <= n)%nat -> (length D' <= n)%nat -> computed rnd u p h w D v -> computed rnd u p h w D' v' ->
  0 < c rel -> snapped M g v s -> snapped M g v' s' -> enough l z std moved slack g ->
  norm l (minus s s') / std <= 1 / z.
Proof.
  intros Mp R [n1 [H [W L]]] [e0 E] C0 A0 N LD LD' V V' m0 S S' En.
  pose proof (pos_INR h); pose proof (pos_INR w). assert (P : bpow radix2 25 = 33554432) by reflexivity. simpl bpow in E.
  assert (U : 0 < u <= 1 / 2 ^ 53) by (split; [power | unfold u, unit_roundoff; simpl; lra]).
  assert (Cp : 0 < C) by (eapply Rlt_le_trans; [power | apply C0]).
  apply (release_mu l v v' s s' M g z std moved slack); auto.
  { assert (0 <= (INR h + 5 / 2) * (u * C * INR n)) by (pose proof (pos_INR n); repeat apply Rmult_le_pos; lra). lra. }
  eapply Rle_trans; [|apply A0]. apply (sums_apart rnd u eta (proj1 U) (proj1 eta_small) rnd_error l null p c C e h w n) with (D := D) (D' := D'); auto.
  - repeat split; auto.
    + apply Rle_trans with (bpow radix2 25 ^ 2 * (1 / 2 ^ 53)); [|rewrite P; lra].
      apply Rmult_le_compat; try lra; [apply pow2_ge_0 | apply pow_incr; auto].
    + apply Rle_trans with (bpow radix2 25 * (1 / 2 ^ 53)); [|rewrite P; lra]. apply Rmult_le_compat; lra.
    + apply Rle_trans with ((bpow radix2 25 + 1 / 4) * (/ 1073741824)); [|rewrite P; lra]. apply Rmult_le_compat; lra.
  - assert (sqrt (INR (length l)) <= bpow radix2 20) by (rewrite <- sqrt_pow2; apply sqrt_le_1_alt; exact L).
    assert (Eta : 0 <= eta) by apply bpow_ge_0. pose proof (sqrt_pos (INR (length l))).
    apply Rle_trans with (2 * bpow radix2 100 * eta * bpow radix2 20).
    + repeat apply Rmult_le_compat; try lra; repeat apply Rmult_le_pos; lra.
    + change 2 with (bpow radix2 1) at 1. unfold eta; rewrite (times 1 100 101), (times 101 _ (-974)), (times _ 20 (-954)) by easy.
      apply Rle_trans with (u * bpow radix2 (2 * small_clip)); [|apply Rmult_le_compat_l; auto; apply bpow_ge_0].
      unfold u; rewrite (times _ _ (-719)) by easy. apply pow2; easy.
Qed.

(* A row whose squared norm was computed as S', in the range in which rows are clipped by it. *)
Definition usual_row {I} (l : list I) (d : nat) (x : I -> R) S' :=
  squares rnd d (dot l x x) S' /\ bpow radix2 small_square <= S' <= bpow radix2 1024.

Section GradientSum.
(* d columns, K outputs, chunks of B rows, at most n records, sums of depth h in w operations. *)
Context {I J : Type} (l : list I) (outputs : list J) (C B : R) (d h w n : nat).
Let K := INR (length outputs).
Notation index := (list_prod l outputs).
(* What kernels/clip.py lets a row add, with any loss and any weights. *)
Inductive clipped : (I * J -> R) -> Prop :=
| nothing G : (forall ij, G ij = 0) -> clipped G
| single x S' c G : usual_row l d x S' -> length outputs = 1%nat -> Rabs c <= cap rnd C S' ->
    (forall ij, G ij = x (fst ij) * c) -> clipped G
| joint x S' r r' Q' k weight G : usual_row l d x S' -> length outputs = k -> (2 <= k)%nat -> 0 <= weight ->
    squares rnd (S k) (dot outputs r r + tiny) Q' -> tiny <= cap rnd C S' / root' rnd Q' ->
    (forall j, r' j = rnd (Rmin weight (quotient rnd C S' Q') * r j)) ->
    (forall ij, G ij = x (fst ij) * r' (snd ij)) -> clipped G.
Definition record := {G | clipped G}.
Definition null_record : record := exist clipped (fun _ => 0) (nothing _ (fun _ => eq_refl)).
Definition gradient (r : record) := proj1_sig r.
Hypothesis ranges : bpow radix2 small_clip <= C /\ 1 <= INR d <= bpow radix2 20 /\ 1 <= K <= bpow radix2 20.
Hypothesis chunks : feasible index h w n /\ INR h <= B + INR n / B + 1.

Lemma gradient_bound r : norm index (gradient r) <= (1 + 2 * (INR d + K + 2) * u) * C.
Proof.
  destruct ranges as [C0 [[d1 D] [K1 K2]]]. destruct r as [G H]; unfold gradient; simpl.
  assert (Cp : 0 < C) by (eapply Rlt_le_trans; [power | apply C0]). pose proof u_small.
  destruct H as [G Z | x S' c G [sq range] one cap E | x S' r r' Q' k weight G [sq range] len k2 w0 res Qr prod E].
  - rewrite (norm_ext _ _ (scale 0 G)) by (intro; rewrite Z; unfold scale; ring). rewrite norm_scale, Rabs_R0, Rmult_0_l.
    assert (0 <= 2 * (INR d + K + 2) * u) by (apply Rmult_le_pos; lra). apply Rmult_le_pos; lra.
  - rewrite (norm_ext _ _ (fun ij => x (fst ij) * (fun _ => c) (snd ij))), (outer_norm l outputs x (fun _ => c)) by auto.
    unfold K; rewrite one. destruct outputs as [|j [|? ?]]; try discriminate. rewrite norm_one, Rmult_comm, <- norm_scale.
    apply (clip_bound_float64 l x C d S'); auto.
  - rewrite (norm_ext _ _ (fun ij => x (fst ij) * r' (snd ij))) by auto. unfold K in *; rewrite len in *.
    apply (joint_clip_bound_float64 l x C d S' sq range C0 D outputs r r' Q' weight k); auto.
    apply le_INR in k2; simpl INR at 1 in k2. split; [lra | rewrite len; auto].
Qed.
(* Of dpglm/privacy/vault.py, Vault.gradient_sum. *)
Theorem gradient_sum_mu rel (D D' : list record) v v' s s' M g z std : neighbors null_record rel D D' ->
  (length D <= n)%nat -> (length D' <= n)%nat -> computed rnd u gradient h w D v -> computed rnd u gradient h w D' v' ->
  snapped M g v s -> snapped M g v' s' ->
  enough index z std (clip_sensitivity rel C) (rounding_slack u B (INR n) (INR d) K * C) g ->
  norm index (minus s s') / std <= 1 / z.
Proof.
  intros N L L' V V' S S' En. destruct ranges as [C0 [[d1 d2] [K1 K2]]]. destruct chunks as [F H].
  assert (Cp : 0 < C) by (eapply Rlt_le_trans; [power | apply C0]). pose proof u_small as [u0 _].
  set (e := 2 * (INR d + K + 2) * u). assert (E0 : 0 <= e <= bpow radix2 (-30)).
  { unfold e; split; [apply Rmult_le_pos; lra|]. apply Rle_trans with (bpow radix2 23 * u).
    - apply Rmult_le_compat_r; [lra|]. rewrite <- (times 3 20) by easy. destruct four. change (bpow radix2 3) with 8; lra.
    - unfold u; rewrite (times _ _ (-30)) by easy; lra. }
  apply (computed_mu index null_record gradient (fun rel => clip_sensitivity rel ((1 + e) * C)) C e h w n rel D D' v v' s s' M g z std
    (clip_sensitivity rel C) (rounding_slack u B (INR n) (INR d) K * C)); auto.
  - apply clipped_moves; [auto | apply gradient_bound].
  - apply gradient_bound.
  - apply Rle_trans with (2 := C0), pow2; easy.
  - apply gradient_slack; auto using pos_INR; lra.
  - assert (0 <= e * C) by (apply Rmult_le_pos; lra). destruct rel; simpl; lra.
Qed.
End GradientSum.

Section SecondMoment.
Context {I : Type} (l : list I) (R0 B : R) (d h w n : nat).
(* A row as Objective._shrinkage leaves it, with any weights: scaled by no more than its cap. *)
Definition shrunk (x' : I -> R) := (forall i, x' i = 0) \/
  exists x S' s, usual_row l d x S' /\ 0 <= s <= cap rnd R0 S' /\ forall i, x' i = rnd (s * x i).
Definition rows := {x | shrunk x}.
Definition null_row : rows := exist shrunk (fun _ => 0) (or_introl (fun _ => eq_refl)).
Definition of_row (r : rows) := moment [proj1_sig r].
Hypothesis ranges : bpow radix2 small_clip <= R0 /\ 1 <= INR d <= bpow radix2 20 /\ INR (length l) <= bpow radix2 20.
Hypothesis chunks : INR h <= B + INR n / B + 3.
Let e := (INR d + 12) * u.
Lemma row_trace (r : rows) : trace l [proj1_sig r] <= ((1 + e) * R0) ^ 2.
Proof.
  destruct ranges as [C0 [[d1 D] L]]. destruct r as [x' H]; unfold trace; simpl Sum; rewrite Rplus_0_r.
  simpl pow; rewrite Rmult_1_r; apply square_le; simpl. destruct H as [Z | [x [S' [s [[sq range] [Hs Hx]]]]]].
  - rewrite (norm_ext _ _ (scale 0 x')) by (intro; rewrite Z; unfold scale; ring). rewrite norm_scale, Rabs_R0, Rmult_0_l.
    pose proof u_small. assert (0 <= e) by (apply Rmult_le_pos; lra). assert (0 < R0) by (eapply Rlt_le_trans; [power | apply C0]).
    apply Rmult_le_pos; lra.
  - apply (row_clip_bound_float64 l x R0 d S' sq range C0 D s x'); auto.
Qed.
(* Entries of the upper triangle, or the diagonal: any part `p` of the moment that moves no more. *)
Lemma moment_part_mu {T} (index : list T) p rel (D D' : list rows) v v' s s' M g z std :
  (forall r : rows, norm index (p r) <= trace l [proj1_sig r]) -> moves index null_row p (fun rel => moment_sensitivity rel ((1 + e) * R0)) ->
  feasible index h w n -> neighbors null_row rel D D' -> (length D <= n)%nat -> (length D' <= n)%nat ->
  computed rnd u p h w D v -> computed rnd u p h w D' v' -> snapped M g v s -> snapped M g v' s' ->
  enough index z std (moment_sensitivity rel R0) (moment_rounding u B (INR n) (INR d) * R0 ^ 2) g ->
  norm index (minus s s') / std <= 1 / z.
Proof.
  intros Np Mp F N L L' V V' S S' En. destruct ranges as [C0 [[d1 D1] Ll]]. assert (H := chunks).
  assert (Cp : 0 < R0) by (eapply Rlt_le_trans; [power | apply C0]). pose proof u_small as [u0 _].
  assert (R2 : 0 < R0 ^ 2) by (apply pow_lt; auto). assert (E0 : 0 <= e <= bpow radix2 (-32)).
  { unfold e; split; [apply Rmult_le_pos; lra|]. apply Rle_trans with (bpow radix2 21 * u).
    - apply Rmult_le_compat_r; [lra|]. rewrite <- (times 1 20) by easy. destruct four. change (bpow radix2 1) with 2; lra.
    - unfold u; rewrite (times _ _ (-32)) by easy; lra. }
  assert (bpow radix2 (-32) = / 4 * bpow radix2 (-30) /\ bpow radix2 (-30) <= 1) as [P Q] by (simpl; lra).
  apply (computed_mu index null_row p (fun rel => moment_sensitivity rel ((1 + e) * R0)) (R0 ^ 2) (2 * e + e * e) h w n rel D D' v v' s s' M g z std
    (moment_sensitivity rel R0) (moment_rounding u B (INR n) (INR d) * R0 ^ 2)); auto.
  - intro r; eapply Rle_trans; [apply Np|]. eapply Rle_trans; [apply row_trace|]. right; ring.
  - assert (0 <= e * e <= e * 1) by (split; [apply Rmult_le_pos | apply Rmult_le_compat_l]; lra). lra.
  - apply Rle_trans with (bpow radix2 small_clip ^ 2); [right; rewrite <- Rsqr_pow2; unfold Rsqr; rewrite (times _ _ (2 * small_clip)) by easy; auto|].
    apply pow_incr; split; [apply bpow_ge_0 | auto].
  - apply moment_slack; auto using pos_INR; try fold e; lra.
  - pose proof (sqrt_lt_R0 2 ltac:(lra)). assert (0 < ((1 + e) * R0) ^ 2) by (apply pow_lt, Rmult_lt_0_compat; lra).
    destruct rel; unfold moment_sensitivity; auto; apply Rmult_lt_0_compat; auto.
Qed.
Lemma null_moment ij : moment [proj1_sig null_row] ij = 0. Proof. unfold moment, outer; simpl; ring. Qed.
(* Of dpglm/privacy/vault.py, Vault.second_moment. *)
Theorem second_moment_mu rel (D D' : list rows) v v' s s' M g z std : let p (r : rows) := weighted (of_row r) in let index := upper l in
  feasible index h w n -> neighbors null_row rel D D' -> (length D <= n)%nat -> (length D' <= n)%nat ->
  computed rnd u p h w D v -> computed rnd u p h w D' v' -> snapped M g v s -> snapped M g v' s' ->
  enough index z std (moment_sensitivity rel R0) (moment_rounding u B (INR n) (INR d) * R0 ^ 2) g ->
  norm index (minus s s') / std <= 1 / z.
Proof.
  intros p index; apply moment_part_mu.
  - intro r; unfold p, index, of_row; rewrite triangle_norm by (intros; unfold moment, outer; simpl; ring). apply moment_norm.
  - apply (upper_moves l null_row (fun r => [proj1_sig r])), second_moment_moves; [apply null_moment | apply row_trace].
Qed.
(* Of dpglm/privacy/vault.py, Vault.second_moment. *)
Theorem second_moment_diagonal_mu rel (D D' : list rows) v v' s s' M g z std : let p (r : rows) i := of_row r (i, i) in
  feasible l h w n -> neighbors null_row rel D D' -> (length D <= n)%nat -> (length D' <= n)%nat ->
  computed rnd u p h w D v -> computed rnd u p h w D' v' -> snapped M g v s -> snapped M g v' s' ->
  enough l z std (moment_sensitivity rel R0) (moment_rounding u B (INR n) (INR d) * R0 ^ 2) g ->
  norm l (minus s s') / std <= 1 / z.
Proof.
  intros p; apply moment_part_mu.
  - intro r; eapply Rle_trans; [apply (diagonal_norm l (of_row r)) | apply moment_norm].
  - apply (second_moment_diagonal_moves l null_row (fun r => [proj1_sig r])); [apply null_moment | apply row_trace].
Qed.
End SecondMoment.

(* Sums that are computed exactly: counts, and multiples of 2^-20 (Float64.steps_exact). *)
Section Exact.
Context {A J T : Type} (null : A) (rel : relation) (D D' : list A) (M g z std : R).
Hypothesis near : neighbors null rel D D'.
(* Of dpglm/privacy/vault.py, Vault.magnitude_histogram, Vault.norm_histogram, Vault.label_counts, Vault.target_histogram. *)
Theorem histogram_mu (columns : list J) (bins : list T) part s s' : let l := list_prod columns bins in columns <> [] ->
  (forall c, part null c = 0) -> (forall r c, 0 <= part r c) -> (forall r j, Sum bins (fun b => part r (j, b)) <= 1) ->
  snapped M g (total part D) s -> snapped M g (total part D') s' ->
  enough l z std (magnitude_sensitivity rel (INR (length columns))) 0 g -> norm l (minus s s') / std <= 1 / z.
Proof.
  intros l C0 H0 H1 H2 S S' E. apply (exact_mu l null part _ rel D D' s s' M g z std (parts_move columns bins null part H0 H1 H2)); auto.
  unfold magnitude_sensitivity; destruct columns; [easy|]. simpl length; rewrite S_INR; pose proof (pos_INR (length columns)).
  destruct rel; apply sqrt_lt_R0; lra.
Qed.
(* Of dpglm/privacy/vault.py, Vault.target_sum. *)
Theorem target_sum_mu (term : A -> R) s s' : term null = 0 -> (forall r, Rabs (term r) <= 1) ->
  snapped M g (total (fun r (_ : unit) => term r) D) s -> snapped M g (total (fun r _ => term r) D') s' ->
  enough [tt] z std (clip_sensitivity rel 1) 0 g -> norm [tt] (minus s s') / std <= 1 / z.
Proof.
  intros H0 H1 S S' E. apply (exact_mu [tt] null (fun r _ => term r) (fun rel => clip_sensitivity rel 1) rel D D' s s' M g z std); auto.
  - apply clipped_moves; auto. intro; rewrite norm_one; auto.
  - destruct rel; simpl; lra.
Qed.
End Exact.
