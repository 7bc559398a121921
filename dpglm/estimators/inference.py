"""Standard errors and intervals of a private logistic regression, from what its fit released.

After the descent, a fraction of the budget pays for one noisy curvature and a few noisy gradients
that are not clipped. A few Newton steps remove the bias of the coefficients. All noise is known,
and so is the covariance of the estimate. Everything after the releases is post-processing, which
may be repeated at no cost.
"""

import math
import textwrap
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, ndtri
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from dpglm.estimators import defaults
from dpglm.estimators.plan import InferenceReleases, PrivacyPlan
from dpglm.estimators.solvers import Coordinates, Debiased, FitTrace
from dpglm.estimators.whitening import (
    FullPreconditioner,
    check_preconditioner,
    unclipped_part,
)
from dpglm.exceptions import require
from dpglm.losses import Logistic
from dpglm.privacy.budget import PrivacyBudget, check_number, is_auto
from dpglm.privacy.ledger import PrivacyLedger, html_rows
from dpglm.privacy.vault import Vault
from dpglm.schedules import PublicMetadata
from dpglm.schema.columns import CategoricalColumn, Column, DateColumn, Quantity
from dpglm.schema.encoder import blocks_of, encode
from dpglm.schema.table import Schema
from dpglm.schema.values import check_names, composed, distinct

if TYPE_CHECKING:
    import pandas

__all__ = ["Estimates", "InferenceResults"]

# Quantiles that represent a normal distribution.
NORMAL = ndtri((np.arange(2000) + 0.5) / 2000)

# The releases: name, value, unit and reason.
_CURVATURE_FRACTION = 0.3  # of mu^2: errors are flat from 0.15 to 0.5.
_N_APPROACHES = 3  # gradients before the curvature, to where it is about that of the truth.
_N_GRADIENTS = 8  # gradients after it: the estimate is a mean of steps from some of them.
_N_AVERAGED = 6  # the last of these: the first two still depend on the end of the descent.
_FULL_WEIGHT = 2.0  # times the mean squared norm of rows: few normal rows have larger norms.

# The columns in the model, and the directions that are above the noise level.
_CARRIED_NOISE = 1 / 25  # of n, its largest eigenvalue: a curvature of 0.1 is 2.5 times it.
_CLEAR_NOISE = 1 / 40  # of n: limit for rare columns, as they widen all intervals.
_SEEN = 2.0  # times the largest eigenvalue of noise: a step by it leaves at most half of an error.
_HIDDEN = 0.5  # of this eigenvalue: by theory, larger curvature is above the noise level.
_VISIBLE = 3.0  # sd of the noise of a mean square: exceeded by chance in 1 of 700.
_LITTLE = 0.25  # of an error or a coefficient: 0.95 intervals shifted by it cover in 0.943.
_LARGEST_SWAY = 0.4  # log-odds: noise of one gradient in a typical row; steps are linear in less.
_ARRIVED = 0.9  # of the curvature: if less is left, the last steps still move the estimate.

# Without noise.
_N_ROUNDS = 20  # steps of Newton's method: converged from zero, unless labels are separated.
_ZERO = 1e-7  # log-loss of a record, or its curvature: smaller values count as none.


def debiasing_of(
    estimator: Any, budget: PrivacyBudget, metadata: PublicMetadata
) -> tuple[float, InferenceReleases]:
    """Return the mu that is left for the descent, and the releases after it.

    Raises a ValueError, from public numbers, if no interval would be valid.
    """
    share = check_number("inference_fraction", estimator.inference_fraction, 0.0, 0.95)
    given = estimator.preconditioner
    preconditioner = FullPreconditioner() if is_auto(given) else given
    unmet = {
        "two classes": metadata.n_outputs == 1,
        "class_weight=None, as weights change the estimand": estimator.class_weight is None,
        "max_contributions=None, as rows of one person depend on one another": (
            estimator.max_contributions is None
        ),
        "sampling_rate=1": estimator.sampling_rate == 1,
        f"a full preconditioner, and so at most {defaults.MAX_FULL_COLUMNS} columns": (
            metadata.n_features <= defaults.MAX_FULL_COLUMNS
            and isinstance(check_preconditioner(preconditioner), FullPreconditioner)
        ),
    }
    for needed, met in unmet.items():
        if not met:
            raise ValueError(
                f"inference_fraction={estimator.inference_fraction!r} needs {needed}. Use "
                "inference_fraction=0 for a fit without intervals."
            )
    if budget.mu == math.inf:
        return budget.mu, InferenceReleases(math.inf, _CURVATURE_FRACTION, 0, 1, 1, _N_ROUNDS)
    counts = _N_APPROACHES, _N_GRADIENTS, _N_AVERAGED
    release = InferenceReleases(budget.mu * math.sqrt(share), _CURVATURE_FRACTION, *counts)
    if not _carries(2, 1.0, release, budget, metadata.n_samples):
        raise ValueError(
            f"The budget is too small for intervals, even of two columns: n mu = "
            f"{metadata.n_samples * budget.mu:.3g}. Use more records or a larger epsilon, or "
            "inference_fraction=0 for a fit without intervals."
        )
    return budget.mu * math.sqrt(1 - share), release


def squared_bound(n_columns: int, least: float) -> float:
    """Return the square of the norm up to which whitened rows count in full.

    Their squared norm is ``n_columns`` on average. Rows with the rarest column, of mean square
    `least`, add ``1 / least``.
    """
    return max(_FULL_WEIGHT * n_columns, n_columns + 1 / least)


def _noise_edge(n_columns: int, squared_bound: float, multiplier: float, relation: str) -> float:
    """Return the largest eigenvalue of the noise of a curvature, ``std sqrt(2 d)``.

    A row adds a matrix of Frobenius norm ``bound^2 / 4``, so std is ``bound^2 / 4`` times the noise
    multiplier, and times sqrt(2) under ``"replace_one"``.
    """
    replaced = math.sqrt(2.0) if relation == "replace_one" else 1.0
    return replaced * squared_bound / 4 * multiplier * math.sqrt(2 * n_columns)


def _carries(
    n_columns: int,
    least: float,
    release: InferenceReleases,
    budget: PrivacyBudget,
    n_samples: int,
    largest_noise: float = _CARRIED_NOISE,
) -> bool:
    """Return whether the curvature of this number of columns will be above the noise level."""
    edge = _noise_edge(
        n_columns,
        squared_bound(n_columns, least),
        release.curvature_noise_multiplier,
        budget.neighboring_relation,
    )
    return edge <= largest_noise * n_samples


def most_columns(plan: PrivacyPlan, rarest: float) -> int:
    """Return the largest number of columns for intervals, the rarest with this mean square."""
    release, n, d = plan.debiasing, plan.metadata.n_samples, plan.metadata.n_features
    carried = (_carries(k, rarest, release, plan.budget, n) for k in range(1, d + 1))
    return max((k for k, carries in enumerate(carried, 1) if carries), default=0)


def debias(vault: Vault, plan: PrivacyPlan, space: Coordinates, trace: FitTrace) -> Debiased:
    """Release gradients and a curvature; return the estimate of a few Newton steps.

    Nothing is released, and all columns are left out, if the second moment shows that the curvature
    would not be above the noise level.

    Notes
    -----
    Rows are whitened anew, with as many columns as the budget allows. Row i has the weight ``a_i =
    min(1, (B / ||x_i||)^2)``, which depends on the row and not on its label. If the model is right,
    ``sum_i a_i (p_i - y_i) x_i = 0`` has the same solution as without weights (Mallows' weights:
    Kunsch, Stefanski & Carroll 1989). Nothing is clipped: ``||a_i (p_i - y_i) x_i|| <= B`` and
    ``||a_i p_i (1 - p_i) x_i x_i'|| <= B^2 / 4``.

    The descent clips. Clipping drives the coefficients of rare categories to points where their
    curvature is far from that of the truth. So a few steps without clipping come first. They have
    twice the noise and one curvature for all directions (0 to n / 4 in whitened rows).

    G is the noisy curvature H + E, and A its inverse after small eigenvalues were raised. Gradients
    g_1, ..., g_K give ``v_t = v_{t-1} - A g_t`` with ``(I - A H)^t`` times the first error: the
    noise E is forgotten as fast as the start. Raised eigenvalues make steps safe but too small to
    converge. So the estimate is the mean of the last m of ``v_{t-1} - L g_t``, with L the inverse
    of the likely G. If L H is near the identity, the covariance of the estimate is ``L H L + (s^2 /
    m) L L``, with s the standard deviation of the noise of gradients. The covariance of the sum
    over i is ``sum_i a_i^2 p_i (1 - p_i) x_i x_i'``, below H. Results that depend on directions
    below the noise level are suppressed, as L may be wrong there. The noise would make A too large:
    ``(s_H^2 / 2) (tr(A) I + A)`` is added to G. This is E[E A E] for a symmetric E with s_H on its
    diagonal and s_H / sqrt(2) off the diagonal.

    H is the curvature at v_0, where it was released. H is far from the curvature at the estimate if
    the end of the descent is forgotten slowly, or columns predict the labels nearly perfectly. For
    normal whitened rows with the released second moment and mean (0 without an intercept), the
    curvature at v is N(v) (`_normal_curvature`). So ``C G C'`` with ``C = N(v)^(1/2)
    N(v_0)^(-1/2)`` replaces G, at each step and in L, and small eigenvalues are raised afterwards.
    In directions above the noise level, the part of ``v - v_0`` that noise explains is left out.

    All results are suppressed if the trace of N falls by a tenth or more up to the estimate. Steps
    have then not converged, as always with separated labels. The fall is over the last m steps in
    directions above the noise level, and over all steps in others.
    """
    release, relation = plan.debiasing, plan.budget.neighboring_relation
    n = plan.metadata.n_samples
    chosen = _chosen_basis(plan, trace, space.fit_intercept)
    if chosen is None:
        d, nothing = space.n_columns, np.zeros((0, 0))
        left_out, seen = np.ones(d, dtype=bool), np.zeros(0, dtype=bool)
        basis = np.zeros((d, 0))
        return Debiased(n, trace.coef, left_out, basis, nothing, nothing, seen, nothing, 0.0)
    # Other columns are no part of the model: their coefficients are mostly noise, and would bias
    # those of correlated columns.
    basis, kept, squared_bound, law = chosen
    k, bound = len(kept), math.sqrt(squared_bound)
    vault.change_basis(np.linalg.solve(space.basis, basis))
    space = replace(space, basis=basis)
    edge = 0.0
    if bound < math.inf:
        vault.weigh_rows(bound)
        edge = _noise_edge(k, squared_bound, release.curvature_noise_multiplier, relation)
    free = basis[:-1] if space.fit_intercept else basis
    penalty = n * plan.metadata.alpha * free.T @ free
    # The descent may end too far away for Newton's method; without noise it starts from zero.
    coef = np.linalg.solve(basis[kept], trace.coef[kept]) if edge > 0 else np.zeros(k)
    steepest = n * Logistic.curvature
    approach = np.linalg.inv(steepest * np.eye(k) + penalty)

    def noisy_gradient(noise_multiplier: float) -> np.ndarray:
        gradient = vault.gradient_sum(coef, bound, noise_multiplier)
        return gradient + n * plan.metadata.alpha * space.penalty_gradient(coef)

    def way(at: np.ndarray, which: np.ndarray) -> np.ndarray:
        return directions[:, which] @ (directions[:, which].T @ (at - start))

    def explained(move: np.ndarray, noise: float) -> np.ndarray:
        """Return the part of a move that is left out if noise alone has this mean square."""
        return min(1.0, noise / max(move @ move, noise, 1e-300)) * move

    def place(at: np.ndarray) -> np.ndarray:
        """Return the point without the part of its detected displacement that noise explains."""
        noise_std = 2 * vault.log[-1].noise_scale / steepest
        return at - explained(way(at, seen), 2 * seen.sum() * noise_std**2)

    def there(curvature: np.ndarray, least: float, at: np.ndarray) -> np.ndarray:
        if edge > 0:
            curvature = _moved(curvature, start, place(at), law, least * edge)
        return curvature + penalty

    for _ in range(release.n_rounds):
        for _ in range(release.n_initial_gradients):
            coef = coef - approach @ noisy_gradient(release.initial_noise_multiplier)
        start, steps = coef, []
        noisy = vault.second_moment(
            bound / 2, release.curvature_noise_multiplier, diagonal=False, coef=coef
        )
        moment = FullPreconditioner().moment(noisy, k)
        raised, curvature, seen, directions = _without_noise(moment, edge, _ZERO * n)
        for _ in range(release.n_gradients):
            gradient = noisy_gradient(release.noise_multiplier)
            steps.append((coef, gradient))
            coef = coef - np.linalg.solve(there(raised, _SEEN, coef), gradient)
    noise_std, late = vault.log[-1].noise_scale, steps[-release.n_averaged :]
    ends = [at - np.linalg.solve(there(curvature, _HIDDEN, at), g) for at, g in late]
    coef = np.mean(ends, axis=0)
    curvature = there(curvature, _HIDDEN, coef)
    inverse = np.linalg.inv(curvature)
    sway = noise_std * np.linalg.norm(inverse @ directions[:, seen])
    if edge > 0:
        first, noise = late[0][0], len(steps) * (noise_std / (_SEEN * edge)) ** 2
        by_chance = explained(way(coef, ~seen), np.sum(~seen) * noise)
        places = place(coef) - by_chance, place(first) - way(first, ~seen)
        last, first = (np.trace(_normal_curvature(at, law)) for at in places)
        seen = seen & (last > _ARRIVED * first)
    else:
        # Newton's method has converged, unless labels are separated.
        seen = seen & (gradient @ inverse @ gradient < _ZERO * n)
    left_out = np.ones(space.n_columns, dtype=bool)
    left_out[kept] = sway > _LARGEST_SWAY
    return Debiased(
        n_records=n,
        coef=space.original(coef),
        left_out=left_out,
        basis=basis,
        curvature=curvature - penalty,
        inverse=inverse,
        seen=seen,
        directions=directions,
        noise_std=noise_std / math.sqrt(len(late)),
    )


def _without_noise(
    moment: np.ndarray, edge: float, least: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the curvature for steps, the likely one, and the directions above the noise level.

    They differ in eigenvalues below the noise level. The first raises these to the noise level, and
    the second to a value that keeps errors finite.
    """
    values, vectors = np.linalg.eigh(moment)
    least = max(_SEEN * edge, least)
    seen, raised = values > least, np.maximum(values, least)
    raised = raised + edge**2 / (4 * len(values)) * (np.sum(1 / raised) + 1 / raised)
    likely = np.where(seen, raised, np.maximum(values, _HIDDEN / _SEEN * least))
    return *((vectors * one) @ vectors.T for one in (raised, likely)), seen, vectors


def normal_odds(mean: float, mean_square: float) -> np.ndarray:
    """Return quantiles of normal log-odds with these moments."""
    return mean + math.sqrt(max(mean_square - mean**2, 0.0)) * NORMAL


def _moved(
    curvature: np.ndarray, start: np.ndarray, end: np.ndarray, law: tuple, least: float
) -> np.ndarray:
    """Return the curvature moved to the end, with eigenvalues of at least `least`."""
    roots = []
    for coef, power in ((end, 0.5), (start, -0.5)):
        values, vectors = np.linalg.eigh(_normal_curvature(coef, law))
        roots.append((vectors * np.maximum(values, _ZERO) ** power) @ vectors.T)
    change = roots[0] @ roots[1]
    values, vectors = np.linalg.eigh(change @ curvature @ change.T)
    return (vectors * np.maximum(values, least)) @ vectors.T


def _normal_curvature(coef: np.ndarray, law: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return the mean of p (1 - p) z z', if rows z are normal with mean m and second moment S.

    Log-odds are then ``m'v + s t`` with a standard normal t. Rows with this t have the mean ``m
    + c t``, where ``s^2 = v'(S - m m')v`` and ``c = (S - m m') v / s``.
    """
    mean_row, moment = law
    mean = mean_row @ coef
    along = moment @ coef - mean * mean_row
    spread = math.sqrt(max(coef @ along, 0.0))
    along = along / spread if spread > 0 else along
    odds = normal_odds(mean, mean**2 + spread**2)
    weights = expit(odds) * expit(-odds)
    level, slope, square = (float(np.mean(weights * NORMAL**power)) for power in range(3))
    sides = slope * np.outer(mean_row, along)
    return level * moment + sides + sides.T + (square - level) * np.outer(along, along)


def _chosen_basis(
    plan: PrivacyPlan, trace: FitTrace, intercept: bool
) -> tuple[np.ndarray, np.ndarray, float, tuple[np.ndarray, np.ndarray]] | None:
    """Return a basis, its columns, the squared bound, and the distribution of rows.

    The columns are the most frequent ones, as many as the budget allows. The others must have small
    mean squares.
    """
    white, release = trace.whitening, plan.debiasing
    n, d = plan.metadata.n_samples, len(white.scales)
    noise = white.noise_std / n
    left = unclipped_part(white.moment, noise) if intercept else 1.0
    moment, noise = white.moment / left, noise / left
    masses, kept, least = np.diag(moment), np.arange(d), 1.0
    if noise > 0:
        shares = _shares(moment, noise) if intercept else masses
        order, n_kept = np.argsort(-shares, kind="stable"), 0
        for largest in (_CLEAR_NOISE, _CARRIED_NOISE):
            for k in range(min(2, d), d + 1):
                last = order[k - 1]
                visible = masses[last] > _VISIBLE * noise
                if visible and _carries(k, shares[last], release, plan.budget, n, largest):
                    n_kept = k
            if n_kept and not (masses[order[n_kept:]] > defaults.DETECTED_FRACTION).any():
                break
        else:
            return None
        kept, least = np.sort(order[:n_kept]), shares[order[n_kept - 1]]
    ridge = np.full(len(kept), max(noise, 2.0**-30 * plan.second_moment.row_clipping_norm**2))
    own = moment[np.ix_(kept, kept)]
    inner, _ = FullPreconditioner().whitened(own, noise, ridge)
    values, vectors = np.linalg.eigh(own)
    # Collinear columns have a direction that no row is in: its eigenvalue is noise.
    clear = np.where(values > noise * math.sqrt(2 * len(kept)), values, 0.0)
    white_moment = inner.T @ (vectors * clear) @ vectors.T @ inner
    basis = np.zeros((d, len(kept)))
    basis[kept] = inner
    bound = squared_bound(len(kept), least) if noise > 0 else math.inf
    mean_row = inner.T @ moment[kept, -1] * intercept
    mean_row = mean_row / max(1.0, np.linalg.norm(mean_row))
    return (white.scales * basis.T).T, kept, bound, (mean_row, white_moment)


def _shares(moment: np.ndarray, noise: float) -> np.ndarray:
    """Return lower bounds on the fractions of the records in which columns are not zero.

    If the last column is the intercept, ``E[x]^2 <= E[x^2] P(x is not 0)`` in any units. The mean
    square of elements within [-1, 1] is another lower bound.
    """
    masses = np.diag(moment)
    sums = np.maximum(np.abs(moment[-1]) - _VISIBLE * noise / math.sqrt(2), 0.0)
    least = np.square(sums) / np.maximum(masses + _VISIBLE * noise, noise)
    return np.where(masses > _VISIBLE * noise, np.maximum(masses, least), masses)


@dataclass(frozen=True, eq=False)
class Estimates:
    """Numbers with standard errors and intervals; NaN where they are suppressed.

    Attributes
    ----------
    names : list of str
    value : ndarray of shape (n,)
    std_error : ndarray of shape (n,)
        Due to the draw of the records and the noise together.
    sampling_error, privacy_error : ndarrays of shape (n,)
        The two parts, whose squares add up.
    low, high : ndarrays of shape (n,)
        The ends of the intervals.
    level : float
    suppression_reasons : list of str
        Why a number is suppressed, or an empty string.
    tested : bool
        Whether zero is a hypothesis, as for effects. For probabilities it is not, and z, P and the
        mark for noise are not printed.
    """

    names: Sequence[str]
    value: np.ndarray
    std_error: np.ndarray
    sampling_error: np.ndarray
    privacy_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float
    suppression_reasons: Sequence[str]
    tested: bool = True

    @property
    def zvalues(self) -> np.ndarray:
        """Values divided by their standard errors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.value / self.std_error

    @property
    def pvalues(self) -> np.ndarray:
        """Two-sided p values of the hypothesis that a value is zero."""
        return 2 * norm.sf(np.abs(self.zvalues))

    @property
    def marks(self) -> list[str]:
        """``"noise"`` where an interval holds zero and is mostly noise, or ``"suppressed"``.

        With several suppression reasons, the number of the reason follows.
        """
        noisy = (self.low <= 0) & (self.high >= 0) & (self.privacy_error > self.sampling_error)
        noisy &= self.tested
        return [
            self._suppressed(refused) if refused else "noise" * bool(mark)
            for refused, mark in zip(self.suppression_reasons, noisy, strict=True)
        ]

    def _suppressed(self, reason: str) -> str:
        """Return the mark of a suppressed number; it has a number if there are several reasons."""
        reasons = [text for text in dict.fromkeys(self.suppression_reasons) if text]
        return "suppressed" if len(reasons) == 1 else f"suppressed {reasons.index(reason) + 1}"

    @property
    def reasons(self) -> list[str]:
        """The suppression reasons, a line for each."""
        return [
            f"{self._suppressed(text)}: {text}"
            for text in dict.fromkeys(self.suppression_reasons)
            if text
        ]

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return the table by its columns, as `InferenceResults.summary` prints it."""
        tails = 50 * (1 - self.level), 50 * (1 + self.level)
        tests = {"z": self.zvalues, "P>|z|": self.pvalues} if self.tested else {}
        return {
            "coef": self.value,
            "std err": self.std_error,
            "sampling": self.sampling_error,
            "privacy": self.privacy_error,
            **tests,
            f"{tails[0]:.4g}%": self.low,
            f"{tails[1]:.4g}%": self.high,
            "mark": self.marks,
        }

    def to_frame(self) -> "pandas.DataFrame":
        """Return the table as a DataFrame; needs pandas."""
        pd = require("pandas", "data", "A table of estimates")
        return pd.DataFrame(self.columns(), index=list(self.names))

    def __str__(self) -> str:
        return "\n".join([*aligned(_cells(self), left=[0]), *self.reasons])


@dataclass(frozen=True)
class Summary:
    """A table of coefficients, which prints as text."""

    metadata: Sequence[tuple[str, str]]
    estimates: Estimates
    notes: Sequence[str]

    def as_text(self) -> str:
        """Return plain text."""
        width = max(len(name) for name, _ in self.metadata) + 2
        head = [f"{name + ':':<{width}}{value}" for name, value in self.metadata]
        table = aligned(_cells(self.estimates), left=[0])
        rule = "-" * max(map(len, table))
        return "\n".join([*head, rule, table[0], rule, *table[1:], rule, *self.notes])

    def as_html(self) -> str:
        """Return an HTML fragment."""
        head = "".join(
            f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in self.metadata
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table>{head}</table><table>{html_rows(_cells(self.estimates))}</table>{notes}"

    def as_latex(self) -> str:
        """Return a LaTeX tabular."""

        def plain(cell: str) -> str:
            for sign in "\\%_&#$":
                cell = cell.replace(sign, r"\textbackslash{}" if sign == "\\" else f"\\{sign}")
            return cell.replace(">|z|", "$>|z|$")

        table = [[plain(cell) for cell in row] for row in _cells(self.estimates)]
        head, *rows = (" & ".join(row) + r" \\" for row in table)
        begin, end = rf"\begin{{tabular}}{{l{'r' * (len(table[0]) - 2)}l}}", r"\end{tabular}"
        rule = r"\hline"
        return "\n".join([begin, rule, head, rule, *rows, rule, end])

    def to_frame(self) -> "pandas.DataFrame":
        """Return the table as a DataFrame; needs pandas."""
        return self.estimates.to_frame()

    __repr__ = as_text
    _repr_html_ = as_html


def _cells(estimates: Estimates) -> list[list[str]]:
    """Return the table as strings, the names of its columns first."""
    columns = estimates.columns()
    rows = zip(estimates.names, *columns.values(), strict=True)
    return [["", *columns], *([name, *map(_text, row, columns)] for name, *row in rows)]


def _text(cell: str | float, column: str) -> str:
    number = ".3f" if column == "P>|z|" else ".4g"
    return cell if isinstance(cell, str) else "" if math.isnan(cell) else format(cell, number)


def aligned(rows: Iterable[Sequence[str]], gap: int = 2, left: Container[int] = ()) -> list[str]:
    """Return the rows of a table as lines, with columns `left` aligned left, the others right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [f"{{:{'<' if i in left else '>'}{width}}}" for i, width in enumerate(widths)]
    return [(" " * gap).join(cells).format(*row).rstrip() for row in rows]


@dataclass(frozen=True, eq=False, repr=False)
class InferenceResults:
    """Estimates, errors and tests of a released logistic regression, for the population.

    Made by ``DPLogisticRegression.inference``. Everything follows from the releases: repeated
    calls, at any level, cost no privacy.

    Attributes
    ----------
    estimates : Estimates
        All of the attributes below, in one table.
    names : list of str
        The parameters: const, then those of the columns, in the order of the table.
    params, bse : ndarray of shape (n_parameters,)
        Estimates without the bias of clipping, and their standard errors; NaN if suppressed.
    bse_sampling, bse_privacy : ndarray of shape (n_parameters,)
        The parts of ``bse``, of the draw of the records and of the noise; their squares add up.
    zvalues, pvalues : ndarray of shape (n_parameters,)
    suppression_reasons : list of str
        Why a parameter is suppressed, or an empty string.
    level : float
        Level of the intervals.
    reference_categories : dict of str to category
        With a schema: the category of each column that the others are compared with. Given as
        `references` to the inference of another fit, it makes the parameters the same.

    Notes
    -----
    The estimand is the minimiser of the expected logistic loss (plus ``alpha / 2 ||coef||^2``) over
    the population: the true coefficients if the model is right. It is not ``coef_``, which shrinks
    and clips for better predictions. If the model is wrong, rows with large norms count less (see
    `debias`), and the sampling error is that of a right model.
    """

    released: Debiased
    moment: np.ndarray
    feature_names: Sequence[str]
    fit_intercept: bool
    target: str
    privacy_: PrivacyLedger
    schema: Schema | None = None
    level: float = 0.95
    references: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_number("level", self.level, 0.0, 1.0 - 1e-12)
        given = {} if self.references is None else self.references
        if not isinstance(given, Mapping):
            raise ValueError(f"references={given!r} must be a dict, as {{'home': 'owned'}}.")
        columns = () if self.schema is None else self.schema.categorical
        listed = {column.name: column.categories for column in columns}
        for name, value in given.items():
            if name not in listed:
                raise ValueError(
                    f"references: {name!r} must be a categorical column of inference(schema=...)."
                )
            if value not in listed[name]:
                raise ValueError(
                    f"references: {value!r} is no category of {name!r}; choose from "
                    f"{[*listed[name]]}."
                )

    @cached_property
    def _parameters(self) -> tuple[list[str], np.ndarray]:
        """Names of the parameters, and each as a combination of the coefficients, one a row."""
        if self.schema is None:
            names, vectors = list(self.feature_names), np.eye(len(self.moment))
            if self.fit_intercept:
                names, vectors = ["const", *names], np.roll(vectors, 1, axis=0)
            return names, vectors
        names, vectors = [], []
        const = np.zeros(len(self.moment))
        const[-1] = 1.0
        for column, place in self._blocks.values():
            baseline, found = _effects(column, self.reference_categories.get(column.name))
            const[place] = baseline
            for name, effect in found:
                vector = np.zeros(len(self.moment))
                vector[place] = effect
                names.append(name)
                vectors.append(vector)
        if self.fit_intercept:
            names, vectors = ["const", *names], [const, *vectors]
        return names, np.array(vectors)

    @cached_property
    def reference_categories(self) -> dict[str, Any]:
        """The category of each column that the others are compared with."""
        found, shares = {}, np.diag(self.moment)
        for name, (column, place) in ({} if self.schema is None else self._blocks).items():
            if isinstance(column, CategoricalColumn):
                own = shares[place][: len(column.categories)]
                found[name] = column.categories[int(np.argmax(own >= own.max() / 2))]
        return found | dict(self.references or {})

    @cached_property
    def _blocks(self) -> dict[str, tuple[Column, slice]]:
        """Each column of the schema, in the order of the table, and where its block is."""
        return blocks_of(self.schema, len(self.feature_names), None)

    @cached_property
    def estimates(self) -> Estimates:
        """All parameters, with errors and intervals."""
        return self._linear(*self._parameters)

    def _linear(self, names: Sequence[str], vectors: np.ndarray) -> Estimates:
        """Return estimates of combinations of the coefficients, one a row."""
        return self._estimates(names, vectors @ self.released.coef, vectors)

    def _estimates(
        self, names: Sequence[str], values: Any, vectors: np.ndarray, scores: Any = None
    ) -> Estimates:
        """Return estimates whose errors are those of combinations of the coefficients.

        An estimate is suppressed if its combination is. Means over rows are suppressed if a larger
        part of the rows' `scores` is suppressed than the error: their gradient would be wrong.
        """
        error, sampling, privacy, suppression_reasons = self._errors(vectors)
        hidden = [] if scores is None else [text for text in self._errors(scores)[3] if text]
        if hidden and len(hidden) > len(scores) * error.min():
            suppression_reasons = [refusal or hidden[0] for refusal in suppression_reasons]
        refused = np.array([*map(bool, suppression_reasons)])
        values, error, sampling, privacy = (
            np.where(refused, np.nan, x) for x in (values, error, sampling, privacy)
        )
        half = norm.isf((1 - self.level) / 2) * error
        ends = values - half, values + half
        return Estimates(
            names, values, error, sampling, privacy, *ends, self.level, suppression_reasons
        )

    def _errors(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """Return standard errors of combinations, their two parts, and suppression reasons."""
        found = self.released
        white = vectors @ found.basis
        steps = white @ found.inverse
        sampling = np.sqrt(np.vecdot(steps @ found.curvature, steps))
        privacy = found.noise_std * np.linalg.norm(steps, axis=1)
        error = np.hypot(sampling, privacy)
        unseen = np.linalg.norm(white @ found.directions[:, ~found.seen], axis=1)
        hidden = unseen > _LITTLE * np.linalg.norm(white, axis=1)
        # As if the coefficients of columns that were left out were off by one.
        rare = np.linalg.norm(vectors[:, found.left_out], axis=1) > _LITTLE * error
        hidden_by = _NOTHING if found.left_out.all() else _RARE_COLUMN
        suppression_reasons = [
            _UNSEEN * bool(h) or hidden_by * bool(r) for r, h in zip(rare, hidden, strict=True)
        ]
        return error, sampling, privacy, suppression_reasons

    names = property(lambda self: self.estimates.names)
    params = property(lambda self: self.estimates.value)
    bse = property(lambda self: self.estimates.std_error)
    bse_sampling = property(lambda self: self.estimates.sampling_error)
    bse_privacy = property(lambda self: self.estimates.privacy_error)
    zvalues = property(lambda self: self.estimates.zvalues)
    pvalues = property(lambda self: self.estimates.pvalues)
    suppression_reasons = property(lambda self: self.estimates.suppression_reasons)

    def conf_int(self, alpha: float | None = None) -> np.ndarray:
        """Return the ends of the intervals (n_parameters, 2), of level ``1 - alpha`` if given."""
        if alpha is not None:
            check_number("alpha", alpha, 0.0, 1.0)
        table = self.estimates if alpha is None else replace(self, level=1 - alpha).estimates
        return np.column_stack([table.low, table.high])

    def cov_params(self) -> np.ndarray:
        """Return the covariance of the parameters; NaN for suppressed ones."""
        found, vectors = self.released, self._parameters[1]
        refused = np.array([bool(text) for text in self.suppression_reasons])
        steps = vectors @ found.basis @ found.inverse
        inner = found.curvature + found.noise_std**2 * np.eye(len(found.curvature))
        covariance = steps @ inner @ steps.T
        covariance[refused] = covariance[:, refused] = np.nan
        return covariance

    def t_test(self, contrasts: Any) -> Estimates:
        """Return estimates of combinations of the parameters.

        Parameters
        ----------
        contrasts : dict of str to float, list of these, or array-like (n, n_parameters)
            ``{"age": 10}`` is ten years of age. ``{"region_r02": 1, "region_r03": -1}`` compares
            two categories.
        """
        names, vectors = self._parameters
        several = isinstance(contrasts, Iterable) and not isinstance(contrasts, Mapping | str)
        rows = [self._weights(one) for one in (contrasts if several else [contrasts])]
        try:
            weights = np.atleast_2d(np.array(rows, dtype=float))
        except (TypeError, ValueError):
            weights = np.empty((0, 0))
        if weights.shape[1:] != (len(names),) or not np.isfinite(weights).all():
            raise ValueError(
                f"contrasts={contrasts!r} must be dicts of finite weights, as {{'age': 10}}, or "
                f"rows of {len(names)} of them, one for each parameter."
            )
        labels = [
            " + ".join(f"{w:g} {name}" for name, w in zip(names, row, strict=True) if w)
            for row in weights.tolist()
        ]
        return self._linear(labels, weights @ vectors)

    def _weights(self, contrast: Any) -> Any:
        names = self._parameters[0]
        if not isinstance(contrast, Mapping):
            return contrast
        unknown = [name for name in contrast if name not in names]
        if unknown:
            these = f"these are: {', '.join(names)}; leave reference categories out"
            raise ValueError(f"{unknown[0]!r} is no parameter; {these}.")
        return [contrast.get(name, 0.0) for name in names]

    def predict(self, rows: Any) -> Estimates:
        """Return the probability of the second class for each row, with intervals.

        They are for the probability itself, not for the label. Results about a row are as private
        as the row.

        Parameters
        ----------
        rows : data frame, or array of shape (n, n_features)
            Raw with a schema, else encoded.
        """
        encoded = self._encoded(rows)
        scores = self._linear([str(i) for i in range(len(encoded))], encoded)
        p = expit(scores.value)
        slope = p * (1 - p)
        errors = (scores.std_error, scores.sampling_error, scores.privacy_error)
        return Estimates(
            scores.names, p, *(slope * e for e in errors), expit(scores.low), expit(scores.high),
            self.level, scores.suppression_reasons, tested=False,
        )  # fmt: skip

    def risk(self, rows: Any) -> Estimates:
        """Return the mean probability of the second class over a public reference population.

        Parameters
        ----------
        rows : data frame, or array of shape (n, n_features)
            Public, or released: private rows would need additional noise.
        """
        encoded = self._encoded(rows)
        value, gradient = self._mean_risk(encoded)
        found = self._estimates(["risk"], np.array([value]), gradient[np.newaxis], encoded)
        return replace(found, tested=False)

    def risk_difference(self, rows: Any, column: str, value: Any, reference: Any) -> Estimates:
        """Return the change of the mean risk if all rows had one value of a column.

        The average marginal effect of a category, or of a number between two values.

        Parameters
        ----------
        rows : data frame, or array of shape (n, n_features)
            The reference population, public or released; raw with a schema, else encoded.
        column : str
        value, reference : values of the column
            The mean risk with the one, less that with the other.
        """
        known = self.feature_names if self.schema is None else self.schema.feature_names
        if not isinstance(column, str) or column not in known:
            given = repr(column) if isinstance(column, str) else f"a {type(column).__name__}"
            raise ValueError(f"column={given} must be one of {[*known]}; rows come before it.")
        # Encoded unchanged first: wrong rows raise an error that names them.
        encoded, sides = self._encoded(rows), []
        for one in (value, reference):
            if self.schema is None:
                encoded[:, known.index(column)] = one
            else:
                _refuse_outside(self._blocks[column][0], one)
                own = zip(known, check_names(rows, known), strict=True)
                changed = {name: list(rows[its]) for name, its in own}
                changed[column] = [one] * len(changed[column])
                encoded = self._encoded(changed)
            sides.append(self._mean_risk(encoded))
        (p, gradient), (q, other) = sides
        name = f"{column}: {value} against {reference}"
        change = (gradient - other)[np.newaxis]
        # The gradient contains the difference of the scores of both sides.
        return self._estimates([name], np.array([p - q]), change, encoded)

    def shape_function(self, column: str) -> tuple[np.ndarray, Estimates]:
        """Return values of a column, and what each adds to the log-odds, with intervals.

        Numbers, days and ordinals are compared with the lowest, categories with the reference.

        Returns
        -------
        values : ndarray of shape (n,)
        added : Estimates
        """
        if self.schema is None or column not in self._blocks:
            raise ValueError(f"column={column!r} must be one of those of inference(schema=...).")
        described, place = self._blocks[column]
        if hasattr(described, "categories"):
            values = np.array(described.categories)
        elif isinstance(described, Quantity):
            values = np.clip(described.values_at(np.linspace(0.0, 1.0, 33)), *described.bounds)
            values = _in_the_table(described, np.union1d(values, described.special_numbers))
        else:
            raise ValueError(f"column={column!r} is a text, which has no shape.")
        block = encode([described], {column: described.numbers(values)})
        against = self.reference_categories
        first = described.categories.index(against[column]) if column in against else 0
        vectors = np.zeros((len(values), len(self.moment)))
        vectors[:, place] = block - block[first]
        return values, self._linear([_named(value) for value in values], vectors)

    def _mean_risk(self, encoded: np.ndarray) -> tuple[float, np.ndarray]:
        """Return a mean risk, and its gradient in the coefficients."""
        p = expit(encoded @ self.released.coef)
        return float(p.mean()), (p * (1 - p)) @ encoded / len(p)

    def _encoded(self, rows: Any) -> np.ndarray:
        if self.schema is not None:
            rows = self.schema.transformer().fit_transform(rows)
        elif hasattr(rows, "columns") and {*rows.columns} == {*self.feature_names}:
            rows = rows[[*self.feature_names]]
        rows = np.array(rows, dtype=float)
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(self.feature_names):
            raise ValueError(
                f"rows have shape {rows.shape}; give a row or more, of "
                f"{len(self.feature_names)} columns."
            )
        return np.column_stack([rows, np.ones(len(rows))]) if self.fit_intercept else rows

    def summary(self) -> Summary:
        """Return the table of coefficients, which prints as text, HTML, LaTeX or a DataFrame."""
        table, ledger = self.estimates, self.privacy_
        metadata = [
            ("Model", f"logistic regression of {self.target}"),
            ("Records", f"{self.released.n_records:,}"),
            ("Privacy", f"epsilon {ledger.epsilon():.4g}, delta {ledger.reporting_delta:g}"),
            ("Neighbours", ledger.neighboring_relation),
        ]
        notes = [
            "std err: from the draw of the records (sampling) and the noise (privacy) together.",
            "noise: the interval holds zero, and most of its width is noise.",
        ]
        if self.schema is not None:
            against = ", ".join(
                f"{name} {value}" for name, value in self.reference_categories.items()
            )
            numbers = [c for c in self.schema.encoded_columns if isinstance(c, Quantity)]
            curves = (
                "Piecewise-linear terms are compared from bound to bound: see shape_function(). "
                "Straight lines need n_segments=1 (schema.additive(1) sets it unless a column "
                "does), and no scale or special value. "
            ) * any(not column.is_straight for column in numbers)
            units = (
                "Numbers are per unit, dates per day, categories against the reference of their "
                f"column. {curves}const: numbers at their lower bounds, categories at their "
                "references. (missing) is compared with the same."
            )
            for note in (units, f"References: {against or 'none'}."):
                notes += textwrap.wrap(note, 96)
        return Summary(metadata, table, notes + table.reasons)

    def __repr__(self) -> str:
        n_hidden = sum(map(bool, self.suppression_reasons))
        n = len(self.names)
        return f"<InferenceResults: {n} parameters, {n_hidden} of them suppressed>"


_NOTHING = "the noise is too large for this number of columns that are not rare"
_RARE_COLUMN = "left out of the model: too rare, or numbers too small (scale them), for this noise"
_UNSEEN = "below the noise level: columns are collinear, separate the labels, or nearly so"


def _effects(column: Column, reference: Any) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """Return the encoded baseline of a column, and its parameters, each of encoded differences."""
    names = column.encoded_names
    if isinstance(column, CategoricalColumn):
        codes = np.eye(len(names))
        first = column.categories.index(reference)
        found = [(name, codes[k] - codes[first]) for k, name in enumerate(names) if k != first]
        return codes[first], found
    if not isinstance(column, Quantity):
        return np.zeros(len(names)), list(zip(names, np.eye(len(names)), strict=True))
    lower, upper = column.bounds
    # The piecewise-linear term itself, and not a special value at its end.
    inside = np.nextafter(column.bounds, column.bounds[::-1])
    at_ends = np.where(np.isin(column.bounds, column.special_numbers), inside, column.bounds)
    ends = encode([column], {column.name: at_ends})
    straight = column.is_straight
    name = column.name if straight else f"{column.name} ({_span(column)})"
    found = [(name, (ends[1] - ends[0]) / (upper - lower if straight else 1.0))]
    others = np.append(column.special_numbers, [np.nan] * (column.missing == "indicator"))
    blocks = encode([column], {column.name: others})
    found += zip(names[len(names) - len(others) :], blocks - ends[0], strict=True)
    return ends[0], found


def _in_the_table(column: Quantity, numbers: np.ndarray) -> np.ndarray:
    """Return numbers of a column as values of the table: days if it has dates."""
    is_date = isinstance(column, DateColumn)
    return np.unique(np.round(numbers)).astype("datetime64[D]") if is_date else numbers


def _named(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _span(column: Quantity) -> str:
    return " to ".join(map(_named, _in_the_table(column, np.array(column.bounds))))


def _refuse_outside(column: Column, value: Any) -> None:
    """Raise a ValueError if the schema does not allow a value, unless it is missing."""
    wrong, allowed = False, ""
    if hasattr(column, "categories"):
        wrong = composed(value) not in [*map(composed, column.categories)]
        allowed = f"choose from {[*column.categories]}"
    elif isinstance(column, Quantity):
        number = column.read(distinct([value], column.name))
        wrong = np.isinf(number) | column.is_outside(number)
        allowed = f"give one from {_span(column)}"
    if wrong:
        raise ValueError(f"{value!r} is no value of {column.name!r}; {allowed}.")


def inference_of(
    model: Any, level: float, schema: Schema | None, references: Mapping[str, Any] | None
) -> InferenceResults:
    """Return the inference of a model that was fitted with an ``inference_fraction``."""
    check_is_fitted(model)
    if model.trace_.debiased is None:
        raise ValueError(
            "This fit has released nothing for intervals. Fit again with "
            "DPLogisticRegression(inference_fraction=0.5), for example."
        )
    names = getattr(model, "feature_names_in_", None)
    if schema is not None:
        blocks_of(schema, model.n_features_in_, names)
    if names is None:
        names = [f"x{k}" for k in range(1, model.n_features_in_ + 1)]
    label = "y" if schema is None else schema.target.name
    return InferenceResults(
        model.trace_.debiased, model.trace_.whitening.moment, [str(name) for name in names],
        bool(model.fit_intercept), f"{label} = {model.classes_[1]}", model.privacy_, schema, level,
        references,
    )  # fmt: skip
