"""The one holder of private data: it answers with sums over rows, and with nothing else.

Conventions
-----------
- A row is ``x~ = [x, 1]`` with an intercept and ``x`` without; n_columns is its length and the
  intercept is the last coefficient. Coefficients have shape (n_columns,) for one output and
  (n_columns, K) for K outputs.
- ``gradient_sum`` is ``sum_i min(1, C / ||G_i||) G_i`` with ``G_i = a_i x~_i r_i'``, where r_i is
  the derivative of the loss in the scores of row i and a_i the weight of its class. For K outputs
  ``||G_i|| = a_i ||x~_i|| ||r_i||`` is the Frobenius norm: there is one clip for all of them.
- A null record counts in n and contributes nothing to any sum, the intercept's column included.
- A row whose norm or score is not finite contributes exactly zero. A finite row gets there when the
  sum of its squares overflows, that is from a norm of about 1.3e154.
- float32 data are read as they are; coefficients and sums are always float64.
- Sums are bitwise the same for every number of threads.
"""

import copy

import numpy as np
from scipy import sparse

from dpglm.kernels.arithmetic import LARGEST
from dpglm.kernels.bases import extreme_stretches, times
from dpglm.kernels.moments import second_moment
from dpglm.kernels.threads import default_n_threads, rows_per_chunk, run_chunks
from dpglm.losses import Loss, Softmax
from dpglm.sums.line import Line, check_steps
from dpglm.sums.rows import check_target, inverse_norms, padded_to_groups, rows_of

__all__ = ["Objective"]

# Times the residuals of many outputs, a larger one would overflow, and pass the clip.
_MAX_WEIGHT = 1e300
# A smaller clip times the inverse norm of a large row is no longer a normal number.
_MIN_CLIP = 2.0**-500
# Numbers read per pass below which a second thread costs more than it saves.
_MIN_THREADED_WORK = 2**19
_UNIT_ROUNDOFF = 2.0**-53


class Objective:
    """Sums over the rows of a data set of the gradients of a loss of a linear model.

    Parameters
    ----------
    X : ndarray or scipy CSR of shape (n, n_features), float64 or float32
        Finite. Not copied if row- or column-major; CSR with repeated columns has them summed.
    target : array of shape (n,)
        -1 or +1 for one output, the index of the class for K outputs.
    loss : Loss
    n_outputs : int, default=1
        The number of classes K >= 2 for `Softmax` or one-vs-rest; 1 for a binary margin loss.
    fit_intercept : bool, default=True
    class_weight : array, optional
        Public weight of each class (for one output: of -1, then of +1). It multiplies the gradient
        before the clip.
    present : bool array of shape (n,), optional
        False marks a null record.
    n_threads : int, optional
        Default: what numba may use. It never changes the result.

    Raises
    ------
    ValueError
        If an argument has the wrong shape, type or value.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.losses import Logistic
    >>> X = np.array([[3.0, 4.0], [0.0, 1.0]])
    >>> objective = Objective(X, np.array([1.0, -1.0]), Logistic(), fit_intercept=False)
    >>> objective.gradient_sum(np.zeros(2), clip=1.0)
    array([-0.6, -0.3])
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
        present: np.ndarray | None = None,
        n_threads: int | None = None,
    ) -> None:
        self._rows = rows_of(X)
        n_rows, n_features = X.shape
        if min(X.shape) < 1:
            raise ValueError(f"X must have at least one row and one column, got shape {X.shape}.")
        if n_outputs < (2 if isinstance(loss, Softmax) else 1):
            raise ValueError(
                f"n_outputs={n_outputs!r} does not suit {loss!r}; give it the number of classes."
            )
        self.loss = loss
        self._n_outputs = n_outputs
        self._fit_intercept = fit_intercept
        self._n_columns = n_features + bool(fit_intercept)
        self._n_threads = default_n_threads() if n_threads is None else n_threads
        self._weights = _check_weights(class_weight, max(2, n_outputs))
        self._signs, self._targets = check_target(target, n_rows, n_outputs)
        if present is not None:
            if present.shape != (n_rows,) or present.dtype != np.bool_:
                raise ValueError(f"present must be a bool array of shape ({n_rows},) or None.")
            self._signs[:n_rows] *= present
        self._line = None
        self._basis = None
        self.stretches = (1.0, 1.0)
        self._signed = self._signs * inverse_norms(self._rows, fit_intercept, self._run)

    @property
    def coef_shape(self) -> tuple[int, ...]:
        """Shape of the coefficients, and of what `gradient_sum` returns."""
        length = self._n_columns if self._basis is None else self._basis.shape[-1]
        return (length,) if self._n_outputs == 1 else (length, self._n_outputs)

    @property
    def n_rows(self) -> int:
        """Number of rows; private where the number of records is."""
        return self._rows.n_rows

    @property
    def _condition(self):
        """Condition number of the basis."""
        return float(self.stretches[0] / self.stretches[1])

    def gradient_sum(
        self, coef: np.ndarray, clip: float, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Sum over rows of the gradients, each clipped to an L2 norm of at most `clip`.

        Private: it leaves the library through a mechanism only.

        Parameters
        ----------
        coef : array of shape `coef_shape`
        clip : float
            Positive; ``inf`` for no clipping.
        rows : ndarray of int, increasing, optional
            Sum over the rows of these numbers only, without reading the others.

        Returns
        -------
        ndarray of shape `coef_shape`
        """
        if not clip >= _MIN_CLIP:
            raise ValueError(f"clip must be positive (at least {_MIN_CLIP:.0e}), got {clip!r}.")
        coef = self._check_coef(coef, "coef")
        if rows is not None:
            # A null record must leave no trace, not even in the order of rounding.
            rows = rows[self._signs[rows] != 0]
            return self._part(rows).gradient_sum(coef, clip) if len(rows) else np.zeros_like(coef)
        features, bias = self._split(coef)
        line = self._take_line(coef)
        known = None if line is None else line.scores
        chunk_rows = rows_per_chunk(self._rows.n_rows, self._n_columns * self._n_outputs)
        n_chunks = -(-self._rows.n_rows // chunk_rows)
        n_features = self._rows.n_features
        partials = np.empty((n_chunks, *features.shape))
        intercepts = np.empty((n_chunks, self._n_outputs))
        clip = min(float(clip), LARGEST)
        loss = (self.loss.code, self.loss.curvature)

        def add_chunks(first, last):
            self._rows.add_chunks(
                (self._signed, self._targets, known, features, bias, clip, self._weights, *loss),
                (chunk_rows, first, last),
                (partials, intercepts),
            )

        self._run(add_chunks, n_chunks, self._rows.n_values * self._n_outputs)
        self._line = line
        gradient = np.empty((self._n_columns, self._n_outputs))
        gradient[:n_features] = partials[:, :, :n_features].sum(axis=0).T
        if self._fit_intercept:
            gradient[-1] = intercepts.sum(axis=0)
        return times(self._basis, gradient, transpose=True).reshape(self.coef_shape)

    def second_moment(self, row_bound: float, diagonal: bool) -> np.ndarray:
        """Sum over rows of ``x~ x~'``, each x~ first clipped to an L2 norm of at most `row_bound`.

        Private: it leaves the library through a mechanism only. It does not depend on the target.

        Parameters
        ----------
        row_bound : float
            Positive and finite.
        diagonal : bool
            Whether to sum the squares of the columns only.

        Returns
        -------
        ndarray of shape (n_columns,) or (n_columns, n_columns)
        """
        if self._basis is not None:
            raise ValueError("The second moment is that of the original columns, not in a basis.")
        inverse_norms = np.abs(self._signed[: self._rows.n_rows])
        return second_moment(
            self._rows.block, inverse_norms, row_bound, self._fit_intercept, diagonal
        )

    def moment_rounding(self, n_samples: int) -> float:
        """Bound on what rounding adds to the sensitivity of `second_moment`.

        Relative to the square of the row bound, and with the sums of `rounding_slack`: each entry
        sums products in chunks, a clipped row has a norm of at most ``(1 + (d + 12) u) row_bound``,
        and scaling the entries of a triangle afterwards costs one more rounding of each.
        """
        norm = 2 * (self._n_columns + 12)
        return 2 * (norm + (_chain(n_samples, 1) + 4) * n_samples) * _UNIT_ROUNDOFF

    def line_losses(
        self,
        coef: np.ndarray,
        direction: np.ndarray,
        steps: np.ndarray,
        *,
        loss_clip: float | None = None,
        clip: float | None = None,
    ) -> np.ndarray:
        """Sums over rows of bounded losses at ``coef - step * direction`` for each step.

        Private: they leave the library through a mechanism only. A row of zeros, whose loss is
        constant, adds zero. Scores at `coef` are kept, so that the next `gradient_sum` or
        `line_losses` at one of these points does not compute them again.

        Parameters
        ----------
        coef, direction : array of shape `coef_shape`
        steps : array
            Equally spaced from 0.
        loss_clip : float, optional
            Sum ``min(a_i l_i, loss_clip)``, with a_i the weight of the class of row i; ``inf`` for
            no clipping.
        clip : float, optional
            Instead, for one output: sum the change since step 0 of losses whose slopes are capped,
            so that their gradients are those of `gradient_sum` with this `clip`. What a row adds is
            at most ``step ||direction|| clip`` in size, in any basis, and of one sign at all steps.

        Returns
        -------
        ndarray of shape (len(steps),)
        """
        coef = self._check_coef(coef, "coef")
        direction = self._check_coef(direction, "direction")
        steps = check_steps(steps)
        if (loss_clip is None) == (clip is None):
            raise ValueError(
                f"Give either loss_clip or clip, got loss_clip={loss_clip!r}, clip={clip!r}."
            )
        if loss_clip is not None and not loss_clip > 0:
            raise ValueError(f"loss_clip must be positive, got {loss_clip!r}.")
        if clip is not None and self._n_outputs > 1:
            raise ValueError("Slopes are capped by clip for one output only; give loss_clip.")
        if clip is not None and not clip >= _MIN_CLIP:
            raise ValueError(f"clip must be positive (at least {_MIN_CLIP:.0e}), got {clip!r}.")
        line = self._take_line(coef)
        if line is None:
            line = Line(coef, self._scores(coef))
        line.turn(direction, steps, self._scores(direction, out=line.slopes))
        targets = (self._signed, self._targets, self._weights)
        sums = line.loss_sums(targets, self.loss, loss_clip, clip, self._run)
        self._line = line
        return sums

    def line_rounding(self, n_samples: int, bound: float) -> float:
        """Bound on the rounding error of each of the sums of `line_losses`.

        Parameters
        ----------
        n_samples : int
            The public number of records (not read from the data), at least their actual number.
        bound : float
            The most that a record may add: `loss_clip`, or ``step ||direction|| clip``.

        Returns
        -------
        float
            The computed sum is within it of a sum of terms of at most `bound`, each a function of
            one record.

        Notes
        -----
        With u = 2^-53, B rows in a chunk, kappa the condition number of the basis and a the largest
        weight of a class: the sum is within ``(B + n / B + 10 + n^2 u) u n bound`` of the sum of
        its terms, in however many blocks it is made; the products of factors that replace sums of
        logarithms are exact to ``2048 u a`` per row; and a row's slope along the direction to
        ``2 (d + 2) kappa u`` of its bound.
        """
        sums = (_chain(n_samples, 1) + 8) * n_samples
        slopes = 2 * (self._n_columns + 2) * self._condition
        terms = 2048 * n_samples * self._n_outputs * float(self._weights.max())
        return ((sums + slopes) * bound + terms) * _UNIT_ROUNDOFF

    def in_basis(
        self, basis: np.ndarray, stretches: tuple[float, float] | None = None
    ) -> "Objective":
        """Return the same objective in coefficients v, where the present ones are ``basis @ v``.

        Rows become ``P' x~`` and their norms, which decide the clip, are those of ``P' x~``. The
        data are shared, and multiplied by P block by block, for the norms only: the margins need
        ``P v`` and the gradient is P' times a sum in the original columns.

        A P that does not span every direction may shorten a row at will, and rounding errors would
        then be large beside its clipped gradient. Such a row is clipped as if its norm had been
        reduced by no more than a factor of 1024 below the least stretch of P.

        Parameters
        ----------
        basis : array of shape (coef_shape[0], k) or (coef_shape[0],)
            A vector of positive scales stands for the diagonal matrix, which is never formed.
        stretches : (float, float), optional
            `stretches` of the result, where they are known: to find them takes a decomposition.

        Returns
        -------
        Objective
        """
        basis = np.asarray(basis, dtype=np.float64)
        length = self.coef_shape[0]
        if basis.ndim not in (1, 2) or len(basis) != length or not np.isfinite(basis).all():
            raise ValueError(
                f"basis must be a finite matrix with {length} rows, or {length} scales, got shape "
                f"{basis.shape}."
            )
        if basis.ndim == 1 and not (basis > 0).all():
            raise ValueError("basis must hold positive scales when it is a vector.")
        if self._basis is not None and basis.ndim == 1:
            basis = self._basis * basis
        elif self._basis is not None:
            basis = times(self._basis, basis)
        rotated = copy.copy(self)
        rotated._line = None
        rotated._basis = basis
        rotated.stretches = extreme_stretches(basis) if stretches is None else stretches
        least = rotated.stretches[1]
        norms = inverse_norms(self._rows, self._fit_intercept, self._run, basis, least)
        rotated._signed = self._signs * norms
        return rotated

    def penalty_gradient(self, coef: np.ndarray) -> np.ndarray:
        """Gradient of half the squared norm of the original coefficients without the intercept.

        In a basis P it is ``P' D P v`` with D the identity but for a zero at the intercept. It
        does not depend on the data.
        """
        original = times(self._basis, coef)
        if self._fit_intercept:
            original = np.array(original, dtype=np.float64)
            original[-1] = 0.0
        return times(self._basis, original, transpose=True)

    def rounding_slack(self, n_samples: int) -> float:
        """Bound on what rounding adds to the sensitivity of `gradient_sum`, relative to the clip.

        Parameters
        ----------
        n_samples : int
            The public number of records (not read from the data), at least their actual number.

        Returns
        -------
        float
            The sensitivity is at most the exact one plus this times the clip.

        Notes
        -----
        With u = 2^-53, B rows in a chunk, d columns, K outputs and kappa the condition number of
        the basis (Frobenius norm over least stretch; of scales, largest over least; 1 without a
        basis): a clipped gradient has a norm of at most ``(1 + 2 (d + K + 2) kappa u) C``,
        and the computed sum of n of them is within ``kappa (B + n / B + 2 d + 2 + n^2 u) u n C`` of
        the exact one; the last two terms are for adding blocks of rows, however many, as
        `BlockObjective` does. Both count twice, once for each of two neighboring data sets. Summing
        by chunks, as opposed to one long chain, is what keeps the second small (Casacuberta et al.,
        "Widespread underestimation of sensitivity in differentially private libraries", CCS 2022).
        """
        chain = _chain(n_samples, self._n_columns * self._n_outputs)
        norm = 2 * (self._n_columns + self._n_outputs + 2)
        total = (chain + 2 * self._n_columns) * n_samples
        return 2 * self._condition * (norm + total) * _UNIT_ROUNDOFF

    def _part(self, rows):
        """The objective of some of the rows."""
        part = copy.copy(self)
        part._line = None
        part._rows = self._rows.taken(rows)
        part._signed = padded_to_groups(self._signed[rows])
        part._signs = padded_to_groups(self._signs[rows])
        if self._targets is not None:
            part._targets = padded_to_groups(self._targets[rows])
        return part

    def _check_coef(self, coef, name):
        coef = np.asarray(coef, dtype=np.float64)
        if coef.shape != self.coef_shape:
            raise ValueError(f"{name} must have shape {self.coef_shape}, got {coef.shape}.")
        return coef

    def _split(self, coef):
        """Coefficients of the original columns, as the kernels want them, and intercepts."""
        coef = times(self._basis, coef.reshape(len(coef), self._n_outputs))
        n_features = self._rows.n_features
        features = np.zeros((self._n_outputs, self._rows.width))
        features[:, :n_features] = coef[:n_features].T
        return features, coef[-1].copy() if self._fit_intercept else np.zeros(self._n_outputs)

    def _run(self, task, n_chunks, work):
        run_chunks(task, n_chunks, self._n_threads if work >= _MIN_THREADED_WORK else 1)

    def _take_line(self, coef):
        """Scores carried to `coef`, if possible; popped, so that two threads never share them."""
        line = self.__dict__.pop("_line", None)
        return line if line is not None and line.carry_to(coef) else None

    def _scores(self, coef, out=None):
        """Scores of all rows, shape (K, padded rows)."""
        features, bias = self._split(coef)
        n_rows = self._rows.n_rows
        if out is None:
            out = np.zeros((self._n_outputs, self._signed.size))
        chunk_rows = rows_per_chunk(n_rows, 1)

        def score_chunks(first, last):
            self._rows.score_chunks(features, bias, (chunk_rows, first, last), out)

        self._run(score_chunks, -(-n_rows // chunk_rows), self._rows.n_values * self._n_outputs)
        return out


def _chain(n_samples, n_values):
    """Bound on the error of a sum over records, over u and the sum of their bounds; rising in n."""
    rows = rows_per_chunk(n_samples, n_values)
    return rows + n_samples / rows + 2 + n_samples**2 * _UNIT_ROUNDOFF


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
