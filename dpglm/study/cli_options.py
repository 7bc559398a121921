"""Kinds of command-line arguments, each refused in one line that says why."""

import argparse
import math
from collections.abc import Callable

__all__ = ["at_least", "between_0_and_1", "number", "positive", "share"]


def number(text: str) -> float:
    """Return any number, infinity included.

    Examples
    --------
    >>> from dpglm.study.cli_options import number
    >>> number("1e-6")
    1e-06
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def positive(text: str) -> float:
    """Return a number above 0, far enough from overflow to be squared.

    Examples
    --------
    >>> from dpglm.study.cli_options import positive
    >>> positive("2")
    2.0
    """
    value = number(text)
    if not 1e-100 <= value <= 1e100:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0, from 1e-100 to 1e100")
    return value


def between_0_and_1(text: str) -> float:
    """Return a number above 0 and below 1.

    Examples
    --------
    >>> from dpglm.study.cli_options import between_0_and_1
    >>> between_0_and_1("0.5")
    0.5
    """
    value = number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and below 1")
    return value


def share(text: str) -> float:
    """Return a number above 0 and at most 1.

    Examples
    --------
    >>> from dpglm.study.cli_options import share
    >>> share("1")
    1.0
    """
    value = number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and at most 1")
    return value


def at_least(least: int) -> Callable[[str], int]:
    """Return the reader of whole numbers from ``least`` on.

    Examples
    --------
    >>> from dpglm.study.cli_options import at_least
    >>> at_least(2)("3")
    3
    """

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, {least} or more")
        return value

    return whole_number
