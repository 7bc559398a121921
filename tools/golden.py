"""The golden record: what seeded fits and command lines gave, and whether they still do.

``python tools/golden.py`` (or ``check``) repeats every fit and command of the record and prints a
line for each field that is not the same, bit by bit; the exit code is then 1. ``python
tools/golden.py record`` writes the record anew: only for a change that is meant to change numbers,
and together with it. Bits depend on the processor and on the versions of numpy and scipy, so a
record is checked where it was made; tests/test_golden.py compares within rounding errors.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
from scipy import sparse

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dpglm import (  # noqa: E402
    DiagonalPreconditioner,
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
    seeded_noise,
)
from dpglm.baselines import (  # noqa: E402
    DescentOutputPerturbation,
    MajorityClassifier,
    ObjectivePerturbation,
    PrivGene,
    SGDAdvancedComposition,
    SGDMomentsAccountant,
)
from dpglm.datasets import make_census  # noqa: E402
from dpglm.schedules import (  # noqa: E402
    BiasCorrectedMomentum,
    Constant,
    ConvexStep,
    DecayingClip,
    DynamicNoise,
    ExponentialDecay,
    HeavyBall,
    InverseTimeDecay,
    PiecewiseConstant,
    Polynomial,
)

RECORD = ROOT / "tests" / "data" / "golden.json"


# Tables: all but the census are quotients of whole numbers, the same on every machine.


def _table(n_classes):
    """Return 300 rows of five correlated columns between -1 and 1, a third of them zeros."""
    rng = np.random.RandomState(n_classes)
    whole = rng.randint(-9, 10, size=(300, 5)) * (rng.randint(0, 3, size=(300, 5)) > 0)
    whole[:, 1] = (whole[:, 0] + whole[:, 1]) // 2
    score = whole @ [3, 1, -2, 1, 0] + rng.randint(-20, 21, size=300)
    return whole / 9.0, np.searchsorted([0] if n_classes == 2 else [-12, 14], score)


TABLES = {
    "two classes": _table(2),
    "three classes": _table(3),
    "census": make_census(400, random_state=0),
    "long rows": (_table(2)[0] * 7 + 1, np.where(_table(2)[1], "yes", "no")),
}


# Containers: how the rows of a table are handed to fit.


def dense(X, y):
    return X, y


def fortran(X, y):
    return np.asfortranarray(X), y


def float32(X, y):
    return X.astype(np.float32), y


def csr(X, y):
    return sparse.csr_array(X), y


def strided(X, y):
    return np.repeat(X, 2, axis=0)[::2], y


def blocks(X, y):
    return ([(X[i:j], y[i:j]) for i, j in ((0, 7), (7, 150), (150, len(y)))],)


def sparse_blocks(X, y):
    return ([(sparse.csr_array(X[i : i + 64]), y[i : i + 64]) for i in range(0, len(y), 64)],)


def persons(X, y):
    """Rows with weights, of persons with two or three each, which are not together."""
    rows = np.arange(len(y))
    return X, y, {"sample_weight": rows % 7 / 4, "groups": rows % 120}


def dask(X, y):
    from dask import array

    return array.from_array(X, chunks=(90, -1)), array.from_array(y, chunks=90)


# Fits: every estimator under every relation, then what each can be asked for.

SHORT = {
    DPLogisticRegression: {"max_iter": 5},
    DPLinearSVM: {"max_iter": 5},
    DPAGDClassifier: {"epsilon": 2.0, "n_splits": 6},
    DescentOutputPerturbation: {"max_iter": 3},
    MajorityClassifier: {},
    ObjectivePerturbation: {},
    PrivGene: {"max_iter": 6},
    SGDAdvancedComposition: {"epsilon": 3.0, "max_iter": 8},
    SGDMomentsAccountant: {"epsilon": 3.0, "max_iter": 8},
}
RELATIONS = {
    "zero_out": {},
    "replace_one": {"neighboring_relation": "replace_one"},
    "add_or_remove_one": {"neighboring_relation": "add_or_remove_one", "n_samples_estimate": 280},
}
SAMPLED = (SGDAdvancedComposition, SGDMomentsAccountant)


def _under_every_relation():
    """Yield every estimator under every relation, with containers and tables in turn."""
    containers, tables = [dense, csr, fortran, float32], ["two classes", "three classes"]
    turn = 0
    for estimator, short in SHORT.items():
        for relation, parameters in RELATIONS.items():
            if estimator in SAMPLED and relation == "replace_one":
                continue
            yield estimator, tables[turn // 2 % 2], containers[turn % 4], {**short, **parameters}
            turn += 1


def _fixed_in_advance():
    """Yield noisy gradient descent: containers, schedules, momentum, averages, whitening."""
    two, three, census = "two classes", "three classes", "census"
    plain = {"max_iter": 6, "preconditioner": None}
    lecture = {"step_schedule": ConvexStep(), "max_row_norm": 2.0}
    batches = {"max_iter": 5, "sampling_rate": 0.25, "preconditioner": None}
    for table, container, parameters in (
        (census, dense, {}),
        (two, dense, {"max_iter": 4, "epsilon": 300.0, "inference_fraction": 0.5}),
        (census, csr, {"max_iter": 4, "preconditioner": "diagonal", "classes": [0, 1]}),
        (two, strided, {"max_iter": 4}),
        (three, persons, {"max_iter": 4, "max_contributions": 2}),
        (two, blocks, {"max_iter": 4}),
        (three, sparse_blocks, {"max_iter": 3, "momentum": None}),
        (three, blocks, {**plain, "max_iter": 3}),
        (two, dask, {"max_iter": 4}),
        (three, dask, {**plain, "fit_intercept": False}),
        ("long rows", fortran, {**plain, "clip_schedule": 0.5, "averaging": None}),
        (two, dense, {"max_iter": 3, "epsilon": math.inf}),
        (three, csr, {**plain, "epsilon": math.inf, "fit_intercept": False}),
        (two, dense, {**plain, "noise_schedule": DynamicNoise(decay=4.0)}),
        (
            two,
            csr,
            {
                **plain,
                "noise_schedule": DynamicNoise(momentum=0.5),
                "max_row_norm": 2.0,
                "alpha": 0.1,
                "momentum": BiasCorrectedMomentum(0.5),
                "clip_schedule": DecayingClip(1.0),
            },
        ),
        (two, float32, {**plain, "clip_schedule": DecayingClip(2.0, horizon=3), "averaging": 0.4}),
        (
            two,
            dense,
            {**plain, "noise_schedule": ExponentialDecay(1.0, 0.8), "momentum": HeavyBall(0.7)},
        ),
        (three, dense, {**plain, "noise_schedule": Polynomial(1.0, 0.2, 2.0), "momentum": 0.3}),
        (
            two,
            fortran,
            {
                **plain,
                "alpha": 0.5,
                "step_schedule": InverseTimeDecay(),
                "averaging": "t_weighted",
                "momentum": None,
            },
        ),
        (
            two,
            dense,
            {
                **plain,
                **lecture,
                "averaging": "uniform",
                "class_weight": {0: 1.0, 1: 2.5},
            },
        ),
        (
            three,
            csr,
            {
                "max_iter": 6,
                "clip_schedule": PiecewiseConstant((2.0, 1.0, 0.5), (0.3, 0.6)),
                "step_schedule": Constant(0.7),
                "preconditioner": DiagonalPreconditioner(0.3, row_clipping_norm=1.5),
                "averaging": "tail",
                "class_weight": {0: 2.0, 1: 1.0, 2: 0.5},
            },
        ),
        (two, dense, {"max_iter": 4, "preconditioner": FullPreconditioner(0.2), "alpha": 0.05}),
        (two, csr, {"max_iter": 4, "fit_intercept": False, "momentum": "bias_corrected"}),
        (two, dense, batches),
        (three, csr, {**batches, "momentum": "heavy_ball", "clip_schedule": "decaying"}),
        (two, blocks, {**batches, "preconditioner": "full", **RELATIONS["add_or_remove_one"]}),
        (two, fortran, {**batches, "epsilon": math.inf}),
        (two, dense, {**batches, "batches": "without_replacement", **RELATIONS["replace_one"]}),
        (two, csr, {**batches, **RELATIONS["replace_one"]}),
        (
            two,
            dense,
            {
                "preconditioner": None,
                "noise_multiplier": 14.0,
                "max_iter": "budget",
                "clip_schedule": ExponentialDecay(1.0, 0.9, 0.5),
            },
        ),
    ):
        yield DPLogisticRegression, table, container, parameters
    for table, container, parameters in (
        (two, dense, {**plain, "loss": "hinge"}),
        (two, csr, {"max_iter": 4, "loss": "hinge", "alpha": 0.02, "class_weight": {0: 1, 1: 3}}),
        (
            three,
            dense,
            {"max_iter": 4, "half_width": 0.5, "preconditioner": None, **lecture},
        ),
        (two, blocks, {"max_iter": 4, "fit_intercept": False}),
        (two, float32, {"max_iter": 3, "epsilon": math.inf}),
        (two, dense, {**batches, "loss": "hinge"}),
    ):
        yield DPLinearSVM, table, container, parameters


def _adaptive():
    """Yield DP-AGD: accountants, selections, preconditioners, losses, the published constants."""
    two, three = "two classes", "three classes"
    short = SHORT[DPAGDClassifier]
    published = DPAGDClassifier.as_published(epsilon=4.0).get_params()
    for table, container, parameters in (
        (two, dense, {**short, "accountant": "zcdp"}),
        (two, csr, {**short, "accountant": "gdp", "selection": "laplace"}),
        (two, fortran, {**short, "accountant": "zcdp", "selection": "laplace"}),
        (two, dense, {**short, "selection": "permute_and_flip"}),
        (two, dense, published),
        (three, csr, {**published, "n_splits": 8}),
        (two, blocks, short),
        (two, persons, {**short, "max_contributions": 3, "max_weight": 1.0}),
        (three, sparse_blocks, {**short, "loss": "smoothed_hinge"}),
        (two, dask, {**short, "fit_intercept": False}),
        (two, dense, {**short, "preconditioner": "full", "clip_schedule": 0.5}),
        (three, csr, {**short, "preconditioner": "diagonal", "alpha": 0.05}),
        (two, dense, {"epsilon": math.inf, "max_iter": 4, "class_weight": {0: 1.0, 1: 2.0}}),
        (
            two,
            csr,
            {**short, "loss": "hinge", "momentum": BiasCorrectedMomentum(0.6), "loss_clip": 3.0},
        ),
        ("census", dense, {"epsilon": 4.0, "clip_schedule": DecayingClip(3.0), "max_iter": 6}),
    ):
        yield DPAGDClassifier, table, container, parameters


def _baselines():
    """Yield the baselines: losses, weights, no intercept, no noise."""
    two, three = "two classes", "three classes"
    weighted = {"class_weight": {0: 1.0, 1: 2.0}, "fit_intercept": False}
    no_noise = {"epsilon": math.inf}
    yield from (
        (ObjectivePerturbation, two, dense, {"loss": "smoothed_hinge", **weighted}),
        (ObjectivePerturbation, two, csr, {"alpha": 0.3, "max_row_norm": 1.5}),
        (ObjectivePerturbation, three, dense, {"epsilon": math.inf, "alpha": 0.01}),
        (DescentOutputPerturbation, two, dense, {"max_iter": 5, "alpha": 0.1}),
        (DescentOutputPerturbation, three, csr, {"loss": "smoothed_hinge", "max_iter": 3}),
        (PrivGene, two, dense, {"max_iter": 8, "loss": "hinge", **weighted}),
        (PrivGene, three, float32, {"max_iter": 5, **no_noise}),
        (SGDMomentsAccountant, three, csr, {"max_iter": 6, "loss": "hinge", "batch_size": 40}),
        (SGDMomentsAccountant, two, blocks, {**no_noise, "max_iter": 6, **weighted}),
        (SGDAdvancedComposition, two, dask, {"epsilon": 3.0, "max_iter": 6, "alpha": 0.1}),
        (MajorityClassifier, three, dense, {"class_weight": {0: 1.0, 1: 3.0, 2: 1.0}}),
        (MajorityClassifier, "long rows", csr, {"classes": ["no", "yes"], **no_noise}),
    )


def _name(estimator, table, container, parameters):
    """Return the call, without what is at its default, and what it is fitted to."""
    defaults = estimator().get_params()
    given = [f"{key}={value!r}" for key, value in parameters.items() if value != defaults[key]]
    return f"{estimator.__name__}({', '.join(given)}) on {table}, {container.__name__}"


FITS = {
    _name(*fit): fit
    for family in (_under_every_relation, _fixed_in_advance, _adaptive, _baselines)
    for fit in family()
}

# Command lines; {folder} is an empty one.
COMPARE = "compare --n-samples 300 --max-iter 3 --folds 2 --delta 1e-3 --seed 0 "
COMPARE += "--estimators agd majority --epsilons 0.5 2"
COMMANDS = [
    "",
    "--help",
    "plan --help",
    "compare --help",
    "audit --help",
    "plan --epsilon 1 --delta 1e-6 --n 48842",
    "plan --epsilon 1 --n 9000 --estimator svm --features 20 --classes 3 --n-iter 60",
    "plan --epsilon 1 --n 9000 --estimator agd --features 20",
    "plan --epsilon 1 --n 10000 --sampling-rate 0.5 --n-iter 20",
    "plan --epsilon 1 --n 10 --relation replace_one --preconditioner none --alpha 0.01",
    "plan --n 9",
    "plan --n 9 --epsilon x",
    "plan --n 9 --epsilon 1e-9 --preconditioner none",
    f"{COMPARE} --output {{folder}}/cells.jsonl --json {{folder}}/table.json",
    "compare --folds 301 --n-samples 300",
    "audit --estimator majority --canaries 300 --fits 100",
    "audit --epsilon 1e-9",
]


def fit(name):
    """Return what a fit leaves."""
    estimator, table, container, parameters = FITS[name]
    X, y = TABLES[table]
    model = estimator(**parameters)
    with warnings.catch_warnings(), seeded_noise(7):
        warnings.simplefilter("ignore")
        *data, named = container(X, y) if container is persons else (*container(X, y), {})
        model.fit(*data, **named)
        plan = model.plan(*X.shape, n_classes=len(model.classes_))
    # What was released; of float32 rows coef_ and intercept_ are roundings of it.
    rows = np.atleast_2d(model.trace_.coef.T)
    *coef, intercept = rows.T if model.fit_intercept else [*rows.T, np.zeros(len(rows))]
    return {
        "coef": [[value.hex() for value in row] for row in np.transpose(coef).tolist()],
        "intercept": [value.hex() for value in intercept.tolist()],
        "n_iter": int(model.n_iter_),
        "ledger": model.privacy_.to_dict(),
        "plan": plan.statement.split("; "),
        "trace": _digests(model.trace_),
        **_debiased(model.trace_),
    }


def _debiased(trace):
    """Return the coefficients that intervals are of, if there are any."""
    found = getattr(trace, "bias_corrected", None)
    return {} if found is None else {"bias_corrected": found.coef.tolist()}


def _digests(trace):
    """Return a digest of each column of a trace, or of each number and list that it holds."""
    if hasattr(trace, "to_frame"):
        columns = {name: column.tolist() for name, column in trace.to_frame().items()}
    else:
        public = {name: getattr(trace, name) for name in dir(trace) if name[0] != "_"}
        public = {name: np.ravel(value).tolist() for name, value in public.items()}
        columns = {name: values for name, values in public.items() if _numbers(values)}
    return {
        name: hashlib.sha256(repr(values).encode()).hexdigest()[:12]
        for name, values in sorted(columns.items())
        if name != "coef"
    }


def _numbers(values):
    return all(isinstance(value, int | float) for value in values)


def command(line):
    """Return the exit code of a command line, what it prints, and the files that it writes."""
    from dpglm.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, COLUMNS="100"),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("ignore")
        try:
            code = main(line.format(folder=folder).split())
        except SystemExit as exit_:
            code = exit_.code
        files = {path.name: _content(path) for path in sorted(Path(folder).iterdir())}
    printed = out.getvalue()
    if line.startswith("audit --estimator"):
        # Its noise is never seeded: the words are always the same, the numbers are not.
        printed = re.sub(r"[ -]+", " ", re.sub(r"\d[\d.e+-]*", "#", printed))
    # On a busy machine a comparison tells how far it is.
    errors = [text for text in err.getvalue().splitlines() if " elapsed" not in text]
    return {"code": code, "printed": printed.splitlines(), "errors": errors, **files}


def _content(path):
    """Return the JSON of a file, the first line if each has its own, without seconds."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        text = text.splitlines()[0]
    return json.loads(re.sub(r'("fit_seconds\w*": )[^,}]+', r"\1null", text))


def differences(name, got, recorded, *, exact=True):
    """Yield a line for each field that is not as recorded, to the last bit unless told otherwise.

    Not ``exact`` are coefficients within 1e-6 and other numbers within 1e-9 of themselves, the line
    breaks of a help, which Python chooses, and traces, of which there are digests alone.
    """
    if "raised" in got:
        yield f"{name}: raised {got['raised']}"
        return
    for field in sorted({*got, *recorded}):
        mine, golden = got.get(field), recorded.get(field)
        if not exact and _near(name, field, mine, golden):
            continue
        mine, golden = (json.dumps(value, sort_keys=True) for value in (mine, golden))
        if mine != golden:
            pairs = enumerate(zip(mine, golden, strict=False))
            start = next((place for place, (a, b) in pairs if a != b), 0)
            cut = slice(max(0, start - 20), start + 40)
            yield f"{name}: {field}: ...{mine[cut]}... was ...{golden[cut]}..."


def _near(name, field, mine, golden):
    if field == "trace":
        return True
    if field in ("coef", "intercept") and mine and golden:
        return _near_coefficients(mine, golden)
    if name.endswith("--help") and field == "printed":
        return " ".join(mine).split() == " ".join(golden).split()
    return _near_numbers(mine, golden)


def _near_coefficients(mine, golden):
    mine, golden = (np.vectorize(float.fromhex)(value) for value in (mine, golden))
    atol = 1e-9 * np.abs(golden).max()
    return mine.shape == golden.shape and np.allclose(mine, golden, rtol=1e-6, atol=atol)


def _near_numbers(mine, golden):
    """Return whether all is equal, floats but for rounding errors."""
    if type(mine) is not type(golden):
        return False
    if isinstance(mine, dict):
        same = mine.keys() == golden.keys()
        return same and all(_near_numbers(mine[key], golden[key]) for key in mine)
    if isinstance(mine, list):
        return len(mine) == len(golden) and all(map(_near_numbers, mine, golden))
    return math.isclose(mine, golden) if isinstance(mine, float) else mine == golden


def load():
    """Return the record: fits and commands by name."""
    document = json.loads(RECORD.read_text())
    texts = document.pop("texts")

    def full(value):
        if isinstance(value, dict):
            return {key: full(item) for key, item in value.items()}
        if isinstance(value, list):
            return [full(item) for item in value]
        return texts[int(value[1:])] if isinstance(value, str) and value[:1] == "#" else value

    return {"fits": full(document["fits"]), "commands": document["commands"]}


def save(record):
    """Write the record, with a table of the long texts that fits have in common."""
    texts = {}

    def short(value):
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        if isinstance(value, list):
            return [short(item) for item in value]
        if isinstance(value, str) and len(value) > 40:
            return f"#{texts.setdefault(value, len(texts))}"
        return value

    fits = short(record["fits"])
    parts = []
    for title, entries in (("fits", fits), ("commands", record["commands"])):
        lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
        parts.append(f' "{title}": {{\n' + ",\n".join(lines) + "\n }")
    parts.append(' "texts": [\n' + ",\n".join(f"  {json.dumps(text)}" for text in texts) + "\n ]")
    RECORD.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def run():
    """Return the fits and commands of today, by name."""
    return {
        "fits": {name: _outcome(fit, name) for name in FITS},
        "commands": {line: _outcome(command, line) for line in COMMANDS},
    }


def _outcome(call, name):
    try:
        return call(name)
    except Exception as error:
        return {"raised": " ".join(repr(error).split())}


def main(arguments):
    """Check or write the record; return the exit code."""
    if arguments not in ([], ["check"], ["record"]):
        print("usage: python tools/golden.py [check | record]", file=sys.stderr)
        return 2
    start, today = time.process_time(), run()
    size = f"{len(today['fits'])} fits and {len(today['commands'])} command lines"
    seconds = f"({time.process_time() - start:.0f} CPU seconds)"
    if arguments == ["record"]:
        save(today)
        print(f"{size} written to {RECORD.name} {seconds}")
        return 0
    lines = []
    for title, golden in load().items():
        for name in dict.fromkeys([*golden, *today[title]]):
            lines += differences(name, today[title].get(name, {}), golden.get(name, {}))
    print(*lines, f"{len(lines)} fields differ in {size} {seconds}", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
