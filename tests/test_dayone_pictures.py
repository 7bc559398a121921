"""First-day habits from other libraries, and how results print, in a terminal and a notebook."""

import copy
import importlib
import inspect
import pickle
from html import escape

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
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
from dpglm.exceptions import UtilityWarning, instead_of
from dpglm.schema import CategoricalColumn, NumericColumn, Target
from dpglm.study import (
    PrivacyReport,
    ShapeDisplay,
    cli,
    expected_accuracy,
    expected_errors,
    model_card,
    plot,
)
from dpglm.study.cli import main
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


def test_dayone_the_same_is_said_in_grids_and_pipelines():
    X, y = np.eye(10), [0, 1] * 5
    for search in (GridSearchCV, PrivateSearchCV):
        with pytest.raises(ValueError, match=r"Invalid parameter 'C' .* alpha, as 1 / "):
            search(DPLogisticRegression(), {"C": [1.0]}).fit(X, y)
    with pytest.raises(TypeError, match=r"'cv' for PrivateCalibratedClassifier: .* fitted model"):
        PrivateCalibratedClassifier(DPLogisticRegression(), cv="prefit")
    with pytest.raises(ValueError, match="'tol' for DPLinearSVM: how long a run is"):
        make_pipeline(DPLinearSVM()).set_params(dplinearsvm__tol=1e-3)


def test_dayone_methods_that_are_not_here_say_what_is():
    search = PrivateSearchCV(DPLogisticRegression(), {})
    for model, name, instead in (
        (DPLinearSVM(), "predict_proba", "PrivateCalibratedClassifier"),
        (DPLinearSVM(), "predict_log_proba", "PrivateCalibratedClassifier"),
        (DPLogisticRegression(), "partial_fit", "blocks"),
        (search, "best_score_", "private_scores"),
    ):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{instead}"):
            getattr(model, name)


def test_dayone_names_of_other_libraries_are_answered_by_those_of_this():
    for name, instead in instead_of("names").items():
        for module in ("dpglm", "dpglm.workflow", "dpglm.schema", "dpglm.baselines", "dpglm.study"):
            with pytest.raises(ImportError, match=f"{module} has no '{name}': use "):
                exec(f"from {module} import {name}")
            assert not hasattr(importlib.import_module(module), name)
        whole = f"dpglm.{instead.split()[0].strip(',')}".replace("dpglm.dpglm", "dpglm").split(".")
        found = importlib.import_module("dpglm")
        for part in whole[1:]:
            found = getattr(found, part)
    with pytest.raises(ImportError, match=r"use dpglm\.study\.plot"):
        from dpglm import plot  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nothing_like_it'"):
        from dpglm import nothing_like_it  # noqa: F401
    assert not hasattr(dpglm, "nothing_like_it") and dpglm.study.plot


NUMBERS = [NumericColumn(f"x{k}", -2.0, 2.0) for k in range(7)]
WIDE = NumericColumn("nothing", 0.0, 1e6)
PEOPLE = Schema("p", [WIDE, *NUMBERS, CategoricalColumn("c", [*"abcd"])], Target("y", [0, 1]))


def people(n=4000):
    rng = np.random.default_rng(0)
    table = {f"x{k}": rng.uniform(-2, 2, n) for k in range(7)}
    table |= {"c": rng.choice([*"abcd"], n), "nothing": rng.uniform(4e5, 5e5, n)}
    score = sum(table[f"x{k}"] * (-1) ** k for k in range(7)) + 2 * (table["c"] == "a")
    return table, (0.6 * score + rng.logistic(size=n) > 0).astype(int)


def fitted(schema, model=DPLogisticRegression, seed=0, **options):
    table, y = people()
    pipeline = make_pipeline(schema.transformer(), model(classes=[0, 1], **options))
    with seeded_noise(seed):
        return pipeline.fit(table, y)


@pytest.mark.parametrize(
    ("n_segments", "options"),
    [(8, {}), (1, {"model": DPLinearSVM}), (8, {"preconditioner": "diagonal"})],
)
def test_dayone_a_column_without_effect_ranks_last_of_nine(n_segments, options):
    display = ShapeDisplay.from_estimator(fitted(PEOPLE.additive(n_segments), **options))
    *_, last = display.plot().axes_
    assert len(display.axes_) == 9 and last.get_title() == "nothing"
    assert "order: the spread over the noise" in display.title
    assert display.figure_.legends[0].get_texts()[0].get_text() == "95 % of the noise"
    assert all(axes.collections or axes.containers for axes in display.axes_)


def test_dayone_bands_are_as_wide_as_refits_spread():
    schema = PEOPLE.additive(1)
    found = [
        [term.of(term.public) for term in terms_of(fitted(schema, epsilon=0.3, seed=k))[2]]
        for k in range(8)
    ]
    predicted = [term.noise_std.max() for term in terms_of(fitted(schema, epsilon=0.3))[2]]
    spread = [np.std(each, axis=0).max() for each in zip(*found, strict=True)]
    assert 0.6 < np.median(np.divide(spread, predicted)) < 1.5


def test_dayone_coefficients_are_drawn_without_const_in_comparable_units():
    model = fitted(PEOPLE.additive(1), inference_fraction=0.5, epsilon=8.0)
    results = model[-1].inference(schema=PEOPLE.additive(1))
    (axes,) = plot(results).axes_
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert "const" not in names and "1.2 x0" in names  # 4 / sqrt(12) is 1.15
    assert "log-odds per standard deviation" in axes.get_xlabel().replace("\n", " ")
    shown, table = results.standardized(), results.estimates
    clear = [k for k, mark in enumerate(shown.marks) if not mark]
    widest = np.abs([shown.low[clear], shown.high[clear]]).max()
    assert max(np.abs(axes.get_xlim())) < 1.2 * widest
    assert table.unit.startswith("log-odds per unit")


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    X, y = make_census(400, random_state=0)
    model = DPLogisticRegression(epsilon=8.0, classes=[0, 1], max_iter=3)
    search = PrivateSearchCV(model, {"alpha": [0.0, 0.1]}, classes=[0, 1])
    with PrivacyOdometer(tmp_path_factory.mktemp("o") / "a<b.db", epsilon=20) as odometer:
        model.fit(X, y)
    inferred = fitted(PEOPLE.additive(1), inference_fraction=0.5, epsilon=8.0)[-1].inference()
    theory = {"n_samples": 40_000, "accuracy": 0.85, "n_features": 9, "majority": 0.7}
    found = {
        "ledger": model.privacy_,
        "plan": model.plan(400, 9),
        "plan of choices": dpglm.DPAGDClassifier().plan(40_000, 9),
        "plan of a minimiser": baselines.ObjectivePerturbation().plan(400, 9),
        "plan of batches": DPLinearSVM(sampling_rate=0.5).plan(400, 9),
        "search": search.plan(4000, 9),
        "odometer": odometer,
        "scores": private_scores(model, X, y, epsilon=9.0),
        "schema": load_schema("census"),
        "inference": inferred,
        "estimates": inferred.estimates,
        "report": PrivacyReport(model),
        "expected accuracy": expected_accuracy(DPLogisticRegression(), **theory),
        "expected errors": expected_errors(DPLogisticRegression(inference_fraction=0.5), **theory),
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


def test_dayone_a_ledger_prints_its_guarantee_and_a_list_of_assumptions(printed):
    ledger, text, html = printed["ledger"]
    assert text.startswith("(epsilon=8, delta=1e-06)-differentially private")
    assert text.count("\n- ") == 5
    for assumption in ledger.assumptions:
        assert assumption in ledger.statement and escape(assumption) in html
    assert "noise_multiplier" in html and "\n" not in ledger.statement
    assert repr(ledger) == f"<PrivacyLedger: {ledger.statement}>"


def test_dayone_a_plan_prints_what_the_command_prints(printed, capsys):
    main(["plan", "--epsilon", "8", "--n", "400", "--features", "9", "--n-iter", "3"])
    plan, text, _ = printed["plan"]
    assert text in capsys.readouterr().out
    assert list(plan.to_frame().index) == [1, 2, 3]


def test_dayone_scores_print_what_was_asked_for_and_intervals_that_were_cut():
    X, y = make_census(400, random_state=0)
    model = DPLogisticRegression(epsilon=8.0, classes=[0, 1], max_iter=3).fit(X, y)
    with pytest.warns(UtilityWarning, match="The noise of .* is as large as what it is of"):
        scores = private_scores(model, X, y, epsilon=0.05)
    matrix, text = scores.confusion_matrix, str(scores)
    for value, low, high in np.stack([matrix.value, *matrix.noise_interval], -1).reshape(4, 3):
        whole = np.isclose(value - low, high - value)
        assert (f"{value:,.0f} ({low:,.0f} to {high:,.0f})" in text) != whole
    assert "positive class  1" in text and "Calibration curve" in text and "ROC curve" in text
    asked = private_scores(model, X, y, epsilon=9.0, scores=["calibration_curve", "log_loss"])
    assert "Calibration curve" in str(asked) and float(asked.log_loss) == asked.log_loss.value
    assert asked.to_frame().index.tolist() == ["log_loss"]


def test_dayone_what_looks_right_at_first_ends_in_a_sentence(printed, tmp_path):
    model, frame = printed["inference"][0], pd.DataFrame({"age": [1]})
    with pytest.raises(TypeError, match=r"made by ShapeDisplay\.from_estimator"):
        ShapeDisplay(model)
    fit = DPLogisticRegression(classes=[0, 1], max_iter=2).fit(*make_census(200, random_state=0))
    with pytest.raises(ValueError, match="data=<DataFrame> must be a dict of public facts"):
        model_card(fit, data=frame)
    with pytest.raises(TypeError, match=r"attributes: take scores\.accuracy"):
        printed["scores"][0]["accuracy"]
    table, described = tmp_path / "t.csv", tmp_path / "s.json"
    schema = Schema("t", [NumericColumn("age", 0, 9)], Target("y", ["no", "yes"]))
    described.write_text(schema.to_json())
    table.write_text("age,y\n1,no\n2,yes\n")
    for given in (schema, described, str(described)):
        assert dpglm.read_csv(table, given).data["age"].tolist() == [1.0, 2.0]
    table.write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(ValueError, match=r"For Parquet use dpglm\.sources\.ParquetSource"):
        dpglm.read_csv(table, schema)


def test_dayone_an_audit_of_all_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(cli, "AUDITED", {n: cli.AUDITED[n] for n in ("majority", "privgene")})
    main(["audit", "--all", "--canaries", "100", "--fits", "100"])
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("1 of 2, after 0 s: auditing majority") and second.startswith("2 of 2")
