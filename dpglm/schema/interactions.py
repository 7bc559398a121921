"""Smooth features of several columns at once, drawn from public facts alone."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse

from dpglm.checks import check_whole
from dpglm.schema.columns import Column, Quantity, TextColumn

# Columns of a feature, if none are named.
_ORDER = 4
# Radians from the middle of a column's bounds to one of them. They are multiplied by a Student's t
# with these degrees of freedom, as values may lie in a small part of the bounds.
_FREQUENCY, _DEGREES = 2.0, 2
# Features of each pair that is named.
_PER_PAIR = 16


@dataclass(frozen=True, eq=False)
class InteractionFeatures:
    """Random Fourier features ``sqrt(2 / m) cos(a(x) + b(z) + ... + c)`` of some columns each.

    A number between its bounds has an angle a(x) on a straight line with a random slope. Each
    category, special and missing value has a random angle. See Rahimi & Recht (NIPS 2007). The
    norm of the m features of a row is at most sqrt(2).
    """

    columns: list[tuple[str, ...]]  # of each feature
    weights: np.ndarray  # (n_encoded, m), of the encoded columns that are no free text
    phases: np.ndarray  # (m,)

    squared_norm = 2.0

    @property
    def encoded_names(self) -> list[str]:
        """The names of the features: the columns and a number."""
        return [f"{' x '.join(names)} ({k + 1})" for k, names in enumerate(self.columns)]

    @property
    def groups(self) -> dict[tuple[str, ...], list[int]]:
        """The features of each pair. Features of more columns are one group, of all columns."""
        found: dict[tuple[str, ...], list[int]] = {}
        every = tuple(dict.fromkeys(name for names in self.columns for name in names))
        for k, names in enumerate(self.columns):
            found.setdefault(names if len(names) == 2 else every, []).append(k)
        return found

    def of(self, rows: sparse.csr_array) -> np.ndarray:
        """Return the features (n, m) of encoded rows (n, n_encoded)."""
        rows = rows[:, : len(self.weights)]
        # Cosines of float32 take an eighth of the time.
        angles = (rows @ self.weights + self.phases).astype(np.float32)
        # Rounded down, so that no norm is above that of the schema.
        scale = np.nextafter(np.float32(math.sqrt(2 / len(self.phases))), np.float32(0))
        return np.cos(angles, out=angles) * scale

    def factors(self, own: slice, block: sparse.csr_array) -> np.ndarray:
        """Return the factors ``exp(i a(x))``, (n, m), of the block of one column."""
        no_text = self.weights[own]
        return np.exp(1j * (block[:, : len(no_text)] @ no_text))

    def of_factors(self, product: np.ndarray) -> np.ndarray:
        """Return the features of the products of the factors of all columns."""
        scaled = product * np.exp(1j * self.phases)
        return math.sqrt(2 / len(self.phases)) * scaled.real


def check_interactions(interactions: Any, names: Sequence[str]) -> Any:
    """Return a number, or a tuple of pairs of these names as they are listed."""
    if isinstance(interactions, Integral) and len(names) > 1:
        # A file may ask for any number, and each takes time before a row is read.
        return check_whole("interactions", interactions, at_most=2**16)
    chosen: list[tuple[str, ...]] = []
    # No sets, whose order differs from run to run, nor iterators, which can be read once.
    if isinstance(interactions, list | tuple | np.ndarray):
        with suppress(TypeError, ValueError):  # of what is no pair of these names
            chosen = [tuple(sorted(map(str, pair), key=names.index)) for pair in interactions]
    are_pairs = all(len(pair) == len({*pair}) == 2 for pair in chosen)
    if not (chosen and are_pairs and len({*chosen}) == len(chosen)):
        raise ValueError(
            f"interactions={interactions!r} must be a number, or a list of distinct pairs of two "
            f"of {list(names)}."
        )
    if {" x ".join(order) for pair in chosen for order in (pair, pair[::-1])} & {*names}:
        raise ValueError(f"interactions has {chosen}, and a column has such a name; rename it.")
    return tuple(chosen)


# Not kept by a schema: its pickles would be as large as the weights.
@lru_cache(maxsize=8)
def draw_features(columns: tuple[Column, ...], interactions: Any, seed: int) -> InteractionFeatures:
    """Draw features of four columns each, which are random, or of the pairs that are named."""
    # RandomState, unlike Generator, promises the same stream in every release of numpy.
    rng = np.random.RandomState(seed)
    names = [column.name for column in columns]
    if isinstance(interactions, int):
        able = [k for k, column in enumerate(columns) if not isinstance(column, TextColumn)]
        chosen = [rng.permutation(able)[:_ORDER] for _ in range(interactions)]
    else:
        chosen = [[*map(names.index, pair)] for pair in interactions for _ in range(_PER_PAIR)]
    sizes = [0 if isinstance(c, TextColumn) else len(c.encoded_names) for c in columns]
    starts = np.cumsum([0, *sizes])
    weights = np.zeros((starts[-1], len(chosen)))
    for k, places in enumerate(chosen):
        for place in places:
            angles = rng.uniform(0, 2 * np.pi, starts[place + 1] - starts[place])
            if isinstance(column := columns[place], Quantity):
                angles[: column.n_parts] = 0.0
                slope = 2 * _FREQUENCY * rng.standard_t(_DEGREES)
                angles[0] = slope / (column.height if column.n_parts > 1 else 1.0)
            weights[starts[place] : starts[place + 1], k] = angles
    phases = rng.uniform(0, 2 * np.pi, len(chosen))
    named = [tuple(names[place] for place in sorted(places)) for places in chosen]
    return InteractionFeatures(named, weights, phases)
