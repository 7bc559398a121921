"""The shape of the house: floors, one noise site, a short walk, public names, light imports."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import house
import pytest

import dpglm

PACKAGE = Path(dpglm.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# The folders and the loose modules, lowest first; those of one line do not import one another.
FLOORS = [
    {"exceptions", "losses"},
    {"schedules", "schema", "kernels"},
    {"datasets", "sums"},
    {"sources", "privacy"},
    {"estimators"},
    {"baselines", "calculator"},
    {"audit"},
    {"study"},
]


def name_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module):
    room = module.partition(".")[0]
    return next(floor for floor, rooms in enumerate(FLOORS) if room in rooms)


def imports_of(path):
    """Yield the dotted names below dpglm that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            if node.module and node.module.startswith("dpglm."):
                yield node.module.removeprefix("dpglm.")
            elif node.module == "dpglm":
                yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("dpglm."):
                    yield alias.name.removeprefix("dpglm.")


def test_every_import_points_to_a_lower_floor_or_stays_in_its_folder():
    checked = 0
    for path in MODULES:
        module = name_of(path)
        if module in ("", "__main__"):
            continue
        for imported in imports_of(path):
            same = module.partition(".")[0] == imported.partition(".")[0]
            assert same or floor_of(imported) < floor_of(module), f"{module} imports {imported}"
            checked += 1
    assert checked > 40


def test_no_module_imports_itself_by_way_of_others():
    """Imports for annotations alone count as well, those of a folder's face do not."""
    faces = {name_of(path) for path in MODULES if path.name == "__init__.py"}
    graph = {name_of(p): set(imports_of(p)) - faces for p in MODULES if name_of(p) not in faces}
    graphlib.TopologicalSorter(graph).prepare()


def test_rooms_are_few():
    folders = {p.parent for p in MODULES} - {PACKAGE}
    loose = [p for p in MODULES if p.parent == PACKAGE and not p.name.startswith("__")]
    assert len(folders) <= 8
    assert len(loose) <= 6
    assert house.shape()["files"] <= house.PACKAGE_FILES


def test_what_must_be_read_to_trust_a_fit_is_short():
    trusted = house.trusted_base()
    assert {"privacy/vault.py", "privacy/noise.py", "sums/reference.py"} <= set(trusted)
    assert len(trusted) <= house.TRUSTED_FILES
    assert sum(trusted.values()) <= house.TRUSTED_LINES


@pytest.mark.parametrize("estimator", house.WALKS)
def test_a_fit_enters_few_files_and_does_not_run_to_and_fro(estimator):
    walk = house.walk(estimator)
    assert {"estimators/base.py", "privacy/vault.py", "privacy/noise.py"} <= walk.files
    measured = len(walk.files), walk.moves
    assert all(x <= limit for x, limit in zip(measured, house.WALKS[estimator], strict=True)), (
        measured,
        walk.crossings.most_common(10),
    )


RANDOM = ("random", "secrets", "os.urandom", "check_random_state", "default_rng", "RandomState")
# Synthetic data, folds and canaries may draw; nothing that touches private data may.
MAY_DRAW = {"privacy.noise", "datasets", "audit.designs", "study"}


def draws_randomness(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.startswith(("np.random", "numpy.random", "os.urandom", "os.getrandom")):
                return True
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            source = [getattr(node, "module", None) or ""]
            if any(n in RANDOM or n.endswith(".random") for n in names + source):
                return True
    return False


def test_only_the_noise_module_draws_randomness():
    drawing = {name_of(path) for path in MODULES if draws_randomness(path)}
    assert "privacy.noise" in drawing
    assert {
        name for name in drawing if {name, name.partition(".")[0]}.isdisjoint(MAY_DRAW)
    } == set()


# Who may name in an import, wherever it stands, what draws noise or holds rows.
MAY_IMPORT = {
    "rounded_gaussian": {"privacy.vault"},
    "poisson_sample": {"privacy.vault"},
    "uniform_below": {"privacy.selection"},
    "rounded_laplace": {"privacy.selection"},
    "entropy_source": {"estimators.base"},
    "secret_choice": {"privacy.vault"},
    "Objective": {"privacy.vault"},
    "BlockObjective": {"privacy.vault"},
    "Reference": {"sums.objective"},
}


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_what_draws_noise_or_holds_rows_is_known_to_few(name):
    assert {name_of(path) for path in MODULES if name in imported_names(path)} == MAY_IMPORT[name]


def imported_names(path):
    """Yield the names that a file imports for more than annotations."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def test_whoever_uses_a_vault_does_so_by_its_public_methods():
    users = [path for path in MODULES if re.search(r"\bvault\.\w", path.read_text())]
    assert {"estimators.solvers", "estimators.base"} <= {name_of(path) for path in users}
    assert not [path for path in users if re.search(r"\bvault\._", path.read_text())]


def test_public_names():
    assert sorted(dpglm.__all__) == [
        "BudgetExceededError",
        "Constant",
        "DPAGDClassifier",
        "DPLinearSVM",
        "DPLogisticRegression",
        "DebiasedMomentum",
        "DecayingClip",
        "DiagonalPreconditioner",
        "DynamicNoise",
        "FullPreconditioner",
        "Geometric",
        "HeavyBall",
        "InverseTime",
        "LectureStep",
        "Piecewise",
        "Polynomial",
        "PrivacyBudget",
        "PrivacyCalculator",
        "PrivacyLedger",
        "PrivacyOdometer",
        "PrivacyPlan",
        "PrivacyWarning",
        "PublicBoundsScaler",
        "PublicFacts",
        "Schedule",
        "Schema",
        "__version__",
    ]
    for name in dpglm.__all__:
        assert getattr(dpglm, name) is not None


def test_every_module_declares_its_public_names():
    for path in MODULES:
        if path.name in ("__init__.py", "__main__.py"):
            continue
        names = {
            target.id
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        assert "__all__" in names, f"{path} has no __all__"


def test_importing_the_package_loads_no_heavy_or_optional_package():
    """scikit-learn itself imports pandas where it is installed; dpglm must not need it."""
    code = (
        "import sys, sklearn.linear_model, sklearn.callback, sklearn.compose, scipy.stats\n"
        "before = set(sys.modules)\n"
        "import dpglm\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "heavy = {'numba', 'matplotlib', 'pandas', 'dp_accounting', 'rich', 'pyarrow', 'dask'}\n"
        "print(sorted(new & heavy))\n"
    )
    assert run(code) == "[]"


def test_a_fit_works_without_any_of_the_optional_packages():
    code = (
        "import os, sys, numpy as np, numba, sklearn.linear_model, scipy.stats\n"
        "for missing in ('pandas', 'matplotlib', 'dp_accounting', 'rich', 'pyarrow', 'dask'):\n"
        "    if os.fork() == 0:\n"
        "        sys.modules[missing] = None\n"
        "        import dpglm\n"
        "        model = dpglm.DPLogisticRegression(max_iter=2, epsilon=9.0)\n"
        "        sys.exit(model.fit(np.eye(4), [0, 1, 0, 1]).n_iter_ != 2)\n"
        "    if os.wait()[1]:\n"
        "        print(missing)\n"
    )
    assert run(code) == ""


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
