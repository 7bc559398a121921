"""The report: complete, self-contained, escaped, and at home in a browser."""

import json
import math
import re
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser

import pytest
from cells import cell_record

from dpglm.study.comparison import CELL, ComparisonResults
from dpglm.study.report import html_report

pytest.importorskip("matplotlib")

NASTY = "--><script>alert(\"x\")</script> & 'é'"
VOID = {"meta", "link", "img", "source"}


def results(dataset="toy"):
    scores = {"private": (0.8, 0.9), "other": (0.7, 0.95), "third": (0.75, 0.85)}
    records = [
        cell_record(name, epsilon, fold, dataset, accuracy=accuracy + 0.01 * fold)
        for name, accuracies in scores.items()
        for epsilon, accuracy in zip((0.5, 2.0), accuracies, strict=True)
        for fold in range(2)
    ]
    for fold in range(2):
        records.append(cell_record("open", None, fold, dataset, accuracy=0.97))
        broken = cell_record("broken", 0.5, fold, dataset)
        named = {name: broken[name] for name in CELL}
        records.append({**named, "error": "ValueError: no good"})
    return ComparisonResults(records)


@cache
def page_of_results():
    """The page of two datasets, drawn once: its figures take the time."""
    return html_report(ComparisonResults(results("toy").records + results("more").records))


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


def rows_of(page, number):
    """Return the cells of a table of the page, without tags."""
    table = re.findall("<table.*?</table>", page, re.S)[number]
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)
        for row in re.findall("<tr.*?</tr>", table, re.S)
    ]


@pytest.mark.slow
def test_the_tables_hold_means_and_errors():
    heading, *rows = rows_of(page_of_results(), 0)
    assert heading == ["estimator", "epsilon 0.5", "epsilon 2"]
    assert [row[0] for row in rows] == ["private", "other", "third", "open", "broken"]
    assert rows[0][1:] == ["0.8050 ±0.0050", "0.9050 ±0.0050"]
    assert rows[3][1:] == ["0.9700 ±0.0000"] * 2
    assert rows[4][1:] == ["failed", ""]


@pytest.mark.slow
def test_guarantees_settings_versions_and_failures_are_stated():
    page = page_of_results()
    for name in ("private", "other", "third"):
        assert f"<dt>{name}</dt><dd>{name} at 2.0 holds.</dd><dd><code>Model()</code></dd>" in page
    assert "<dt>open</dt><dd>No ledger: fitted without noise" in page
    assert "<dt>broken</dt><dd>Every fit failed.</dd>" in page
    assert "<li>4 of 4 fits of broken failed: ValueError: no good</li>" in page
    assert "1,234 rows x 3 features, 2-fold cross-validation, delta 1e-06" in page
    settings = {"seed": "7</dd>", "Python": f"{sys.version.split()[0]} on ", "scikit-learn": "1."}
    for name, fact in settings.items():
        assert f"<dt>{name}</dt><dd>{fact}" in page


@pytest.mark.slow
def test_every_tag_is_closed_and_nothing_is_fetched():
    page = Page(page_of_results())
    assert page.tags.count("svg") == 2 and page.tags.count("table") == 10
    assert page.links == ["data:,"], "of the icon"
    styles = "".join(text for tag, text in page.texts if tag in ("style", "script"))
    assert not re.search(r"https?:|url\(|@import|fetch\(|import ", styles)


def test_whatever_names_and_messages_hold_is_escaped():
    everywhere = {"parameters": NASTY, "guarantee": NASTY, "warnings": [NASTY]}
    nasty = [cell_record(NASTY, fold=fold, dataset=NASTY, **everywhere) for fold in range(2)]
    page = Page(html_report(ComparisonResults(nasty)))
    assert "script" not in page.tags
    assert len([text for _, text in page.texts if NASTY in text]) >= 8


@pytest.mark.slow
def test_without_a_seed_or_a_finite_epsilon_the_report_says_so():
    records = [
        cell_record("private", epsilon, fold, seed=None)
        for epsilon in (1.0, math.inf)
        for fold in range(2)
    ]
    page = html_report(ComparisonResults(records))
    assert "<dt>seed</dt><dd>none: the noise was fresh</dd>" in page
    assert "<dd>private at 1.0 holds.</dd>" in page
    assert "epsilon inf" in page
    open_ones = ComparisonResults([cell_record("open", None, fold) for fold in range(2)])
    alone = html_report(open_ones)
    assert html_report(open_ones) == alone, "the same results give the same page"
    assert rows_of(alone, 0)[1] == ["open", "0.7000 ±0.0000"]


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)  # fmt: skip
# Writes what it sees into the page.
PROBE = """<script>
addEventListener("load", () => {
  const seen = {
    figures: [...document.querySelectorAll("figure > svg")].map((svg) => svg.clientWidth),
    tables: [...document.querySelectorAll("table")].map((table) => table.offsetWidth),
    wide: document.documentElement.scrollWidth > innerWidth,
  };
  document.body.dataset.seen = JSON.stringify(seen);
});
</script></body>"""


def opened(path, page, *options):
    """Return what the probe saw and what the browser's console holds."""
    path.write_text(page.replace("</body>", PROBE), encoding="utf-8")
    process = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={path.parent / 'profile'}", "--enable-logging=stderr", "--v=0",
         "--virtual-time-budget=5000", *options, "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    console = [line for line in process.stderr.splitlines() if "CONSOLE" in line]
    (seen,) = re.findall('data-seen="(.*?)"', process.stdout)
    return json.loads(seen.replace("&quot;", '"')), console


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_tables_and_figures_and_reports_no_error(tmp_path):
    page = page_of_results()
    for light in (0, 1):
        theme = f"--blink-settings=preferredColorScheme={light}"
        seen, console = opened(tmp_path / "report.html", page, theme)
        assert console == []
        assert len(seen["figures"]) == 2 and min(seen["figures"]) > 300
        assert len(seen["tables"]) == 10 and min(seen["tables"]) > 200
        assert not seen["wide"]
