"""Facts about a release for those who decide on it, by the questions of NIST SP 800-226."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from dpglm.audit.report import AuditReport
from dpglm.privacy.attacks import attack_power, attack_success, gaussian_mu, posterior
from dpglm.privacy.events import FilterEvent, GaussianEvent, counted, single_releases
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS, gdp_mu
from dpglm.privacy.ledger import ENTROPY, FIXED_IN_ADVANCE, PrivacyLedger, rounded_up
from dpglm.privacy.odometer import FILE_START, OdometerRecord, PrivacyOdometer, public_parameters
from dpglm.schema.table import plain_path
from dpglm.study.comparison import one_line, strict_json
from dpglm.study.plots import display_of, pyplot
from dpglm.tables import Page, cell, html_table
from dpglm.workflow import total_privacy

PRIORS, RATES = (0.5, 0.1, 0.01), (0.1, 0.01, 0.001)
_GROUPS = (1, 2, 5, 10)
_PACKAGES = ("dpglm", "scikit-learn", "numpy", "scipy", "numba", "matplotlib", "dp-accounting")
_INK = "#123456"  # a colour of its own, for which that of the page is put

RELEASES = {
    "gaussian": "sum over all records, with Gaussian noise",
    "sampled_gaussian": "sum over a random batch of the records, with Gaussian noise",
    "choice": "choice by noisy scores",
    "pure": "sum over all records, with noise and a delta of zero",
    "objective_perturbation": "minimiser of a loss that was tilted at random",
    "filter": "everything that an adaptive fit may release, charged with its whole budget",
}
"""What each kind of event of a ledger releases, in words."""

_UNITS = {"row": "one row", "group": "all rows of one group, such as a person"}
# The assumption on parameters, and its form under a limit that holds for adaptive settings.
_BLIND = "chosen without looking at the data"
_BLIND_BUT = f"{_BLIND}, but for what the recorded fits and scores released"


class PrivacyReport:
    """Releases about the records, their cost, and what is only asserted, for who decides on them.

    Every number follows from a ledger, and for an adaptive odometer from its limit.

    Parameters
    ----------
    source : fitted estimator, PrivacyLedger or PrivacyOdometer
        A release, such as any object with a ``privacy_``, or all that an odometer recorded.
    odometer : PrivacyOdometer, optional
        The total of all fits on the same records. Without it the report says that it is not known.
    audit : AuditReport, optional
        Result of `audit_estimator`. Without it the report says that none was made.

    Raises
    ------
    ValueError
        If the source has no ledger, or nothing was recorded.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import PrivacyReport
    >>> X, y = make_census(1000, random_state=0)
    >>> model = DPLogisticRegression(epsilon=1.0, classes=[0, 1], max_iter=5).fit(X, y)
    >>> report = PrivacyReport(model)
    >>> report.to_markdown().splitlines()[0]
    '# Privacy report: DPLogisticRegression'
    """

    def __init__(
        self,
        source: Any,
        *,
        odometer: PrivacyOdometer | None = None,
        audit: AuditReport | None = None,
    ) -> None:
        self.audit, self.parameters = audit, {}
        if isinstance(source, PrivacyLedger):
            self.name, self.ledger, self.released = "one ledger", source, [source]
        elif isinstance(source, PrivacyOdometer):
            self.name, self.ledger = f"all fits and scores in {source.path.name}", _total(source)
            self.released, odometer = source.ledgers(), source
        else:
            model = source[-1] if isinstance(source, Pipeline) else source
            if isinstance(model, BaseEstimator):
                check_is_fitted(model)
            if not isinstance(getattr(model, "privacy_", None), PrivacyLedger):
                raise ValueError(
                    f"{source!r:.80} has no ledger; give a fitted estimator of this package, a sum "
                    "of ledgers, as model.privacy_ + scores.privacy_, or a PrivacyOdometer."
                )
            # A step before the last may have costs too, or read other records.
            self.ledger = total_privacy(source)
            self.name, self.released = type(model).__name__, [self.ledger]
            self.parameters = public_parameters(model)
        self.odometer, self.total, self.fits = odometer, None, []
        if odometer is not None:
            self.total, self.fits = _total(odometer), odometer.entries()
            # If this release promises nothing, all fits together promise nothing either.
            nothing = [(GaussianEvent(0.0), 1)] * (self.total.protects > self.ledger.protects)
            self.total = replace(
                self.total,
                events=(*self.total.events, *nothing),
                seeded=self.total.seeded or self.ledger.seeded,
            )

    @classmethod
    def from_files(cls, *paths: str | os.PathLike[str]) -> "PrivacyReport":
        """Return the report of files: ledgers, which add up, or an odometer, or both.

        Parameters
        ----------
        *paths : path-like
            `PrivacyLedger.to_dict` as JSON, alone or as the ``ledger`` of an object such as a
            model of ``dpglm fit``; at most one file of a `PrivacyOdometer`.

        Raises
        ------
        ValueError, OSError
            If a file is neither or cannot be read, or ledgers do not add up.
        """
        found = [_read(plain_path(path)) for path in paths]
        odometers = [one for one in found if isinstance(one, PrivacyOdometer)]
        ledgers = [one for one in found if isinstance(one, OdometerRecord)]
        if len(odometers) > 1:
            raise ValueError("Give one odometer: its total is that of all fits on the records.")
        if not ledgers:
            return cls(*odometers)
        report = cls(sum(one.ledger for one in ledgers), odometer=next(iter(odometers), None))
        report.name = f"{len(ledgers)} ledgers"
        if len(ledgers) == 1:
            report.name = ledgers[0].estimator or "one ledger"
            report.parameters = dict(ledgers[0].parameters)
        return report

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a JSON-serialisable dictionary, with the ledgers themselves."""
        audit, total = self.audit, None
        if self.total is not None:
            total = {
                "guarantee": _guarantee(self.total),
                "limit": self.odometer.epsilon,
                "adaptive": self.odometer.adaptive,
                "has_this": self._found()[0],
                "fits": [{**vars(fit), "ledger": fit.ledger.to_dict()} for fit in self.fits],
            }
        return {
            "format": "dpglm privacy report",
            "subject": self.name,
            "guarantee": self._own_guarantee(),
            "releases": self._releases(),
            "parameters": self.parameters,
            "asserted": list(self._asserted()),
            "total": total,
            "audit": audit
            and {"passed": audit.passed, "verdict": audit.verdict, "epsilon": audit.epsilon,
                 "delta": audit.delta, "parts": [part.name for part in audit.parts]},
            "versions": versions(),
            "ledger": self.ledger.to_dict(),
        }  # fmt: skip

    def to_json(self) -> str:
        """Return `to_dict` as JSON; numbers that it lacks are the strings "inf" and "nan"."""
        return strict_json(self.to_dict(), indent=2) + "\n"

    def to_markdown(self) -> str:
        """Return the report as Markdown that can be read in a terminal as well."""
        parts = []
        for caption, content in self._blocks():
            parts += [caption] * bool(caption) + [_markdown(content)]
        return "\n\n".join(filter(None, parts)) + "\n"

    def to_html(self) -> str:
        """Return the report as a web page of one file, with boxes to tick; needs matplotlib."""
        _, (_, lead), *blocks = self._blocks()
        body = "\n".join(_html(caption, content) for caption, content in blocks)
        body = body.removeprefix("</section>\n") + "\n</section>"
        texts = {"title": escape(self.title), "lead": escape(lead), "body": body}
        return Template(_template("page.html")).substitute(texts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file whose name ends in ``.html``, ``.json`` or ``.md``."""
        formats = {".html": self.to_html, ".json": self.to_json, ".md": self.to_markdown}
        path = plain_path(path)
        suffix = path.suffix
        if suffix not in formats:
            raise ValueError(f"{path} must end in one of {', '.join(formats)}.")
        path.write_text(formats[suffix](), encoding="utf-8")

    @property
    def title(self) -> str:
        """The heading of the report."""
        return f"Privacy report: {self.name}"

    def __str__(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        shown = ((caption.lstrip("# "), content) for caption, content in self._blocks())
        return Page(*shown)._repr_html_()

    def __repr__(self) -> str:
        return f"<PrivacyReport: {self.name}, {self.ledger.statement}>"

    def _releases(self) -> list[dict[str, Any]]:
        """Return each kind of release, in all parts, with its parameters and their number."""
        counts = counted(run for each in self.released for run in single_releases(each.events))
        return replace(self.ledger, events=tuple(counts.items())).to_dict()["events"]

    def _own_guarantee(self) -> dict[str, Any]:
        guarantee = _guarantee(self.ledger)
        if self.ledger == self.total and _is_filter(self.odometer):
            # The limit is charged as one adaptive fit, whatever it was used for.
            text = f"all {len(self.fits)} recorded fits and scores, charged with the limit"
            one = "1 adaptive fit, charged with the whole budget"
            statement = guarantee["statement"].replace(one, text)
            guarantee["statement"] = statement.replace(_BLIND, _BLIND_BUT)
        return guarantee

    def _asserted(self) -> Sequence[str]:
        stated = self.total or self.ledger
        entropy = () if stated.seeded else (ENTROPY,)
        texts = dict.fromkeys((*self.ledger.assumptions, *stated.assumptions, *entropy))
        if self.odometer is None or not _is_filter(self.odometer):
            return tuple(texts)
        return tuple(text.replace(_BLIND, _BLIND_BUT) for text in texts)

    def _blocks(self) -> Iterator[tuple[str, Any]]:
        """Yield the blocks of the template with their captions; some have a ``[condition]``."""
        values = self._values()
        for block in _template("privacy_report.md").strip().split("\n\n"):
            if block.startswith("["):
                condition, block = block[1:].split("]\n")
                if not values[condition]:
                    continue
            text = block.replace("\n", " ")
            caption, _, name = text.rpartition("$")
            content = values.get(name)
            if text.startswith("- [ ] "):
                caption, content = "", text.removeprefix("- [ ] ").split(" - [ ] ")
            elif content is None or isinstance(content, str):
                caption, content = "", Template(text).substitute(values)
            if content:
                yield Template(caption).substitute(values).strip(), content

    def _values(self) -> dict[str, Any]:
        """Return what the template of the report leaves open, and what its conditions name."""
        guarantee, total, audit = self._own_guarantee(), self.total, self.audit
        even, *_ = guarantee["success"]
        mu, persons = guarantee["mu"], self.ledger.privacy_unit == "group"
        swapped, who = guarantee["relation"] == "replace_one", "persons" if persons else "records"
        delta = rounded_up(guarantee["delta"])
        releases = [("releases", "what", "parameters")]
        for event in self._releases():
            numbers = {k: v for k, v in event.items() if k not in ("kind", "count", "purpose")}
            text = ", ".join(f"{name} {cell(value)}" for name, value in numbers.items()) or "-"
            what = ": ".join([RELEASES[event["kind"]], event.get("purpose", "")]).rstrip(": ")
            releases.append((str(event["count"]), what, text))
        values = {
            "title": self.title,
            "nothing": not guarantee["holds"],
            "statement": guarantee["statement"],
            "asked": "which of two records was" if swapped else "whether one record was",
            "before": _percent(even["without_release"]),
            "after": _percent(even["with_release"]),
            "parameters": {
                "epsilon": rounded_up(guarantee["epsilon"]),
                "delta": delta,
                "mu (Gaussian differential privacy)": "none" if mu is None else rounded_up(mu),
            },
            "figure": self.ledger,
            "success": [
                ("odds before", "right without the release", "right with it, at most"),
                *([*map(_percent, row.values())] for row in guarantee["success"]),
            ],
            "power": [
                ("false alarms", "found, at most", *(f"sure at {_percent(p)}" for p in PRIORS)),
                *(
                    [*map(_percent, (*rates, *sure.values()))]
                    for *rates, sure in map(dict.values, guarantee["power"])
                ),
            ],
            "persons": persons,
            "rows": not persons,
            "unit": {
                "one record is": guarantee["unit"],
                "two data sets are neighbours if": guarantee["meaning"],
                "called": guarantee["relation"],
            },
            "who": who,
            "groups": [
                (who, f"epsilon at delta {delta}"),
                *(
                    (str(group["records"]), rounded_up(group["epsilon"]))
                    for group in guarantee["several_records"]
                ),
            ],
            "settings": {name: str(value) for name, value in self.parameters.items()},
            "releases": releases,
            "alone": total is None,
            **dict.fromkeys(("broken", "filter", "summed", "limit", "found"), ""),
            **dict.fromkeys(("total", "fits"), ()),
            "asserted": [f"{text[0].upper()}{text[1:]}." for text in self._asserted()],
            "unaudited": audit is None,
            "audited": audit is not None,
            "parts": audit and "; ".join(part.name for part in audit.parts),
            "verdict": audit and audit.verdict,
            "versions": versions(),
        }
        if total is None:
            return values
        limit, is_filter = self.odometer.epsilon, _is_filter(self.odometer)
        broken = total.seeded or not total.protects
        facts = {
            f"epsilon at delta {rounded_up(total.reporting_delta)}": rounded_up(total.epsilon()),
            "right guesses at even odds, at most": _percent(attack_success(total)),
        }
        return values | {
            "broken": broken,
            "filter": is_filter and not broken,
            "summed": not (is_filter or broken),
            "limit": "" if limit is None else f"{limit:g}",
            "found": self._found()[1],
            "total": facts,
            "fits": self.odometer.rows(),
        }

    def _found(self) -> tuple[bool, str]:
        """Return whether what was released is among the fits of the odometer, and what to say."""
        ledger, kind = self.ledger, _kind_of(self.ledger)
        if ledger in (_total(self.odometer), *(fit.ledger for fit in self.fits)):
            return True, ""
        # It may be of several fits; and what a step breaks, a noise of 0, is no release of a fit.
        same = [fit for fit in self.fits if _kind_of(fit.ledger) == kind]
        left = _noisy(ledger)
        for own in (_noisy(fit.ledger) for fit in same):
            if own and own <= left:
                left -= own
                if not left:
                    return True, ""
        mu = gaussian_mu(ledger)
        for fit in same:
            if mu and fit.estimator == "PrivateSearchCV":
                *_, (last, _) = fit.ledger.events
                if isinstance(last, FilterEvent) and math.isclose(last.mu, mu, rel_tol=1e-6):
                    return True, "This model is the last fit of a search that was recorded."
        text = "This release is NOT among the fits that were recorded"
        if ledger.privacy_unit != self.total.privacy_unit:
            return False, f"{text}, and costs of rows and of persons cannot be added."
        if ledger.neighboring_relation != self.total.neighboring_relation:
            return False, f"{text}, and costs under different relations cannot be added."
        return False, f"{text}: add its cost."


def _guarantee(ledger: PrivacyLedger) -> dict[str, Any]:
    """Return what a ledger promises, and what an attacker can do against it."""
    return {
        "holds": ledger.protects and not ledger.seeded,
        "statement": ledger.statement,
        "epsilon": ledger.epsilon(),
        "delta": ledger.reporting_delta,
        "mu": gaussian_mu(ledger),
        "relation": ledger.neighboring_relation,
        "meaning": NEIGHBORING_RELATIONS[ledger.neighboring_relation].meaning,
        "unit": _UNITS[ledger.privacy_unit],
        "success": [
            {
                "prior": prior,
                "without_release": max(prior, 1 - prior),
                "with_release": attack_success(ledger, prior),
            }
            for prior in PRIORS
        ],
        "power": [
            {
                "false_positive_rate": rate,
                "true_positive_rate": attack_power(ledger, rate),
                "posterior": {f"{prior:g}": posterior(ledger, prior, rate) for prior in PRIORS},
            }
            for rate in RATES
        ],
        "several_records": [{"records": k, "epsilon": ledger.group(k).epsilon()} for k in _GROUPS],
    }


def _kind_of(ledger: PrivacyLedger) -> tuple[Any, ...]:
    return ledger.neighboring_relation, ledger.privacy_unit, ledger.n_changed, ledger.seeded


def _noisy(ledger: PrivacyLedger) -> Counter:
    """Return how often each release with noise was made."""
    return counted(run for run in ledger.events if run[0] != GaussianEvent(0.0))


def _is_filter(odometer: PrivacyOdometer) -> bool:
    return odometer.adaptive and odometer.epsilon is not None


def _total(odometer: PrivacyOdometer) -> PrivacyLedger:
    """Return what an odometer guarantees: of a filter its limit, whatever was spent of it."""
    total = odometer.total
    if total is None:
        raise ValueError(f"{odometer.statement} There is nothing to report.")
    events, assumptions = total.events, total.assumptions
    if _is_filter(odometer):
        # The budget admits settings that follow from earlier results, which a sum does not.
        events = ((FilterEvent(mu=gdp_mu(odometer.epsilon, odometer.delta)), 1),)
        assumptions = tuple(text for text in assumptions if text != FIXED_IN_ADVANCE)
    return replace(total, events=events, reporting_delta=odometer.delta, assumptions=assumptions)


def _read(path: Path) -> PrivacyOdometer | OdometerRecord:
    """Return the odometer of a file, or the ledger in it with the fit that it is of."""
    content = path.read_bytes()
    if content.startswith(FILE_START):
        return PrivacyOdometer(path)
    try:
        document = json.loads(content)
        whole = document if "ledger" in document else {"ledger": document}
        if not isinstance(whole["ledger"], dict) or "events" not in whole["ledger"]:
            raise ValueError("it has no ledger, which lists events.")
        return OdometerRecord(
            PrivacyLedger.from_dict(whole["ledger"]),
            estimator=whole.get("estimator") or whole.get("subject"),
            parameters=whole.get("parameters", {}),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is neither the file of a PrivacyOdometer nor a ledger as JSON: {error}"
        ) from error


def _percent(share: float) -> str:
    return f"{rounded_up(100 * share)}%"


def versions() -> dict[str, str]:
    """Return the versions of the packages that a fit, its accounting or a figure rest on."""
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _figure(ledger: PrivacyLedger) -> str:
    """Return the figure of a ledger in the ink of the page, whose numbers the tables below hold."""
    plt, image = pyplot(), BytesIO()
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    theme = {**dict.fromkeys(inked, _INK), **dict.fromkeys(clear, "none"), "grid.color": _INK}
    # Without a date and with fixed identifiers the same results give the same page.
    with plt.rc_context({**theme, "svg.hashsalt": "dpglm"}):
        drawn = display_of(ledger).plot().figure_
        drawn.savefig(image, format="svg", metadata={"Date": None})
        plt.close(drawn)
    svg = image.getvalue().decode().partition("<svg")[2].replace(_INK, "currentColor")
    label = "What an attack can do; the tables below hold the same numbers"
    return f'<figure class=small role="img" aria-label="{label}">\n<svg{svg}</figure>'


def _template(name: str) -> str:
    return files("dpglm").joinpath("templates", name).read_text(encoding="utf-8")


def _markdown(content: Any) -> str:
    """Return a block as Markdown, which has no figures."""
    if isinstance(content, PrivacyLedger):
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return "\n".join(f"- {name}: {text}" for name, text in content.items())
    if isinstance(content[0], str):
        return "\n".join(f"- [ ] {box}" for box in content)
    rows = [[one_line(text).replace("|", "\\|") for text in row] for row in content]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = ("| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows)
    line = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([head, line, *body])


def _html(caption: str, content: Any) -> str:
    """Return a block as HTML; a heading begins a section."""
    if isinstance(content, PrivacyLedger):
        return _figure(content)
    if isinstance(content, Mapping):
        items = (
            f"<dt>{escape(name)}</dt><dd>{escape(value) or '-'}</dd>"
            for name, value in content.items()
        )
        return f"<dl class=facts>{''.join(items)}</dl>"
    if isinstance(content, str):
        text = escape(content.lstrip("# ").strip("*"))
        if content.startswith("#"):
            return f"</section>\n<section>\n<h2>{text}</h2>"
        return f'<p class="muted">{text}</p>' if content.startswith("*") else f"<p>{text}</p>"
    if isinstance(content[0], str):
        form = '<li><label><input type="checkbox">{}</label></li>'
        return f"<ul class=boxes>{''.join(form.format(escape(box)) for box in content)}</ul>"
    table = html_table(content, caption.rstrip(":"))
    return f'<div class="tables words"><div class="scroll">{table}</div></div>'
