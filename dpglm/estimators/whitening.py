"""Private whitening: descend in coordinates in which the features are uncorrelated.

A small part of the budget buys a noisy second moment of the features, ``sum_i x~_i x~_i'`` or its
diagonal, and everything made of it is post-processing: a basis P in which they have a second moment
near the identity, and the effective dimension. Descent then runs on ``P' x~`` with coefficients v,
and ``P v`` are the coefficients of x~.

With an intercept a matrix is that of rows around a mean, released before it: it has less noise.

Unless the length of rows is known, another small part first buys the order of magnitude of each
column, by which large and small ones are divided: dollars would drown all others, and rates would
drown in noise. Where that is too much to ask, it buys how long rows are, and all columns are scaled
alike.
"""

import math
import warnings
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtri
from sklearn.base import BaseEstimator

from dpglm.estimators.adaptive_plan import AdaptivePlan
from dpglm.estimators.docs import completed
from dpglm.estimators.plan import PrivacyPlan, SecondMomentRelease, cannot_carry
from dpglm.estimators.solvers import FitTrace, Space, Whitening
from dpglm.exceptions import UtilityWarning
from dpglm.kernels import one_blas_thread
from dpglm.privacy.vault import LENGTHS, MAGNITUDES, Vault, triangle

# Public stand-in where no bound is given: the norm of a row of nine ones, which are an intercept
# and eight features in [0, 1] at their largest or categories in one-hot code.
DEFAULT_ROW_BOUND = 3.0
# The longest rows that it suits: those of 2.8, halfway between, have that norm with an intercept.
_SUITED = 3.5

# Least ridge, relative to row_bound^2: without noise it keeps the basis finite and its condition
# number, which multiplies rounding errors, below 2^15.
_LEAST_RIDGE = 2.0**-30

# Rows that were shortened by more than a factor of 1000 count as shortened by that.
_LEAST_KEPT = 1e-6

# Of standard deviations of the noise, for a column to be seen. A label that hangs on one long
# column, or on very few of many, is learned all the same; sparse text, where many words are seen,
# works with less signal.
_SEEN, _FEW = 4.0, 5

# The dimension of a diagonal is mostly noise if so much larger than what is left without it.
_MOSTLY_NOISE = 12.0

# Of the prior on coefficients: its strength over the ridge, times the curvature of the loss; its
# scale, that of Gelman et al. (2008); and the signal per direction up to which there is none, as
# the way is so short that noise does not add up. See "Rare categories" in docs/defaults.md.
_PRIOR_STRENGTH, _PRIOR_SCALE, _SHORT_WAY = 0.045, 2.5, 40.0

# A magnitude counts if it has this part of the records, and more than noise alone reaches in all
# but one of 1000 fits. So much is spent on the counts that the latter is a twentieth of the
# records, within limits, of which the upper one is at most half of what the second moment leaves;
# there a quarter of them must do, else columns stay as they are, and so do those of very wide
# tables.
_VISIBLE, _FALSE_ALARM, _ENLARGED = 0.02, 0.001, 1 / 8
_WANTED, _NEEDED = 0.05, 0.25
_LEAST_SCALE_SHARE, _MOST_SCALE_SHARE, _MOST_SCALED = 0.003, 0.03, 2**16

# The same of lengths of rows: counts are to have a noise of a tenth of the records, but are worth
# no more than .15 of the budget, and nothing where .4 of the records would not show. A length
# counts if it has a tenth of the records. Before anything is seen lengths are taken to be 1.75 to
# 3.5, with a standard deviation of two powers of two above that and of one below; one that is
# exp(3) times less likely than another is left out. The square of the length that rows may have is
# this part of n mu.
_LENGTH_NOISE, _HIDDEN_LENGTHS, _COMMON = 0.1, 0.4, 0.1
_LEAST_LENGTH_SHARE, _MOST_LENGTH_SHARE = 0.001, 0.15
_LIKELY_POWERS, _CONCEIVABLE, _CARRIED = 2.0, 3.0, 1 / 7

# Rows are centred for this part of the share of the second moment, where the noise of the sum over
# n is a quarter of the row bound at most, of the intercept's entry a quarter: they are then about
# two thirds as long, in units of about one no longer than 4. The ridge is the former times sqrt(k)
# the noise, k being the curvature of the loss, or the latter times d^(3/2) / (n mu) if it is less,
# once at least: small numbers need large coefficients. The prior knows them and has the former.
_MEAN_PART, _HIDDEN_MEAN, _CENTRED, _USUAL_LENGTH = 0.1, 1 / 4, 2 / 3, 4.0
_CENTRED_DAMPING, _SEEN_DAMPING = 5.5, 7.7
# Of the records, what is left of the intercept's column at least where a mean is taken.
_LEAST_COUNTED = 0.1

# Of the noise of the intercept's slope, for it to be one; and how far the intercept then may go.
_SURE, _FAR = 1.5, math.log(4)
# Quantiles that stand for a normal law.
NORMAL = ndtri((np.arange(2000) + 0.5) / 2000)


def column_scales(counts: np.ndarray, noise_std: float, n_samples: int) -> np.ndarray:
    """Return the powers of two that bring columns to entries of about 1, from noisy counts.

    Counts (n_columns, m) are of entries between consecutive `MAGNITUDES`. The highest with records
    enough becomes 1, or of small ones 1/8, as noise may hide larger ones that would be far above 1
    then. A column without any keeps its units, or where many entries of usual size may be hidden.
    """
    seen = counts > max(_VISIBLE * n_samples, noise_std * _noisiest(counts.size))
    ends = np.append(MAGNITUDES[1:], 2 * MAGNITUDES[-1])
    highest = ends[::-1][np.argmax(seen[:, ::-1], axis=1)]
    usual = counts[:, np.searchsorted(MAGNITUDES, 1.0) - 1]
    kept = ~seen.any(axis=1) | (highest < 1) & (usual + noise_std > _WANTED * n_samples)
    return np.where(kept, 1.0, np.where(highest < 1, _ENLARGED, 1.0) / highest)


def row_scale(counts: np.ndarray, noise: float, signal: float) -> tuple[float, float]:
    """Return the power of two that rows are multiplied by, and the bound of those that result.

    Counts are parts of the records with lengths between consecutive `LENGTHS`, with this noise. The
    longest that many have is brought to where the bound is 3, or left as it is if it is longer and
    n mu carries it, or made shorter if that is more than n mu carries.

    Rows of length l have scores with a noise of about ``l sqrt(1 + l^2) / (n mu)`` times what one
    class too frequent moves the intercept by: rare classes are lost where that is not small.
    """
    # The first are of rows as good as zero, which no power would make longer.
    counts, powers = counts[1:], np.log2(np.append(LENGTHS[1:], 2 * LENGTHS[-1]) / _SUITED)
    # Logarithms of lengths are normal before anything is seen. The less likely one is, the clearer
    # it must be: noise that looks long would make rows as good as zero.
    far = np.maximum(powers, -2 * powers) / _LIKELY_POWERS
    clear = noise * np.hypot(_noisiest(counts.size), far)
    common = np.flatnonzero(counts > np.maximum(_COMMON, clear))
    if common.size:
        power = powers[common[-1]]
    else:
        # The longest that is conceivable, but none longer than it was, which is worse than shorter.
        chances = counts / max(noise, _COMMON) ** 2 - far**2 / 2
        power = max(0.0, powers[chances > np.max(chances) - _CONCEIVABLE][-1])
    carried = np.floor(np.log2(np.sqrt(_CARRIED * signal) / _SUITED))
    wanted = min(max(power, 0.0), carried)
    return 2.0 ** (wanted - power), math.sqrt(1 + (DEFAULT_ROW_BOUND**2 - 1) * 4.0**wanted)


def _length_share(signal: float, moment_share: float) -> float:
    """Return the part of the budget for lengths of rows, zero where they would show nothing."""
    most = min(_MOST_LENGTH_SHARE, (1 - moment_share) / 2)
    if math.sqrt(most) * signal * _HIDDEN_LENGTHS < 1:
        return 0.0
    return min(max((_LENGTH_NOISE * signal) ** -2, _LEAST_LENGTH_SHARE), most)


def _noisiest(size: int) -> float:
    """What the largest of so many numbers of standard noise reaches in one case of 1000."""
    return -float(ndtri(_FALSE_ALARM / size))


def _scale_share(n_columns: int, signal: float, moment_share: float) -> float:
    """Return the part of the budget for the counts, zero where they would show nothing."""
    most = min(_MOST_SCALE_SHARE, (1 - moment_share) / 2)
    # A record moves them by sqrt(n_columns), and by less than twice that in place of another.
    reached = math.sqrt(n_columns) * _noisiest(n_columns * MAGNITUDES.size) / signal
    least = max((reached / _NEEDED) ** 2, _LEAST_SCALE_SHARE)
    if n_columns > _MOST_SCALED or least > most:
        return 0.0
    return min(max((reached / _WANTED) ** 2, least), most)


def denoised_moment(moment: np.ndarray, noise_std: float) -> np.ndarray:
    """Return the directions that stand out from the noise, and what they leave of the diagonal.

    The moment (d, d) is symmetric, with independent Gaussian noise on its upper triangle, sqrt(2)
    less off the diagonal than on it. The result is positive semidefinite: the positive part of the
    moment if there is no noise.

    Such noise has eigenvalues up to ``e = noise_std sqrt(2 d)``, and a direction of variance
    ``v > e / 2`` appears with the eigenvalue ``v + e^2 / (4 v)`` (Benaych-Georges & Nadakuditi,
    Advances in Mathematics 2011, Section 3.1). So eigenvalues beyond e are solved for v and the
    others tell nothing. The rest of the diagonal, d numbers with much less noise, comes in as is.
    """
    edge = noise_std * math.sqrt(2 * len(moment))
    values, vectors = np.linalg.eigh(moment)
    values, vectors = values[values > edge], vectors[:, values > edge]
    variances = (values + np.sqrt((values - edge) * (values + edge))) / 2
    directions = (vectors * variances) @ vectors.T
    rest = np.maximum(np.diag(moment) - np.diag(directions), 0.0)
    return directions + np.diag(rest)


def centring(vault: Vault, n_samples: int, row_bound: float, noise_multiplier: float) -> np.ndarray:
    """Release the sum of the rows; return a basis of ``x~`` less its mean, but for the intercept.

    The vault answers in that space from here on. The mean is over the intercept's sum, which is
    less than the number of records if rows were shortened, as far as two standard deviations tell.
    """
    total = vault.row_sum(row_bound, noise_multiplier)
    noise = 2 * vault.log[-1].noise_scale
    count = min(max(n_samples, total[-1] - noise), total[-1] + noise)
    basis = np.eye(len(total))
    basis[-1, :-1] = -total[:-1] / max(count, _LEAST_COUNTED * n_samples)
    vault.change_basis(basis)
    return basis


def unit_sizes(moment: np.ndarray, noise: float) -> np.ndarray:
    """Return how large the entries of each column are, at most 1, as far as a noisy moment tells.

    The mean of ones and zeros is their mean square. That of small numbers, which need a large
    coefficient, is larger, and may be seen where the mean square is not. An intercept comes last.
    """
    squares, means = np.maximum(np.diag(moment), 0.0), np.abs(moment[-1])
    return np.minimum(1.0, (squares + noise) / np.maximum(means, noise))


def whiten(vault: Vault, plan: PrivacyPlan | AdaptivePlan, space: Space) -> tuple[Any, Space, Any]:
    """Release the second moment; return the plan and the space of the descent, and what was found.

    The vault answers in that space from here on. Everything but the releases is post-processing;
    the ridge of the basis follows from the noise and the penalty, both public. With an intercept,
    moment and noise are first divided by what clipping the rows has left of it.
    """
    release, facts = plan.second_moment, plan.facts
    preconditioner, scales = release.preconditioner, np.ones(space.n_columns)
    row_bound, multipliers = release.row_bound, release.noise_multipliers
    damping, curvature = preconditioner.damping, min(1.0, facts.curvature or 1.0)
    held_back = damping
    if release.scale_share:
        counts = (vault.lengths if release.by_rows else vault.magnitudes)(multipliers[0])
        n, noise_std = facts.n_samples, vault.log[-1].noise_scale
        if release.by_rows:
            scale, row_bound = row_scale(counts / n, noise_std / n, release.signal)
            scales = scale * scales
        else:
            scales = column_scales(counts, noise_std, n)
        scales[-1] = 1.0 if space.fit_intercept else scales[-1]
        if (scales != 1).any():
            vault.scale_columns(scales)
    if release.mean_share:
        centred = centring(vault, facts.n_samples, row_bound, multipliers[-2])
        row_bound = min(_CENTRED * row_bound, max(_CENTRED * release.row_bound, _USUAL_LENGTH))
        held_back = _CENTRED_DAMPING * math.sqrt(curvature) * damping
        seen = _SEEN_DAMPING * space.n_columns**1.5 / release.signal * damping
        damping = max(damping, min(held_back, seen))
    noisy = vault.second_moment(row_bound, multipliers[-1], diagonal=preconditioner.diagonal)
    noise_std = vault.log[-1].noise_scale
    moment = preconditioner.moment(noisy, space.n_columns) / facts.n_samples
    least = _LEAST_RIDGE * row_bound**2
    noise = noise_std / facts.n_samples
    penalised = scales**2
    penalised[-1] *= not space.fit_intercept
    kept = part_kept(moment, noise) if space.fit_intercept else 1.0
    hidden = damping * noise / kept
    ridge = max(hidden, least) + facts.alpha / curvature * penalised
    with one_blas_thread():
        basis, dimension = preconditioner.whitened(moment / kept, noise / kept, ridge)
    # Rows that released lengths did not make shorter are no longer than the budget carries.
    long = space.fit_intercept and (not (release.scale_share and release.by_rows) or scales[0] < 1)
    _warn_where_little_is_seen(moment / row_bound**2, noise / row_bound**2, release, long)
    vault.change_basis(basis)
    if release.mean_share:
        back = 2 * np.eye(space.n_columns) - centred
        moment, basis = back.T @ moment @ back, centred @ basis
    basis = (scales * basis.T).T
    events = [line.event for line in vault.log]
    whitening = Whitening(scales, moment, basis, max(1.0, dimension), noise_std, events)
    plan = plan.in_whitened_space(whitening.effective_dimension)
    long_way = max(0.0, 1 - _SHORT_WAY * whitening.effective_dimension / release.signal)
    strength = long_way * _PRIOR_STRENGTH / curvature * held_back * noise / kept
    if strength > 0 and not preconditioner.diagonal:
        sizes = _PRIOR_SCALE * scales
        if space.fit_intercept:
            sizes = np.append((sizes / unit_sizes(moment / kept, hidden))[:-1], math.inf)
        space = replace(space, prior=(strength, sizes))
    return plan, replace(space, basis=basis), whitening


def normal_odds(mean: float, mean_square: float) -> np.ndarray:
    """Return log-odds that are spread as a normal law with these moments is."""
    return mean + math.sqrt(max(mean_square - mean**2, 0.0)) * NORMAL


def settle_intercept(plan: PrivacyPlan, space: Space, trace: FitTrace) -> None:
    """Move the intercept to where its released slope is what it should be.

    Where rows had to be made shorter, it is one of many directions of noise, and may not arrive: a
    rare class is then foretold too often. Were all odds right but for a factor, that would give the
    slope, log-odds being normal with the moments that follow from the second moment, and residuals
    cut as the clip cuts those of a row of mean length. So the slope gives a factor, 4 at most.
    """
    white, weights = trace.whitening, plan.averaging[:-1]
    if white.moment.ndim == 1 or not weights.any():
        return
    moment = white.moment / part_kept(white.moment, white.noise_std / plan.facts.n_samples)
    coef, basis = trace.coef / white.scales, (space.basis.T / white.scales).T
    odds = normal_odds(moment[-1] @ coef, coef @ moment @ coef)
    cut = plan.averaging @ plan.clip / math.sqrt(max(1.0, np.trace(basis.T @ moment @ basis)))
    false, true = np.minimum(expit(odds), cut), np.minimum(expit(-odds), cut)

    def slope(shift: float) -> float:
        p = expit(odds + shift)
        return float(np.mean((1 - p) * false - p * true))

    along = np.linalg.solve(space.basis, np.eye(len(coef))[-1])
    noise = np.linalg.norm(along) * np.linalg.norm(weights * trace.noise_std[1:])
    noise, missing = noise / trace.n_summed, along @ trace.slope - weights.sum() * slope(0.0)
    # Of coefficients that are no numbers nothing is greater.
    if abs(missing) > _SURE * noise:
        missing *= 1 - (_SURE * noise / missing) ** 2
        wanted = np.clip(slope(0.0) + missing / weights.sum(), slope(_FAR), slope(-_FAR))
        trace.coef[-1] += brentq(lambda shift: slope(shift) - wanted, -_FAR, _FAR)


@dataclass(eq=False, repr=False)
class Preconditioner(BaseEstimator):
    """A rule that turns a noisy second moment into a basis; see its two subclasses.

    Parameters
    ----------
    share : float, default=0.15
        Part of the budget mu^2 spent on the release, above 0 and below 1.
    damping : float, default=1.0
        Ridge added to the second moment, in standard deviations of the noise on its diagonal;
        around a mean in more of them, see `FullPreconditioner`.
    row_bound : float, default=None
        Bound on the L2 norm of a row, intercept included; longer rows are shortened for these
        releases only. It must be public: `Schema.row_bound` or prior knowledge, never the largest
        norm of the data. ``None`` means 3, after large and small columns were divided by a power
        of two: of each of d columns it is released, with at most 3 percent of the budget, how
        many entries are between which powers (L2 sensitivity sqrt(d), and sqrt(2 d) under
        ``"replace_one"``). Where the budget cannot show them, it is released how many rows are
        between which lengths (L2 sensitivity 1, or sqrt(2); .1 to 15 percent of the budget), and
        all columns are multiplied by one power of two: the bound is 3 for rows of 1.75 to 3.5, more
        for longer ones that n mu carries, and less where it does not carry these. A number leaves
        columns as they are and spends nothing on them.
    """

    share: float = 0.15
    damping: float = 1.0
    row_bound: float | None = None

    # Whether the sums of the squares of the columns are enough. Subclasses have `moment`, which
    # returns what the released numbers make up, and `whitened`, which returns the basis and the
    # effective dimension for a moment, the noise on its diagonal and a ridge.
    diagonal: ClassVar[bool]

    def release_plan(
        self, mu: float, signal: float, n_columns: int, *, centred: bool = False
    ) -> SecondMomentRelease:
        """Return what will be released and at which noise multipliers, before any data.

        `signal` is the number of records times mu, at a sensitivity of one, and `centred` whether
        rows may be.
        """
        row_bound = DEFAULT_ROW_BOUND if self.row_bound is None else self.row_bound
        for name, value, low, high in (
            ("share", self.share, 0.0, 1.0),
            ("damping", self.damping, 0.0, math.inf),
            ("row_bound", row_bound, 1e-50, 1e50),
        ):
            if isinstance(value, bool) or not isinstance(value, Real) or not low < value < high:
                raise ValueError(
                    f"{name}={value!r} must be a number above {low:g} and below {high:g}."
                )
        unknown = self.row_bound is None
        scale_share = _scale_share(n_columns, signal, self.share) if unknown else 0.0
        by_rows = unknown and not scale_share
        scale_share = _length_share(signal, self.share) if by_rows else scale_share
        mean_share = _MEAN_PART * self.share
        noise = max(math.sqrt(n_columns), row_bound) / (signal * math.sqrt(mean_share))
        centred = centred and noise <= _HIDDEN_MEAN and not self.diagonal
        return SecondMomentRelease(
            preconditioner=self,
            row_bound=float(row_bound),
            mu=mu,
            signal=signal,
            share=self.share,
            scale_share=scale_share,
            by_rows=by_rows,
            mean_share=mean_share if centred else 0.0,
        )


@completed
class DiagonalPreconditioner(Preconditioner):
    """Scale each feature by a noisy estimate of its root mean square.

    Notes
    -----
    Releases the sums of the squares a_j of the columns. With the noise's standard deviation s,
    ``P_jj = (max(a_j, 0) / n + damping s / n + k_j)^(-1/2)``, where k_j is the penalty ``alpha``
    over the curvature of the loss (1 at most), and 0 for the intercept, so that the penalty is no
    steeper than the loss in any direction.

    The effective dimension is the sum of ``r_j = a_j / (|a_j| + damping s + n k_j)`` over the
    columns whose a_j is positive. Where this is more than twelve times the sum over all columns
    plus twice the root of the sum of its squares, the latter takes its place: noise is as often
    below zero as above, so that most columns hold nothing else.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> DPLogisticRegression(preconditioner=DiagonalPreconditioner(share=0.1)).preconditioner
    DiagonalPreconditioner(share=0.1)
    """

    diagonal = True

    def moment(self, noisy: np.ndarray, n_columns: int) -> np.ndarray:
        return noisy

    def whitened(
        self, moment: np.ndarray, noise: float, ridge: np.ndarray
    ) -> tuple[np.ndarray, float]:
        positive = np.maximum(moment, 0.0)
        shown = moment / (np.abs(moment) + ridge)
        # Columns of nothing but noise cancel in the sum of all, though not in that of the positive.
        dimension, most = np.sum(np.maximum(shown, 0.0)), np.sum(shown) + 2 * np.linalg.norm(shown)
        dimension = most if dimension > _MOSTLY_NOISE * max(most, 1.0) else dimension
        return 1 / np.sqrt(positive + ridge), float(dimension)


@completed
class FullPreconditioner(Preconditioner):
    """Whiten the features by a noisy estimate of their second moment matrix.

    Notes
    -----
    Releases the upper triangle with its off-diagonal entries times sqrt(2): one vector whose L2
    norm is the Frobenius norm, so that the diagonal costs no more than it does alone. With A the
    part of the noisy mean that stands out from the noise, and its diagonal, ``P = U L^(-1/2) U'``
    where ``U L U'`` is the eigendecomposition of ``A + (damping s / n) I + K``; s and the diagonal
    of K are as in `DiagonalPreconditioner`. Memory and time grow with the square and the cube of
    the number of columns.

    In a descent with fixed noise and an intercept, but no ``inference_share``, a tenth of the share
    first buys the sum of the rows, clipped to the bound that they would have had (its L2
    sensitivity, twice that under ``"replace_one"``): where the noise of the sum over n has a length
    of a quarter of the bound at most, and of a quarter for the intercept. A is then around the mean
    that follows: rows are clipped to two thirds of the bound, or to 4 if that is less and
    ``row_bound`` was not given, and ``damping`` counts ``min(5.5 sqrt(k), 7.7 d^(3/2) / (n mu))``
    times, once at least, for rows of d numbers and a loss of curvature k (1 at most).

    Descent with fixed noise then adds to the mean loss ``a log(1 + (u_j c_j / 2.5)^2)`` for each
    coefficient c_j but the intercept, a Cauchy prior on those that the noise hides: ``a = .045 r
    max(0, 1 - 40 d / (n mu)) / k``, with r the ridge, or around a mean ``5.5 sqrt(k) damping s /
    n``, the effective dimension d and the curvature k of the loss (1 at most). All of it is of
    columns as they are scaled (``row_bound``), and noise and moment over the part that shortened
    rows have left of the intercept's. The entries of column j are taken for as large as ``u_j =
    (its mean square + its ridge) / (its mean)``, 1 at most, and 1 without an intercept. Where
    released lengths made rows shorter, released gradients move the intercept of logistic regression
    on ("Rare classes" in docs/trials.md).

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> DPLogisticRegression(preconditioner=FullPreconditioner(row_bound=2.0)).preconditioner
    FullPreconditioner(row_bound=2.0)
    """

    diagonal = False

    def moment(self, noisy: np.ndarray, n_columns: int) -> np.ndarray:
        where, weights = triangle(n_columns)
        moment = np.empty((n_columns, n_columns))
        moment[where] = noisy / weights
        moment.T[where] = moment[where]
        return moment

    def whitened(
        self, moment: np.ndarray, noise: float, ridge: np.ndarray
    ) -> tuple[np.ndarray, float]:
        positive = denoised_moment(moment, noise)
        values, vectors = np.linalg.eigh(positive + np.diag(ridge))
        # The one symmetric basis: eigenvectors are turned by rounding, and with them the noise.
        basis = (vectors / np.sqrt(values)) @ vectors.T
        return basis, float(np.sum(basis * (positive @ basis)))


def check_preconditioner(preconditioner: Any) -> Preconditioner | None:
    """Return the preconditioner that a parameter asks for: the very object where one is given."""
    # A closed set: a subclass could release more than it is charged for, unseen.
    named = {"diagonal": DiagonalPreconditioner, "full": FullPreconditioner}
    if preconditioner is None or type(preconditioner) in named.values():
        return preconditioner
    if isinstance(preconditioner, str) and preconditioner in named:
        return named[preconditioner]()
    error = ValueError if isinstance(preconditioner, str) else TypeError
    raise error(
        f"preconditioner={preconditioner!r} is not a preconditioner. Give None, 'auto', "
        "'diagonal', 'full', or a DiagonalPreconditioner or FullPreconditioner object."
    )


def _warn_where_little_is_seen(
    moment: np.ndarray, noise: float, release: SecondMomentRelease, long: bool
) -> None:
    """Warn if the released moment shows one column only, or the budget cannot carry the columns.

    The intercept is in every row: where it is not seen but another column is, that one has made
    rows so long that they were shortened to it alone, if rows can be `long` at all. Both numbers
    are over the squared row bound.
    """
    squares = moment if moment.ndim == 1 else np.diag(moment)
    seen, n_columns = np.flatnonzero(squares > _SEEN * noise), len(squares)
    text = cannot_carry(release.signal, n_columns) if len(seen) <= _FEW else ""
    hidden = len(seen) == 1 and seen[0] < n_columns - 1 and squares[seen[0]] > 1 / 2
    if not text and hidden and long:
        text = (
            f"Of {n_columns} columns, intercept included, only column {seen[0]} can be seen: it "
            f"makes rows far longer than row_bound={release.row_bound:g}, and hides the others. "
            "Divide columns by public bounds, as PublicBoundsScaler and Schema do."
        )
    if text:
        text = f"This fit has probably learned little. {text}"
        warnings.warn(text, UtilityWarning, stacklevel=8)


def part_kept(moment: np.ndarray, noise: float) -> float:
    """Return which part of the second moment is left after rows were shortened.

    That is the mean square of the intercept's column, one in every row before, if above its noise.
    """
    intercept = float(moment[-1] if moment.ndim == 1 else moment[-1, -1])
    return min(1.0, max(intercept, noise, _LEAST_KEPT))
