"""The officer's report: each number from the ledger, nothing said that is not known, both doors."""

import json
import math
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpglm import DPLogisticRegression, PrivacyLedger, PrivacyOdometer, seeded_noise
from dpglm.audit.report import AuditReport
from dpglm.datasets import make_census
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.attacks import attack_success
from dpglm.privacy.events import FilterEvent, GaussianEvent, SampledGaussianEvent
from dpglm.privacy.ledger import FIXED_IN_ADVANCE, rounded_up
from dpglm.study import PrivacyReport
from dpglm.study.cli import main
from dpglm.study.privacy_report import PRIORS, RATES

NASTY = "--><script>alert(\"x\") & 'é'"
X, Y = make_census(400, random_state=0)


def fitted(**parameters):
    settings = {"epsilon": 1.0, "delta": 1e-3, "classes": [0, 1], "max_iter": 3, **parameters}
    return DPLogisticRegression(**settings).fit(X, Y)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    odometer = PrivacyOdometer(tmp_path_factory.mktemp("study") / NASTY, 2.0, 1e-3)
    with odometer:
        return fitted(), fitted(epsilon=0.5), odometer


def ledger(*events, **metadata):
    return PrivacyLedger.from_events(events, reporting_delta=1e-6, **metadata)


def delta_of(mu, epsilon):
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def text(source, **options):
    return " ".join(str(PrivacyReport(source, **options)).split())


def test_every_number_is_one_of_a_ledger_or_follows_from_one(study):
    *_, odometer = study
    # An odometer with a limit is a filter: what it guarantees is the limit.
    mu = brentq(lambda m: delta_of(m, 2.0) - 1e-3, 0.01, 10, xtol=1e-13)
    found = text(odometer)
    assert f"seen all of it the chance is {rounded_up(100 * norm.cdf(mu / 2))}% at most" in found
    for rate in RATES:
        power = norm.sf(norm.isf(rate) - mu)
        sure = [p * power / (p * power + (1 - p) * rate) for p in PRIORS]
        assert " ".join(f"{rounded_up(100 * p)}%" for p in (rate, power, *sure)) in found
    for k in (2, 5, 10):
        epsilon = brentq(lambda e, k=k: delta_of(k * mu, e) - 1e-3, 0, 200, xtol=1e-13)
        assert f" {k} {rounded_up(epsilon)} " in found


def test_what_is_not_known_is_said_to_be_so_and_what_holds_nothing_says_that(study, tmp_path):
    model, _, odometer = study
    alone = text(model.privacy_)
    assert "Not known. The guarantee above is of this release alone." in alone
    assert "Not audited: no result of an audit was given." in alone
    assert "THERE IS NO GUARANTEE" not in alone
    for assumption in model.privacy_.assumptions:
        assert f"- [ ] {assumption[0].upper()}{assumption[1:]}." in alone
    with seeded_noise(0):
        other = fitted()
    assert "THERE IS NO GUARANTEE" in text(other, odometer=odometer)
    assert "After having seen all of it the chance is 100% at most." in text(other)
    assert "All fits and scores together have no guarantee" in text(other, odometer=odometer)
    assert "THERE IS NO GUARANTEE" in text(ledger(GaussianEvent(3.0), GaussianEvent(0.0)))
    passed = text(model, audit=AuditReport("Mine", 5.0, 1e-6, ()))
    assert "Mine passes: nothing speaks against its claim of (5, 1e-06)." in passed
    fixed = PrivacyOdometer(tmp_path / "f.jsonl", 9.0, 1e-3, adaptive=False)
    for epsilon in (1.0, 2.0):
        fixed.charge(ledger(FilterEvent(mu=epsilon)))
    # A sum of adaptive fits is not the guarantee of a limit.
    assert "if all settings were fixed in advance" in text(fixed)
    assert PrivacyReport(fixed).ledger.mu() == pytest.approx(math.sqrt(5))
    persons = text(ledger(GaussianEvent(3.0), privacy_unit="group"))
    assert "all rows of one group, such as a person" in persons
    swapped = text(ledger(GaussianEvent(3.0), neighboring_relation="replace_one"))
    assert "even odds on which of two records was in the data" in swapped


def test_releases_of_parts_are_listed_and_none_needs_a_gaussian_trade_off():
    parts = (ledger(GaussianEvent(5.0)), ledger(GaussianEvent(4.0), GaussianEvent(5.0)))
    apart = PrivacyLedger.parallel(*parts)
    assert [row[1:] for row in apart.rows()[1:]] == [
        ("gaussian", "2", "noise_multiplier=5"),
        ("gaussian", "1", "noise_multiplier=4"),
    ]
    pytest.importorskip("dp_accounting")
    sampled = ledger(*[SampledGaussianEvent(0.1, 4.0)] * 20)
    success = rounded_up(100 * attack_success(sampled))
    assert f"the chance is {success}% at most" in text(sampled) and 50 < float(success) < 60


def test_the_page_is_escaped_and_has_a_box_for_each_assertion(study, tmp_path):
    model, _, odometer = study
    report = PrivacyReport(model, odometer=odometer)
    report.save(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert page.count('<li><input type="checkbox"> ') == str(report).count("- [ ] ") == 9
    assert escape(NASTY) in page and "<script" not in page


def test_sources_without_a_ledger_and_files_of_another_kind_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no ledger; .* model.privacy_ \+ scores"):
        PrivacyReport([ledger(GaussianEvent(3.0)), ledger(GaussianEvent(4.0))])
    with pytest.raises(ValueError, match=r"Nothing is recorded .* There is nothing to report"):
        PrivacyReport(PrivacyOdometer(tmp_path / "none.jsonl"))
    report = PrivacyReport(ledger(GaussianEvent(3.0)))
    with pytest.raises(ValueError, match="must end in one of"):
        report.save(tmp_path / "report.pdf")
    for text in ("[1, 2]", '{"version": 1}', '{"ledger": 3}'):
        (tmp_path / "table.json").write_text(text)
        with pytest.raises(ValueError, match="nor a ledger as JSON: it has no ledger"):
            PrivacyReport.from_files(tmp_path / "table.json")


def test_the_command_adds_ledgers_takes_the_total_and_writes_by_the_name(study, tmp_path, capsys):
    model, second, odometer = study
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, each in zip(files, (model, second), strict=True):
        file.write_text(json.dumps(each.privacy_.to_dict()))
    assert main(["report", str(files[0])]) == 0
    assert capsys.readouterr().out == f"{PrivacyReport(model.privacy_)}\n"
    output, inputs = tmp_path / "r.txt", [*map(str, files), str(odometer.path)]
    assert main(["report", *inputs, "--output", str(output)]) == 0
    written = output.read_text()
    assert written.startswith("Privacy report: a ledger, a ledger\n") and "NOT among" not in written
    report = PrivacyReport.from_files(*inputs)
    assert report.ledger == model.privacy_ + second.privacy_ and report.is_recorded
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "none.json")])
    assert "No such file" in capsys.readouterr().err


def test_every_test_that_the_page_on_the_hazards_names_is_there():
    root = Path(__file__).parents[1]
    page = (root / "docs" / "nist_800_226.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)::(test_\w+)`", page)
    assert len(named) > 30 and len(named) == page.count("::")
    for file, test in named:
        assert f"\ndef {test}(" in (root / "tests" / f"{file}.py").read_text(encoding="utf-8"), test


def test_a_release_that_was_not_recorded_is_said_to_be_none(study, tmp_path):
    model, second, odometer = study
    for recorded in (model, second, odometer, model.privacy_ + second.privacy_):
        report = PrivacyReport(recorded, odometer=odometer)
        assert report.is_recorded and "NOT among" not in str(report)
        # The fits are recorded, so it need not be asserted that there are no others.
        assert "No other fit" not in str(report)
    bare = ledger(GaussianEvent(3.0))
    for other in (
        fitted(epsilon=0.3),
        replace(bare, privacy_unit="group"),
        replace(bare, neighboring_relation="replace_one"),
    ):
        assert "is NOT among those that were recorded" in text(other, odometer=odometer)
    pipeline = make_pipeline(StandardScaler(), DPLogisticRegression(max_iter=2, classes=[0, 1]))
    with pytest.warns(PrivacyWarning, match="StandardScaler"):
        broken = PrivacyReport(pipeline.fit(X, Y), odometer=odometer)
    assert "have no guarantee, as one of them has none" in str(broken)
    assert "the guarantee is the limit" not in str(broken)


def test_what_parts_rest_on_is_asserted_beside_a_limit_too(tmp_path):
    odometer = PrivacyOdometer(tmp_path / "s.jsonl", epsilon=2.0, delta=1e-3)
    for part in ("north", "south"):
        with odometer.part(part):
            fitted(epsilon=0.5)
    asserted = text(odometer)
    assert "[ ] No record decides in which part of the records another one is." in asserted
    assert FIXED_IN_ADVANCE not in asserted
