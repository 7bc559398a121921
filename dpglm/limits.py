"""Limits of what is worth releasing, and of what is drawn and summed exactly."""

__all__ = ["CLIP_RANGE", "LARGEST_NOISE_MULTIPLIER", "N_REF_FACTOR"]

# When every iteration is noisier than this, no data set is large enough to learn anything.
LARGEST_NOISE_MULTIPLIER = 1e6
# Rounding is bounded for so many times n_ref records, when their number is private.
N_REF_FACTOR = 16
CLIP_RANGE = (1e-100, 1e100)
