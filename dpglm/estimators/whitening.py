"""Private whitening: descend in coordinates in which the features are uncorrelated.

Gradient descent on ill-conditioned features, one-hot codes for instance, runs out of iterations
long before it runs out of budget. A small part of the budget buys a noisy second moment of the
features, ``sum_i x~_i x~_i'`` or its diagonal, and everything made of it is post-processing: a
basis P in which the features have a second moment near the identity, and the effective dimension.
Descent then runs on ``P' x~`` with coefficients v, and ``P v`` are the coefficients of x~.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from dpglm.estimators.adaptive_plan import AdaptivePlan
from dpglm.estimators.plan import PrivacyPlan, SecondMomentRelease
from dpglm.kernels.bases import one_blas_thread, times
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import Event
from dpglm.privacy.noise import EntropySource

if TYPE_CHECKING:
    from dpglm.sums.objective import Objective

__all__ = [
    "DEFAULT_ROW_BOUND",
    "DiagonalPreconditioner",
    "FullPreconditioner",
    "Preconditioner",
    "Whitening",
    "check_preconditioner",
    "denoised_moment",
    "second_moment_sensitivity",
]


def denoised_moment(moment: np.ndarray, noise_std: float) -> np.ndarray:
    """Return the directions that stand out from the noise, and what they leave of the diagonal.

    Parameters
    ----------
    moment : ndarray of shape (d, d)
        Symmetric, with independent Gaussian noise on its upper triangle.
    noise_std : float
        Standard deviation of the noise on the diagonal; off the diagonal it is sqrt(2) less.

    Returns
    -------
    ndarray of shape (d, d)
        Positive semidefinite; the positive part of the moment if there is no noise.

    Notes
    -----
    Such noise has eigenvalues up to ``e = noise_std sqrt(2 d)``, and a direction of variance
    ``v > e / 2`` appears with the eigenvalue ``v + e^2 / (4 v)`` (Benaych-Georges & Nadakuditi,
    Advances in Mathematics 2011, Section 3.1). So eigenvalues beyond e are solved for v and the
    others tell nothing. What the kept directions leave of the diagonal comes in as it is: it has d
    numbers only, and so much less noise.

    Examples
    --------
    >>> denoised_moment(np.array([[5.0, 1.0], [1.0, 3.0]]), noise_std=0.0)
    array([[5., 1.],
           [1., 3.]])
    >>> denoised_moment(np.array([[5.0, 1.0], [1.0, 3.0]]), noise_std=9.0)
    array([[5., 0.],
           [0., 3.]])
    """
    edge = noise_std * math.sqrt(2 * len(moment))
    values, vectors = np.linalg.eigh(moment)
    values, vectors = values[values > edge], vectors[:, values > edge]
    variances = (values + np.sqrt((values - edge) * (values + edge))) / 2
    directions = (vectors * variances) @ vectors.T
    rest = np.maximum(np.diag(moment) - np.diag(directions), 0.0)
    return directions + np.diag(rest)


# Public stand-in where no bound is given: the norm of a row of nine ones, which are an intercept
# and eight features in [0, 1] at their largest or categories in one-hot code.
DEFAULT_ROW_BOUND = 3.0

# Least ridge, relative to row_bound^2: without noise it keeps the basis finite and its condition
# number, which multiplies rounding errors, below 2^15.
_LEAST_RIDGE = 2.0**-30

# Rows that were shortened by more than a factor of 1000 count as shortened by that.
_LEAST_KEPT = 1e-6


def second_moment_sensitivity(row_bound: float, neighboring_relation: str, n_columns: int) -> float:
    """L2 sensitivity of the second moment of rows clipped to ``row_bound``, or of its diagonal.

    Parameters
    ----------
    row_bound : float
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}
    n_columns : int
        Length of a row, intercept included.

    Returns
    -------
    float
        ``row_bound^2``, or ``sqrt(2) row_bound^2`` under ``"replace_one"`` with two columns or
        more.

    Notes
    -----
    Let ``||x||, ||y|| <= R``. In the Frobenius norm, which is the L2 norm of the upper triangle
    with its off-diagonal entries times sqrt(2), ``||x x'|| = ||x||^2 <= R^2``: so much moves when a
    record appears or vanishes. When x replaces y, ``||x x' - y y'||^2 = ||x||^4 + ||y||^4 -
    2 (x'y)^2 <= 2 R^4``, with equality for orthogonal x and y of norm R; in one dimension
    ``|x^2 - y^2| <= R^2``. For the diagonal, ``sum_j x_j^4 <= (sum_j x_j^2)^2 <= R^4`` and
    ``sum_j (x_j^2 - y_j^2)^2 <= sum_j x_j^4 + sum_j y_j^4 <= 2 R^4``, with equality for two axes.

    Examples
    --------
    >>> second_moment_sensitivity(2.0, "zero_out", n_columns=5)
    4.0
    """
    both = neighboring_relation == "replace_one" and n_columns > 1
    return (math.sqrt(2) if both else 1.0) * row_bound**2


@dataclass(frozen=True, eq=False)
class Whitening:
    """What a preconditioner released, and what follows from it.

    Attributes
    ----------
    moment : ndarray of shape (n_columns,) or (n_columns, n_columns)
        The noisy second moment of the clipped rows, divided by the public number of records.
    basis : ndarray of the same shape
        P, or its diagonal.
    effective_dimension : float
        Trace of the whitened second moment, 1 or more: about how many directions stand out.
    noise_std : float
        Standard deviation of the noise on the sum.
    event : Event
        What the release cost.
    """

    moment: np.ndarray
    basis: np.ndarray
    effective_dimension: float
    noise_std: float
    event: Event

    def original(self, coef: np.ndarray) -> np.ndarray:
        """Return the coefficients of the original columns, ``P v``."""
        return times(self.basis, coef)


class Preconditioner(BaseEstimator):
    """A rule that turns a noisy second moment into a basis; see its two subclasses.

    They store ``share``, ``damping`` and ``row_bound``, say with ``diagonal`` which moment they
    need, and define ``_released``, ``_moment`` and ``_whitened``.
    """

    diagonal: bool

    def release_plan(self, budget: PrivacyBudget, n_columns: int) -> SecondMomentRelease:
        """Return what will be released and at which noise multiplier, before any data.

        Parameters
        ----------
        budget : PrivacyBudget
        n_columns : int
            Length of a row, intercept included.

        Returns
        -------
        SecondMomentRelease

        Raises
        ------
        ValueError
            If a parameter is out of range.
        """
        row_bound = DEFAULT_ROW_BOUND if self.row_bound is None else self.row_bound
        _check_number("share", self.share, 0.0, 1.0)
        _check_number("damping", self.damping, 0.0, math.inf)
        _check_number("row_bound", row_bound, 1e-50, 1e50)
        cost = budget.mu * math.sqrt(self.share)
        return SecondMomentRelease(
            preconditioner=self,
            row_bound=float(row_bound),
            sensitivity=second_moment_sensitivity(
                float(row_bound), budget.neighboring_relation, n_columns
            ),
            noise_multiplier=1 / cost,
        )

    def whiten(
        self, objective: "Objective", plan: PrivacyPlan | AdaptivePlan, rng: EntropySource
    ) -> Whitening:
        """Release the second moment and work out the basis.

        Parameters
        ----------
        objective : Objective
            Holds the private data; asked for the second moment only.
        plan : PrivacyPlan or AdaptivePlan
            Made with the ``release_plan`` of this object.
        rng : EntropySource

        Returns
        -------
        Whitening

        Notes
        -----
        Guarantee: one `GaussianSum` release, of sensitivity ``plan.second_moment.sensitivity``.
        The ridge of the basis follows from the standard deviation of the noise and the penalty,
        both public. With an intercept, moment and noise are first divided by the intercept's own
        entry (at least its noise, at most 1): the part that clipping the rows has left of it.
        """
        release, facts = plan.second_moment, plan.facts
        mechanism = release.mechanism(objective.moment_rounding(plan.max_n_samples))
        total = objective.second_moment(release.row_bound, self.diagonal)
        noisy, event = mechanism.release(self._released(total), rng)
        noise_std = mechanism.noise_std(noisy.size)
        moment = self._moment(noisy, len(total)) / facts.n_samples
        least = _LEAST_RIDGE * release.row_bound**2
        noise = noise_std / facts.n_samples
        penalised = _penalised(objective)
        kept = 1.0 if penalised[-1] else _part_kept(moment, noise)
        curvature = min(1.0, facts.curvature or 1.0)
        ridge = max(self.damping * noise / kept, least) + facts.alpha / curvature * penalised
        with one_blas_thread():
            basis, dimension = self._whitened(moment / kept, noise / kept, ridge)
        return Whitening(moment, basis, max(1.0, dimension), noise_std, event)

    def _released(self, total: np.ndarray) -> np.ndarray:
        """Return the numbers to release."""
        raise NotImplementedError

    def _moment(self, noisy: np.ndarray, n_columns: int) -> np.ndarray:
        """Return the moment that they make up."""
        raise NotImplementedError

    def _whitened(
        self, moment: np.ndarray, noise: float, ridge: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Return the basis and the effective dimension; `noise` is the one on the diagonal."""
        raise NotImplementedError


class DiagonalPreconditioner(Preconditioner):
    """Scale each feature by a noisy estimate of its root mean square.

    Parameters
    ----------
    share : float, default=0.15
        Part of the budget mu^2 spent on the release, above 0 and below 1.
    damping : float, default=1.0
        Ridge added to each mean square, in standard deviations of its noise.
    row_bound : float, default=None
        Bound on the L2 norm of a row, intercept included; longer rows are shortened for this
        release only. It must be public: `Schema.row_bound` or prior knowledge, never the largest
        norm of the data. ``None`` means 3.

    Notes
    -----
    Releases the sums of the squares a_j of the columns. With the noise's standard deviation s,
    ``P_jj = (max(a_j, 0) / n + damping s / n + k_j)^(-1/2)``, where k_j is the penalty ``alpha``
    over the curvature of the loss (1 at most), and 0 for the intercept, so that the penalty is no
    steeper than the loss in any direction.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> DPLogisticRegression(preconditioner=DiagonalPreconditioner(share=0.1)).preconditioner
    DiagonalPreconditioner(share=0.1)
    """

    diagonal = True

    def __init__(
        self, share: float = 0.15, damping: float = 1.0, row_bound: float | None = None
    ) -> None:
        self.share = share
        self.damping = damping
        self.row_bound = row_bound

    def _released(self, total: np.ndarray) -> np.ndarray:
        return total

    def _moment(self, noisy: np.ndarray, n_columns: int) -> np.ndarray:
        return noisy

    def _whitened(
        self, moment: np.ndarray, noise: float, ridge: np.ndarray
    ) -> tuple[np.ndarray, float]:
        positive = np.maximum(moment, 0.0)
        return 1 / np.sqrt(positive + ridge), float(np.sum(positive / (positive + ridge)))


class FullPreconditioner(Preconditioner):
    """Whiten the features by a noisy estimate of their second moment matrix.

    Parameters
    ----------
    share : float, default=0.15
        Part of the budget mu^2 spent on the release, above 0 and below 1.
    damping : float, default=1.0
        Ridge added to the matrix, in standard deviations of the noise on its diagonal.
    row_bound : float, default=None
        Bound on the L2 norm of a row, intercept included; longer rows are shortened for this
        release only. It must be public: `Schema.row_bound` or prior knowledge, never the largest
        norm of the data. ``None`` means 3.

    Notes
    -----
    Releases the upper triangle with its off-diagonal entries times sqrt(2): one vector whose L2
    norm is the Frobenius norm, so that off-diagonal entries get noise of half the variance, and
    the diagonal costs no more than it does alone. With A the noisy mean after
    `denoised_moment`, which keeps its diagonal and the directions that stand out from the noise,
    ``P = U L^(-1/2)`` where ``U L U'`` is the eigendecomposition of
    ``A + (damping s / n) I + K``, s the standard deviation of the noise on the diagonal, and K the
    diagonal matrix of the penalty ``alpha`` over the curvature of the loss (1 at most), zero at
    the intercept. Memory and time grow with the square and the cube of the number of columns.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> DPLogisticRegression(preconditioner=FullPreconditioner(row_bound=2.0)).preconditioner
    FullPreconditioner(row_bound=2.0)
    """

    diagonal = False

    def __init__(
        self, share: float = 0.15, damping: float = 1.0, row_bound: float | None = None
    ) -> None:
        self.share = share
        self.damping = damping
        self.row_bound = row_bound

    def _released(self, total: np.ndarray) -> np.ndarray:
        where, weights = _triangle(len(total))
        return total[where] * weights

    def _moment(self, noisy: np.ndarray, n_columns: int) -> np.ndarray:
        where, weights = _triangle(n_columns)
        moment = np.empty((n_columns, n_columns))
        moment[where] = noisy / weights
        moment.T[where] = moment[where]
        return moment

    def _whitened(
        self, moment: np.ndarray, noise: float, ridge: np.ndarray
    ) -> tuple[np.ndarray, float]:
        positive = denoised_moment(moment, noise)
        values, vectors = np.linalg.eigh(positive + np.diag(ridge))
        basis = vectors / np.sqrt(values)
        return basis, float(np.sum(basis * (positive @ basis)))


def check_preconditioner(preconditioner: Any) -> Preconditioner | None:
    """Return the preconditioner that a parameter asks for.

    Parameters
    ----------
    preconditioner : None, {"diagonal", "full"}, DiagonalPreconditioner or FullPreconditioner

    Returns
    -------
    Preconditioner or None
        The very object where one was given.

    Raises
    ------
    ValueError, TypeError
        If it is none of these.

    Examples
    --------
    >>> check_preconditioner("diagonal")
    DiagonalPreconditioner()
    """
    # A closed set: a subclass could release more than it is charged for, unseen.
    if preconditioner is None or type(preconditioner) in (
        DiagonalPreconditioner,
        FullPreconditioner,
    ):
        return preconditioner
    if isinstance(preconditioner, str) and preconditioner in ("diagonal", "full"):
        return DiagonalPreconditioner() if preconditioner == "diagonal" else FullPreconditioner()
    error = ValueError if isinstance(preconditioner, str) else TypeError
    raise error(
        f"preconditioner={preconditioner!r} is not a preconditioner. Give None, 'auto', "
        "'diagonal', 'full', or a DiagonalPreconditioner or FullPreconditioner object."
    )


def _triangle(n_columns: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return where the upper triangle stands, and the weight of each of its entries."""
    rows, columns = np.triu_indices(n_columns)
    return (rows, columns), np.where(rows == columns, 1.0, math.sqrt(2))


def _penalised(objective: "Objective") -> np.ndarray:
    """Return 1 for each penalised column, and 0 for the intercept."""
    penalised = objective.penalty_gradient(np.ones(objective.coef_shape))
    return penalised.reshape(len(penalised), -1)[:, 0]


def _part_kept(moment: np.ndarray, noise: float) -> float:
    """Return which part of the second moment is left after rows were shortened.

    The intercept's column is one in every row, so its mean square is the mean of the squared
    factors by which rows were shortened. A value within its own noise says nothing more.
    """
    intercept = float(moment[-1] if moment.ndim == 1 else moment[-1, -1])
    return min(1.0, max(intercept, noise, _LEAST_KEPT))


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not low < value < high:
        raise ValueError(f"{name}={value!r} must be a number above {low:g} and below {high:g}.")
