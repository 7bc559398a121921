"""The command that plans a run."""

import argparse
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

from dpglm.calculator import (
    PrivacyCalculator,
    ProactiveSettings,
    optimal_n_iter,
    public_constants,
    saturation_n_iter,
)
from dpglm.estimators.adaptive_plan import AdaptivePlan
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.estimators.plan import PrivacyPlan
from dpglm.estimators.whitening import DEFAULT_ROW_BOUND
from dpglm.privacy.events import NEIGHBORING_RELATIONS, Relation
from dpglm.privacy.ledger import PrivacyLedger, composed_epsilon, rounded_up
from dpglm.study.cli_options import at_least, between_0_and_1, number, positive, share

__all__ = ["Shape", "add_parser", "plan_report"]

_WIDTH = 96
_LABEL = 36
# What the theory of a penalised objective is evaluated at where there is no penalty.
_EXAMPLE_ALPHA = 1e-3

Plan = PrivacyPlan | AdaptivePlan


@dataclass(frozen=True)
class Shape:
    """The public size of a data set.

    Parameters
    ----------
    n_samples, n_features, n_classes : int
    """

    n_samples: int
    n_features: int
    n_classes: int

    def plan(self, estimator: BaseEstimator) -> Plan:
        """Return the estimator's plan for such data."""
        return estimator.plan(self.n_samples, self.n_features, self.n_classes)


def plan_report(
    estimator: BaseEstimator,
    shape: Shape,
    *,
    row_bound: float,
    distance: float,
    answer: str | None = None,
) -> str:
    """Return what an estimator would do with data of a public shape.

    Parameters
    ----------
    estimator : DPLogisticRegression, DPLinearSVM or DPAGDClassifier
    shape : Shape
    row_bound : float
        Largest L2 norm of a row, for the bounds on worthwhile iterations.
    distance : float
        Guess of the norm of the best coefficients, for the same.
    answer : str, optional
        What the noise multiplier that was asked about costs or affords.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If a parameter is out of range, or the budget is too small for the schedule.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study.cli_plan import Shape, plan_report
    >>> shape = Shape(n_samples=48842, n_features=100, n_classes=2)
    >>> report = plan_report(DPLogisticRegression(), shape, row_bound=3.0, distance=1.0)
    >>> print(report.splitlines()[0])
    DPLogisticRegression on 48,842 records, 100 features, 2 classes
    """
    plan = shape.plan(estimator)
    lines = [
        f"{type(estimator).__name__} on {shape.n_samples:,} records, {shape.n_features:,} "
        f"features, {shape.n_classes} classes",
        "Planned from public numbers alone: no data were read, and no budget is spent yet.",
    ]
    if answer is not None:
        lines += ["", *textwrap.wrap(f"ANSWER: {answer}.", _WIDTH)]
    lines += _budget(estimator.epsilon, plan.ledger, shape.n_samples)
    if isinstance(plan, AdaptivePlan):
        lines += _spending(plan)
    else:
        lines += [*_noise(plan), *_iterations_line(plan)]
        if plan.sampling_rate < 1:
            lines += _batches(estimator.epsilon, plan)
        else:
            lines += _worthwhile(plan, row_bound, distance)
    lines += _alternatives(estimator, plan, shape)
    return "\n".join(lines)


def _budget(epsilon: float, ledger: PrivacyLedger, n_samples: int) -> list[str]:
    delta, relation = ledger.reporting_delta, ledger.neighboring_relation
    lines = [
        "",
        "BUDGET",
        _line("epsilon", f"{epsilon:.6g}"),
        _line("delta", f"{delta:g} = {delta * n_samples:.2g} / {n_samples:,}"),
        *_wrapped("neighbours", f"{relation}: {NEIGHBORING_RELATIONS[relation].meaning}"),
    ]
    if delta * n_samples > 1:
        lines += _wrapped(
            "WARNING",
            "delta exceeds one over the number of records: releasing a record outright at random "
            "would satisfy it. Lower --delta.",
        )
    if all(event.mu is not None for event, _ in ledger.events):
        mu = ledger.mu()
        lines.append(
            _line("in other currencies", f"mu {mu:.4g} (GDP), rho {ledger.rho():.4g} (zCDP)")
        )
    elif all(event.rho is not None for event, _ in ledger.events):
        lines.append(_line("in another currency", f"rho {ledger.rho():.4g} (zCDP)"))
    if relation != "replace_one":
        replaced = rounded_up(composed_epsilon(ledger.events, delta, 2))
        lines.append(_line("the same run under replace_one", f"epsilon {replaced}"))
    guess = 50 * (1 + ledger.delta(0.0))
    return lines + _wrapped(
        "in plain words",
        "who has to tell from the result whether one record was used, at even odds, is right "
        f"with a probability of {guess:.1f}% at most, instead of 50%",
    )


def _noise(plan: PrivacyPlan) -> list[str]:
    facts = plan.facts
    lines = ["", "NOISE"]
    if plan.second_moment is not None:
        moment = plan.second_moment
        spent = f"{_percent(moment.preconditioner.share)} of the budget"
        multiplier = f"noise multiplier {moment.noise_multiplier:.4g}"
        lines.append(_line("first, features' second moment", f"{spent}, {multiplier}"))
    low, high = plan.noise_multiplier.min(), plan.noise_multiplier.max()
    multipliers = f"{low:.4g} each" if low == high else f"{low:.4g} to {high:.4g}"
    gradients = f"{plan.n_iter:,} gradient{'s' if plan.n_iter > 1 else ''}"
    lines.append(_line(gradients, f"noise multiplier {multipliers}"))
    each = math.sqrt(np.mean(plan.noise_multiplier**2)) * _noise_per_multiplier(plan)
    averaged = each / math.sqrt(plan.n_iter)
    lines += _wrapped(
        "noise on a mean gradient",
        f"{_of_clip(each)}, as a norm over {facts.n_released:,} coordinates; {_percent(averaged)} "
        "on the mean of all iterations",
    )
    if averaged > 1:
        lines += _wrapped(
            "WARNING",
            "even the mean of all iterations has more noise than any gradient can be long: nothing "
            "will be learned. Raise --epsilon or --n, or lower --features.",
        )
    if plan.sampling_rate == 1:
        signal = facts.n_samples * plan.ledger.mu() / _relation(plan).sensitivity_factor
        lines.append(
            _line(
                "signal per direction, n mu / d",
                f"{signal / facts.n_features:.4g} for all d = {facts.n_features:,} columns",
            )
        )
    return lines


def _iterations_line(plan: PrivacyPlan) -> list[str]:
    rows = [("iteration", "clip", "step", "multiplier", "noise / n", "epsilon so far")]
    if plan.second_moment is not None:
        multiplier = f"{plan.second_moment.noise_multiplier:.4g}"
        rows.append(("2nd moment", "", "", multiplier, "", _cost(plan.epsilon_after(1))))
    for row in plan.milestones(5):
        values = (row.clip, row.step, row.noise_multiplier, row.noise_std)
        texts = (f"{value:.4g}" for value in values)
        rows.append((f"{row.iteration:,}", *texts, _cost(row.epsilon)))
    divisor = "n" if plan.sampling_rate == 1 else "the expected batch"
    note = f"noise / n: standard deviation in each coordinate of the mean gradient (over {divisor})"
    if plan.second_moment is not None:
        note += (
            "; clip and noise are in units of the square root of the effective dimension that the "
            "second moment will show, and clip and step are shown for the largest it can be"
        )
    return ["", "ITERATIONS", *_table(rows), *_note(note)]


def _worthwhile(plan: PrivacyPlan, row_bound: float, distance: float) -> list[str]:
    mu = plan.facts.mu / _relation(plan).sensitivity_factor
    clip = None if plan.second_moment is not None else plan.clip
    facts = replace(plan.facts, mu=mu, row_bound=row_bound, clip=clip)
    saturated = saturation_n_iter(facts, distance=distance)
    penalised = replace(facts, alpha=facts.alpha or _EXAMPLE_ALPHA)
    lines = ["", "ITERATIONS WORTH THEIR NOISE, in theory"]
    lines.append(
        _line(
            "no further gain beyond", f"{_count(saturated)} at the steps of LectureStep, averaged"
        )
    )
    if facts.curvature < math.inf:
        constants = public_constants(penalised)
        dynamic, constant = (optimal_n_iter(*constants, dynamic=x) for x in (True, False))
        lines.append(
            _line(
                f"best for alpha={penalised.alpha:g}, Hong 2022",
                f"{_count(constant)} at constant noise, {_count(dynamic)} at DynamicNoise()",
            )
        )
    note = (
        f"worst cases for rows of norm {row_bound:g} as they are, and coefficients of norm "
        f"{distance:g}; they know nothing of whitening"
    )
    if facts.alpha == 0 and facts.curvature < math.inf:
        note += f"; the second needs a penalty, and {_EXAMPLE_ALPHA:g} stands in for --alpha"
    return lines + _note(note)


def _batches(epsilon: float, plan: PrivacyPlan) -> list[str]:
    rate, size = plan.sampling_rate, plan.facts.expected_batch_size
    spread = math.sqrt(size * (1 - rate))
    closed_form = ProactiveSettings(
        epsilon, plan.ledger.reporting_delta, plan.facts.n_samples, plan.n_iter, rate
    )
    looseness = closed_form.looseness()
    lines = [
        "",
        "BATCHES",
        _line("epochs", f"{plan.n_iter * rate:.4g}"),
        _line("records in a batch", f"{size:,.6g} expected, give or take {spread:.3g}"),
        *_wrapped(
            "closed form of van Dijk et al. 2024",
            f"noise multiplier {looseness.noise_multiplier:.4g} for gradients that, alone, need "
            f"{looseness.needed_noise_multiplier:.4g}; their epsilon would be "
            f"{looseness.exact_epsilon:.4g}",
        ),
    ]
    label = "  its conditions that fail"
    for condition in closed_form.broken_conditions:
        lines += _wrapped(label, condition)
        label = ""
    return lines


def _spending(plan: AdaptivePlan) -> list[str]:
    unit = {"gdp": "mu^2", "zcdp": "rho"}[plan.accountant]
    iteration = plan.gradient_cost + plan.selection_cost
    affordable = _affordable(plan)
    lines = ["", "SPENDING", _line("capacity of the filter", f"{unit} {plan.capacity:.4g}")]
    if plan.second_moment is not None:
        share = plan.second_moment_cost / plan.capacity
        lines.append(_line("first, features' second moment", f"{_percent(share)} of it"))
    multiplier = _first_multiplier(plan)
    noise = multiplier * _noise_per_multiplier(plan)
    return [
        *lines,
        _line("an iteration, at first", f"{_percent(iteration / plan.capacity)} of it"),
        _line("  its gradient", f"noise multiplier {multiplier:.4g}, clip {plan.clip[0]:.4g}"),
        *_wrapped(
            "  noise on the mean gradient",
            f"{_of_clip(noise)}, as a norm over {plan.facts.n_released:,} coordinates",
        ),
        _line("  its choice of a step", f"epsilon {plan.selection_epsilon:.4g}"),
        _line("affords at most", f"{affordable:,} iterations (max_iter is {plan.n_iter:,})"),
        *_note("each refinement of a gradient, where no step seems to help, leaves fewer"),
    ]


def _alternatives(estimator: BaseEstimator, plan: Plan, shape: Shape) -> list[str]:
    adaptive, sampled = isinstance(plan, AdaptivePlan), plan.facts.sampling_rate < 1
    changes = {
        "this plan": {},
        "half of epsilon": {"epsilon": estimator.epsilon / 2},
        "twice epsilon": {"epsilon": estimator.epsilon * 2},
    }
    if plan.ledger.neighboring_relation == "zero_out" and not sampled:
        changes["replace_one"] = {"neighboring_relation": "replace_one"}
    rows = [["", "multiplier", "noise on a mean gradient"]]
    if not sampled:
        rows[0].append("iterations afforded" if adaptive else "iterations at this plan's noise")
    noise_here = _first_multiplier(plan) * _noise_per_multiplier(plan)
    for name, change in changes.items():
        other = shape.plan(clone(estimator).set_params(**change)) if change else plan
        multiplier = _first_multiplier(other)
        noise = multiplier * _noise_per_multiplier(other)
        row = [name, f"{multiplier:.4g}", _of_clip(noise)]
        if adaptive:
            row.append(f"{_affordable(other):,}")
        elif not sampled:
            n_iter = plan.n_iter * (noise_here / noise) ** 2
            row.append(f"{math.floor(n_iter * (1 + 1e-9)):,}")
        rows.append(row)
    return ["", "ALTERNATIVES", *_table(rows, first=18)]


def _relation(plan: Plan) -> Relation:
    return NEIGHBORING_RELATIONS[plan.ledger.neighboring_relation]


def _noise_per_multiplier(plan: Plan) -> float:
    """Norm of the noise on the mean gradient over the clip, for a noise multiplier of 1."""
    size = plan.facts.expected_batch_size
    return math.sqrt(plan.facts.n_released) * _relation(plan).sensitivity_factor / size


def _first_multiplier(plan: Plan) -> float:
    if isinstance(plan, AdaptivePlan):
        return plan.noise_multiplier(plan.gradient_cost)
    return float(plan.noise_multiplier[0])


def _affordable(plan: AdaptivePlan) -> int:
    left = plan.capacity - plan.second_moment_cost
    n_iter = math.floor(left / (plan.gradient_cost + plan.selection_cost) * (1 + 1e-9))
    return min(n_iter, plan.n_iter)


def _cost(epsilon: float) -> str:
    return f"{epsilon:.4f}" if epsilon < 1000 else f"{epsilon:.5g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def _of_clip(value: float) -> str:
    return f"{_percent(value)} of the clip" if value < 10 else f"{value:.3g} times the clip"


def _count(value: int) -> str:
    return f"{value:,}" if value < 10**9 else f"{value:.2g}"


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _wrapped(label: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, _WIDTH - _LABEL - 2)
    return [_line(label, first), *(_line("", line) for line in rest)]


def _note(text: str) -> list[str]:
    return textwrap.wrap(f"({text})", _WIDTH, initial_indent="  ", subsequent_indent="   ")


def _table(rows: Sequence[Sequence[str]], first: int = 12) -> list[str]:
    """Return the rows with the first column to the left and the others to the right."""
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
    return [
        f"  {row[0]:<{first}}"
        + "".join(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


_ESTIMATORS: dict[str, type[BaseEstimator]] = {
    "logistic": DPLogisticRegression,
    "svm": DPLinearSVM,
    "agd": DPAGDClassifier,
}
# A plan lists every iteration.
_MOST_ITERATIONS = 100_000
_EPILOG = """\
Give --epsilon alone to learn what noise it takes. Or give --noise-multiplier and two others of
--epsilon, --n-iter and --sampling-rate (1 unless it is the one left out) to learn the last:

  plan --n 48842 --epsilon 1                                    what noise do I need?
  plan --n 48842 --epsilon 1 --noise-multiplier 40              how many iterations can I afford?
  plan --n 48842 --noise-multiplier 40 --n-iter 100             what does that cost?
  plan --n 48842 --epsilon 1 --noise-multiplier 4 --n-iter 500  how large may batches be?

Nothing is read and no budget is spent. Plan with numbers that were chosen without looking at the
data: --n, --features and --classes are taken to be public.
"""


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-parsers."""
    parser = commands.add_parser(
        "plan",
        help="what a fit would cost, and how noisy it would be, before it sees any data",
        description="Print the plan of a private fit: budget, noise, iterations, alternatives.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument("--n", type=at_least(1), required=True, metavar="N", help="records")
    for option, kind, default, metavar, text in (
        ("--epsilon", positive, None, "E", "the budget"),
        ("--delta", between_0_and_1, 1e-6, "D", "default: %(default)s"),
        ("--features", at_least(1), 100, "P", "columns of X; default: %(default)s"),
        ("--classes", at_least(2), 2, "K", "default: %(default)s"),
        ("--n-iter", _iterations, None, "T", "iterations; default: the estimator's own"),
        ("--sampling-rate", share, None, "Q", "chance of a record to be in a batch; default: 1"),
        ("--noise-multiplier", positive, None, "Z", "standard deviation of the noise over the clip "
         "(over twice the clip under replace_one)"),
        ("--clip", positive, None, "C", "norm to clip gradients to, after a preconditioner "
         "relative to the length of a row; default: the estimator's own"),
        ("--alpha", _penalty, 0.0, "A", "L2 penalty; default: %(default)g"),
        ("--row-bound", positive, DEFAULT_ROW_BOUND, "R", "largest norm of a row, for the bounds "
         "on worthwhile iterations; default: %(default)g"),
        ("--distance", positive, 1.0, "B", "guess of the norm of the best coefficients, for the "
         "same; default: %(default)g"),
    ):  # fmt: skip
        parser.add_argument(option, type=kind, default=default, metavar=metavar, help=text)
    for option, choices, default in (
        ("--estimator", list(_ESTIMATORS), "logistic"),
        ("--relation", list(NEIGHBORING_RELATIONS), "zero_out"),
        ("--preconditioner", ["auto", "full", "diagonal", "none"], "auto"),
    ):
        parser.add_argument(option, choices=choices, default=default, help="default: %(default)s")


def _run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.epsilon is None and arguments.noise_multiplier is None:
            raise ValueError("give --epsilon, or --noise-multiplier and --n-iter")
        answer = None if arguments.noise_multiplier is None else _solve(arguments)
        shape = Shape(arguments.n, arguments.features, arguments.classes)
        bounds = {"row_bound": arguments.row_bound, "distance": arguments.distance}
        text = plan_report(_estimator(arguments), shape, answer=answer, **bounds)
    except (ValueError, ImportError) as problem:
        arguments.parser.error(" ".join(str(problem).split()))
    except ArithmeticError as problem:
        arguments.parser.error(f"these numbers are too extreme to be accounted for ({problem})")
    print(text)
    return 0


def _solve(arguments: argparse.Namespace) -> str:
    """Fill in the number that was left out, and return it in words."""
    if arguments.estimator == "agd":
        raise ValueError("--noise-multiplier: agd decides on its noise as it runs; give --epsilon")
    if arguments.preconditioner in ("full", "diagonal"):
        raise ValueError(
            "--noise-multiplier: plans a run of equal gradients; a preconditioner would release "
            "something else before them, so leave --preconditioner out"
        )
    arguments.preconditioner = "none"
    names = ("epsilon", "delta", "noise_multiplier", "n_iter", "sampling_rate")
    run = {name: getattr(arguments, name) for name in names}
    missing = [name for name, value in run.items() if value is None]
    if not missing:
        raise ValueError(
            "--epsilon, --noise-multiplier, --n-iter and --sampling-rate determine one another; "
            "give at most three of them"
        )
    if missing[0] in ("epsilon", "n_iter") and run["sampling_rate"] is None:
        arguments.sampling_rate = run["sampling_rate"] = 1.0
        missing.remove("sampling_rate")
    if len(missing) > 1:
        raise ValueError("--noise-multiplier: give --epsilon, --n-iter or both beside it")
    (unknown,) = missing
    del run[unknown]
    calculator = PrivacyCalculator(arguments.relation)
    noise = f"noise multiplier {arguments.noise_multiplier:g}"
    if unknown == "epsilon":
        arguments.epsilon = calculator.epsilon(**run)
        return f"{noise} and {arguments.n_iter:,} iterations cost epsilon {arguments.epsilon:.4g}"
    if unknown == "n_iter":
        arguments.n_iter = calculator.max_iter(**run)
        if arguments.n_iter == 0:
            del run["noise_multiplier"]
            needed = calculator.noise_multiplier(n_iter=1, **run)
            raise ValueError(
                f"--noise-multiplier: {arguments.noise_multiplier:g} is too small for a single "
                f"iteration at epsilon={arguments.epsilon:g}, which needs {needed:.4g}"
            )
        if arguments.n_iter > _MOST_ITERATIONS:
            raise ValueError(
                f"--noise-multiplier: {arguments.noise_multiplier:g} affords {arguments.n_iter:,} "
                f"iterations, more than the {_MOST_ITERATIONS:,} of a plan; choose a smaller one"
            )
        epochs = arguments.n_iter * arguments.sampling_rate
        return (
            f"{noise} affords {arguments.n_iter:,} iterations, {epochs:,.6g} epochs, at epsilon "
            f"{arguments.epsilon:g}"
        )
    arguments.sampling_rate = calculator.sampling_rate(**run)
    return (
        f"{noise} and {arguments.n_iter:,} iterations afford a sampling rate of "
        f"{arguments.sampling_rate:.4g} at epsilon {arguments.epsilon:g}"
    )


def _estimator(arguments: argparse.Namespace) -> BaseEstimator:
    parameters = {
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "neighboring_relation": arguments.relation,
        "n_ref": arguments.n if arguments.relation == "add_or_remove_one" else None,
        "alpha": arguments.alpha,
        "classes": range(arguments.classes),
    }
    if arguments.n_iter is not None:
        parameters["max_iter"] = arguments.n_iter
    if arguments.clip is not None:
        parameters["clip_schedule"] = arguments.clip
    if arguments.preconditioner != "auto":
        none = arguments.preconditioner == "none"
        parameters["preconditioner"] = None if none else arguments.preconditioner
    if arguments.sampling_rate is not None and arguments.sampling_rate < 1:
        if arguments.estimator == "agd":
            raise ValueError("--sampling-rate: agd searches along lines through all records")
        parameters["sampling_rate"] = arguments.sampling_rate
    return _ESTIMATORS[arguments.estimator](**parameters)


def _iterations(text: str) -> int:
    value = at_least(1)(text)
    if value > _MOST_ITERATIONS:
        raise argparse.ArgumentTypeError(f"{text!r} must be at most {_MOST_ITERATIONS}")
    return value


def _penalty(text: str) -> float:
    value = number(text)
    return value if value == 0 else positive(text)
