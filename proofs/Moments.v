(* Second moments: where the squared norms of a record's rows add up to R^2 at most, the sum of all
   x x' moves by R^2, or sqrt(2) R^2 where a record is replaced; so does its diagonal, and in a single
   column both move by R^2. The upper triangle is released, with weights that keep the norm. *)
Require Import Vectors.

Section Moments.
Context {I : Type} (l : list I).
Notation pairs := (list_prod l l).
Notation rows := (list (I -> R)).
Implicit Types (x y : I -> R) (a b : rows).
Definition outer x (ij : I * I) := x (fst ij) * x (snd ij).
Definition moment a ij := Sum a (fun x => outer x ij).
Definition trace a := Sum a (fun x => dot l x x).

Lemma moments_dot a b : dot pairs (moment a) (moment b) = Sum a (fun x => Sum b (fun y => dot l x y * dot l x y)).
Proof.
  unfold dot at 1, moment.
  transitivity (Sum pairs (fun ij => Sum a (fun x => Sum b (fun y => outer x ij * outer y ij)))).
  - apply Sum_ext; intro ij. rewrite Rmult_comm, <- Sum_scal; apply Sum_ext; intro x.
    rewrite Rmult_comm, <- Sum_scal; auto.
  - rewrite Sum_swap; apply Sum_ext; intro x; rewrite Sum_swap; apply Sum_ext; intro y.
    rewrite Sum_prod; unfold outer; simpl. unfold dot at 2.
    rewrite <- Sum_scal; apply Sum_ext; intro i; rewrite Rmult_comm; unfold dot.
    rewrite <- Sum_scal; apply Sum_ext; intro j; ring.
Qed.
Lemma moment_norm a : norm pairs (moment a) <= trace a.
Proof.
  unfold trace; apply norm_le; [apply Sum_nonneg; intro; apply dot_pos|].
  rewrite moments_dot. rewrite <- Sum_scal. apply Sum_le; intros x _.
  rewrite Rmult_comm, <- Sum_scal. apply Sum_le; intros y _. apply cauchy_schwarz.
Qed.
(* Of dpglm/privacy/vault.py, moment_sensitivity. *)
Theorem second_moment_moves {A} (null : A) (row : A -> rows) bound :
  (forall ij, moment (row null) ij = 0) -> (forall r, trace (row r) <= bound ^ 2) ->
  moves pairs null (fun r => moment (row r)) (fun rel => moment_sensitivity rel bound).
Proof.
  intros H0 H; apply apart_moves; auto.
  - intro; eapply Rle_trans; [apply moment_norm | auto].
  - intros; rewrite moments_dot; repeat (apply Sum_nonneg; intro). nra.
Qed.
(* The diagonal is a part of the moment: its norm, and that of a difference, are no larger. *)
Lemma diagonal_norm m : norm l (fun i => m (i, i)) <= norm pairs m.
Proof.
  apply sqrt_le_1_alt; unfold dot; rewrite Sum_prod. apply Sum_le; intros i Hi.
  apply (Sum_term l (fun j => m (i, j) * m (i, j))); auto. intro; nra.
Qed.
Theorem second_moment_diagonal_moves {A} (null : A) (row : A -> rows) bound :
  (forall ij, moment (row null) ij = 0) -> (forall r, trace (row r) <= bound ^ 2) ->
  moves l null (fun r i => moment (row r) (i, i)) (fun rel => moment_sensitivity rel bound).
Proof.
  intros H0 H rel D D' N. eapply Rle_trans; [|apply (second_moment_moves null row bound H0 H rel D D' N)].
  apply (diagonal_norm (minus (total (fun r => moment (row r)) D) (total (fun r => moment (row r)) D'))).
Qed.
End Moments.
(* Of dpglm/privacy/vault.py, moment_sensitivity. *)
Theorem single_moment_moves {A I} (i : I) (null : A) (row : A -> list (I -> R)) bound :
  (forall ij, moment (row null) ij = 0) -> (forall r, trace [i] (row r) <= bound ^ 2) ->
  moves [i] null (fun r j => moment (row r) (j, j)) (fun rel => single_moment_sensitivity rel bound).
Proof.
  intros H0 H rel D D' N; unfold single_moment_sensitivity.
  assert (P : forall r, 0 <= moment (row r) (i, i) <= bound ^ 2).
  { intro r; specialize (H r); split; [apply Sum_nonneg; intro; unfold outer; simpl; nra|].
    unfold trace, moment in *; erewrite Sum_ext; [apply H|]. intro; unfold outer, dot; simpl; ring. }
  eapply Rle_trans; [apply (record_moves _ _ _ (bound ^ 2) (bound ^ 2)) with (4 := N)|destruct rel; lra]; auto.
  - intro r; rewrite norm_one, Rabs_pos_eq; apply P.
  - intros r r'; pose proof (P r); pose proof (P r'). rewrite norm_one; apply Rabs_le; unfold minus; lra.
Qed.

(* The upper triangle: pairs of indices with the weight of each element. *)
Fixpoint upper {I} (l : list I) : list (R * (I * I)) :=
  match l with [] => [] | a :: t => (1, (a, a)) :: map (fun b => (sqrt 2, (a, b))) t ++ upper t end.
Definition weighted {I} (m : I * I -> R) e := fst e * m (snd e).
(* Of dpglm/privacy/vault.py, triangle. *)
Theorem triangle_norm {I} (l : list I) m :
  (forall i j, m (i, j) = m (j, i)) -> norm (upper l) (weighted m) = norm (list_prod l l) m.
Proof.
  intro H; unfold norm; f_equal. unfold dot; rewrite Sum_prod; unfold weighted.
  induction l as [|a t IH]; auto. cbn [upper Sum fst snd]. rewrite Sum_app, Sum_map, IH.
  rewrite Sum_plus, (Sum_ext t (fun i => m (i, a) * m (i, a)) (fun b => m (a, b) * m (a, b)))
    by (intro; rewrite H; ring).
  rewrite (Sum_ext t _ (fun b => 2 * (m (a, b) * m (a, b)))).
  - rewrite Sum_scal; lra.
  - intro b; cbn [fst snd]. rewrite <- (sqrt_sqrt 2) at 3 by lra; ring.
Qed.
Corollary upper_moves {A I} (l : list I) (null : A) (row : A -> list (I -> R)) c :
  moves (list_prod l l) null (fun r => moment (row r)) c -> moves (upper l) null (fun r => weighted (moment (row r))) c.
Proof.
  intros H rel D D' N; specialize (H rel D D' N); rewrite <- triangle_norm in H.
  - erewrite norm_ext; [apply H|]. intro e; unfold minus, weighted, total; rewrite !Sum_scal; ring.
  - intros i j; unfold minus, total, moment, outer; f_equal; repeat (apply Sum_ext; intro); simpl; ring.
Qed.
