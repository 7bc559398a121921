"""Bugs that break a guarantee, planted one at a time, and the audit or property that sees each."""

import contextlib
import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from strategies import under
from tapes import Scripted, on_tape, record, replay

from dpglm import (
    DiagonalPreconditioner,
    DPAGDClassifier,
    DPLinearRegression,
    DPLogisticRegression,
    DPPoissonRegressor,
    FullPreconditioner,
    losses,
    seeded_noise,
)
from dpglm.audit import audit_estimator, designs
from dpglm.audit.choices import ChoiceCounts, audit_choices, choice_counts
from dpglm.audit.designs import canary_scores, counted_scores, cross_moment_scores
from dpglm.audit.recorder import ReleaseRecorder, largest_ratio, noted
from dpglm.audit.statistics import audit_scores
from dpglm.baselines import (
    DescentOutputPerturbation,
    MajorityClassifier,
    ObjectivePerturbation,
    PrivGene,
    perturbation,
)
from dpglm.estimators import descent
from dpglm.estimators import plan as plans
from dpglm.losses import Gamma, Logistic, Poisson
from dpglm.privacy import selection
from dpglm.privacy import vault as vaults
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import ChoiceEvent, SampledGaussianEvent, composed_mu, run_lengths
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.odometer import JointCharge
from dpglm.privacy.vault import Vault
from dpglm.sums import objective as objectives
from dpglm.sums.objective import Objective
from dpglm.workflow import PrivateSearchCV
from dpglm.workflow.search import LabelledRows, SearchVault

DELTA = 1e-6
N_FITS = 250
# mu = 1 for the gradients, and with a second moment mu = 1 for each of the two.
ONE = gdp_epsilon(1.0, DELTA)
BOTH = gdp_epsilon(math.sqrt(2), DELTA)
PLAIN = {"epsilon": ONE, "max_iter": 5, "preconditioner": None, "clip_schedule": 1.0}
WHITE = {
    "epsilon": BOTH, "max_iter": 3, "clip_schedule": 0.5,
    "preconditioner": DiagonalPreconditioner(budget_fraction=0.5, row_clipping_norm=2.0),
}  # fmt: skip
SAMPLED = {"epsilon": 8.0, "max_iter": 40, "preconditioner": None, "clip_schedule": 1.0}
ADAPTIVE = {"epsilon": ONE, "n_splits": 6.0, "accountant": "gdp", "preconditioner": None}


def gradients(Estimator=DPLogisticRegression, *, stage="gradients", container="sparse", **changes):
    model = Estimator(**{**PLAIN, **changes})
    return audit_scores(canary_scores(model, n_canaries=1000, stage=stage, container=container))


def moments(**changes):
    return gradients(stage="second_moment", **{**WHITE, **changes})


def magnitudes(counts="magnitude histogram", n_canaries=640, **changes):
    model = DPLogisticRegression(epsilon=40.0, max_iter=1, **changes)
    return audit_scores(counted_scores(model, n_canaries=n_canaries, counts=counts))


# There are fewer lengths than magnitudes in a fit, so that such a count has fewer others in it.
lengths = partial(magnitudes, "norm histogram", 1000)


def cross_moments():
    model = DPLogisticRegression(
        **{**WHITE, "preconditioner": FullPreconditioner(budget_fraction=0.9)}
    )
    return audit_scores(cross_moment_scores(model, n_canaries=200))


def adaptive(**changes):
    model = DPAGDClassifier(**{**ADAPTIVE, **changes})
    return audit_scores(canary_scores(model, n_canaries=1000, container="sparse"))


def targets(n_canaries=100, **changes):
    model = DPLinearRegression(**{"epsilon": 10.0, **changes})
    return audit_scores(designs.target_scores(model, n_canaries=n_canaries))


def refined(**changes):
    # One gradient, one refinement of the same cost, and no budget for more.
    shape = {"n_splits": 2.0, "selection_fraction": 0.01, "budget_growth": 0.9, "n_steps": 2}
    with on_tape(Scripted([0, 1])):
        return adaptive(**shape, **changes)


def choices(Estimator=DPAGDClassifier, **changes):
    return audit_choices(counted(Estimator, **changes))


def counted(Estimator=DPAGDClassifier, n_fits=N_FITS, **changes):
    if Estimator is DPAGDClassifier:
        # Dear enough for their law to show.
        changes = {"n_splits": 10, "selection_fraction": 0.1, **changes}
    return choice_counts(Estimator(epsilon=3.0, **changes), n_fits=n_fits)


def baseline(Estimator, **changes):
    model = Estimator(**{"epsilon": ONE, **changes})
    (part,) = audit_estimator(model, n_canaries=1000).parts
    return part


def wrapped(owner, name, bugged):
    """Plant ``bugged(original, *given)`` in place of a function or method."""

    def plant(monkeypatch):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: bugged(original, *given, **named))

    return plant


drawn = partial(wrapped, vaults, "rounded_gaussian")


def scaled_noise(factor):
    return drawn(lambda draw, size, scale, rng: draw(size, factor * scale, rng))


half_noise = scaled_noise(0.5)
noise_of_the_mean_on_the_sum = scaled_noise(1 / 1000)
# Half of the coordinates, those of one chunk or thread, go without.
no_noise_in_one_chunk = drawn(
    lambda draw, size, *given: draw(size, *given) * (np.arange(size) < size // 2)
)
released = partial(wrapped, vaults.GaussianSum, "release")
unchecked = wrapped(Vault, "_compare", lambda *_: None)


def reused_noise(monkeypatch):
    kept = []

    def draw_once(draw, size, *given):
        kept[:] = kept if kept and len(kept[0]) == size else [draw(size, *given)]
        return kept[0]

    drawn(draw_once)(monkeypatch)


def reused_gradient(monkeypatch):
    kept = []

    def release_once(release, self, value, rng):
        noisy = release(self, value, rng)
        kept[:] = kept if kept and len(kept[0]) == len(value) else [noisy]
        return kept[0]

    released(release_once)(monkeypatch)


def changed(question, change):
    """Replace a method of `Objective` by ``change(original, objective, *given)``.

    The audits are to see the bug alone: without the comparison of the kernels, which it fails.
    """

    def plant(monkeypatch):
        unchecked(monkeypatch)
        wrapped(Objective, question, change)(monkeypatch)

    return plant


changed_sum = partial(changed, "gradient_sum")


def times(factor):
    return lambda original, *given: factor * original(*given)


def not_clipped(original, objective, coef, clip, *rows):
    return original(objective, coef, np.inf, *rows)


def intercept_not_clipped(original, objective, coef, clip, *rows):
    total = original(objective, coef, clip, *rows)
    total[-1] = original(objective, coef, np.inf, *rows)[-1]
    return total


def every_other_release_without_noise(monkeypatch):
    count = []

    def forgetful(release, self, value, rng):
        count.append(0)
        noisy = release(self, value, rng)
        return value.copy() if len(count) % 2 == 0 else noisy

    released(forgetful)(monkeypatch)


one_relation_for_all = wrapped(PrivacyBudget, "sensitivity", lambda _, budget, clip: clip)


batched = partial(wrapped, vaults, "poisson_sample")


def rate_times(factor):
    return batched(lambda draw, n, rate, rng: draw(n, min(factor * rate, 1), rng))


def fixed_size(draw, n_rows, rate, rng):
    shuffled = np.random.default_rng(rng.words(1)).permutation(n_rows)
    return np.sort(shuffled[: round(rate * n_rows)])


batches_of_fixed_size = batched(fixed_size)


def divided_by_the_batch(monkeypatch):
    sizes = []

    def counted(draw, n_rows, rate, rng):
        rows = draw(n_rows, rate, rng)
        sizes.append(rate * n_rows / max(len(rows), 1))
        return rows

    def leaky(release, self, value, rng):
        return release(self, value, rng) * (sizes.pop() if sizes else 1)

    batched(counted)(monkeypatch)
    released(leaky)(monkeypatch)


moment_of_long_rows = changed(
    "second_moment",
    lambda original, rows, max_row_norm, *given: original(rows, 1.5 * max_row_norm, *given),
)


def exact_off_the_diagonal(release, self, value, rng):
    noisy = release(self, value, rng)
    rows, columns = np.triu_indices(math.isqrt(2 * value.size))
    return np.where(rows == columns, noisy, value) if value.size == len(rows) else noisy


no_noise_off_the_diagonal = released(exact_off_the_diagonal)


def with_half_noise(release, self, *given, **named):
    with pytest.MonkeyPatch.context() as bugged:
        half_noise(bugged)
        return release(self, *given, **named)


half_of_the_noise_of_the_moment = wrapped(Vault, "second_moment", with_half_noise)
half_of_the_noise_of_magnitudes = wrapped(Vault, "magnitude_histogram", with_half_noise)
half_of_the_noise_of_lengths = wrapped(Vault, "norm_histogram", with_half_noise)


def one_column_for_all(monkeypatch):
    monkeypatch.setattr(vaults, "magnitude_sensitivity", lambda relation, n_columns: 1.0)


def magnitudes_of_one_record_alone(monkeypatch):
    of_zero_out = vaults.magnitude_sensitivity
    sensitivity = lambda relation, n_columns: of_zero_out("zero_out", n_columns)  # noqa: E731
    monkeypatch.setattr(vaults, "magnitude_sensitivity", sensitivity)


def rows_of_a_person_one_by_one(monkeypatch):
    unchecked(monkeypatch)
    monkeypatch.setattr(objectives, "parts_of_groups", lambda sizes, groups: np.ones(len(sizes)))


def scaled_choices(factor, Selection=selection.ExponentialSelection):
    exact = Selection.scale.fget
    bugged = property(lambda mechanism: factor * exact(mechanism))
    return lambda monkeypatch: monkeypatch.setattr(Selection, "scale", bugged)


def noisy_min(_, self, scores, rng):
    noise = np.random.default_rng().exponential(self.scale, size=len(scores))
    return int(np.argmax(scores - noise))


noisy_min_of_the_wrong_sign = wrapped(selection.ExponentialSelection, "release", noisy_min)


def not_charged(original, vault, *given):
    noisy_sum = original(vault, *given)
    vault._allowance._costs.pop()
    return noisy_sum


release_for_free = wrapped(Vault, "gradient_sum", not_charged)


def one_candidate_for_free(monkeypatch):
    """Neither the ledger of a search has it, nor is it refused when the odometers are charged."""

    def forgetful(original, search, settings, *given):
        plan = original(search, settings, *given)
        (candidates, n), *others = plan.ledger.events
        ledger = replace(plan.ledger, events=((candidates, n - 1), *others))
        return replace(plan, ledger=ledger)

    wrapped(PrivateSearchCV, "_plan", forgetful)(monkeypatch)
    wrapped(JointCharge, "refuse_more", lambda *_: None)(monkeypatch)


losing_noise = wrapped(
    selection.PermuteAndFlip, "_noise", lambda draw, self, *given: -draw(self, *given)
)
flipped = partial(choices, selection="permute_and_flip")


one_iteration_too_many = wrapped(plans, "longest_run", lambda find, *given: find(*given) + 1)


def of_one_step(original, clip, step, n_steps, *given):
    return original(clip, step, 1, *given)


one_step_charged_for_all = wrapped(perturbation, "descent_sensitivity", of_one_step)


def leaking(train, model, vault, plan, on_step):
    """A solver that looks into the vault, and adds a part of what it finds to its coefficients."""
    trace = train(model, vault, plan, on_step)
    exact = vault._sums.gradient_sum(np.zeros(vault._sums.coef_shape), 1.0)
    trace.coef = trace.coef + 1e-6 * exact
    return trace


leaking_solver = wrapped(DPLogisticRegression, "_train", leaking)


def recorder_left_on(monkeypatch):
    @contextlib.contextmanager
    def forgetful(estimator, recorder=None):
        recorder = ReleaseRecorder() if recorder is None else recorder
        methods = {"_release": noted(Vault._release, recorder)}
        estimator._vault_type = type("RecordedVault", (Vault,), methods)
        yield recorder

    monkeypatch.setattr(designs, "record", forgetful)


def an_audit_leaves_no_recorder_behind():
    """Nor does an estimator that was recorded hand one on to its clones and pickles."""
    model = DPLogisticRegression(**{**PLAIN, "max_iter": 2, "classes": [0, 1]})
    with pytest.MonkeyPatch.context() as patch:
        # An audit of the estimator itself, not of a clone of it.
        patch.setattr(designs, "clone", lambda estimator: estimator)
        canary_scores(model, n_canaries=10)
    return model._vault_type is Vault and Vault._release.__module__ == Vault.__module__


def of_every_row(original, objective, *given):
    bugged = copy.copy(objective)
    bugged._signed = np.ones_like(objective._signed)
    return original(bugged, *given)


def not_cut(original, objective, bound):
    return (objective._weighted_numbers()[objective._counted()] / bound).sum(keepdims=True)


def of_no_range(release, self, value, rng):
    return value if value.size == 1 else release(self, value, rng)


def of_targets_themselves(original, objective, bound):
    return not_cut(original, objective, bound) + 9500 / bound * objective._counted().sum()


def weights_not_cut(monkeypatch):
    wrapped(Objective, "__init__", lambda original, *given, max_weight=1.0, **named: original(
        *given, max_weight=math.inf, **named))(monkeypatch)  # fmt: skip
    changed("label_counts", lambda original, objective: np.array(
        [0.0, objective._row_weights[: objective.n_rows].sum()]))(monkeypatch)  # fmt: skip


def last_steps_without_a_clip(original, *given):
    with pytest.MonkeyPatch.context() as patch:
        changed_sum(not_clipped)(patch)
        return original(*given)


def weighted_after_the_clip(original, objective, coef, clip, *rows):
    bare = copy.copy(objective)
    bare._row_weights = None
    return objective._row_weights[0] * original(bare, coef, clip, *rows)


def with_zeros(original, objective, powers):
    counts = original(objective, powers)
    counts[0, 0] += (objective._numbers[: objective.n_rows] == 0).sum()
    return counts


lipschitz_of_one = wrapped(
    perturbation, "descent_sensitivity", lambda original, _, *given: original(1.0, *given)
)


def no_record_moves_a_sum_by_more_than_the_clip():
    rng = np.random.default_rng(0)
    for norm in (1e-3, 1.0, 1e6):
        objective = Objective(norm * rng.normal(size=(1, 4)), np.array([1.0]), Logistic())
        total = objective.gradient_sum(rng.normal(size=5) / norm, 0.25)
        if not np.linalg.norm(total) <= 0.25 * (1 + 1e-12):
            return False
    return True


def no_person_moves_a_release_by_more_than_charged():
    """Whose rows, of which two would reach every bound, have weights and may be null."""
    rng = np.random.default_rng(0)
    X, persons, weights = rng.normal(size=(90, 3)), np.arange(90) // 3, np.ones(90)
    X[:3], weights[:3] = [9.0, 9.0, 9.0], 2.0
    y = (np.arange(90) < 9).astype(int)
    without = np.where((persons == 0)[:, np.newaxis], 1e308, X)
    model = DPLogisticRegression(epsilon=200.0, delta=1e-3, max_iter=2, max_contributions=3)
    with record() as recorded:
        model.fit(X, y, sample_weight=weights, groups=persons)
    with replay(recorded) as replayed:
        model.fit(without, y, sample_weight=weights, groups=persons)
    return largest_ratio(recorded, replayed) <= 1.0


def shift_of(result):
    """Return the mean score of present canaries less that of absent ones."""
    scores, present = result.evidence.scores, result.evidence.present
    return scores[present].mean() - scores[~present].mean()


def most_moved(Estimator, relation, one, other, **changes):
    """Return the most by which a release of a regression moves, over what its noise is for."""
    options = under(relation, len(one[1])) | changes
    model, tapes = Estimator(epsilon=1e3, max_iter=2, max_weight=2.0, **options), []
    for X, y, weights in (one, other):
        with warnings.catch_warnings(), seeded_noise(0):
            warnings.simplefilter("ignore")
            with replay(tapes[0]) if tapes else record() as tape:
                # Above zero, as a gamma variable is; a null record may have any target.
                model.fit(X, y + 1e-300, sample_weight=weights)
        tapes.append(tape)
    return largest_ratio(*tapes)


def records_at_the_bounds(relation):
    """Return two tables whose last records are as far apart as targets in [0, 4] can be."""
    X, y, weights = np.full((20, 2), 0.1), np.ones(20), np.full(20, 2.0)
    one, other = ((X.copy(), y.copy(), weights.copy()) for _ in range(2))
    one[1][-1], one[2][-1], other[1][-1] = 1e9, 1e6, 0.01
    if relation == "zero_out":
        other[0][-1] = 1e308
    return one, tuple(a[:-1] for a in other) if relation == "add_or_remove_one" else other


def no_target_moves_a_release_by_more_than_charged(relation="zero_out"):
    pair = records_at_the_bounds(relation)
    moved = partial(most_moved, DPPoissonRegressor, relation, *pair)
    return max(moved(target_bounds=bounds) for bounds in (None, (0, 4))) <= 1.0


def weights_come_before_the_clip():
    """A gradient of 0.4, of weight 1/2, is not clipped to 0.3 first."""
    options = {"row_weights": np.array([0.5]), "fit_intercept": False}
    found = Objective(np.ones((1, 1)), np.array([0.6]), Poisson(), **options)
    return found.gradient_sum(np.zeros(1), 0.3) == 0.2


def scores_of_any_size_are_clipped():
    """Of a log link, in plain arithmetic: compiled kernels have the limit of exponents in them."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setenv("DPGLM_KERNELS", "numpy")
        sums = [
            Objective(np.ones((1, 1)), np.ones(1), loss, fit_intercept=False).gradient_sum(at, 0.3)
            for loss, at in ((Poisson(), np.array([1e3])), (Gamma(), np.array([-1e3])))
        ]
    return np.allclose(sums, [[0.3], [-0.3]])


def a_target_costs_no_more_than_the_budget():
    return DPLinearRegression(epsilon=1.0).plan(1000, 3).ledger.epsilon() <= 1.0


def zeros_have_no_size():
    X, y = np.random.default_rng(0).normal(size=(400, 2)), np.arange(400) < 3
    return DPPoissonRegressor(epsilon=2.0).fit(X, y.astype(float)).target_range_ == (0.0, 1.0)


def a_search_states_all_that_it_releases():
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = DPLogisticRegression(max_iter=1, preconditioner=None)
    with record() as tape:
        search = PrivateSearchCV(model, {"clip_schedule": [0.1, 1.0]}).fit(X, np.arange(60) % 2)
    released = composed_mu(run_lengths(release.event for release in tape.releases))
    return released <= search.privacy_.mu()


def settings_are_chosen_by_the_law_that_is_charged(relation="zero_out"):
    labels, epsilon = np.repeat([0, 1, 2], [20, 30, 40]), 0.2
    moves = 2 if relation == "replace_one" else 1
    budget, event = PrivacyBudget(1.0, DELTA, relation), ChoiceEvent(epsilon)
    rows, entropy = LabelledRows(np.zeros((90, 1)), labels), entropy_source()
    models = [DummyClassifier(strategy="constant", constant=label) for label in range(3)]
    models = [model.fit(np.zeros((90, 1)), labels) for model in models]
    vaults = (SearchVault(rows, [(event, 1)], budget, entropy) for _ in range(N_FITS))
    chosen = [vault.choose_model(models, epsilon) for vault in vaults]
    law = np.exp(epsilon / moves * np.array([20, 30, 40]))
    counts = np.bincount(chosen, minlength=3)
    return audit_choices(ChoiceCounts(counts, law / law.sum(), epsilon)).passed


def a_run_ends_before_the_budget_does():
    model = DPLogisticRegression(**{**PLAIN, "max_iter": "budget"}, noise_multiplier=9.05)
    return model.plan(9, 1).ledger.epsilon() <= ONE


def batches_have_the_law_of_poisson_samples():
    entropy = entropy_source()
    sizes = [len(vaults.poisson_sample(1000, 0.1, entropy)) for _ in range(1000)]
    return 0.7 < np.var(sizes) / 90 < 1.35


def sampled_sums_stay_on_their_grid():
    """Whatever multiplies a released sum by a private number takes it off the grid."""
    rows = Objective(np.zeros((101, 20)), np.ones(101), Logistic(), fit_intercept=False)
    budget = PrivacyBudget(math.inf, 1e-6)
    vault = Vault(rows, [(SampledGaussianEvent(0.5, 2.0), 1)], budget, entropy_source())
    noisy = vault.gradient_sum(np.zeros(20), 1.0, 2.0, 0.5)
    return bool((noisy % vaults.grid_spacing(2.0) == 0).all())


@dataclass(frozen=True)
class Bug:
    """What is wrong, how to plant it, and an audit or a property that sees it.

    ``system`` names a published program or text that has, or had, the bug.
    """

    name: str
    plant: Callable[[Any], None]
    audit: Callable[[], Any] | None = None
    claim: Callable[[], bool] | None = None
    system: str = ""


replaced = partial(gradients, neighboring_relation="replace_one")
weighted = partial(gradients, class_weight={0: 1.0, 1: 3.0}, classes=[0, 1])
sampled = partial(gradients, **SAMPLED, sampling_rate=0.2)
swapped = partial(replaced, **SAMPLED, sampling_rate=0.2)
exchanged = partial(swapped, batches="without_replacement")
two_steps = partial(gradients, max_iter=2, averaging=None, momentum=None, step_schedule=0.5)
averaged = partial(gradients, averaging="uniform", momentum="bias_corrected", max_iter=10)
whitened = partial(gradients, **WHITE)

BUGS = [
    Bug("half of the noise", half_noise, gradients),
    Bug("noise of the mean on the sum", noise_of_the_mean_on_the_sum, gradients,
        system="an example of jax_privacy (its issue 383)"),
    Bug("noise reused in every iteration", reused_noise, gradients),
    Bug("no noise in one chunk", no_noise_in_one_chunk, gradients),
    Bug("no clip", changed_sum(not_clipped), gradients),
    Bug("sensitivity of zero-out under replace-one", half_noise, replaced,
        system="the RDP accountant of dp_accounting 0.6.0 under REPLACE_ONE"),
    Bug("relation ignored", one_relation_for_all, replaced),
    Bug("class weights after the clip", changed_sum(times(3)), weighted),
    Bug("last iterate without noise", every_other_release_without_noise, two_steps),
    Bug("half of the noise under averaging", half_noise, averaged),
    Bug("twice the sampling rate", rate_times(2), sampled),
    Bug("half of the noise of batches", half_noise, sampled),
    Bug("relation ignored in batches", one_relation_for_all, swapped,
        system="the RDP accountant of dp_accounting 0.6.0 under REPLACE_ONE"),
    Bug("half of the noise of batches of a fixed size", half_noise, exchanged),
    Bug("half of the noise of magnitudes", half_of_the_noise_of_magnitudes, magnitudes),
    Bug("magnitudes of one column charged for all", one_column_for_all, magnitudes),
    Bug("magnitudes of zero-out under replace-one", magnitudes_of_one_record_alone,
        partial(magnitudes, neighboring_relation="replace_one")),
    Bug("half of the noise of lengths", half_of_the_noise_of_lengths, lengths),
    Bug("second moment of rows too long", moment_of_long_rows, moments),
    Bug("half of the noise of the second moment", half_of_the_noise_of_the_moment, moments),
    Bug("no noise off the diagonal", no_noise_off_the_diagonal, cross_moments),
    Bug("half of the noise of adaptive gradients", half_noise, adaptive),
    Bug("a refinement that repeats its gradient", reused_gradient, refined),
    Bug("releases that are not charged", release_for_free, adaptive),
    Bug("half of the noise of choices", scaled_choices(0.5), partial(choices)),
    Bug("range not doubled under replace-one", one_relation_for_all,
        partial(choices, neighboring_relation="replace_one")),
    Bug("noisy minimum of the wrong sign", noisy_min_of_the_wrong_sign, partial(choices),
        system="DP-AGD, common/noisy_max.py"),
    Bug("one-sided noise of the wrong sign", losing_noise, flipped,
        system="DP-AGD, common/noisy_max.py"),
    Bug("half of the noise of mutations", scaled_choices(0.5), partial(choices, PrivGene)),
    Bug("L = 1 for rows that are longer", lipschitz_of_one,
        partial(baseline, DescentOutputPerturbation, max_iter=20),
        system="the baselines of DP-AGD's program"),
    Bug("one gradient step charged for all", one_step_charged_for_all,
        partial(baseline, DescentOutputPerturbation, max_iter=20)),
    Bug("half of the noise of a tilt", half_noise, partial(baseline, ObjectivePerturbation)),
    Bug("half of the one-sided noise", scaled_choices(0.5, selection.LaplaceSelection), flipped),
    Bug("a solver that leaks exact sums", leaking_solver, gradients),
    Bug("half of the noise of counts", half_noise, partial(baseline, MajorityClassifier)),
    Bug("a range from the lower bound to the lower bound", released(of_no_range), targets,
        system="LinearRegression of diffprivlib"),
    Bug("noise for the range on a sum of targets themselves",
        changed("target_sum", of_targets_themselves), targets, system="DP-EBM of interpret"),
    # One fit on canaries cannot see these.
    Bug("a recorder that an auditor leaves in", recorder_left_on,
        claim=an_audit_leaves_no_recorder_behind),
    Bug("intercept outside of the clip", changed_sum(intercept_not_clipped),
        claim=no_record_moves_a_sum_by_more_than_the_clip),
    Bug("batches of a fixed size, charged as Poisson", batches_of_fixed_size,
        claim=batches_have_the_law_of_poisson_samples, system="SGD-MA in DP-AGD's program"),
    Bug("division by the batch size that came out", divided_by_the_batch,
        claim=sampled_sums_stay_on_their_grid, system="Yu et al. (2018), Algorithm 1"),
    Bug("rows of a person clipped one by one", rows_of_a_person_one_by_one,
        claim=no_person_moves_a_release_by_more_than_charged),
    Bug("a run that goes on once the budget is spent", one_iteration_too_many,
        claim=a_run_ends_before_the_budget_does),
    Bug("a search that forgets to charge a candidate", one_candidate_for_free,
        claim=a_search_states_all_that_it_releases),
    Bug("a search that chooses without noise", scaled_choices(1e-9),
        claim=settings_are_chosen_by_the_law_that_is_charged),
    Bug("a search whose range is not doubled under replace-one", one_relation_for_all,
        claim=partial(settings_are_chosen_by_the_law_that_is_charged, "replace_one")),
    Bug("a null record in the bin of its target", changed("target_histogram", of_every_row),
        claim=no_target_moves_a_release_by_more_than_charged),
    Bug("a sum of targets that are not cut", changed("target_sum", not_cut),
        claim=no_target_moves_a_release_by_more_than_charged),
    Bug("half of the range where targets are replaced", one_relation_for_all,
        claim=partial(no_target_moves_a_release_by_more_than_charged, "replace_one")),
    Bug("a histogram of targets of zero-out under replace-one", magnitudes_of_one_record_alone,
        claim=partial(no_target_moves_a_release_by_more_than_charged, "replace_one")),
    Bug("weights after the clip", changed_sum(weighted_after_the_clip),
        claim=weights_come_before_the_clip),
    Bug("exponents without a limit",
        lambda patch: patch.setattr(losses, "LARGEST_EXPONENT", math.inf),
        claim=scores_of_any_size_are_clipped),
    Bug("exposures above the largest weight", weights_not_cut,
        claim=no_target_moves_a_release_by_more_than_charged),
    Bug("last steps of an intercept without a clip",
        wrapped(descent, "settle_intercept", last_steps_without_a_clip),
        claim=no_target_moves_a_release_by_more_than_charged),
    Bug("releases of a target that are not charged",
        wrapped(plans, "total_fraction", lambda *_: 0.0),
        claim=a_target_costs_no_more_than_the_budget),
    Bug("a bin of zeros that gives the range", changed("target_histogram", with_zeros),
        claim=zeros_have_no_size),
]  # fmt: skip
