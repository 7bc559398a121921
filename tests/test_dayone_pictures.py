"""First-day habits from other libraries, and how results print, in a terminal and a notebook."""

import copy
import importlib
import inspect
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import dpglm
from dpglm import (
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyOdometer,
    PrivateSearchCV,
    Schema,
    baselines,
    load_schema,
    make_census,
    private_scores,
    seeded_noise,
)
from dpglm.audit import audit_estimator
from dpglm.exceptions import instead_of
from dpglm.schema import CategoricalColumn, NumericColumn, Target
from dpglm.study import (
    PrivacyReport,
    expected_accuracy,
    expected_errors,
)
from dpglm.study.shapes import terms_of
from dpglm.workflow import PrivateCalibratedClassifier

ESTIMATORS = [
    DPLogisticRegression, DPLinearSVM, dpglm.DPAGDClassifier, PrivateSearchCV,
    PrivateCalibratedClassifier, *(getattr(baselines, name) for name in baselines.__all__),
]  # fmt: skip


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_dayone_parameters_of_other_libraries_are_answered_by_what_there_is(estimator):
    known = [*inspect.signature(estimator).parameters]
    search = estimator in (PrivateSearchCV, PrivateCalibratedClassifier)
    given = {"estimator": DPLogisticRegression()} if search else {}
    given |= {"param_grid": {}} if estimator is PrivateSearchCV else {}
    model = estimator(**given)
    for name in [*instead_of("parameters"), "eps"]:
        if name not in known:
            sentence = instead_of("parameters").get(name, "its parameters are ")
            with pytest.raises(TypeError, match=f"Invalid parameter '{name}' for ") as built:
                estimator(**given, **{name: 1})
            with pytest.raises(ValueError, match=f"Invalid parameter '{name}' for ") as set_:
                model.set_params(**{name: 1})
            assert sentence in str(built.value) and sentence in str(set_.value)
    if not search:
        with pytest.raises(TypeError, match="by name: "):
            estimator(1.0)
    # scikit-learn and copies read the constructor itself.
    assert known == [*inspect.signature(estimator.__init__).parameters][1:]
    for same in (clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(same) == repr(model)


def test_dayone_methods_that_are_not_here_say_what_is():
    search = PrivateSearchCV(DPLogisticRegression(), {})
    for model, name, instead in (
        (DPLinearSVM(), "predict_proba", "PrivateCalibratedClassifier"),
        (DPLogisticRegression(), "partial_fit", "blocks"),
        (search, "best_score_", "private_scores"),
    ):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{instead}"):
            getattr(model, name)


def test_dayone_names_of_other_libraries_are_answered_by_those_of_this():
    for name in instead_of("names"):
        for module in ("dpglm", "dpglm.workflow", "dpglm.schema", "dpglm.baselines", "dpglm.study"):
            with pytest.raises(ImportError, match=f"{module} has no '{name}': use "):
                exec(f"from {module} import {name}")
            assert not hasattr(importlib.import_module(module), name)
    with pytest.raises(ImportError, match="cannot import name 'nothing_like_it'"):
        from dpglm import nothing_like_it  # noqa: F401


NUMBERS = [NumericColumn(f"x{k}", -2.0, 2.0) for k in range(7)]
WIDE = NumericColumn("nothing", 0.0, 1e6)
PEOPLE = Schema("p", [WIDE, *NUMBERS, CategoricalColumn("c", [*"abcd"])], Target("y", [0, 1]))


def fitted(epsilon, seed=0, **options):
    rng, n, schema = np.random.default_rng(0), 4000, PEOPLE.additive(1)
    table = {f"x{k}": rng.uniform(-2, 2, n) for k in range(7)}
    table |= {"c": rng.choice([*"abcd"], n), "nothing": rng.uniform(4e5, 5e5, n)}
    score = sum(table[f"x{k}"] * (-1) ** k for k in range(7)) + 2 * (table["c"] == "a")
    y = (0.6 * score + rng.logistic(size=n) > 0).astype(int)
    model = DPLogisticRegression(epsilon=epsilon, classes=[0, 1], **options)
    pipeline = make_pipeline(schema.transformer(), model)
    with seeded_noise(seed):
        return pipeline.fit(table, y)


def test_dayone_bands_are_as_wide_as_refits_spread():
    fits = [terms_of(fitted(0.3, seed))[2] for seed in range(8)]
    found = [[term.of(term.public) for term in terms] for terms in fits]
    predicted = [term.noise_std.max() for term in fits[0]]
    spread = [np.std(each, axis=0).max() for each in zip(*found, strict=True)]
    assert 0.6 < np.median(np.divide(spread, predicted)) < 1.5


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    X, y = make_census(400, random_state=0)
    model = DPLogisticRegression(epsilon=8.0, classes=[0, 1], max_iter=3)
    search = PrivateSearchCV(model, {"alpha": [0.0, 0.1]}, classes=[0, 1])
    with PrivacyOdometer(tmp_path_factory.mktemp("o") / "a<b.db", epsilon=20) as odometer:
        model.fit(X, y)
    inferred = fitted(8.0, inference_fraction=0.5)[-1].inference()
    guess = {"X": X[:, :9], "y": y, "n_samples": 2000, "accuracy": 0.85, "n_repeats": 2}
    found = {
        "ledger": model.privacy_,
        "plan": model.plan(400, 9),
        "plan of choices": dpglm.DPAGDClassifier().plan(40_000, 9),
        "search": search.plan(4000, 9),
        "odometer": odometer,
        "scores": private_scores(model, X, y, epsilon=9.0),
        "schema": load_schema("census"),
        "inference": inferred,
        "estimates": inferred.estimates,
        "report": PrivacyReport(model),
        "expected accuracy": expected_accuracy(model, **guess),
        "expected errors": expected_errors(DPLogisticRegression(inference_fraction=0.5), **guess),
        "audit": audit_estimator(baselines.MajorityClassifier(epsilon=5.0), n_canaries=200),
    }
    return {name: (result, str(result), result._repr_html_()) for name, result in found.items()}


# What may be wider than a terminal: tables of Markdown, of coefficients, and lists of categories.
WIDE = {"report", "inference", "estimates", "schema", "audit"}


def test_dayone_what_prints_does_so_in_80_columns_and_in_one_style(printed):
    styles = set()
    for name, (_, text, html) in printed.items():
        assert "object at 0x" not in text and "array(" not in text, name
        assert name in WIDE or max(map(len, text.splitlines())) <= 80, name
        style, _, body = html.partition("</style>")
        styles.add(style)
        # Legible in light and dark: the ink is that of the notebook.
        assert "color: inherit" in style and "#fff" not in style and "Times" not in style
        assert body.startswith('<div class="dpglm">') and "a<b" not in body
        for tag in ("table", "ul", "details", "div", "tr"):
            assert body.count(f"<{tag}>") + body.count(f"<{tag} ") == body.count(f"</{tag}>"), name
    assert len(styles) == 1
