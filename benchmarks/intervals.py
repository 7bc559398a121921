"""Coverage of the intervals of private logistic regression, over simulated tables.

    python benchmarks/intervals.py --results intervals.jsonl           # goes on
    python benchmarks/intervals.py --results intervals.jsonl --table   # prints

Each table is drawn anew from a population whose coefficients are known, fitted with
``inference_fraction=0.5``, delta 1e-6 and all defaults, and every interval of level .95 is compared
with the truth: the true coefficients, or those that the model without the columns that were left
out has in the population, of rows with their weights. Thresholds of `dpglm.estimators.debiasing`
were chosen on these populations, with other seeds; ``--seed`` draws tables that nobody has seen.

What is printed of each cell: the share of tables and coefficients that are not refused; coverage on
average over all intervals, with its standard error over tables (those of one table hang together);
the lowest and the highest coverage of one coefficient that was given in at least half of the
tables, with what chance alone would make of the lowest and highest of so many (5 and 95 percent of
binomial draws); coverage of the plug-in intervals, which leave out the noise of privacy; and the
median width over that of the plug-in and over that without privacy (the information of 60,000
other rows). A cell ends after 30 tables if nothing was given in any. The relation
``"add_or_remove_one"`` has the noise of ``"zero_out"``.
"""

import argparse
import json
import math
import sys
import time
import warnings
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import expit

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.estimators.debiasing import _chosen_basis
from dpglm.schema import load_schema

Z = 1.959964
# Rows that say what the model without the columns left out has in the population: its own error
# must be small beside that of the largest tables. Of fewer the curvature is right to a percent.
_TRUE_ROWS, _CURVATURE_ROWS = 600_000, 60_000
# Tables after which a cell without any interval is done with.
_ENOUGH = 30
SMALL = ("age", "hours", "household", "housing", "sex", "education")


class Cell(NamedTuple):
    """One population, size, budget and relation."""

    design: str
    n: int
    epsilon: float
    relation: str


class Gaussian:
    """Correlated normal columns (autoregressive, .5), log-odds of this standard deviation."""

    schema = references = None

    def __init__(self, n_features, spread=1.5):
        self.d = n_features
        lags = np.abs(np.subtract.outer(range(n_features), range(n_features)))
        covariance = 0.5**lags
        self.root = np.linalg.cholesky(covariance)
        w = np.linspace(-1.0, 1.0, n_features)
        # Rows have norms of about 2, as nothing is known of their bound.
        self.scale = 2.0 / math.sqrt(n_features)
        self.coef = np.append(spread * w / math.sqrt(w @ covariance @ w) / self.scale, -0.5)

    def draw(self, n, rng):
        X = self.scale * rng.standard_normal((n, self.d)) @ self.root.T
        return X, (rng.random(n) < expit(X @ self.coef[:-1] + self.coef[-1])).astype(int)

    contrast: ClassVar = {"x1": 1.0, "x2": -1.0}

    def reference(self):
        return self.draw(500, np.random.default_rng(1))[0], "x2", self.scale, -self.scale


class Census:
    """`make_census`, or some of its columns with their true coefficients."""

    def __init__(self, columns=None):
        schema, at, kept = load_schema("census").additive(1), 0, []
        for column in schema.encoded_columns:
            width = len(column.encoded_names)
            if columns is None or column.name in columns:
                kept += range(at, at + width)
            at += width
        chosen = [c for c in schema.columns if columns is None or c.name in columns]
        self.schema = type(schema)(schema.name, chosen, schema.target, schema.source)
        self.kept = kept
        w = make_census(1, random_state=0, coef=True)[2]
        self.coef = np.append(w[kept], w[-1] if columns is None else -1.5)

    def draw(self, n, rng):
        X = make_census(n, random_state=int(rng.integers(2**31)))[0][:, self.kept]
        return X, (rng.random(n) < expit(X @ self.coef[:-1] + self.coef[-1])).astype(int)

    contrast: ClassVar = {"household_single": 1.0, "household_divorced": -1.0}
    # In small tables "single" may look as frequent.
    references: ClassVar = {"household": "married"}

    def reference(self):
        frame = make_census(500, random_state=1, as_frame=True)[0]
        return frame[self.schema.feature_names], "sex", "female", "male"


DESIGNS = {
    "gauss5": lambda: Gaussian(5),
    "gauss10": lambda: Gaussian(10),
    "census5": lambda: Census(SMALL),
    "census": Census,
    # Columns that nearly tell the label: the best accuracy is .91, .94 and .96.
    **{f"steep{spread}": lambda spread=spread: Gaussian(5, spread) for spread in (6, 9, 14)},
}
# Cheap cells first; 500 tables each.
CELLS = [
    Cell(design, n, epsilon, relation)
    for n in (5000, 40_000, 200_000)
    for design in DESIGNS
    for epsilon in (0.1, 1.0, 8.0)
    for relation in ("zero_out", "replace_one")
]


def found_in(inference, population):
    """Return values, errors and their sampling part: parameters, a contrast, a risk difference."""
    tables = [
        inference.estimates,
        inference.t_test(population.contrast),
        inference.risk_difference(*population.reference()),
    ]
    names = [name for table in tables for name in table.names]
    return names, *(
        np.concatenate([getattr(table, name) for table in tables])
        for name in ("value", "std_error", "sampling_error")
    )


@cache
def rows_of(design):
    """Return rows of a population, and the true probabilities of the second class."""
    population = DESIGNS[design]()
    X, _ = population.draw(_TRUE_ROWS, np.random.default_rng(7))
    X = np.column_stack([X, np.ones(len(X))])
    return X, expit(X @ population.coef)


def truth(inference, population, cell, basis, squared_bound):
    """Return the true values, and the standard errors of a fit without privacy.

    Without some columns the model is wrong, and its coefficients are those of rows with the weights
    that long ones have.
    """
    rows, true = rows_of(cell.design)
    left_out, coef = inference.released.left_out, np.array(population.coef)
    X, n, weights = rows[:_CURVATURE_ROWS] * ~left_out, cell.n, np.ones(len(rows))
    if left_out.any():
        # The estimate is so near that a curvature there, of some rows, leads on to the truth.
        coef = inference.released.coef.copy()
        if basis is not None:
            length = sum(np.square(rows @ part).sum(axis=1) for part in np.array_split(basis, 4, 1))
            weights = np.minimum(1.0, squared_bound / length)
        p = expit(X @ coef)
        hessian = X.T @ ((weights[: len(X)] * p * (1 - p))[:, np.newaxis] * X) / len(X)
        inverse = np.linalg.pinv(hessian, hermitian=True)
    for _ in range(4 * left_out.any()):
        gradient = rows.T @ (weights * (true - expit(rows @ coef))) / len(rows)
        coef += ~left_out * (inverse @ gradient)
    p = expit(X @ coef)
    information = X.T @ ((p * (1 - p))[:, np.newaxis] * X) * n / len(X)
    values, vectors = np.linalg.eigh(information)
    shown = values > 1e-9 * values[-1]
    exact = replace(
        inference.released,
        coef=coef,
        left_out=np.zeros(len(coef), dtype=bool),
        basis=vectors[:, shown],
        curvature=np.diag(values[shown]),
        inverse=np.diag(1 / values[shown]),
        seen=np.ones(shown.sum(), dtype=bool),
        directions=np.eye(shown.sum()),
        noise_std=0.0,
    )
    _, value, error, _ = found_in(replace(inference, released=exact), population)
    return value, error


def run(cell, repeats, path, population, seed):
    """Draw and fit tables, from where the file ends, and append a line for each."""
    rows = [line for line in lines(path) if tuple(line["cell"]) == tuple(cell)]
    n_given = sum(x is not None for line in rows for x in line.get("z", ()))
    for repeat in range(len(rows), repeats):
        if repeat >= _ENOUGH and not n_given:
            return
        rng = np.random.default_rng([repeat, cell.n, list(DESIGNS).index(cell.design), seed])
        X, y = population.draw(cell.n, rng)
        model = DPLogisticRegression(
            epsilon=cell.epsilon,
            neighboring_relation=cell.relation,
            inference_fraction=0.5,
            classes=[0, 1],
        )
        line = {"cell": list(cell), "repeat": repeat}
        try:
            inference = model.fit(X, y).inference(
                schema=population.schema, references=population.references
            )
        except ValueError as error:
            append(path, line | {"refused": str(error)})
            return
        names, value, error, sampling = found_in(inference, population)
        n_given += np.isfinite(value).sum()
        plan = model.plan(cell.n, X.shape[1])
        basis, _, squared_bound, _ = _chosen_basis(plan, model.trace_, True) or (None,) * 4
        true, plain = truth_of(inference, population, cell, basis, squared_bound)
        z = (value - true) / error
        rounded = [[None if math.isnan(x) else round(float(x), 4) for x in z]]
        rounded += [
            [None if math.isnan(x) else round(float(x), 4) for x in ratio]
            for ratio in (sampling / error, plain / error)
        ]
        line |= dict(zip(("z", "sampling", "plain"), rounded, strict=True))
        append(path, (line | {"names": names}) if repeat == 0 else line)


_TRUTHS = {}


def truth_of(inference, population, cell, basis, squared_bound):
    """Return `truth`, computed once for each model that inference may choose.

    If the model is right, or nothing is given, neither weights nor the basis matter.
    """
    left_out = inference.released.left_out
    key = cell.design, cell.n, tuple(inference.names), left_out.tobytes()
    key += (basis.tobytes(),) if left_out.any() and basis is not None else ()
    if key not in _TRUTHS:
        _TRUTHS.clear()
        _TRUTHS[key] = truth(inference, population, cell, basis, squared_bound)
    return _TRUTHS[key]


def lines(path):
    return map(json.loads, path.read_text().splitlines()) if path.exists() else []


def append(path, line):
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def table(path):
    """Print a line for each cell."""
    cells = defaultdict(list)
    for line in lines(path):
        cells[tuple(line["cell"])].append(line)
    print(
        "design    n       epsilon relation     tables given  coverage        lowest, highest of "
        "one (chance)    plug-in  width/plug-in  width/not private"
    )
    for cell, rows in cells.items():
        head = f"{cell[0]:<9} {cell[1]:<7} {cell[2]:<7g} {cell[3]:<12}"
        if "refused" in rows[0]:
            print(f"{head} refused before the fit")
            continue
        # A rare table has another reference, and other parameters.
        size = len(rows[0]["z"])
        rows = [row for row in rows if len(row["z"]) == size]
        z, sampling, plain = (
            np.array([row[key] for row in rows], dtype=float) for key in ("z", "sampling", "plain")
        )
        given = np.isfinite(z)
        if not given.any():
            print(f"{head} {len(rows):>6} all are refused after the second moment")
            continue
        hit, bare = np.abs(z) < Z, np.abs(z) < Z * sampling
        share = given.sum(axis=1)
        own = np.divide(
            (hit & given).sum(axis=1), share, out=np.full(len(z), np.nan), where=share > 0
        )
        error = np.nanstd(own) / math.sqrt(np.isfinite(own).sum())
        often = np.flatnonzero(given.mean(axis=0) > 0.5)
        each = [hit[given[:, j], j].mean() for j in often] or [math.nan]
        rng = np.random.default_rng(0)
        drawn = rng.binomial(len(z), 0.95, (2000, max(1, len(often)))) / len(z)
        low = np.quantile(drawn.min(axis=1), 0.05)
        high = np.quantile(drawn.max(axis=1), 0.95)
        print(
            f"{head} {len(rows):>6} {given.mean():5.2f}  {hit[given].mean():.4f} ±{error:.4f}  "
            f"{min(each):.3f}, {max(each):.3f} ({low:.3f}, {high:.3f})          "
            f"{bare[given].mean():.3f}    {1 / np.median(sampling[given]):.2f}           "
            f"{1 / np.median(plain[given]):.2f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("intervals.jsonl"))
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--cells", default="", help="such as gauss5,40000,1; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="print what the file holds")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = options.cells.split(",") if options.cells else []
    if not options.table:
        for cell in CELLS:
            if all(
                w in (cell.design, str(cell.n), f"{cell.epsilon:g}", cell.relation) for w in wanted
            ):
                start = time.perf_counter()
                run(cell, options.repeats, options.results, DESIGNS[cell.design](), options.seed)
                print(cell, f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    table(options.results)


if __name__ == "__main__":
    main()
