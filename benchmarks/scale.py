"""Cost of an iteration against the size of the data, in memory and out of core.

    python benchmarks/scale.py [--quick] [--dask] [--default ROWS] [--folder DIR]
                               [--output scale.json] [--figure scale.png]

Out of core, a memory map of float32 is fitted in a process of its own. Every iteration is timed
from a cold start (its pages are dropped from the cache with posix_fadvise) and followed, in the
same run and as cold, by a plain sequential read of the same file: the yardstick. A sample is quiet
if other processes used less than a fifth of a processor meanwhile; medians are over the quiet ones,
and where there are none, the least of all stands. Sizes take turns, since the rate of a disk
drifts. The slope is over files that exceed the gigabyte that a fit may keep: smaller ones would fit
into memory, and are slow by the start of a read. The largest file has 12 GB (1 GB with --quick),
lies in a temporary directory and is removed in the end; this part is left out, with a message, on a
disk with less than 20 GB free. Linux only.

The slope is that of a fit without a preconditioner. The default one reads the largest file as well:
its first iteration, which computes norms that later ones know, is apart, and the reads are all that
it made of the whole file, those before the first iteration included. A Parquet file is fitted with
default parameters, with and without a cache, beside a memory map of its encoded rows, all from the
cache of the system.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.callback import FitCallback
from threadpoolctl import threadpool_limits

from dpglm import DPLogisticRegression
from dpglm.losses import Logistic
from dpglm.schema import NumericColumn, Schema, Target
from dpglm.sources.arrays import ArraySource
from dpglm.sources.base import BLOCK_BYTES
from dpglm.sources.parquet import ParquetSource
from dpglm.sums.objective import Objective

N_FEATURES = 100
CLIP = 1.0
LEAST_FREE = {"quick": 2e9, "full": 20e9}
WRITTEN_ROWS = 2**17
# What a fit may keep in memory: data are out of core from there on, and the slope begins there.
LEAST_BYTES = 2**30
ROUNDS = 3
# Processors that others may use while a sample is taken that counts.
MOST_OTHERS = 0.2


def labels(n_rows: int) -> np.ndarray:
    """Return labels of one byte each."""
    return np.random.default_rng(1).integers(0, 2, n_rows, dtype=np.int8)


def write_rows(path: Path, n_rows: int) -> None:
    """Write float32 rows to a file, and to the disk."""
    block = np.random.default_rng(0).standard_normal((WRITTEN_ROWS, N_FEATURES), dtype=np.float32)
    with open(path, "wb") as file:
        for start in range(0, n_rows, WRITTEN_ROWS):
            file.write(block[: n_rows - start])
        file.flush()
        os.fsync(file.fileno())


def drop_pages(path: Path) -> None:
    """Forget what the system has cached of a file."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_sequentially(path: Path, n_bytes: int) -> None:
    """Read the beginning of a file."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, n_bytes, os.POSIX_FADV_SEQUENTIAL)
        while n_bytes > 0 and (count := file.readinto(buffer[:n_bytes])):
            n_bytes -= count


class Stopwatch:
    """Wall-clock seconds, and how many processors other processes kept busy meanwhile."""

    def __init__(self) -> None:
        self._started, self._others = time.perf_counter(), self._seconds_of_others()

    def read(self) -> tuple[float, float]:
        """Return both since the start."""
        seconds = time.perf_counter() - self._started
        return seconds, (self._seconds_of_others() - self._others) / seconds

    @staticmethod
    def _seconds_of_others():
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, _, _, irq, softirq, steal = map(int, first)
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy - time.process_time()


class ColdIterations(FitCallback):
    """Times each iteration of a fit from a cold start, and a plain read after it."""

    def __init__(self, path: Path, n_bytes: int) -> None:
        self.path, self.n_bytes = path, n_bytes
        self.samples = []
        self._read_before = bytes_read()

    def reads(self) -> float:
        """Return how often the fit has read the file so far."""
        return (bytes_read() - self._read_before) / self.n_bytes - len(self.samples)

    def setup(self, estimator, context):
        """Nothing to prepare."""

    def on_fit_task_begin(self, estimator, context):
        if context.task_name != "iteration":
            self._start()

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "iteration":
            iteration = self._watch.read()
            self._start()
            read_sequentially(self.path, self.n_bytes)
            self.samples.append((*iteration, *self._watch.read()))
            self._start()

    def teardown(self, estimator, context):
        """Nothing to clear up."""

    def _start(self):
        drop_pages(self.path)
        self._watch = Stopwatch()


class PeakMemory(threading.Thread):
    """Follows the anonymous resident memory of this process, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._stopped = 0, threading.Event()

    def run(self):
        while not self._stopped.wait(0.005):
            self.peak = max(self.peak, anonymous_memory())

    def stop(self) -> int:
        """Return the peak."""
        self._stopped.set()
        self.join()
        return self.peak


def anonymous_memory() -> int:
    """Return RssAnon of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/self/status does not tell RssAnon")


def bytes_read() -> int:
    """Return what this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


def fit_cold(path: Path, n_rows: int, parameters: dict, max_iter: int) -> dict:
    """Fit the first rows of a file out of core; meant for a process of its own."""
    rows = np.memmap(path, np.float32, "r", shape=(n_rows, N_FEATURES))
    source = ArraySource(rows, labels(n_rows), **parameters.pop("source", {}))
    timer = ColdIterations(path, rows.nbytes)
    model = DPLogisticRegression(classes=[0, 1], max_iter=max_iter, delta=1e-9, **parameters)
    model.set_callbacks(timer)
    memory = PeakMemory()
    memory.start()
    model.fit(source)
    return {
        # It compiles or loads the kernels.
        "first_seconds": timer.samples[0][0],
        "samples": timer.samples[1:],
        "peak_anonymous_mib": memory.stop() / 2**20,
        "reads": timer.reads(),
        "n_iter": max_iter,
    }


def summarised(fits: list[dict], n_rows: int) -> dict:
    """Medians over the quiet samples of some fits, or the least of all where none is quiet."""
    samples = np.array([sample for fit in fits for sample in fit["samples"]])
    quiet = samples[samples[:, 1::2].max(axis=1) < MOST_OTHERS]
    if len(quiet):
        (seconds, _, read, _), ratio = (
            np.median(quiet, axis=0),
            np.median(quiet[:, 2] / quiet[:, 0]),
        )
    else:
        seconds, _, read, _ = samples.min(axis=0)
        ratio = read / seconds
    gigabytes = n_rows * N_FEATURES * 4 / 1e9
    return {
        "n_rows": n_rows,
        "n_features": N_FEATURES,
        "gigabytes": gigabytes,
        "seconds": float(seconds),
        "read_seconds": float(read),
        "gb_per_s": gigabytes / float(seconds),
        "percent_of_read": 100 * float(ratio),
        "quiet_samples": len(quiet),
        "peak_anonymous_mib": max(fit["peak_anonymous_mib"] for fit in fits),
        **{name: fits[-1][name] for name in ("first_seconds", "reads", "n_iter")},
    }


def fit_apart(path: Path, n_rows: int, parameters: dict, max_iter: int) -> dict:
    """Fit in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(fit_cold, (path, n_rows, parameters, max_iter))


def default_fits(path: Path, *sizes: int) -> list[dict]:
    """Measure fits of the first rows of a file with default parameters."""
    return [summarised([fit_apart(path, n_rows, {}, 6)], n_rows) for n_rows in sizes]


def out_of_core(folder: Path, quick: bool) -> dict[str, list[dict]]:
    """Measure fits of a file larger than what they may keep in memory."""
    n_rows = 2_500_000 if quick else 30_000_000
    free, needed = shutil.disk_usage(folder).free, LEAST_FREE["quick" if quick else "full"]
    if free < needed:
        print(f"out of core: left out, {free / 1e9:.0f} GB are free of {needed / 1e9:.0f} needed")
        return {}
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "rows.bin"
        write_rows(path, n_rows)
        plain = {"preconditioner": None}
        sizes = {n_rows // divisor: [] for divisor in (30, 10, 5, 2, 1)}
        # In turns: the rate of a disk drifts.
        for _ in range(ROUNDS):
            for size, fits in sizes.items():
                fits.append(fit_apart(path, size, dict(plain), 2 + min(8, 2 * n_rows // size)))
        against_n = [summarised(fits, size) for size, fits in sizes.items()]
        blocks = {2**k: [] for k in (19, 21, 22, 23, 24, 26)}
        for _ in range(ROUNDS):
            for size, fits in blocks.items():
                parameters = {**plain, "source": {"block_rows": size // (4 * N_FEATURES)}}
                fits.append(fit_apart(path, n_rows // 10, parameters, 5))
        blocks = [
            summarised(fits, n_rows // 10) | {"block_bytes": size} for size, fits in blocks.items()
        ]
        default = default_fits(path, n_rows // 10, n_rows)
    return {"out_of_core": against_n, "block_size": blocks, "default_fit": default}


class IterationTimes(FitCallback):
    """Notes when each iteration ends."""

    def __init__(self) -> None:
        self.ends = []

    def setup(self, estimator, context):
        """Nothing to prepare."""

    def on_fit_task_begin(self, estimator, context):
        """Nothing to note."""

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "iteration":
            self.ends.append(time.perf_counter())

    def teardown(self, estimator, context):
        """Nothing to clear up."""


def encoded_once(folder: Path, quick: bool) -> list[dict]:
    """Measure default fits of Parquet files, and of a memory map of what they encode to."""
    import pandas as pd

    n_rows = 250_000 if quick else 2_500_000
    block = np.random.default_rng(0).uniform(size=(WRITTEN_ROWS, N_FEATURES))
    y = labels(n_rows)
    columns = [NumericColumn(f"x{j}", 0, 1) for j in range(N_FEATURES)]
    schema = Schema("uniform", columns, Target("y", [0, 1]))
    results = []
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "rows.bin"
        rows = np.memmap(path, float, "w+", shape=(n_rows, N_FEATURES))
        for start in range(0, n_rows, WRITTEN_ROWS):
            part = rows[start : start + WRITTEN_ROWS]
            part[:] = block[: len(part)]
            table = pd.DataFrame(part, columns=schema.feature_names)
            table.assign(y=y[start : start + len(part)]).to_parquet(path.with_suffix(f".{start}"))
        files = Path(temporary) / "files"
        files.mkdir()
        for file in path.parent.glob("rows.*[0-9]"):
            file.rename(files / f"{int(file.suffix[1:]):09}.parquet")
        sources = {
            "memory map": ArraySource(rows, y),
            "Parquet": ParquetSource(files, schema),
            "Parquet, cache=folder": ParquetSource(files, schema, cache=folder),
        }
        for name, source in sources.items():
            timer = IterationTimes()
            model = DPLogisticRegression(classes=[0, 1], max_iter=5, delta=1e-9)
            started = time.perf_counter()
            model.set_callbacks(timer).fit(source)
            seconds = np.diff(timer.ends)
            results.append(
                {
                    "source": name,
                    "gigabytes": rows.nbytes / 1e9,
                    "first_seconds": timer.ends[0] - started,
                    "seconds": float(np.median(seconds)),
                    "least_seconds": float(seconds.min()),
                }
            )
    return results


def on_workers(quick: bool) -> list[dict]:
    """Measure iterations over tiny partitions on a local dask.distributed cluster."""
    from dask import array
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None)
    results, max_iter = [], 30 if quick else 100
    with cluster, Client(cluster):
        for n_partitions in (2, 4, 8, 16, 64):
            X = array.random.default_rng(0).normal(size=(10 * n_partitions, 10), chunks=10)
            y, timer = X[:, 0] > 0, IterationTimes()
            model = DPLogisticRegression(max_iter=max_iter, delta=1e-9, preconditioner=None)
            model.set_callbacks(timer).fit(X, y)
            # The first iterations compile, or load, the kernels.
            seconds = np.diff(timer.ends)[5:]
            results.append(
                {
                    "n_partitions": n_partitions,
                    "milliseconds": 1e3 * float(np.median(seconds)),
                    "least_milliseconds": 1e3 * float(seconds.min()),
                }
            )
    return results


def in_memory(n_rows: int, n_features: int, repeats: int) -> dict:
    """Measure the clipped gradient of float32 rows in memory, by the least CPU time."""
    block = np.random.default_rng(0).standard_normal((WRITTEN_ROWS, n_features), dtype=np.float32)
    rows = np.resize(block, (n_rows, n_features))
    objective = Objective(rows, 2.0 * labels(n_rows) - 1.0, Logistic(), n_threads=1)
    coef = np.full(n_features + 1, 0.01)
    objective.gradient_sum(coef, CLIP)
    samples = []
    for _ in range(repeats):
        started = time.process_time()
        objective.gradient_sum(coef, CLIP)
        samples.append(time.process_time() - started)
    seconds = min(samples)
    return {
        "n_rows": n_rows,
        "n_features": n_features,
        "seconds": seconds,
        "ns_per_number": 1e9 * seconds / rows.size,
    }


def slope(rows: list[dict], least: int = 0) -> float:
    """Return the slope of log seconds in log rows."""
    rows = [row for row in rows if row["n_rows"] >= least]
    logs = np.log([[row["n_rows"], row["seconds"]] for row in rows])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def only_default(folder: Path, n_rows: int, quick: bool) -> dict:
    """Run the parts that fit with default parameters."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "rows.bin"
        write_rows(path, n_rows)
        default = default_fits(path, n_rows)
    return {"default_fit": default, "parquet": encoded_once(folder, quick), "slopes": {}}


def measure(folder: Path, quick: bool, dask: bool) -> dict:
    """Run every part."""
    largest = 1_000_000 if quick else 10_000_000
    sizes = [largest // divisor for divisor in (1000, 100, 10, 5, 2, 1)]
    results = {
        "in_memory": [in_memory(n, N_FEATURES, 9) for n in sizes],
        "features": [in_memory(largest // d, d, 9) for d in (10, 30, 100, 300, 1000)],
        **out_of_core(folder, quick),
        "parquet": encoded_once(folder, quick),
    }
    if dask:
        results["dask"] = on_workers(quick)
    results["slopes"] = {"in_memory": slope(results["in_memory"], largest // 10)}
    if "out_of_core" in results:
        least = LEAST_BYTES // (4 * N_FEATURES) // (10 if quick else 1)
        results["slopes"]["out_of_core"] = slope(results["out_of_core"], least)
    return results


def table(results: dict) -> str:
    """Plain text."""
    lines = ["in memory, float32, one thread        rows  columns         ms  ns/number"]
    for row in results.get("in_memory", []) + results.get("features", []):
        lines.append(
            f"{'':34}{row['n_rows']:>8}{row['n_features']:>9}{1e3 * row['seconds']:>11.2f}"
            f"{row['ns_per_number']:>11.3f}"
        )
    names = {"out_of_core": "", "block_size": "blocks of", "default_fit": "default parameters"}
    lines.append(
        "out of core, float32, cold     GB    s/iteration   GB/s  % of read  RssAnon MiB  quiet"
    )
    for part, name in names.items():
        for row in results.get(part, []):
            size = f" {row['block_bytes'] / 2**20:g} MiB" if "block_bytes" in row else ""
            lines.append(
                f"{name + size:25}{row['gigabytes']:>8.2f}{row['seconds']:>15.3f}"
                f"{row['gb_per_s']:>7.2f}{row['percent_of_read']:>11.0f}"
                f"{row['peak_anonymous_mib']:>13.0f}{row['quiet_samples']:>7}"
            )
    for row in results.get("default_fit", []):
        lines.append(
            f"default parameters, {row['gigabytes']:.2f} GB: {row['reads']:.1f} reads for "
            f"{row['n_iter']} iterations, the first of {row['first_seconds']:.2f} s"
        )
    lines.append("default fit, float64      GB   until 1st iteration, s   s/iteration   least")
    for row in results["parquet"]:
        lines.append(
            f"{row['source']:22}{row['gigabytes']:>6.2f}{row['first_seconds']:>20.2f}"
            f"{row['seconds']:>17.3f}{row['least_seconds']:>11.3f}"
        )
    if "dask" in results:
        lines.append("two dask workers          partitions   ms/iteration, median and least")
    for row in results.get("dask", []):
        lines.append(
            f"{'':26}{row['n_partitions']:>10}{row['milliseconds']:>15.1f}"
            f"{row['least_milliseconds']:>9.1f}"
        )
    for part, value in results["slopes"].items():
        lines.append(f"slope of log seconds in log rows, {part.replace('_', ' ')}: {value:.3f}")
    return "\n".join(lines)


def draw(results: dict, name: str) -> None:
    """Write the figure."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (sizes, blocks) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for part, label in (("in_memory", "in memory, one thread"), ("out_of_core", "out of core")):
        rows = results.get(part, [])
        if rows:
            n_rows, seconds = zip(*((row["n_rows"], row["seconds"]) for row in rows), strict=True)
            sizes.loglog(n_rows, seconds, "o-", label=label)
    sizes.set(xlabel="rows of 100 float32", ylabel="seconds per iteration")
    sizes.legend()
    for row in results.get("block_size", []):
        blocks.semilogx(row["block_bytes"], row["percent_of_read"], "o", color="C1")
    blocks.axhline(90, color="gray", linestyle=":")
    blocks.set(xlabel="bytes of a block", ylabel="% of the sequential read rate", ylim=(0, 110))
    figure.savefig(name, dpi=150)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--dask", action="store_true", help="also time local dask workers")
    parser.add_argument("--default", type=int, metavar="ROWS", help="only default fits of a file")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", help="also write the results as JSON to this file")
    parser.add_argument("--figure", help="also draw the results to this file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(limits=1, user_api="blas"):
        folder, quick = arguments.folder, arguments.quick
        if arguments.default:
            results = only_default(folder, arguments.default, quick)
        else:
            results = measure(folder, quick, arguments.dask)
    print(table(results))
    if arguments.output:
        machine = {"processor": platform.processor(), "cpus": os.cpu_count()}
        document = {"machine": machine, **results}
        Path(arguments.output).write_text(json.dumps(document, indent=1), encoding="utf-8")
    if arguments.figure:
        draw(results, arguments.figure)


if __name__ == "__main__":
    main()
