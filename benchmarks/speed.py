"""Speed of the clipped gradient as ratios measured in one run.

The physical limit is memory: a gradient has to read the data once. So the yardstick is the time of
a well-written sum over the same bytes (STREAM read), and the other one a numpy version that reads
the data twice. The contenders of a row are run in turn, many times, and compared by their medians:
CPU time for one thread; wall-clock time for two threads, where a sample counts only if both
processors were at work (CPU / wall >= 1.8).

    python benchmarks/speed.py [--quick] [--output speed.json]
"""

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Callable

import numba
import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from dpglm.kernels.arithmetic import FAST
from dpglm.kernels.threads import run_chunks
from dpglm.line import Line
from dpglm.losses import Hinge, Logistic, Softmax
from dpglm.objective import Objective
from dpglm.privacy.noise import entropy_source, rounded_gaussian

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
    flat = data.reshape(-1)
    n_chunks = -(-flat.size // READ_CHUNK)
    out = np.empty(n_chunks)
    return lambda: run_chunks(lambda a, b: add_up(flat, a, b, out), n_chunks, n_threads)


def two_pass(X, y: np.ndarray, coef: np.ndarray) -> Callable[[], np.ndarray]:
    """Return the same gradient by two library products, with the row norms known in advance."""
    squares = X.multiply(X).sum(axis=1) if sparse.issparse(X) else np.einsum("ij,ij->i", X, X)
    caps = CLIP / np.sqrt(squares + 1.0)
    features, intercept = coef[:-1].astype(X.dtype), coef[-1]
    transposed = X.T

    def gradient():
        margins = y * (X @ features + intercept)
        coefficients = -y * np.minimum(1.0 / (1.0 + np.exp(margins)), caps)
        return np.append(transposed @ coefficients.astype(X.dtype), coefficients.sum())

    return gradient


def two_pass_softmax(X, y: np.ndarray, coef: np.ndarray) -> Callable[[], np.ndarray]:
    """Return the same for K classes."""
    caps = CLIP / np.sqrt(np.einsum("ij,ij->i", X, X) + 1.0)
    rows = np.arange(len(y))

    def gradient():
        scores = X @ coef[:-1] + coef[-1]
        residuals = np.exp(scores - scores.max(axis=1, keepdims=True))
        residuals /= residuals.sum(axis=1, keepdims=True)
        residuals[rows, y] -= 1.0
        norms = np.sqrt(np.einsum("ij,ij->i", residuals, residuals))
        residuals *= np.minimum(1.0, caps / norms)[:, np.newaxis]
        return np.vstack([X.T @ residuals, residuals.sum(axis=0)])

    return gradient


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


def dense_row(name, n, d, dtype, repeats, n_threads=1):
    """Measure the logistic gradient on dense data."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=dtype)
    y = rng.choice([-1.0, 1.0], n)
    coef = rng.normal(scale=0.1, size=d + 1)
    objective = Objective(X, y, Logistic(), n_threads=n_threads)
    calls = {
        "stream": stream_read(X, n_threads),
        "gradient": lambda: objective.gradient_sum(coef, CLIP),
    }
    if n_threads == 1:
        calls["library"] = two_pass(X, y, coef)
    seconds = medians(calls, repeats, n_threads)
    return result(name, seconds, n, X.nbytes)


def numpy_iteration(X, y: np.ndarray, steps: np.ndarray) -> Callable[[], None]:
    """Return the same iteration of a line search as one would write it with numpy."""
    rows = np.hstack([X, np.ones((len(X), 1))])
    coef = np.zeros(rows.shape[1])

    def iterate():
        gradients = (-y / (1 + np.exp(y * (rows @ coef))))[:, np.newaxis] * rows
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        gradients /= np.maximum(1.0, norms / CLIP)
        direction = gradients.sum(axis=0)
        direction /= np.linalg.norm(direction)
        losses = [
            np.minimum(np.logaddexp(0.0, -y * (rows @ (coef - step * direction))), LOSS_CLIP).sum()
            for step in steps
        ]
        coef[:] -= steps[np.argmin(losses)] * direction

    return iterate


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
        calls["library"] = numpy_iteration(X, y, steps)
    return result(name, medians(calls, repeats), n, X.nbytes)


def losses_row(name, n, loss, repeats, bounds):
    """Measure the losses at 21 steps alone: one column costs next to nothing to read."""
    rng = np.random.default_rng(0)
    z, slopes = rng.standard_normal((2, n))
    signed = rng.choice([-1.0, 1.0], n) / rng.uniform(2.0, 5.0, n)
    line = Line(np.zeros(1), z[np.newaxis])
    line.turn(np.ones(1), np.linspace(0.0, 2.0, 21), slopes[np.newaxis])
    targets = (signed, None, np.ones(2))

    def losses():
        line.loss_sums(
            targets, loss, bounds.get("loss_clip"), bounds.get("clip"),
            lambda task, n_chunks, work: run_chunks(task, n_chunks, 1),
        )  # fmt: skip

    return result(name, medians({"gradient": losses}, repeats), n)


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
        "library": two_pass_softmax(X, y, coef),
    }
    return result(name, medians(calls, repeats), n, X.nbytes)


def sparse_row(name, n, d, per_row, repeats):
    """Measure the logistic gradient on CSR data with `per_row` ones in each row."""
    rng = np.random.default_rng(0)
    blocks = np.linspace(0, d, per_row + 1).astype(int)
    columns = np.column_stack(
        [rng.integers(low, high, n) for low, high in itertools.pairwise(blocks)]
    )
    X = sparse.csr_array(
        (np.ones(n * per_row), columns.ravel(), np.arange(0, n * per_row + 1, per_row)),
        shape=(n, d),
    )
    y = rng.choice([-1.0, 1.0], n)
    coef = rng.normal(scale=0.1, size=d + 1)
    objective = Objective(X, y, Logistic(), n_threads=1)
    calls = {
        "gradient": lambda: objective.gradient_sum(coef, CLIP),
        "library": two_pass(X, y, coef),
    }
    return result(name, medians(calls, repeats), n)


def noise_row(name, size, draws):
    """Measure the exactly rounded Gaussian sampler."""
    entropy = entropy_source(None)

    def draw():
        for _ in range(draws):
            rounded_gaussian(size, 2.0**30, entropy)

    return {"case": name, "ms": 1e3 * medians({"noise": draw}, 3)["noise"]}


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
    return row


def measure(quick: bool) -> list[dict]:
    """Run every row."""
    n, repeats = (200_000, 5) if quick else (1_000_000, 15)
    rows = [
        dense_row(f"float64 {n}x100", n, 100, np.float64, repeats),
        dense_row(f"float64 {n}x100, 2 threads", n, 100, np.float64, 3 * repeats, n_threads=2),
        dense_row(f"float32 {n}x100", n, 100, np.float32, repeats),
        dense_row(f"float64 {n}x10", n, 10, np.float64, repeats),
        dense_row(f"float64 {n // 10}x1000", n // 10, 1000, np.float64, repeats),
        dense_row("float64 48842x109 (Adult)", 48_842, 109, np.float64, 5 * repeats),
        softmax_row(f"softmax K=3 {n // 5}x100", n // 5, 100, 3, repeats),
        softmax_row(f"softmax K=10 {n // 5}x100", n // 5, 100, 10, repeats),
        iteration_row(f"AGD iteration {n}x100", n, 100, min(repeats, 7), {"loss_clip": LOSS_CLIP}),
        iteration_row(f"AGD iteration {n}x100, capped", n, 100, repeats, {"clip": CLIP}),
        losses_row(f"21 losses {n}, logistic", n, Logistic(), repeats, {"loss_clip": LOSS_CLIP}),
        losses_row(f"21 losses {n}, logistic, capped", n, Logistic(), repeats, {"clip": CLIP}),
        losses_row(f"21 losses {n}, hinge", n, Hinge(), repeats, {"loss_clip": LOSS_CLIP}),
        sparse_row("CSR 48842x109, 14 per row (Adult)", 48_842, 109, 14, 5 * repeats),
        sparse_row(f"CSR {n}x10000, 20 per row", n, 10_000, 20, repeats),
        noise_row("rounded Gaussian, 100 numbers x 1000 draws", 100, 1000),
    ]
    return rows


COLUMNS = {
    "case": ("case", "<44"),
    "ms": ("ms", ">9.2f"),
    "ns_per_row": ("ns/row", ">8.2f"),
    "stream_gb_s": ("STREAM GB/s", ">12.1f"),
    "percent_of_stream": ("% of STREAM", ">12.0f"),
    "reads": ("reads", ">8.2f"),
    "times_two_pass": ("x two-pass", ">11.2f"),
}


def table(rows: list[dict]) -> str:
    """Plain text."""
    lines = [
        "".join(f"{title:{form.split('.')[0].rstrip('f')}}" for title, form in COLUMNS.values())
    ]
    for row in rows:
        cells = []
        for key, (_, form) in COLUMNS.items():
            width = form.split(".")[0].rstrip("f")
            cells.append(f"{row[key]:{form}}" if key in row else f"{'-':{width}}")
        lines.append("".join(cells))
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows, in seconds")
    parser.add_argument("--output", help="also write the rows as JSON to this file")
    arguments = parser.parse_args()
    with threadpool_limits(limits=1, user_api="blas"):
        rows = measure(arguments.quick)
    print(table(rows))
    if arguments.output:
        machine = {"processor": platform.processor(), "cpus": os.cpu_count()}
        versions = {"python": platform.python_version(), "numba": numba.__version__}
        document = {"machine": machine | versions, "rows": rows}
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
