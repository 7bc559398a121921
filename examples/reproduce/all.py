"""Run all scripts of this folder; write the page about them, its pictures, and the appendix.

``python examples/reproduce/all.py --docs docs`` writes ``docs/reproduction.md``, pictures in
``docs/_static`` and ``appendix.md`` beside this file. ``--only`` runs some scripts and keeps the
others' sections of the appendix, of which the tables of the page are made. Adult, BANK and KDD Cup
1999 come from the folder in ``DPGLM_DATA``, else from OpenML.
"""

import argparse
import importlib
import os
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from _report import FAILS, SLIP, VERDICTS, draw, markdown_table

HERE = Path(__file__).parent
APPENDIX = HERE / "appendix.md"
# The scripts of each source, in the order of the page.
SCRIPTS = {
    "Lee & Kifer": [
        "lee_kifer_table1",
        "lee_kifer_table2",
        "lee_kifer_figure1",
        "lee_kifer_figures23",
        "lee_kifer_figure4",
    ],
    "Hong, Wang & Zhou": ["hong_bounds", "hong_influence"],
    "Proactive DP": ["proactive"],
    "Yu, Zhang & Chen": ["yu_momentum"],
    "Lecture 12": ["lecture12"],
}
LONGEST = "lee_kifer_figures23"
# What the page shows of them.
PICTURES = ["lee_kifer_figure1", LONGEST, f"{LONGEST}_svm", "hong_influence", "yu_momentum"]
MAIN = "*"
HEAD = """# Appendix: what the reproduction scripts found

Written by `python examples/reproduce/all.py --docs docs`, and summarised in
`docs/reproduction.md`, which shows the claims with a star. Data and noise are seeded.
"""


def section(name: str, quick: bool, docs: Path | None) -> str:
    """Run a script, draw its pictures, and return its section, between marks that name it."""
    # That one alone takes most of the time, and its fits can be shared out.
    options = ["--quick"] if quick else ["--jobs", "2"] * (name == LONGEST)
    report = importlib.import_module(name).main(options)
    if docs is not None:
        drawings = {name: report.drawing}
        drawings |= {f"{name}_{key}": drawing for key, drawing in report.more_drawings.items()}
        for key in drawings.keys() & {*PICTURES}:
            draw(drawings[key], docs / "_static" / f"{key}.png", dpi=80)
    body = report.markdown(level=3)
    return f"<!-- {name} -->\n{body}\n<!-- end of {name} -->\n"


def sections_of(document: str) -> dict[str, str]:
    """Return the sections of an earlier appendix by the names of their scripts."""
    found = re.finditer(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->\n", document, re.DOTALL)
    return {match[1]: match[0] for match in found}


def appendix(sections: dict[str, str]) -> str:
    """Return the appendix of the sections that there are."""
    blocks = [HEAD]
    for source, names in SCRIPTS.items():
        known = [sections[name] for name in names if name in sections]
        if known:
            blocks += [f"## {source}\n", *known]
    return "\n".join(blocks)


def claims_of(source: str, sections: dict[str, str]) -> list[list[str]]:
    """Return claim, paper, finding, verdict and remark of all claims about a source."""
    text = "\n".join(sections.get(name, "") for name in SCRIPTS[source])
    row = rf"^\| (.+?) \| (.*?) \| (.*?) \| ({'|'.join(VERDICTS)})(?:: (.*))? \|$"
    return [[cell or "" for cell in match] for match in re.findall(row, text, re.MULTILINE)]


def page(sections: dict[str, str], template: str) -> str:
    """Return the page: a template, with tables in the place of ``{counts}``, ``{slips}``, ..."""
    counts, slips, tables = [], [], {}
    for source in SCRIPTS:
        claims = claims_of(source, sections)
        verdicts = Counter(verdict for *_, verdict, _ in claims)
        counts.append([source, *(str(verdicts[word]) for word in VERDICTS)])
        slips += [[source, claim.strip(MAIN + "\\ "), paper, ours]
                  for claim, paper, ours, verdict, _ in claims if verdict == SLIP]  # fmt: skip
        tables[source] = unescaped(
            ["claim", "ours", "verdict"],
            [
                [claim.removeprefix("\\* "), ours, f"**{word}**" if word == FAILS else word]
                for claim, _, ours, word, _ in claims
                if claim.startswith("\\* ") and word != SLIP
            ],
        )
    answer, epsilons = [], []
    for claim, _, ours, *_ in claims_of("Lee & Kifer", sections):
        if claim.endswith(": DP-AGD is the most accurate or competitive over a wide range"):
            own = dict(part.split(": ", 1) for part in ours.split("; "))
            epsilons = list(own) if len(own) > len(epsilons) else epsilons
            answer.append((claim.split(":")[0], own))
    rows = [[name, *(own.get(epsilon, "") for epsilon in epsilons)] for name, own in answer]
    template = template.replace("{answer}", unescaped(["", *epsilons], rows))
    filled = template.replace("{counts}", markdown_table(["", *VERDICTS], counts))
    columns = ["source", "printed", "where", "what comes out"]
    filled = filled.replace("{slips}", unescaped(columns, slips))
    for source, table in tables.items():
        filled = filled.replace(f"{{{source}}}", table)
    return filled


def unescaped(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv=None) -> None:
    names = [name for scripts in SCRIPTS.values() for name in scripts]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write page and pictures there")
    parser.add_argument("--quick", action="store_true", help="a first impression of each script")
    parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="SCRIPT")
    parser.add_argument("--jobs", type=int, default=2, help="scripts that run at once; default 2")
    arguments = parser.parse_args(argv)
    docs = arguments.docs
    known = docs is not None and APPENDIX.exists()
    sections = sections_of(APPENDIX.read_text(encoding="utf-8")) if known else {}
    for threads in ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    with ProcessPoolExecutor(arguments.jobs) as pool:
        # The longest first, so that no process is left alone with it at the end.
        names = sorted(arguments.only, key=lambda name: name != LONGEST)
        running = {pool.submit(section, name, arguments.quick, docs): name for name in names}
        for finished in as_completed(running):
            sections[running[finished]] = finished.result()
    if docs is not None:
        APPENDIX.write_text(appendix(sections), encoding="utf-8")
        template = (HERE / "page.md").read_text(encoding="utf-8")
        (docs / "reproduction.md").write_text(page(sections, template), encoding="utf-8")


if __name__ == "__main__":
    main()
