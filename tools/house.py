"""Measure the house: what must be read to trust a fit, what a fit walks through, lines and files.

``python tools/house.py`` prints the measures beside their limits and ends with 1 if one is missed;
``--borders`` adds which calls cross from one file to another, to see where a walk can be shortened.
The test of the structure calls the functions.
"""

import argparse
import ast
import importlib
import io
import sys
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "dpglm"

TRUSTED_FILES, TRUSTED_LINES = 9, 1500
NOT_TRUSTED = {"dpglm.losses", "dpglm.exceptions"}
ADAPTIVE = {
    "PrivacyFilter", "line_losses", "line_terms", "_repeated", "_bounded_losses", "_capped_losses",
    "_knee",
}  # fmt: skip
# Functions of the holder of rows on whose results the noise rests, and that ask for a comparison.
BOUNDS = {
    "rounding_slack", "moment_rounding", "_of_parts", "_condition", "_chain", "rows_per_chunk",
    "extreme_singular_values", "reference", "confirm", "_part", "_plain",
}  # fmt: skip
# Files that a fit of two iterations may enter, and how often it may go from one to another.
WALKS = {"DPLogisticRegression": (24, 200), "DPAGDClassifier": (24, 300)}
PACKAGE_FILES = 88
# Lines of the package and of its tests: what may not be exceeded, and the goal that is not reached.
PACKAGE_LINES, PACKAGE_GOAL = 26_000, 20_600
TEST_LINES, TEST_GOAL = 24_000, 19_000
# Names that users import: of the package itself, and of it and its public modules together.
TOP_NAMES, PUBLIC_NAMES = 24, 75
PUBLIC = (
    "audit", "baselines", "datasets", "exceptions", "schedules", "schema", "sources", "study",
    "workflow",
)  # fmt: skip
MEAN_FUNCTION, COMMENT_SHARE = 12, 0.03


class Lines(NamedTuple):
    """The numbers of the lines of a file that hold code, and of those that hold a comment only."""

    code: set[int]
    comments: set[int]


def lines(path: Path) -> Lines:
    """Sort the lines of a file; blank ones and docstrings are neither code nor comments."""
    code, comments, documentation = set(), set(), set()
    text = path.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node):
            documentation.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in layout:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= documentation
    return Lines(code, comments - code)


def trusted_base() -> dict[str, int]:
    """Code lines of each file that the guarantee of a default fit rests on.

    These are the vault, the plain sums that the compiled ones are compared with, and whatever these
    two import when they are imported; the bounds on rounding, which no comparison can check; the
    shell of a fit, and what checks and encodes the rows before the vault has them.

    Nothing else is needed. Whatever a solver or a preconditioner does, the vault answers with noise
    and within the budget, which it compares with the plan itself: calibration and ledger may be
    wrong. Kernels and their holders of rows are compared with the plain sums in every fit. Whatever
    a derivative is, its gradient is clipped. A file of errors decides nothing. What only an
    adaptive fit has, its filter and its losses along a line, is not counted.
    """
    files, found = {}, ["dpglm.privacy.vault", "dpglm.sums.reference"]
    found += ["dpglm.estimators.base", "dpglm.estimators.inputs"]
    while found:
        path = _path(found.pop())
        name = str(path.relative_to(PACKAGE))
        if name not in files:
            files[name] = len(lines(path).code - _lines_of(path, ADAPTIVE))
            if not name.startswith("estimators/"):
                found += [name for name in _imports(path) if name not in NOT_TRUSTED]
    holder = PACKAGE / "sums" / "objective.py"
    return files | {"sums/objective.py": len(lines(holder).code & _lines_of(holder, BOUNDS))}


def _named(path: Path) -> list[ast.AST]:
    """Return the classes and functions of a file."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if hasattr(node, "name")]


def names_in(path: Path) -> set[str]:
    """Return the names of the classes and functions of a file."""
    return {node.name for node in _named(path)}


def _lines_of(path: Path, names: set[str]) -> set[int]:
    """Return the numbers of the lines of classes and functions of a file."""
    inside = [range(n.lineno, n.end_lineno + 1) for n in _named(path) if n.name in names]
    return set().union(*inside)


def _path(module: str) -> Path:
    return PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")


def _imports(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports, for annotations alone not counted."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "dpglm":
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if _path(inner).exists() else node.module


class Walk(NamedTuple):
    """The files that a fit entered, and which function called which in another file, how often."""

    files: set[str]
    crossings: Counter[tuple[str, str, str, str]]

    @property
    def moves(self) -> int:
        """How often the file changed: on entering the first, and at each call and its return."""
        return 1 + 2 * self.crossings.total()


def walk(estimator: str) -> Walk:
    """Fit once so that everything is compiled and imported, then follow fits, and keep the longest.

    Only one release of a fit is checked against plain sums: each of the first few, in turn. Noise
    has a seed, as adaptive fits with other noise walk further.
    """
    from unittest import mock

    import numpy as np

    # That of this tree, which need not be the installed one.
    sys.path.insert(0, str(PACKAGE.parent))
    import dpglm

    X = np.random.default_rng(0).normal(size=(400, 5))
    y = (X[:, 0] > 0).astype(int)
    model = getattr(dpglm, estimator)(max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
        walks = []
        # The releases of a plan, and from 64 on the second to the fourth of an adaptive fit.
        for choice in (0, 1, 2, 3, 4, 64, 96, 128):
            with (
                mock.patch(
                    "dpglm.privacy.vault.secret_choice", lambda bound, chosen=choice: chosen % bound
                ),
                dpglm.seeded_noise(0),
            ):
                walks.append(_followed(model, X.copy(), y))
        return max(walks, key=lambda walk: walk.moves)


def _followed(model, X, y) -> Walk:
    """Follow the Python calls in this thread inside of the package, whoever is in between."""
    root = f"{PACKAGE}/"
    stack: list[tuple[str, str]] = []
    walk = Walk(set(), Counter())

    def note(frame, event, _):
        path = frame.f_code.co_filename
        # The name of a check says all: nobody goes and reads it, as with scikit-learn's checks.
        if not path.startswith(root) or path == f"{root}checks.py":
            return
        if event == "call":
            here = path.removeprefix(root), frame.f_code.co_qualname
            walk.files.add(here[0])
            if stack and stack[-1][0] != here[0]:
                walk.crossings[(*stack[-1], *here)] += 1
            stack.append(here)
        elif event == "return" and stack:
            stack.pop()

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        model.fit(X, y)
    finally:
        sys.setprofile(before)
    return walk


def shape() -> dict[str, float]:
    """Files and lines of the package, mean function, and comments per line of code."""
    # An empty file makes a folder a package, and is no room.
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.stat().st_size]
    functions, n_code, n_comments = [], 0, 0
    for path in files:
        code, comments = lines(path)
        n_code += len(code)
        n_comments += len(comments)
        functions += [
            len(code.intersection(range(node.lineno, node.end_lineno + 1)))
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef)
        ]
    return {
        "files": len(files),
        "lines": sum(len(path.read_text().splitlines()) for path in files),
        "code lines of a function": sum(functions) / len(functions),
        "comments per line of code": n_comments / n_code,
    }


def names() -> tuple[set[str], set[str]]:
    """Return the names that users import: from the package, and from anywhere."""
    package = importlib.import_module("dpglm")
    faces = [importlib.import_module(f"dpglm.{name}") for name in PUBLIC]
    every = {name for face in (package, *faces) for name in face.__all__}
    return set(package.__all__), every - {"__version__"}


def measures() -> Iterator[tuple[str, float, float]]:
    """Yield what is measured, the measure, and the limit that it must not exceed."""
    trusted = trusted_base()
    yield "trusted files", len(trusted), TRUSTED_FILES
    yield "trusted code lines", sum(trusted.values()), TRUSTED_LINES
    for estimator, (most_files, most_moves) in WALKS.items():
        fit = walk(estimator)
        yield f"files entered by {estimator}", len(fit.files), most_files
        yield f"moves between files of {estimator}", fit.moves, most_moves
    package = shape()
    yield "files of the package", package["files"], PACKAGE_FILES
    yield f"lines of the package, goal {PACKAGE_GOAL:,}", package["lines"], PACKAGE_LINES
    tests = [path.read_text() for path in (PACKAGE.parent / "tests").rglob("*.py")]
    n_lines = sum(len(text.splitlines()) for text in tests)
    yield f"lines of the tests, goal {TEST_GOAL:,}", n_lines, TEST_LINES
    top, every = names()
    yield "names of the top level", len(top), TOP_NAMES
    yield "public names", len(every), PUBLIC_NAMES
    yield "code lines of a function, mean", package["code lines of a function"], MEAN_FUNCTION


def main() -> int:
    """Print everything; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--borders", action="store_true", help="print who calls across files")
    asked = parser.parse_args()
    for path, n_lines in trusted_base().items():
        print(f"{n_lines:6}  {path}")
    missed = 0
    for name, value, limit in measures():
        missed += value > limit
        print(f"{value:9.6g}  {name} (at most {limit}){' MISSED' if value > limit else ''}")
    comments = shape()["comments per line of code"]
    missed += comments < COMMENT_SHARE
    print(f"{comments:9.2%}  comments per line of code (at least {COMMENT_SHARE:.0%})")
    for estimator in WALKS if asked.borders else ():
        print(f"\nCalls of {estimator} from one file to another, two moves each")
        for (file, caller, other, called), n in walk(estimator).crossings.most_common():
            print(f"{n:6}  {file} {caller} > {other} {called}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
