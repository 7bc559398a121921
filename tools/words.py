"""Count where the prose of the package and of its documentation misses the rules of style.

``python tools/words.py`` prints the findings of each file by rule, ``--show L`` also those of rule
L, and ``--limits`` ends with 1 if a sum is too large. Code and tables are left out. The rules:

L  a sentence has more than 25 words; inline code is one word
O  a sentence, unless it is a question, begins with Of, Those, What, Where or Whoever
D  a decimal has no leading zero
B  a word is in BANNED
N  a sentence has more than three numbers; years and the digits of names do not count
S  a docstring summary is not one line or, of a function, does not begin with one of VERBS
E  the message of an error or a warning has more than two sentences
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The sums of the last change of prose, rounded up to tens. Only lower them.
LIMITS = {"dpglm": 30, "docs": 10}
RULES = "LODBNSE"
WRITTEN_BY_CONF = "reference benchmarks changelog conduct contributing security trials"

BANNED = {  # regular expression -> the term of the field
    r"lengths? of (?:the |a |its )?rows?|row lengths?|rows? of lengths?": "row norm",
    r"(?:long|short)(?:er|est)? rows?|shorten(?:s|ed|ing)?": "large, small norm; clip",
    r"(?<!ROC )(?<!recall )curves?|hats?(?! functions?)": "piecewise-linear term; hat function",
    r"round numbers": "threshold features",
    r"texts": "strings",
    r"entries of (?:an? |the )?(?:array|matrix|vector|row|triangle)s?": "elements, values",
    r"long way|of the way|way (?:that|from|to) the": "total step length",
    r"(?:a|the|its|each|no|same) clips?": "clipping norm",
    r"persons|person's rows?|rows? of (?:a|one|each) person|whose rows?": "privacy unit",
    r"dear(?:er|est)?|prices?|currenc(?:y|ies)|pa(?:id|ys?)": "costs more; cost; unit; charged",
    r"laws?": "distribution",
    r"(?:be|is|are|was|were|not) (?:seen|visible)|st(?:ands?|ood) out": "above the noise level",
    r"foret(?:old|ells?)|settle[sd]?": "predicted; determine, converge",
    r"floors|rooms|houses?": "layer, module, design rule",
}
VERBS = """add answer append apply ask audit average bound build cache call change charge check
choose clip combine compare compile complete compose compute convert copy correct count create
cross-validate do draft draw drop emit encode end estimate evaluate explain fill find fit fix get
give ignore keep label learn leave let limit list load make minimise move multiply name open pass
plot predict prepare print put raise read record refuse release remove repeat replace return round
run sample say scale score search see set shift show simulate spend split start stop subtract sum
take teach test update use validate verify view warn weigh weight whiten write yield"""
NUMBER = re.compile(r"(?<![\w.])(?!(?:19|20)\d\d\b)\.?\d[\d,.]*(?:e-?\d+)?(?:[/^]-?\d+)?(?!\w)")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph or item of a list, after the number of its first line."""
    # Fenced code, headings, doctests, tables, HTML, directives and "name : type" are left out.
    away = r"^ *(```|~~~)[\s\S]*?^ *\1.*$|^.*\n *-{3,}$"
    away += r"|^ *===[= ]*\n.*\n *===[= ]*\n[\s\S]*?^ *===[= ]*$"
    text = re.sub(away, lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE)
    found, first, inside, doctest = [], 1, 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        doctest = bool(line.strip()) and (doctest or line.lstrip().startswith(">>>"))
        skip = doctest or re.match(r"\s*([#|<]|\$\$|:::|\.\. |$)|[\w*, ]+ : .*$", line)
        item = re.match(r"\s*(?:[-*+]|\d+\.|:|>)\s+", line)
        indent = len(line) - len(line.lstrip())
        if found and (skip or item or indent != inside):
            yield first, " ".join(found)
            found = []
        if not skip:
            first, inside = first if found else number, item.end() if item else indent
            found.append(line[inside:].strip())


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, with the text of links and one word for inline code."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)|\b(e\.g|i\.e|et al|cf|vs|Eq|Fig)\.", r"\1\2", paragraph)
    text = re.sub(r"``.*?``|`[^`]*`|\"[\w-]+\"", "CODE", text).replace("**", "")
    return [s for s in re.split(r"(?<=[.!?])[\")*]*\s+(?=[^a-z\s])", text) if re.search(r"\w", s)]


def in_prose(start: int, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, rule and place of each finding in a text that begins on line `start`."""
    for line, sentence in ((start + n - 1, s) for n, p in paragraphs(text) for s in sentences(p)):
        rules = "L" * (len(re.findall(r"\S*\w\S*", sentence)) > 25)
        rules += "O" * bool(re.match(r"\W*(Of|Those|What|Where|Whoever)\b(?!.*\?$)", sentence))
        rules += "D" * len(re.findall(r"(?<![\w.)\]])\.\d", sentence))
        rules += "N" * (len(NUMBER.findall(sentence)) > 3)
        yield from ((line, rule, sentence) for rule in rules)
        for pattern, term in BANNED.items():
            for match in re.finditer(rf"\b(?:{pattern})\b", sentence, re.IGNORECASE):
                yield line, "B", f"{match[0]} -> {term}: {sentence}"


def in_python(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, rule and place of each finding in a module."""
    for node in ast.walk(ast.parse(text)):
        noun = isinstance(node, ast.Module | ast.ClassDef)
        if (noun or isinstance(node, ast.FunctionDef)) and (docstring := ast.get_docstring(node)):
            line, summary = node.body[0].lineno, docstring.split("\n\n")[0]
            noun = noun or any("property" in ast.dump(mark) for mark in node.decorator_list)
            verb = re.match(r"(?!bound on\b)[\w-]+(?=[,:;]? (?!of\b|for\b))", summary.lower())
            if "\n" in summary or not (noun or (verb and verb[0] in VERBS.split())):
                yield line, "S", summary
            yield from in_prose(line, docstring)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "warn")):
            parts = [p for a in node.args[:1] for p in getattr(a, "values", [a])]
            message = "".join(str(p.value) if isinstance(p, ast.Constant) else "X" for p in parts)
            yield from ((node.lineno, "E", message) for _ in sentences(message)[2:][:1])
            yield from in_prose(node.lineno, message)
    blocks = [""] * (text.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            blocks[token.start[0] - 1] = " " * token.start[1] + token.string[1:]
    yield from in_prose(1, "\n".join(blocks))


def findings(part: str) -> Iterator[tuple[str, int, str, str]]:
    """Yield file, line, rule and place of each finding in "dpglm" or in "docs"."""
    pages = [
        page for page in (ROOT / "docs").glob("*.md") if page.stem not in WRITTEN_BY_CONF.split()
    ]
    pages += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for path in sorted((ROOT / "dpglm").rglob("*.py") if part == "dpglm" else pages):
        text = path.read_text("utf-8")
        for finding in in_python(text) if part == "dpglm" else in_prose(1, text):
            yield str(path.relative_to(ROOT)), *finding


def main() -> int:
    """Print the counts and, if asked for, findings; return 1 if a limit is asked for and missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--show", choices=list(RULES), help="add the findings of this rule")
    parser.add_argument("--limits", action="store_true", help="end with 1 if a sum is too large")
    arguments, missed = parser.parse_args(), False
    for part, limit in LIMITS.items():
        found = list(findings(part))
        counts = Counter((name, rule) for path, _, rule, _ in found for name in (path, part))
        print(*(f"{p}:{n}: {r} {s}" for p, n, r, s in found if r == arguments.show), sep="\n")
        print(f"{f'at most {limit}':44}" + "".join(f"{rule:>6}" for rule in (*RULES, "all")))
        for name in [*dict.fromkeys(path for path, *_ in found), part]:
            row = [counts[name, rule] for rule in RULES]
            print(f"{name:44}" + "".join(f"{n:6}" for n in (*row, sum(row))))
        missed |= len(found) > limit
    return int(arguments.limits and missed)


if __name__ == "__main__":
    sys.exit(main())
