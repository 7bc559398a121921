"""The same clipped gradient, and whole fits, as others would compute them.

Each function for `speed.py` takes the data, labels, coefficients (intercept last) and the clip, and
returns a call without arguments, or None if the library it needs is not installed.
"""

import importlib.util
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from dpglm.exceptions import require

__all__ = [
    "boosting", "installed", "jax_vmap", "line_search", "loop", "numpy_rows", "softmax",
    "torch_vmap", "two_pass", "whole_fits",
]  # fmt: skip


def installed(module: str) -> bool:
    """Whether a module is there; if not, say that it is left out."""
    found = importlib.util.find_spec(module) is not None
    if not found:
        print(f'without {module}, which is not installed: pip install "dpglm[benchmarks]"')
    return found


def whole_fits(X, y: np.ndarray) -> dict[str, Callable]:
    """Logistic regression without privacy, whole fits, with scikit-learn's default penalty."""
    models = {
        solver: LogisticRegression(solver=solver, max_iter=1000)
        for solver in ("lbfgs", "newton-cholesky")
    }
    if installed("glum"):
        from glum import GeneralizedLinearRegressor

        models["glum"] = GeneralizedLinearRegressor(family="binomial", alpha=1 / len(y))
    return {name: partial(model.fit, X, y) for name, model in models.items()}


def boosting(rows, schema, is_curved: bool = False, form: str = "nominal"):
    """DP-EBM: its rows, and its class with the public facts that it would read from them.

    A number comes as its position between its public bounds, on the scale of the column or of its
    curve, a category as its place in the public list. DP-EBM has no other use for their values.
    """
    model = require("interpret.privacy", "benchmarks", "DP-EBM").DPExplainableBoostingClassifier
    columns, types, bounds = [], [], {}
    for i, column in enumerate((schema.additive() if is_curved else schema).columns):
        columns.append(column.numbers(rows[column.name]))
        if column in schema.categorical:
            codes = [str(code) for code in range(len(column.categories))]
            types.append(codes if form == "ordinal" else form)
        else:
            columns[-1] = column.position(columns[-1])
            types.append("continuous")
            bounds[i] = (0.0, 1.0)
    public = {"feature_types": types, "privacy_bounds": bounds}
    return np.column_stack(columns), partial(model, **public, n_jobs=1)


def two_pass(X, y: np.ndarray, coef: np.ndarray, clip: float) -> Callable[[], np.ndarray]:
    """Two library products, with the row norms known in advance: the best one can do with them."""
    squares = X.multiply(X).sum(axis=1) if sparse.issparse(X) else np.einsum("ij,ij->i", X, X)
    caps = clip / np.sqrt(squares + 1.0)
    features, intercept = coef[:-1].astype(X.dtype), coef[-1]
    transposed = X.T

    def gradient():
        margins = y * (X @ features + intercept)
        coefficients = -y * np.minimum(1.0 / (1.0 + np.exp(margins)), caps)
        return np.append(transposed @ coefficients.astype(X.dtype), coefficients.sum())

    return gradient


def numpy_rows(X, y: np.ndarray, coef: np.ndarray, clip: float) -> Callable[[], np.ndarray]:
    """Vectorised numpy, with a gradient for each row."""
    rows = np.hstack([X, np.ones((len(X), 1))])

    def gradient():
        gradients = (-y / (1.0 + np.exp(y * (rows @ coef))))[:, np.newaxis] * rows
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        return (gradients / np.maximum(1.0, norms / clip)).sum(axis=0)

    return gradient


def loop(X, y: np.ndarray, coef: np.ndarray, clip: float) -> Callable[[], np.ndarray]:
    """Row by row, as a user would write it first."""
    rows = np.hstack([X, np.ones((len(X), 1))])

    def gradient():
        total = np.zeros(len(coef))
        for row, label in zip(rows, y, strict=True):
            own = -label / (1.0 + np.exp(label * (row @ coef))) * row
            total += own / max(1.0, np.linalg.norm(own) / clip)
        return total

    return gradient


def jax_vmap(X, y: np.ndarray, coef: np.ndarray, clip: float) -> Callable[[], np.ndarray] | None:
    """JAX: the clipped gradient of one row, vectorised and compiled."""
    if importlib.util.find_spec("jax") is None:
        return None
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", X.dtype == np.float64)

    def loss(coef, x, label):
        return jnp.logaddexp(0.0, -label * (x @ coef[:-1] + coef[-1]))

    def clipped(coef, x, label):
        gradient = jax.grad(loss)(coef, x, label)
        return gradient / jnp.maximum(1.0, jnp.linalg.norm(gradient) / clip)

    total = jax.jit(lambda *data: jax.vmap(clipped, (None, 0, 0))(*data).sum(axis=0))
    data = [jnp.asarray(array, dtype=X.dtype) for array in (coef, X, y)]
    return lambda: total(*data).block_until_ready()


def torch_vmap(X, y: np.ndarray, coef: np.ndarray, clip: float) -> Callable | None:
    """PyTorch: gradients of all rows by vmap, then clipped."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    def loss(coef, x, label):
        return torch.nn.functional.softplus(-label * (x @ coef[:-1] + coef[-1]))

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    data = [torch.as_tensor(array.astype(X.dtype)) for array in (coef, X, y)]

    def gradient():
        rows = gradients(*data)
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return (rows / torch.clamp(norms / clip, min=1.0)).sum(dim=0)

    return gradient


def softmax(X, y: np.ndarray, coef: np.ndarray, clip: float) -> Callable[[], np.ndarray]:
    """Two library products for K classes."""
    caps = clip / np.sqrt(np.einsum("ij,ij->i", X, X) + 1.0)
    rows = np.arange(len(y))

    def gradient():
        scores = X @ coef[:-1] + coef[-1]
        residuals = np.exp(scores - scores.max(axis=1, keepdims=True))
        residuals /= residuals.sum(axis=1, keepdims=True)
        residuals[rows, y] -= 1.0
        norms = np.sqrt(np.einsum("ij,ij->i", residuals, residuals))
        residuals *= np.minimum(1.0, caps / norms)[:, np.newaxis]
        return np.vstack([X.T @ residuals, residuals.sum(axis=0)])

    return gradient


def line_search(
    X, y: np.ndarray, steps: np.ndarray, clip: float, loss_clip: float
) -> Callable[[], None]:
    """Return an iteration of a line search as one would write it with numpy."""
    rows = np.hstack([X, np.ones((len(X), 1))])
    coef = np.zeros(rows.shape[1])

    def iterate():
        gradients = (-y / (1.0 + np.exp(y * (rows @ coef))))[:, np.newaxis] * rows
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        direction = (gradients / np.maximum(1.0, norms / clip)).sum(axis=0)
        direction /= np.linalg.norm(direction)
        losses = [
            np.minimum(np.logaddexp(0.0, -y * (rows @ (coef - step * direction))), loss_clip).sum()
            for step in steps
        ]
        coef[:] -= steps[np.argmin(losses)] * direction

    return iterate
