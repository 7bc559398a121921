"""A linear model of a table as one file: coefficients, schema and ledger in JSON, and no code."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from dpglm.datasets import read_csv, read_texts
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.schema import Schema
from dpglm.study.methods import PLANNED, make_estimator

_FORMAT, _VERSION = "dpglm model", 1


def fit_csv(
    path: os.PathLike[str],
    schema: Schema,
    method: str,
    target: str | None,
    *,
    groups: str | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Fit a table by its schema, and return the document of the model: plain values, all released.

    The parameters are those of the estimator; labels are those of the schema. The column `groups`
    says whose row each is, and is no feature.
    """
    columns = tuple(column for column in schema.columns if column.name != groups)
    named = schema.target if target is None else replace(schema.target, name=target)
    schema = replace(schema, columns=columns, target=named)
    # A draft is refused before any row is read.
    model = make_estimator(method, classes=schema.classes.tolist(), **parameters)
    table, by_person = read_csv(path, schema), {}
    if groups is not None:
        by_person["groups"] = read_texts(path, [groups])[groups].to_numpy()
        if (by_person["groups"] == "").any():
            raise ValueError(
                f"column {groups!r} has a row that is nobody's; name a person in each."
            )
    X, y = schema.transformer().fit_transform(table.data), np.array(table.target.tolist())
    model.fit(X, y, **by_person)
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "method": method,
        "estimator": type(model).__name__,
        "parameters": parameters,
        "schema": schema.to_dict(),
        "classes": model.classes_.tolist(),
        "coef": model.coef_.tolist(),
        "intercept": model.intercept_.tolist(),
        "ledger": model.privacy_.to_dict(),
    }


def read_model(path: os.PathLike[str]) -> tuple[Schema, BaseEstimator]:
    """Return the schema and the fitted estimator of a file that holds what `fit_csv` returned.

    Raises a ValueError if it does not: nothing in the file is run.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError("it is a list or a value")
        if (document["format"], document["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"it is of version {document['version']!r} of {document['format']!r}")
        if document["method"] not in PLANNED:
            raise ValueError(f"its method {document['method']!r} is unknown")
        schema = Schema.from_dict(document["schema"])
        model = make_estimator(document["method"])
        model.classes_ = np.array(document["classes"])
        model.coef_ = np.array(document["coef"], dtype=float)
        model.intercept_ = np.array(document["intercept"], dtype=float)
        model.n_features_in_ = schema.n_encoded
        model.privacy_ = PrivacyLedger.from_dict(document["ledger"])
        n_scores = 1 if len(model.classes_) == 2 else len(model.classes_)
        shapes = model.coef_.shape, model.intercept_.shape
        if shapes != ((n_scores, schema.n_encoded), (n_scores,)):
            raise ValueError(f"coefficients of shape {model.coef_.shape} do not fit its schema")
    except (ValueError, TypeError, KeyError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is no model of dpglm fit: {reason}.") from error
    return schema, model


def predict_csv(
    model_path: os.PathLike[str], path: os.PathLike[str], probabilities: bool = False
) -> list[list[Any]]:
    """Return a head and a row for each row of a table: the class, and the chance of each class."""
    schema, model = read_model(model_path)
    if probabilities and not hasattr(model, "predict_proba"):
        raise ValueError(f"{type(model).__name__} has no probabilities; fit the logistic loss.")
    frame = read_texts(path, schema.feature_names)
    X = schema.transformer().fit_transform(frame)
    head, columns = [schema.target.name], [model.predict(X)]
    if probabilities:
        head += [f"chance of {label}" for label in model.classes_]
        columns += list(model.predict_proba(X).T)
    return [head, *map(list, zip(*(column.tolist() for column in columns), strict=True))]
