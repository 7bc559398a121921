"""The shape of the house: floors, one noise site, public names, light imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dpglm

PACKAGE = Path(dpglm.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

FLOORS = [
    "exceptions",
    "losses",
    "limits",
    "privacy.conversions",
    "privacy.selection_costs",
    "privacy.objective_perturbation_costs",
    "privacy.noise",
    "privacy.events",
    "privacy.baseline_events",
    "privacy.composition",
    "privacy.calibration",
    "privacy.ledger",
    "privacy.budget",
    "facts",
    "schedules",
    "momentum",
    "averaging",
    "kernels",
    "privacy.mechanisms",
    "privacy.selection",
    "privacy.accountants",
    "line",
    "rows",
    "objective",
    "blocks",
    "sources",
    "second_moment",
    "plan",
    "spending",
    "adaptive_plan",
    "denoising",
    "preconditioning",
    "configuration",
    "trace",
    "odometer",
    "solvers",
    "estimators",
    "baselines",
    "scaling",
    "schema",
    "parquet",
    "census",
    "synthetic",
    "datasets",
    "csv_table",
    "auditing",
    "audit",
    "calculator",
    "proactive",
    "planning",
    "model_selection",
    "settings",
    "scores",
    "tables",
    "results",
    "progress",
    "plotting",
    "report",
    "utility_results",
    "utility_graph",
    "comparison",
    "commands",
    "cli",
]
# Sub-packages whose modules may use one another, lowest first within the package.
ROOMS = {
    "kernels": [
        "cache",
        "arithmetic",
        "vectors",
        "prefetch",
        "threads",
        "coefficients",
        "bases",
        "moments",
        "norms",
        "passes",
        "dense",
        "columns",
        "sparse",
        "line_search",
        "joint_line_search",
    ],
    "auditing": [
        "statistics",
        "canaries",
        "moments",
        "descent",
        "adaptive",
        "baselines",
        "choices",
        "black_box",
    ],
    "solvers": ["descent", "noisy_gd", "noisy_sgd", "agd"],
    "plotting": ["axes", "comparison", "trace", "plan", "utility", "audit"],
    "sources": ["base", "arrays", "iterables", "distributed"],
    "commands": ["options", "methods", "tables", "compare", "plan_report", "plan", "audit"],
    "baselines": [
        "parameters",
        "minimizer",
        "perturbation",
        "objective_perturbation",
        "output_perturbation",
        "approximate_minima",
        "newton",
        "double_noise_newton",
        "genetic",
        "privgene",
        "sgd_moments",
        "sgd_advanced",
        "majority",
    ],
    "estimators": [
        "labels",
        "inputs",
        "base",
        "probabilities",
        "descent",
        "logistic",
        "svm",
        "agd",
    ],
}


def name_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def rank(module):
    """Return (floor, room) of a dotted module below dpglm."""
    for floor, name in enumerate(FLOORS):
        if module == name or module.startswith(name + "."):
            rest = module[len(name) + 1 :]
            room = ROOMS[name].index(rest) if name in ROOMS and rest else 0
            return floor, room
    raise AssertionError(f"dpglm.{module} stands on no floor")


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


def test_every_import_points_to_a_lower_floor():
    checked = 0
    for path in MODULES:
        module = name_of(path)
        if module in ("__init__", "__main__") or path.name == "__init__.py":
            continue
        for imported in imports_of(path):
            assert rank(imported) < rank(module), f"dpglm.{module} imports dpglm.{imported}"
            checked += 1
    assert checked > 40


def test_sub_packages_stay_empty():
    for path in MODULES:
        if path.name == "__init__.py" and path.parent != PACKAGE:
            assert not path.read_text().strip(), f"{path} holds code"


RANDOM = ("random", "secrets", "os.urandom", "check_random_state", "default_rng", "RandomState")
# Synthetic data, folds and canaries may draw; nothing that touches private data may.
MAY_DRAW = {
    "privacy.noise", "census", "synthetic", "utility_graph", "auditing.canaries", "comparison",
    "cli",
}  # fmt: skip


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
    assert drawing <= MAY_DRAW


def test_only_the_mechanisms_call_the_sampler():
    users = {name_of(p) for p in MODULES if "rounded_gaussian" in p.read_text()}
    assert users == {"privacy.noise", "privacy.mechanisms"}
    for sampler in ("uniform_below", "rounded_laplace"):
        users = {name_of(p) for p in MODULES if sampler in p.read_text()}
        assert users == {"privacy.noise", "privacy.selection"}


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


@pytest.mark.parametrize(
    "missing", ["pandas", "matplotlib", "dp_accounting", "rich", "pyarrow", "dask"]
)
def test_a_fit_works_without_the_optional_packages(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import dpglm, numpy as np\n"
        "model = dpglm.DPLogisticRegression(max_iter=2, epsilon=9.0)\n"
        "print(model.fit(np.eye(4), [0, 1, 0, 1]).n_iter_)\n"
    )
    assert run(code) == "2"


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_files_hold_one_idea_each():
    long = {name_of(p): n for p in MODULES if (n := len(p.read_text().splitlines())) > 450}
    assert not long
