"""Tables of strings as text and as HTML; the first row is the head."""

from collections.abc import Container, Iterable, Sequence
from html import escape


def text_table(
    rows: Iterable[Sequence[str]], left: Container[int] = (0,), gap: int = 2
) -> list[str]:
    """Return the lines of a table, with columns `left` aligned left and the others right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [f"{{:{'<' if i in left else '>'}{width}}}" for i, width in enumerate(widths)]
    return [(" " * gap).join(cells).format(*row).rstrip() for row in rows]


def html_table(rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return a table as HTML, with all strings escaped."""
    head, *body = rows
    lines = [_html_row("th", head), *(_html_row("td", row) for row in body)]
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead>{lines[0]}</thead><tbody>{''.join(lines[1:])}</tbody></table>"


def cell(value: str | float) -> str:
    """Return the text of a number, or the string itself."""
    return value if isinstance(value, str) else f"{value:.6g}"


def _html_row(tag: str, row: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in row)}</tr>"
