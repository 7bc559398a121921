"""Interactions beside additive terms, and a private choice between the two, on 29 raw tables.

Magic (telescopes), credit, diabetes and two of the American Community Survey are in the folder
``tables`` of ``DPGLM_DATA``, Adult, BANK and KDD Cup 99 (50,000 rows) beside it; the others are
those of ``unseen.py`` (``pip install ".[benchmarks]"``). Default logistic regression at delta 1e-6;
a fifth of the rows is held out, and drawn anew for each repeat. ``--boosting`` and ``--ebm`` add
models without privacy; a fit of EBM takes minutes.

    DPGLM_DATA=folder python benchmarks/interactions.py [--tables magic adult] [--epsilon 1.6]
        [--repeats 3] [--features 256] [--no-search] [--boosting] [--ebm]
"""

import argparse
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from unseen import unseen_tables

from dpglm import DPLogisticRegression, PrivateSearchCV
from dpglm.datasets import fetch_table
from dpglm.exceptions import PrivacyWarning, UtilityWarning
from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target

# Name -> label, the positive class, bounds of numbers that are not 0 and 1, columns left out.
FILES = {
    "magic": ("class", "g", {"Length": (0, 400), "Width": (0, 300), "Size": (1, 6),
              "Asym": (-500, 600), "M3Long": (-400, 300), "M3Trans": (-300, 200),
              "Alpha": (0, 90), "Dist": (0, 500)}, []),
    "credit": ("default.payment.next.month", "yes",
               {"LIMIT_BAL": (0, 1e6), "AGE": (18, 100)}
               | {f"PAY_{k}": (-2, 9) for k in (0, 2, 3, 4, 5, 6)}
               | {f"BILL_AMT{k}": (-2e5, 1e6) for k in range(1, 7)}
               | {f"PAY_AMT{k}": (0, 1e6) for k in range(1, 7)}, ["ID"]),
    "brfss": ("Diabetes_binary", 1, {"BMI": (10, 100), "GenHlth": (1, 5), "MentHlth": (0, 30),
              "PhysHlth": (0, 30), "Age": (1, 13), "Education": (1, 6), "Income": (1, 8)}, []),
    "acs_employment": ("ESR", 1, {"AGEP": (0, 100)}, []),
    "acs_mobility": ("MIG", 1, {"AGEP": (0, 100), "WKHP": (0, 100), "JWMNP": (0, 200),
                     "PINCP": (-20_000, 1_500_000)}, []),
}  # fmt: skip
COUNTED = ("magic", "credit", "brfss")  # numbers throughout; in the others they are codes


def read(name):
    """Return raw rows, labels and schema of a file."""
    label, positive, bounds, left_out = FILES[name]
    table = pd.read_csv(Path(os.environ["DPGLM_DATA"], "tables", f"{name}.csv.gz"))
    table = table.drop(columns=left_out).dropna().reset_index(drop=True)
    y = (table.pop(label) == positive).to_numpy().astype(int)
    columns = []
    for column in table:
        is_number = pd.api.types.is_numeric_dtype(table[column])
        if is_number and (name in COUNTED or column in bounds):
            whole = bool((table[column] % 1 == 0).all())
            columns.append(NumericColumn(column, *bounds.get(column, (0, 1)), integer=whole))
        else:
            table[column] = table[column].astype(str)
            columns.append(CategoricalColumn(column, tuple(sorted(table[column].unique()))))
    return table, y, Schema(name, columns, Target("label", [0, 1]))


def tables(names):
    """Yield name, raw rows, labels of 0 and 1 and schema."""
    for name in FILES:
        if not names or name in names:
            yield name, *read(name)
    for name in ("adult", "bank", "kddcup99"):
        if not names or name in names:
            bunch = fetch_table(name)
            few = np.random.default_rng(0).permutation(len(bunch.data))[:50_000]
            y = (np.asarray(bunch.target) == bunch.schema.target.labels[-1]).astype(int)
            yield name, bunch.data.iloc[few], y[few], bunch.schema
    if not names or {*names} - {*FILES, "adult", "bank", "kddcup99"}:
        yield from (table for table in unseen_tables() if not names or table[0] in names)


def additive(schema, epsilon):
    model = DPLogisticRegression(epsilon=epsilon, delta=1e-6, classes=[0, 1])
    return make_pipeline(schema.transformer(), model)


def references(schema, given):
    """Yield models without privacy, for rows of numbers and codes."""
    kinds = ["nominal" if c in schema.categorical else "continuous" for c in schema.columns]
    coded = [kind == "nominal" for kind in kinds]
    if given.boosting:
        yield "boosting", HistGradientBoostingClassifier(categorical_features=coded, random_state=0)
    if given.ebm:
        from interpret.glassbox import ExplainableBoostingClassifier

        yield "EBM", ExplainableBoostingClassifier(feature_types=kinds, random_state=0, n_jobs=1)


def numbers(rows, schema):
    """Return rows with the codes of categories; no model of them is private."""
    found = {c.name: rows[c.name] for c in schema.columns}
    for column in schema.categorical:
        codes = {str(category): k for k, category in enumerate(column.categories)}
        found[column.name] = rows[column.name].astype(str).map(codes).fillna(-1).clip(upper=254)
    return pd.DataFrame(found).astype(float).to_numpy()


def run(rows, y, schema, given):
    """Return the AUC of each model, (n_repeats,)."""
    found = {}
    plain = additive(schema, given.epsilon)
    models = {"additive": plain, "interactions": clone(plain)}
    models["interactions"].set_params(schemaencoder__interactions=given.features)
    if not given.no_search:
        grid = {"schemaencoder__interactions": [None, given.features]}
        models["chosen"] = PrivateSearchCV(
            plain, grid, classes=[0, 1], epsilon=given.epsilon, delta=1e-6
        )
    coded = numbers(rows, schema) if given.boosting or given.ebm else None
    models |= references(schema, given)
    for repeat in range(given.repeats):
        train, test = train_test_split(
            np.arange(len(y)), test_size=0.2, random_state=repeat, stratify=y
        )
        for name, model in models.items():
            if name in ("boosting", "EBM"):
                scores = clone(model).fit(coded[train], y[train]).predict_proba(coded[test])[:, 1]
            else:
                fitted = clone(model).fit(rows.iloc[train], y[train])
                scores = fitted.decision_function(rows.iloc[test])
            found.setdefault(name, []).append(roc_auc_score(y[test], scores))
    return {name: np.array(aucs) for name, aucs in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--epsilon", type=float, default=1.6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--features", type=int, default=256)
    for flag in ("--no-search", "--boosting", "--ebm"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    for kind in (PrivacyWarning, UtilityWarning):
        warnings.simplefilter("ignore", kind)
    gains, regrets = [], []
    for name, rows, y, schema in tables(given.tables):
        found = run(rows, y, schema, given)
        gain = found["interactions"] - found["additive"]
        error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.nan
        line = f"{name:15} {len(y):6} {gain.mean():+.4f} ± {error:.4f} |"
        line += "".join(f" {model} {aucs.mean():.4f}" for model, aucs in found.items())
        gains.append(gain.mean())
        if "chosen" in found:
            better = max(found["additive"].mean(), found["interactions"].mean())
            regrets.append(better - found["chosen"].mean())
            line += f" | behind the better {regrets[-1]:.4f}"
        print(line, flush=True)
    print(f"gain: mean {np.mean(gains):+.4f}, least {min(gains):+.4f}", end="")
    print(f"; choice behind the better: at most {max(regrets):.4f}" if regrets else "")


if __name__ == "__main__":
    main()
