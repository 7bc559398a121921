"""Run all scripts of this folder and write what they found as one document.

``python examples/reproduce/all.py --docs docs/reproduction.md``; ``--only`` runs some of them and
keeps the others' sections of the document. Adult, BANK and KDD Cup 1999 come from the folder in
``DPGLM_DATA``, else from OpenML.
"""

import argparse
import importlib
import os
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from _report import VERDICTS, markdown_table

# The scripts of each source, in the order of the document.
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
HEAD = """# Reproduction of the source papers

Each section is the output of one script of `examples/reproduce/`: what a source prints and where
(`printed.json` holds its figures), what we find, and the verdict. A claim is compared at the
source's own setting; where that cannot be had here, or the source does not say it, the verdict is
"not comparable", with the reason. What a source prints right elsewhere is a slip: not comparable.
Where a setting is not printed, what comes out all the same counts as holds, and what does not is
not refuted. Headlines count printed claims only. What the authors' programs do otherwise than
their papers stands in a table of its own. What was measured once, apart from these scripts, says
so.

Written by `python examples/reproduce/all.py --docs docs/reproduction.md`; every script also runs by
itself, with `--quick` for a first impression and `--figure FILE` where there is a figure. Data and
noise are seeded, so that the numbers come out the same again.
"""


def section(name: str, quick: bool) -> str:
    """Run a script and return its section, between marks that name it."""
    report = importlib.import_module(name).main(["--quick"] if quick else [])
    command = f"`python examples/reproduce/{name}.py`"
    body = report.markdown(level=3).replace("\n\n", f"\n\n{command}\n\n", 1)
    return f"<!-- {name} -->\n{body}\n<!-- end of {name} -->\n"


def sections_of(document: str) -> dict[str, str]:
    """Return the sections of an earlier document by the names of their scripts."""
    found = re.finditer(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->\n", document, re.DOTALL)
    return {match[1]: match[0] for match in found}


def summary(sections: dict[str, str]) -> str:
    """Return how many printed claims of each source hold, and which do not, by the verdicts."""
    words = list(VERDICTS.values())
    row = rf"^\| (.+?) \| .* \| ({'|'.join(words)})\b.* \|$"
    counts, refuted = [], []
    for source, names in SCRIPTS.items():
        text = "\n".join(sections.get(name, "") for name in names)
        found = re.findall(row, text, re.MULTILINE)
        verdicts = Counter(verdict for _, verdict in found)
        counts.append([source, *(str(verdicts[word]) for word in words)])
        refuted += [f"- {source}: {claim}" for claim, word in found if word == VERDICTS[False]]
    table = markdown_table(["printed claims", *words], counts)
    several = "Several rows may be one sentence of a source: a claim for each panel of a figure."
    if refuted:
        refuted.insert(0, "What does not hold:\n")
    else:
        total = sum(int(n) for _, *row in counts for n in row)
        open_ones = sum(int(row[-1]) for row in counts)
        refuted = [
            f"Nothing was refuted; {open_ones} of the {total} claims could not be compared. Slips "
            "of the sources stand in their rows."
        ]
    return "\n\n".join([table, several, "\n".join(refuted)]) + "\n"


def document(sections: dict[str, str]) -> str:
    """Return the document of the sections that there are."""
    blocks = [HEAD, summary(sections)]
    for source, names in SCRIPTS.items():
        known = [sections[name] for name in names if name in sections]
        if known:
            blocks += [f"## {source}\n", *known]
    return "\n".join(blocks)


def main(argv=None) -> None:
    names = [name for scripts in SCRIPTS.values() for name in scripts]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the document there")
    parser.add_argument("--quick", action="store_true", help="a first impression of each script")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SCRIPT")
    parser.add_argument("--jobs", type=int, default=2, help="scripts that run at once; default 2")
    arguments = parser.parse_args(argv)
    earlier = arguments.docs is not None and arguments.docs.exists()
    sections = sections_of(arguments.docs.read_text(encoding="utf-8")) if earlier else {}
    for threads in ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    with ProcessPoolExecutor(arguments.jobs) as pool:
        # The longest first, so that no process is left alone with it at the end.
        names = sorted(arguments.only, key=lambda name: name != LONGEST)
        running = {pool.submit(section, name, arguments.quick): name for name in names}
        for finished in as_completed(running):
            sections[running[finished]] = finished.result()
            if arguments.docs is not None:
                arguments.docs.write_text(document(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
