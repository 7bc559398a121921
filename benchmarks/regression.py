"""Regression: R^2 and D^2 on test rows, beside three published methods.

Fifteen tables of numbers, those of Lev et al. (2026) with an R^2 of least squares above 0.05, in
their normalisation (rows of norm 1 at most). Each is a file ``<name>.npz`` with ``X``, ``y`` and
``n_train`` in the folder ``DPGLM_DATA``. So are ``abalone.data`` (UCI), ``bike_counts.csv``
(Kaggle) and ``house_prices.parquet`` (King County). Cells of files that are not there are left out.

Protocol: delta 1e-6, three random splits, two draws of noise, the estimators' defaults.
Predictions of every method are cut to the range of y in the training rows. What is public:

- ``none``: nothing;
- ``y``: that range of y;
- ``columns``: also the range of each column, by which columns are mapped to [-1, 1].

A range of training rows leaks. It stands for the public range that a user has.

The peers have y bounds, a column of ones, and rows over sqrt(2), so that norms stay below 1. They
are written from their papers, with the exact noise of a Gaussian mechanism in each part:

- ``adassp``: Wang, "Revisiting differentially private linear regression", UAI 2018, algorithm 2;
- ``ihm``: Lev et al., "Near-optimal private linear regression via iterative Hessian mixing", 2026,
  with their three iterations, and sketches of 6 max(d, log(12 / rho)) rows;
- ``moments``: X'X and X'y once each, half of mu^2 for each, and a ridge at the edge of the noise.

    DPGLM_DATA=folder python benchmarks/regression.py [tables abalone glm near_mean ebm]
        [--public y columns none] [--output cells.jsonl]
"""

import argparse
import json
import math
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq, minimize_scalar
from sklearn.linear_model import GammaRegressor, LinearRegression, PoissonRegressor
from sklearn.metrics import d2_tweedie_score, r2_score

from dpglm import DPGammaRegressor, DPLinearRegression, DPPoissonRegressor, PrivacyBudget

DELTA = 1e-6
EPSILONS = (0.1, 0.25, 0.63, 1.58, 3.98, 10.0)
TABLES = (
    *("bike", "elevators", "parkinsons", "protein", "pol", "sml", "Gas", "wine", "airfoil"),
    *("solar", "crime", "energy", "concrete", "housing", "autompg"),
)
# Cells where n mu is small, or where units of columns were found wrongly while rules were chosen.
NEAR_MEAN = (
    *(("elevators", 0.25, "y"), ("elevators", 0.63, "y"), ("airfoil", 0.1, "y")),
    *(("airfoil", 0.63, "y"), ("solar", 0.1, "y"), ("energy", 0.1, "y"), ("wine", 0.1, "y")),
    *(("autompg", 0.1, "y"), ("housing", 0.1, "y"), ("solar", 0.1, "columns")),
)
PEERS = ("adassp", "ihm", "moments")


def folder():
    """Return the folder of the tables."""
    return Path(os.environ.get("DPGLM_DATA", "."))


# Peers: rows of norm 1 at most with the column of ones, and y in [-1, 1].


def gaussian_noise(epsilon, delta):
    """Return the standard deviation of noise for one release of L2 sensitivity 1."""
    return 1 / PrivacyBudget(epsilon, delta).mu


def symmetric_noise(d, sd, rng):
    """Return a symmetric matrix of noise, the upper triangle independent."""
    upper = np.triu(rng.normal(size=(d, d))) * sd
    return upper + np.triu(upper, 1).T


def adassp(X, y, epsilon, rng):
    """Return coefficients by adaptive sufficient statistics, a third of the budget for each."""
    d, failure = X.shape[1], DELTA / 10
    sd, log = gaussian_noise(epsilon / 3, DELTA / 3), math.log(6 / DELTA)
    moment = X.T @ X
    least = np.linalg.eigvalsh(moment)[0] + sd * (rng.normal() - math.sqrt(log))
    ridge = max(0.0, sd * math.sqrt(d * math.log(2 * d**2 / failure)) - max(0.0, least))
    noisy = moment + symmetric_noise(d, sd, rng) + ridge * np.eye(d)
    return np.linalg.solve(noisy, X.T @ y + sd * rng.normal(size=d))


def mixing_level(k, n_sketches, epsilon, delta):
    """Return the least eigenvalue that sketches of k rows need for (epsilon, delta)."""

    def epsilon_of(level):
        def total(alpha):
            renyi = k / (2 * (alpha - 1)) * (alpha * math.log1p(-1 / level))
            renyi -= k / (2 * (alpha - 1)) * math.log1p(-alpha / level)
            to_delta = math.log(1 / delta) + (alpha - 1) * math.log1p(-1 / alpha) - math.log(alpha)
            return n_sketches * renyi + to_delta / (alpha - 1)

        ends = (1 + 1e-5, level * (1 - 1e-9))
        at = minimize_scalar(lambda u: total(math.exp(u)), bounds=np.log(ends), method="bounded")
        # The release of the least eigenvalue of the moment, by the classical Gaussian mechanism.
        return at.fun + math.sqrt(2 * math.log(1.25 / delta) * k) / level

    solved = brentq(lambda u: epsilon_of(math.exp(u)) - epsilon, math.log(1.01), math.log(1e9))
    return math.exp(solved)


def ihm(X, y, epsilon, rng, n_iter=3):
    """Return coefficients by iterative Hessian mixing."""
    d, failure = X.shape[1], DELTA / 10
    k = int(6 * max(d, math.log(4 * n_iter / failure)))
    level = mixing_level(k, n_iter, epsilon / 2, DELTA / 4)
    sd = gaussian_noise(epsilon / 2, DELTA / 4) * math.sqrt(n_iter)
    moment = X.T @ X
    likely = math.sqrt(2 * math.log(max(4 / DELTA, 4 / failure)))
    least = np.linalg.eigvalsh(moment)[0] - level / math.sqrt(k) * (likely - rng.normal())
    added = max(0.0, level - max(0.0, least))
    # The moment of a Gaussian sketch with noise is Wishart with k degrees of freedom.
    root, coef = np.linalg.cholesky(moment + (added + 1e-9) * np.eye(d)), np.zeros(d)
    for _ in range(n_iter):
        sketch = root @ rng.normal(size=(d, k))
        gradient = X.T @ np.clip(y - X @ coef, -1, 1) + sd * rng.normal(size=d)
        coef = coef + np.linalg.solve(sketch @ sketch.T / k, gradient)
    return coef


def moments(X, y, epsilon, rng):
    """Return coefficients by one noisy X'X and X'y, with exact accounting of both."""
    d, sd = X.shape[1], math.sqrt(2) * gaussian_noise(epsilon, DELTA)
    # In the Frobenius norm an element off the diagonal counts twice.
    noise = symmetric_noise(d, sd / math.sqrt(2), rng) * np.sqrt(1 + np.eye(d))
    noisy = X.T @ X + noise
    values, vectors = np.linalg.eigh(noisy)
    edge = sd * math.sqrt(2 * d)
    values = np.maximum(values, 0) + edge
    return vectors @ (vectors.T @ (X.T @ y + sd * rng.normal(size=d)) / values)


def peer_predictions(name, X, y, X_test, bounds, epsilon, rng):
    """Return what a peer predicts from rows of norm 1 at most, and a public range of y."""
    scale = max(map(abs, bounds))

    def with_ones(rows):
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
        return np.c_[rows, np.ones(len(rows))] / math.sqrt(2)

    return with_ones(X_test) @ globals()[name](with_ones(X), y / scale, epsilon, rng) * scale


# Groups of cells


def splits(name, n_splits=3):
    """Yield the parts of random splits of a table: X, y, X_test, y_test."""
    table = np.load(folder() / f"{name}.npz")
    X, y, n = table["X"].astype(float), table["y"].astype(float), int(table["n_train"])
    for seed in range(n_splits):
        order = np.random.default_rng(seed).permutation(len(y))
        a, b = order[:n], order[n:]
        yield X[a], y[a], X[b], y[b]


def mapped(X, X_test):
    """Map columns to [-1, 1] by the range of the first argument."""
    low, high = X.min(axis=0), X.max(axis=0)
    half = np.where(high > low, (high - low) / 2, 1.0)
    return tuple(np.clip((rows - (low + high) / 2) / half, -1, 1) for rows in (X, X_test))


def ours(X, y, X_test, epsilon, public, bounds):
    """Return the predictions of a default fit, cut as those of the peers are."""
    options = {} if public == "none" else {"target_bounds": bounds}
    if public == "columns":
        X, X_test = mapped(X, X_test)
        options["max_row_norm"] = math.sqrt(X.shape[1] + 1)
    return DPLinearRegression(epsilon=epsilon, delta=DELTA, **options).fit(X, y).predict(X_test)


def tables(publics, n_draws=2):
    """Yield the cells of the fifteen tables: each has its scores by split and draw."""
    for name in TABLES:
        if not (folder() / f"{name}.npz").is_file():
            continue
        rng, found = np.random.default_rng(0), {}
        for X, y, X_test, y_test in splits(name):
            bounds = float(y.min()), float(y.max())

            def note(method, epsilon, predicted, y_test=y_test, bounds=bounds, found=found):
                score = r2_score(y_test, np.clip(predicted, *bounds))
                found.setdefault((method, epsilon), []).append(score)

            note("ols", math.inf, LinearRegression().fit(X, y).predict(X_test))
            for epsilon in EPSILONS:
                for _ in range(n_draws):
                    for public in publics:
                        note(public, epsilon, ours(X, y, X_test, epsilon, public, bounds))
                    for peer in PEERS if "y" in publics else ():
                        parts = peer, X, y, X_test, bounds, epsilon, rng
                        note(peer, epsilon, peer_predictions(*parts))
        for (method, epsilon), scores in found.items():
            yield {"table": name, "method": method, "epsilon": epsilon, "scores": scores}


def near_mean(publics, n_fits=20):
    """Yield cells of 20 fits where a fit may be worse than the mean."""
    for name, epsilon, public in NEAR_MEAN:
        scores = []
        for X, y, X_test, y_test in splits(name, n_splits=n_fits):
            bounds = float(y.min()), float(y.max())
            predicted = np.clip(ours(X, y, X_test, epsilon, public, bounds), *bounds)
            scores.append(r2_score(y_test, predicted))
        yield {
            "table": name,
            "method": f"near mean, {public}",
            "epsilon": epsilon,
            "scores": scores,
        }


def abalone(publics, n_splits=16):
    """Yield Abalone, with public ranges that follow from the units of its columns."""
    table = pd.read_csv(folder() / "abalone.data", header=None)
    y = table[8].to_numpy(float)
    # Length, diameter and height in mm over 200, four weights in g over 200.
    highest = np.array([0.8, 0.65, 0.3, 2.5, 1.2, 0.6, 0.9])
    lengths = np.clip(table.iloc[:, 1:8].to_numpy(float) / highest * 2 - 1, -1, 1)
    X = np.c_[pd.get_dummies(table[0]).to_numpy(float), lengths]
    # One of three indicators is 1.
    longest = math.sqrt(1 + 7 + 1)
    found = {}
    for seed in range(n_splits):
        order = np.random.default_rng(seed).permutation(len(y))
        a, b = order[: int(0.8 * len(y))], order[int(0.8 * len(y)) :]
        known = {"delta": DELTA, "target_bounds": (1, 29), "max_row_norm": longest}
        score = LinearRegression().fit(X[a], y[a]).score(X[b], y[b])
        found.setdefault(("ols", math.inf), []).append(score)
        for epsilon in (0.15, 0.54, 1.58):
            model = DPLinearRegression(epsilon=epsilon, **known).fit(X[a], y[a])
            score = r2_score(y[b], model.predict(X[b]))
            found.setdefault(("columns", epsilon), []).append(score)
    for (method, epsilon), scores in found.items():
        yield {"table": "abalone", "method": method, "epsilon": epsilon, "scores": scores}


def rentals():
    """Return counts of rented bikes by hour: X, y, weights."""
    table = pd.read_csv(folder() / "bike_counts.csv")
    numbers = ["temp", "atemp", "humidity", "windspeed", "holiday", "workingday"]
    rows = table[numbers].to_numpy(float) / [41, 50, 100, 57, 1, 1]
    time = pd.to_datetime(table["datetime"]).dt
    codes = [(time.hour, range(24)), (table["weather"], (1, 2, 3)), (table["season"], range(1, 5))]
    found = [column == value for column, values in codes for value in values]
    X = np.column_stack([rows, *found, time.year == 2012]).astype(float)
    return X, table["count"].to_numpy(float), None


def prices():
    """Return house prices, columns mapped to [-1, 1] by round bounds: X, y, weights."""
    table = pd.read_parquet(folder() / "house_prices.parquet")
    rows = table.drop(columns=["price", "above_median_price"]).to_numpy(float)
    low = np.array([0, 0, 0, 1, 0, 0, 1, 1, 1900, 0])
    high = np.array([10, 8, 10_000, 3.5, 1, 4, 5, 13, 2015, 2015])
    X = 2 * (np.clip(rows, low, high) - low) / (high - low) - 1
    return X, table["price"].to_numpy(float), None


def claims(n=100_000):
    """Return simulated claims of cars, 95 % of the policies without: X, rate, exposure."""
    rng = np.random.default_rng(0)
    age, vehicle, power = (rng.integers(*ends, n) for ends in ((18, 90), (0, 21), (4, 16)))
    bonus = np.clip(rng.exponential(15, n) + 50, 50, 230)
    area, brand, region, gas = (rng.integers(0, k, n) for k in (6, 11, 12, 2))
    exposure = np.where(rng.random(n) < 0.3, 1.0, rng.uniform(0.01, 1, n))
    by_brand = np.array([0, 0.1, -0.1, 0.2, 0, 0, -0.2, 0.1, 0, 0, 0.15])
    score = -2.9 + 0.5 * (age < 25) + 0.25 * (age > 75) + 0.008 * (bonus - 60) - 0.01 * vehicle
    score = score + 0.02 * (power - 8) + 0.08 * area + by_brand[brand] + 0.1 * np.sin(region)
    counts = rng.poisson(np.exp(score) * rng.gamma(2, 0.5, n) * exposure)
    numbers = (age - 50) / 40, (vehicle - 10) / 10, (power - 10) / 6, (bonus - 100) / 100
    codes = np.eye(6)[area], np.eye(11)[brand], np.eye(12)[region]
    X = np.column_stack([*numbers, age < 25, age > 75, gas, *codes]).astype(float)
    return X, counts / exposure, exposure


def glm(publics, n_splits=6, n_fits=50):
    """Yield D^2 of counts, prices and claims, and 50 fits of each at epsilon 1."""
    models = {
        rentals: (DPPoissonRegressor, PoissonRegressor, 1),
        prices: (DPGammaRegressor, GammaRegressor, 2),
        claims: (DPPoissonRegressor, PoissonRegressor, 1),
    }
    for table, (ours_of, theirs_of, power) in models.items():
        found = {}
        try:
            X, y, weights = table()
        except FileNotFoundError:
            continue
        for seed in range(n_fits):
            order = np.random.default_rng(seed).permutation(len(y))
            a, b = order[: int(0.8 * len(y))], order[int(0.8 * len(y)) :]
            exposures = [None if weights is None else weights[part] for part in (a, b)]

            def note(name, model, epsilon, a=a, b=b, both=exposures, data=(X, y, power, found)):
                X, y, power, found = data
                model.fit(X[a], y[a], sample_weight=both[0])
                options = {"sample_weight": both[1], "power": power}
                score = d2_tweedie_score(y[b], model.predict(X[b]), **options)
                found.setdefault((name, epsilon), []).append(score)

            if seed < n_splits:
                note("scikit-learn", theirs_of(alpha=0, max_iter=500), math.inf)
            for epsilon in (0.1, 0.25, 0.5, 1, 3) if seed < n_splits else (1,):
                model = ours_of(epsilon=epsilon, delta=DELTA, max_weight=1)
                note("none", model, epsilon)
        for (method, epsilon), scores in found.items():
            record = {"table": table.__name__, "method": method, "epsilon": epsilon}
            yield record | {"scores": scores}


def ebm(publics):
    """Yield DP-EBM's regressor and ours, curves of 8 segments, on six tables and one split."""
    from interpret.privacy import DPExplainableBoostingRegressor
    from sklearn.pipeline import make_pipeline

    from dpglm.schema import NumericColumn, Schema, Target

    settings = (
        {},
        {"max_rounds": 30},
        {"max_rounds": 100},
        {"max_bins": 8},
        {"learning_rate": 0.1},
    )
    for name in ("bike", "elevators", "parkinsons", "pol", "sml", "protein"):
        if not (folder() / f"{name}.npz").is_file():
            continue
        X, y, X_test, y_test = next(splits(name))
        X, X_test = mapped(X, X_test)
        low, high = float(y.min()), float(y.max())
        columns = [NumericColumn(f"x{j}", -1, 1) for j in range(X.shape[1])]
        schema = Schema(name, columns, Target("y", lower=low, upper=high))
        for epsilon in (0.25, 1.58):
            found = {}
            for number, setting in enumerate(settings):
                model = DPExplainableBoostingRegressor(
                    epsilon=epsilon,
                    delta=DELTA,
                    privacy_bounds=np.tile([-1.0, 1.0], (X.shape[1], 1)),
                    privacy_target_min=low,
                    privacy_target_max=high,
                    n_jobs=1,
                    **setting,
                )
                found[f"ebm {number}"] = model.fit(X, y).predict(X_test)
            rows, new = (pd.DataFrame(part, columns=schema.feature_names) for part in (X, X_test))
            for form, n_segments in (("lines", 1), ("curves of 8", 8)):
                model = make_pipeline(
                    schema.additive(n_segments).transformer(),
                    DPLinearRegression(epsilon=epsilon, delta=DELTA, target_bounds=(low, high)),
                )
                found[form] = model.fit(rows, y).predict(new)
            for method, predicted in found.items():
                score = r2_score(y_test, np.clip(predicted, low, high))
                record = {"table": name, "method": method, "epsilon": epsilon}
                yield record | {"scores": [score]}


def summary(cells):
    """Print means with standard errors, cells won over the best peer, and shares of OLS's R^2."""
    means = {(c["table"], c["method"], c["epsilon"]): np.mean(c["scores"]) for c in cells}
    for c in cells:
        mean, se = np.mean(c["scores"]), np.std(c["scores"]) / math.sqrt(len(c["scores"]))
        label = f"{c['table']:11} {c['method']:18} {c['epsilon']:5g}"
        print(f"{label}  {mean:7.3f} +- {se:.3f}  least {min(c['scores']):.3f}")
    for public in ("y", "columns", "none"):
        won, shares = [], {epsilon: [] for epsilon in EPSILONS}
        for (table, method, epsilon), mean in means.items():
            if method == public and table in TABLES:
                shares[epsilon].append(mean / means[table, "ols", math.inf])
                if (table, PEERS[0], epsilon) in means:
                    won.append(mean > max(means[table, peer, epsilon] for peer in PEERS))
        if any(shares.values()):
            medians = {e: round(float(np.median(s)), 3) for e, s in shares.items() if s}
            print(f"{public}: {sum(won)} of {len(won)} cells won; medians of shares {medians}")


def main():
    """Run groups of cells, and print or store them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    groups = [tables, abalone, glm, near_mean, ebm]
    names = [group.__name__ for group in groups]
    parser.add_argument("groups", nargs="*", default=names[:-1], choices=names)
    parser.add_argument("--public", nargs="+", default=["y", "columns", "none"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    cells = []
    for group in groups:
        if group.__name__ in arguments.groups:
            for cell in group(arguments.public):
                cells.append(cell)
                if arguments.output:
                    with arguments.output.open("a") as file:
                        file.write(json.dumps(cell) + "\n")
    summary(cells)


if __name__ == "__main__":
    main()
