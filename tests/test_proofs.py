"""Code and theorems name each other and have the same numbers, and Coq checks the theorems."""

import ast
import math
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import dpglm
from dpglm.losses import Logistic, Softmax
from dpglm.privacy import vault as vaults
from dpglm.privacy.budget import CLIP_RANGE, PrivacyBudget
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS
from dpglm.sums import objective
from dpglm.sums.reference import SMALL_SQUARE
from dpglm.workflow import releases

PROOFS, PACKAGE = Path(__file__).parent.parent / "proofs", Path(dpglm.__file__).parent
CONSTANTS = (PROOFS / "Constants.v").read_text()
VAULT = (PACKAGE / "privacy/vault.py").read_text()


def named_by_code(path, source):
    """Yield (file, function, file of proofs, theorem) for each theorem that a docstring names."""
    found = [(node, node.name) for node in ast.parse(source).body if hasattr(node, "name")]
    for node, name in found:
        members = node.body if isinstance(node, ast.ClassDef) else []
        found += [(each, f"{name}.{each.name}") for each in members if hasattr(each, "name")]
        pattern = r"Theorems?(?:, [^:]*)?: ([\w,\s]+) \(proofs/(\w+)\.v\)"
        for names, file in re.findall(pattern, ast.get_docstring(node) or ""):
            yield from ((path, name, file, theorem) for theorem in re.split(r",\s+", names))


def named_by_proofs(file, source):
    """Yield the same for each function that the comment before a theorem names."""
    pattern = r"\(\* Of (dpglm/\S+\.py), ([\w., ]+)\. \*\)\nTheorem (\w+)"
    for path, names, theorem in re.findall(pattern, source):
        yield from ((path, name, file, theorem) for name in names.split(", "))


def unproved(source):
    """Return the methods of the vault that release and name no theorem."""
    proved = {name for _, name, _, _ in named_by_code("", source)}
    (vault,) = [n for n in ast.parse(source).body if getattr(n, "name", "") == "Vault"]
    public = [n for n in vault.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
    releases = re.compile(r"self\._(release|release_sum|histogram)\(")
    found = {n.name for n in public if releases.search(ast.unparse(n))}
    return {name for name in found if f"Vault.{name}" not in proved}


def formulas(text):
    """Return the definitions of Constants.v as Python functions."""
    found = {"sqrt": math.sqrt}
    text = re.sub(r"\(\*.*?\*\)", "", text, flags=re.S).replace("(rel : relation)", "rel")
    text = re.sub(
        r"match rel with replace_one => (.*?) \| _ => (.*?) end",
        r"((\1) if rel == 'replace_one' else (\2))",
        re.sub(r"\bsqrt (\w+)", r"sqrt(\1)", text).replace("chain u B n +", "chain(u, B, n) +"),
    )
    for name, arguments, body in re.findall(r"Definition (\w+)((?: \w+)*) := (.*?)\.\n", text):
        body = body.replace("^", "**").replace("%Z", "")
        exec(f"def {name}({', '.join(arguments.split())}): return {body}", found)
    return found


def differences(text):
    """Return the definitions whose values are not those that the package returns."""
    of, pairs = formulas(text), []
    u = 2.0 ** of["unit_roundoff"]()
    for relation, size in product(NEIGHBORING_RELATIONS, (1e-3, 1.0, 37.25)):
        budget = PrivacyBudget(1.0, 1e-6, relation, 9 if relation == "add_or_remove_one" else None)
        pairs.append(("clip_sensitivity", budget.sensitivity(size), relation, size))
        for n in (1, 2, 9):
            name = "single_moment_sensitivity" if n == 1 else "moment_sensitivity"
            pairs.append((name, vaults.moment_sensitivity(size, relation, n), relation, size))
            moved = vaults.magnitude_sensitivity(relation, n)
            pairs.append(("magnitude_sensitivity", moved, relation, n))
        scores = object.__new__(releases.ScoreVault)
        scores._budget, scores._n_records = budget, 9
        pairs.append(("number_half", scores.sensitivity("loss") / budget.sensitivity(1.0)))
        if relation != "add_or_remove_one":
            pairs.append(("pairs_half", scores.sensitivity("pairs") / budget.sensitivity(1.0), 9))
        for z, slack, d in product((1e-3, 0.7, 30.0), (0.0, 1e-6), (1, 40, 10**6)):
            sums = vaults.GaussianSum(size, z, slack)
            std = sums.noise_std(d) / (1 + of["arithmetic_slack"]())
            pairs.append(("noise_std", std, z, size, slack, sums.grid, d))
    for d, k, n in product((1, 7, 300), (1, 3), (1, 1000, 10**6, 10**10)):
        loss, target = (Logistic(), np.ones(1)) if k == 1 else (Softmax(), np.zeros(1))
        sums = objective.Objective(np.ones((1, d)), target, loss, n_outputs=k, fit_intercept=False)
        in_chunk = [objective.rows_per_chunk(n, values) for values in (1, d * k)]
        pairs.append(("moment_rounding", sums.moment_rounding(n), u, in_chunk[0], n, d))
        pairs.append(("rounding_slack", sums.rounding_slack(n), u, in_chunk[1], n, d, k))
    ranges = {"small_square": SMALL_SQUARE, "small_clip": CLIP_RANGE[0]}
    wrong = {name for name, found in ranges.items() if not found >= 2.0 ** of[name]()}
    equal = [math.isclose(found, of[name](*given), rel_tol=1e-14) for name, found, *given in pairs]
    return wrong | {pair[0] for pair, right in zip(pairs, equal, strict=True) if not right}


def test_code_and_theorems_name_each_other():
    code = [(f"dpglm/{p.relative_to(PACKAGE)}", p.read_text()) for p in PACKAGE.rglob("*.py")]
    code = {e for path, text in code if "(proofs/" in text for e in named_by_code(path, text)}
    assert code == {e for p in PROOFS.glob("*.v") for e in named_by_proofs(p.stem, p.read_text())}
    assert not unproved(VAULT)
    assert unproved(VAULT.replace("target_sum_mu (proofs/Vault.v)", "")) == {"target_sum"}


def test_code_and_theorems_have_the_same_numbers(monkeypatch):
    relations = re.search(r"Inductive relation := (.*?)\.", CONSTANTS)[1]
    assert relations.split(" | ") == list(NEIGHBORING_RELATIONS)
    assert not differences(CONSTANTS)
    monkeypatch.setattr(vaults, "_ARITHMETIC_SLACK", 0.0)
    monkeypatch.setattr(objective, "_UNIT_ROUNDOFF", 2.0**-54)
    assert differences(CONSTANTS) == {"noise_std", "moment_rounding", "rounding_slack"}


def test_fewer_records_are_added_in_fewer_steps():
    bounds = [[objective._chain(n, d) for n in range(1, 10**7, 99_991)] for d in (1, 10**6)]
    assert (np.diff(bounds) >= 0).all()


WRONG = [
    ("2 * (d + K + 2)", "(d + K + 2)", "rounding_slack"),
    ("replace_one => sqrt 2 * R ^ 2", "replace_one => R ^ 2", "moment_sensitivity"),
]


@pytest.mark.parametrize(("old", "new", "name"), WRONG)
def test_another_constant_of_a_lemma_is_found(old, new, name):
    assert differences(CONSTANTS.replace(old, new)) == {name}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "name"),
    [("", "", ""), *WRONG, ("", "Context (a : 0 = 1).\nTheorem b : 0 = 1. Proof a.", "")],
)
def test_coq_refuses_what_does_not_follow(old, new, name, tmp_path):
    if shutil.which("coqc") is None:
        pytest.skip("needs Coq")
    folder = shutil.copytree(PROOFS, tmp_path / "proofs")
    (folder / "Constants.v").write_text(CONSTANTS.replace(old, new) if old else CONSTANTS + new)
    done = subprocess.run([folder / "check"], capture_output=True)
    assert (done.returncode == 0) == (old == new), done.stderr
