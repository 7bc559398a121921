"""Warnings and errors, and what to say of names that other libraries have (``instead.toml``)."""

import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import cache, update_wrapper, wraps
from importlib import import_module
from importlib.resources import files
from inspect import Parameter, Signature, signature
from types import MethodType
from typing import Any, TypeVar

# A decorated function has the type that it had.
Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["BudgetExceededError", "PrivacyWarning", "UtilityWarning"]


class PrivacyWarning(UserWarning):
    """A setting is legal but weakens, or makes it harder to rely on, the stated guarantee."""


class UtilityWarning(UserWarning):
    """A fit is private but has probably learned little; known from released numbers alone."""


class BudgetExceededError(ValueError):
    """A release was asked for that the remaining privacy budget does not cover."""


def require(module: str, extra: str, what: str) -> Any:
    """Return an optional module, or raise an ImportError that names the extra it comes with."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(f'{what} needs {package}: pip install "dpglm[{extra}]".') from error


ADVICE_ON_MISSING_VALUES = (
    "Put a public constant in the place of such values, or let missing= of a Schema's columns say "
    "what they are: means of a column, and rows that are dropped, would tell of records."
)


@cache
def instead_of(kind: str) -> dict[str, str]:
    """Return what there is instead of ``"parameters"`` or ``"names"`` of other libraries."""
    return tomllib.loads(files("dpglm").joinpath("instead.toml").read_text("utf-8")).get(kind, {})


_SUBMODULES = (
    "schema", "workflow", "study", "baselines", "schedules", "audit", "sources", "datasets",
    "exceptions",
)  # fmt: skip


def absent(module: str) -> Callable[[str], Any]:
    """Return what says where a name is that a module does not have, or what there is instead."""

    def look_up(name: str) -> Any:
        if module == "dpglm" and name in import_module(module).__all__:  # later: it takes long
            return getattr(import_module("dpglm.workflow"), name)
        if module == "dpglm" and name in _SUBMODULES:
            return import_module(f"dpglm.{name}")
        instead = instead_of("names").get(name, "")
        if not instead and not name.startswith("_"):
            faces = (import_module(f"dpglm.{face}") for face in _SUBMODULES)
            found = (f"{face.__name__}.{name}" for face in faces if name in face.__all__)
            instead = next(found, "")
        advice = f": use {instead}" if instead else ""
        # ``from dpglm import ...`` does not show the text of an AttributeError, and asks from here.
        if advice and sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
            raise ImportError(f"{module} has no {name!r}{advice}.")
        raise AttributeError(f"module {module!r} has no attribute {name!r}{advice}.")

    return look_up


class Offered:
    """A method of the objects that pass a check; the others say what there is instead."""

    def __init__(self, instead: str, has: Callable[[Any], bool] | None = None) -> None:
        self.instead, self.has, self.method = instead, has, None

    def __call__(self, method: Callable) -> "Offered":
        update_wrapper(self, method)
        self.method = method
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.method or self
        if self.has is None or not self.has(instance):
            owner_name = type(instance).__name__
            raise AttributeError(
                f"{owner_name!r} object has no attribute {self.name!r}: {self.instead}.",
                name=self.name,
                obj=instance,
            )
        return MethodType(self.method, instance)


def advising(function: Function) -> Function:
    """Let a function say what there is instead of parameters that other libraries have."""
    known = signature(function)

    @wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        _check_arguments(function.__name__, known, values, named)
        return function(*values, **named)

    return call


class KnownArguments:
    """A class that says what there is instead of parameters that other libraries have."""

    def __new__(cls, *values: Any, **named: Any) -> Any:
        """Refuse arguments that the constructor does not have."""
        _check_arguments(cls.__name__, signature(cls.__init__), (cls, *values), named)
        return super().__new__(cls)


def _check_arguments(name: str, call: Signature, values: tuple, named: dict[str, Any]) -> None:
    """Refuse arguments that a signature does not have, if there is something to advise."""
    try:
        call.bind(*values, **named)
    except TypeError as error:
        known = [parameter for parameter in call.parameters if parameter != "self"]
        advice = advice_on(name, known, named)
        if not advice and "too many positional" in str(error):
            kinds = {each: call.parameters[each].kind < Parameter.KEYWORD_ONLY for each in known}
            placed = ", ".join(each for each in known if kinds[each]) or "nothing"
            by_name = [f"{each}=..." for each in known if not kinds[each]]
            by_name = ", ".join(by_name[:3] + ["..."] * (len(by_name) > 3)) or "nothing"
            advice = f"{name} takes {placed} by position; by name: {by_name}."
        if advice:
            raise TypeError(advice) from None


class KnownParameters(KnownArguments):
    """An estimator that does so in `set_params` as well."""

    best_score_ = Offered("no score was released; private_scores states one, for a price")
    partial_fit = Offered("each fit is charged in full; give fit all rows, or blocks of them")

    def set_params(self, **params: Any) -> Any:
        """Set parameters, as scikit-learn's estimators do, and return the estimator."""
        known = self.get_params(deep=False)
        outer = dict.fromkeys(name.partition("__")[0] for name in params)
        if advice := advice_on(type(self).__name__, known, outer):
            raise ValueError(advice)
        return super().set_params(**params)


def advice_on(name: str, known: Iterable[str], given: Iterable[str]) -> str:
    """Return what to say of the first parameter that is given and not known, or nothing."""
    known = [*known]
    for unknown in given:
        if unknown not in known:
            instead = instead_of(name) or instead_of("parameters")
            instead = instead.get(unknown) or f"its parameters are {', '.join(known)}"
            return f"Invalid parameter {unknown!r} for {name}: {instead}."
    return ""
