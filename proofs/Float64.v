(* binary64, rounding to nearest even, is an arithmetic as Rounding.v asks for, by the IEEE format of
   Flocq; the ranges that the code makes sure of keep its bounds away from underflow and overflow, for
   up to 2^20 columns and 2^20 outputs. noise_std covers its own rounding, and sums of steps are exact. *)
From Flocq Require Import Core Relative Plus_error.
Require Import Vectors Rounding Slack.

Definition rnd := round radix2 (FLT_exp (-1074) 53) ZnearestE.
Definition u := bpow radix2 unit_roundoff.
Definition tiny := bpow radix2 (-1022).
Definition eta := bpow radix2 (-1075).
Local Instance prec_pos : Prec_gt_0 53 := eq_refl.
Lemma half e : (/ 2 * bpow radix2 (e + 1) = bpow radix2 e)%R.
Proof. rewrite bpow_plus; change (bpow radix2 1) with 2%R; field. Qed.

Lemma rnd_error x : Rabs (rnd x - x) <= u * Rabs x + eta.
Proof.
  destruct (error_N_FLT radix2 (-1074) 53 ltac:(easy) (fun z => negb (Z.even z)) x) as [e [t [E [T [_ Q]]]]].
  unfold rnd; rewrite Q. replace (x * (1 + e) + t - x)%R with (x * e + t)%R by ring.
  rewrite half in E. change (-1074)%Z with (-1075 + 1)%Z in T. rewrite half in T.
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult, Rmult_comm. apply Rplus_le_compat; auto.
  apply Rmult_le_compat_r; auto. apply Rabs_pos.
Qed.
Lemma rnd_normal x : tiny <= x -> Rabs (rnd x - x) <= u * x.
Proof.
  intro H. assert (0 < tiny) by apply bpow_gt_0. rewrite <- (Rabs_pos_eq x) at 3 by lra.
  unfold u; rewrite <- half. apply relative_error_N_FLT; [easy|]. rewrite Rabs_pos_eq by lra. exact H.
Qed.
Lemma in_format x : rnd x = x -> generic_format radix2 (FLT_exp (-1074) 53) x.
Proof. intro H; rewrite <- H; apply generic_format_round; auto with typeclass_instances. Qed.
Lemma rnd_sum x y : rnd x = x -> rnd y = y -> Rabs (rnd (x + y) - (x + y)) <= u * Rabs (x + y).
Proof.
  intros X Y; apply in_format in X; apply in_format in Y.
  destruct (FLT_plus_error_N_ex radix2 (-1074) 53 (fun z => negb (Z.even z)) x y X Y) as [e [E Q]].
  unfold rnd; rewrite Q. replace ((x + y) * (1 + e) - (x + y))%R with ((x + y) * e)%R by ring.
  rewrite Rabs_mult, Rmult_comm. apply Rmult_le_compat_r; [apply Rabs_pos|]. eapply Rle_trans; [apply E|].
  unfold u_ro. rewrite half. change (bpow radix2 (- (53))) with u. assert (0 < u) by apply bpow_gt_0.
  apply Rmult_le_reg_r with (1 + u)%R; [lra|]. unfold Rdiv; rewrite Rmult_assoc, Rinv_l by lra. nra.
Qed.
Lemma rnd_twice x : rnd (rnd x) = rnd x.
Proof. apply round_generic; auto with typeclass_instances. apply generic_format_round; auto with typeclass_instances. Qed.
Lemma rnd_pos x : 0 <= x -> 0 <= rnd x.
Proof.
  intro H; unfold rnd; rewrite <- (round_0 radix2 (FLT_exp (-1074) 53) ZnearestE).
  apply round_le; auto with typeclass_instances.
Qed.

(* Powers of two, without ever computing one. *)
Lemma pow2 a b : (a <= b)%Z -> bpow radix2 a <= bpow radix2 b. Proof. apply bpow_le. Qed.
Lemma times a b c : (a + b)%Z = c -> bpow radix2 a * bpow radix2 b = bpow radix2 c.
Proof. intros <-; symmetry; apply bpow_plus. Qed.
Ltac power := apply bpow_gt_0.
Lemma u_small : 0 < u <= 1 / 2 ^ 20.
Proof. split; [power|]. apply Rle_trans with (bpow radix2 (-20)); [apply pow2; easy | simpl; lra]. Qed.
Lemma eta_small : 0 <= eta <= u * tiny.
Proof. unfold eta, u, tiny; rewrite (times _ _ (-1075)) by easy; split; [apply bpow_ge_0 | lra]. Qed.
Lemma sqrt_pow2 e : sqrt (bpow radix2 (e + e)) = bpow radix2 e.
Proof. rewrite bpow_plus; apply sqrt_square, bpow_ge_0. Qed.

Lemma square_small a b : 0 <= a <= bpow radix2 22 -> bpow radix2 (-9) <= b -> a ^ 2 * u <= b.
Proof.
  intros [A0 A] B. apply Rle_trans with (2 := B), Rle_trans with (bpow radix2 22 ^ 2 * u).
  - apply Rmult_le_compat_r; [apply bpow_ge_0 | apply pow_incr; auto].
  - replace (bpow radix2 22 ^ 2) with (bpow radix2 22 * bpow radix2 22) by ring. rewrite (times _ _ 44) by easy.
    unfold u; rewrite (times _ _ (-9)) by easy; lra.
Qed.
Lemma four : bpow radix2 22 = 4 * bpow radix2 20 /\ 32 <= bpow radix2 20.
Proof. rewrite <- (times 2 20) by easy; split; [reflexivity | simpl; lra]. Qed.
(* What is lost to gradual underflow is nothing beside a rounding error of the clipping norm. *)
Lemma far_below C e : bpow radix2 small_clip <= C -> (e <= 680)%Z -> eta * bpow radix2 e <= u / 100 * C.
Proof.
  intros H E. unfold eta; rewrite (times _ _ (-1075 + e)) by easy.
  apply Rle_trans with (bpow radix2 (-7) * u * bpow radix2 small_clip).
  - unfold u; rewrite (times _ _ (-60)), (times _ _ (-393)) by easy. apply pow2; lia.
  - apply Rmult_le_compat; auto; try (apply Rmult_le_pos); try apply bpow_ge_0.
    rewrite Rmult_comm; unfold Rdiv; apply Rmult_le_compat_l; [apply bpow_ge_0 | simpl; lra].
Qed.

Section Row.
(* SMALL_SQUARE, norms that are finite, and CLIP_RANGE make sure of these. *)
Context {I : Type} (l : list I) (x : I -> R) (C : R) (d : nat) (S' : R).
Hypothesis computed : squares rnd d (dot l x x) S'.
Hypothesis square_range : bpow radix2 small_square <= S' <= bpow radix2 1024.
Hypothesis clip_range : bpow radix2 small_clip <= C.
Hypothesis d_range : INR d <= bpow radix2 20.
Notation cap := (cap rnd C S').
Notation inverse := (inverse rnd S').

Lemma inverse_low : bpow radix2 (-513) <= 1 / norm' rnd S' /\ bpow radix2 (-514) <= inverse /\ 0 < norm' rnd S'.
Proof.
  pose proof u_small. assert (S0 : 0 < S') by (eapply Rlt_le_trans; [power | apply square_range]).
  assert (T : tiny <= sqrt S').
  { apply Rle_trans with (bpow radix2 (-450)); [apply pow2; easy|]. rewrite <- sqrt_pow2.
    apply sqrt_le_1_alt, square_range. }
  assert (0 < tiny) by power. pose proof (rnd_up rnd u tiny rnd_normal _ T) as H1. pose proof (rnd_down rnd u tiny rnd_normal _ T) as H2.
  fold (norm' rnd S') in H1, H2. assert (sqrt S' <= bpow radix2 512) by (rewrite <- sqrt_pow2; apply sqrt_le_1_alt, square_range).
  assert (N0 : 0 < norm' rnd S') by (eapply Rlt_le_trans; [apply Rmult_lt_0_compat | apply H2]; lra).
  assert (N1 : norm' rnd S' <= bpow radix2 513).
  { rewrite <- (times 1 512) by easy. change (bpow radix2 1) with 2. eapply Rle_trans; [apply H1|].
    apply Rmult_le_compat; lra. }
  assert (N2 : bpow radix2 (-513) <= 1 / norm' rnd S').
  { change (-513)%Z with (- (513))%Z; rewrite bpow_opp. unfold Rdiv; rewrite Rmult_1_l. apply Rinv_le; auto. }
  repeat split; auto. assert (T2 : tiny <= 1 / norm' rnd S') by (eapply Rle_trans; [|apply N2]; apply pow2; easy).
  pose proof (rnd_down rnd u tiny rnd_normal _ T2) as G3. fold inverse in G3.
  rewrite <- (times (-1) (-513)) by easy. change (bpow radix2 (-1)) with (/ 2).
  eapply Rle_trans; [|apply G3]. apply Rmult_le_compat; try lra; apply bpow_ge_0.
Qed.
Lemma guards : INR d * eta <= u * S' /\ 0 < S' /\ 0 < tiny <= sqrt S' /\ tiny <= 1 / norm' rnd S' /\ tiny <= C * inverse.
Proof.
  destruct inverse_low as [I1 [I2 _]]. pose proof (pos_INR d).
  repeat split; try power.
  - apply Rle_trans with (bpow radix2 20 * eta); [apply Rmult_le_compat_r; [apply bpow_ge_0 | lra]|].
    apply Rle_trans with (u * bpow radix2 (-900)); [|apply Rmult_le_compat_l; [apply bpow_ge_0 | apply square_range]].
    unfold u, eta; rewrite (times _ _ (-1055)), (times _ _ (-953)) by easy. apply pow2; easy.
  - eapply Rlt_le_trans; [power | apply square_range].
  - apply Rle_trans with (bpow radix2 (-450)); [apply pow2; easy|]. rewrite <- sqrt_pow2. apply sqrt_le_1_alt, square_range.
  - eapply Rle_trans; [|apply I1]; apply pow2; easy.
  - apply Rle_trans with (bpow radix2 (-333) * bpow radix2 (-514)); [rewrite (times _ _ (-847)) by easy; apply pow2; easy|].
    apply Rmult_le_compat; auto; apply bpow_ge_0.
Qed.
Lemma d_small : (INR d + 10) ^ 2 * u <= 1 / 500.
Proof. pose proof (pos_INR d); destruct four. apply square_small; [lra | simpl; lra]. Qed.
(* single_coefficients of kernels/clip.py. *)
Theorem clip_bound_float64 c : Rabs c <= cap -> norm l (scale c x) <= (1 + 2 * (INR d + 1 + 2) * u) * C.
Proof.
  assert (0 < C) by (eapply Rlt_le_trans; [power | apply clip_range]).
  eapply (computed_clip_bound rnd u eta tiny u_small eta_small rnd_error rnd_normal rnd_sum rnd_twice rnd_pos l x C d S');
    auto using guards, d_small.
Qed.
(* A row as it is shrunk for a second moment. *)
Theorem row_clip_bound_float64 s x' : 0 <= s <= cap -> (forall i, x' i = rnd (s * x i)) ->
  INR (length l) <= bpow radix2 20 -> norm l x' <= (1 + (INR d + 12) * u) * C.
Proof.
  assert (C0 : 0 < C) by (eapply Rlt_le_trans; [power | apply clip_range]). intros Hs Hx HL.
  apply (computed_row_bound rnd u eta tiny u_small eta_small rnd_error rnd_normal rnd_sum rnd_twice rnd_pos l x C d S'
    computed d_small C0 guards s x'); auto.
  assert (sqrt (INR (length l)) <= bpow radix2 10) by (rewrite <- sqrt_pow2; apply sqrt_le_1_alt; exact HL).
  apply Rle_trans with (eta * bpow radix2 10); [apply Rmult_le_compat_l; auto; apply bpow_ge_0 | apply far_below; easy].
Qed.

(* K outputs, with residuals so far from overflow that the quotient does not underflow. *)
Context {J : Type} (outputs : list J) (r r' : J -> R) (Q' weight : R) (k : nat).
Hypothesis residuals : squares rnd (S k) (dot outputs r r + tiny) Q'.
Hypothesis residuals_range : tiny <= cap / root' rnd Q'.
Hypothesis products : forall j, r' j = rnd (Rmin weight (quotient rnd C S' Q') * r j).
Hypothesis k_range : 2 <= INR k <= bpow radix2 20 /\ INR (length outputs) = INR k.
Hypothesis weight_pos : 0 <= weight.
(* _joint_coefficients of kernels/clip.py. *)
Theorem joint_clip_bound_float64 :
  norm (list_prod l outputs) (fun ij => x (fst ij) * r' (snd ij)) <= (1 + 2 * (INR d + INR k + 2) * u) * C.
Proof.
  assert (C0 : 0 < C) by (eapply Rlt_le_trans; [power | apply clip_range]). pose proof u_small as U.
  destruct guards as [A1 [A2 [A3 [A4 A5]]]]. destruct k_range as [[k2 k20] kl]. pose proof (pos_INR d) as d0.
  assert (DK : (INR d + 2 * INR k + 14) ^ 2 * u <= 1 / 500) by (destruct four; apply square_small; [lra | simpl; lra]).
  assert (t0 : 0 < tiny) by power. pose proof (dot_pos outputs r) as R0.
  assert (Ku : (INR k + 1) * u <= 1 / 8).
  { assert ((INR d + 2 * INR k + 14) * u <= (INR d + 2 * INR k + 14) ^ 2 * u) by (apply Rmult_le_compat_r; [lra|]; clear - d0 k2; nra).
    assert ((INR k + 1) * u <= (INR d + 2 * INR k + 14) * u) by (apply Rmult_le_compat_r; lra). lra. }
  destruct (squares_low rnd u eta tiny u_small eta_small rnd_error rnd_sum rnd_twice rnd_pos _ _ _ residuals) as [_ [Q0 [_ [_ B]]]].
  rewrite S_INR in B.
  assert (Q1 : bpow radix2 (-1024) <= Q').
  { rewrite <- (times (-2) (-1022)) by easy. change (bpow radix2 (-2)) with (/ 4). fold tiny.
    pose proof eta_small as [_ E]. assert ((INR k + 1) * eta <= (INR k + 1) * (u * tiny)) by (apply Rmult_le_compat_l; lra).
    assert ((INR k + 1) * (u * tiny) <= 1 / 8 * tiny) by (rewrite <- Rmult_assoc; apply Rmult_le_compat_r; lra).
    assert ((1 - (INR k + 1) * u) * tiny <= (1 - (INR k + 1) * u) * (dot outputs r r + tiny)) by (apply Rmult_le_compat_l; lra).
    assert (7 / 8 * tiny <= (1 - (INR k + 1) * u) * tiny) by (apply Rmult_le_compat_r; lra). lra. }
  assert (T : tiny <= sqrt Q') by (apply Rle_trans with (bpow radix2 (-512)); [apply pow2; easy|];
    rewrite <- sqrt_pow2; apply sqrt_le_1_alt; exact Q1).
  apply (computed_joint_clip_bound rnd u eta tiny u_small eta_small rnd_error rnd_normal rnd_sum rnd_twice rnd_pos
    l x C d S' computed d_small C0 guards outputs r r' Q' weight k residuals products (conj k2 kl) DK weight_pos).
  repeat split; auto.
  assert (N2 : norm l x <= bpow radix2 513).
    { assert (D3 : INR d * u <= 1 / 64) by (apply Rle_trans with (2 := Rle_trans _ _ (1 / 64) d_small ltac:(lra)), Rmult_le_compat_r; [lra | clear - d0; nra]).
      destruct (squares_low rnd u eta tiny u_small eta_small rnd_error rnd_sum rnd_twice rnd_pos _ _ _ computed) as [_ [_ [_ [_ G]]]].
      rewrite <- sqrt_pow2; apply sqrt_le_1_alt. rewrite <- (times 2 1024) by easy. change (bpow radix2 2) with 4.
      assert (u * S' <= 1 / 4 * S') by (apply Rmult_le_compat_r; lra). pose proof (dot_pos l x).
      assert (63 / 64 * dot l x x <= (1 - INR d * u) * dot l x x) by (apply Rmult_le_compat_r; lra). destruct square_range; lra. }
    assert (K2 : sqrt (INR k) <= bpow radix2 10) by (rewrite <- sqrt_pow2; apply sqrt_le_1_alt; exact k20).
    apply Rle_trans with (eta * bpow radix2 523); [|apply far_below; easy]. rewrite Rmult_assoc, <- (times 10 513) by easy.
    apply Rmult_le_compat_l; [apply bpow_ge_0|]. apply Rmult_le_compat; auto; [apply sqrt_pos | apply norm_pos].
Qed.
End Row.

(* Six roundings of the standard deviation, none of which underflows, and those of sensitivity and slack
   (fewer than 500 each) are covered by the last factor. *)
(* Of dpglm/privacy/vault.py, GaussianSum.noise_std. *)
Theorem noise_std_covers z moved slack moved' slack' grid size :
  let a := rnd (sqrt size) in let b := rnd (grid * a) in let c := rnd (moved' + b) in let d := rnd (c + slack') in
  let e := rnd (z * d) in let f := 1 + arithmetic_slack in
  tiny <= sqrt size -> tiny <= grid * a -> tiny <= moved' + b -> tiny <= c + slack' -> tiny <= z * d -> tiny <= e * f ->
  (1 - 1 / 10 ^ 13) * moved <= moved' -> (1 - 1 / 10 ^ 13) * slack <= slack' ->
  0 < z /\ 0 < grid /\ 0 <= moved /\ 0 <= slack -> noise_std z moved slack grid size <= rnd (e * f).
Proof.
  intros a b c d e f A B C D E F Hm Hs [z0 [g0 [m0 s0]]]. set (q := 1 - u). pose proof (rnd_down rnd u tiny rnd_normal) as down; fold q in down.
  assert (Q : 1 - 1 / 10 ^ 15 <= q <= 1) by (unfold q, u, unit_roundoff; split; simpl; lra).
  set (g := grid * sqrt size). set (k := 1 - 1 / 10 ^ 13) in *. assert (0 <= k <= 1) by (unfold k; lra).
  assert (0 <= g) by (apply Rmult_le_pos; [lra | apply sqrt_pos]). assert (P : forall x y, x <= y -> q * x <= q * y) by (intros; apply Rmult_le_compat_l; lra).
  assert (S : forall j x, 0 <= j <= 1 -> 0 <= x -> j * x <= x) by (clear; intros; nra).
  assert (W : forall n, 0 <= q ^ n <= 1) by (intro; split; [apply pow_le; lra | rewrite <- (pow1 n); apply pow_incr; lra]).
  assert (V : 1 <= q ^ 6 * k * f).
  { apply Rle_trans with ((1 - 1 / 10 ^ 15) ^ 6 * k * f); [unfold k, f, arithmetic_slack; simpl; lra|].
    repeat (apply Rmult_le_compat_r; [unfold f, arithmetic_slack; lra|]). apply pow_incr; lra. }
  assert (G : q ^ 2 * g <= b).
  { apply Rle_trans with (2 := down _ B). replace (q ^ 2 * g) with (q * (grid * (q * sqrt size))) by (unfold g; ring).
    apply P, Rmult_le_compat_l; [lra | apply down, A]. }
  assert (L : q ^ 4 * k * (moved + g + slack) <= d).
  { apply Rle_trans with (2 := down _ D). replace (q ^ 4 * k * _) with (q * (q * (q ^ 2 * (k * moved) + k * (q ^ 2 * g)) + q ^ 3 * (k * slack))) by ring.
    apply P, Rplus_le_compat; [apply Rle_trans with (2 := down _ C), P, Rplus_le_compat|].
    - apply Rle_trans with (2 := Hm), S; auto; apply Rmult_le_pos; lra.
    - apply Rle_trans with (2 := G), S; auto; apply Rmult_le_pos; auto; apply W.
    - apply Rle_trans with (2 := Hs), S; auto; apply Rmult_le_pos; lra. }
  apply Rle_trans with (2 := down _ F), Rle_trans with (q * (q * (z * (q ^ 4 * k * (moved + g + slack))) * f)).
  - unfold noise_std; fold g. replace (q * _) with (q ^ 6 * k * f * (z * (moved + g + slack))) by ring.
    rewrite <- (Rmult_1_l (z * _)) at 1. apply Rmult_le_compat_r; [apply Rmult_le_pos|]; lra.
  - apply P, Rmult_le_compat_r; [unfold f, arithmetic_slack; lra|]. apply Rle_trans with (2 := down _ E), P, Rmult_le_compat_l; lra.
Qed.

(* Numbers of records, parts of weights and of a target are multiples of 2^-20, and sums of them exact:
   in any order, while they are below 2^33. *)
Theorem steps_exact m n : (Z.abs (m + n) < 2 ^ 53)%Z ->
  rnd (IZR m * bpow radix2 (-20) + IZR n * bpow radix2 (-20)) = IZR (m + n) * bpow radix2 (-20).
Proof.
  intro H; rewrite <- Rmult_plus_distr_r, <- plus_IZR. apply round_generic; auto with typeclass_instances.
  apply generic_format_FLT; exists (Float radix2 (m + n) (-20)); easy.
Qed.
