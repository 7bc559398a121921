(* Finite sums over lists, vectors as functions on a list of indices, and what a record moves: for
   every pair of neighbouring lists of records, and every function of one record that is zero for the
   null record, two sums of it are no farther apart than its norm, or than two of its values. Gradients
   that are clipped, in any basis and with any weights, have a norm of at most C. *)
Require Export Constants Lra Lia List Psatz.
Export ListNotations.
Open Scope R_scope.

Fixpoint Sum {A} (l : list A) (f : A -> R) : R :=
  match l with [] => 0 | a :: t => f a + Sum t f end.

Lemma abs_le_inv x c : Rabs x <= c -> - c <= x <= c.
Proof. unfold Rabs; destruct Rcase_abs; lra. Qed.

Section Sums.
Context {A B : Type}.
Implicit Types (l : list A) (f g : A -> R).
Lemma Sum_ext l f g : (forall a, f a = g a) -> Sum l f = Sum l g.
Proof. intro H; induction l; simpl; [|rewrite H, IHl]; auto. Qed.
Lemma Sum_plus l f g : Sum l (fun a => f a + g a) = Sum l f + Sum l g.
Proof. induction l; simpl; lra. Qed.
Lemma Sum_scal l c f : Sum l (fun a => c * f a) = c * Sum l f.
Proof. induction l; simpl; [|rewrite IHl]; lra. Qed.
Lemma Sum_app l l' f : Sum (l ++ l') f = Sum l f + Sum l' f.
Proof. induction l; simpl; [|rewrite IHl]; lra. Qed.
Lemma Sum_middle l l' a f : Sum (l ++ a :: l') f = f a + Sum (l ++ l') f.
Proof. rewrite !Sum_app; simpl; lra. Qed.
Lemma Sum_le l f g : (forall a, In a l -> f a <= g a) -> Sum l f <= Sum l g.
Proof.
  induction l as [|a l IH]; simpl; intro H; [lra|].
  apply Rplus_le_compat; [apply H | apply IH; intros; apply H]; auto.
Qed.
Lemma Sum_const l c : Sum l (fun _ => c) = INR (length l) * c.
Proof. induction l; simpl length; [simpl; lra|]. rewrite S_INR; simpl; rewrite IHl; lra. Qed.
Lemma Sum_zero l : Sum l (fun _ => 0) = 0.
Proof. rewrite Sum_const; lra. Qed.
Lemma Sum_nonneg l f : (forall a, 0 <= f a) -> 0 <= Sum l f.
Proof. intro H; rewrite <- (Sum_zero l); apply Sum_le; auto. Qed.
Lemma Sum_term l f a : In a l -> (forall b, 0 <= f b) -> f a <= Sum l f.
Proof.
  intros Ha H; induction l as [|b l IH]; [destruct Ha|]. pose proof (Sum_nonneg l f H).
  destruct Ha as [->|Ha]; simpl; [lra|]. specialize (IH Ha); pose proof (H b); lra.
Qed.
Lemma Sum_swap l (l' : list B) (f : A -> B -> R) :
  Sum l (fun a => Sum l' (f a)) = Sum l' (fun b => Sum l (fun a => f a b)).
Proof.
  induction l' as [|b l' IH]; simpl; [apply Sum_zero | rewrite Sum_plus, IH; auto].
Qed.
Lemma Sum_map l (h : A -> B) (f : B -> R) : Sum (map h l) f = Sum l (fun a => f (h a)).
Proof. induction l; simpl; [|rewrite IHl]; auto. Qed.
End Sums.

Lemma Sum_prod {A B} (l : list A) (l' : list B) f :
  Sum (list_prod l l') f = Sum l (fun a => Sum l' (fun b => f (a, b))).
Proof. induction l; simpl; auto. rewrite Sum_app, IHl, Sum_map; auto. Qed.

Section Vectors.
(* A vector has an entry for each index in `l`; a matrix is a vector over pairs. *)
Context {I : Type} (l : list I).
Implicit Types x y z : I -> R.
Definition dot x y := Sum l (fun i => x i * y i).
Definition norm x := sqrt (dot x x).
Definition add x y i := x i + y i.
Definition minus x y i := x i - y i.
Definition scale c x (i : I) := c * x i.

Lemma dot_sym x y : dot x y = dot y x.
Proof. apply Sum_ext; intro; ring. Qed.
Lemma dot_comb a b x y z : dot (add (scale a x) (scale b y)) z = a * dot x z + b * dot y z.
Proof.
  unfold dot, add, scale. rewrite <- !Sum_scal, <- Sum_plus. apply Sum_ext; intro; ring.
Qed.
Lemma dot_pos x : 0 <= dot x x.
Proof. apply Sum_nonneg; intro; nra. Qed.
Lemma square_comb a b x y :
  let v := add (scale a x) (scale b y) in
  dot v v = a * a * dot x x + 2 * (a * b) * dot x y + b * b * dot y y.
Proof.
  intro v; unfold v at 1; rewrite dot_comb, (dot_sym x v), (dot_sym y v); unfold v.
  rewrite !dot_comb, (dot_sym y x); ring.
Qed.
Lemma norm_pos x : 0 <= norm x. Proof. apply sqrt_pos. Qed.
Lemma norm_square x : norm x * norm x = dot x x. Proof. apply sqrt_sqrt, dot_pos. Qed.
Lemma norm_ext x y : (forall i, x i = y i) -> norm x = norm y.
Proof. intro H; unfold norm, dot; f_equal; apply Sum_ext; intro; rewrite !H; auto. Qed.
Lemma norm_abs x : norm (fun i => Rabs (x i)) = norm x.
Proof. unfold norm, dot; f_equal; apply Sum_ext; intro; rewrite <- Rabs_mult; apply Rabs_pos_eq, Rle_0_sqr. Qed.
Lemma norm_le x c : 0 <= c -> dot x x <= c * c -> norm x <= c.
Proof. intros; rewrite <- (sqrt_square c) by auto; apply sqrt_le_1_alt; auto. Qed.
Lemma square_le x c : norm x <= c -> dot x x <= c * c.
Proof. intro; rewrite <- norm_square; pose proof (norm_pos x); nra. Qed.
Lemma norm_scale c x : norm (scale c x) = Rabs c * norm x.
Proof.
  unfold norm. rewrite <- sqrt_Rsqr_abs, <- sqrt_mult; [|apply Rle_0_sqr | apply dot_pos].
  f_equal; unfold dot, scale, Rsqr; rewrite <- Sum_scal; apply Sum_ext; intro; ring.
Qed.

Lemma cauchy_schwarz x y : dot x y * dot x y <= dot x x * dot y y.
Proof.
  pose proof (dot_pos x); pose proof (dot_pos y).
  pose proof (dot_pos (add (scale (dot y y) x) (scale (- dot x y) y))) as H1.
  pose proof (dot_pos (add (scale (- dot x y) x) (scale (dot x x) y))) as H2.
  pose proof (dot_pos (add (scale 1 x) (scale 1 y))) as H3.
  pose proof (dot_pos (add (scale 1 x) (scale (-1) y))) as H4.
  rewrite square_comb in H1, H2, H3, H4.
  set (p := dot x x) in *; set (q := dot y y) in *; set (s := dot x y) in *.
  destruct (Rlt_or_le 0 q); [nra|]. destruct (Rlt_or_le 0 p); [nra|].
  assert (p = 0) by lra; assert (q = 0) by lra; assert (s = 0) by lra; nra.
Qed.
Lemma dot_le x y : dot x y <= norm x * norm y.
Proof.
  pose proof (cauchy_schwarz x y) as H; pose proof (norm_pos x); pose proof (norm_pos y).
  rewrite <- !norm_square in H. apply Rsqr_incr_0_var; unfold Rsqr; nra.
Qed.
Lemma triangle x y : norm (add x y) <= norm x + norm y.
Proof.
  pose proof (norm_pos x); pose proof (norm_pos y); pose proof (dot_le x y) as H1.
  apply norm_le; [lra|].
  replace (dot (add x y) (add x y)) with (dot x x + 2 * dot x y + dot y y).
  - rewrite <- !norm_square; nra.
  - unfold dot, add; rewrite <- Sum_scal, <- !Sum_plus; apply Sum_ext; intro; ring.
Qed.
Lemma triangle_minus x y : norm (minus x y) <= norm x + norm y.
Proof.
  rewrite (norm_ext (minus x y) (add x (scale (-1) y))) by (unfold minus, add, scale; intro; ring).
  eapply Rle_trans; [apply triangle|]. rewrite norm_scale, Rabs_left by lra; lra.
Qed.
Lemma norm_Sum {J} (rows : list J) (G : J -> I -> R) :
  norm (fun i => Sum rows (fun j => G j i)) <= Sum rows (fun j => norm (G j)).
Proof.
  induction rows as [|j t IH]; simpl.
  - apply norm_le; [lra | unfold dot; rewrite (Sum_ext l _ (fun _ => 0)) by (intro; ring)].
    rewrite Sum_zero; lra.
  - eapply Rle_trans; [apply (triangle (G j)) | lra].
Qed.
Lemma norm_mono x y : (forall i, Rabs (x i) <= y i) -> norm x <= norm y.
Proof.
  intro H; apply sqrt_le_1_alt, Sum_le; intros i _. specialize (H i).
  apply abs_le_inv in H; nra.
Qed.
(* Where two vectors have no negative product, they are not farther apart than sqrt(2) c. *)
Lemma nonneg_apart x y c :
  0 <= dot x y -> norm x <= c -> norm y <= c -> norm (minus x y) <= sqrt 2 * c.
Proof.
  intros H Hx Hy; pose proof (norm_pos x); pose proof (sqrt_pos 2).
  apply norm_le; [nra|].
  replace (dot (minus x y) (minus x y)) with (dot x x - 2 * dot x y + dot y y).
  - apply square_le in Hx, Hy. replace (sqrt 2 * c * (sqrt 2 * c)) with (2 * (c * c)); [lra|].
    rewrite <- (sqrt_sqrt 2) at 1 by lra; ring.
  - transitivity (dot x x + -2 * dot x y + dot y y); [ring|].
    unfold dot, minus; rewrite <- Sum_scal, <- !Sum_plus; apply Sum_ext; intro; ring.
Qed.
Lemma norm_entries x c : 0 <= c -> (forall i, Rabs (x i) <= c) -> norm x <= c * sqrt (INR (length l)).
Proof.
  intros Hc H; pose proof (sqrt_pos (INR (length l))). apply norm_le; [nra|].
  replace (c * _ * _) with (INR (length l) * (c * c)).
  - rewrite <- Sum_const; apply Sum_le; intros i _. specialize (H i).
    replace (x i * x i) with (Rabs (x i) * Rabs (x i))
      by (rewrite <- Rabs_mult; apply Rabs_pos_eq; nra).
    pose proof (Rabs_pos (x i)); nra.
  - rewrite <- (sqrt_sqrt (INR (length l))) at 1 by apply pos_INR; ring.
Qed.
End Vectors.
(* A number is a vector with one entry. *)
Lemma norm_one {I} (i : I) x : norm [i] x = Rabs (x i).
Proof. unfold norm, dot; simpl; rewrite Rplus_0_r; apply sqrt_Rsqr_abs. Qed.

(* Rows that are clipped together, one or several of a group: min(1, C / sum_i ||G_i||) sum_i G_i. *)
Theorem group_clip_bound {J I} (l : list I) (rows : list J) (G : J -> I -> R) (c C : R) :
  0 <= c -> c * Sum rows (fun j => norm l (G j)) <= C ->
  norm l (scale c (fun i => Sum rows (fun j => G j i))) <= C.
Proof.
  intros Hc H; rewrite norm_scale, Rabs_pos_eq by auto.
  eapply Rle_trans; [apply Rmult_le_compat_l, norm_Sum | apply H]; auto.
Qed.
(* A gradient x r' of K outputs has the Frobenius norm ||x|| ||r||. *)
Theorem outer_norm {I J} (l : list I) (k : list J) x r :
  norm (list_prod l k) (fun ij => x (fst ij) * r (snd ij)) = norm l x * norm k r.
Proof.
  unfold norm; rewrite <- sqrt_mult by apply dot_pos; f_equal. unfold dot at 1; rewrite Sum_prod; simpl.
  unfold dot at 1. rewrite Rmult_comm, <- Sum_scal; apply Sum_ext; intro i.
  rewrite Rmult_comm; unfold dot; rewrite <- Sum_scal; apply Sum_ext; intro; ring.
Qed.

(* Lists of records that differ in one; `null` is the null record, which adds nothing. *)
Inductive neighbors {A} (null : A) : relation -> list A -> list A -> Prop :=
| replaced D1 D2 r r' : neighbors null replace_one (D1 ++ r :: D2) (D1 ++ r' :: D2)
| zeroed D1 D2 r : neighbors null zero_out (D1 ++ r :: D2) (D1 ++ null :: D2)
| unzeroed D1 D2 r : neighbors null zero_out (D1 ++ null :: D2) (D1 ++ r :: D2)
| removed D1 D2 r : neighbors null add_or_remove_one (D1 ++ r :: D2) (D1 ++ D2)
| added D1 D2 r : neighbors null add_or_remove_one (D1 ++ D2) (D1 ++ r :: D2).

Section Sensitivity.
Context {A I : Type} (l : list I) (null : A) (f : A -> I -> R).
Definition total (D : list A) (i : I) := Sum D (fun r => f r i).
Definition moves (c : relation -> R) :=
  forall rel D D', neighbors null rel D D' -> norm l (minus (total D) (total D')) <= c rel.

(* One record's contribution bounds what it moves; the distance of two, what a replacement does. *)
Theorem record_moves once twice :
  (forall i, f null i = 0) -> (forall r, norm l (f r) <= once) ->
  (forall r r', norm l (minus (f r) (f r')) <= twice) ->
  moves (fun rel => match rel with replace_one => twice | _ => once end).
Proof.
  intros H0 H1 H2 rel D D' N.
  assert (flip : forall r, norm l (scale (-1) (f r)) <= once)
    by (intro r; rewrite norm_scale, Rabs_left by lra; specialize (H1 r); lra).
  destruct N; [rewrite (norm_ext l _ (minus (f r) (f r'))) | rewrite (norm_ext l _ (f r))
  | rewrite (norm_ext l _ (scale (-1) (f r))) | rewrite (norm_ext l _ (f r))
  | rewrite (norm_ext l _ (scale (-1) (f r)))]; auto; intro i;
  unfold minus, total, scale; rewrite !Sum_middle, ?H0; ring.
Qed.
(* Of dpglm/privacy/budget.py, PrivacyBudget.sensitivity. *)
Theorem clipped_moves c :
  (forall i, f null i = 0) -> (forall r, norm l (f r) <= c) -> moves (fun rel => clip_sensitivity rel c).
Proof.
  intros H0 H1; unfold clip_sensitivity; apply record_moves; auto; intros.
  eapply Rle_trans; [apply triangle_minus|]. pose proof (H1 r); pose proof (H1 r'); lra.
Qed.
(* Without negative products a replacement moves by sqrt(2), not 2, of what a record adds. *)
Theorem apart_moves c :
  (forall i, f null i = 0) -> (forall r, norm l (f r) <= c) -> (forall r r', 0 <= dot l (f r) (f r')) ->
  moves (fun rel => match rel with replace_one => sqrt 2 * c | _ => c end).
Proof. intros; apply record_moves; auto; intros; apply nonneg_apart; auto. Qed.
End Sensitivity.
