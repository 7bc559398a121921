(* From rounded rows to the stated mu: computed sums of at most n rows, in any order and by any threads,
   over two neighbouring data sets are no farther apart than sensitivity and slack; what is snapped to
   the grid and drawn with the noise of noise_std moves by 1 / noise_multiplier of that noise. *)
Require Import Vectors Moments Rounding.

Section Sums.
Variables (rnd : R -> R) (u eta : R).
Hypothesis u_pos : 0 < u.
Hypothesis eta_pos : 0 <= eta.
Hypothesis rnd_error : forall x, Rabs (rnd x - x) <= u * Rabs x + eta.

(* A sum in any order and by any threads: its depth h, w operations, A the sum of sizes. A sum may be
   multiplied by a rounded constant at its end (`times`: sqrt(2) of an upper triangle). *)
Inductive summed : nat -> nat -> R -> R -> R -> Prop :=
| nothing : summed 0 0 0 0 0
| plus h k w n A B v v' s s' : summed h w A v v' -> summed k n B s s' ->
    summed (S (max h k)) (S (w + n)) (A + B) (v + s) (rnd (v' + s'))
| fused_entry h w A v v' c x : summed h w A v v' ->
    summed (S h) (S w) (A + Rabs (c * x)) (v + c * x) (rnd (v' + c * x))
| times h w A v v' c c' : summed h w A v v' -> 0 <= c <= 2 -> Rabs (c' - c) <= u * c ->
    summed (S (S h)) (S (w + w)) (c * A) (c * v) (rnd (c' * v')).

Lemma one_more g e t A v s : 0 <= t -> Rabs v <= A -> Rabs (s - v) <= (g - 1) * A + t * g -> e = (1 + u) * g -> 1 <= g ->
  Rabs (rnd s - v) <= (e - 1) * A + t * e + eta.
Proof.
  intros Ht HA H E G. replace (rnd s - v) with ((rnd s - s) + (s - v)) by ring.
  assert (Rabs s <= Rabs v + Rabs (s - v)) by (replace s with (v + (s - v)) at 1 by ring; apply Rabs_triang).
  eapply Rle_trans; [apply Rabs_triang|]. pose proof (rnd_error s).
  assert (u * Rabs s <= u * (A + ((g - 1) * A + t * g))) by (apply Rmult_le_compat_l; lra). subst e; lra.
Qed.
Lemma summed_error h w A v v' : summed h w A v v' ->
  Rabs v <= A /\ Rabs (v' - v) <= ((1 + u) ^ h - 1) * A + INR w * eta * (1 + u) ^ h.
Proof.
  assert (G : forall k, 1 <= (1 + u) ^ k) by (intro; apply pow_R1_Rle; lra).
  assert (M : forall k m, (k <= m)%nat -> (1 + u) ^ k <= (1 + u) ^ m) by (intros; apply Rle_pow; auto; lra).
  induction 1 as [| h k w n A B v v' s s' H [I1 I2] H' [J1 J2] | h w A v v' c x H [I1 I2] | h w A v v' c c' H [I1 I2] [c0 c2] E].
  - simpl; rewrite Rminus_0_r, Rabs_R0; lra.
  - assert (VS : Rabs (v + s) <= A + B) by (eapply Rle_trans; [apply Rabs_triang | lra]). split; auto.
    set (g := (1 + u) ^ max h k). pose proof (M h (max h k) (Nat.le_max_l _ _)) as M1; pose proof (M k (max h k) (Nat.le_max_r _ _)) as M2.
    fold g in M1, M2. pose proof (G (max h k)) as G1; fold g in G1. pose proof (Rabs_pos v); pose proof (Rabs_pos s).
    pose proof (pos_INR w); pose proof (pos_INR n). assert (0 <= INR w * eta /\ 0 <= INR n * eta) as [? ?] by (split; apply Rmult_le_pos; auto).
    assert (K1 : ((1 + u) ^ h - 1) * A + INR w * eta * (1 + u) ^ h <= (g - 1) * A + INR w * eta * g)
      by (apply Rplus_le_compat; [apply Rmult_le_compat_r | apply Rmult_le_compat_l]; lra).
    assert (K2 : ((1 + u) ^ k - 1) * B + INR n * eta * (1 + u) ^ k <= (g - 1) * B + INR n * eta * g)
      by (apply Rplus_le_compat; [apply Rmult_le_compat_r | apply Rmult_le_compat_l]; lra).
    assert (K : Rabs (v' + s' - (v + s)) <= (g - 1) * (A + B) + (INR w + INR n) * eta * g).
    { replace (v' + s' - (v + s)) with ((v' - v) + (s' - s)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
    eapply Rle_trans; [apply (one_more g ((1 + u) ^ S (max h k)) ((INR w + INR n) * eta) (A + B)); auto; lra|].
    rewrite S_INR, plus_INR. pose proof (G (S (max h k))). assert (eta * 1 <= eta * (1 + u) ^ S (max h k)) by (apply Rmult_le_compat_l; lra). lra.
  - assert (VS : Rabs (v + c * x) <= A + Rabs (c * x)) by (eapply Rle_trans; [apply Rabs_triang | lra]). split; auto.
    set (g := (1 + u) ^ h) in *. pose proof (G h) as G1; fold g in G1. pose proof (Rabs_pos (c * x)); pose proof (pos_INR w).
    assert (0 <= INR w * eta) by (apply Rmult_le_pos; auto).
    assert (K : Rabs (v' + c * x - (v + c * x)) <= (g - 1) * (A + Rabs (c * x)) + INR w * eta * g).
    { replace (v' + c * x - (v + c * x)) with (v' - v) by ring. assert (0 <= (g - 1) * Rabs (c * x)) by (apply Rmult_le_pos; lra). lra. }
    eapply Rle_trans; [apply (one_more g ((1 + u) ^ S h) (INR w * eta) (A + Rabs (c * x))); auto|].
    rewrite S_INR. pose proof (G (S h)). assert (eta * 1 <= eta * (1 + u) ^ S h) by (apply Rmult_le_compat_l; lra). lra.
  - assert (VS : Rabs (c * v) <= c * A) by (rewrite Rabs_mult, Rabs_pos_eq by auto; apply Rmult_le_compat_l; auto). split; auto.
    set (g := (1 + u) ^ h) in *. pose proof (G h) as G1; fold g in G1. pose proof (pos_INR w). pose proof (Rabs_pos v).
    assert (0 <= INR w * eta) by (apply Rmult_le_pos; auto). set (t := INR w * eta) in *.
    assert (C' : Rabs c' <= (1 + u) * c) by (replace c' with ((c' - c) + c) by ring; eapply Rle_trans; [apply Rabs_triang|]; rewrite (Rabs_pos_eq c); lra).
    assert (0 <= u * c) by (apply Rmult_le_pos; lra). assert (0 <= (g - 1) * A + t * g) by (pose proof (Rabs_pos (v' - v)); lra).
    assert (K : Rabs (c' * v' - c * v) <= ((1 + u) * g - 1) * (c * A) + 2 * t * ((1 + u) * g)).
    { replace (c' * v' - c * v) with (c' * (v' - v) + (c' - c) * v) by ring. eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult.
      apply Rle_trans with ((1 + u) * c * ((g - 1) * A + t * g) + u * c * A).
      - apply Rplus_le_compat; apply Rmult_le_compat; auto; apply Rabs_pos.
      - assert (c * ((1 + u) * (t * g)) <= 2 * ((1 + u) * (t * g))) by (apply Rmult_le_compat_r; auto; repeat apply Rmult_le_pos; lra). lra. }
    eapply Rle_trans; [apply (one_more ((1 + u) * g) ((1 + u) * ((1 + u) * g)) (2 * t) (c * A)); auto; nra|].
    rewrite S_INR, plus_INR. pose proof (G (S (S h))) as G2; cbn [pow] in G2 |- *; fold g in G2 |- *.
    assert (eta * 1 <= eta * ((1 + u) * ((1 + u) * g))) by (apply Rmult_le_compat_l; lra). unfold t; lra.
Qed.

Section Neighbours.
(* `p`: what a record adds, rounded rows and coefficients as they are (Rounding.v). *)
Context {A T : Type} (l : list T) (null : A) (p : A -> T -> R) (c : relation -> R) (C e : R) (h w n : nat).
Hypothesis moved : moves l null p c.
Hypothesis sizes : 0 < C /\ 0 <= e.
Hypothesis rows_clipped : forall r, norm l (p r) <= (1 + e) * C.
Definition computed (D : list A) (v : T -> R) := forall i, exists h' w', (h' <= h)%nat /\ (w' <= w)%nat /\
  summed h' w' (Sum D (fun r => Rabs (p r i))) (total p D i) (v i).
Hypothesis shape : (1 <= n)%nat /\ INR h ^ 2 * u <= 1 / 8 /\ INR h * u <= 1 / 4 /\ (INR h + 1 / 4) * e <= 1 / 4.
Hypothesis no_underflow : 2 * INR w * eta * sqrt (INR (length l)) <= u * C.

Lemma computed_error D v : computed D v ->
  norm l (minus v (total p D)) <= ((1 + u) ^ h - 1) * (INR (length D) * ((1 + e) * C)) + INR w * eta * (1 + u) ^ h * sqrt (INR (length l)).
Proof.
  intro H. assert (G : 1 <= (1 + u) ^ h) by (apply pow_R1_Rle; lra). pose proof (pos_INR w).
  assert (K : 0 <= INR w * eta * (1 + u) ^ h) by (repeat apply Rmult_le_pos; lra).
  apply Rle_trans with (norm l (add (scale ((1 + u) ^ h - 1) (fun i => Sum D (fun r => Rabs (p r i)))) (fun _ => INR w * eta * (1 + u) ^ h))).
  - apply norm_mono; intro i. destruct (H i) as [h' [w' [Hh [Hw S1]]]]. destruct (summed_error _ _ _ _ _ S1) as [_ E].
    unfold minus, add, scale. eapply Rle_trans; [apply E|]. apply Rplus_le_compat.
    + apply Rmult_le_compat_r; [apply Sum_nonneg; intro; apply Rabs_pos|]. apply Rplus_le_compat_r, Rle_pow; auto; lra.
    + rewrite !Rmult_assoc. apply le_INR in Hw. apply Rmult_le_compat; auto; [apply pos_INR | apply Rmult_le_pos; auto; apply pow_le; lra|].
      apply Rmult_le_compat_l; auto. apply Rle_pow; auto; lra.
  - eapply Rle_trans; [apply triangle|]. rewrite norm_scale, Rabs_pos_eq by lra. apply Rplus_le_compat.
    + apply Rmult_le_compat_l; [lra|]. eapply Rle_trans; [apply (norm_Sum l D (fun r i => Rabs (p r i)))|].
      rewrite <- Sum_const. apply Sum_le; intros r _. rewrite norm_abs; auto.
    + apply norm_entries; auto. intro; rewrite Rabs_pos_eq; lra.
Qed.
Lemma error_within D v : computed D v -> (length D <= n)%nat ->
  norm l (minus v (total p D)) <= (INR h + 5 / 2) * (u * C * INR n).
Proof.
  intros H Hn. destruct shape as [N1 [S2 [S1 S3]]]. destruct sizes as [Cp e0].
  eapply Rle_trans; [apply computed_error, H|]. apply le_INR in Hn. apply le_INR in N1; simpl INR at 1 in N1.
  pose proof (pos_INR h) as h0. pose proof (pos_INR w). assert (hu : 0 <= INR h * u) by (apply Rmult_le_pos; lra).
  destruct (pow_above u h u_pos S1) as [G1 G2]. set (g := (1 + u) ^ h) in *.
  assert (GA : (g - 1) * (1 + e) <= (INR h + 3 / 2) * u).
  { assert (g - 1 <= (INR h + 1 / 4) * u) by (replace ((INR h * u) ^ 2) with (INR h ^ 2 * u * u) in G2 by ring;
      assert (INR h ^ 2 * u * u <= 1 / 8 * u) by (apply Rmult_le_compat_r; lra); lra).
    assert ((g - 1) * e <= (INR h + 1 / 4) * u * e) by (apply Rmult_le_compat_r; auto).
    replace ((INR h + 1 / 4) * u * e) with ((INR h + 1 / 4) * e * u) in * by ring.
    assert ((INR h + 1 / 4) * e * u <= 1 / 4 * u) by (apply Rmult_le_compat_r; lra). lra. }
  assert (GB : g <= 2) by nra.
  assert (P1 : (g - 1) * (INR (length D) * ((1 + e) * C)) <= (INR h + 3 / 2) * u * (INR n * C)).
  { replace (_ * (_ * (_ * C))) with ((g - 1) * (1 + e) * (INR (length D) * C)) by ring. pose proof (pos_INR (length D)).
    apply Rmult_le_compat; auto; try (apply Rmult_le_pos; lra). apply Rmult_le_compat_r; lra. }
  pose proof (sqrt_pos (INR (length l))) as L0.
  assert (P2 : INR w * eta * g * sqrt (INR (length l)) <= u * C).
  { apply Rle_trans with (2 := no_underflow). rewrite !(Rmult_comm _ (sqrt _)). apply Rmult_le_compat_l; auto.
    assert (0 <= INR w * eta) by (apply Rmult_le_pos; auto). nra. }
  assert (u * C <= u * C * INR n) by (rewrite <- (Rmult_1_r (u * C)) at 1; apply Rmult_le_compat_l; [apply Rmult_le_pos|]; lra).
  lra.
Qed.
Lemma sums_apart rel D D' v v' : neighbors null rel D D' -> computed D v -> computed D' v' ->
  (length D <= n)%nat -> (length D' <= n)%nat -> norm l (minus v v') <= c rel + 2 * ((INR h + 5 / 2) * (u * C * INR n)).
Proof.
  intros N V V' L L'. pose proof (error_within D v V L) as E1. pose proof (error_within D' v' V' L') as E2. pose proof (moved rel D D' N).
  apply Rle_trans with (norm l (minus v (total p D)) + norm l (minus (total p D) (total p D')) + norm l (minus v' (total p D'))); [|lra].
  rewrite (norm_ext l _ (minus (add (minus v (total p D)) (minus (total p D) (total p D'))) (minus v' (total p D'))))
    by (intro; unfold minus, add; ring).
  eapply Rle_trans; [apply triangle_minus|]. apply Rplus_le_compat_r, triangle.
Qed.
End Neighbours.
End Sums.

(* The two slacks, for sums of depth h over n rows in chunks of B. *)
Lemma sum_within u h B n C room : 0 < u -> 0 < C -> 0 <= n -> h <= B + n / B + room ->
  (h + 5 / 2) * (u * C * n) <= (chain u B n + 1 / 2 + room) * n * u * C.
Proof.
  intros u0 C0 n0 H. replace (_ * n * u * C) with ((chain u B n + 1 / 2 + room) * (u * C * n)) by ring.
  apply Rmult_le_compat_r; [repeat apply Rmult_le_pos; lra|]. unfold chain.
  assert (0 <= n ^ 2 * u) by (apply Rmult_le_pos; [apply pow2_ge_0 | lra]). lra.
Qed.
(* Of dpglm/sums/objective.py, Objective.rounding_slack. *)
Theorem gradient_slack u h B n d K C rel : 0 < u -> 0 < C -> 0 <= n -> 1 <= d -> 0 <= K -> h <= B + n / B + 1 ->
  clip_sensitivity rel ((1 + 2 * (d + K + 2) * u) * C) + 2 * ((h + 5 / 2) * (u * C * n))
  <= clip_sensitivity rel C + rounding_slack u B n d K * C.
Proof.
  intros u0 C0 n0 d1 K0 H. pose proof (sum_within u h B n C 1 u0 C0 n0 H) as S. unfold rounding_slack, clip_sensitivity.
  assert (0 <= (d + K + 2) * (u * C)) by (repeat apply Rmult_le_pos; lra).
  assert (0 <= n * u * C) by (repeat apply Rmult_le_pos; lra).
  assert (1 * (n * u * C) <= d * (n * u * C)) by (apply Rmult_le_compat_r; lra). destruct rel; cbn iota; lra.
Qed.
(* Of dpglm/sums/objective.py, Objective.moment_rounding. *)
Theorem moment_slack u h B n d R rel : 0 < u -> 0 < R -> 0 <= n -> 0 <= d -> (d + 12) * u <= 1 / 4 -> h <= B + n / B + 3 ->
  moment_sensitivity rel ((1 + (d + 12) * u) * R) + 2 * ((h + 5 / 2) * (u * R ^ 2 * n))
  <= moment_sensitivity rel R + moment_rounding u B n d * R ^ 2.
Proof.
  intros u0 R0 n0 d0 E H. assert (0 < R ^ 2) as R2 by (apply pow_lt; auto).
  pose proof (sum_within u h B n (R ^ 2) 3 u0 R2 n0 H) as S. unfold moment_rounding, moment_sensitivity.
  set (e := (d + 12) * u) in *. assert (0 <= e) by (apply Rmult_le_pos; lra).
  replace (2 * (2 * (d + 12) + (chain u B n + 4) * n) * u * R ^ 2) with (4 * e * R ^ 2 + 2 * ((chain u B n + 4) * n * u * R ^ 2)) by (unfold e; ring).
  assert (0 <= n * u * R ^ 2) by (repeat apply Rmult_le_pos; lra).
  assert (M : sqrt 2 <= 3 / 2) by (rewrite <- (sqrt_square (3 / 2)) by lra; apply sqrt_le_1_alt; lra). pose proof (sqrt_pos 2).
  assert (Q : ((1 + e) * R) ^ 2 <= R ^ 2 + 9 / 4 * e * R ^ 2).
  { replace (((1 + e) * R) ^ 2) with ((1 + 2 * e + e * e) * R ^ 2) by ring. assert (e * e <= 1 / 4 * e) by (apply Rmult_le_compat_r; auto).
    replace (R ^ 2 + 9 / 4 * e * R ^ 2) with ((1 + 2 * e + 1 / 4 * e) * R ^ 2) by field. apply Rmult_le_compat_r; lra. }
  assert (0 <= e * R ^ 2) by (apply Rmult_le_pos; lra).
  assert (sqrt 2 * ((1 + e) * R) ^ 2 <= sqrt 2 * R ^ 2 + 27 / 8 * e * R ^ 2).
  { apply Rle_trans with (sqrt 2 * (R ^ 2 + 9 / 4 * e * R ^ 2)); [apply Rmult_le_compat_l; auto|].
    assert (sqrt 2 * (9 / 4 * e * R ^ 2) <= 3 / 2 * (9 / 4 * e * R ^ 2)) by (apply Rmult_le_compat_r; lra). lra. }
  destruct rel; cbn iota; lra.
Qed.

(* GaussianSum.release: numbers beyond 2^62 steps are cut off, then snapped to the grid. *)
Definition cut M v := Rmax (- M) (Rmin M v).
Lemma snapped_entry M g s s' v v' : Rabs (s - cut M v) <= g / 2 -> Rabs (s' - cut M v') <= g / 2 ->
  Rabs (s - s') <= Rabs (v - v') + g.
Proof.
  intros H H'; apply abs_le_inv in H; apply abs_le_inv in H'. pose proof (abs_le_inv _ _ (Rle_refl (Rabs (v - v')))).
  apply Rabs_le; unfold cut, Rmax, Rmin in *; repeat destruct Rle_dec; lra.
Qed.
(* GaussianSum.noise_std: snapping to a grid of spacing g adds g sqrt(d), and the ratio is mu. *)
Lemma snapped_apart {I} (l : list I) (s s' v v' : I -> R) g moved nm std : 0 < g -> 0 < nm -> 0 < moved ->
  (forall i, Rabs (s i - s' i) <= Rabs (v i - v' i) + g) ->
  norm l (minus v v') <= moved -> nm * (moved + g * sqrt (INR (length l))) <= std ->
  norm l (minus s s') / std <= 1 / nm.
Proof.
  intros Hg Hn Hm S1 M ST. pose proof (sqrt_pos (INR (length l))).
  assert (norm l (minus s s') <= moved + g * sqrt (INR (length l))).
  { apply Rle_trans with (norm l (add (fun i => Rabs (v i - v' i)) (fun _ => g))); [apply norm_mono; auto|].
    eapply Rle_trans; [apply triangle | apply Rplus_le_compat].
    - eapply Rle_trans; [|apply M]. right; unfold norm, dot; f_equal; apply Sum_ext; intro i.
      unfold minus; rewrite <- Rabs_mult; apply Rabs_pos_eq, Rle_0_sqr.
    - apply norm_entries; [lra | intro; rewrite Rabs_pos_eq; lra]. }
  assert (0 < moved + g * sqrt (INR (length l))) by (assert (0 <= g * sqrt (INR (length l))) by (apply Rmult_le_pos; lra); lra).
  assert (0 < std) by (eapply Rlt_le_trans; [apply Rmult_lt_0_compat|apply ST]; auto).
  apply Rmult_le_reg_r with std; auto. unfold Rdiv; rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
  apply Rmult_le_reg_l with nm; auto. replace (nm * (1 * / nm * std)) with std by (field; lra).
  eapply Rle_trans; [apply Rmult_le_compat_l|apply ST]; lra.
Qed.
