"""The command line, ``python -m dpglm``: what is typed, and the commands that it runs."""

import argparse
import csv
import inspect
import json
import math
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from sklearn.model_selection import KFold

import dpglm
from dpglm.audit.report import audit_estimator, audit_table
from dpglm.exceptions import require
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.odometer import PrivacyOdometer
from dpglm.schema import Schema, load_schema
from dpglm.schema.columns import FILL_IN
from dpglm.schema.table import field_choices, plain_path
from dpglm.sources.csv import read_csv, read_texts, read_untyped
from dpglm.study import PrivacyReport, compare, methods, plot
from dpglm.study.comparison import encoded, one_line
from dpglm.study.methods import AUDITED, DATASETS, METHODS, PLANNED
from dpglm.study.models import fit_csv, predict_csv
from dpglm.study.planning import plan_as_asked
from dpglm.tables import Page


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with the arguments of the process, or with others.

    The exit code is 0, or 1 if a part of the work failed, or 130 if it was interrupted. It is 141
    if nobody read on. A bad argument raises ``SystemExit(2)``.
    """
    parser = _Parser(
        prog="dpglm" if Path(sys.argv[0]).stem == "dpglm" else "python -m dpglm",
        description="Differentially private linear models for scikit-learn.",
    )
    parser.add_argument("--version", action="version", version=f"dpglm {dpglm.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for run, (options, epilog) in _COMMANDS.items():
        text = inspect.getdoc(run)
        command = commands.add_parser(
            run.__name__.strip("_"), help=text.partition(".")[0], description=text, epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.set_defaults(run=run, parser=command)
        _add_options(command, options)
    for stream in (sys.stdout, sys.stderr):
        # The next command reads the output, whatever the console writes.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8")
    arguments = parser.parse_args(argv)
    try:
        with warnings.catch_warnings():
            # Without the line of our code that it came from.
            warnings.showwarning = lambda message, category, *_: print(
                f"{category.__name__}: {message}", file=sys.stderr
            )
            code = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stop:
        print("Interrupted.", *getattr(stop, "__notes__", []), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # As in ``dpglm plan ... | head -1``. Python would try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, ImportError, ArithmeticError) as problem:
        notes = getattr(problem, "__notes__", [])
        # A cost stands behind the message, its subject before it.
        if hasattr(problem, "privacy_ledger"):
            arguments.parser.error(" ".join([str(problem), *notes]))
        arguments.parser.error(": ".join([*notes, str(problem)]))


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        # The arguments that were typed may hold line breaks.
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")


def _add_options(parser: Any, options: Sequence[Any]) -> None:
    """Add arguments: name, help, placeholder, kind (or choices), default. A flag has a help only.

    An argument whose default is ... has to be given. One with dots behind its placeholder takes
    several values.
    """
    for name, text, *typed in options:
        if not typed:
            parser.add_argument(name, help=text, action="store_true")
            continue
        metavar, kind, *default = typed
        settings = {"choices": kind} if isinstance(kind, list) else {"type": _typed(kind)}
        if metavar and metavar.endswith("..."):
            settings["nargs"], metavar = "+", metavar.removesuffix("...")
        if default == [...]:
            settings["required"] = True
        elif default:
            text = f"{text}; default: {default[0]}".removeprefix("; ")
            settings["default"] = default[0]
        parser.add_argument(name, metavar=metavar, help=text, **settings)


def _typed(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let a kind of argument be refused in a line that names the argument."""

    def typed(text: str) -> Any:
        try:
            return kind(text)
        except OSError as problem:
            reason = f"{text} cannot be opened ({problem.strerror})"
        except (ValueError, ImportError) as problem:
            reason = str(problem)
        raise argparse.ArgumentTypeError(reason)

    return typed


def _whole(text: str) -> int:
    """Return a whole number of one or more, which may be written as 1e5."""
    if not (float(text) >= 1 and float(text).is_integer()):
        raise ValueError(f"{text!r} must be a whole number, 1 or more")
    return int(float(text))


def _finite(text: str) -> float:
    """Return a number that is not infinite, as an epsilon without noise is."""
    if math.isinf(float(text)):
        raise ValueError(f"{text!r} must be finite")
    return float(text)


def _output(text: str) -> Path:
    """Return a path that can be written: seen by opening it, and removed if it is new."""
    path = plain_path(text)
    existed = path.exists()
    open(path, "ab").close()
    if not existed:
        path.unlink()
    return path


def _figure(text: str) -> Path:
    """Return a path that can be written, in a format that figures have."""
    figure = require("matplotlib.figure", "plot", "it").Figure()
    suffixes = sorted(figure.canvas.get_supported_filetypes())
    if Path(text).suffix[1:] not in suffixes:
        raise ValueError(f"{text} must end in one of {', '.join(suffixes)}")
    return _output(text)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Add the subject of an error in this block to its notes."""
    try:
        yield
    except Exception as problem:
        problem.add_note(what)
        raise


def _save(path: Path | None, found: Any, **options: Any) -> None:
    """Write the figure of what was found, if it was asked for."""
    if path is not None:
        plot(found, **options).figure_.savefig(path, dpi=150)


_TABLE = ("table", "with a header", "TABLE.csv", plain_path)
_DELTA = ("--delta", "", "D", float, 1e-6)
_RELATION = ("--relation", "", None, [*NEIGHBORING_RELATIONS], "zero_out")
_PLANNED = ("--estimator", "the last three predict a number", None, [*PLANNED], "logistic")
_LIMIT = ("--limit", "of the total, at --delta, if --odometer begins a new file", "E", _finite)


def _charging(arguments: argparse.Namespace) -> AbstractContextManager:
    """Return what charges the fits of a block to the odometer that was named, if one was."""
    path, limit = arguments.odometer, arguments.limit
    if path is None:
        if limit is not None:
            raise ValueError("argument --limit: is that of --odometer, which is not given")
        return nullcontext()
    begins = not path.exists()
    if begins and limit is None:
        print(f"{path} was begun new, without a limit.", file=sys.stderr)
    with _named("argument --odometer"):
        delta = arguments.delta if begins and limit is not None else None
        return PrivacyOdometer(path, limit, delta)


_COMPARE = [
    ("--quick", "a few estimators only, unless --estimators names others"),
    ("--estimators", "see below; all for every one", "NAME...", ["all", *METHODS]),
    ("--epsilons", "", "E...", float, [0.1, 0.4, 1.0]),
    _DELTA,
    ("--max-iter", "of private estimators; default: their own", "T", _whole),
    ("--datasets", f"of {', '.join(DATASETS)}; default: census, an artificial one without files",
     "NAME...", [*DATASETS]),
    ("--data-home", "with the files of the others; default: $DPGLM_DATA, else scikit-learn "
     "downloads them", "FOLDER", partial(plain_path, folder=True)),
    ("--csv", "compare on a table of your own, with a header", "FILE.csv", plain_path),
    ("--schema", "its public bounds, categories and labels", "FILE.json", load_schema),
    ("--n-samples", f"draw so many rows; default: {methods.CENSUS_ROWS} of census, else all",
     "N", _whole),
    ("--folds", "", "K", _whole, 5),
    ("--repeats", "", "R", _whole, 1),
    ("--seed", "makes the noise reproducible; default: fresh", "S", int),
    ("--jobs", "number of processes", "J", int, 1),
    ("--output", "finished fits, which are not repeated: the same command continues where it was "
     "interrupted", "FILE.jsonl", _output),
    ("--plot", "a figure for each dataset", "FILE.png", _figure),
    ("--json", "the table", "FILE.json", _output),
    ("--odometer", "charge each private fit to this PrivacyOdometer, within its limit",
     "FILE", _output),
    _LIMIT,
]  # fmt: skip


def _names(title: str, named: Mapping[str, methods.Method], *groups: str) -> str:
    """Return the names of methods with their descriptions, those of some groups."""
    own = [(name, m.text) for name, m in named.items() if m.group in groups or not groups]
    width = max(len(name) for name, _ in own) + 2
    return "\n".join([f"{title}:", *(f"  {name:<{width}}{text}" for name, text in own)])


_COMPARE_EPILOG = f"""\
{_names("estimators compared by default", METHODS, "quick", "default")}

{_names("others", METHODS, "more")}

--quick keeps {", ".join(methods.select(quick=True))}.

The scores are computed without noise: publish them only if the data are public."""


def _compare(arguments: argparse.Namespace) -> int:
    """Cross-validate private estimators against one another.

    Published methods and the same models without privacy are compared with them.
    """
    path, schema = arguments.csv, arguments.schema
    if (path is None) != (schema is None):
        raise ValueError("--csv and --schema, a file of its public bounds, belong together")
    if schema is not None:
        schema.classes  # noqa: B018 - refuses a target that is a number, before any row is read
    with _charging(arguments):
        tables = {}
        for name in arguments.datasets or ["census"] * (path is None):
            with _named(f"argument --datasets: {name}"):
                tables[name] = methods.load_table(name, arguments.data_home, arguments.n_samples)
        if path is not None:
            with _named("argument --csv"):
                own = encoded(read_csv(path, schema))
                tables[schema.name] = methods.drawn(own, arguments.n_samples)
        names = methods.select(arguments.estimators, quick=arguments.quick)
        settings = {"delta": arguments.delta, "max_iter": arguments.max_iter}
        # A budget too small, or a missing package, raises now: before a charge, or hours of fits.
        for name, epsilon, (X, y) in product(names, arguments.epsilons, tables.values()):
            estimator = METHODS[name].with_parameters(epsilon=epsilon, **settings)
            # The smallest training set belongs to the first fold.
            training, _ = next(KFold(arguments.folds).split(X))
            with _named(f"estimator {name}"):
                if hasattr(estimator, "plan"):
                    estimator.plan(len(training), X.shape[1], len(set(y.tolist())))
        estimators = {name: METHODS[name].with_parameters(**settings) for name in names}
        results = compare(
            tables, estimators, epsilons=arguments.epsilons, delta=arguments.delta,
            n_splits=arguments.folds, n_repeats=arguments.repeats, seed=arguments.seed,
            n_jobs=arguments.jobs, results_file=arguments.output, progress=True,
        )  # fmt: skip
    print(results)
    if path is not None:
        print("The scores have no noise: publish them only if the table may be.", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.write_text(results.to_json(), encoding="utf-8")
    for dataset in results.datasets if arguments.plot is not None else ():
        path = arguments.plot
        if len(results.datasets) > 1:
            path = path.with_stem(f"{path.stem}-{dataset}")
        _save(path, results, dataset=dataset)
    return 1 if results.errors else 0


_PLAN = [
    ("--n", "records", "N", _whole, ...),
    ("--epsilon", "the budget", "E", _finite, ...),
    _DELTA,
    ("--features", "columns of X", "P", _whole, 100),
    ("--classes", "", "K", _whole, 2),
    ("--n-iter", "default: the estimator's own", "T", _whole),
    ("--sampling-rate", "chance of a record to be in a batch; default: 1", "Q", float),
    ("--clip", "norm to clip gradients to, after a preconditioner relative to the norm of a row; "
     "default: the estimator's own", "C", float),
    ("--alpha", "L2 penalty", "A", float, 0.0),
    ("--accuracy", "guess of that of a model without privacy: then the plan says how much lower to "
     "expect it, simulated on artificial rows of --schema", "A", float),
    ("--majority", "guess of the share of the first label, for the same; default: 1/K",
     "M", float),
    ("--schema", "P and K are those of this schema", "FILE.json", load_schema),
    _PLANNED,
    _RELATION,
    ("--preconditioner", "", None, ["auto", "full", "diagonal", "none"], "auto"),
]  # fmt: skip

_PLAN_EPILOG = """\
  plan --n 48842 --epsilon 1                                      what noise do I need?
  plan --n 48842 --epsilon 1 --schema adult --accuracy 0.85       what accuracy may I expect?

Nothing is read and no budget is spent: --n, --features and --classes are taken to be public.
dpglm.PrivacyCalculator turns noise, iterations and batches into one another."""


def _plan(arguments: argparse.Namespace) -> int:
    """Print the plan of a private fit, before it sees any data.

    That is its budget, noise, iterations and alternatives.
    """
    print(plan_as_asked(arguments))
    return 0


_AUDIT = [
    ("--all", "audit every estimator, one table"),
    ("--estimator", "see below; default: logistic", "NAME", list(AUDITED)),
    ("--epsilon", "", "E", _finite, 5.0),
    _DELTA,
    ("--canaries", "records in one fit", "M", _whole, 2000),
    ("--fits", "of choices and targets", "F", _whole, 1000),
    ("--false-positive-rate", "of each test", "A", float, 1e-6),
]
_AUDIT_EPILOG = f"""\
{_names("estimators", AUDITED)}

An audit at a larger epsilon sees smaller errors of the same code."""


def _audit(arguments: argparse.Namespace) -> int:
    """Test on artificial records whether the noise is what is claimed.

    The exit code is 1 if an estimator is not as private as it claims.
    """
    reports, missing = [], []
    names = [*AUDITED] if arguments.all else [arguments.estimator or "logistic"]
    for number, name in enumerate(names, 1):
        if arguments.all:
            print(f"{number} of {len(names)}: auditing {name}", file=sys.stderr, flush=True)
        method = AUDITED[name]
        try:
            # That delta is large for so few records is no matter: they are artificial.
            with _named(name), warnings.catch_warnings(action="ignore"):
                report = audit_estimator(
                    method.with_parameters(epsilon=arguments.epsilon, delta=arguments.delta),
                    n_canaries=arguments.canaries, n_fits=arguments.fits,
                    false_positive_rate=arguments.false_positive_rate,
                    container=method.container,
                )  # fmt: skip
            reports.append(replace(report, name=name))
        except ImportError as problem:
            if not arguments.all or "pip install" not in str(problem):
                raise
            missing.append(f"{name} was not run: {problem}")
    print(Page(("", audit_table(reports))), *missing, sep="\n")
    failed = [report for report in reports if not report.passed]
    print("", *(report.verdict for report in (failed if arguments.all else reports)), sep="\n")
    if arguments.all:
        passed = f"{len(reports) - len(failed)} of {len(reports)} audits passed"
        print(f"{passed}, {len(missing)} were not run.")
    return 1 if failed else 0


_SCHEMA = [
    _TABLE,
    ("--target", "what to predict", "COLUMN", str, FILL_IN),
    ("--name", "of the schema", "NAME", str, "table"),
    ("--check", "print instead what of the rows does not fit this schema: that is as private as "
     "they are", "FILE.json", load_schema),
]  # fmt: skip

_SCHEMA_EPILOG = "fields of each kind of column, and their choices:\n" + "\n".join(
    textwrap.fill(f"  {line}", 80, subsequent_indent="    ") for line in field_choices()
)


def _schema(arguments: argparse.Namespace) -> int:
    """Draft the schema of a table, or check one against it.

    A draft must be filled in from what is public. Kinds of columns are guessed from their values;
    nothing else of the rows is in it.
    """
    if arguments.check is None:
        frame = read_untyped(arguments.table).convert_dtypes()
        days = [
            name
            for name, column in frame.items()
            if not column.isna().all()
            and column.dropna().astype(str).str.fullmatch(r"\d{4}-\d\d-\d\d([T ]\d\d:.*)?").all()
        ]
        frame = frame.assign(**dict.fromkeys(days, np.datetime64("NaT", "s")))
        draft = Schema.draft(frame, arguments.target, name=arguments.name)
        print(draft.to_json())
        choices = "dpglm schema --help lists the fields of each kind of column, and their choices."
        print(*draft.doubts, choices, sep="\n", file=sys.stderr)
        return 0
    # Strings, as a fit reads them.
    found = arguments.check.check(read_texts(arguments.table).to_dict("list"))
    print(found)
    return 0 if found.endswith("No problem was found.") else 1


_FIT = [
    ("--schema", "public bounds, categories and target", "FILE.json", load_schema, ...),
    ("--output", "coefficients, schema and ledger", "MODEL.json", _output, ...),
    ("--epsilon", "the budget", "E", _finite, ...),
    _DELTA,
    _TABLE,
    _PLANNED,
    _RELATION,
    ("--n-samples-estimate", "a public number close to that of the rows (or persons), where that "
     "is private: under add_or_remove_one", "N", _whole),
    ("--odometer", "charge the fit to this PrivacyOdometer", "FILE", _output),
    _LIMIT,
    ("--overwrite", "replace --output, a model that was charged for"),
    ("--groups", "whose row each is, and no feature: all rows of a person are protected together; "
     "default: each row is taken for one person", "COLUMN", str),
    ("--max-contributions", "how many rows of a person count, the first ones", "K", _whole),
]  # fmt: skip


def _fit(arguments: argparse.Namespace) -> int:
    """Fit a private model to a table, and write it with its ledger.

    Coefficients, schema and ledger are in one file of JSON, which `predict` and `report` read.
    """
    if arguments.output.exists() and not arguments.overwrite:
        raise ValueError(f"argument --output: {arguments.output} exists; give --overwrite")
    persons = {"groups": arguments.groups, "max_contributions": arguments.max_contributions}
    given = {name: value for name, value in persons.items() if value is not None}
    if len(given) == 1:
        raise ValueError("--groups and --max-contributions belong together")
    with _charging(arguments):
        document = fit_csv(
            arguments.table, arguments.schema, arguments.estimator,
            epsilon=arguments.epsilon, delta=arguments.delta,
            neighboring_relation=arguments.relation,
            n_samples_estimate=arguments.n_samples_estimate, **given,
        )  # fmt: skip
    text = json.dumps(document, indent=1, ensure_ascii=False)
    arguments.output.write_text(f"{text}\n", encoding="utf-8")
    print(PrivacyLedger.from_dict(document["ledger"]))
    return 0


_PREDICT = [
    ("model", "as `fit` wrote it", "MODEL.json", plain_path),
    _TABLE,
    ("--probabilities", "and the chance of each label"),
]


def _predict(arguments: argparse.Namespace) -> int:
    """Predict the labels, or the numbers, of a table by a model that was fitted.

    They are printed as CSV. The model may be shown to anyone; what is said of a row is as private
    as the row.
    """
    rows = predict_csv(arguments.model, arguments.table, arguments.probabilities)
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    return 0


_ODOMETER = [
    ("file", "of a PrivacyOdometer", "FILE", plain_path),
    ("--plot", "draw what was used, charge by charge", "FILE.png", _figure),
]


def _odometer(arguments: argparse.Namespace) -> int:
    """Print what a study has used of its limit, and what remains."""
    if not arguments.file.exists():
        raise ValueError(f"{arguments.file} does not exist")
    odometer = PrivacyOdometer(arguments.file)
    print(odometer)
    _save(arguments.plot, odometer)
    return 0


_REPORT = [
    ("files", "of a PrivacyOdometer; or a ledger (privacy_.to_dict() as JSON), or a model",
     "FILE...", plain_path),
    ("--output", "ends in .html or .txt, which is the format", "FILE", _output),
]  # fmt: skip


def _report(arguments: argparse.Namespace) -> int:
    """Write what was released and what it costs, for whoever has to decide on it.

    Ledgers add up; an odometer has the total of all fits. Without --output it is printed.
    """
    report = PrivacyReport.from_files(*arguments.files)
    if arguments.output is not None:
        report.save(arguments.output)
    else:
        print(report)
    return 0


# The arguments of each command, and what follows them in its help.
_COMMANDS = {
    _compare: (_COMPARE, _COMPARE_EPILOG),
    _plan: (_PLAN, _PLAN_EPILOG),
    _audit: (_AUDIT, _AUDIT_EPILOG),
    _schema: (_SCHEMA, _SCHEMA_EPILOG),
    _fit: (_FIT, None),
    _predict: (_PREDICT, None),
    _odometer: (_ODOMETER, None),
    _report: (_REPORT, None),
}
