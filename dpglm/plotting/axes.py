"""What the displays share: matplotlib itself, the look of an axis, legends."""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["labelled", "legend_below", "plain", "pyplot"]


def pyplot() -> Any:
    """Return matplotlib's pyplot, or raise an ImportError that names the extra.

    Examples
    --------
    >>> from dpglm.plotting.axes import pyplot
    >>> pyplot().__name__
    'matplotlib.pyplot'
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('Plotting needs matplotlib: pip install "dpglm[plot]".') from error
    return plt


def plain(axes: Any) -> None:
    """Leave a faint grid and two of the four spines.

    Examples
    --------
    >>> from dpglm.plotting.axes import plain, pyplot
    >>> figure, axes = pyplot().subplots()
    >>> plain(axes)
    >>> bool(axes.spines["top"].get_visible())
    False
    """
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def labelled(panels: Iterable[Any]) -> dict[str, Any]:
    """Return what is drawn under each label, once however many panels show it.

    Examples
    --------
    >>> from dpglm.plotting.axes import labelled, pyplot
    >>> figure, panels = pyplot().subplots(2)
    >>> for axes in panels:
    ...     _ = axes.plot([1, 2], label="a line")
    >>> list(labelled(panels))
    ['a line']
    """
    drawn: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            drawn.setdefault(label, handle)
    return drawn


def legend_below(figure: Any, handles: Mapping[str, Any]) -> None:
    """Add a legend below the panels, in as many columns as fit.

    Examples
    --------
    >>> from dpglm.plotting.axes import labelled, legend_below, pyplot
    >>> figure, axes = pyplot().subplots(layout="constrained")
    >>> _ = axes.plot([1, 2], label="a line")
    >>> legend_below(figure, labelled([axes]))
    >>> len(figure.legends)
    1
    """
    # Inches of a column: the line, and the text at 10 points.
    column = 0.65 + 0.08 * max(len(line) for label in handles for line in label.split("\n"))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=max(1, int(figure.get_figwidth() / column)),
        frameon=False,
    )
