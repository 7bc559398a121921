"""What a user may legally ask for and what is refused, at random; one fit of every kind; skops."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from dpglm import (
    DPAGDClassifier,
    DPGammaRegressor,
    DPLinearRegression,
    DPLinearSVM,
    DPLogisticRegression,
    DPPoissonRegressor,
    baselines,
)
from dpglm.estimators.whitening import DiagonalPreconditioner, FullPreconditioner
from dpglm.schedules import (
    BiasCorrectedMomentum,
    Constant,
    DecayingClip,
    ExponentialDecay,
    HeavyBall,
    PiecewiseConstant,
    Polynomial,
)

RELATIONS = ("zero_out", "replace_one", "add_or_remove_one")
OURS = [DPLogisticRegression, DPLinearSVM, DPAGDClassifier]


def under(relation, estimate=100):
    """Return the parameters of a relation, with an estimate of the records where it has one."""
    private = relation == "add_or_remove_one"
    return {"neighboring_relation": relation, "n_samples_estimate": estimate if private else None}


BASELINES = [getattr(baselines, name) for name in baselines.__all__]
# Each has a few releases; the baselines read tables in memory only, but for the two of batches.
ESTIMATORS = {
    "plain": DPLogisticRegression(max_iter=4, preconditioner=None),
    # With budget enough for the magnitudes of columns.
    "diagonal": DPLogisticRegression(
        max_iter=4, epsilon=1e3, preconditioner=DiagonalPreconditioner()
    ),
    # And for their middles, around which rows are then centered.
    "centered": DPLogisticRegression(max_iter=3, epsilon=1e3),
    "full": DPLinearSVM(max_iter=3, preconditioner=FullPreconditioner()),
    # The gradient of an intercept in a small batch can be a released number by chance.
    "batches": DPLogisticRegression(max_iter=3, sampling_rate=0.25, fit_intercept=False),
    "private count": DPLinearSVM(max_iter=3, fit_intercept=False, **under("add_or_remove_one", 40)),
    "adaptive": DPAGDClassifier(max_iter=4, preconditioner=None),
    "adaptive full": DPAGDClassifier(
        max_iter=3, preconditioner="full", neighboring_relation="replace_one"
    ),
    "published": DPAGDClassifier.as_published(epsilon=1.0, max_iter=4, loss_clip=3.0),
    "moments": baselines.SGDMomentsAccountant(max_iter=3),
    "advanced": baselines.SGDAdvancedComposition(max_iter=3),
    "objective": baselines.ObjectivePerturbation(),
    "output": baselines.DescentOutputPerturbation(max_iter=3),
    "genetic": baselines.PrivGene(max_iter=4),
    "majority": baselines.MajorityClassifier(),
}
for _estimator in ESTIMATORS.values():
    _estimator.set_params(classes=[0, 1])
# With budget enough for the last steps of an intercept.
REGRESSORS = {
    "linear": DPLinearRegression(max_iter=3, epsilon=1e3),
    "poisson": DPPoissonRegressor(max_iter=3, epsilon=1e3, target_bounds=(0, 3), sampling_rate=0.5),
    "gamma": DPGammaRegressor(max_iter=3, epsilon=1e3, preconditioner=None),
}
EVERY = {**ESTIMATORS, **REGRESSORS}


def powers_of_ten(low, high):
    """Numbers spread evenly over orders of magnitude."""
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


def schedules():
    """Positive values over the iterations: a number, a name's default, or an object."""
    level = powers_of_ten(-2, 1)
    return st.one_of(
        level,
        st.builds(Constant, level),
        st.builds(ExponentialDecay, level, st.floats(0.5, 1.0)),
        st.builds(Polynomial, level, level, st.floats(0.5, 2.0)),
        st.builds(PiecewiseConstant, st.tuples(level, level), st.just((0.5,))),
        st.builds(DecayingClip, level),
    )


@st.composite
def budgets(draw):
    """Epsilon, delta and relation, as parameters of an estimator."""
    cost = {"epsilon": draw(powers_of_ten(-1.5, 1.5)), "delta": draw(powers_of_ten(-10, -2))}
    return cost | under(draw(st.sampled_from(RELATIONS)), draw(st.integers(5, 60)))


@st.composite
def data(draw):
    """Rows of any scale, zero and huge ones among them, with labels of two or three classes."""
    n_rows, n_features, n_classes = draw(
        st.tuples(st.integers(6, 20), st.integers(1, 4), st.integers(2, 3))
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.normal(size=(n_rows, n_features)) * draw(powers_of_ten(-3, 3))
    X[0] = draw(st.sampled_from([0.0, 1.0, 1e-300, 1e150]))
    y = rng.integers(0, n_classes, n_rows)
    y[:n_classes] = np.arange(n_classes)
    return X, y


PENALTY = {
    "alpha": st.one_of(st.just(0.0), powers_of_ten(-4, -1)),
    "fit_intercept": st.booleans(),
}
PRECONDITIONERS = st.one_of(
    st.none(), st.just(DiagonalPreconditioner()), st.just(FullPreconditioner())
)
DESCENT = {
    **PENALTY,
    "noise_schedule": st.one_of(st.just("auto"), schedules()),
    "clip_schedule": st.one_of(st.just("auto"), schedules()),
    "step_schedule": st.one_of(st.just("auto"), schedules()),
    "momentum": st.one_of(
        st.none(), st.floats(0, 0.95), st.builds(HeavyBall), st.builds(BiasCorrectedMomentum)
    ),
    "averaging": st.sampled_from(["auto", "uniform", "tail", "t_weighted", 0.3, None]),
    "preconditioner": PRECONDITIONERS,
    "max_iter": st.integers(1, 8),
}
ADAPTIVE = {
    **PENALTY,
    "loss": st.sampled_from(["logistic", "smoothed_hinge", "hinge"]),
    "clip_schedule": st.one_of(st.just("auto"), powers_of_ten(-1, 1)),
    "max_step": st.one_of(st.just("auto"), powers_of_ten(-1, 1)),
    "averaging": st.sampled_from(["auto", "uniform", None, 0.3]),
    "loss_clip": st.one_of(st.just("auto"), powers_of_ten(-1, 1)),
    "n_splits": st.floats(1, 6),
    "selection": st.sampled_from(["exponential", "laplace", "permute_and_flip"]),
    "accountant": st.sampled_from(["auto", "gdp", "zcdp", "bun_steinke"]),
    "momentum": st.sampled_from(["heavy_ball", "bias_corrected", None, 0.3]),
    "preconditioner": PRECONDITIONERS,
    "max_iter": st.integers(1, 8),
}


@st.composite
def estimators(draw):
    """An unfitted estimator with legal parameters."""
    estimator, parameters = draw(
        st.sampled_from(
            [
                (DPLogisticRegression, DESCENT),
                (DPLinearSVM, {**DESCENT, "loss": st.sampled_from(["smoothed_hinge", "hinge"])}),
                (DPAGDClassifier, ADAPTIVE),
            ]
        )
    )
    chosen = {name: draw(strategy) for name, strategy in parameters.items()}
    return estimator(**draw(budgets()), **chosen)


def illegal_parameters():
    """One parameter with a value that every estimator refuses."""
    not_positive = st.sampled_from([0.0, -1.0, -math.inf, math.nan, -1e-300])
    return st.one_of(
        st.tuples(st.just("epsilon"), not_positive),
        st.tuples(st.just("delta"), st.one_of(not_positive, st.sampled_from([1.0, 2.0, math.inf]))),
        st.tuples(st.just("clip_schedule"), st.one_of(not_positive, st.just(math.inf))),
        st.tuples(st.just("alpha"), st.sampled_from([-1.0, math.nan, math.inf])),
        st.tuples(st.just("max_iter"), st.sampled_from([0, -1, 2.5, "many"])),
        st.tuples(st.just("momentum"), st.sampled_from([-0.1, 1.0, math.nan, "fast"])),
        st.tuples(st.just("neighboring_relation"), st.sampled_from(["", "zeroout", "unbounded"])),
        st.tuples(st.just("classes"), st.sampled_from([[0], [0, 0, 1], []])),
        st.tuples(st.just("preconditioner"), st.sampled_from(["half", ""])),
    )


def through_skops(thing):
    """Return what skops loads of a thing, whose types are this package's or `datetime.date`."""
    skops = pytest.importorskip("skops.io")
    written = skops.dumps(thing)
    types = skops.get_untrusted_types(data=written)
    assert all(name.startswith("dpglm.") or name == "datetime.date" for name in types)
    return skops.loads(written, trusted=types)
