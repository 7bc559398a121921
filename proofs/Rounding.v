(* Rounding of one clipped row, in any arithmetic that rounds as IEEE 754 asks and does not overflow:
   a row times a coefficient that kernels/clip.py may return, or a row that is shrunk for a second
   moment, has at most the claimed norm; squares may be added in any order, contracted or not. *)
Require Import Vectors.

(* How a bound on squares, and one from above, carry over: m rounding errors of size u. *)
Lemma root_low u m N S : 0 < u -> 1 <= m -> m ^ 2 * u <= 1 / 500 -> 0 <= N -> (1 - m * u) * (N * N) <= S ->
  (1 - (m / 2 + 1 / 1000) * u) * N <= sqrt S.
Proof.
  intros u0 m1 H N0 HS. assert (M : m * u <= 1 / 500) by (apply Rle_trans with (2 := H), Rmult_le_compat_r; nra).
  set (t := (m / 2 + 1 / 1000) * u). assert (T : 0 <= t <= m * u) by (unfold t; split; nra).
  rewrite <- (sqrt_square ((1 - t) * N)) by (apply Rmult_le_pos; lra). apply sqrt_le_1_alt, Rle_trans with (2 := HS).
  replace ((1 - t) * N * ((1 - t) * N)) with ((1 - 2 * t + t * t) * (N * N)) by ring. apply Rmult_le_compat_r; [nra|].
  assert (t * t <= m ^ 2 * u * u) by (replace (m ^ 2 * u * u) with (m * u * (m * u)) by ring; apply Rmult_le_compat; lra).
  assert (m ^ 2 * u * u <= 1 / 500 * u) by (apply Rmult_le_compat_r; lra). unfold t in *; lra.
Qed.
Lemma inverse_high u m X C : 0 < u -> 1 <= m -> m ^ 2 * u <= 1 / 500 -> 0 <= C -> X * (1 - m * u) <= C ->
  X <= (1 + (m + 1 / 100) * u) * C.
Proof.
  intros u0 m1 H C0 HX. assert (M : m * u <= 1 / 500) by (apply Rle_trans with (2 := H), Rmult_le_compat_r; nra).
  assert (m ^ 2 * u * u <= 1 / 500 * u /\ m * u * u <= 1 / 500 * u) as [? ?] by (split; apply Rmult_le_compat_r; lra).
  assert (E : 1 <= (1 - m * u) * (1 + (m + 1 / 100) * u)) by nra.
  apply Rmult_le_reg_r with (1 - m * u); [lra|]. apply Rle_trans with (1 := HX).
  rewrite <- (Rmult_1_l C) at 1. replace (_ * C * (1 - m * u)) with ((1 - m * u) * (1 + (m + 1 / 100) * u) * C) by ring.
  apply Rmult_le_compat_r; auto.
Qed.
Lemma pow_above u n : 0 < u -> INR n * u <= 1 / 4 -> 1 <= (1 + u) ^ n <= 1 + INR n * u + (INR n * u) ^ 2.
Proof.
  intros u0; induction n as [|n IH]; [simpl; lra|]. rewrite S_INR; cbn [pow]; intro H. pose proof (pos_INR n).
  assert (0 <= INR n * u <= 1 / 4) by (split; [apply Rmult_le_pos|]; lra). destruct IH as [I1 I2]; [lra|]. set (t := INR n * u) in *.
  split; [nra|]. apply Rle_trans with ((1 + u) * (1 + t + t ^ 2)); [apply Rmult_le_compat_l; lra|].
  replace ((INR n + 1) * u) with (t + u) by (unfold t; ring). assert (0 <= t * u * (1 - t)) by (repeat apply Rmult_le_pos; lra). nra.
Qed.

Section Model.
(* IEEE arithmetic without overflow; Float64.v proves these of binary64, rounding to nearest. *)
Variables (rnd : R -> R) (u eta tiny : R).
Hypothesis u_small : 0 < u <= 1 / 2 ^ 20.
Hypothesis eta_small : 0 <= eta <= u * tiny.
Hypothesis rnd_error : forall x, Rabs (rnd x - x) <= u * Rabs x + eta.
Hypothesis rnd_normal : forall x, tiny <= x -> Rabs (rnd x - x) <= u * x.
Hypothesis rnd_sum : forall x y, rnd x = x -> rnd y = y -> Rabs (rnd (x + y) - (x + y)) <= u * Rabs (x + y).
Hypothesis rnd_twice : forall x, rnd (rnd x) = rnd x.
Hypothesis rnd_pos : forall x, 0 <= x -> 0 <= rnd x.

(* A sum of n squares (or known numbers) in any order, contracted or not. Adding an exact zero
   (padding) leaves a number as it is. *)
Inductive squares : nat -> R -> R -> Prop :=
| known a : 0 <= a -> rnd a = a -> squares 1 a a
| product x : squares 1 (x * x) (rnd (x * x))
| sum n m a a' b b' : squares n a a' -> squares m b b' -> squares (n + m) (a + b) (rnd (a' + b'))
| fused n x b b' : squares n b b' -> squares (S n) (x * x + b) (rnd (x * x + b')).

Lemma squares_low n a a' : squares n a a' ->
  0 <= a /\ 0 <= a' /\ rnd a' = a' /\ 1 <= INR n /\ (1 - INR n * u) * a - INR n * eta <= a'.
Proof.
  assert (U : 0 < u < 1 / 2) by (destruct u_small; lra).
  induction 1 as [a H E | x | n m a a' b b' H [A [A' [E [N G]]]] H2 [B [B' [E2 [M G2]]]] | n x b b' H [B [B' [E [N G]]]]].
  - simpl INR; repeat split; auto; [lra | nra].
  - assert (X : 0 <= x * x) by nra. pose proof (abs_le_inv _ _ (rnd_error (x * x))) as K.
    rewrite (Rabs_pos_eq (x * x)) in K by auto. repeat split; auto; simpl INR; lra.
  - pose proof (abs_le_inv _ _ (rnd_sum a' b' E E2)) as K. rewrite Rabs_pos_eq in K by lra. rewrite plus_INR.
    assert (Q : forall i j c c', 0 <= c -> 1 <= i -> 1 <= j -> (1 - i * u) * c - i * eta <= c' -> (1 - (i + j) * u) * c - i * eta <= (1 - u) * c').
    { clear - U eta_small; intros i j c c' C0 I1 J1 L. assert (0 <= i * eta) by (apply Rmult_le_pos; lra).
      apply Rle_trans with ((1 - u) * ((1 - i * u) * c - i * eta)); [|apply Rmult_le_compat_l; lra].
      assert (0 <= u * (i * u * c)) by (repeat apply Rmult_le_pos; lra). assert (u * c <= j * (u * c)) by (rewrite <- (Rmult_1_l (u * c)) at 1; apply Rmult_le_compat_r; auto; apply Rmult_le_pos; lra). nra. }
    pose proof (Q _ _ _ _ A N M G) as Q1; pose proof (Q _ _ _ _ B M N G2) as Q2. rewrite (Rplus_comm (INR m)) in Q2.
    repeat split; try lra; [apply rnd_pos; lra | apply rnd_twice].
  - pose proof (abs_le_inv _ _ (rnd_error (x * x + b'))) as K. assert (X : 0 <= x * x) by nra. rewrite Rabs_pos_eq in K by lra.
    rewrite S_INR. assert (0 <= INR n * u * (x * x)) by (apply Rmult_le_pos; auto; apply Rmult_le_pos; lra). assert (0 <= INR n * eta) by (apply Rmult_le_pos; lra).
    assert (u * (b' + INR n * eta) >= u * ((1 - INR n * u) * b)) by (apply Rmult_ge_compat_l; lra).
    assert (0 <= u * (INR n * u * b) /\ 0 <= u * (INR n * eta)) as [? ?] by (split; repeat apply Rmult_le_pos; lra).
    repeat split; try lra; [apply rnd_pos; lra | apply rnd_twice | nra].
Qed.

Lemma rnd_up x : tiny <= x -> rnd x <= (1 + u) * x.
Proof. intro H; pose proof (abs_le_inv _ _ (rnd_normal x H)); lra. Qed.
Lemma rnd_down x : tiny <= x -> (1 - u) * x <= rnd x.
Proof. intro H; pose proof (abs_le_inv _ _ (rnd_normal x H)); lra. Qed.
Lemma rounded_norm {I} (l : list I) x s x' : 0 <= s -> (forall i, x' i = rnd (s * x i)) ->
  norm l x' <= (1 + u) * (s * norm l x) + eta * sqrt (INR (length l)).
Proof.
  intros s0 Hx; assert (0 < u <= 1 / 2 ^ 20) by auto.
  apply Rle_trans with (norm l (add (scale ((1 + u) * s) (fun j => Rabs (x j))) (fun _ => eta))).
  - apply norm_mono; intro j; rewrite Hx. unfold add, scale. pose proof (abs_le_inv _ _ (rnd_error (s * x j))) as G.
    assert (RS : Rabs (s * x j) = s * Rabs (x j)) by (rewrite Rabs_mult, (Rabs_pos_eq s); auto).
    rewrite RS in G. pose proof (abs_le_inv _ _ (Req_le _ _ RS)). apply Rabs_le; lra.
  - eapply Rle_trans; [apply triangle|]. rewrite norm_scale, Rabs_pos_eq by (apply Rmult_le_pos; lra). apply Rplus_le_compat.
    + right; rewrite (Rmult_assoc (1 + u)), norm_abs; auto.
    + apply norm_entries; [lra | intro; rewrite Rabs_pos_eq; lra].
Qed.

Section Row.
Context {I : Type} (l : list I) (x : I -> R) (C : R) (d : nat) (S' : R).
Let D := INR d.
(* Objective.inverse_norms: of squares above SMALL_SQUARE. *)
Hypothesis computed : squares d (dot l x x) S'.
Definition norm' := rnd (sqrt S').
Definition inverse := rnd (1 / norm').
Definition cap := rnd (C * inverse).    (* clip * abs(signed) *)
Hypothesis d_small : (D + 10) ^ 2 * u <= 1 / 500.
Hypothesis C_pos : 0 < C.
Hypothesis no_underflow : INR d * eta <= u * S' /\ 0 < S' /\ 0 < tiny <= sqrt S' /\ tiny <= 1 / norm' /\ tiny <= C * inverse.

Lemma d_pos : 1 <= D. Proof. apply (squares_low _ _ _ computed). Qed.
Lemma d_first : 0 < u <= 1 / 2 ^ 20 /\ (D + 10) * u <= 1 / 500.
Proof. pose proof d_pos; split; auto. apply Rle_trans with (2 := d_small), Rmult_le_compat_r; [lra | nra]. Qed.
(* The cap is above C / ||x|| by D / 2 + 3.5 rounding errors: half of D, 0.5 and 1 of the root, 2 of quotients. *)
Lemma cap_low : 0 <= cap /\ cap * norm l x * (1 - (D / 2 + 3501 / 1000) * u) <= C.
Proof.
  destruct no_underflow as [N1 [N2 [[N0 N3] [N4 N5]]]]. destruct d_first as [U DU]. pose proof d_pos. pose proof (norm_pos l x) as n0.
  destruct (squares_low _ _ _ computed) as [A [_ [_ [_ B]]]]; fold D in B, N1.
  pose proof (rnd_down _ N3) as H1; fold norm' in H1. pose proof (rnd_up _ N4) as H2; fold inverse in H2.
  pose proof (rnd_up _ N5) as H3; fold cap in H3. pose proof (rnd_down _ N4) as H4; fold inverse in H4.
  assert (P : 0 < norm') by (apply Rlt_le_trans with (2 := H1); apply Rmult_lt_0_compat; lra). assert (0 < 1 / norm') by lra.
  assert (I0 : 0 < inverse) by (apply Rlt_le_trans with (2 := H4); apply Rmult_lt_0_compat; lra).
  assert (P0 : 0 <= cap) by (apply rnd_pos, Rmult_le_pos; lra). split; auto.
  assert (R : (1 - ((D + 1) / 2 + 1 / 1000) * u) * norm l x <= sqrt S').
  { apply root_low; try lra; [apply Rle_trans with (2 := d_small), Rmult_le_compat_r; nra|]. rewrite norm_square.
    assert (u * S' * (1 + u) <= u * S' * 2) by (apply Rmult_le_compat_l; [apply Rmult_le_pos|]; lra).
    assert ((1 - (D + 1) * u) * (1 + u) * dot l x x <= (1 - D * u) * dot l x x) by (apply Rmult_le_compat_r; auto; nra).
    apply Rmult_le_reg_r with (1 + u); lra. }
  assert (T : cap * norm' <= C * (1 + u) ^ 2).
  { assert (inverse * norm' <= 1 + u) by (apply Rmult_le_compat_r with (r := norm') in H2; [|lra];
      replace ((1 + u) * (1 / norm') * norm') with (1 + u) in H2 by (field; lra); auto).
    apply Rmult_le_compat_r with (r := norm') in H3; [|lra].
    assert (C * (inverse * norm') <= C * (1 + u)) by (apply Rmult_le_compat_l; lra).
    assert ((1 + u) * (C * (inverse * norm')) <= (1 + u) * (C * (1 + u))) by (apply Rmult_le_compat_l; lra). lra. }
  set (a := ((D + 1) / 2 + 1 / 1000) * u) in *. assert (a0 : 0 <= a <= 1 / 2) by (unfold a; split; [apply Rmult_le_pos; lra | nra]).
  assert (V : cap * norm l x * ((1 - u) * (1 - a)) <= C * (1 + u) ^ 2).
  { apply Rle_trans with (2 := T). replace (_ * ((1 - u) * (1 - a))) with (cap * ((1 - u) * ((1 - a) * norm l x))) by ring.
    apply Rmult_le_compat_l; auto. apply Rle_trans with (2 := H1), Rmult_le_compat_l; lra. }
  assert (X : 0 <= cap * norm l x) by (apply Rmult_le_pos; auto).
  apply Rle_trans with (cap * norm l x * ((1 - u) * (1 - a)) * (1 - 2 * u)).
  - rewrite (Rmult_assoc (cap * norm l x)). apply Rmult_le_compat_l; auto.
    assert (1 - u - a <= (1 - u) * (1 - a)) by nra. assert ((1 - u - a) * (1 - 2 * u) <= (1 - u) * (1 - a) * (1 - 2 * u)) by (apply Rmult_le_compat_r; lra).
    assert (0 <= (u + a) * (2 * u)) by (apply Rmult_le_pos; lra). unfold a in *; lra.
  - apply Rle_trans with (C * (1 + u) ^ 2 * (1 - 2 * u)); [apply Rmult_le_compat_r; lra|].
    assert ((1 + u) ^ 2 * (1 - 2 * u) <= 1) by nra. rewrite <- (Rmult_1_r C) at 2. rewrite Rmult_assoc; apply Rmult_le_compat_l; lra.
Qed.
(* A coefficient as single_coefficients of kernels/clip.py returns it, or the scale of _shrinkage. *)
Lemma scaled_norm c : Rabs c <= cap -> Rabs c * norm l x <= (1 + (D / 2 + 4) * u) * C.
Proof.
  intro Hc; destruct cap_low as [_ H]. destruct d_first as [U _]. pose proof d_pos.
  assert (Rabs c * norm l x <= cap * norm l x) by (apply Rmult_le_compat_r; auto; apply norm_pos).
  apply inverse_high in H; try lra; [|apply Rle_trans with (2 := d_small), Rmult_le_compat_r; nra].
  assert ((D / 2 + 3501 / 1000 + 1 / 100) * u * C <= (D / 2 + 4) * u * C) by (repeat apply Rmult_le_compat_r; lra). lra.
Qed.
Lemma computed_clip_bound c : Rabs c <= cap -> norm l (scale c x) <= (1 + 2 * (D + 1 + 2) * u) * C.
Proof.
  intro Hc; rewrite norm_scale. eapply Rle_trans; [apply scaled_norm, Hc|]. destruct d_first. pose proof d_pos.
  apply Rmult_le_compat_r; [lra|]. assert ((D / 2 + 4) * u <= 2 * (D + 1 + 2) * u) by (apply Rmult_le_compat_r; lra). lra.
Qed.
Lemma computed_row_bound s x' : 0 <= s <= cap -> (forall i, x' i = rnd (s * x i)) ->
  eta * sqrt (INR (length l)) <= u / 100 * C -> norm l x' <= (1 + (D + 12) * u) * C.
Proof.
  intros [s0 sc] Hx HE. destruct d_first as [U DU]. pose proof d_pos. pose proof (scaled_norm s) as X. rewrite (Rabs_pos_eq s) in X by auto. specialize (X sc).
  eapply Rle_trans; [apply (rounded_norm l x s x' s0 Hx)|].
  assert ((1 + u) * (s * norm l x) <= (1 + u) * ((1 + (D / 2 + 4) * u) * C)) by (apply Rmult_le_compat_l; lra).
  assert (V : (1 + u) * (1 + (D / 2 + 4) * u) + u / 100 <= 1 + (D + 12) * u).
  { assert (u * ((D / 2 + 4) * u) <= u * 1) by (apply Rmult_le_compat_l; lra). assert (0 <= D * u) by (apply Rmult_le_pos; lra). lra. }
  apply Rmult_le_compat_r with (r := C) in V; lra.
Qed.

(* _joint_coefficients: K outputs, residuals r, the sum of whose squares begins at SMALLEST. *)
Context {J : Type} (outputs : list J) (r r' : J -> R) (Q' weight : R) (k : nat).
Let K := INR k.
Hypothesis residuals : squares (S k) (dot outputs r r + tiny) Q'.
Definition root' := rnd (sqrt Q').
Definition quotient := rnd (cap / root').
Hypothesis products : forall j, r' j = rnd (Rmin weight quotient * r j).
Hypothesis k_size : 2 <= K /\ INR (length outputs) = K.
Hypothesis k_small : (D + 2 * K + 14) ^ 2 * u <= 1 / 500.
Hypothesis weight_pos : 0 <= weight.
Hypothesis no_underflow' : tiny <= sqrt Q' /\ tiny <= cap / root' /\ eta * sqrt K * norm l x <= u / 100 * C.

Theorem computed_joint_clip_bound :
  norm (list_prod l outputs) (fun ij => x (fst ij) * r' (snd ij)) <= (1 + 2 * (D + K + 2) * u) * C.
Proof.
  destruct no_underflow' as [N1 [N2 N3]]. destruct k_size as [K2 KL]. destruct cap_low as [P H].
  destruct no_underflow as [_ [_ [[T0 _] _]]]. destruct d_first as [U DU]. pose proof d_pos. pose proof (norm_pos l x) as n0. pose proof (norm_pos outputs r) as r0.
  assert (KU : (D + 2 * K + 14) * u <= 1 / 500) by (apply Rle_trans with (2 := k_small), Rmult_le_compat_r; [lra | nra]).
  assert (small : forall m, 0 <= m <= D + 2 * K + 14 -> m ^ 2 * u <= 1 / 500)
    by (intros m M; apply Rle_trans with (2 := k_small), Rmult_le_compat_r; [lra | apply pow_incr; auto]).
  assert (0 <= D * u /\ 0 <= K * u) as [D0 K0] by (split; apply Rmult_le_pos; lra).
  destruct (squares_low _ _ _ residuals) as [_ [Q0 [_ [_ B]]]]. rewrite S_INR in B; fold K in B. set (T := dot outputs r r + tiny) in *. pose proof (dot_pos outputs r) as R0.
  assert (BT : (1 - (K + 1) * u) * dot outputs r r + tiny / 2 <= Q').
  { assert ((K + 1) * eta <= (K + 1) * (u * tiny)) by (apply Rmult_le_compat_l; lra).
    assert (2 * (K + 1) * u * tiny <= 1 / 2 * tiny) by (apply Rmult_le_compat_r; lra). unfold T in B; lra. }
  assert (0 < Q') by (assert (0 <= (1 - (K + 1) * u) * dot outputs r r) by (apply Rmult_le_pos; lra); lra).
  assert (R : (1 - ((K + 1) / 2 + 1 / 1000) * u) * norm outputs r <= sqrt Q').
  { apply root_low; try lra; [apply small; lra|]. rewrite norm_square; lra. }
  pose proof (rnd_down _ N1) as G1; fold root' in G1. assert (0 < root')
    by (apply Rlt_le_trans with (2 := G1); apply Rmult_lt_0_compat; [lra | apply sqrt_lt_R0; auto]).
  pose proof (rnd_up _ N2) as G2; fold quotient in G2.
  assert (Z : quotient * root' <= (1 + u) * cap) by (apply Rmult_le_compat_r with (r := root') in G2; [|lra];
    replace ((1 + u) * (cap / root') * root') with ((1 + u) * cap) in G2 by (field; lra); auto).
  assert (q0 : 0 <= quotient) by (apply rnd_pos; lra).
  set (s := Rmin weight quotient) in *. assert (s0 : 0 <= s) by (apply Rmin_glb; auto).
  assert (sq : s <= quotient) by apply Rmin_r.
  (* The norm of what is computed, times that of the row. *)
  rewrite outer_norm.
  pose proof (rounded_norm outputs r s r' s0 products) as E; rewrite KL in E; fold K in E.
  set (X := (1 + u) * s * norm outputs r * norm l x). assert (X0 : 0 <= X) by (unfold X; repeat apply Rmult_le_pos; lra).
  set (a := ((K + 1) / 2 + 1 / 1000) * u) in *. set (b := (D / 2 + 3501 / 1000) * u) in *.
  assert (a0 : 0 <= a <= 1 / 9) by (unfold a; lra). assert (b0 : 0 <= b <= 1 / 9) by (unfold b; lra).
  assert (F : s * norm outputs r * ((1 - u) * (1 - a)) <= (1 + u) * cap).
  { apply Rle_trans with (2 := Z). rewrite Rmult_assoc; apply Rmult_le_compat; auto; [repeat apply Rmult_le_pos; lra|].
    apply Rle_trans with (2 := G1). replace (norm outputs r * _) with ((1 - u) * ((1 - a) * norm outputs r)) by ring. apply Rmult_le_compat_l; lra. }
  assert (G : X * (1 - (u + a + b + 2 * u)) <= C).
  { apply Rle_trans with (X * ((1 - u) * (1 - a)) * (1 - b) * (1 - 2 * u)).
    - rewrite !Rmult_assoc; apply Rmult_le_compat_l; auto. assert (S3 : forall y z, 0 <= y -> 0 <= z -> 1 - (y + z) <= (1 - y) * (1 - z)) by (clear; intros; nra).
      apply Rle_trans with ((1 - u) * (1 - (a + b + 2 * u))); [pose proof (S3 u (a + b + 2 * u)); lra|]. apply Rmult_le_compat_l; [lra|].
      apply Rle_trans with ((1 - a) * (1 - (b + 2 * u))); [pose proof (S3 a (b + 2 * u)); lra|]. apply Rmult_le_compat_l; [lra | apply S3; lra].
    - replace (X * _ * _ * _) with ((1 + u) * (1 - 2 * u) * (s * norm outputs r * ((1 - u) * (1 - a)) * (norm l x * (1 - b)))) by (unfold X; ring).
      assert (0 <= norm l x * (1 - b)) by (apply Rmult_le_pos; lra).
      apply Rle_trans with ((1 + u) * (1 - 2 * u) * ((1 + u) * cap * (norm l x * (1 - b)))).
      + apply Rmult_le_compat_l; [apply Rmult_le_pos; lra | apply Rmult_le_compat_r; auto].
      + replace (_ * (_ * cap * _)) with ((1 + u) * (1 - 2 * u) * (1 + u) * (cap * norm l x * (1 - b))) by ring.
        rewrite <- (Rmult_1_l C). apply Rmult_le_compat; [repeat apply Rmult_le_pos; lra | repeat apply Rmult_le_pos; lra | nra | auto]. }
  replace (u + a + b + 2 * u) with ((D / 2 + K / 2 + 7002 / 1000) * u) in G by (unfold a, b; field).
  apply inverse_high in G; [|lra|lra|apply small; lra|lra].
  apply Rle_trans with (norm l x * ((1 + u) * (s * norm outputs r) + eta * sqrt K)).
  - apply Rmult_le_compat_l; [apply norm_pos | auto].
  - replace (norm l x * _) with (X + eta * sqrt K * norm l x) by (unfold X; ring).
    assert (V : (D / 2 + K / 2 + 7002 / 1000 + 2 / 100) * u <= 2 * (D + K + 2) * u) by (apply Rmult_le_compat_r; lra).
    apply Rmult_le_compat_l with (r := C) in V; lra.
Qed.
End Row.
End Model.
