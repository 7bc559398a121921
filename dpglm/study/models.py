"""A fitted model as one file of JSON without code, and what the command line does with it."""

import json
import os
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from dpglm.privacy.ledger import PrivacyLedger
from dpglm.schema import Schema
from dpglm.schema.table import plain_path
from dpglm.schema.values import as_listed
from dpglm.sources.csv import read_csv, read_texts
from dpglm.study.methods import PLANNED, REGRESSORS

_FORMAT = {"format": "dpglm model", "version": 1}


def fit_csv(
    path: os.PathLike[str],
    schema: Schema,
    method: str,
    *,
    groups: str | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Fit a table by its schema, and return the model as a document of released plain values.

    The column `groups` names the privacy unit of each row, and is no feature.
    """
    columns = schema.columns
    columns = tuple(c for c in columns if c.name != as_listed(groups, schema.feature_names))
    # The document says how each column is encoded, whatever a later release would choose.
    schema = replace(schema, columns=columns).additive()
    fits_number, has_labels = method in REGRESSORS, schema.target.labels is not None
    kinds = "labels", "a number"
    if fits_number == has_labels:
        others = ", ".join(name for name in PLANNED if (name in REGRESSORS) != fits_number)
        raise ValueError(
            f"{method} predicts {kinds[fits_number]}, and the target of schema {schema.name!r} is "
            f"{kinds[not has_labels]}; choose one of {others}."
        )
    if fits_number and groups is not None:
        raise ValueError(f"groups={groups!r} is for classifiers: a regressor protects single rows.")
    target = {"target_bounds": schema.target.bounds}
    if has_labels:
        target = {"classes": schema.classes.tolist()}
    model = PLANNED[method].with_parameters(**target, **parameters)
    table, persons = read_csv(path, schema), None
    if groups is not None:
        persons = read_texts(path, [groups])[groups].to_numpy()
        if (persons == "").any():
            raise ValueError(
                f"column {groups!r} has a row that is nobody's; name a person in each."
            )
    X = schema.transformer().fit_transform(table.data)
    of_rows = {} if persons is None else {"groups": persons}
    model.fit(X, np.array(table.target.tolist()), **of_rows)
    known = {"range": model.target_range_} if fits_number else {"classes": model.classes_.tolist()}
    return {
        **_FORMAT,
        "method": method,
        "estimator": type(model).__name__,
        "parameters": parameters,
        "schema": schema.to_dict(),
        **known,
        "coef": model.coef_.tolist(),
        "intercept": np.asarray(model.intercept_).tolist(),
        "ledger": model.privacy_.to_dict(),
    }


def read_model(path: os.PathLike[str]) -> tuple[Schema, BaseEstimator]:
    """Return the schema and the fitted estimator of a file that holds what `fit_csv` returned.

    Raises a ValueError if it does not: nothing in the file is run.
    """
    try:
        document = json.loads(plain_path(path).read_bytes())
        if {name: document[name] for name in _FORMAT} != _FORMAT:
            raise ValueError(f"it is of version {document['version']!r} of {document['format']!r}")
        if document["method"] not in PLANNED:
            raise ValueError(f"its method {document['method']!r} is unknown")
        schema = Schema.from_dict(document["schema"])
        model = PLANNED[document["method"]].with_parameters()
        model.coef_ = np.array(document["coef"], dtype=float)
        model.intercept_ = np.array(document["intercept"], dtype=float)
        model.n_features_in_ = schema.n_encoded
        model.privacy_ = PrivacyLedger.from_dict(document["ledger"])
        if document["method"] in REGRESSORS:
            low, high = model.target_range_ = tuple(map(float, document["range"]))
            if not low < high:
                raise ValueError(f"its range {document['range']} is empty")
            scores: tuple[int, ...] = ()
        else:
            model.classes_ = np.array(document["classes"])
            scores = (1 if len(model.classes_) == 2 else len(model.classes_),)
        shapes = model.coef_.shape, model.intercept_.shape
        if shapes != ((*scores, schema.n_encoded), scores):
            raise ValueError(f"coefficients of shape {model.coef_.shape} do not fit its schema")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is no model of dpglm fit: {reason}.") from error
    return schema, model


def predict_csv(
    model_path: os.PathLike[str], path: os.PathLike[str], probabilities: bool = False
) -> list[list[Any]]:
    """Return a head and a row for each row of a table: the prediction, the chances of classes."""
    schema, model = read_model(model_path)
    if probabilities and not hasattr(model, "predict_proba"):
        raise ValueError(f"{type(model).__name__} has no probabilities; fit the logistic loss.")
    X = schema.transformer().fit_transform(read_texts(path, schema.feature_names))
    head, columns = [schema.target.name], [model.predict(X)]
    if probabilities:
        head += [f"chance of {label}" for label in model.classes_]
        columns += list(model.predict_proba(X).T)
    return [head, *map(list, zip(*(column.tolist() for column in columns), strict=True))]
