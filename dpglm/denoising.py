"""What a noisy second moment says about the features, apart from its noise."""

import math

import numpy as np

__all__ = ["denoised_moment"]


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
