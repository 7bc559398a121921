"""Documentation of parameters and attributes, written once where they are declared."""

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

_HEADING = re.compile(r"^(.+)\n-{3,}\n", re.MULTILINE)
# A line at the margin begins an entry: `name : type`, or the name alone.
_ENTRY = re.compile(r"^(\w+).*\n(?:[ \t].*\n)*", re.MULTILINE)

Class = TypeVar("Class", bound=type)
Method = TypeVar("Method", bound=Callable)


def completed(cls: Class) -> Class:
    """Complete the parameters and attributes of a class by those that its bases document.

    A class's own documentation replaces what it inherits. Parameters follow the signature, and
    parameters of a base that a class does not take are left out.
    """
    if sys.flags.optimize > 1:  # python -OO drops all documentation
        return cls
    summary, sections = _sections(cls)
    texts: dict[str, dict[str, str]] = {"Parameters": {}, "Attributes": {}}
    for base in reversed(cls.__mro__):
        for section, entries in texts.items():
            written = _sections(base)[1].get(section, "")
            entries |= {entry[1]: entry[0] for entry in _ENTRY.finditer(written)}
    taken = inspect.signature(cls).parameters
    texts["Parameters"] = {name: texts["Parameters"][name] for name in taken}
    sections = {name: "".join(entries.values()) for name, entries in texts.items() if entries} | {
        name: text for name, text in sections.items() if name not in texts
    }
    cls.__doc__ = _written(summary, sections)
    return cls


def extended(base: Callable[..., Any]) -> Callable[[Method], Method]:
    """Let a method document only its additions to another: parameters and sections."""

    def complete(method: Method) -> Method:
        if sys.flags.optimize < 2:
            (summary, sections), (_, own) = _sections(base), _sections(method)
            own["Parameters"] = sections["Parameters"].rstrip() + "\n" + own["Parameters"]
            method.__doc__ = _written(summary, sections | own)
        return method

    return complete


def _written(summary: str, sections: dict[str, str]) -> str:
    """Return the documentation that `_sections` takes apart."""
    return summary.strip() + "".join(
        f"\n\n{name}\n{'-' * len(name)}\n{text.strip()}" for name, text in sections.items()
    )


def _sections(documented: Any) -> tuple[str, dict[str, str]]:
    """Return the text above the first heading of a documentation, and its sections."""
    own = inspect.cleandoc(documented.__doc__ or "") + "\n"
    summary, *rest = _HEADING.split(own)
    return summary, dict(zip(rest[::2], rest[1::2], strict=True))
