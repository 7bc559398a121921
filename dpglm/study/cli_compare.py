"""``python -m dpglm compare``: cross-validate estimators, print the table, write the report."""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from dpglm.study.cli_data import CENSUS_ROWS, DATASETS, Table, load_tables
from dpglm.study.cli_options import at_least, between_0_and_1, number
from dpglm.study.comparison import compare
from dpglm.study.methods import LOSSES, METHODS, make_estimator, select
from dpglm.study.plots import ComparisonDisplay
from dpglm.study.report import html_report
from dpglm.study.results import ComparisonResults, ResultsFile

__all__ = ["add_parser"]

_EPSILONS = "0.1,0.4,1"


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-parsers."""
    parser = commands.add_parser(
        "compare",
        help="cross-validate private estimators against one another",
        description="Cross-validate private estimators against one another, against published "
        "methods, and against the same models without privacy.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, parser=parser)
    what = parser.add_argument_group("what to compare")
    what.add_argument(
        "--quick",
        action="store_true",
        help="a few estimators and the logistic loss only, unless other options name more",
    )
    for group, options in (
        (
            what,
            (
                ("--estimators", _names, None, "NAME,...", "see below; all for every one"),
                ("--loss", _losses, None, "LOSS", "keep what minimises it: logistic, svm or both"),
                ("--epsilons", _epsilons, _EPSILONS, "E,...", "default: %(default)s"),
                ("--delta", between_0_and_1, 1e-6, "D", "default: %(default)s"),
                ("--max-iter", at_least(1), None, "T", "of private estimators; default: their own"),
            ),
        ),
        (
            parser.add_argument_group("on which data"),
            (
                ("--datasets", _datasets, None, "NAME,...",
                 f"of {', '.join(DATASETS)}; default: census, an artificial one without files"),
                ("--data-home", Path, None, "FOLDER", "with the files of the others; "
                 "default: $DPGLM_DATA, else scikit-learn downloads them"),
                ("--csv", Path, None, "FILE.csv", "compare on a table of your own, with a header"),
                ("--schema", Path, None, "FILE.json", "its public bounds, categories and labels"),
                ("--target", str, None, "COLUMN", "its labels; default: as the schema says"),
                ("--n-samples", at_least(4), None, "N",
                 f"draw so many rows; default: {CENSUS_ROWS} of census, else all"),
            ),
        ),
        (
            parser.add_argument_group("how"),
            (
                ("--folds", at_least(2), 5, "K", "default: %(default)s"),
                ("--repeats", at_least(1), 1, "R", "default: %(default)s"),
                ("--seed", at_least(0), None, "S", "makes the noise reproducible; default: fresh"),
                ("--jobs", at_least(1), 1, "J", "number of processes; default: %(default)s"),
            ),
        ),
        (
            parser.add_argument_group("what to keep"),
            (
                ("--output", Path, None, "FILE.jsonl", "finished fits, which are not repeated: "
                 "the same command continues where it was interrupted"),
                ("--html", Path, None, "FILE.html", "a report that needs no other file"),
                ("--plot", Path, None, "FILE.png", "a figure for each dataset"),
                ("--json", Path, None, "FILE.json", "the table"),
            ),
        ),
    ):  # fmt: skip
        for option, kind, default, metavar, text in options:
            group.add_argument(option, type=kind, default=default, metavar=metavar, help=text)


def _epilog() -> str:
    groups = {
        "estimators compared by default": ("quick", "default"),
        "others": ("more",),
    }
    parts = [
        f"{title}:\n"
        + "\n".join(f"  {name:<28}{m.text}" for name, m in METHODS.items() if m.group in group)
        for title, group in groups.items()
    ]
    quick = f"--quick keeps {', '.join(select(losses=['logistic'], quick=True))}."
    warning = "The scores are computed without noise: publish them only if the data are public."
    return "\n\n".join((*parts, quick, warning))


def _run(arguments: argparse.Namespace) -> int:
    _check_files(arguments)
    tables = _load(arguments)
    estimators = _make_estimators(arguments, tables)

    # Without --output the finished fits are kept all the same, in case of an interruption.
    temporary = None
    if arguments.output is None:
        handle, temporary = tempfile.mkstemp(prefix="dpglm-compare-", suffix=".jsonl")
        os.close(handle)
    output = arguments.output or temporary
    try:
        results = compare(
            tables,
            estimators,
            epsilons=arguments.epsilons,
            delta=arguments.delta,
            n_splits=arguments.folds,
            n_repeats=arguments.repeats,
            seed=arguments.seed,
            n_jobs=arguments.jobs,
            results_file=output,
            progress=True,
        )
    except KeyboardInterrupt:
        print(
            f"Interrupted. To resume, run the same command with --output {output}",
            file=sys.stderr,
        )
        return 130
    if temporary is not None:
        os.unlink(temporary)
    _write(results, arguments)
    return 1 if results.errors else 0


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse, before any work, files that could not be written after it."""
    error = arguments.parser.error
    given = {option: getattr(arguments, option) for option in ("output", "html", "plot", "json")}
    given = {option: path for option, path in given.items() if path is not None}
    if len({path.absolute() for path in given.values()}) < len(given):
        error(f"{', '.join(f'--{option}' for option in given)} must name different files")
    if "plot" in given or "html" in given:
        option = "plot" if "plot" in given else "html"
        try:
            from matplotlib.figure import Figure
        except ImportError:
            error(f'argument --{option}: needs matplotlib: pip install "dpglm[plot]"')
        suffixes = sorted(Figure().canvas.get_supported_filetypes())
        if "plot" in given and arguments.plot.suffix[1:] not in suffixes:
            error(f"argument --plot: {arguments.plot} must end in one of {', '.join(suffixes)}")
    for option, path in given.items():
        existed = path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            open(path, "ab").close()
        except OSError as problem:
            error(f"argument --{option}: {path} cannot be written ({problem.strerror})")
        if not existed:
            path.unlink()
    if arguments.output is not None:
        try:
            ResultsFile(arguments.output).read()
        except ValueError as problem:
            error(f"argument --output: {problem}")


def _load(arguments: argparse.Namespace) -> dict[str, Table]:
    error = arguments.parser.error
    own = arguments.csv is not None
    if own and arguments.datasets is not None:
        error("argument --csv: not allowed with --datasets")
    if own and arguments.schema is None:
        error("argument --csv: needs --schema, a JSON file with public bounds (dpglm.Schema)")
    for option in ("schema", "target"):
        if getattr(arguments, option) is not None and not own:
            error(f"argument --{option}: describes the table of --csv, which is not given")
    try:
        return load_tables(
            arguments.datasets or ["census"],
            csv=(arguments.csv, arguments.schema, arguments.target) if own else None,
            data_home=arguments.data_home,
            n_samples=arguments.n_samples,
            n_splits=arguments.folds,
        )
    except (ValueError, OSError, ImportError) as problem:
        error(_one_line(problem))


def _make_estimators(
    arguments: argparse.Namespace, tables: Mapping[str, Table]
) -> dict[str, BaseEstimator]:
    losses = arguments.loss
    if losses is None and arguments.quick and arguments.estimators is None:
        losses = ["logistic"]
    names = select(arguments.estimators, losses=losses, quick=arguments.quick)
    if not names:
        arguments.parser.error(
            f"argument --loss: none of {', '.join(arguments.estimators)} minimises "
            f"{' or '.join(losses)}"
        )
    options = {"delta": arguments.delta}
    if arguments.max_iter is not None:
        options["max_iter"] = arguments.max_iter
    for name in names:
        for epsilon in arguments.epsilons:
            estimator = make_estimator(name, epsilon=epsilon, **options)
            if not hasattr(estimator, "plan"):
                continue
            for X, y in tables.values():
                n_training = len(y) - -(-len(y) // arguments.folds)
                try:
                    estimator.plan(n_training, X.shape[1], len(set(y.tolist())))
                except (ValueError, ImportError) as problem:
                    arguments.parser.error(f"estimator {name}: {_one_line(problem)}")
    return {name: make_estimator(name, **options) for name in names}


def _write(results: ComparisonResults, arguments: argparse.Namespace) -> None:
    print(results.table())
    if results.notes():
        print(f"\n{results.notes()}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.write_text(results.to_json(), encoding="utf-8")
    if arguments.plot is not None:
        for dataset in results.datasets:
            path = arguments.plot
            if len(results.datasets) > 1:
                path = path.with_stem(f"{path.stem}-{dataset}")
            display = ComparisonDisplay.from_results(results, dataset=dataset).plot()
            display.figure_.savefig(path, dpi=150)
    if arguments.html is not None:
        arguments.html.write_text(html_report(results), encoding="utf-8")


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def _listed(text: str, known: list[str]) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is unknown; choose from {', '.join(known)}")
    return names


def _names(text: str) -> list[str]:
    return _listed(text, ["all", *METHODS])


def _datasets(text: str) -> list[str]:
    return _listed(text, list(DATASETS))


def _losses(text: str) -> list[str]:
    losses = _listed(text, ["both", *LOSSES])
    return list(LOSSES) if "both" in losses else losses


def _epsilons(text: str) -> list[float]:
    epsilons = sorted({number(part) for part in text.split(",")})
    if not epsilons[0] > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: every epsilon must be above 0")
    return epsilons
