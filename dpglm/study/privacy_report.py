"""Facts about a release for those who decide on it, by the questions of NIST SP 800-226."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from dpglm.audit.report import AuditReport
from dpglm.privacy.attacks import attack_power, attack_success, posterior
from dpglm.privacy.events import FilterEvent, counted
from dpglm.privacy.gaussian import gdp_mu
from dpglm.privacy.ledger import ENTROPY, FIXED_IN_ADVANCE, PrivacyLedger, rounded_up
from dpglm.privacy.odometer import FILE_START, PrivacyOdometer
from dpglm.schema.table import plain_path
from dpglm.tables import Printed
from dpglm.workflow import total_privacy

PRIORS, RATES = (0.5, 0.1, 0.01), (0.1, 0.01, 0.001)
_GROUPS = (1, 2, 5, 10)
_PACKAGES = ("dpglm", "scikit-learn", "numpy", "scipy", "numba", "dp-accounting")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Privacy report: {title}</title>
<style>:root {{color-scheme: light dark}} body {{margin: 2em auto; max-width: 60em}}</style>
{body}
</html>
"""

_UNITS = {
    "row": "The promise is for one record, which is a row. Somebody with several rows has a weaker "
    "one, unless all rows of a person were clipped together.",
    "group": "The promise is for one record, which is all rows of one group, such as a person. "
    "Several persons together have a weaker one.",
}
# The assumption on parameters, and its form under a limit that holds for adaptive settings.
_BLIND = "chosen without looking at the data"
_BLIND_BUT = f"{_BLIND}, but for what the recorded fits and scores released"
_OFFICER = [
    "[ ] The raw records, and the process that reads them, are protected: access, storage, "
    "backups, memory, logs, timing.",
    "[ ] Nothing leaves that has no noise: no score, figure, error message or file of a callback.",
    "[ ] No more was collected, and is kept no longer, than the purpose needs.",
    "[ ] What is true of a group can be said of its members, protected or not: that harm was "
    "weighed.",
]


class PrivacyReport(Printed):
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
    >>> print(PrivacyReport(model))
    Privacy report: DPLogisticRegression
    ...
    """

    def __init__(
        self,
        source: Any,
        *,
        odometer: PrivacyOdometer | None = None,
        audit: AuditReport | None = None,
    ) -> None:
        self.audit, self.total = audit, None
        if isinstance(source, PrivacyLedger):
            self.name, self.ledger = "a ledger", source
        elif isinstance(source, PrivacyOdometer):
            self.name, self.ledger = f"all fits and scores in {source.path.name}", _total(source)
            odometer = source
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
            self.ledger, self.name = total_privacy(source), type(model).__name__
        self.odometer, self.is_recorded = odometer, False
        if odometer is not None:
            self.total = _total(odometer)
            recorded = [self.total, odometer.total, *odometer.ledgers()]
            self.is_recorded = _cost(self.ledger) in map(_cost, recorded)
            if not _holds(self.ledger):
                # If this release promises nothing, all fits together promise nothing either.
                self.total = self.ledger

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
        odometers, documents = [], []
        for path in map(plain_path, paths):
            if path.read_bytes().startswith(FILE_START):
                odometers.append(PrivacyOdometer(path))
            else:
                documents.append(_document(path))
        if len(odometers) > 1:
            raise ValueError("Give one odometer: its total is that of all fits on the records.")
        if not documents:
            return cls(*odometers)
        ledgers, names = zip(*documents, strict=True)
        report = cls(sum(ledgers), odometer=next(iter(odometers), None))
        report.name = ", ".join(names)
        return report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file whose name ends in ``.html``, a web page, or in ``.txt``."""
        path = plain_path(path)
        page = _PAGE.format(title=escape(self.name), body=self._repr_html_())
        texts = {".html": page, ".txt": f"{self}\n"}
        if path.suffix not in texts:
            raise ValueError(f"{path} must end in one of {', '.join(texts)}.")
        path.write_text(texts[path.suffix], encoding="utf-8")

    def __repr__(self) -> str:
        return f"<PrivacyReport: {self.name}, {self.ledger.statement}>"

    def _asserted(self) -> list[str]:
        parts = [self.total] if self.is_recorded else [self.ledger, self.total or self.ledger]
        texts = [text for part in parts for text in part.assumptions]
        return [*dict.fromkeys(texts), *[ENTROPY] * (not parts[-1].seeded)]

    def _blocks(self) -> Iterator[Any]:
        ledger, delta = self.ledger, rounded_up(self.ledger.reporting_delta)
        swapped = ledger.neighboring_relation == "replace_one"
        asked = "which of two records was" if swapped else "whether one record was"
        attacks = [
            [rate, attack_power(ledger, rate), *(posterior(ledger, p, rate) for p in PRIORS)]
            for rate in RATES
        ]
        yield (
            f"Privacy report: {self.name}",
            "Laid out by the questions of NIST SP 800-226 (https://doi.org/10.6028/NIST.SP.800-226)"
            ". Every number follows from the privacy ledger; this report read no records.",
        )
        yield (
            "1. How strong is the promise? (Privacy parameters)",
            *["THERE IS NO GUARANTEE."] * (not _holds(ledger)),
            ledger.statement.partition("; you assert that")[0].rstrip(".") + ".",
            "Someone who knows every other record, and gives even odds on "
            f"{asked} in the data, guesses right with chance 50% before anything is released. "
            f"After having seen all of it the chance is {_percent(attack_success(ledger))} at "
            "most.",
            "What an attack finds, by its rate of false alarms, and how sure it can be of a record "
            "that it names, by the odds before:",
            [
                ("false alarms", "found, at most", *(f"sure at {_percent(p)}" for p in PRIORS)),
                *([*map(_percent, row)] for row in attacks),
            ],
        )
        yield (
            "2. Whom does it protect? (Unit of privacy)",
            _UNITS[ledger.privacy_unit],
            [
                ("records together", f"epsilon at delta {delta}"),
                *((str(k), rounded_up(ledger.group(k).epsilon())) for k in _GROUPS),
            ],
        )
        of_all = ledger == self.total and self.odometer is not None
        yield (
            "3. What was released? (Algorithms)",
            "What is computed from the coefficients and public facts alone costs nothing more; a "
            "prediction for a private row is as private as that row. A noise_multiplier is the "
            "standard deviation of the noise over the most that a record may change.",
            (self.odometer.total if of_all else ledger).rows(),
        )
        yield "4. What do all releases about these records cost together?", *self._composition()
        yield (
            "5. What do you assert?",
            "No program can check these. Where one is false, the guarantee does not hold.",
            [f"[ ] {text[0].upper()}{text[1:]}." for text in self._asserted()],
        )
        audit = self.audit
        audited = (
            "Not audited: no result of an audit was given. The command python -m dpglm audit "
            "tests on artificial records whether the noise is what is claimed."
        )
        if audit is not None:
            parts = "; ".join(part.name for part in audit.parts)
            audited = (
                f"{audit.verdict} Audited on artificial records: {parts}. No audit can prove a "
                "guarantee."
            )
        yield (
            "6. Was the program tested?",
            audited,
            _versions(),
        )
        yield (
            "7. What lies outside of the guarantee?",
            "The process that fits is trusted with the raw records (the central model). These are "
            "for the officer to decide.",
            _OFFICER,
        )

    def _composition(self) -> Iterator[Any]:
        """Yield what is known of all fits together."""
        if self.total is None:
            yield (
                "Not known. The guarantee above is of this release alone. Costs of all fits on the "
                "same records add up, and no PrivacyOdometer that recorded them was given."
            )
            return
        if _holds(self.total):
            yield self.odometer
            yield (
                "After having seen all of it, a guess at even odds is right with chance "
                f"{_percent(attack_success(self.total))} at most."
            )
        else:
            yield "All fits and scores together have no guarantee, as one of them has none."
            yield self.odometer.rows()
        if not self.is_recorded:
            yield (
                "This release is NOT among those that were recorded: unless it is a part of one, "
                "add its cost."
            )


def _holds(ledger: PrivacyLedger) -> bool:
    return ledger.protects and not ledger.seeded


def _cost(ledger: PrivacyLedger) -> tuple[Any, ...]:
    """Return what two ledgers of the same releases have in common, whatever else they assume."""
    unit = ledger.neighboring_relation, ledger.privacy_unit, ledger.n_changed, ledger.seeded
    return *unit, counted(ledger.events)


def _total(odometer: PrivacyOdometer) -> PrivacyLedger:
    """Return what an odometer guarantees: of a filter its limit, whatever was spent of it."""
    total = odometer.total
    if total is None:
        raise ValueError(f"{odometer.statement} There is nothing to report.")
    events, assumptions = total.events, total.assumptions
    if odometer.adaptive and odometer.epsilon is not None:
        # The budget admits settings that follow from earlier results, which a sum does not.
        events = ((FilterEvent(mu=gdp_mu(odometer.epsilon, odometer.delta)), 1),)
        assumptions = [t.replace(_BLIND, _BLIND_BUT) for t in assumptions if t != FIXED_IN_ADVANCE]
    return replace(total, events=events, reporting_delta=odometer.delta, assumptions=assumptions)


def _document(path: Path) -> tuple[PrivacyLedger, str]:
    """Return the ledger in a file of JSON, and the name of what it is of."""
    try:
        document = json.loads(path.read_bytes())
        whole = document if "ledger" in document else {"ledger": document}
        if not isinstance(whole["ledger"], dict) or "events" not in whole["ledger"]:
            raise ValueError("it has no ledger, which lists events.")
        name = whole.get("estimator", "a ledger")
        return PrivacyLedger.from_dict(whole["ledger"]), name
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is neither the file of a PrivacyOdometer nor a ledger as JSON: {error}"
        ) from error


def _percent(share: float) -> str:
    return f"{rounded_up(100 * share)}%"


def _versions() -> dict[str, str]:
    """Return the versions of the packages that a fit or its accounting rest on."""
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
