"""Seeded fits and command lines give what the golden record says, here within rounding errors."""

import golden
import pytest

pytest.importorskip("dask")
pytest.importorskip("dp_accounting")

RECORD = golden.load()
RUN = {"fits": golden.fit, "commands": golden.command}
NAMES = {"fits": golden.FITS, "commands": golden.COMMANDS}
EVERY = [(kind, name) for kind in RUN for name in dict.fromkeys([*NAMES[kind], *RECORD[kind]])]


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(*one, marks=[pytest.mark.slow] * (i % 3 > 0)) for i, one in enumerate(EVERY)],
)
def test_what_was_recorded_is_what_comes_out(kind, name):
    recorded = RECORD[kind].get(name, {})
    lines = list(golden.differences(name, RUN[kind](name), recorded, exact=False))
    assert not lines, "\n".join(lines)


def test_a_difference_is_a_line_with_the_fit_and_the_field():
    name, recorded = next(iter(RECORD["fits"].items()))
    value = float.fromhex(recorded["intercept"][0])
    ulp, more = ({**recorded, "intercept": [(value * (1 + r)).hex()]} for r in (2**-52, 1e-5))
    assert list(golden.differences(name, recorded, recorded)) == []
    assert list(golden.differences(name, ulp, recorded, exact=False)) == []
    for lines in (
        golden.differences(name, ulp, recorded),
        golden.differences(name, more, recorded, exact=False),
    ):
        (line,) = lines
        assert line.startswith(f"{name}: intercept: ") and "\n" not in line
