"""Speed of the clipped gradient as ratios measured in one run.

The physical limit is memory: a gradient has to read the data once. So the yardstick is the time of
a well-written sum over the same bytes (STREAM read), and the other one a numpy version that reads
the data twice. The contenders of a row are run in turn, many times, and compared by their medians:
CPU time for one thread; wall-clock time for two threads, where a sample counts only if both
processors were at work (CPU / wall >= 1.8). Whole fits (`whole`) have one more yardstick, a product
X'X by numpy, with which every second-order method starts.

    [DPGLM_DATA=folder] python benchmarks/speed.py [--quick] [--only GROUP ...]
        [--output speed.json] [--figure speed.png]
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial

import numba
import numpy as np
import peers
from scipy import sparse
from threadpoolctl import threadpool_limits

from dpglm import DPLogisticRegression
from dpglm.datasets import fetch_table
from dpglm.kernels import run_chunks
from dpglm.kernels.arithmetic import FAST
from dpglm.losses import Hinge, Logistic, Softmax
from dpglm.privacy.noise import entropy_source, rounded_gaussian
from dpglm.sums.objective import Objective

CLIP = 1.0
LOSS_CLIP = 3.0
MIN_CPU_PER_WALL = 1.8
READ_CHUNK = 2**12


@numba.njit(cache=True, **FAST)
def add_up(values, first, last, out):
    """Sum of the chunks [first, last): as fast as one thread can read."""
    for chunk in range(first, last):
        part = values[chunk * READ_CHUNK : (chunk + 1) * READ_CHUNK]
        total = 0.0
        for i in range(part.size):
            total += part[i]
        out[chunk] = total


def stream_read(data: np.ndarray, n_threads: int) -> Callable[[], None]:
    """Return a call that reads all of `data` once."""
    flat = data.reshape(-1, order="A")
    n_chunks = -(-flat.size // READ_CHUNK)
    out = np.empty(n_chunks)
    return lambda: run_chunks(lambda a, b: add_up(flat, a, b, out), n_chunks, n_threads)


def medians(calls: dict[str, Callable], repeats: int, n_threads: int = 1) -> dict[str, float]:
    """Median seconds of each call, the calls taken in turn."""
    samples = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if n_threads == 1:
                samples[name].append(cpu)
            elif cpu / wall >= MIN_CPU_PER_WALL:
                samples[name].append(wall)
    return {
        name: float(np.median(times)) if times else float("nan") for name, times in samples.items()
    }


def result(name, seconds, n_rows, n_bytes=None):
    """Row of the table; the yardstick of memory is for dense data only."""
    gradient = seconds["gradient"]
    row = {"case": name, "ms": 1e3 * gradient, "ns_per_row": 1e9 * gradient / n_rows}
    if "stream" in seconds:
        row["stream_gb_s"] = n_bytes / seconds["stream"] / 1e9
        row["reads"] = gradient / seconds["stream"]
        row["percent_of_stream"] = 100 * seconds["stream"] / gradient
    if "library" in seconds:
        row["times_two_pass"] = seconds["library"] / gradient
    if "product" in seconds:
        row["products"] = gradient / seconds["product"]
    others = {name: t / gradient for name, t in seconds.items() if name.startswith("with ")}
    return row | others


def dense_problem(n, d, dtype=np.float64):
    """Normal data, random labels, small coefficients."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=dtype)
    return X, rng.choice([-1.0, 1.0], n), rng.normal(scale=0.1, size=d + 1)


def dense_row(name, n, d, dtype, repeats, n_threads=1):
    """Measure the logistic gradient on dense data."""
    X, y, coef = dense_problem(n, d, dtype)
    objective = Objective(X, y, Logistic(), n_threads=n_threads)
    calls = {
        "stream": stream_read(X, n_threads),
        "gradient": lambda: objective.gradient_sum(coef, CLIP),
    }
    if n_threads == 1:
        calls["library"] = peers.two_pass(X, y, coef, CLIP)
    return result(name, medians(calls, repeats, n_threads), n, X.nbytes)


def peers_row(name, n, d, repeats):
    """Compare with other programs for the same sum."""
    X, y, coef = dense_problem(n, d)
    objective = Objective(X, y, Logistic(), n_threads=1)
    calls = {"gradient": lambda: objective.gradient_sum(coef, CLIP)}
    makers = {
        "two-pass": peers.two_pass, "numpy": peers.numpy_rows, "jax": peers.jax_vmap,
        "torch": peers.torch_vmap, "loop": peers.loop,
    }  # fmt: skip
    expected = calls["gradient"]()
    for peer, make in makers.items():
        call = make(X, y, coef, CLIP)
        if call is not None:
            np.testing.assert_allclose(np.asarray(call()), expected, rtol=1e-8, atol=1e-8)
            calls[f"with {peer}"] = call
    return result(name, medians(calls, repeats), n)


def iteration_row(name, n, d, repeats, bounds):
    """Measure a clipped gradient and the losses at 21 steps along it, scores being carried."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = np.where(X[:, :10].sum(axis=1) + 3 * rng.standard_normal(n) > 0, 1.0, -1.0)
    objective = Objective(X, y, Logistic(), n_threads=1)
    steps = np.linspace(0.0, 0.2, 21)
    coef = np.zeros(d + 1)

    def iterate():
        direction = objective.gradient_sum(coef, CLIP)
        direction /= np.linalg.norm(direction)
        losses = objective.line_losses(coef, direction, steps, **bounds)
        coef[:] = coef - steps[max(1, np.argmin(losses))] * direction

    calls = {"stream": stream_read(X, 1), "gradient": iterate}
    if "loss_clip" in bounds:
        calls["library"] = peers.line_search(X, y, steps, CLIP, LOSS_CLIP)
    return result(name, medians(calls, repeats), n, X.nbytes)


def losses_row(name, n, loss, repeats, bounds):
    """Measure the losses at 21 steps alone: two columns cost next to nothing to read."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, 2)), rng.choice([-1.0, 1.0], n)
    objective = Objective(X, y, loss, fit_intercept=False, n_threads=1)
    line = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.linspace(0.0, 2.0, 21)
    calls = {"gradient": lambda: objective.line_losses(*line, **bounds)}
    return result(name, medians(calls, repeats), n)


def softmax_row(name, n, d, n_classes, repeats):
    """Measure the gradient of K classes under one joint clip."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = rng.integers(0, n_classes, n)
    coef = rng.normal(scale=0.1, size=(d + 1, n_classes))
    objective = Objective(X, y, Softmax(), n_outputs=n_classes, n_threads=1)
    calls = {
        "stream": stream_read(X, 1),
        "gradient": lambda: objective.gradient_sum(coef, CLIP),
        "library": peers.softmax(X, y, coef, CLIP),
    }
    return result(name, medians(calls, repeats), n, X.nbytes)


def one_hot(n, d, per_row):
    """CSR data with `per_row` ones in each row, one in each of as many groups of columns."""
    rng = np.random.default_rng(0)
    bounds = np.linspace(0, d, per_row + 1).astype(int)
    columns = np.column_stack(
        [rng.integers(low, high, n) for low, high in itertools.pairwise(bounds)]
    )
    ends = np.arange(0, n * per_row + 1, per_row)
    return sparse.csr_array((np.ones(n * per_row), columns.ravel(), ends), shape=(n, d))


def sparse_row(name, X, repeats):
    """Measure the logistic gradient on CSR data."""
    n, d = X.shape
    rng = np.random.default_rng(0)
    y = rng.choice([-1.0, 1.0], n)
    coef = rng.normal(scale=0.1, size=d + 1)
    objective = Objective(X, y, Logistic(), n_threads=1)
    calls = {
        "gradient": lambda: objective.gradient_sum(coef, CLIP),
        "library": peers.two_pass(X, y, coef, CLIP),
    }
    return result(name, medians(calls, repeats), n)


def fit_row(name, X, y, repeats, others):
    """Compare a default fit, on one thread, with whole fits by others and with one X'X."""
    model = DPLogisticRegression(classes=[0, 1])
    calls = {"gradient": lambda: model.fit(X, y)}
    calls |= {f"with {peer}": call for peer, call in others.items()}
    if not sparse.issparse(X):
        calls["product"] = lambda: X.T @ X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return result(name, medians(calls, repeats), X.shape[0])


FIRST_FIT = """
import time
import sklearn.linear_model
before = time.process_time()
import numpy as np
from dpglm import {model}
X = np.random.default_rng(0).normal(size=(500, 10))
{model}(classes=[0, 1]).fit(X, (X[:, 0] > 0).astype(int))
print(time.process_time() - before)
"""


def first_fit_rows(model, repeats):
    """CPU time of the first fit of a process, import included, above that of scikit-learn's."""
    script = [sys.executable, "-W", "ignore", "-c", FIRST_FIT.format(model=model)]
    seconds = {"cold": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "NUMBA_NUM_THREADS": "1"}
            for state in ("cold", "warm"):
                run = subprocess.run(
                    script, env=environment, check=True, capture_output=True, text=True
                )
                seconds[state].append(float(run.stdout))
    return [
        {"case": f"first fit of {model}, {state} cache", "ms": 1e3 * float(np.median(times))}
        for state, times in seconds.items()
    ]


def noise_row(name, size, draws):
    """Measure the exactly rounded Gaussian sampler."""
    entropy = entropy_source(None)

    def draw():
        for _ in range(draws):
            rounded_gaussian(size, 2.0**30, entropy)

    return {"case": name, "ms": 1e3 * medians({"noise": draw}, 3)["noise"]}


def shape_rows(n, repeats):
    """Gradient on dense data of several shapes."""
    adult = (48_842, 109, np.float64, 5 * repeats)
    return [
        dense_row(f"float64 {n}x100", n, 100, np.float64, repeats),
        dense_row(f"float64 {n}x100, 2 threads", n, 100, np.float64, 20 * repeats, n_threads=2),
        dense_row(f"float32 {n}x100", n, 100, np.float32, repeats),
        dense_row(f"float64 {n}x10", n, 10, np.float64, repeats),
        dense_row(f"float64 {n // 10}x1000", n // 10, 1000, np.float64, repeats),
        dense_row("float64 48842x109 (Adult)", *adult),
        softmax_row(f"softmax K=3 {n // 5}x100", n // 5, 100, 3, repeats),
        softmax_row(f"softmax K=10 {n // 5}x100", n // 5, 100, 10, repeats),
    ]


def line_rows(n, repeats):
    """Searching a line."""
    clipped, capped = {"loss_clip": LOSS_CLIP}, {"clip": CLIP}
    return [
        iteration_row(f"AGD iteration {n}x100", n, 100, min(repeats, 7), clipped),
        iteration_row(f"AGD iteration {n}x100, capped", n, 100, repeats, capped),
        losses_row(f"21 losses {n}, logistic", n, Logistic(), repeats, clipped),
        losses_row(f"21 losses {n}, logistic, capped", n, Logistic(), repeats, capped),
        losses_row(f"21 losses {n}, hinge", n, Hinge(), repeats, clipped),
    ]


def sparse_rows(n, repeats):
    """Gradient on sparse data."""
    uneven = sparse.random_array((n // 10, 1000), density=0.03, format="csr", rng=0)
    return [
        sparse_row("CSR 48842x109, 14 per row (Adult)", one_hot(48_842, 109, 14), 5 * repeats),
        sparse_row(f"CSR {n}x10000, 20 per row", one_hot(n, 10_000, 20), repeats),
        sparse_row(f"CSR {n // 10}x1000, about 30 per row", uneven, repeats),
    ]


def scaling_rows(n, repeats):
    """Cost against the number of rows, of columns and of threads."""
    sizes = [10_000, 100_000, 1_000_000, *([3_000_000, 10_000_000] if n >= 10**6 else [])]
    cases = [(size, 100, np.float32) for size in sizes]
    cases += [(n * 10 // d, d, np.float64) for d in (10, 30, 100, 300, 1000)]
    rows = [
        dense_row(f"{dtype.__name__} {size}x{d}", size, d, dtype, repeats)
        for size, d, dtype in cases
    ]
    for n_threads in range(1, (os.cpu_count() or 1) + 1):
        name = f"float32 {n}x100, threads: {n_threads}"
        rows.append(dense_row(name, n, 100, np.float32, 3 * repeats, n_threads))
    return rows


def adult_rows(repeats):
    """Whole fits of Adult, if the environment variable DPGLM_DATA names a folder with it."""
    if not os.environ.get("DPGLM_DATA"):
        return []
    data = fetch_table("adult")
    X = data.schema.additive(1).transformer().fit_transform(data.data)
    y = (np.asarray(data.target) == data.schema.classes[1]).astype(int)
    storages = {"dense": X, "column-major": np.asfortranarray(X), "CSR": sparse.csr_array(X)}
    rows = []
    for name, stored in storages.items():
        others = peers.whole_fits(stored, y)
        if name == "dense" and peers.installed("interpret"):
            columns, model = peers.boosting(data.data, data.schema)
            others["DP-EBM"] = partial(model().fit, columns, y)
        rows.append(fit_row(f"default fit of Adult, {name}", stored, y, repeats, others))
    return rows


def whole_rows(n, repeats):
    """Whole fits."""
    X, y, _ = dense_problem(n * 6 // 10, 100)
    y = (y > 0).astype(int)
    name = f"default fit, float64 {len(X)}x100"
    return [fit_row(name, X, y, min(5, repeats), {}), *adult_rows(min(5, repeats))]


def fit_rows(n, repeats):
    """First fits of a process, and the noise."""
    return [
        *first_fit_rows("DPLogisticRegression", 3),
        *first_fit_rows("DPAGDClassifier", 3),
        noise_row("rounded Gaussian, 100 numbers x 1000 draws", 100, 1000),
    ]


def peer_rows(n, repeats):
    """Other programs."""
    return [
        peers_row("gradient 48842x109 (Adult)", 48_842, 109, repeats),
        peers_row("gradient 200000x10", 200_000, 10, repeats),
    ]


GROUPS = {
    "shapes": shape_rows, "lines": line_rows, "sparse": sparse_rows, "peers": peer_rows,
    "scaling": scaling_rows, "whole": whole_rows, "fits": fit_rows,
}  # fmt: skip
COLUMNS = {
    "case": ("case", "<44"),
    "ms": ("ms", ">9.2f"),
    "ns_per_row": ("ns/row", ">10.2f"),
    "stream_gb_s": ("STREAM GB/s", ">12.1f"),
    "percent_of_stream": ("% of STREAM", ">12.0f"),
    "reads": ("reads", ">8.2f"),
    "times_two_pass": ("x two-pass", ">11.2f"),
    "products": ("in X'X", ">8.2f"),
}


def table(rows: list[dict]) -> str:
    """Plain text; how many times longer other programs take at the end of a line."""
    lines = [
        "".join(f"{title:{form.split('.')[0].rstrip('f')}}" for title, form in COLUMNS.values())
    ]
    for row in rows:
        cells = []
        for key, (_, form) in COLUMNS.items():
            width = form.split(".")[0].rstrip("f")
            cells.append(f"{row[key]:{form}}" if key in row else f"{'-':{width}}")
        cells += [f"  {key[5:]} {row[key]:.3g}x" for key in row if key.startswith("with ")]
        lines.append("".join(cells))
    return "\n".join(lines)


def draw(rows: list[dict], path: str) -> None:
    """Bars of the shares of STREAM and of the ratios to two library products."""
    from dpglm.study.plots import plain, pyplot

    keys = {"percent_of_stream": "% of STREAM read", "times_two_pass": "times faster than two-pass"}
    figure, panels = pyplot().subplots(1, len(keys), figsize=(14, 0.28 * len(rows) + 1))
    for panel, (key, title) in zip(panels, keys.items(), strict=True):
        shown = [row for row in reversed(rows) if np.isfinite(row.get(key, np.nan))]
        panel.barh([row["case"] for row in shown], [row[key] for row in shown])
        panel.set_xlabel(title)
        plain(panel)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows, fewer repeats")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--output", help="also write the rows as JSON to this file")
    parser.add_argument("--figure", help="also draw them to this file")
    arguments = parser.parse_args()
    n, repeats = (200_000, 5) if arguments.quick else (1_000_000, 15)
    with threadpool_limits(limits=1, user_api="blas"):
        rows = [row for group in arguments.only for row in GROUPS[group](n, repeats)]
    print(table(rows))
    if arguments.output:
        machine = {"processor": platform.processor(), "cpus": os.cpu_count()}
        versions = {"python": platform.python_version(), "numba": numba.__version__}
        document = {"machine": machine | versions, "rows": rows}
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
