"""End to end: what was drawn is what was charged, and another accountant agrees."""

import math

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from strategies import RELATIONS, under
from tapes import record

from dpglm import DiagonalPreconditioner, DPLinearSVM, DPLogisticRegression, FullPreconditioner
from dpglm.estimators.defaults import ROW_NORM
from dpglm.estimators.whitening import row_unit
from dpglm.privacy.vault import MAGNITUDE_POWERS, NORM_BIN_EDGES
from dpglm.schedules import (
    BiasCorrectedMomentum,
    Constant,
    DecayingClip,
    DynamicNoise,
    ExponentialDecay,
    HeavyBall,
    PiecewiseConstant,
    Polynomial,
)


def random_configuration(seed, longest=300, *, sampled=False):
    """Nine seeds in a row have every relation with every kind of preconditioner."""
    rng = np.random.default_rng(seed)

    def choose(*options):
        return options[rng.integers(len(options))]

    relation = RELATIONS[seed % 3]
    if sampled and relation == "replace_one":
        relation = "zero_out"
    share, max_row_norm = float(rng.uniform(0.05, 0.9)), float(rng.uniform(1, 9))
    return choose(DPLogisticRegression, DPLinearSVM)(
        epsilon=float(np.exp(rng.uniform(np.log(0.05), np.log(8)))),
        sampling_rate=float(10 ** rng.uniform(-2.5, -0.1)) if sampled else 1.0,
        delta=choose(1e-5, 1e-6, 1e-8),
        **under(relation, 70),
        noise_schedule=choose(
            "constant", ExponentialDecay(1, 0.97), Polynomial(3, 1, 2), DynamicNoise(decay=5.0),
            DynamicNoise(decay=3.0, momentum=0.5), PiecewiseConstant((2, 1), (0.4,)),
        ),
        clip_schedule=choose(0.5, DecayingClip(3.0), ExponentialDecay(2.0, 0.99), Constant(1.5)),
        momentum=choose(None, 0.6, HeavyBall(0.9), BiasCorrectedMomentum(0.8)),
        averaging=choose(None, "uniform", "tail", "t_weighted"),
        preconditioner=[
            None,
            DiagonalPreconditioner(budget_fraction=share),
            FullPreconditioner(budget_fraction=share, row_clipping_norm=max_row_norm),
        ][seed // 3 % 3],
        max_iter=int(choose(1, longest, rng.integers(1, longest + 1))),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(18))
def test_every_draw_of_the_sampler_is_one_event_at_its_noise_multiplier(seed, draws):
    """Its standard deviation is recomputed; one joint release pays for all of three classes."""
    model, n_classes = random_configuration(seed), 3 if seed % 4 == 0 else 2
    if seed // 9 % 2:  # A histogram of magnitudes, where there is one.
        model.set_params(epsilon=100 * model.epsilon)
    with record() as tape:
        model.fit(np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % n_classes)
    plan, one = model.plan(60, 3, n_classes), tape.releases[0]
    events = [event for event, count in model.privacy_.events for _ in range(count)]
    assert model.privacy_ == plan.ledger
    replaces = model.neighboring_relation == "replace_one"
    sizes = [4 if n_classes == 2 else 12] * model.max_iter
    sensitivities = (2.0 if replaces else 1.0) * plan.clip
    largest_slack = 1e-9
    if model.preconditioner is not None:
        dimension = model.trace_.whitening.effective_dimension
        max_row_norm, lengths = model.preconditioner.row_clipping_norm or ROW_NORM, []
        each = math.sqrt(2) if replaces else 1.0
        if plan.first[0].name == "magnitude histogram":
            lengths = [2 * each]  # of four columns
        elif plan.first[0].name == "norm histogram":
            n, lengths, std = (
                model.n_samples_estimate or 60,
                [each],
                one.event.noise_multiplier * each,
            )
            max_row_norm = row_unit(one.answer / n, std / n, plan.n_mu)[1]
        sensitivities = [*lengths, each * max_row_norm**2, *(math.sqrt(dimension) * sensitivities)]
        counted = NORM_BIN_EDGES.size + 1 if lengths == [each] else 4 * 2 * MAGNITUDE_POWERS.size
        sizes = [*(counted for _ in lengths), 4 if model.preconditioner.diagonal else 10, *sizes]
        largest_slack = 1e-6
    assert [size for _, size, _ in draws] == sizes
    for (kind, size, scale), event, sensitivity in zip(draws, events, sensitivities, strict=True):
        assert kind == event.kind
        grid = 2.0 ** (math.floor(math.log2(event.noise_multiplier * sensitivity)) - 30)
        effective = scale * grid / event.noise_multiplier
        rounded = sensitivity + grid * math.sqrt(size)
        # Above the sensitivity of the snapped sum; by less than summation of 60 rows can add.
        assert rounded < effective < rounded * (1 + largest_slack)


# A record is zeroed out in one; in the other it vanishes, and there is a second moment.
QUICK_BATCHES = (9,)


@pytest.mark.parametrize(
    ("seed", "run"),
    [
        *((seed, {"longest": 20}) for seed in range(9)),
        *(pytest.param(seed, {}, marks=pytest.mark.slow) for seed in range(54)),
        *((seed, {"sampled": True}) for seed in QUICK_BATCHES),
        *(pytest.param(seed, {"sampled": True}, marks=pytest.mark.slow) for seed in range(35)),
    ],
    ids=str,
)
def test_dp_accounting_confirms_the_epsilon_asked_for(seed, run):
    estimator = random_configuration(seed, **run)
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    ledger = estimator.fit(X, y).privacy_
    # So fine that what is reached is known to 1e-5 of it.
    interval = 4e-4 * estimator.epsilon
    accountant = PLDAccountant(
        ledger.dp_accounting_relation, value_discretization_interval=interval
    )
    reached = accountant.compose(ledger.to_dp_event()).get_epsilon(estimator.delta)
    assert 0.995 <= reached / estimator.epsilon <= 1.001
    assert 0.999 <= ledger.epsilon() / estimator.epsilon <= 1.0
    assert ledger == estimator.plan(*X.shape).ledger
