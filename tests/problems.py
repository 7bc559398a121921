"""Rows to sum over, the forms they are stored in, and the sums computed term by term."""

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from dpglm.losses import Hinge, Logistic, SmoothedHinge, Softmax
from dpglm.sources.arrays import ArraySource

BINARY = [Logistic(), SmoothedHinge(0.3), SmoothedHinge(2.0), Hinge()]
JOINT = [(Softmax(), 2), (Softmax(), 5), (Logistic(), 3), (SmoothedHinge(), 3), (Hinge(), 4)]
CASES = [(loss, 1) for loss in BINARY] + JOINT
STEPS = np.linspace(0.0, 2.0, 21)


def loss_for(n_outputs):
    return Logistic() if n_outputs == 1 else Softmax()


def problem(n, d, n_outputs=1, seed=0, *, scale=1.0, density=0.7, fit_intercept=True):
    """Rows, target, coefficients and a direction of length 1."""
    rng = np.random.default_rng(seed)
    X = scale * rng.normal(size=(n, d)) * (rng.random((n, d)) < density)
    target = rng.choice([-1.0, 1.0], n) if n_outputs == 1 else rng.integers(0, n_outputs, n)
    shape = (d + fit_intercept,) if n_outputs == 1 else (d + fit_intercept, n_outputs)
    direction = rng.normal(size=shape)
    return X, target, rng.normal(size=shape), direction / np.linalg.norm(direction)


def holder_of(model, X, target):
    """The holder of rows that an estimator of two classes gives to its vault."""
    options = {"fit_intercept": model.fit_intercept, "class_weight": None}
    return model._holder(X, target, model._loss(2), n_outputs=1, **options)


def nulled(X, null):
    """The same rows, but for some whose norm overflows: null records."""
    return np.where(null[:, np.newaxis], 1e200, X)


def augmented(X, fit_intercept=True):
    return np.hstack([X, np.ones((len(X), 1))]) if fit_intercept else X


def storages(X):
    return X, sparse.csr_array(X), sparse.csr_matrix(X)


def with_long_indices(X):
    rows = sparse.csr_array(X)
    long = (rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64))
    return sparse.csr_array(long, shape=X.shape)


# All forms that fits take rows in; blocks are read one after the other.
STORAGES = {
    "rows": lambda X, y: (X, y),
    "columns": lambda X, y: (np.asfortranarray(X), y),
    "single": lambda X, y: (np.clip(X, -3e38, 3e38).astype(np.float32), y),
    "sparse": lambda X, y: (sparse.csr_array(X), y),
    "blocks": lambda X, y: (ArraySource(X, y, block_rows=8), None),
}


def clipped_sum(rows, target, loss, coef, clip, weights=None):
    """Sum of the clipped gradients of rows that have their column of ones, one after the other."""
    classes = target if coef.ndim == 2 else (target > 0).astype(int)
    total = np.zeros(coef.shape)
    for i in range(len(rows)):
        derivative = loss.derivative((rows[i] @ coef)[np.newaxis], target[i : i + 1])[0]
        weight = 1.0 if weights is None else weights[classes[i]]
        gradient = weight * np.multiply.outer(rows[i], derivative)
        norm = np.linalg.norm(gradient)
        total += gradient if norm <= clip else gradient * (clip / norm)
    return total


def _loss_at(loss, z):
    """Losses at minus the margins, in extended precision."""
    if isinstance(loss, Logistic):
        return np.maximum(z, 0) + np.log1p(np.exp(-abs(z)))
    half = np.longdouble(getattr(loss, "half_width", 0.0))
    curved = np.maximum(z + 1 + half, 0) ** 2 / (4 * half) if half > 0 else 0 * z
    return np.where(z >= half - 1, 1 + z, curved)


def _capped_loss_at(loss, z, weight, cap):
    """Weighted losses, and their tangents of slope `cap` where they are steeper."""
    with np.errstate(divide="ignore"):
        share = np.minimum(cap / weight, 1)
        of_logistic = np.log(share) - np.log1p(-share)
    if isinstance(loss, Logistic):
        knee = of_logistic
    else:
        half = np.longdouble(getattr(loss, "half_width", 0.0))
        knee = np.where(share < 1, 2 * half * share - half - 1, np.inf)
    return weight * _loss_at(loss, np.minimum(z, knee)) + cap * np.maximum(z - knee, 0)


def _joint_loss(loss, scores, own):
    """Losses of scores of shape (n, K, steps)."""
    is_own = (np.arange(scores.shape[1]) == own[:, None])[:, :, None]
    if isinstance(loss, Softmax):
        peak = scores.max(axis=1)
        spread = np.log(np.exp(scores - peak[:, None]).sum(axis=1))
        return peak + spread - scores.sum(axis=1, where=is_own)
    return _loss_at(loss, np.where(is_own, -scores, scores)).sum(axis=1)


def line_terms(rows, target, loss, coef, direction, steps, *, weights, loss_clip=None, clip=None):
    """What each row, with its column of ones, adds at each step; shape (n, steps)."""
    rows, coef, direction = (np.asarray(a, dtype=np.longdouble) for a in (rows, coef, direction))
    places = coef[..., None] - direction[..., None] * steps
    weights = np.asarray(weights, dtype=np.longdouble)
    scores = np.tensordot(rows, places, 1)
    if coef.ndim == 2:
        return np.minimum(weights[target][:, None] * _joint_loss(loss, scores, target), loss_clip)
    z, weight = -target[:, None] * scores, weights[(target > 0).astype(int)][:, None]
    if clip is None:
        return np.minimum(weight * _loss_at(loss, z), loss_clip)
    norms = np.sqrt((rows**2).sum(axis=1))[:, None]
    terms = _capped_loss_at(loss, z, weight, np.longdouble(min(clip, 1e300)) / norms)
    return terms - terms[:, :1]


def line_bounds(n_outputs, loss_clip=2.0, clip=0.7):
    """Both ways to bound what a row adds to a loss along a line; the second is for one output."""
    return [{"loss_clip": loss_clip}] + [{"clip": clip}] * (n_outputs == 1)


def assert_losses_match(objective, rows, target, loss, coef, direction, steps, weights, **bound):
    terms = line_terms(rows, target, loss, coef, direction, steps, weights=weights, **bound)
    got = objective.line_losses(coef, direction, steps, **bound)
    error = np.abs(got - terms.sum(axis=0).astype(float))
    size = np.abs(terms).sum(axis=0).astype(float)
    # Differences of losses lose a digit.
    relative, of_each = (3e-13, 1e-13) if "loss_clip" in bound else (1e-12, 1e-12)
    assert (error <= relative * size + of_each * len(rows)).all()


def magnitudes(largest=100.0):
    extreme = [0.0, 5e-324, -1e-310, 1e-200, 1e7, -1e100, 1e150, -1e154, 1e200, 1e308, -1.7e308]
    ordinary = st.floats(-largest, largest, allow_subnormal=False)
    return st.one_of(ordinary, st.sampled_from(extreme))


def exact(values):
    return [Fraction(float(value)) for value in np.ravel(values)]


def exact_norm_squared(values):
    return sum(value**2 for value in values)
