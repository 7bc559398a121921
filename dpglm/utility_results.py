"""What a utility graph found: the score of each setting, and the setting to use."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata
from sklearn.base import BaseEstimator

from dpglm.settings import configured, setting_text, value_text

if TYPE_CHECKING:
    import pandas

    from dpglm.plotting.utility import UtilityGraphDisplay

__all__ = ["SCORES", "UtilityCell", "UtilityGraphResults"]

SCORES = {"accuracy": "accuracy", "auc": "AUC", "loss": "loss"}
"""What is measured of each fit, with its title; a lower loss is better."""


@dataclass(frozen=True)
class UtilityCell:
    """One setting and its scores.

    Parameters
    ----------
    params : mapping from str to object
        The setting.
    scores : mapping from str to tuple of float
        For each of `SCORES` its value in each repeat; empty if a fit failed.
    error : str or None, default=None
        Why a fit failed.

    Examples
    --------
    >>> from dpglm.utility_results import UtilityCell
    >>> UtilityCell({"max_iter": 10}, {"accuracy": (0.5, 0.75), "auc": (0.5,) * 2}).n_repeats
    2
    """

    params: Mapping[str, Any]
    scores: Mapping[str, tuple[float, ...]]
    error: str | None = None

    @property
    def n_repeats(self) -> int:
        """Number of finished fits."""
        return len(next(iter(self.scores.values()), ()))


@dataclass(frozen=True, eq=False)
class UtilityGraphResults:
    """The scores of a grid of settings, from `UtilityGraph.run`.

    Parameters
    ----------
    estimator : estimator
        Unfitted; what the settings are applied to.
    cells : tuple of UtilityCell
        One per setting, in the order of the grid; at least one without an error.
    n_samples : int
        Number of records that the settings were tried for.

    Notes
    -----
    The recommended setting has the lowest mean rank: in each repeat the settings are ranked by
    accuracy, by AUC and by loss (1 is the best), and the ranks are averaged. All settings see the
    same rows in a repeat, so that a repeat with easy or hard rows changes no rank. Accuracy alone
    is too coarse where most rows are in one class, and loss alone weighs outliers that other data
    do not have; what is good in all three respects carries over best to data that were not seen.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.utility_results import UtilityCell, UtilityGraphResults
    >>> results = UtilityGraphResults(
    ...     DPLogisticRegression(),
    ...     (
    ...         UtilityCell({"max_iter": 10}, {"accuracy": (0.7,), "auc": (0.7,), "loss": (0.6,)}),
    ...         UtilityCell({"max_iter": 90}, {"accuracy": (0.8,), "auc": (0.8,), "loss": (0.5,)}),
    ...     ),
    ...     n_samples=1000,
    ... )
    >>> results.recommended_params
    {'max_iter': 90}
    >>> results.recommended_estimator()
    DPLogisticRegression(max_iter=90)
    """

    estimator: BaseEstimator
    cells: tuple[UtilityCell, ...]
    n_samples: int

    @property
    def recommended_index(self) -> int:
        """Number of the recommended setting in ``cells``."""
        ranks = self._ranks().mean(axis=1)
        return self._measured[int(np.argmin(ranks))]

    @property
    def recommended_params(self) -> dict[str, Any]:
        """The recommended setting."""
        return dict(self.cells[self.recommended_index].params)

    def recommended_estimator(self) -> BaseEstimator:
        """Return the estimator at the recommended setting, ready to be fitted to private data.

        Returns
        -------
        estimator
            A new one in each call, unfitted.
        """
        return configured(self.estimator, self.recommended_params)

    @property
    def errors(self) -> list[UtilityCell]:
        """The settings that cannot be fitted."""
        return [cell for cell in self.cells if cell.error is not None]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per setting, in the order of the grid.

        Returns
        -------
        list of dict
            ``setting``, the parameters as text, and one entry per parameter of the grid,
            ``param_`` and its name; the mean over the repeats of each of `SCORES` and of
            ``rank``, its standard error under the name with ``_se``, and with ``_gap_se`` that of
            its difference from the recommended setting's, in which what a repeat does to all
            settings cancels; ``n_repeats``, ``recommended`` and ``error``. Means are None beside
            an error, and standard errors also after a single repeat.
        """
        best = self.recommended_index
        ranks = dict(zip(self._measured, self._ranks(), strict=True))
        reference = {**self.cells[best].scores, "rank": ranks[best]}
        rows = []
        for i, cell in enumerate(self.cells):
            row: dict[str, Any] = {"setting": setting_text(cell.params)}
            row |= {f"param_{name}": value for name, value in self._values(cell).items()}
            found = {**cell.scores, "rank": ranks[i]} if i in ranks else {}
            for name, best_values in reference.items():
                values = np.asarray(found.get(name, ()))
                row[name], row[f"{name}_se"] = _mean(values)
                gap = values - best_values if len(values) else values
                row[f"{name}_gap_se"] = _mean(gap)[1]
            row |= {"n_repeats": cell.n_repeats, "recommended": i == best, "error": cell.error}
            rows.append(row)
        return rows

    def to_frame(self) -> "pandas.DataFrame":
        """Return `rows` as a frame.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            Without pandas; ``pip install "dpglm[data]"``.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                'UtilityGraphResults.to_frame needs pandas: pip install "dpglm[data]".'
            ) from error
        return pd.DataFrame(self.rows())

    def headline(self) -> str:
        """Return the budget and the size of the simulation, in words."""
        n_repeats = self.cells[self.recommended_index].n_repeats
        return (
            f"{self._budget()}{self.n_samples:,} records: {len(self.cells)} settings x "
            f"{n_repeats} fit{'s' if n_repeats != 1 else ''}"
        )

    def table(self, n_best: int = 10) -> str:
        """Return a plain-text table of the best settings, and of those that cannot be fitted.

        Parameters
        ----------
        n_best : int, default=10
            How many settings to list.

        Returns
        -------
        str
            Best mean rank first, which is the recommended setting.
        """
        rows = self.rows()
        measured = sorted((row for row in rows if row["error"] is None), key=lambda r: r["rank"])
        varied = self.varied()
        columns = [["rank", *(f"{row['rank']:.1f}" for row in measured[:n_best])]]
        for name, title in SCORES.items():
            columns.append([title, *(_text(row, name) for row in measured[:n_best])])
        for name in varied:
            values = (value_text(row[f"param_{name}"]) for row in measured[:n_best])
            columns.append([name, *values])
        widths = [max(map(len, column)) for column in columns]
        lines = [
            "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
            for line in zip(*columns, strict=True)
        ]
        lines.insert(0, self.headline())
        if len(measured) > n_best:
            lines.append(f"and {len(measured) - n_best} more")
        for error, n in Counter(cell.error for cell in self.errors).items():
            lines.append(f"{n} setting{'s' if n != 1 else ''} cannot be fitted: {error}")
        return "\n".join(lines)

    def varied(self) -> list[str]:
        """Return the names of the parameters that are not the same in all settings."""
        values = [self._values(cell) for cell in self.cells]
        return [n for n in values[0] if len({value_text(own[n]) for own in values}) > 1]

    def plot(self, **options: Any) -> "UtilityGraphDisplay":
        """Draw the scores over each parameter.

        Parameters
        ----------
        **options
            As for ``UtilityGraphDisplay.from_results``.

        Returns
        -------
        UtilityGraphDisplay

        Raises
        ------
        ImportError
            Without matplotlib; ``pip install "dpglm[plot]"``.
        """
        from dpglm.plotting.utility import UtilityGraphDisplay

        return UtilityGraphDisplay.from_results(self, **options).plot()

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<UtilityGraphResults: {self.headline()}, recommended {self.recommended_params}>"

    def _values(self, cell: UtilityCell) -> dict[str, Any]:
        """Return the value of every parameter of the grid; what a setting leaves out included."""
        names = dict.fromkeys(name for other in self.cells for name in other.params)
        values = configured(self.estimator, cell.params).get_params()
        return {name: values.get(name, "") for name in names}

    @property
    def _measured(self) -> list[int]:
        return [i for i, cell in enumerate(self.cells) if cell.error is None]

    def _ranks(self) -> np.ndarray:
        """Return the rank of each measured setting in each repeat, averaged over the scores."""
        cells = [self.cells[i] for i in self._measured]
        by_score = [
            rankdata(
                np.array([c.scores[name] for c in cells]) * (1 if name == "loss" else -1), axis=0
            )
            for name in SCORES
        ]
        return np.mean(by_score, axis=0)

    def _budget(self) -> str:
        values = self.estimator.get_params()
        parts = [
            f"{name} {values[full]:g}"
            for name in ("epsilon", "delta")
            for full in values
            if full == name or full.endswith(f"__{name}")
        ]
        return "".join(f"{part}, " for part in parts)


def _mean(values: Any) -> tuple[float | None, float | None]:
    """Return mean and standard error."""
    if len(values) == 0:
        return None, None
    if len(values) == 1:
        return float(values[0]), None
    # Steps that are far too long can end in losses whose squares overflow.
    with np.errstate(over="ignore"):
        return float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _text(row: Mapping[str, Any], name: str) -> str:
    error = row[f"{name}_se"]
    return f"{row[name]:.4f}" + ("" if error is None else f" ±{error:.4f}")
