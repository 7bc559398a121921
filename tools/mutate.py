"""Mutation testing of the code that the guarantee rests on, with the operators of cosmic-ray.

``python tools/mutate.py --mutants 420 --seed 1`` changes one place of ``dpglm/privacy``,
``dpglm/kernels``, the reference sums or the solvers at a time, in a copy of the package, and runs
the tests of that module against the copy until one fails. It prints the share of the mutants that
were killed and every survivor as a diff. Results are kept as JSON lines in ``--results``: a run
that was stopped goes on where it was. Needs ``pip install cosmic-ray`` and the ``test`` extra.

Places are sampled before operators, evenly over each module, so that the many variants of one
binary operator count no more than a number. Left out are places where no test could or should see
a change: docstrings, annotations, ``__all__``, arguments of a raised exception, decorators (those
of the kernels steer the compiler), ``if TYPE_CHECKING``, ``strict=`` of `zip`, what is done where
an import fails, lines that end with ``# speed only``; and ``is`` for ``==``, which is the same for
small integers and interned strings.
"""

import argparse
import ast
import contextlib
import difflib
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from multiprocessing.connection import wait
from pathlib import Path

os.environ.update(OPENBLAS_NUM_THREADS="1", NUMBA_NUM_THREADS="2")

ROOT = Path(__file__).parent.parent
# Folders, or single modules of one.
MUTATED = ("privacy", "kernels", "sums/reference", "estimators/solvers")
# Ends a line that decides how fast a result comes, and not what it is.
_SPEED_ONLY = "# speed only"
_SAMPLED = "noisy_sgd not audit and not yu_et_al"
_OF_LEDGERS = [
    "ledger",
    "odometer not kill",
    "privacy_accounting not short_runs",
    "calibration not runs",
    "objective_perturbation_costs ledger or numerical",
    "selection ledger or filter",
    "pure",
]
# Tests by module, those most likely to fail first. A second word selects among them (pytest -k).
# A module that is not named here has the tests of its folder.
TESTS = {
    "privacy": ["mechanisms", "budget", "agd", "selection", "ledger", "estimators"],
    "privacy/noise": ["noise", "sampling", "mechanisms", "selection"],
    "privacy/gaussian": ["conversions", "budget", "ledger", "sampling reach", _SAMPLED],
    "privacy/budget": ["budget", "agd"],
    "privacy/events": [
        "conversions",
        "budget",
        "ledger",
        "sampling reach or replacement",
        "selection not draws",
        "privacy_accounting not short_runs",
        "objective_perturbation_costs",
    ],
    "privacy/composition": [*_OF_LEDGERS, "sampling", "objective_perturbation_costs"],
    "privacy/ledger": _OF_LEDGERS,
    "privacy/calibration": ["calibration"],
    "privacy/selection": ["agd", "selection"],
    "privacy/odometer": ["odometer"],
    "privacy/pure": ["pure"],
    "privacy/attacks": ["attacks"],
    "privacy/vault": [
        "mechanisms",
        "vault not moves_by and not nor_with and not right_kernels and not oracle",
        "sampling",
        "estimators",
        "second_moment",
        "agd",
        "budget",
        "preconditioned_fit",
        _SAMPLED,
    ],
    "sums": ["small_problems", "objective", "estimators"],
    "sums/reference": [
        "objective",
        "small_problems basis or norms",
        "second_moment",
        "preconditioning",
        "persons",
        "vault",
    ],
    "estimators": ["estimators", "momentum", "objective penalty", _SAMPLED, "agd", "golden"],
    "kernels": ["small_problems", "kernels"],
    "kernels/gradient": [
        "small_problems",
        "objective longer_in_a_basis",
        "second_moment",
    ],
    "kernels/clip": ["small_problems", "kernels", "dayone_weights"],
    "kernels/line_search": ["small_problems", "kernels", "persons losses_along or beyond_its_part"],
    "kernels/arithmetic": ["kernels exp or log", "compilation", "small_problems"],
    "kernels/vectors": ["kernels not threads and not chunk", "small_problems"],
    "kernels/__init__": ["kernels", "compilation", "objective"],
}
# What emits machine code, or is not in a kernel at all, is tested as it is.
COMPILED = {f"kernels/{name}" for name in ("__init__", "arithmetic", "vectors")}
PRELOADED = (
    "numpy", "scipy.optimize", "scipy.sparse", "scipy.special", "scipy.stats", "numba",
    "sklearn.linear_model", "sklearn.datasets", "sklearn.model_selection", "pytest", "hypothesis",
    "mpmath", "dp_accounting.pld.privacy_loss_distribution", "dp_accounting.pld",
    "dp_accounting.rdp", "threadpoolctl", "_pytest.doctest", "hypothesis.strategies",
)  # fmt: skip


def excluded_spans(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Spans of the source in which nothing is mutated."""
    left_out: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += [arguments.vararg, arguments.kwarg]
            left_out += [a.annotation for a in every if a is not None and a.annotation]
            left_out += [node.returns] if node.returns else []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            left_out += node.decorator_list
        if isinstance(node, ast.AnnAssign):
            left_out.append(node.annotation)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            left_out += node.exc.args
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            left_out.append(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            left_out.append(node)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            left_out.append(node)
        if isinstance(node, ast.ExceptHandler) and ast.unparse(node.type or node) == "ImportError":
            left_out.append(node)
    spans = [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in left_out
    ]
    lines = enumerate(source.splitlines(), 1)
    return spans + [((n, 0), (n, len(line))) for n, line in lines if line.endswith(_SPEED_ONLY)]


def mutations(source: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Operators by the place that they change, each with the number of its occurrence."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    # Most leaves are names and brackets, which no operator changes.
    inert = {"name", "newline", "string", "endmarker"}
    nodes = [
        node
        for node in ast_nodes(get_ast(source))
        if node.type not in inert and getattr(node, "value", "") not in set(".,:;()[]{}=")
    ]
    excluded = excluded_spans(source)
    places = defaultdict(list)
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or name.endswith(("_Is", "_IsNot", "RemoveDecorator")):
            continue
        positions = itertools.chain.from_iterable(map(operator().mutation_positions, nodes))
        for occurrence, (start, end) in enumerate(positions):
            if not any(first <= start and end <= last for first, last in excluded):
                places[start].append((name, occurrence))
    return places


def sample(seed: int) -> list[dict]:
    """All places in an order of which every beginning is spread evenly over the modules."""
    ranked = []
    for part in MUTATED:
        folder, _, stem = part.partition("/")
        for path in sorted((ROOT / "dpglm" / folder).glob(f"{stem or '*'}.py")):
            places = mutations(path.read_text())
            rng = random.Random(f"{seed} {path.name}")
            offset = rng.random()
            for rank, place in enumerate(rng.sample(sorted(places), len(places))):
                operator, occurrence = rng.choice(places[place])
                mutant = {
                    "module": f"{folder}/{path.stem}",
                    "line": place[0],
                    "operator": operator,
                    "occurrence": occurrence,
                }
                ranked.append(((rank + offset) / len(places), str(path), mutant))
    return [mutant for _, _, mutant in sorted(ranked, key=lambda entry: entry[:2])]


def mutated_source(mutant: dict) -> str | None:
    """Source with the change, or None where it is no Python or changes nothing."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / "dpglm" / f"{mutant['module']}.py").read_text()
    changed = mutate_code(source, get_operator(mutant["operator"])(), mutant["occurrence"])
    try:
        same = changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    return None if same else changed


def identity(mutant: dict, changed: str) -> str:
    """What makes a result reusable: the module, and its text as it was mutated."""
    return f"{mutant['module']} {hashlib.sha256(changed.encode()).hexdigest()[:16]}"


def test_arguments(module: str) -> list[list[str]]:
    """Arguments of pytest for one run after the other."""
    runs = []
    for entry in TESTS.get(module) or TESTS[module.partition("/")[0]]:
        name, _, expression = entry.partition(" ")
        path = ROOT / "tests" / f"test_{name}.py"
        runs.append([str(path), *(["-k", expression] if expression else [])])
    return runs


def run_tests(module: str, copy: Path, log: Path, cpu_seconds: int) -> None:
    """In a process of its own: import the copy, run the tests of the module, exit."""
    os.setsid()
    # Not of the clock: a busy machine must not count as a killed mutant.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path.insert(0, str(copy))
    interpreted = module.startswith("kernels/") and module not in COMPILED
    os.environ.update(
        PYTHONPATH=str(copy),
        HYPOTHESIS_STORAGE_DIRECTORY=str(copy / "hypothesis"),
        PYTHONDONTWRITEBYTECODE="1",
    )
    import hypothesis
    import numba
    import pytest

    # A counterexample need not be the smallest, nor be remembered.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutate", phases=phases, database=None, derandomize=True, deadline=None
    )
    hypothesis.settings.load_profile("mutate")
    options = ["-x", "-q", "-n0", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    options += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    code = 1
    try:
        if interpreted:
            numba.config.DISABLE_JIT = True
            os.environ["NUMBA_DISABLE_JIT"] = "1"
            options += ["-W", "ignore::RuntimeWarning"]
            import interpreted as stand_ins

            stand_ins.install()
        import dpglm

        assert Path(dpglm.__file__).is_relative_to(copy)
        for arguments in test_arguments(module):
            code = int(pytest.main([*arguments, *options]))
            if code:
                break
        else:
            # Last its doctests, of which some modules have none.
            code = int(pytest.main([str(copy / "dpglm" / f"{module}.py"), *options])) % 5
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _left_behind(folder: str, names: list[str]) -> set[str]:
    compiled = {name for name in names if name.endswith((".nbi", ".nbc"))}
    return compiled | ({"kernels"} if Path(folder) == ROOT / "dpglm" else set())


class Run:
    """One mutant under test, or the package as it is when there is no change."""

    def __init__(self, mutant: dict, changed: str | None, cpu_seconds: int) -> None:
        self.mutant = mutant
        self.folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        shutil.copytree(ROOT / "dpglm", self.folder / "dpglm", ignore=_left_behind)
        if not mutant["module"].startswith("kernels/"):
            # Compiled before, and as they are.
            (self.folder / "dpglm" / "kernels").symlink_to(ROOT / "dpglm" / "kernels")
        else:
            shutil.copytree(
                ROOT / "dpglm" / "kernels", self.folder / "dpglm" / "kernels", ignore=_left_behind
            )
        if changed is not None:
            (self.folder / "dpglm" / f"{mutant['module']}.py").write_text(changed)
        self.log = self.folder / "log"
        self.start = time.monotonic()
        self.process = multiprocessing.get_context("fork").Process(
            target=run_tests, args=(mutant["module"], self.folder, self.log, cpu_seconds)
        )
        self.process.start()

    def finish(self, timed_out: bool) -> dict:
        """Clean up and say what happened."""
        if timed_out:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        code, text = self.process.exitcode, self.log.read_text(errors="replace")
        shutil.rmtree(self.folder, ignore_errors=True)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        timed_out = timed_out or code in (-signal.SIGXCPU, -signal.SIGKILL)
        outcome = "timeout" if timed_out else "survived" if code == 0 else "killed"
        if code in (4, 5):
            outcome = "error"
        return {
            **self.mutant,
            "outcome": outcome,
            "by": failed[0].rpartition("/")[2] if failed else text.strip()[-200:],
            "seconds": round(time.monotonic() - self.start, 1),
        }


def run_all(waiting, jobs: int, cpu_seconds: int, deadline: float):
    """Yield results as they come; ``waiting`` yields mutants with their changed sources."""
    active: list[Run] = []
    while True:
        while len(active) < jobs and time.monotonic() < deadline:
            following = next(waiting, None)
            if following is None:
                break
            active.append(Run(*following, cpu_seconds))
        if not active:
            return
        wait([run.process.sentinel for run in active], timeout=5)
        for run in list(active):
            late = time.monotonic() - run.start > 10 * cpu_seconds
            if late or not run.process.is_alive():
                active.remove(run)
                yield run.finish(timed_out=late and run.process.is_alive())


def difference(mutant: dict) -> str:
    """The change as a unified diff without context."""
    source = (ROOT / "dpglm" / f"{mutant['module']}.py").read_text()
    changed = mutated_source(mutant) or source
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def report(results: list[dict]) -> str:
    """Score per package and in all, and the survivors."""
    lines = []
    for part in (*MUTATED, ""):
        outcomes = Counter(r["outcome"] for r in results if r["module"].startswith(part))
        total = sum(outcomes.values())
        if total:
            score = 1 - (outcomes["survived"] + outcomes["error"]) / total
            counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
            lines.append(f"{part or 'all':<18} {score:6.1%} of {total} killed ({counts})")
    for result in sorted(results, key=lambda r: (r["module"], r["line"])):
        if result["outcome"] in ("survived", "error"):
            place = f"dpglm/{result['module']}.py:{result['line']}"
            lines.append(f"\n{place} {result['operator']} {result['outcome']}")
            lines.append(difference(result))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=60, help="CPU seconds; late means killed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for the whole run")
    parser.add_argument(
        "--results", type=Path, default=Path(tempfile.gettempdir()) / "mutants.jsonl"
    )
    parser.add_argument("--only", default="", help="beginning of the modules to test")
    parser.add_argument("--again", action="store_true", help="test survivors once more")
    parser.add_argument("--check", action="store_true", help="run the tests without any mutation")
    arguments = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    deadline = time.monotonic() + arguments.seconds

    if arguments.check:
        modules = sorted({m["module"] for m in sample(arguments.seed)})
        modules = [m for m in modules if m.startswith(tuple(arguments.only.split(",")))]
        unchanged = (({"module": m, "line": 0}, None) for m in modules)
        for result in run_all(unchanged, arguments.jobs, 600, deadline):
            passed = result["outcome"] == "survived"
            print(result["module"], result["seconds"], "passes" if passed else result, flush=True)
        return

    known = {}
    if arguments.results.exists():
        for line in arguments.results.read_text().splitlines():
            result = json.loads(line)
            known[result["identity"]] = result
    done: list[dict] = []

    def waiting():
        valid = ((mutant, mutated_source(mutant)) for mutant in sample(arguments.seed))
        valid = (entry for entry in valid if entry[1] is not None)
        for mutant, changed in itertools.islice(valid, arguments.mutants):
            mutant["identity"] = identity(mutant, changed)
            result = known.get(mutant["identity"])
            if result and not (arguments.again and result["outcome"] in ("survived", "error")):
                done.append(result)
            elif mutant["module"].startswith(tuple(arguments.only.split(","))):
                yield mutant, changed

    for result in run_all(waiting(), arguments.jobs, arguments.timeout, deadline):
        done.append(result)
        with arguments.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
    print(report(done))


if __name__ == "__main__":
    main()
