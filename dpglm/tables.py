"""Blocks of text and tables that results print, as text and as HTML."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

# A paragraph, facts by name, points of a list, or rows of a table, the first of which is the head;
# or another result.
Content = Any
_WIDTH = 80
# Strings that begin like a number, and empty ones.
_NUMBER = re.compile(r"[-+>.]* ?\d|nan|inf|$")
# In the font and the ink of the notebook, light or dark.
_STYLE = """<style>
.dpglm {font: 13px/1.45 var(--jp-content-font-family, system-ui, sans-serif); color: inherit}
.dpglm p, .dpglm ul {margin: .3em 0; max-width: 60em}
.dpglm table {border-collapse: collapse; margin: .4em 0; font-size: inherit; color: inherit}
.dpglm tr, .dpglm td, .dpglm th {background: none; color: inherit; text-align: left}
.dpglm td, .dpglm th {padding: .15em 1em .15em 0; border: 0 solid #8886; border-bottom-width: 1px;
vertical-align: top; white-space: pre-wrap; max-width: 45em; font-variant-numeric: tabular-nums}
.dpglm .n {text-align: right}
.dpglm p:has(b) {margin-top: 1em}
.dpglm li:has(input) {list-style: none; text-indent: -1.7em}
</style>"""


class Printed:
    """A result that prints as text, and in a notebook as HTML, from the same blocks.

    Subclasses define ``_blocks``, which yields a title, or "", with the contents below it.
    """

    def _blocks(self) -> Iterable[Sequence[Any]]:
        raise NotImplementedError(f"{type(self).__name__} must define _blocks.")

    def lines(self, width: int = _WIDTH) -> Iterator[str]:
        """Yield the lines of the text; those that can be cut have at most so many characters."""
        for k, (title, *contents) in enumerate(self._blocks()):
            if title:
                yield from ["", title] if k else [title]
            indent = "  " * bool(title)
            for content in contents:
                yield from (indent + line for line in _text_lines(content, width - len(indent)))

    def html(self) -> str:
        """Return the blocks as HTML, without a style."""
        return "".join(_html_block(*block) for block in self._blocks())

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return f'{_STYLE}<div class="dpglm">{self.html()}</div>'


class Page(Printed):
    """Blocks that belong to no result."""

    def __init__(self, *blocks: Sequence[Any]) -> None:
        self._shown = blocks

    def _blocks(self) -> Iterable[Sequence[Any]]:
        return self._shown


# Names of files and parameters stay whole.
_wrapped = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)


def _text_lines(content: Content, width: int) -> Iterator[str]:
    if isinstance(content, Printed):
        yield from content.lines(width)
    elif isinstance(content, str):
        yield from _wrapped(content, width)
    elif isinstance(content, Mapping):
        indent = max(map(len, content)) + 2
        for name, text in content.items():
            first, *others = _wrapped(text, width - indent) or [""]
            yield f"{name:<{indent}}{first}".rstrip()
            yield from (f"{'':<{indent}}{line}" for line in others)
    elif isinstance(content[0], str):
        for point in content:
            yield from _wrapped(f"- {point}", width, subsequent_indent="  ")
    else:
        numbers, columns = _number_columns(content), enumerate(zip(*content, strict=True))
        layout = [f"{{:{'>' if k in numbers else '<'}{max(map(len, c))}}}" for k, c in columns]
        yield from ("  ".join(layout).format(*row).rstrip() for row in content)


def _number_columns(rows: Sequence[Sequence[str]]) -> set[int]:
    """Return which columns of a table hold numbers alone, or nothing."""
    columns = enumerate(zip(*rows[1:], strict=True))
    return {k for k, column in columns if all(_NUMBER.match(text) for text in column)}


def _html_block(title: str, *contents: Content) -> str:
    parts = [f"<p><b>{escape(title)}</b></p>"] if title else []
    for content in contents:
        if isinstance(content, Printed):
            parts.append(content.html())
        elif isinstance(content, str):
            parts.append(f"<p>{escape(content)}</p>")
        elif isinstance(content, Mapping):
            rows = (
                f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
                for name, text in content.items()
            )
            parts.append(f"<table>{''.join(rows)}</table>")
        elif isinstance(content[0], str):
            points = (re.sub(r"^\[ \]", '<input type="checkbox">', escape(p)) for p in content)
            parts.append(f"<ul><li>{'</li><li>'.join(points)}</li></ul>")
        else:
            parts.append(_html_table(content))
    return "".join(parts)


def _html_table(rows: Sequence[Sequence[str]]) -> str:
    numbers, shown = _number_columns(rows), ""
    for i, row in enumerate(rows):
        tag = "td" if i else "th"
        cells = (
            f"<{tag}{' class=n' if k in numbers else ''}>{escape(text)}</{tag}>"
            for k, text in enumerate(row)
        )
        shown += f"<tr>{''.join(cells)}</tr>"
    return f"<table>{shown}</table>"
