"""Values that many records share: found by noisy counts, and what that costs."""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import planted_bugs
import pytest
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline
from tapes import on_tape

from dpglm import DPLogisticRegression, PrivacyOdometer, PrivacyWarning, Schema, seeded_noise
from dpglm.audit import record
from dpglm.exceptions import BudgetExceededError
from dpglm.privacy.vault import Tape
from dpglm.schema import CategoricalColumn, DateColumn, NumericColumn, Target
from dpglm.workflow import privacy_of, private_atoms

RELATIONS = ["zero_out", "replace_one", "add_or_remove_one"]
SCHEMA = Schema(
    "loans",
    [
        NumericColumn("debt", -500, 2000, missing="indicator"),
        CategoricalColumn("job", ["cook", "baker"]),
        NumericColumn("income", 0, 5000, missing=0, outside="missing"),
        NumericColumn("age", 17, 90),
        DateColumn("since", "1990-01-01", "2020-12-31", missing="indicator"),
    ],
    Target("paid", ["no", "yes"]),
)


def loans(n=6000, atom=1902, seed=0):
    """One person in ten has an income of `atom`, one in twenty a debt of -77."""
    rng = np.random.default_rng(seed)
    return {
        "debt": np.where(rng.random(n) < 0.05, -77.0, rng.uniform(-500, 2000, n)),
        "job": rng.choice(["cook", "baker"], n),
        "income": np.where(rng.random(n) < 0.1, atom, rng.integers(1, 5000, n)).astype(float),
        "age": rng.integers(17, 91, n),
        "since": np.full(n, np.datetime64("2001-02-03")),
    }


def given(relation, **others):
    n_ref = {"n_ref": 6000} if relation == "add_or_remove_one" else {}
    return {"neighboring_relation": relation, **n_ref, **others}


def atoms_of(found):
    return {c.name: c.atoms for c in found.schema.numeric if c.atoms}


@pytest.mark.parametrize("relation", RELATIONS)
def test_what_many_share_is_found(relation):
    found = private_atoms(SCHEMA, loans(), epsilon=4.0, **given(relation))
    assert -77 in atoms_of(found)["debt"] and 1902 in atoms_of(found)["income"]
    # One value of all is expected to stand out by chance.
    assert sum(map(len, atoms_of(found).values())) < 20
    assert "1902" in repr(found) and found.schema.feature_names == SCHEMA.feature_names
    assert Schema.from_json(found.schema.to_json()) == found.schema
    assert "noisy counts" in found.schema.source


def test_without_noise_density_is_no_atom():
    """Whole numbers that all have about as many records; one has more than those around."""
    rng = np.random.default_rng(0)
    many = loans(200_000)
    many["income"] = rng.integers(0, 1000, 200_000).astype(float)
    many["income"][:260] = 555
    many["debt"] = np.round(rng.normal(300, 100, 200_000))
    found = private_atoms(SCHEMA, many, epsilon=math.inf)
    assert atoms_of(found) == {"income": (555,)}
    assert found.left["epsilon"] == math.inf and not found.privacy_.protects


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("share", [None, 0.4])
def test_counts_and_fit_cost_epsilon_together(relation, share):
    table, settings = loans(), given(relation)
    found = private_atoms(SCHEMA, table, epsilon=4.0, delta=1e-7, share=share, **settings)
    assert (found.left["delta"], found.left["neighboring_relation"]) == (1e-7, relation)
    model = DPLogisticRegression(**found.left, classes=SCHEMA.classes)
    pipeline = make_pipeline(found.schema.transformer(), model)
    y = np.where(table["income"] == 1902, "no", "yes")
    assert pipeline.fit(table, y).score(table, y) > 0.95
    for total in (found.privacy_ + model.privacy_, privacy_of([found.privacy_, pipeline])):
        assert 4.0 * (1 - 1e-6) < total.epsilon(1e-7) <= 4.0
    assert found.privacy_.n_releases == 1


def test_a_budget_is_spent_where_it_shows_something():
    shares = {}
    for epsilon in (0.01, 0.5, 3.0, 100.0):
        found = private_atoms(SCHEMA, loans(40_000), epsilon=epsilon)
        left = DPLogisticRegression(**found.left)._budget().mu
        whole = DPLogisticRegression(epsilon=epsilon)._budget().mu
        shares[epsilon] = 1 - (left / whole) ** 2
        if epsilon == 0.01:
            assert found.schema == SCHEMA and found.privacy_.n_releases == 0
            assert found.privacy_.epsilon() == 0
    assert shares[0.01] == pytest.approx(0, abs=1e-6)
    assert shares[0.5] == pytest.approx(0.2, abs=1e-6)
    assert 0.003 < shares[3.0] < 0.2
    assert shares[100.0] == pytest.approx(0.003, abs=1e-4)


def test_at_most_64_are_kept_and_a_full_second_moment_has_room_for_them():
    table = {"x": np.repeat(np.arange(100.0) * 50, 50)}
    line = NumericColumn("x", 0, 5000, intervals=1)
    curve = NumericColumn("x", 0, 5000)  # Its ten steps make room.
    for column, others, n_found in (
        (line, 1, 64), (line, 480, 30), (line, 600, 64), (curve, 1, 64), (curve, 493, 10),
        (curve, 503, 0),
    ):  # fmt: skip
        jobs = CategoricalColumn("job", [f"job {k}" for k in range(others)])
        schema = Schema("one", [column, jobs], Target("y", [0, 1]))
        assert column is line or schema.n_encoded == {1: 19, 493: 511, 503: 511}[others]
        found = private_atoms(schema, table, epsilon=50.0)
        assert len(found.schema.columns[0].atoms) == n_found
        assert found.schema.n_encoded <= 511 or others == 600
        # Of values that stand out alike, as without noise, the first.
        exact = private_atoms(schema, table, epsilon=math.inf).schema.columns[0].atoms
        assert exact == tuple(range(0, 50 * n_found, 50))


def test_atoms_that_were_known_stay():
    schema = Schema("one", [NumericColumn("x", 0, 5000, atoms=[7])], Target("y", [0, 1]))
    found = private_atoms(schema, {"x": np.full(5000, 40)}, epsilon=50.0)
    assert {7, 40} <= {*atoms_of(found)["x"]}


def test_wide_bounds_are_counted_by_multiples_of_ten():
    x = np.concatenate([np.full(300, 7_000_001.0), np.full(300, 12_300.0), np.arange(2000.0)])
    schema = Schema("one", [NumericColumn("x", -1e3, 1e7)], Target("y", [0, 1]))
    atoms = atoms_of(private_atoms(schema, {"x": x}, epsilon=20.0))["x"]
    assert 12_300 in atoms and all(atom % 10 == 0 for atom in atoms)


def test_bounds_at_the_ends_of_all_numbers_are_counted():
    for lower, upper in ((-1e308, 7e307), (0, 1e308), (2**53, 2**53 + 5000.0), (0.5, 1000.5)):
        schema = Schema("one", [NumericColumn("x", lower, upper)], Target("y", [0, 1]))
        found = private_atoms(schema, {"x": np.full(5000, upper)}, epsilon=9.0)
        assert found.privacy_.n_releases == 1 and found.schema.n_encoded >= 1


def test_every_container_of_rows_is_counted_alike():
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(loans(500))
    frame.loc[3, "debt"], frame.loc[4, "debt"] = np.nan, -9999.0
    exact = []
    for table in (frame, dd.from_pandas(frame, npartitions=3), frame.to_dict("list")):
        with record() as tape:
            private_atoms(SCHEMA, table, epsilon=9.0, share=0.5)
        exact.append(tape.releases[0].exact)
    for counts in exact[1:]:
        assert_array_equal(counts, exact[0])
    # Debts out of bounds are at the bound; those missing, or no whole numbers, are not counted.
    debts = frame["debt"].clip(-500, 2000)
    assert exact[0][:2501].sum() == (debts == np.floor(debts)).sum()
    assert exact[0].shape == (2501 + 5001,) and exact[0][2501:].sum() == 500


ROWS = list(itertools.product([-500.0, 7.0, 8.5, np.nan], [0.0, 3.0, 1e9]))


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_record_moves_counts_by_more_than_is_charged_and_some_do(relation):
    """A record that is not there counts nowhere."""
    schema = Schema("two", [SCHEMA.columns[0], NumericColumn("income", 0, 5000)], SCHEMA.target)
    counts = []
    for debt, income in ROWS:
        with record() as tape:
            table = {"debt": [debt, 1.0], "income": [income, 1.0]}
            private_atoms(schema, table, epsilon=9.0, share=0.5, **given(relation))
        (release,) = tape.releases
        counts.append(release.exact)
    nobody = np.zeros_like(release.exact)
    nobody[[501, 2501 + 1]] = 1
    others = counts if relation == "replace_one" else [nobody]
    largest = max(np.linalg.norm(a - b) for a, b in itertools.product(counts, others))
    assert largest == pytest.approx(release.sensitivity)
    assert largest == pytest.approx(2.0 if relation == "replace_one" else math.sqrt(2))


@pytest.mark.parametrize("relation", RELATIONS[:2])
def test_counts_pass_an_audit(relation):
    result = planted_bugs.values(relation)
    assert result.passed, result.violations
    assert result.mu_claimed == pytest.approx(1.0, rel=1e-6)
    # It is 1, give or take .09 for so many canaries.
    assert result.shift > 0.5, "the canaries must show"


class Zeros(Tape):
    """Answers as if every count were zero, with noise."""

    def note(self, event, sensitivity, compute, draw):
        super().note(event, sensitivity, compute, draw)
        return draw(0 * compute())


@pytest.mark.parametrize("relation", RELATIONS)
def test_nothing_but_the_counts_depends_on_the_rows(relation):
    """Not even how many rows there are, where that is private."""
    left = []
    for seed in range(4):
        n = 6000 - seed * (relation == "add_or_remove_one")
        table, source = loans(n, atom=1000 + seed, seed=seed), np.random.RandomState(1)
        if seed == 3:
            table["debt"][:], table["income"][:] = 1e300, -1.0
        with on_tape(Zeros()), seeded_noise(source), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = private_atoms(SCHEMA, table, epsilon=4.0, **given(relation))
        said = [str(warning.message) for warning in caught]
        left.append((found.schema, found.left, found.privacy_, said, source.bytes(8)))
        assert found.privacy_.n_releases == 1
    assert all(one == left[0] for one in left[1:])


def test_bad_settings_and_rows_are_refused_before_anything_is_released():
    narrow = Schema("one", [NumericColumn("x", 0, 999)], Target("y", [0, 1]))
    odd = loans(20) | {"debt": ["secret"] * 20}
    wrong = [
        ({"schema": narrow, "table": {"x": [1]}}, "no numbers with bounds 1000 or more apart"),
        ({"table": odd}, "column 'debt' holds something that is not a finite number"),
        ({"table": {"income": [1.0]}}, "no column 'debt'"),
        ({"schema": Schema.draft(loans(3), "job")}, "is a draft; fill in"),
        ({"schema": loans(3)}, "schema is a dict; give a Schema"),
        ({"share": 1.0}, "share=1.0 must be a number above 0 and below 1, or None"),
        ({"share": 2}, "share=2 must be a number above 0 and below 1, or None"),
        ({"share": 0.0}, "share=0.0"),
        ({"share": True}, "share=True"),
        ({"share": float("nan")}, "share=nan"),
        ({"share": 1e-300}, "share=1e-300 of epsilon=1 is so little that the counts would be all"),
        ({"share": 1e-20}, "share=1e-20 of epsilon=1 is so little that the counts would be all"),
        ({"share": 1 - 1e-13}, "share=0.9999999999999 of epsilon=1 leaves nothing at delta=1e-06"),
        ({"share": 0.9, "epsilon": 6e-4, "delta": 1e-4}, "leaves nothing at delta=0.0001"),
        ({"groups": "debt"}, r"groups has shape \(\); give one entry for each row"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"n_ref": 9}, "n_ref=9"),
    ]
    for changed, says in wrong:
        settings = {"schema": SCHEMA, "table": loans(20), "epsilon": 1.0, "share": 0.5} | changed
        with record() as tape, pytest.raises(ValueError, match=says) as error:
            private_atoms(settings.pop("schema"), settings.pop("table"), **settings)
        assert not tape.releases and "secret" not in str(error.value)
        assert not hasattr(error.value, "privacy_ledger")


def test_a_large_delta_is_warned_of_by_the_public_number_of_records():
    counted = given("add_or_remove_one", epsilon=2.0, delta=0.1, share=0.5)
    with pytest.warns(PrivacyWarning, match=r"delta=0.1 exceeds 1/n = 0.000167"):
        private_atoms(SCHEMA, loans(50), **counted)


def test_no_rows_are_no_atoms():
    table = {"debt": [], "income": []}
    assert private_atoms(SCHEMA, table, epsilon=1.0).schema == SCHEMA


def test_all_rows_of_a_person_are_one_record():
    """The first counts, wherever the others are."""
    table, persons = loans(4000), np.arange(4000) % 2000
    with record() as one:
        found = private_atoms(SCHEMA, table, epsilon=4.0, share=0.5, groups=persons)
    firsts = {name: column[:2000] for name, column in table.items()}
    with record() as other:
        private_atoms(SCHEMA, firsts, epsilon=4.0, share=0.5)
    assert_array_equal(one.releases[0].exact, other.releases[0].exact)
    y = np.where(table["income"] == 1902, "no", "yes")
    model = DPLogisticRegression(**found.left, classes=SCHEMA.classes, max_group_size=2)
    model.fit(found.schema.transformer().fit_transform(table), y, groups=persons)
    assert (found.privacy_ + model.privacy_).epsilon() == pytest.approx(4.0)
    with pytest.raises(ValueError, match="groups has 3 entries"):
        private_atoms(SCHEMA, table, epsilon=4.0, groups=[1, 2, 3])


class Interrupted(Tape):
    """Is interrupted once the noise has been drawn."""

    def note(self, event, sensitivity, compute, draw):
        draw(compute())
        raise KeyboardInterrupt


def test_odometers_are_charged_first_and_a_failure_has_its_cost(tmp_path):
    settings = {"epsilon": 2.0, "share": 0.5}
    with PrivacyOdometer(tmp_path / "spent.jsonl") as odometer:
        found = private_atoms(SCHEMA, loans(50), **settings)
    assert odometer.total.epsilon(1e-6) == pytest.approx(found.privacy_.epsilon(1e-6))
    with (
        PrivacyOdometer(tmp_path / "limit.jsonl", epsilon=0.1),
        record() as tape,
        pytest.raises(BudgetExceededError) as refused,
    ):
        private_atoms(SCHEMA, loans(50), **settings)
    assert not tape.releases and not hasattr(refused.value, "privacy_ledger")
    with on_tape(Interrupted()), pytest.raises(KeyboardInterrupt) as error:
        private_atoms(SCHEMA, loans(50), **settings)
    assert error.value.privacy_ledger == found.privacy_


def test_what_was_found_says_what_happened():
    many = private_atoms(SCHEMA, loans(), epsilon=4.0)
    again = private_atoms(many.schema, loans(), epsilon=4.0)
    # Once, however often it was counted, and nothing else where nothing else was said.
    stated = "(atoms: noisy counts of the rows, released by dpglm.workflow.private_atoms)"
    assert again.schema.source == many.schema.source == stated
    sourced = replace(SCHEMA, source="form of 2005")
    assert private_atoms(sourced, loans(), epsilon=4.0).schema.source.startswith("form of 2005 (at")
    nothing = private_atoms(SCHEMA, loans(50), epsilon=1.0)
    assert "nothing was counted, and all of epsilon is left" in repr(nothing)
    assert nothing.left["epsilon"] == 1.0
    # Where delta alone would pay for a mu that is rounded down.
    tiny = private_atoms(SCHEMA, loans(50), epsilon=1e-13, delta=0.01)
    assert tiny.left["epsilon"] == 1e-13


def test_a_ledger_of_a_pipeline_says_that_atoms_have_a_cost_of_their_own():
    table = loans()
    found = private_atoms(SCHEMA, table, epsilon=4.0)
    y = np.where(table["income"] == 1902, "no", "yes")
    for schema, is_said in ((found.schema, True), (SCHEMA, False)):
        model = DPLogisticRegression(**found.left, classes=SCHEMA.classes, max_iter=5)
        pipeline = make_pipeline(schema.transformer(), model).fit(table, y)
        said = "the counts that showed the atoms of schema 'loans' are charged as well"
        assert (said in privacy_of(pipeline).assumptions) is is_said
    assert privacy_of([found, pipeline]).epsilon(1e-6) <= 4.0
