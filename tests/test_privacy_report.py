"""The officer's report: each number from the ledger, nothing said that is not known, both doors."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpglm import DPLogisticRegression, PrivacyLedger, PrivacyOdometer, seeded_noise
from dpglm.audit.report import AuditReport
from dpglm.datasets import make_census
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.events import Event, FilterEvent, GaussianEvent, SampledGaussianEvent
from dpglm.privacy.ledger import FIXED_IN_ADVANCE
from dpglm.study import PrivacyReport
from dpglm.study.cli import main
from dpglm.study.privacy_report import PRIORS, RATES, RELEASES
from dpglm.workflow import PrivateSearchCV

NASTY = "--><script>alert(\"x\")</script> & 'é'"
VOID = {"meta", "link", "img", "source"}
X, Y = make_census(400, random_state=0)


class Page(HTMLParser):
    """Notes what a page holds, and refuses tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.texts = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def fitted(**parameters):
    settings = {"epsilon": 1.0, "delta": 1e-3, "classes": [0, 1], "max_iter": 3, **parameters}
    return DPLogisticRegression(**settings).fit(X, Y)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    odometer = PrivacyOdometer(tmp_path_factory.mktemp("study") / "s.jsonl", 2.0, 1e-3, label=NASTY)
    with odometer:
        return fitted(), fitted(epsilon=0.5), odometer


def ledger(*events, **metadata):
    return PrivacyLedger.from_events(events, reporting_delta=1e-6, **metadata)


def delta_of(mu, epsilon):
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def success_of(mu, prior):
    """The chance of the Bayes test between N(0, 1) and N(mu, 1) to be right."""
    threshold = mu / 2 + math.log((1 - prior) / prior) / mu
    return prior * norm.sf(threshold - mu) + (1 - prior) * norm.cdf(threshold)


def oracle(mu, delta):
    """What a guarantee with a Gaussian trade-off has to state, by path, from scipy alone."""
    found = {
        "delta": delta,
        "mu": mu,
        "epsilon": brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0, 50, xtol=1e-13),
    }
    for i, prior in enumerate(PRIORS):
        found[f"success.{i}.prior"] = prior
        found[f"success.{i}.without_release"] = max(prior, 1 - prior)
        found[f"success.{i}.with_release"] = success_of(mu, prior)
    for i, rate in enumerate(RATES):
        power = norm.sf(norm.isf(rate) - mu)
        found[f"power.{i}.false_positive_rate"] = rate
        found[f"power.{i}.true_positive_rate"] = power
        for prior in PRIORS:
            sure = prior * power / (prior * power + (1 - prior) * rate)
            found[f"power.{i}.posterior.{prior:g}"] = sure
    for i, k in enumerate((1, 2, 5, 10)):
        found[f"several_records.{i}.records"] = k
        root = brentq(lambda e, k=k: delta_of(k * mu, e) - delta, 0, 200, xtol=1e-13)
        found[f"several_records.{i}.epsilon"] = root
    return found


def numbers(document, path=()):
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from numbers(value, (*path, str(key)))
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield ".".join(path), document


def unexplained(document, mu, total_mu, ledgers):
    """Return where a report has a number that is neither a ledger's nor follows from one."""
    delta = document["ledger"]["reporting_delta"]
    known = {f"guarantee.{path}": value for path, value in oracle(mu, delta).items()}
    known |= {f"total.guarantee.{path}": v for path, v in oracle(total_mu, delta).items()}
    listed = {value for each in ledgers for _, value in numbers(each.to_dict())}
    return [
        path
        for path, value in numbers(document)
        if not path.startswith(("parameters.", "total.fits.0.parameters", "total.fits.1.param"))
        and value not in listed
        and value != pytest.approx(known.get(path, math.nan), rel=1e-7)
    ]


def test_every_number_is_one_of_a_ledger_or_follows_from_one(study):
    model, _, odometer = study
    document = json.loads(PrivacyReport(model, odometer=odometer).to_json())
    mu = math.sqrt(sum(n / e.noise_multiplier**2 for e, n in model.privacy_.events))
    # An odometer with a limit is a filter: what it guarantees is the limit.
    limit = brentq(lambda m: delta_of(m, 2.0) - 1e-3, 0.01, 10, xtol=1e-13)
    metadata = mu, limit, [*odometer.ledgers(), odometer.total]
    assert document["total"].pop("limit") == odometer.epsilon == 2.0
    assert unexplained(document, *metadata) == []
    own = model.get_params(deep=False)
    assert {k: v for k, v in document["parameters"].items() if k != "classes"} == {
        k: v for k, v in own.items() if k != "classes"
    }


def test_what_is_not_known_is_said_to_be_so_and_what_holds_nothing_says_that(study, tmp_path):
    model, _, odometer = study
    alone = PrivacyReport(model.privacy_).to_markdown()
    assert "Not known. The guarantee above is of this release alone." in alone
    assert "Not audited: no result of an audit was given." in alone
    assert "THERE IS NO GUARANTEE" not in alone
    for assumption in model.privacy_.assumptions:
        assert f"- [ ] {assumption[0].upper()}{assumption[1:]}." in alone
    assert "is NOT among the fits" not in PrivacyReport(model, odometer=odometer).to_markdown()
    with seeded_noise(0):
        other = PrivacyReport(fitted(), odometer=odometer)
    assert "is NOT among the fits" in other.to_markdown()
    assert "THERE IS NO GUARANTEE" in other.to_markdown()
    assert "All fits and scores together have no guarantee" in other.to_markdown()
    assert not other.to_dict()["total"]["guarantee"]["holds"]
    assert "After having seen all of it the chance is 100% at most." in other.to_markdown()
    bare = PrivacyReport(ledger(GaussianEvent(3.0), GaussianEvent(0.0)))
    assert "THERE IS NO GUARANTEE" in bare.to_markdown()
    assert json.loads(bare.to_json())["guarantee"]["epsilon"] == "inf"
    passed = PrivacyReport(model, audit=AuditReport("Mine", 5.0, 1e-6, ())).to_markdown()
    assert "Mine passes: nothing speaks against its claim of (5, 1e-06)." in passed
    fixed = PrivacyOdometer(tmp_path / "f.jsonl", 9.0, 1e-3, adaptive=False)
    for epsilon in (1.0, 2.0):
        fixed.charge(ledger(FilterEvent(mu=epsilon)))
    # A sum of adaptive fits is not the guarantee of a limit.
    summed = PrivacyReport(fixed)
    assert "add up to this, if number and costs of all were fixed" in summed.to_markdown()
    assert summed.ledger.mu() == pytest.approx(math.sqrt(5))
    assert summed.to_dict()["releases"] == [
        {"kind": "filter", "count": 1, "mu": 1.0},
        {"kind": "filter", "count": 1, "mu": 2.0},
    ]
    persons = PrivacyReport(ledger(GaussianEvent(3.0), privacy_unit="group")).to_markdown()
    assert "one record is: all rows of one group, such as a person" in persons
    swapped = PrivacyReport(ledger(GaussianEvent(3.0), neighboring_relation="replace_one"))
    assert "even odds on which of two records was in the data" in swapped.to_markdown()


def test_every_kind_of_release_has_words_and_none_needs_a_gaussian_trade_off():
    assert {event.kind for event in get_args(Event)} <= {*RELEASES, "parallel"}
    parts = (ledger(GaussianEvent(5.0)), ledger(GaussianEvent(4.0), GaussianEvent(5.0)))
    apart = PrivacyReport(PrivacyLedger.parallel(*parts)).to_dict()
    assert [(e["count"], e["noise_multiplier"]) for e in apart["releases"]] == [(2, 5), (1, 4)]
    assert apart["guarantee"]["mu"] == pytest.approx(math.hypot(1 / 4, 1 / 5))
    pytest.importorskip("dp_accounting")
    report = PrivacyReport(ledger(*[SampledGaussianEvent(0.1, 4.0)] * 20))
    assert "mu (Gaussian differential privacy): none" in report.to_markdown()
    guarantee = report.to_dict()["guarantee"]
    assert 0.5 < guarantee["success"][0]["with_release"] < 0.6


def test_the_page_is_closed_escaped_and_has_a_box_for_each_assertion(study):
    model, _, odometer = study
    report = PrivacyReport(model, odometer=odometer)
    page = Page(report.to_html().replace('type="checkbox">', 'type="checkbox"></input>'))
    assert page.tags.count("input") == report.to_markdown().count("- [ ] ") >= 7
    assert page.tags.count("section") == 7 and "script" not in page.tags
    assert [text for _, text in page.texts if NASTY in text]
    assert all(link.startswith("data:") for link in page.links)


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
    assert capsys.readouterr().out == PrivacyReport(model.privacy_).to_markdown()
    outputs = [tmp_path / f"r{suffix}" for suffix in (".md", ".json")]
    inputs = [*map(str, files), str(odometer.path)]
    for output in outputs:
        assert main(["report", *inputs, "--output", str(output)]) == 0
    document = json.loads(outputs[1].read_text())
    assert PrivacyLedger.from_dict(document["ledger"]) == model.privacy_ + second.privacy_
    assert document["total"]["limit"] == 2.0 and document["total"]["has_this"]
    assert document["subject"] == "2 ledgers"
    # A report is read again, and is then one ledger.
    again = PrivacyReport.from_files(outputs[1])
    assert again.ledger == model.privacy_ + second.privacy_ and again.total is None
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


def test_a_release_is_found_among_the_recorded_ones_in_whatever_form(study, tmp_path):
    odometer = PrivacyOdometer(tmp_path / "o.jsonl", 9.0, 1e-3)
    pipeline = make_pipeline(StandardScaler(), DPLogisticRegression(max_iter=2, classes=[0, 1]))
    grid = {"alpha": [1e-3, 1e-2]}
    search = PrivateSearchCV(
        DPLogisticRegression(classes=[0, 1], max_iter=3), grid, epsilon=2.0, delta=1e-3
    )
    with odometer:
        search.fit(X, Y)
        pipeline.fit(X, Y)

    def composition(source):
        return PrivacyReport(source, odometer=odometer).to_markdown().split("## 4")[1]

    with pytest.warns(PrivacyWarning, match="StandardScaler"):
        broken = composition(pipeline)
    assert "NOT among" not in broken and "have no guarantee, as one of them has none" in broken
    assert "epsilon at delta 0.001: inf" in broken and "have the guarantee" not in broken
    assert "is the last fit of a search" in composition(search.best_estimator_)
    assert "NOT among" not in composition(search) and "last fit" not in composition(search)
    assert "were recorded: add its cost" in composition(fitted(epsilon=0.3))
    bare = ledger(GaussianEvent(3.0))
    for other in (
        replace(bare, privacy_unit="group"),
        replace(bare, neighboring_relation="replace_one"),
    ):
        assert "cannot be added" in composition(other) and "add its" not in composition(other)


def test_what_parts_rest_on_is_asserted_beside_a_limit_too(tmp_path):
    odometer = PrivacyOdometer(tmp_path / "s.jsonl", epsilon=2.0, delta=1e-3)
    for part in ("north", "south"):
        with odometer.part(part):
            fitted(epsilon=0.5)
    asserted = PrivacyReport(odometer).to_dict()["asserted"]
    assert "no record decides in which part of the records another one is" in asserted
    assert FIXED_IN_ADVANCE not in asserted
