"""What the baselines have in common: what they refuse, that they learn, and where they cannot."""

import math

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.utils.estimator_checks import check_class_weight_classifiers
from tapes import record

from dpglm import DPLinearSVM, DPLogisticRegression, seeded_noise
from dpglm.baselines import (
    DescentOutputPerturbation,
    MajorityClassifier,
    ObjectivePerturbation,
    PrivGene,
    SGDAdvancedComposition,
    SGDMomentsAccountant,
)
from dpglm.datasets import make_census

PERTURBATIONS = [ObjectivePerturbation, DescentOutputPerturbation]
BAD = {
    ObjectivePerturbation: [
        ({"alpha": 0}, "alpha=0 must be 'auto'"),
        ({"alpha": 1e-9}, "alpha=1e-09 is too small for epsilon=1"),
        ({"max_row_norm": 1.0}, r"max_row_norm=1\.0 must be a number above 1"),
        ({"loss": "hinge"}, "loss='hinge' is unknown"),
        ({"half_width": 0.0, "loss": "smoothed_hinge"}, "half_width"),
        ({"epsilon": 1e-9, "delta": 1e-12}, "epsilon and delta are too small"),
        ({"class_weight": {0: -1.0}}, "class_weight"),
        (
            {"max_row_norm": 1e-161, "fit_intercept": False},
            "max_row_norm=1e-161 .* number above 1e-100",
        ),
    ],
    DescentOutputPerturbation: [({"loss": "hinge"}, "loss='hinge'")],
    PrivGene: [
        ({"loss": "square"}, "loss='square' is unknown"),
        ({"max_iter": 100_000}, "cannot be drawn"),
    ],
    SGDMomentsAccountant: [],
    SGDAdvancedComposition: [],
}
NUMBERS = {
    DescentOutputPerturbation: {"max_iter": 0, "alpha": -0.1},
    PrivGene: {
        "feature_bound": 0.0, "mutation": -1.0, "mutation_decay": 1.5, "max_iter": "many",
    },
    SGDMomentsAccountant: {"batch_size": 0, "clip": -1.0, "step": 0.0, "max_iter": 0},
    SGDAdvancedComposition: {"batch_size": 0, "clip": -1.0, "step": 0.0, "max_iter": 0},
}  # fmt: skip
for Estimator, numbers in NUMBERS.items():
    BAD[Estimator] += [
        ({name: value}, f"{name}={value!r} must be a (whole )?number")
        for name, value in numbers.items()
    ]
for Batches in (SGDMomentsAccountant, SGDAdvancedComposition):
    BAD[Batches] += [
        ({"epsilon": 1e-9, "delta": 1e-12, "max_iter": 5}, "too small"),
        ({"loss": "square"}, "loss='square' is unknown"),
    ]
BAD[SGDAdvancedComposition].append(({"neighboring_relation": "replace_one"}, "'replace_one'"))


@pytest.mark.parametrize(
    ("Estimator", "parameters", "message"),
    [(Estimator, *case) for Estimator, cases in BAD.items() for case in cases],
)
def test_bad_parameters_are_sentences_before_the_data_are_touched(Estimator, parameters, message):
    with pytest.raises(ValueError, match=message):
        Estimator(**parameters).plan(100, 3)


def test_the_number_of_records_decides_whether_rounding_can_be_covered():
    model = DescentOutputPerturbation(max_iter=10**7)
    model.plan(10**5, 5000)
    with pytest.raises(ValueError, match="too large for a release of"):
        model.plan(10**8, 5000)


@pytest.mark.parametrize("Estimator", [*PERTURBATIONS, PrivGene])
def test_blocks_of_rows_are_refused_before_any_noise(Estimator):
    X, y = np.zeros((3, 1)), [0, 1, 1]
    name = Estimator.__name__
    with pytest.raises(TypeError, match=f"{name} needs all rows .* not blocks of rows") as info:
        Estimator(classes=[0, 1]).fit([(X, y), (X, y)])
    assert not hasattr(info.value, "privacy_ledger")


@pytest.mark.parametrize(
    ("model", "epsilons"),
    [
        (DescentOutputPerturbation(), (0.03, 3.0, 300.0)),
        (SGDMomentsAccountant(max_iter=300, step=0.5), (0.05, 0.5, math.inf)),
        (SGDAdvancedComposition(max_iter=300, step=0.5), (0.05, 5.0, math.inf)),
    ],
    ids=str,
)
def test_more_budget_teaches_more(model, epsilons):
    X, y = make_census(2000, random_state=1)
    X, losses = X[:, :30], []
    for epsilon in epsilons:
        with seeded_noise(0):
            scores = model.set_params(epsilon=epsilon).fit(X, y).decision_function(X)
        losses.append(np.logaddexp(0, (1 - 2 * y) * scores).mean())
    assert losses[0] > losses[1] > losses[2]


LOUD = [
    *(Perturbation(epsilon=math.inf) for Perturbation in PERTURBATIONS),
    PrivGene(epsilon=10_000.0, feature_bound=50.0),
    SGDMomentsAccountant(epsilon=math.inf, step=1.0),
    DPLogisticRegression(epsilon=100.0),
    DPLinearSVM(epsilon=100.0),
]


@pytest.mark.parametrize("estimator", LOUD, ids=str)
def test_that_check_passes_once_the_budget_lets_the_signal_through(estimator):
    check_class_weight_classifiers(type(estimator).__name__, estimator)


@pytest.mark.parametrize("labels", [(0, 1), ("a", "b", "c")])
def test_without_noise_it_is_the_prior_of_scikit_learn(labels):
    rng = np.random.default_rng(0)
    y = np.array(labels)[np.minimum(rng.geometric(0.6, size=200) - 1, len(labels) - 1)]
    X = rng.normal(size=(200, 3))
    model = MajorityClassifier(epsilon=math.inf).fit(X, y)
    reference = DummyClassifier(strategy="prior").fit(X, y)
    assert (model.predict(X) == reference.predict(X)).all()
    assert model.predict_proba(X) == pytest.approx(reference.predict_proba(X), rel=1e-12)
    assert model.predict_log_proba(X) == pytest.approx(np.log(model.predict_proba(X)))
    assert not model.coef_.any() and model.coef_.shape[1] == 3


@pytest.mark.parametrize(
    ("relation", "most"), [("zero_out", 1), ("replace_one", 2), ("add_or_remove_one", 1)]
)
@pytest.mark.parametrize("epsilon", [0.05, 20.0])
def test_one_release_spends_the_budget_and_covers_the_counts_that_a_record_moves(
    relation, most, epsilon
):
    n_samples_estimate = 400 if relation == "add_or_remove_one" else None
    model = MajorityClassifier(
        epsilon=epsilon, neighboring_relation=relation, n_samples_estimate=n_samples_estimate
    )
    with record() as tape:
        model.set_params(classes=range(4)).fit(np.zeros((500, 3)), np.arange(500) % 4)
    (release,) = tape.releases
    assert release.exact.tolist() == [125] * 4
    assert release.sensitivity == pytest.approx(math.sqrt(most))
    assert model.privacy_.events == model.plan(500, 3).ledger.events == ((release.event, 1),)
    assert model.privacy_.epsilon() == pytest.approx(epsilon, rel=1e-6)
    assert model.privacy_.epsilon() <= epsilon


def test_class_weights_multiply_the_noisy_counts():
    X, y = np.zeros((300, 2)), np.repeat([0, 1], [200, 100])
    model = MajorityClassifier(epsilon=math.inf, class_weight={1: 3.0}).fit(X, y)
    assert model.predict_proba(X[:1]) == pytest.approx(np.array([[0.4, 0.6]]))
    assert model.trace_.counts.tolist() == [200, 100]


def test_a_count_that_noise_makes_negative_still_gives_probabilities():
    X = np.zeros((5, 1))
    for _ in range(20):
        model = MajorityClassifier(epsilon=0.01, delta=1e-3, classes=[0, 1, 2]).fit(X, [0] * 5)
        assert np.isfinite(model.intercept_).all()
        assert model.predict_proba(X[:1]).sum() == pytest.approx(1.0)
