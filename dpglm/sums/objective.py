"""Rows and labels behind sums: the data in a vault, which return sums over rows and nothing else.

Conventions
-----------
- A row is ``x~ = [x, 1]`` with an intercept and ``x`` without; n_columns is its length and the
  intercept is the last coefficient. Coefficients have shape (n_columns,) for one output and
  (n_columns, K) for K outputs.
- ``gradient_sum`` is ``sum_i min(1, C / ||G_i||) G_i`` with ``G_i = a_i x~_i r_i'``. Here r_i is
  the derivative of the loss in the scores of row i and a_i its weight times that of its class. For
  K outputs ``||G_i|| = a_i ||x~_i|| ||r_i||`` is the Frobenius norm: one clipping norm for all.
- A null record counts in n and contributes nothing to any sum, the intercept's column included. It
  is a row of zeros without an intercept, or a row whose norm is not finite. The norm of a finite
  row is not finite if the sum of its squares overflows, from a norm of about 1.3e154 on. A row with
  a score that is not finite contributes exactly zero as well.
- The rows of one privacy unit are a group. They divide the clipping norm in proportion to the norms
  of their gradients. Together they add ``min(1, C / sum_i ||G_i||) sum_i G_i``, of norm at most C.
- float32 data are read without a copy; coefficients and sums are always float64.
- Rows are divided into chunks by the shape of the problem alone. Each has its own partial sum and
  these are added in order, so that the number of threads never changes a bit of a sum.
"""

import copy
import math
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from dpglm.kernels import one_blas_thread, run_chunks
from dpglm.kernels.arithmetic import LARGEST
from dpglm.kernels.gradient import ROW_GROUP
from dpglm.kernels.line_search import (
    BLOCK_ROWS,
    aligned,
    joint_line_losses,
    margin_line_losses,
)
from dpglm.kernels.vectors import LANES
from dpglm.losses import Loss, NumericLoss, Softmax
from dpglm.sums.reference import Reference, parts_of_groups, sums_by_class
from dpglm.sums.rows import NORM_ROWS, near_centre, rows_of

# A larger weight times the residuals of many outputs would overflow, and not be clipped.
_MAX_WEIGHT = 1e300
# A smaller clipping norm times the inverse norm of a large row is no longer a normal number.
_MIN_CLIP = 2.0**-500
# Numbers read per pass below which a second thread costs more than it saves.
_MIN_THREADED_WORK = 2**19
_UNIT_ROUNDOFF = 2.0**-53
# The least number of rows in a chunk, and the largest size of all partial sums together.
_MIN_ROWS, _MAX_PARTIAL_VALUES = 1024, 2**22
# Numbers of a target beyond this count as this.
_LARGEST_NUMBER = 1e100
# Singular values of a basis below this fraction of the largest count as zero.
_RANK_TOLERANCE = 1e-12
# The largest factor by which a basis that does not span every direction may reduce a row norm.
_MAX_SHORTENING = 2.0**10
# The largest ratio of the total step length over which scores are carried to the norm of the
# coefficients. Up to this ratio scores lose at most three digits; then they are computed afresh.
_LONGEST_WAY = 1024.0
# Below this the scores of a row with a finite norm are finite, also at intermediate steps.
_LARGEST_NORM = 2.0**300

# The attributes of an objective that hold a number for each row.
_OF_ROWS = (
    "_signs", "_signed", "_targets", "_numbers", "_row_weights", "_own_weights", "_residuals",
)  # fmt: skip


class Objective:
    """Sums over the rows of a data set of the gradients of a loss of a linear model.

    X (n, n_features) is a finite ndarray or CSR matrix, float64 or float32: not copied if
    row-major. Repeated columns of a CSR matrix are summed. `target` (n,) is -1 or +1 for one output
    and the index of the class for K outputs: `Softmax`, or one-vs-rest with K in `n_outputs`. A
    `NumericLoss` has numbers, and one output. `class_weight` holds the public weight of each class
    (for one output: of -1, then of +1). These weights multiply the gradient before clipping, and so
    do `row_weights` (n,), from 0 to the public `max_weight`. `groups` (n,) holds the number of each
    row's group, from 0 on, of at most the public `max_contributions` rows. `n_threads`, by default
    numba's limit, never changes a result. `norms` are the `Objective.norms` after later calls of
    `scaled`, `in_basis` and `weighed`, kept from an earlier pass over the same rows: none are then
    computed. Empty `norms` will be collected: the fingerprint of the rows is taken before them.

    All sums are private: only a mechanism may release them, and what `confirm` says. So is
    `n_records`, the number of rows or groups, where the number of records is.
    `coef_shape` is the shape of the coefficients and of `gradient_sum`.
    """

    def __init__(
        self,
        X: np.ndarray | sparse.csr_array | sparse.csr_matrix,
        target: np.ndarray,
        loss: Loss,
        *,
        n_outputs: int = 1,
        fit_intercept: bool = True,
        class_weight: np.ndarray | None = None,
        row_weights: np.ndarray | None = None,
        max_weight: float = 1.0,
        groups: np.ndarray | None = None,
        max_contributions: int = 1,
        n_threads: int | None = None,
        norms: tuple[np.ndarray, ...] | None = None,
    ) -> None:
        rows = rows_of(X)
        self._fingerprint = None if norms is None else rows.fingerprint()
        if norms and not np.array_equal(norms[0], self._fingerprint):
            # A row whose norm has grown would add more than the clipping norm.
            raise ValueError(
                "X has changed between two passes, and rows are clipped by old norms; fit again, "
                "and do not write to X meanwhile."
            )
        if not isinstance(loss, Loss):
            raise TypeError(f"The kernels do not know the loss {loss!r}.")
        if n_outputs < (2 if isinstance(loss, Softmax) else 1):
            raise ValueError(
                f"n_outputs={n_outputs!r} does not suit {loss!r}; give it the number of classes."
            )
        self.loss = loss
        self._n_outputs = n_outputs
        self._fit_intercept = fit_intercept
        self._n_columns = rows.n_features + bool(fit_intercept)
        self.coef_shape = (self._n_columns, n_outputs)[: 1 if n_outputs == 1 else 2]
        self._n_threads = n_threads
        self._weights = _check_weights(class_weight, max(2, n_outputs))
        self._numbers = None
        if isinstance(loss, NumericLoss):
            self._numbers, target = _padded(_within(target)), np.ones(np.shape(target))
        self._signs, self._targets = _check_target(target, rows.n_rows, n_outputs)
        self._basis = None
        self.stretches = (1.0, 1.0)
        self._known, self._kept_factors = (norms[1], norms[2:]) if norms else (None, ())
        self._factors: tuple[np.ndarray, ...] = ()
        self._line = None
        self._rows, self.n_rows = rows, rows.n_rows
        self._signed = self._signs * self._inverse_norms()
        self._row_weights = self._own_weights = self._residuals = None
        self._max_weight = max_weight
        self._groups, self._group_size, self._parts = groups, max_contributions, None
        self.n_records = rows.n_rows if groups is None else int(groups.max()) + 1
        if row_weights is not None:
            self._row_weights = self._own_weights = _padded(np.minimum(row_weights, max_weight))
            self._signed[self._row_weights == 0] = 0.0

    def _inverse_norms(self, basis=None, least=None):
        if self._known is not None:
            return self._known
        inverse = _padded(np.zeros(self.n_rows))

        def invert(first, last):
            self._rows.invert_norms(first, last, inverse, self._fit_intercept, basis, least)

        n_images = 1 if basis is None else basis.size // len(basis)
        self._run(invert, -(-self.n_rows // NORM_ROWS), self._rows.n_values * n_images)
        return inverse

    @property
    def norms(self) -> tuple[np.ndarray, ...]:
        """The fingerprint of the rows, one over the norm of each, and `weighed`'s (private)."""
        return self._fingerprint, np.abs(self._signed), *self._factors

    @property
    def reference(self) -> Reference:
        """The same rows, summed in plain numpy."""
        return replace(
            self._plain(0, self.n_rows),
            groups=self._groups,
            group_size=self._group_size,
            divide=lambda coef, clip: self._divided(coef, clip)._parts,
        )

    def _plain_chunks(self):
        step = self._chunk_rows(self._n_columns * self._n_outputs)
        for start in range(0, self.n_rows, step):
            yield self._plain(start, min(start + step, self.n_rows))

    def _plain(self, start, stop):
        labels = self._signs if self._targets is None else self._targets
        return Reference(
            x=self._rows.block(start, stop),
            target=labels[start:stop],
            inverse_norms=np.abs(self._signed[start:stop]),
            loss=self.loss,
            weights=self._weights,
            fit_intercept=self._fit_intercept,
            basis=self._basis,
            numbers=None if self._numbers is None else self._numbers[start:stop],
            residuals_asked=None if self._residuals is None else self._residuals[start:stop],
            row_weights=None if self._row_weights is None else self._row_weights[start:stop],
            parts=1.0 if self._parts is None else self._parts[start:stop],
        )

    def confirm(
        self, ask: Callable[[Any], np.ndarray], rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Return by how much the answer for some records misses the plain one: zero, shape ()."""
        part = self if rows is None else self._part(self._rows_of(rows))
        return np.array(part.reference.excess(ask(part), ask, part))

    def gradient_sum(
        self, coef: np.ndarray, clip: float, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Sum the gradients of all rows, each clipped to an L2 norm of at most `clip`.

        Shape `coef_shape`, as `coef` has. A `clip` of ``inf`` is none. With `rows`, increasing,
        only these rows or groups are read and summed.
        """
        _check_clip(clip)
        coef = self._check_coef(coef, "coef")
        if rows is not None:
            rows = self._rows_of(rows)
            # A null record must leave no trace, not even in the order of rounding.
            rows = rows[self._signed[rows] != 0]
            return self._part(rows).gradient_sum(coef, clip) if len(rows) else np.zeros_like(coef)
        if self._groups is not None:
            return self._of_divided("gradient_sum", coef, clip)
        if os.environ.get("DPGLM_KERNELS") == "numpy":
            return sum(chunk.gradient_sum(coef, clip) for chunk in self._plain_chunks())
        gradient = self._compiled_sum(coef, min(float(clip), LARGEST))
        return self._times_basis(gradient, transpose=True).reshape(self.coef_shape)

    def _compiled_sum(self, coef, clip):
        """Return the sum in the original columns, shape (n_columns, K)."""
        features, bias = self._split(coef)
        line = self._take_line(coef)
        chunk_rows = self._chunk_rows(self._n_columns * self._n_outputs)
        n_chunks = -(-self.n_rows // chunk_rows)
        sums = np.zeros((n_chunks, *features.shape)), np.zeros((n_chunks, self._n_outputs))
        problem = (
            self._signed, self._targets, self._numbers, None if line is None else line.scores,
            features, bias, clip, self._weights, self._row_weights, self.loss.code,
            self.loss.curvature,
        )  # fmt: skip

        def add_chunks(first, last):
            self._rows.add_chunks(problem, (chunk_rows, first, last), sums)

        self._run(add_chunks, n_chunks, self._rows.n_values * self._n_outputs)
        self._line = line
        gradient, intercepts = (partials.sum(axis=0) for partials in sums)
        gradient = self._rescaled(gradient[:, : self._rows.n_features].T)
        return np.vstack([gradient, intercepts]) if self._fit_intercept else gradient

    def _of_divided(self, question, coef, clip, *where):
        """Ask rows that divide their group's clipping norm, and keep the scores."""
        divided = self._divided(coef, clip)
        sums = getattr(divided, question)(coef, *where, clip=clip)
        self._line = divided._line
        return sums

    def _divided(self, coef, clip):
        """Return the same rows, each with its part of its group's `clip`, by gradients at `coef`.

        The inverse norm of a row is multiplied by its part: clipping then uses a larger norm.
        """
        if self._groups is None:
            return self
        line = self._take_line(coef) or Line(coef, self._scores(coef))
        bounds = [*range(0, self.n_rows, self._chunk_rows(1)), self.n_rows]
        sizes = [
            self._plain(start, stop).sizes(line.scores[:, start:stop].T, clip)
            for start, stop in pairwise(bounds)
        ]
        divided = copy.copy(self)
        divided._line, divided._groups = line, None
        divided._parts = parts_of_groups(np.concatenate(sizes), self._groups)
        divided._signed = self._signed * _padded(divided._parts)
        return divided

    def rounding_slack(self, n_samples: int) -> float:
        """Bound what rounding adds to the sensitivity of `gradient_sum`, relative to `clip`.

        `n_samples` is the public number of records, at least their actual number. The sensitivity
        is at most the exact one plus the result times the clipping norm.

        Notes
        -----
        Let u = 2^-53, with B rows in a chunk, d columns, K outputs and kappa of `_condition`. A
        clipped gradient has norm at most ``(1 + 2 (d + K + 2) kappa u) C``. The computed sum of n
        gradients is within ``kappa (B + n / B + 2 d + 2 + n^2 u) u n C`` of the exact sum; the last
        two terms are for the addition of blocks by `BlockObjective`. Both bounds count twice, once
        for each of two neighboring data sets. Sums by chunks keep the second bound small
        (Casacuberta et al., "Widespread underestimation of sensitivity in differentially private
        libraries", CCS 2022). The parts of a clipping norm of k rows add up to ``1 + (k + 2) u``.
        Theorem, for kappa and k of 1: gradient_slack (proofs/Slack.v).
        """
        n_samples *= self._group_size
        chain = _chain(n_samples, self._n_columns * self._n_outputs)
        norm = 2 * (self._n_columns + self._n_outputs + 2 + self._of_parts)
        total = (chain + 2 * self._n_columns) * n_samples
        return 2 * self._condition * (norm + total) * _UNIT_ROUNDOFF

    @property
    def _of_parts(self):
        """At least k + 2, the rounding units in a bound that k > 1 rows divide; else zero."""
        return 4 * (self._group_size - 1)

    @property
    def _condition(self):
        """Frobenius norm of the basis over its least stretch; of scales, largest over least."""
        return float(self.stretches[0] / self.stretches[1])

    def second_moment(
        self, row_norm: float, diagonal: bool, coef: np.ndarray | None = None
    ) -> np.ndarray:
        """Sum ``x~ x~'`` over rows, each x~ first clipped to this L2 norm.

        The sum does not depend on the target. Shape (n_columns, n_columns), or (n_columns,) with
        `diagonal`. With weights w, ``sqrt(w) x~`` is clipped. In a group the squares of the clipped
        norms add up to at most that of the bound. With the coefficients of one logistic output, the
        second derivative of the loss of the row multiplies w. In a basis P rows are ``P' x~``.
        """
        if self._basis is not None and (diagonal or self._basis.ndim == 1):
            raise ValueError("The second moment in a basis needs a matrix, and diagonal=False.")
        weights = 1.0
        if self._row_weights is not None:
            weights = np.sqrt(self._row_weights[: self.n_rows])
        if coef is not None:
            scores = self._scores(self._check_coef(coef, "coef"))[0, : self.n_rows]
            # A score that is NaN has no second derivative.
            weights = weights * np.sqrt(np.nan_to_num(self.loss.second_derivative(scores)))
        scale = self._shrinkage(row_norm, weights)
        return self._rows.second_moment(
            scale, self._fit_intercept, diagonal, self._chunk_rows(1), self._basis
        )

    def _shrinkage(self, row_norm, weights):
        """Return the weights of rows (n,), reduced where norms are beyond the bound."""
        inverse = np.abs(self._signed[: self.n_rows])
        with np.errstate(over="ignore"):
            shrinkage = np.minimum(weights, row_norm * inverse)
        # Rows are scaled before products: zero times an overflowing square would be NaN.
        scale = np.where(inverse > 0.0, shrinkage, 0.0)
        if self._groups is not None:
            norms = np.divide(scale, inverse, out=np.zeros_like(scale), where=inverse > 0.0)
            parts = parts_of_groups((norms / row_norm) ** 2, self._groups)
            scale = np.minimum(scale, row_norm * np.sqrt(parts) * inverse)
        return scale

    def magnitude_histogram(self, powers: np.ndarray) -> np.ndarray:
        """Count the elements x of each column of ``x~`` by sign and by the power of two below |x|.

        `powers` are consecutive whole numbers. Shape (n_columns, 2 n_powers): the number with ``2^k
        < x <= 2^(k + 1)`` for each power k, and then the same of -x. The last power counts all
        larger elements too. Null records and the intercept are not counted, and in a group only the
        first row that is no null record.
        """
        counts = np.zeros((self._n_columns, 2 * len(powers)))
        counts[: self._rows.n_features] = self._rows.magnitude_histogram(self._counted(), powers)
        return counts

    def norm_histogram(self, bounds: np.ndarray) -> np.ndarray:
        """Count the rows x, without the intercept, whose norm is between consecutive bounds.

        Shape (bounds.size + 1,): at k rows with ``bounds[k - 1] < ||x|| <= bounds[k]`` up to
        rounding, each in one place. The rows are those of `magnitude_histogram`.
        """
        inverse = np.abs(self._signed[: self.n_rows])[self._counted()]
        # A power might round differently by the position of a row; a square does not.
        with np.errstate(over="ignore"):
            squares = np.square(1.0 / inverse) - self._fit_intercept
        places = np.searchsorted(np.square(bounds), squares)
        return np.bincount(places, minlength=bounds.size + 1).astype(np.float64)

    def _counted(self):
        """Return which rows are no null records and, in a group, the first such row."""
        counted = self._signed[: self.n_rows] != 0
        if self._groups is not None:
            rows = np.flatnonzero(counted)
            counted[:] = False
            counted[rows[np.unique(self._groups[rows], return_index=True)[1]]] = True
        return counted

    def scaled(self, scales: np.ndarray) -> "Objective":
        """Return the objective of ``x~`` with its columns multiplied by powers of two.

        Shape (n_columns,), 1 for the intercept. The data are shared; sums and bounds on rounding
        are those of a table that was scaled beforehand.
        """
        powers = np.frexp(scales)[0] == 0.5
        if scales.shape != (self._n_columns,) or not powers.all():
            raise ValueError("The scales of columns must be powers of two.")
        changed = self._basis is not None or self._rows.scales is not None
        if changed or (self._fit_intercept and scales[-1] != 1):
            raise ValueError("Only columns of the table can be scaled, once, before any basis.")
        scaled = copy.copy(self)
        scaled._rows, scaled._line = self._rows.scaled(scales[: self._rows.n_features]), None
        # A null record remains one, though its norm may no longer overflow.
        scaled._signed = np.where(self._signed != 0, self._signs * scaled._inverse_norms(), 0.0)
        return scaled

    def moment_rounding(self, n_samples: int) -> float:
        """Bound what rounding adds to the sensitivity of `second_moment`.

        The bound is relative to the square of `row_norm`. Each element sums products in chunks, in
        any order, as BLAS does: the errors are those of `rounding_slack`. A clipped row has a norm
        of at most ``(1 + (d + 12) u) row_norm``. Later scales cost one more rounding of an element.
        Theorem, without a basis: moment_slack (proofs/Slack.v).

        In a basis a row is a product with P, whose error is ``(d + 2) kappa u`` of the norm. The
        error depends on the position of the row. It changes for all rows if one before them is
        removed, so twice the error is counted. If P subtracts a near centre of norm C, P is applied
        after the sum M. P and its inverse increase norms by a factor of at most ``1 + C``. So rows
        of ``s P' x~`` of norm at most R have at most ``(1 + C) R`` in M. Errors in M grow by ``(1 +
        C)^2``, and two products of two terms an element add less than ``5 u (1 + C)^2 ||M||``.
        """
        n_samples *= self._group_size
        norm = 2 * (self._n_columns + 12 + self._of_parts)
        total = (_chain(n_samples, 1) + 4) * n_samples
        if self._basis is not None:
            products, centre = (self._n_columns + 2) * self._condition, near_centre(self._basis)
            if centre is None:
                total += 4 * products * n_samples
            else:
                total = (total + 5 * n_samples) * (1 + np.linalg.norm(centre)) ** 4 + 2 * products
        return 2 * (norm + total) * _UNIT_ROUNDOFF

    def label_counts(self) -> np.ndarray:
        """Sum the weights of the rows of each class; the rows of a group add up to at most 1.

        Class weights do not change them. Shape (2,), or (K,). A null record adds nothing.
        """
        labels = self._signs if self._targets is None else self._targets
        weights = self._signed != 0
        weights = weights if self._row_weights is None else weights * self._row_weights
        n = self.n_rows
        return sums_by_class(labels[:n], weights[:n], self._groups, self._weights.size)

    def target_histogram(self, powers: np.ndarray) -> np.ndarray:
        """Count the numbers of the target times row weights, as `magnitude_histogram` a column."""
        column = rows_of(self._weighted_numbers()[:, np.newaxis])
        return column.magnitude_histogram(self._counted(), powers)

    def target_sum(self, bound: float) -> np.ndarray:
        """Sum the same numbers over a bound, clipped to [-1, 1], in multiples of 2^-20, exactly.

        Shape (1,). A null record adds nothing.
        """
        parts = np.clip(self._weighted_numbers()[self._counted()] / bound, -1.0, 1.0)
        return np.rint(parts * 2.0**20).sum(keepdims=True) * 2.0**-20

    def _weighted_numbers(self):
        if self._residuals is not None:
            return self._residuals[: self.n_rows]
        if self._row_weights is None:
            return self._numbers[: self.n_rows]
        return (self._numbers * self._row_weights)[: self.n_rows]

    def with_target(self, change: np.ndarray) -> "Objective":
        """Return the objective of ``(y - middle) / unit`` in place of y; `change` has both."""
        changed = copy.copy(self)
        changed._numbers = _within((self._numbers - change[0]) / change[1])
        return changed

    def with_residuals(self, change: tuple[np.ndarray, bool]) -> "Objective":
        """Return the objective whose questions about the target are of residuals at coefficients.

        With a flag, of the squares of Pearson's residuals. They are times the weights that rows had
        before `weighed`, and made by plain arithmetic, a row at a time. Gradients do not change.
        """
        coef, squared = change
        coef, found = self._check_coef(coef, "coef"), []
        for chunk in self._plain_chunks():
            scores = chunk.scores(chunk.original(coef))
            residuals = _within(chunk.residuals(scores)[:, 0])
            if squared:
                residuals = residuals**2 / self.loss.second_derivative(scores[:, 0])
            # A score that is NaN adds nothing.
            found.append(np.nan_to_num(residuals))
        changed = copy.copy(self)
        changed._residuals = _padded(np.concatenate(found))
        if self._own_weights is not None:
            changed._residuals = changed._residuals * self._own_weights
        return changed

    def with_class_weights(self, class_weight: np.ndarray) -> "Objective":
        """Return the objective with these weights of classes in place of its own."""
        weighted = copy.copy(self)
        weighted._weights = _check_weights(class_weight, self._weights.size)
        weighted._line = None
        return weighted

    def weighed(self, bound: float) -> "Objective":
        """Return the objective with the weight of each row times ``min(1, (bound / norm)^2)``.

        A row then adds a gradient of norm at most `bound`, if the loss has slopes up to 1. To the
        curvature the row adds at most ``bound^2`` times its second derivative.
        """
        weighed = copy.copy(self)
        if self._known is None:
            with np.errstate(over="ignore"):
                weights = np.minimum(1.0, np.square(bound * np.abs(self._signed)))
        else:  # norms are those of a later basis
            weights = self._kept_factors[len(self._factors)]
        weighed._factors = (*self._factors, weights)
        weighed._row_weights = weights if self._row_weights is None else weights * self._row_weights
        weighed._line = None
        return weighed

    def line_losses(
        self,
        coef: np.ndarray,
        direction: np.ndarray,
        steps: np.ndarray,
        *,
        loss_clip: float | None = None,
        clip: float | None = None,
    ) -> np.ndarray:
        """Sum bounded losses over rows at ``coef - step * direction`` for each step.

        Steps are equally spaced from 0. A row of zeros, whose loss is constant, adds zero.

        With `loss_clip` (``inf`` for none) a row adds ``min(a_i l_i, loss_clip)``, with a_i its
        weight times that of its class. In groups of up to k rows the limit is its k-th part. With
        `clip` instead, for one output, a row adds the change since step 0 of a loss whose slopes
        are capped. The gradient of that loss is that of `gradient_sum` with this `clip`. The change
        is at most ``step ||direction|| clip`` in size, in any basis, and of one sign at all steps.
        The rows of a group divide `clip` as for `gradient_sum` at `coef`. Their changes, of either
        sign, add up to values within one window of that length at all steps.

        Scores at `coef` are kept for the next `gradient_sum` or `line_losses` at these points.
        """
        coef = self._check_coef(coef, "coef")
        direction = self._check_coef(direction, "direction")
        steps = np.asarray(steps, dtype=np.float64)
        even = np.linspace(0.0, steps.max(initial=0.0, where=steps < np.inf), steps.size)
        if steps.size < 1 or not np.allclose(steps, even, rtol=1e-12, atol=0.0):
            raise ValueError(f"steps must be equally spaced from 0 on, got {steps}.")
        if (loss_clip is None) == (clip is None):
            raise ValueError(
                f"Give either loss_clip or clip, got loss_clip={loss_clip!r}, clip={clip!r}."
            )
        if clip is None:
            if not loss_clip > 0:
                raise ValueError(f"loss_clip must be positive, got {loss_clip!r}.")
            loss_clip = loss_clip / self._group_size
        else:
            if self._n_outputs > 1:
                raise ValueError("Slopes are capped by clip for one output only; give loss_clip.")
            _check_clip(clip)
            if self._groups is not None:
                return self._of_divided("line_losses", coef, clip, direction, steps)
        line = self._take_line(coef) or Line(coef, self._scores(coef))
        line.turn(direction, steps, self._scores(direction, out=line.slopes))
        self._line = line
        return self._sums_along(line, loss_clip, clip)

    def _sums_along(self, line, loss_clip, clip):
        """Sum the losses of all rows at each step of a line."""
        n_steps, capped = line.steps.size, clip is not None
        spacing = float(line.steps[-1]) / max(1, n_steps - 1)
        clip = min(float(clip), LARGEST) if capped else LARGEST
        loss_clip = LARGEST if capped else min(float(loss_clip), LARGEST)
        reach = None
        if self._parts is None:
            reach = min(spacing * _norm(line.direction) * clip, LARGEST / n_steps)
        chunk_rows = rows_per_chunk(self._signed.size, 1)
        partials = np.empty((-(-self._signed.size // chunk_rows), n_steps))
        how = self._weights, self._row_weights, self.loss.code, self.loss.curvature, chunk_rows

        def add_losses(first, last):
            scratch = aligned(n_steps + max(BLOCK_ROWS, 2 * self._n_outputs), LANES)
            of_steps, of_rows = scratch[:n_steps], scratch[n_steps:]
            if self._targets is None:
                margin_line_losses(
                    line.scores[0], line.slopes[0], self._signed, spacing, capped, loss_clip, clip,
                    reach, *how, first, last, of_rows.reshape(8, -1), of_steps, partials,
                )  # fmt: skip
            else:
                start, pace = of_rows[: 2 * self._n_outputs].reshape(2, -1, LANES)
                joint_line_losses(
                    line.scores, line.slopes, self._signed, self._targets, spacing, loss_clip,
                    *how, first, last, start, pace, of_steps, partials,
                )  # fmt: skip

        self._run(add_losses, len(partials), line.scores.size * n_steps)
        return partials.sum(axis=0)

    def line_rounding(self, n_samples: int, bound: float) -> float:
        """Bound the rounding error of each of the sums of `line_losses`.

        `n_samples` is the public number of records, at least their actual number. `bound` is the
        most that a record may add: `loss_clip`, or ``step ||direction|| clip``. The result bounds
        the distance of the computed sum from a sum of terms of at most `bound`, each a function of
        one record.

        Notes
        -----
        In the terms of `rounding_slack`, let a be the largest row weight times class weight. The
        sum is within ``(B + n / B + 10 + n^2 u) u n bound`` of the sum of its terms, for any number
        of blocks. The products of factors that replace sums of logarithms are exact to ``2048 u a``
        per row. The slope of a row along the direction is exact to ``2 (d + 2) kappa u`` of its
        bound, without the error of its parts.
        """
        n_samples *= self._group_size
        sums = (_chain(n_samples, 1) + 8) * n_samples
        slopes = 2 * (self._n_columns + 2 + self._of_parts) * self._condition
        weight = float(self._weights.max()) * self._max_weight
        terms = 2048 * n_samples * self._n_outputs * weight
        return ((sums + slopes) * bound + terms) * _UNIT_ROUNDOFF

    def in_basis(
        self, basis: np.ndarray, stretches: tuple[float, float] | None = None
    ) -> "Objective":
        """Return the same objective in coefficients v, where the current ones are ``basis @ v``.

        P has shape (coef_shape[0], k), or is a vector of positive scales: a diagonal matrix that is
        never formed. `stretches` are those of the result, where they are known; otherwise they need
        a decomposition. Rows become ``P' x~`` and are clipped by the norms of ``P' x~``. The data
        are shared, and multiplied for the norms only, by a triangle in place of P.

        A P that does not span every direction may reduce a row norm without limit. Rounding errors
        would then be large relative to the clipped gradient. Such a row is clipped by a norm of at
        least the least stretch of P, divided by 1024, times the norm of x~.
        """
        basis = np.asarray(basis, dtype=np.float64)
        length = self.coef_shape[0]
        known = basis.ndim in (1, 2) and len(basis) == length and np.isfinite(basis).all()
        if not known or (basis.ndim == 1 and not (basis > 0).all()):
            raise ValueError(
                f"basis must be a finite matrix with {length} rows, or {length} positive scales."
            )
        if self._basis is not None and basis.ndim == 1:
            basis = self._basis * basis
        else:
            basis = self._times_basis(basis)
        rotated = copy.copy(self)
        rotated._line, rotated._basis = None, basis
        rotated.coef_shape = (basis.shape[-1], *self.coef_shape[1:])
        with one_blas_thread():
            rotated.stretches = stretches or extreme_singular_values(basis)
            norms = self._norms_in_basis(basis, rotated.stretches)
        # A null record of the table remains one: scaled columns may have made its norm finite.
        rotated._signed = np.where(self._signed != 0, self._signs * norms, 0.0)
        return rotated

    def _norms_in_basis(self, basis, stretches):
        """Return one over the norm of each row, of at least the least stretch times its own."""
        if self._known is not None:
            return self._known
        own = self._signed if self._basis is None else self._inverse_norms()
        with np.errstate(divide="ignore"):
            least = stretches[1] / np.abs(own[: self.n_rows])
        triangle = basis if basis.ndim == 1 else triangle_of(basis, stretches)
        return self._inverse_norms(triangle, least)

    def _rows_of(self, records):
        """Return the row numbers of these records."""
        if self._groups is None:
            return records
        chosen = np.zeros(self.n_records, dtype=bool)
        chosen[records] = True
        return np.flatnonzero(chosen[self._groups])

    def _part(self, rows):
        """Return the objective of some of the rows."""
        part = copy.copy(self)
        part._rows, part.n_rows, part._line = self._rows.taken(rows), len(rows), None
        for name in _OF_ROWS:
            if getattr(self, name) is not None:
                setattr(part, name, _padded(getattr(self, name)[rows]))
        part._groups = None if self._groups is None else self._groups[rows]
        return part

    def _check_coef(self, coef, name):
        coef = np.asarray(coef, dtype=np.float64)
        if coef.shape != self.coef_shape:
            raise ValueError(f"{name} must have shape {self.coef_shape}, got {coef.shape}.")
        return coef

    def _times_basis(self, array, *, transpose=False):
        """Return P, or its transpose, times an array."""
        # The code of the reference is not used here: the check of the kernels is independent.
        if self._basis is None:
            return array
        if self._basis.ndim == 1:
            return self._basis[:, np.newaxis] * array
        return (self._basis.T if transpose else self._basis) @ array

    def _split(self, coef):
        """Return coefficients of stored columns (K, width), for kernels, and intercepts (K,)."""
        coef = self._times_basis(coef.reshape(len(coef), self._n_outputs))
        n_features = self._rows.n_features
        features = np.zeros((self._n_outputs, self._rows.width))
        features[:, :n_features] = self._rescaled(coef[:n_features]).T
        return features, coef[-1].copy() if self._fit_intercept else np.zeros(self._n_outputs)

    def _rescaled(self, array):
        """Return coefficients (n_features, K) of stored columns, or gradients in scaled ones."""
        scales = self._rows.scales
        return array if scales is None else scales[:, np.newaxis] * array

    def _chunk_rows(self, n_values):
        return rows_per_chunk(self.n_rows, n_values)

    def _run(self, task, n_chunks, work):
        """Call ``task(first, last)`` on ranges of chunks, in threads if there is enough to do."""
        if n_chunks == 1 or work < _MIN_THREADED_WORK:
            task(0, n_chunks)
        else:
            run_chunks(task, n_chunks, self._n_threads)

    def _take_line(self, coef):
        """Take the scores carried to `coef`, if possible; two threads never share them."""
        line = self.__dict__.pop("_line", None)
        return line if line is not None and line.carry_to(coef) else None

    def _scores(self, coef, out=None):
        """Return the scores of all rows, shape (K, padded rows)."""
        features, bias = self._split(coef)
        out = np.zeros((self._n_outputs, self._signed.size)) if out is None else out
        chunk_rows = self._chunk_rows(1)

        def score(first, last):
            self._rows.score(features, bias, first * chunk_rows, last * chunk_rows, out)

        n_chunks = -(-self.n_rows // chunk_rows)
        self._run(score, n_chunks, self._rows.n_values * self._n_outputs)
        return out


def rows_per_chunk(n_rows: int, n_values: int) -> int:
    """Return the number of rows in a chunk when each partial sum holds `n_values` numbers.

    About sqrt(n_rows) minimises the rounding error of the sum. Each chunk has enough rows to be
    worth its partial sum, and all partial sums together take at most 32 MB.
    """
    most = n_rows * n_values // _MAX_PARTIAL_VALUES
    rows = max(_MIN_ROWS, math.isqrt(n_rows), n_values // 4, most)
    return -(-rows // ROW_GROUP) * ROW_GROUP


def _chain(n_samples, n_values):
    """Bound the error of a sum over records, over u and the sum of their bounds; rising in n."""
    rows = rows_per_chunk(n_samples, n_values)
    return rows + n_samples / rows + 2 + n_samples**2 * _UNIT_ROUNDOFF


def triangle_of(basis, stretches):
    """Return a triangular matrix in which every row norm is that in the basis P, or larger.

    The matrix is P if that is triangular. Else it is R' for ``P' = Q R``, times a factor that makes
    no norm smaller than that of ``P' x~``. Let ``P' = Q R + E`` and ``Q' Q = I + F`` for the
    computed Q and R. Then ``||P' x|| <= (1 + ||F||) ||R x|| + ||E|| ||x||``, and the norm that is
    used is at least the least stretch times ||x||. Rounding adds at most ``d^1.5 u ||P||`` to the
    computed E, and ``d^2 u`` to F: no more relative to the least stretch, as ``||P||`` is at least
    sqrt(d) times that stretch.
    """
    if not np.triu(basis, 1).any():
        return basis
    q, r = np.linalg.qr(basis.T)
    largest, least = stretches
    lost = np.linalg.norm(basis.T - q @ r) / least + np.linalg.norm(q.T @ q - np.eye(len(r)))
    return (1 + lost + 4 * len(basis) ** 1.5 * _UNIT_ROUNDOFF * largest / least) * r.T


def extreme_singular_values(basis):
    """Return the Frobenius norm of a basis, and its least stretch as in `in_basis`."""
    if basis.ndim == 1:
        return basis.max(), basis.min()
    stretches = np.linalg.svd(basis, compute_uv=False)
    # Smaller singular values are rounding errors, not directions that the basis spans.
    stretches = stretches[stretches > _RANK_TOLERANCE * stretches.max(initial=0.0)]
    if stretches.size == 0:
        raise ValueError("basis must not be zero.")
    least = stretches[-1]
    if stretches.size < len(basis):
        least /= _MAX_SHORTENING
    return np.linalg.norm(basis), least


def _check_clip(clip):
    if not clip >= _MIN_CLIP:
        raise ValueError(f"clip must be positive (at least {_MIN_CLIP:.0e}), got {clip!r}.")


def _check_weights(class_weight, n_classes):
    if class_weight is None:
        return np.ones(n_classes)
    weights = np.array(class_weight, dtype=np.float64)
    if weights.shape != (n_classes,) or not ((weights >= 0) & (weights <= _MAX_WEIGHT)).all():
        raise ValueError(
            f"class_weight must hold {n_classes} numbers from 0 to {_MAX_WEIGHT:.0e}, one per "
            f"class, got {class_weight!r}."
        )
    return weights


def _check_target(target, n_rows, n_outputs):
    """Return the sign of each row, and its class if there are K outputs; padded with zeros."""
    target = np.asarray(target)
    if target.shape != (n_rows,):
        raise ValueError(f"target must have shape ({n_rows},), got {target.shape}.")
    if n_outputs == 1:
        if not (np.abs(target) == 1).all():
            raise ValueError("target must be -1 or +1 when there is one output.")
        return _padded(target.astype(np.float64)), None
    if not ((target >= 0) & (target < n_outputs) & (target == np.floor(target))).all():
        raise ValueError(f"target must be the index of a class, from 0 to {n_outputs - 1}.")
    return _padded(np.ones(n_rows)), _padded(target.astype(np.int32))


def _within(numbers):
    """Return numbers within limits that leave their products and differences finite."""
    return np.clip(numbers, -_LARGEST_NUMBER, _LARGEST_NUMBER)


def _padded(values):
    """Append zeros to the values of the rows, up to a whole number of groups."""
    return np.pad(values, (0, -len(values) % ROW_GROUP))


class Line:
    """A line of coefficients in a search: the scores at its start, and those of its direction.

    A step along ``coef - step * direction`` changes scores by ``-step`` times those of the
    direction. So a search need not read the data for scores at its new coefficients. Coefficients,
    directions and steps alone decide whether scores are carried, never data. `scores` (K, padded
    rows) are those of `coef`. Arrays of the caller are copied. A line is never shared.
    """

    def __init__(self, coef: np.ndarray, scores: np.ndarray) -> None:
        self.scores = scores
        self.slopes = None
        self._coef, self._travelled, self.steps = coef.copy(), 0.0, ()

    def turn(self, direction: np.ndarray, steps: np.ndarray, slopes: np.ndarray) -> None:
        """Search along another direction, whose scores are `slopes`."""
        self.slopes, self.direction, self.steps = slopes, direction.copy(), steps.copy()

    def carry_to(self, coef: np.ndarray) -> bool:
        """Move the scores to `coef`, unless it is off the line or they would be too inaccurate."""
        if np.array_equal(coef, self._coef):
            return True
        for step in self.steps:
            if np.array_equal(coef, self._coef - step * self.direction):
                break
        else:
            return False
        length = _norm(coef)
        self._travelled += length + step * _norm(self.direction)
        if not self._travelled <= min(_LONGEST_WAY * length, _LARGEST_NORM):
            return False
        self.scores -= step * self.slopes
        self._coef = coef.copy()
        return True


def _norm(vector):
    with np.errstate(over="ignore"):
        return min(float(np.linalg.norm(vector)), LARGEST)
