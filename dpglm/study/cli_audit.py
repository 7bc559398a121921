"""``python -m dpglm audit``: fit on artificial records, and test the claims of the estimators."""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from dpglm.audit.report import AuditReport, audit_estimator, audit_table
from dpglm.baselines.majority import MajorityClassifier
from dpglm.baselines.newton import DoubleNoiseNewton
from dpglm.baselines.objective_perturbation import (
    ApproximateMinimaPerturbation,
    ObjectivePerturbation,
)
from dpglm.baselines.output_perturbation import OutputPerturbation
from dpglm.baselines.privgene import PrivGene
from dpglm.baselines.sgd import SGDAdvancedComposition, SGDMomentsAccountant
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.schedules import DecayingClip
from dpglm.study.cli_options import at_least, between_0_and_1, positive
from dpglm.study.plots import AuditDisplay

__all__ = ["ESTIMATORS", "add_parser"]

# What each name stands for, how to make it from a budget, and settings of its audit.
ESTIMATORS: dict[str, tuple[str, Callable[..., BaseEstimator], dict[str, Any]]] = {
    "logistic": ("DPLogisticRegression", DPLogisticRegression, {}),
    "logistic-softmax": (
        "with four classes",
        partial(DPLogisticRegression, classes=[0, 1, 2, 3]),
        {},
    ),
    "logistic-replace-one": (
        "under replace_one",
        partial(DPLogisticRegression, neighboring_relation="replace_one"),
        {},
    ),
    "logistic-decaying-clip": (
        "without preconditioner, with a clip that decays and a heavy ball",
        partial(
            DPLogisticRegression,
            preconditioner=None,
            clip_schedule=DecayingClip(1.0),
            momentum="heavy_ball",
            averaging="uniform",
        ),
        {},
    ),
    "logistic-minibatch": (
        "on random batches",
        partial(DPLogisticRegression, sampling_rate=0.2, max_iter=40, preconditioner=None),
        {},
    ),
    "logistic-threads": (
        "on dense rows, in two threads",
        DPLogisticRegression,
        {"container": "dense"},
    ),
    "logistic-blocks": (
        "on rows read block by block",
        DPLogisticRegression,
        {"container": "blocks"},
    ),
    "logistic-dask": (
        "on the partitions of a Dask array",
        DPLogisticRegression,
        {"container": "dask"},
    ),
    "svm": ("DPLinearSVM", DPLinearSVM, {}),
    "agd": ("DPAGDClassifier", DPAGDClassifier, {}),
    "agd-whitened": (
        "with a full preconditioner",
        partial(DPAGDClassifier, preconditioner="full", clip_schedule=0.5, n_splits=20),
        {},
    ),
    "agd-published": ("with the constants of Lee & Kifer", DPAGDClassifier.as_published, {}),
    "objective-perturbation": ("ObjectivePerturbation", ObjectivePerturbation, {}),
    "output-perturbation": ("OutputPerturbation", OutputPerturbation, {}),
    "approximate-minima": ("ApproximateMinimaPerturbation", ApproximateMinimaPerturbation, {}),
    "newton": ("DoubleNoiseNewton", DoubleNoiseNewton, {}),
    "privgene": ("PrivGene", PrivGene, {}),
    "sgd-moments": ("SGDMomentsAccountant", partial(SGDMomentsAccountant, max_iter=100), {}),
    "sgd-advanced": ("SGDAdvancedComposition", SGDAdvancedComposition, {}),
    "majority": ("MajorityClassifier", MajorityClassifier, {}),
}


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-parsers."""
    names = "\n".join(f"  {name:<24}{text}" for name, (text, *_) in ESTIMATORS.items())
    parser = commands.add_parser(
        "audit",
        help="test on artificial records whether the noise is what is claimed",
        description="Fit estimators on artificial records, and test whether they are as private as "
        "they claim. The exit code is 1 if one is not.",
        epilog=f"estimators:\n{names}\n\nAn audit at a larger epsilon sees smaller errors: the "
        "code that adds the noise is the same.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, parser=parser)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--all", action="store_true", help="audit every estimator, one table")
    chosen.add_argument(
        "--estimator", choices=list(ESTIMATORS), default="logistic", metavar="NAME",
        help="see below; default: %(default)s",
    )  # fmt: skip
    for option, kind, default, metavar, text in (
        ("--epsilon", positive, 5.0, "E", "default: %(default)g"),
        ("--delta", between_0_and_1, 1e-6, "D", "default: %(default)g"),
        ("--canaries", at_least(100), 2000, "M", "records in one fit; default: %(default)s"),
        ("--fits", at_least(100), 1000, "F", "of choices, and from outside; default: %(default)s"),
        ("--false-alarm", between_0_and_1, 1e-6, "A", "of each test; default: %(default)g"),
        ("--plot", Path, None, "FILE.png", "draw what was seen"),
    ):
        parser.add_argument(option, type=kind, default=default, metavar=metavar, help=text)
    parser.add_argument(
        "--black-box", action="store_true", help="look at the coefficients alone, from outside"
    )


def _run(arguments: argparse.Namespace) -> int:
    parser = arguments.parser
    _check_plot(arguments)
    names = list(ESTIMATORS) if arguments.all else [arguments.estimator]
    begin, reports = time.perf_counter(), []
    for name in names:
        if arguments.all and sys.stderr.isatty():
            print(f"auditing {name} ...", file=sys.stderr)
        try:
            reports.append(_audited(name, arguments))
        except (ValueError, ImportError) as problem:
            parser.error(f"{name}: {' '.join(str(problem).split())}")
    print(audit_table(reports))
    failed = [report for report in reports if not report.passed]
    print()
    if len(reports) == 1:
        print(reports[0].verdict)
    else:
        for report in failed:
            print(report.verdict)
        seconds = time.perf_counter() - begin
        print(f"{len(reports) - len(failed)} of {len(reports)} audits passed in {seconds:.0f} s.")
    if arguments.plot is not None:
        try:
            AuditDisplay.from_report(reports[0]).plot().figure_.savefig(arguments.plot, dpi=150)
        except OSError as problem:
            parser.error(f"argument --plot: {problem}")
    return 1 if failed else 0


def _check_plot(arguments: argparse.Namespace) -> None:
    """Refuse, before the work is done, what cannot be drawn."""
    error, path = arguments.parser.error, arguments.plot
    if path is None:
        return
    if arguments.all:
        error("argument --plot: draws one estimator; name it with --estimator")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        error('argument --plot: needs matplotlib: pip install "dpglm[plot]"')
    suffixes = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:] not in suffixes:
        error(f"argument --plot: {path} must end in one of {', '.join(suffixes)}")
    if not path.parent.is_dir():
        error(f"argument --plot: {path.parent} is no directory")


def _audited(name: str, arguments: argparse.Namespace) -> AuditReport:
    _, make, settings = ESTIMATORS[name]
    estimator = make(epsilon=arguments.epsilon, delta=arguments.delta)
    with warnings.catch_warnings():
        # That delta is large for so few records is no matter: they are artificial.
        warnings.simplefilter("ignore")
        report = audit_estimator(
            estimator,
            n_canaries=arguments.canaries,
            n_fits=arguments.fits,
            false_alarm=arguments.false_alarm,
            black_box=arguments.black_box,
            **settings,
        )
    return replace(report, name=name)
