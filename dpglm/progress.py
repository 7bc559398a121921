"""How far a comparison is, on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

__all__ = ["report_progress"]

_SECONDS_BETWEEN_LINES = 10.0


def report_progress(
    total: int, finished: int, *, enabled: bool
) -> AbstractContextManager[Callable[[], None]]:
    """Return a context manager that yields the function to call after each cell.

    On a terminal with rich installed it is a progress bar with the time left, otherwise a line
    every ten seconds.

    Parameters
    ----------
    total : int
        Number of cells.
    finished : int
        How many were finished earlier.
    enabled : bool
        Stay silent if False.

    Returns
    -------
    context manager of a function without arguments

    Examples
    --------
    >>> from dpglm.progress import report_progress
    >>> with report_progress(2, 0, enabled=False) as advance:
    ...     advance()
    """
    if not enabled:
        return nullcontext(_nothing)
    if finished:
        print(f"{finished} of {total} fits were finished earlier", file=sys.stderr)
    if finished == total:
        return nullcontext(_nothing)
    if sys.stderr.isatty():
        try:
            import rich  # noqa: F401
        except ImportError:
            pass
        else:
            return _bar(total, finished)
    return _lines(total, finished)


def _nothing() -> None:
    pass


@contextmanager
def _bar(total: int, finished: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Times(ProgressColumn):
        def render(self, task: Task) -> Text:
            new = int(task.completed) - finished
            return Text(_times(task.elapsed or 0.0, new, total - finished))

    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.completed} of {task.total} fits"),
        Times(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total, completed=finished)
        yield lambda: progress.advance(task)


@contextmanager
def _lines(total: int, finished: int) -> Iterator[Callable[[], None]]:
    start = last = time.monotonic()
    new = 0

    def advance() -> None:
        nonlocal last, new
        new += 1
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            times = _times(now - start, new, total - finished)
            print(f"{finished + new} of {total} fits  {times}", file=sys.stderr, flush=True)

    yield advance


def _times(elapsed: float, new: int, pending: int) -> str:
    text = f"{timedelta(seconds=round(elapsed))} elapsed"
    if new == 0:
        return text
    return f"{text}, about {timedelta(seconds=round(elapsed / new * (pending - new)))} left"
