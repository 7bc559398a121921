"""``python -m dpglm plan``: what a fit would release and spend, from public numbers alone."""

import argparse
from typing import Any

from sklearn.base import BaseEstimator

from dpglm.calculator import PrivacyCalculator
from dpglm.commands.options import at_least, between_0_and_1, number, positive, share
from dpglm.commands.plan_report import Shape, plan_report
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.logistic import DPLogisticRegression
from dpglm.estimators.svm import DPLinearSVM
from dpglm.preconditioning import DEFAULT_ROW_BOUND
from dpglm.privacy.events import NEIGHBORING_RELATIONS

__all__ = ["add_parser"]

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
