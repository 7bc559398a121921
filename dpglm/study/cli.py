"""The command line, ``python -m dpglm``: what is typed, and the commands that it runs."""

import argparse
import csv
import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from sklearn.base import BaseEstimator

import dpglm
from dpglm.audit.report import AuditReport, audit_estimator, audit_table
from dpglm.baselines.perturbation import DEFAULT_MAX_ROW_NORM
from dpglm.exceptions import require
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS
from dpglm.privacy.ledger import PrivacyLedger, rounded_up
from dpglm.privacy.odometer import PrivacyOdometer
from dpglm.schema import Schema
from dpglm.schema.columns import FILL_IN
from dpglm.schema.table import plain_path
from dpglm.sources.csv import read_texts, read_untyped
from dpglm.study import methods
from dpglm.study.comparison import compare
from dpglm.study.methods import AUDITED, COMPARED, DATASETS, LOSSES, METHODS, PLANNED
from dpglm.study.models import fit_csv, predict_csv
from dpglm.study.planning import MOST_ITERATIONS, plan_as_asked
from dpglm.study.plots import plot
from dpglm.study.privacy_report import PrivacyReport
from dpglm.study.report import html_report
from dpglm.study.results import ComparisonResults, ResultsFile, one_line
from dpglm.tables import text_table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with the arguments of the process, or with others.

    The exit code is 0, or 1 if a part of the work failed, or 130 if it was interrupted. It is 141
    if nobody read on. A bad argument raises ``SystemExit(2)``.
    """
    parser = _Parser(
        prog="dpglm" if Path(sys.argv[0]).stem == "dpglm" else "python -m dpglm",
        description="Differentially private linear classifiers for scikit-learn.",
    )
    parser.add_argument("--version", action="version", version=f"dpglm {dpglm.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (add, run, text, description) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=description)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.set_defaults(run=run, parser=command)
        add(command)
    arguments = parser.parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # As in ``dpglm plan ... | head -1``. Python would try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _show_warning(message: Warning, category: type[Warning], *_: Any) -> None:
    """Print a warning without the line of our code that it came from."""
    print(f"{category.__name__}: {message}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        # The arguments that were typed may hold line breaks.
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")


@contextmanager
def _refused(arguments: argparse.Namespace, what: str = "") -> Iterator[None]:
    """Refuse arguments in one line, if an error of ours is raised in this block."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError) as problem:
        ledger = getattr(problem, "privacy_ledger", None)
        spent = "" if ledger is None else f" This was spent: {ledger}"
        arguments.parser.error(f"{what}{problem}{spent}")


def _add_options(parser: Any, *options: tuple[str, Any, Any, str | None, str]) -> None:
    """Add arguments: name, kind (or choices, or None for a flag), default, placeholder, help."""
    for option, kind, default, metavar, text in options:
        if kind is None:
            parser.add_argument(option, action="store_true", help=text)
        elif isinstance(kind, list):
            parser.add_argument(option, choices=kind, default=default, help=text)
        else:
            parser.add_argument(option, type=kind, default=default, metavar=metavar, help=text)


def _kind(read: Callable, legal: Callable[[Any], bool], otherwise: str) -> Callable[[str], Any]:
    """Return the reader of a kind of argument, which is refused in one line that says why."""

    def read_legal(text: str) -> Any:
        try:
            value = read(text)
            if legal(value):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} {otherwise}")

    return read_legal


def _path(text: str, folder: bool = False) -> Path:
    try:
        return plain_path(text, folder=folder)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


_folder = partial(_path, folder=True)
_number = _kind(float, lambda x: not math.isnan(x), "is not a number")
_between_0_and_1 = _kind(_number, lambda x: 0 < x < 1, "must be above 0 and below 1")
_share = _kind(_number, lambda x: 0 < x <= 1, "must be above 0 and at most 1")
# Far enough from overflow to be squared.
_LEAST, _MOST, _MODERATE = 1e-100, 1e100, "must be above 0, from 1e-100 to 1e100"
_positive = _kind(_number, lambda x: _LEAST <= x <= _MOST, _MODERATE)
_penalty = _kind(_number, lambda x: x == 0 or _LEAST <= x <= _MOST, _MODERATE)


def _whole(text: str) -> int:
    """Return a whole number, also one that is written as 1e5."""
    number = float(text)
    return int(number) if "e" in text.lower() and number.is_integer() else int(text)


def _at_least(least: int) -> Callable[[str], int]:
    return _kind(_whole, lambda x: x >= least, f"must be a whole number, {least} or more")


def _listed(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the reader of a list with commas, of names that are known."""

    def names_in(text: str) -> list[str]:
        names = list(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is unknown; choose from {', '.join(known)}"
                )
        return names

    return names_in


def _epsilons(text: str) -> list[float]:
    epsilons = sorted({_number(part) for part in text.split(",")})
    if not epsilons[0] > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: every epsilon must be above 0")
    return epsilons


_TABLE = ("table", _path, None, "TABLE.csv", "with a header")
_LIMIT = (
    "--limit", _positive, None, "E", "of the total, at --delta, if --odometer begins a new file"
)  # fmt: skip


def _add_compare(parser: Any) -> None:
    parser.epilog = _epilog()
    _add_options(
        parser.add_argument_group("what to compare"),
        ("--quick", None, False, None,
         "a few estimators and the logistic loss only, unless other options name more"),
        ("--estimators", _listed(["all", *COMPARED]), None, "NAME,...",
         "see below; all for every one"),
        ("--loss", _listed(["both", *LOSSES]), None, "LOSS",
         "keep what minimises it: logistic, svm or both"),
        ("--epsilons", _epsilons, "0.1,0.4,1", "E,...", "default: %(default)s"),
        ("--delta", _between_0_and_1, 1e-6, "D", "default: %(default)s"),
        ("--max-iter", _at_least(1), None, "T", "of private estimators; default: their own"),
    )  # fmt: skip
    _add_options(
        parser.add_argument_group("on which data"),
        ("--datasets", _listed(DATASETS), None, "NAME,...",
         f"of {', '.join(DATASETS)}; default: census, an artificial one without files"),
        ("--data-home", _folder, None, "FOLDER", "with the files of the others; "
         "default: $DPGLM_DATA, else scikit-learn downloads them"),
        ("--csv", _path, None, "FILE.csv", "compare on a table of your own, with a header"),
        ("--schema", _path, None, "FILE.json", "its public bounds, categories and labels"),
        ("--target", str, None, "COLUMN", "its labels; default: as the schema says"),
        ("--n-samples", _at_least(4), None, "N",
         f"draw so many rows; default: {methods.CENSUS_ROWS} of census, else all"),
    )  # fmt: skip
    _add_options(
        parser.add_argument_group("how"),
        ("--folds", _at_least(2), 5, "K", "default: %(default)s"),
        ("--repeats", _at_least(1), 1, "R", "default: %(default)s"),
        ("--seed", _at_least(0), None, "S", "makes the noise reproducible; default: fresh"),
        ("--jobs", _at_least(1), 1, "J", "number of processes; default: %(default)s"),
    )
    _add_options(
        parser.add_argument_group("what to keep"),
        ("--output", _path, None, "FILE.jsonl", "finished fits, which are not repeated: "
         "the same command continues where it was interrupted"),
        ("--html", _path, None, "FILE.html", "a report that needs no other file"),
        ("--plot", _path, None, "FILE.png", "a figure for each dataset"),
        ("--json", _path, None, "FILE.json", "the table"),
        ("--odometer", _path, None, "FILE.jsonl", "charge each private fit to this "
         "PrivacyOdometer, within its limit"),
        _LIMIT,
    )  # fmt: skip


def _epilog() -> str:
    groups = {"estimators compared by default": ("quick", "default"), "others": ("more",)}
    parts = [
        f"{title}:\n"
        + "\n".join(f"  {name:<28}{m.text}" for name, m in METHODS.items() if m.group in group)
        for title, group in groups.items()
    ]
    quick = f"--quick keeps {', '.join(methods.select(quick=True))}."
    warning = "The scores are computed without noise: publish them only if the data are public."
    return "\n\n".join((*parts, quick, warning))


def _compare(arguments: argparse.Namespace) -> int:
    _check_files(arguments)
    odometer = _odometer_of(arguments, "compare")
    tables = _load(arguments)
    estimators = _make_estimators(arguments, tables)

    # Without --output the finished fits are kept all the same, in case of an interruption.
    output, temporary = arguments.output, arguments.output is None
    if temporary:
        handle, output = tempfile.mkstemp(prefix="dpglm-compare-", suffix=".jsonl")
        os.close(handle)
    try:
        with _charged(odometer):
            results = compare(
                tables, estimators, epsilons=arguments.epsilons, delta=arguments.delta,
                n_splits=arguments.folds, n_repeats=arguments.repeats, seed=arguments.seed,
                n_jobs=arguments.jobs, results_file=output, progress=True,
            )  # fmt: skip
    except KeyboardInterrupt:
        sentence = f"Interrupted. To resume, run the same command with --output {output}"
        print(sentence, file=sys.stderr)
        return 130
    if temporary:
        os.unlink(output)
    _write(results, arguments)
    return 1 if results.errors else 0


def _odometer_of(arguments: argparse.Namespace, label: str) -> PrivacyOdometer | None:
    """Return the odometer that was named, with the limit that was given."""
    path, limit = arguments.odometer, arguments.limit
    if path is None:
        if limit is not None:
            arguments.parser.error("argument --limit: is that of --odometer, which is not given")
        return None
    with _refused(arguments, "argument --odometer: "):
        odometer = PrivacyOdometer(path, limit, label=label)
        if limit is not None and PrivacyOdometer(path).epsilon is None:
            if path.exists() and path.stat().st_size:
                raise ValueError(f"{path} was begun without a limit; --limit begins a new file.")
            odometer = PrivacyOdometer(path, limit, arguments.delta, label=label)
    return odometer


@contextmanager
def _charged(odometer: PrivacyOdometer | None) -> Iterator[None]:
    """Charge the fits of this block to an odometer, and say so if it begins without a limit."""
    begun = odometer is not None and not odometer.path.exists()
    with odometer or nullcontext():
        if begun and odometer.epsilon is None:
            print(f"{odometer.path} was begun new, without a limit.", file=sys.stderr)
        yield


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse, before any work, files that could not be written after it."""
    error = arguments.parser.error
    options = ("output", "html", "plot", "json", "odometer")
    given = {o: path for o in options if (path := getattr(arguments, o)) is not None}
    if len({path.absolute() for path in given.values()}) < len(given):
        error(f"{', '.join(f'--{option}' for option in given)} must name different files")
    if "plot" in given or "html" in given:
        _check_figure(arguments, "plot" if "plot" in given else "html")
    _check_writable(arguments, given)
    if arguments.output is not None:
        with _refused(arguments, "argument --output: "):
            ResultsFile(arguments.output).read()


def _check_writable(arguments: argparse.Namespace, given: Mapping[str, Path]) -> None:
    """Refuse files that cannot be written: seen by opening them, and removed if they are new."""
    for option, path in given.items():
        existed = path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            open(path, "ab").close()
        except OSError as problem:
            reason = f"{path} cannot be written ({problem.strerror})"
            arguments.parser.error(f"argument --{option}: {reason}")
        if not existed:
            path.unlink()


def _check_folder(arguments: argparse.Namespace, option: str) -> None:
    """Refuse a file whose folder is missing: its name may be misspelt."""
    path = getattr(arguments, option)
    if path is not None and not path.parent.is_dir():
        arguments.parser.error(f"argument --{option}: {path.parent} is no folder")


def _refuse_json(path: Path) -> None:
    with open(path, "rb") as file:
        if file.read(1) in (b"{", b"["):
            raise ValueError(f"{path} is JSON and not a table; are two files swapped?")


def _check_figure(arguments: argparse.Namespace, option: str) -> None:
    """Refuse a figure that cannot be drawn, or not in the format that its name asks for."""
    path = arguments.plot
    with _refused(arguments):
        figure = require("matplotlib.figure", "plot", f"argument --{option}:").Figure()
    suffixes = sorted(figure.canvas.get_supported_filetypes())
    if path is not None and path.suffix[1:] not in suffixes:
        arguments.parser.error(f"argument --plot: {path} must end in one of {', '.join(suffixes)}")


def _load(arguments: argparse.Namespace) -> dict[str, methods.Table]:
    error = arguments.parser.error
    own = arguments.csv is not None
    if own and arguments.datasets is not None:
        error("argument --csv: not allowed with --datasets")
    if own and arguments.schema is None:
        error("argument --csv: needs --schema, a JSON file with public bounds (dpglm.Schema)")
    for option in ("schema", "target"):
        if getattr(arguments, option) is not None and not own:
            error(f"argument --{option}: describes the table of --csv, which is not given")
    with _refused(arguments):
        return methods.load_tables(
            arguments.datasets or ["census"],
            csv=(arguments.csv, arguments.schema, arguments.target) if own else None,
            data_home=arguments.data_home, n_samples=arguments.n_samples, n_splits=arguments.folds,
        )  # fmt: skip


def _make_estimators(arguments: argparse.Namespace, tables: Mapping) -> dict[str, BaseEstimator]:
    names = methods.select(arguments.estimators, losses=arguments.loss, quick=arguments.quick)
    if not names:
        given, wanted = ", ".join(arguments.estimators), " or ".join(arguments.loss)
        arguments.parser.error(f"argument --loss: none of {given} minimises {wanted}")
    options = {"delta": arguments.delta}
    if arguments.max_iter is not None:
        options["max_iter"] = arguments.max_iter
    # A budget too small, or a missing package, raises now and not after hours of fits.
    for name, epsilon, (X, y) in product(names, arguments.epsilons, tables.values()):
        estimator = methods.make_estimator(name, epsilon=epsilon, **options)
        if hasattr(estimator, "plan"):
            # The smallest training set belongs to the largest fold.
            n_training = len(y) - -(-len(y) // arguments.folds)
            with _refused(arguments, f"estimator {name}: "):
                estimator.plan(n_training, X.shape[1], len(set(y.tolist())))
    return {name: methods.make_estimator(name, **options) for name in names}


def _write(results: ComparisonResults, arguments: argparse.Namespace) -> None:
    print(results.table())
    own = "The scores have no noise: publish them only if the table may be." * bool(arguments.csv)
    if results.notes() or own:
        print("", *filter(None, [results.notes(), own]), sep="\n", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.write_text(results.to_json(), encoding="utf-8")
    if arguments.plot is not None:
        for dataset in results.datasets:
            path = arguments.plot
            if len(results.datasets) > 1:
                path = path.with_stem(f"{path.stem}-{dataset}")
            plot(results, dataset=dataset).figure_.savefig(path, dpi=150)
    if arguments.html is not None:
        arguments.html.write_text(html_report(results), encoding="utf-8")


_PLAN_EPILOG = """\
Give --epsilon alone to learn what noise it takes. Or give --noise-multiplier and two others of
--epsilon, --n-iter and --sampling-rate (1 unless it is the one left out) to learn the last:

  plan --n 48842 --epsilon 1                                    what noise do I need?
  plan --n 48842 --epsilon 1 --noise-multiplier 40              how many iterations can I afford?
  plan --n 48842 --noise-multiplier 40 --n-iter 100             what does that cost?
  plan --n 48842 --epsilon 1 --noise-multiplier 4 --n-iter 500  how large may batches be?
  plan --n 48842 --epsilon 1 --accuracy .85 --majority .76      what accuracy may I expect?
  plan --n 48842 --epsilon 1 --accuracy .85 --width .2          how wide will intervals be?

Nothing is read and no budget is spent. Plan with numbers that were chosen without looking at the
data: --n, --features and --classes are taken to be public.
"""


_n_iter = _kind(_at_least(1), lambda x: x <= MOST_ITERATIONS, f"must be at most {MOST_ITERATIONS}")


def _add_plan(parser: Any) -> None:
    parser.epilog = _PLAN_EPILOG
    parser.add_argument("--n", type=_at_least(1), required=True, metavar="N", help="records")
    _add_options(
        parser,
        ("--epsilon", _positive, None, "E", "the budget"),
        ("--delta", _between_0_and_1, 1e-6, "D", "default: %(default)s"),
        ("--features", _at_least(1), 100, "P", "columns of X; default: %(default)s"),
        ("--classes", _at_least(2), 2, "K", "default: %(default)s"),
        ("--n-iter", _n_iter, None, "T", "iterations; default: the estimator's own"),
        ("--sampling-rate", _share, None, "Q", "chance of a record to be in a batch; default: 1"),
        ("--noise-multiplier", _positive, None, "Z", "standard deviation of the noise over the "
         "clip (over twice the clip under replace_one)"),
        ("--clip", _positive, None, "C", "norm to clip gradients to, after a preconditioner "
         "relative to the length of a row; default: the estimator's own"),
        ("--alpha", _penalty, 0.0, "A", "L2 penalty; default: %(default)g"),
        ("--max-row-norm", _positive, DEFAULT_MAX_ROW_NORM, "R", "largest norm of a row, for the "
         "bounds on worthwhile iterations; default: %(default)g"),
        ("--distance", _positive, 1.0, "B", "guess of the norm of the best coefficients, for the "
         "same; default: %(default)g"),
        ("--accuracy", _between_0_and_1, None, "A", "guess of that of a model without privacy: "
         "then the plan says how much lower to expect it"),
        ("--majority", _between_0_and_1, None, "M", "guess of the share of the most frequent "
         "label, for the same; default: 1/K"),
        ("--width", _positive, None, "W", "also say how wide intervals of 0.95 will be, with half "
         "of the budget for them, and how many records make them W wide in log-odds"),
        ("--schema", _path, None, "FILE.json", "simulate that on artificial rows, P and K being "
         "those of this schema; the first label is the most frequent"),
        ("--estimator", PLANNED, "logistic", None, "default: %(default)s"),
        ("--relation", [*NEIGHBORING_RELATIONS], "zero_out", None, "default: %(default)s"),
        ("--preconditioner", ["auto", "full", "diagonal", "none"], "auto", None,
         "default: %(default)s"),
    )  # fmt: skip


def _plan(arguments: argparse.Namespace) -> int:
    try:
        with _refused(arguments):
            print(plan_as_asked(arguments))
    except ArithmeticError as problem:
        arguments.parser.error(f"these numbers are too extreme to be accounted for ({problem})")
    return 0


def _add_audit(parser: Any) -> None:
    texts = {name: m.text or type(m.estimator).__name__ for name, m in AUDITED.items()}
    names = "\n".join(f"  {name:<24}{text}" for name, text in texts.items())
    parser.epilog = (
        f"estimators:\n{names}\n\nAn audit at a larger epsilon sees smaller errors: the code that "
        "adds the noise is the same."
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--all", action="store_true", help="audit every estimator, one table")
    chosen.add_argument(
        "--estimator", choices=AUDITED, default="logistic", metavar="NAME",
        help="see below; default: %(default)s",
    )  # fmt: skip
    _add_options(
        parser,
        ("--epsilon", _positive, 5.0, "E", "default: %(default)g"),
        ("--delta", _between_0_and_1, 1e-6, "D", "default: %(default)g"),
        ("--canaries", _at_least(100), 2000, "M", "records in one fit; default: %(default)s"),
        ("--fits", _at_least(100), 1000, "F", "of choices, and from outside; default: %(default)s"),
        (
            "--false-positive-rate",
            _between_0_and_1,
            1e-6,
            "A",
            "of each test; default: %(default)g",
        ),
        ("--plot", _path, None, "FILE.png", "draw what was seen"),
        ("--black-box", None, False, None, "look at the coefficients alone, from outside"),
    )


def _audit(arguments: argparse.Namespace) -> int:
    error, path = arguments.parser.error, arguments.plot
    # Refuse what cannot be drawn before the work is done.
    if path is not None:
        if arguments.all:
            error("argument --plot: draws one estimator; name it with --estimator")
        _check_figure(arguments, "plot")
        _check_folder(arguments, "plot")

    begin, reports, missing = time.perf_counter(), [], []
    for name in AUDITED if arguments.all else [arguments.estimator]:
        if arguments.all and sys.stderr.isatty():
            print(f"auditing {name} ...", file=sys.stderr)
        with _refused(arguments, f"{name}: "):
            try:
                reports.append(_audited(name, arguments))
            except ImportError as problem:
                if not arguments.all or "pip install" not in str(problem):
                    raise
                missing.append(f"{name} was not run: {problem}")
    print(audit_table(reports), *missing, sep="\n")
    failed = [report for report in reports if not report.passed]
    print()
    for report in failed if arguments.all else reports:
        print(report.verdict)
    if arguments.all:
        seconds = time.perf_counter() - begin
        passed = f"{len(reports) - len(failed)} of {len(reports)} audits passed"
        print(f"{passed} in {seconds:.0f} s, {len(missing)} were not run.")
    if path is not None:
        with _refused(arguments, "argument --plot: "):
            plot(reports[0]).figure_.savefig(path, dpi=150)
    return 1 if failed else 0


def _audited(name: str, arguments: argparse.Namespace) -> AuditReport:
    method = AUDITED[name]
    # That delta is large for so few records is no matter: they are artificial.
    with warnings.catch_warnings(action="ignore"):
        report = audit_estimator(
            method.with_parameters(epsilon=arguments.epsilon, delta=arguments.delta),
            container=method.container, n_canaries=arguments.canaries, n_fits=arguments.fits,
            false_positive_rate=arguments.false_positive_rate, black_box=arguments.black_box,
        )  # fmt: skip
    return replace(report, name=name)


def _add_odometer(parser: Any) -> None:
    parser.add_argument("file", type=_path, metavar="FILE", help="of a PrivacyOdometer")
    _add_options(parser, ("--plot", _path, None, "FILE.png", "draw what was used, fit by fit"))


def _odometer(arguments: argparse.Namespace) -> int:
    path, figure = arguments.file, arguments.plot
    if figure is not None:
        _check_figure(arguments, "plot")
    if not path.exists():
        arguments.parser.error(f"{path} does not exist")
    with _refused(arguments):
        odometer = PrivacyOdometer(path)
        rows = [("fit", "time", "label", "part", "estimator", "epsilon", "used")]
        delta, course = odometer.delta, odometer.cumulative_epsilon()
        for number, (entry, used) in enumerate(zip(odometer.entries(), course, strict=False), 1):
            texts = (entry.time, entry.label, entry.part, entry.estimator)
            costs = rounded_up(entry.ledger.epsilon(delta)), rounded_up(used)
            rows.append((str(number), *(text or "-" for text in texts), *costs))
        if len(rows) > 1:
            print(*text_table(rows, left=range(5)), "", sep="\n")
        print(odometer)
        if odometer.epsilon is not None:
            remaining = math.floor(1e4 * odometer.remaining()) / 1e4
            print(f"One more full-batch fit may have epsilon={remaining:g} at delta={delta:g}.")
        if figure is not None:
            plot(odometer).figure_.savefig(figure, dpi=150)
    return 0


def _add_report(parser: Any) -> None:
    parser.add_argument(
        "files", type=_path, nargs="+", metavar="FILE",
        help="of a PrivacyOdometer; or a ledger (privacy_.to_dict() as JSON), a model or a report",
    )  # fmt: skip
    _add_options(
        parser,
        ("--output", _path, None, "FILE", "ends in .html, .json or .md, which is the format"),
        ("--registry", _path, None, "FILE.json", "draft an entry of the registry of deployments"),
    )


def _report(arguments: argparse.Namespace) -> int:
    _check_folder(arguments, "output")
    with _refused(arguments):
        report = PrivacyReport.from_files(*arguments.files)
        if arguments.output is not None:
            report.save(arguments.output)
        else:
            print(report.to_markdown(), end="")
        if arguments.registry is not None:
            entry = json.dumps(report.to_registry(), indent=2)
            arguments.registry.write_text(f"{entry}\n", encoding="utf-8")
    return 0


def _add_schema(parser: Any) -> None:
    _add_options(
        parser,
        _TABLE,
        ("--target", str, FILL_IN, "COLUMN", "its labels"),
        ("--name", str, "table", "NAME", "of the schema; default: %(default)s"),
        ("--check", _path, None, "FILE.json", "print instead what of the rows does not fit this "
         "schema: that is as private as they are"),
    )  # fmt: skip


def _schema(arguments: argparse.Namespace) -> int:
    with _refused(arguments):
        schema = arguments.check and methods.read_schema(arguments.check, "check")
        _refuse_json(arguments.table)
        if schema is None:
            frame = _dated(read_untyped(arguments.table).convert_dtypes())
            print(Schema.draft(frame, arguments.target, name=arguments.name).to_json())
            return 0
        # Strings, as a fit reads them.
        found = schema.check(read_texts(arguments.table).to_dict("list"))
        print(found)
    return 0 if found.endswith("No problem was found.") else 1


def _dated(frame: Any) -> Any:
    """Return a data frame with datetimes in each column that holds only datetimes or days."""
    days = [
        name
        for name, column in frame.items()
        if not column.isna().all()
        and column.dropna().astype(str).str.fullmatch(r"\d{4}-\d\d-\d\d([T ]\d\d:.*)?").all()
    ]
    return frame.assign(**dict.fromkeys(days, np.datetime64("NaT", "s")))


def _add_fit(parser: Any) -> None:
    for option, metavar in (("--schema", "FILE.json"), ("--output", "MODEL.json")):
        parser.add_argument(option, type=_path, required=True, metavar=metavar)
    parser.add_argument("--epsilon", type=_positive, required=True, metavar="E")
    _add_options(
        parser,
        ("--delta", _between_0_and_1, 1e-6, "D", "default: %(default)g"),
        _TABLE,
        ("--estimator", PLANNED, "logistic", None, "default: %(default)s"),
        ("--target", str, None, "COLUMN", "its labels; default: as the schema says"),
        ("--relation", sorted(NEIGHBORING_RELATIONS), "zero_out", None, "default: %(default)s"),
        ("--n-samples-estimate", _at_least(1), None, "N", "a public number close to that of the "
         "rows (or persons), where that is private: under add_or_remove_one"),
        ("--odometer", _path, None, "FILE.jsonl", "charge the fit to this PrivacyOdometer"),
        _LIMIT,
        ("--overwrite", None, False, None, "replace --output, a model that was paid for"),
        ("--groups", str, None, "COLUMN", "whose row each is, and no feature: all rows of a person "
         "are protected together; default: each row is taken for one person"),
        ("--max-contributions", _at_least(1), None, "K", "how many rows of a person count, "
         "the first ones"),
    )  # fmt: skip


def _fit(arguments: argparse.Namespace) -> int:
    options = ("output", "odometer")
    given = {o: path for o in options if (path := getattr(arguments, o)) is not None}
    _check_folder(arguments, "output")
    if arguments.output.exists() and not arguments.overwrite:
        arguments.parser.error(f"argument --output: {arguments.output} exists; give --overwrite")
    _check_writable(arguments, given)
    by_person = {"groups": arguments.groups, "max_contributions": arguments.max_contributions}
    if (arguments.groups is None) != (arguments.max_contributions is None):
        arguments.parser.error("--groups and --max-contributions belong together")
    odometer = _odometer_of(arguments, "fit")
    with _refused(arguments):
        _refuse_json(arguments.table)
        with _charged(odometer):
            document = fit_csv(
                arguments.table, methods.read_schema(arguments.schema), arguments.estimator,
                arguments.target, epsilon=arguments.epsilon, delta=arguments.delta,
                neighboring_relation=arguments.relation,
                n_samples_estimate=arguments.n_samples_estimate,
                **(by_person if arguments.groups else {}),
            )  # fmt: skip
        text = json.dumps(document, indent=1, ensure_ascii=False)
        arguments.output.write_text(f"{text}\n", encoding="utf-8")
    print(PrivacyLedger.from_dict(document["ledger"]))
    return 0


def _add_predict(parser: Any) -> None:
    _add_options(
        parser,
        ("model", _path, None, "MODEL.json", "as `fit` wrote it"),
        _TABLE,
        ("--probabilities", None, False, None, "and the chance of each label"),
    )


def _predict(arguments: argparse.Namespace) -> int:
    with _refused(arguments):
        _refuse_json(arguments.table)
        rows = predict_csv(arguments.model, arguments.table, arguments.probabilities)
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    return 0


# The parser, the function, the help and the description of each command.
_COMMANDS = {
    "compare": (
        _add_compare, _compare, "cross-validate private estimators against one another",
        "Cross-validate private estimators against one another, against published methods, and "
        "against the same models without privacy.",
    ),
    "plan": (
        _add_plan, _plan,
        "what a fit would cost, and how noisy it would be, before it sees any data",
        "Print the plan of a private fit: budget, noise, iterations, alternatives.",
    ),
    "audit": (
        _add_audit, _audit, "test on artificial records whether the noise is what is claimed",
        "Fit estimators on artificial records, and test whether they are as private as they claim. "
        "The exit code is 1 if one is not.",
    ),
    "schema": (
        _add_schema, _schema, "draft the schema of a table, or check one against it",
        "Print a draft of the schema of a table, to be filled in from what is public. Kinds of "
        "columns are guessed from their values; nothing else of the rows is in it.",
    ),
    "fit": (
        _add_fit, _fit, "fit a private model to a table, and write it with its ledger",
        "Fit a private linear model to all rows of a table, and write coefficients, schema and "
        "ledger to a file of JSON, which `predict` and `report` read.",
    ),
    "predict": (
        _add_predict, _predict, "predict the labels of a table by a model that was fitted",
        "Print the labels that a model predicts, as CSV. The model may be shown to anyone; what is "
        "said of a row is as private as the row.",
    ),
    "odometer": (
        _add_odometer, _odometer, "what the fits of a study have used of its limit",
        "Print the fits that a PrivacyOdometer recorded, what they have used, and what remains.",
    ),
    "report": (
        _add_report, _report,
        "what was released and what it costs, for whoever has to decide on it",
        "Write the report of ledgers, which add up, and of the odometer that has the total of all "
        "fits. Without --output it is printed.",
    ),
}  # fmt: skip
