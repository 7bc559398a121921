"""Public facts: what schedules and plans may know, none of it computed from unreleased data."""

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["PublicFacts"]


@dataclass(frozen=True, eq=False)
class PublicFacts:
    """What a schedule may know; nothing here depends on private data, and None is not yet known.

    Parameters
    ----------
    n_samples, n_features, n_outputs : int
        Number of records (the public reference count where it is private), length of a row with
        its intercept, and columns of the coefficients: 1 for two classes, K for K classes.
    alpha, curvature, row_bound : float, optional
        L2 penalty, largest second derivative of the loss in the score (inf for the hinge), and
        largest L2 norm of a row, intercept included.
    mu, clip, noise_std : float and two ndarrays of shape (n_iter,), optional
        Gaussian differential privacy budget of the gradients (with mini-batches: that of the same
        epsilon and delta), clip norms, and standard deviations
        of the noise on the sum of gradients; a plan fills them in this order.
    effective_dimension : float, optional
        How many directions of the features stand out from the noise, as released by a
        preconditioner; None before that release, and without one.
    sampling_rate : float, default=1.0
        Chance of each record to be in the batch of an iteration; 1 for all of them.

    Examples
    --------
    >>> PublicFacts(n_samples=1000, n_features=11, n_outputs=3).n_released
    33
    """

    n_samples: int
    n_features: int
    n_outputs: int = 1
    alpha: float = 0.0
    curvature: float | None = None
    row_bound: float | None = None
    mu: float | None = None
    clip: np.ndarray | None = None
    noise_std: np.ndarray | None = None
    effective_dimension: float | None = None
    sampling_rate: float = 1.0

    @property
    def expected_batch_size(self) -> float:
        """Public expected number of records in a batch, which sums of gradients are divided by."""
        return self.n_samples * self.sampling_rate

    @property
    def n_released(self) -> int:
        """Number of values in one released gradient."""
        return self.n_features * self.n_outputs

    def smoothness(self, row_bound: float | None = None) -> float:
        """Lipschitz constant of the objective's gradient, ``curvature * row_bound^2 + alpha``."""
        row_bound = self.row_bound if row_bound is None else row_bound
        for name, value in (("row_bound", row_bound), ("curvature", self.curvature)):
            if value is None or not 0 < value < math.inf:
                raise ValueError(
                    f"it needs a finite {name}, got {value!r}. row_bound is the largest L2 norm "
                    "that a row, intercept included, can have; a hinge loss has no curvature."
                )
        return self.curvature * row_bound**2 + self.alpha

    def condition_number(self, row_bound: float | None = None) -> float:
        """Smoothness over strong convexity, which is the penalty's alone."""
        if not self.alpha > 0:
            raise ValueError(f"it needs a positive alpha, got {self.alpha!r}.")
        return self.smoothness(row_bound) / self.alpha
