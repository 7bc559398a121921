"""Checks of parameters return plain numbers, and refuse with the rule."""

import math

import numpy as np
import pytest

from dpglm.checks import check_choice, check_number, check_whole, is_auto, is_number


@pytest.mark.parametrize("value", [1, 0.5, np.float16(1), np.int8(-1), math.inf])
def test_numbers_become_floats(value):
    assert is_number(value) and type(check_number("x", value)) is float


@pytest.mark.parametrize("table", [np.full((9, 9), 0.125), [[0.125] * 9] * 9, {"a": [0.125] * 99}])
def test_a_table_in_place_of_a_number_is_not_quoted(table):
    name = type(table).__name__
    for check in (check_number, check_whole, lambda n, value: check_choice(n, value, ("a", "b"))):
        with pytest.raises(ValueError, match=rf"^x=<{name}> (must be|is unknown)") as refused:
            check("x", table)
        assert "0.125" not in str(refused.value)


LIMITS = {"above": (1, 1.5), "at_least": (0.5, 1), "below": (1, 0.5), "at_most": (1.5, 1)}


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_are_kept(kind):
    wrong, right = LIMITS[kind]
    assert check_number("x", right, **{kind: 1}) == right
    with pytest.raises(
        ValueError, match=rf"x={wrong} must be a number .*{kind.split('_')[-1]} 1; or not.$"
    ):
        check_number("x", wrong, **{kind: 1}, advice="or not")


def test_a_rule_is_one_sentence():
    with pytest.raises(ValueError, match=r"^x=<a whole .*> must be a number above 0.$"):
        check_number("x", 10**400, above=0)
    with pytest.raises(ValueError, match=r"^x=inf must be a number above 0 and finite.$"):
        check_number("x", math.inf, above=0, below=math.inf)
    with pytest.raises(ValueError, match=r"^n=9 must be a whole number from 2 to 8.$"):
        check_whole("n", 9, at_least=2, at_most=8)
    with pytest.raises(ValueError, match=r"^how='no' is unknown; choose one of \['a', 'b'\].$"):
        check_choice("how", "no", ("a", "b"))
    with pytest.raises(ValueError, match=r"^how=\['a'\] is unknown"):
        check_choice("how", ["a"], {"a": 1})


def test_whole_numbers_and_names_come_back():
    assert type(check_whole("n", np.int64(2), at_least=2, at_most=2)) is int
    assert check_choice("how", "a", {"a": 1}) == "a"
    assert is_auto("auto") and not is_auto(["auto"]) and not is_auto("Auto")
