"""Values that many records share, found with noise that is paid for, so that each gets a column."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import median_filter
from scipy.special import ndtri

from dpglm.estimators.base import warn_of_delta
from dpglm.estimators.inputs import group_numbers
from dpglm.estimators.plan import ledger_of
from dpglm.privacy.budget import LARGEST_NOISE_MULTIPLIER, PrivacyBudget, is_number
from dpglm.privacy.gaussian import GaussianEvent, gdp_epsilon
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import entropy_source, noise_seed
from dpglm.privacy.odometer import charge_odometers
from dpglm.privacy.vault import GaussianSum, Vault, magnitude_sensitivity
from dpglm.schema.columns import NumericColumn
from dpglm.schema.table import MOST_ENCODED, ROUND, Schema
from dpglm.schema.values import read_columns

# An atom has this part of the records, at least, and so much is spent that it is seen, within
# limits; where the upper one would not show a two-hundredth of them, nothing is spent.
_VISIBLE, _NEEDED = 0.001, 0.005
_LEAST_SHARE, _MOST_SHARE = 0.003, 0.2
_MOST_ATOMS = 64
# Of each column; where bounds are further apart, multiples of 10, 100, ... are counted.
_MOST_VALUES = 2**20
# What a schema says of them, whose other facts follow from no rows.
RELEASED = "(atoms: noisy counts of the rows, released by dpglm.workflow.private_atoms)"
# Around a value, itself included: their median is what it stands out from.
_NEIGHBOURS = 33


@dataclass(frozen=True)
class _Grid:
    """The values of a column that are counted: whole multiples of a unit, a power of ten."""

    column: NumericColumn

    @property
    def unit(self) -> int:
        lower, upper = self.column.bounds
        return 10 ** max(0, math.ceil(math.log10((upper - lower) / _MOST_VALUES)))

    @property
    def multiples(self) -> range:
        lower, upper = (bound / self.unit for bound in self.column.bounds)
        return range(math.ceil(lower), math.floor(upper) + 1)

    def counts(self, numbers: np.ndarray) -> np.ndarray:
        """Return how many numbers have each value, those out of bounds as the bound."""
        multiples = np.clip(numbers, *self.column.bounds) / float(self.unit)
        places = multiples[multiples == np.floor(multiples)] - self.multiples.start
        size = len(self.multiples)
        # By rounding of bounds beyond 2^53 a place may lie outside.
        places = places[(places >= 0) & (places < size)]
        return np.bincount(places.astype(np.intp), minlength=size).astype(float)

    def with_atoms(self, places: np.ndarray) -> NumericColumn:
        """Return the column with the values at some places as atoms, and those it had."""
        found = {int(self.multiples[place]) * self.unit for place in places}
        lower, upper = self.column.bounds
        atoms = sorted({*self.column.atoms, *(a for a in found if lower <= a <= upper)})
        return replace(self.column, atoms=tuple(atoms))


class NumberColumns:
    """Holds the numbers of some columns, NaN for a missing one; what it answers is private."""

    def __init__(self, grids: Sequence[_Grid], numbers: Sequence[np.ndarray]) -> None:
        self._grids, self._numbers = grids, numbers
        self.n_columns, self.n_records = len(grids), len(numbers[0])

    def value_counts(self) -> np.ndarray:
        """Return how many records have which value, of one column after the other."""
        pairs = zip(self._grids, self._numbers, strict=True)
        return np.concatenate([grid.counts(numbers) for grid, numbers in pairs])


class AtomVault(Vault):
    """A vault that releases how many records have which value."""

    def value_counts(self, noise_multiplier: float, size: int) -> np.ndarray:
        """Release how many records have each of some values of each column, with noise, (size,).

        A record has one number in a column, or none, and is counted at most once there. So it moves
        d counts by one when it appears or vanishes, d the number of columns, and 2 d when another
        takes its place: by sqrt(d) in the L2 norm, and sqrt(2 d), as `magnitude_sensitivity` has
        it. Counts are exact in floating point and need no slack.
        """
        sensitivity = magnitude_sensitivity(self._budget.neighboring_relation, self._sums.n_columns)
        mechanism = GaussianSum(sensitivity, float(noise_multiplier))
        return self._release_sum(mechanism, self._sums.value_counts, size)


@dataclass(frozen=True, repr=False)
class PrivateAtoms:
    """A schema with atoms that may be published, and what it cost; made by `private_atoms`.

    Attributes
    ----------
    schema : Schema
        With what was found as the ``atoms`` of its columns; its ``source`` says so.
    left : dict
        What is left of the budget, as parameters of an estimator: ``epsilon``, ``delta``,
        ``neighboring_relation`` and ``n_ref``.
    privacy_ : PrivacyLedger
        Of the counts; without a release where they would have shown nothing.
    """

    schema: Schema
    left: dict[str, Any]
    privacy_: PrivacyLedger

    def __repr__(self) -> str:
        if not self.privacy_.events:
            said = "as n mu is too small to show much; give a share to count all the same"
            return f"<PrivateAtoms: nothing was counted, and all of epsilon is left, {said}>"
        atoms = {c.name: c.atoms for c in self.schema.numeric if c.atoms}
        return f"<PrivateAtoms: {atoms}; {self.privacy_}>"


def private_atoms(
    schema: Schema,
    table: Any,
    *,
    epsilon: float,
    delta: float = 1e-6,
    neighboring_relation: str = "zero_out",
    n_ref: int | None = None,
    share: float | None = None,
    groups: ArrayLike | None = None,
) -> PrivateAtoms:
    """Find values that many records share, such as limits and codes, and give each a column.

    How many records have which whole number is counted, with noise, in each column of numbers whose
    bounds are 1,000 or more apart. What stands out becomes one of the ``atoms`` of its column.

    Parameters
    ----------
    schema : Schema
    table : data frame or dictionary of arrays
        The rows that the model will be fitted to.
    epsilon : float
        Of the counts and of one fit together, above 0; ``inf`` is without noise.
    delta : float, default=1e-6
        The same for the counts, for the fit and for both together.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
    n_ref : int, default=None
        Public stand-in for the number of records; for ``"add_or_remove_one"`` only.
    share : float, default=None
        Part of mu^2 for the counts, above 0 and below 1. None takes what shows a value that a
        thousandth of the records have, from 0.003 to 0.2, and spends nothing where 0.2 would not
        show one of a two-hundredth.
    groups : array-like of shape (n_rows,), default=None
        Whose each row is, if all rows of a person are one record: the first of them is counted.

    Returns
    -------
    PrivateAtoms

    Raises
    ------
    ValueError
        For bad parameters, columns that cannot be read, or a schema without such bounds, before
        anything is released. Whatever fails after the first draw of noise has ``privacy_ledger``.

    Notes
    -----
    A ledger of a fit does not know of the counts: ``found.privacy_ + model.privacy_`` does, or
    `privacy_of` of the list of what was found and a pipeline.

    Guarantee: (epsilon, delta)-differential privacy for the counts and a fit of Gaussian releases
    with the parameters ``left`` together: exactly, as mu^2 is divided between them. What the fit
    may spend was fixed before the counts; only its columns follow from them. The counts are one
    Gaussian release of L2 sensitivity sqrt(d) for d columns, and sqrt(2 d) under
    ``"replace_one"`` (`dpglm.workflow.atoms.AtomVault`); all else follows from it.

    A value stands out if a thousandth of the records have it, beyond the median m of its 32
    neighbours, and more than z standard deviations of the noise and of a count of m; of all values
    that are counted one is expected to reach z by chance. Of such values the 64 that stand out most
    are kept. Where bounds are more than 2^20 apart, multiples of 10, 100, ... are counted alone.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm import DPLogisticRegression, Schema
    >>> from dpglm.schema import NumericColumn, Target
    >>> from dpglm.workflow import private_atoms
    >>> rng = np.random.default_rng(0)
    >>> fees = {"fee": np.where(rng.random(9000) < 0.1, 1480, rng.integers(0, 5000, 9000))}
    >>> schema = Schema("fees", [NumericColumn("fee", 0, 5000)], Target("late", [0, 1]))
    >>> found = private_atoms(schema, fees, epsilon=1.0)
    >>> 1480 in found.schema.columns[0].atoms
    True
    >>> model = DPLogisticRegression(**found.left, classes=schema.classes)
    >>> X = found.schema.transformer().fit_transform(fees)
    >>> model = model.fit(X, fees["fee"] == 1480)
    >>> round((found.privacy_ + model.privacy_).epsilon(), 6)
    1.0
    """
    budget = PrivacyBudget(epsilon, delta, neighboring_relation, n_ref)
    if not isinstance(schema, Schema):
        raise ValueError(f"schema is a {type(schema).__name__}; give a Schema, and then the table.")
    schema.check_filled_in()
    grids = [_Grid(column) for column in schema.numeric if column.upper - column.lower >= ROUND]
    if not grids:
        raise ValueError(
            f"schema {schema.name!r} has no numbers with bounds {ROUND} or more apart."
        )
    holder = _holder(grids, table, groups)
    # What one of all values is expected to reach by standard noise.
    chance = -float(ndtri(1 / sum(len(grid.multiples) for grid in grids)))
    n_records = max(1, budget.public_n_samples(holder.n_records))
    if share is None:
        # How large a part of the records would be seen for all of the budget.
        moves = magnitude_sensitivity(neighboring_relation, len(grids)) / budget.mu
        share = _share(moves * chance / n_records)
    elif not is_number(share) or not 0 < share < 1:
        raise ValueError(f"share={share!r} must be a number above 0 and below 1, or None.")
    left = _left(budget, float(share))
    ledger = _ledger(budget, share, "row" if groups is None else "group")
    if not share:
        return PrivateAtoms(schema, left, ledger)
    warn_of_delta(budget, n_records, stacklevel=3)
    vault = AtomVault(holder, ledger.events, budget, entropy_source())
    charge_odometers(ledger)
    try:
        ((event, _),), sizes = ledger.events, [len(grid.multiples) for grid in grids]
        noisy = vault.value_counts(event.noise_multiplier, sum(sizes))
        std = vault.log[-1].noise_scale
        counts = np.split(noisy, np.cumsum(sizes)[:-1])
        beyond = [_beyond(part, std, chance, n_records) for part in counts]
        return PrivateAtoms(_with_atoms(schema, grids, beyond), left, ledger)
    except BaseException as error:
        if vault.has_drawn or not ledger.protects:
            error.privacy_ledger = ledger  # type: ignore[attr-defined]
        raise


def _holder(grids: Sequence[_Grid], table: Any, groups: Any) -> NumberColumns:
    """Return the holder of the columns that are counted, all of whose values can be read."""
    names = [grid.column.name for grid in grids]
    raw = read_columns(table, names)
    numbers = [grid.column.numbers(raw[grid.column.name]) for grid in grids]
    if groups is not None:
        first = np.unique(group_numbers(groups, numbers[0]), return_index=True)[1]
        numbers = [column[first] for column in numbers]
    return NumberColumns(grids, numbers)


def _share(reached: float) -> float:
    """Return the part of mu^2 for the counts, if all of it shows such a part of the records."""
    if (reached / _NEEDED) ** 2 > _MOST_SHARE:
        return 0.0
    return max(_LEAST_SHARE, min(_MOST_SHARE, (reached / _VISIBLE) ** 2))


def _left(budget: PrivacyBudget, share: float) -> dict[str, Any]:
    """Return what a fit may spend beside counts of this share, and refuse shares of no use."""
    epsilon = budget.epsilon
    asked = f"share={share!r} of epsilon={epsilon:g}"
    if share and budget.mu * math.sqrt(share) * LARGEST_NOISE_MULTIPLIER < 1:
        raise ValueError(f"{asked} is so little that the counts would be all noise; raise either.")
    if share:
        epsilon = gdp_epsilon(budget.mu * math.sqrt(1 - share), budget.delta)
    if not epsilon:
        raise ValueError(
            f"{asked} leaves nothing at delta={budget.delta:g}: delta alone pays for what remains. "
            "Lower share or delta."
        )
    return asdict(budget) | {"epsilon": epsilon}


def _ledger(budget: PrivacyBudget, share: float, unit: str) -> PrivacyLedger:
    """Return what the counts cost, for a share of the budget."""
    one = "each row of the table is one record"
    assumptions = (
        one if unit == "row" else "the rows of one group are one record, of which the first counts",
        "which rows are counted follows from public facts and each row's own identifier",
        "the schema was written without looking at the rows",
        *(() if budget.n_ref is None else ("the number of records is at most 16 n_ref",)),
    )
    events = [GaussianEvent(1 / (budget.mu * math.sqrt(share)))] if share else []
    seeded = bool(events) and noise_seed.get() is not None
    stated = {"assumptions": assumptions, "seeded": seeded, "unit": unit}
    return replace(ledger_of(budget, events), **stated)


def _beyond(counts: np.ndarray, std: float, chance: float, n_records: int) -> np.ndarray:
    """Return by how much each noisy count of a column exceeds what an atom must have."""
    around = np.maximum(median_filter(counts, size=_NEIGHBOURS, mode="mirror"), 0.0)
    return counts - around - np.maximum(_VISIBLE * n_records, chance * np.sqrt(std**2 + around))


def _with_atoms(schema: Schema, grids: Sequence[_Grid], beyond: Sequence[np.ndarray]) -> Schema:
    """Return the schema with the values that stand out, for which a full moment has room."""
    # Steps that the schema adds of itself make room.
    said = {c.name: len(c.edges) for c in schema.numeric}
    added = sum(len(c.edges) - said[c.name] for c in schema.encoded_columns if c.name in said)
    room = MOST_ENCODED - schema.n_encoded + added
    most = min(_MOST_ATOMS, room) if room >= 0 else _MOST_ATOMS
    together = np.concatenate(beyond)
    kept = np.argsort(-together, kind="stable")[:most]
    stands_out = np.zeros(len(together), dtype=bool)
    stands_out[kept] = together[kept] > 0
    places = np.split(stands_out, np.cumsum([len(b) for b in beyond])[:-1])
    pairs = zip(grids, map(np.flatnonzero, places), strict=True)
    found = {grid.column.name: grid.with_atoms(at) for grid, at in pairs}
    columns = [found.get(column.name, column) for column in schema.columns]
    source = schema.source.replace(RELEASED, "").strip()
    return replace(schema, columns=columns, source=f"{source} {RELEASED}".strip())
