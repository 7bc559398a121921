"""The command line, ``python -m dpglm``."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from dpglm.study import cli_audit as audit
from dpglm.study import cli_compare as compare
from dpglm.study import cli_plan as plan

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        # What was typed may hold line breaks.
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the name of the program; by default those of the process.

    Returns
    -------
    int
        Exit code: 0, or 1 if a part of the work failed, or 130 if it was interrupted. A bad
        argument raises ``SystemExit(2)``.

    Examples
    --------
    >>> from dpglm.study.cli import main
    >>> arguments = "--estimators svm --epsilons 1 --n-samples 500 --max-iter 10".split()
    >>> code = main(["compare", *arguments])  # doctest: +ELLIPSIS
    census: 500 rows x 99 features, 5-fold cross-validation, delta 1e-06
    ...
    >>> code
    0
    """
    parser = _Parser(
        prog="python -m dpglm",
        description="Differentially private linear classifiers for scikit-learn.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    compare.add_parser(commands)
    plan.add_parser(commands)
    audit.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
