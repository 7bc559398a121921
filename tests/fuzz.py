"""Fuzz what reads the text of others: ledgers, schemas, odometers, the command line.

``python tests/fuzz.py --runs 1000000`` feeds that many mutated inputs to four targets. It prints
how many were accepted, how many were refused in words, and every crash with the input that caused
it: any exception other than the documented ones. Where atheris is installed (``pip install
atheris``) its coverage guides the mutations, else they are random. ``--seconds`` bounds the time.
"""

import argparse
import contextlib
import io
import itertools
import json
import math
import random
import shlex
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from dpglm import PrivacyOdometer
from dpglm.cli import main as command_line
from dpglm.privacy.events import FilterEvent, GaussianEvent, PoissonSampledEvent, SelectionEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.schema import Schema, load_schema

LEDGERS = [
    PrivacyLedger.from_events([GaussianEvent(40.0)] * 3, reporting_delta=1e-6),
    PrivacyLedger.from_events(
        [GaussianEvent(9.5), SelectionEvent(0.1), FilterEvent(mu=0.5)],
        reporting_delta=1e-5,
        neighboring_relation="replace_one",
        assumptions=("the label set is public",),
        seeded=True,
    ),
    PrivacyLedger.from_events([PoissonSampledEvent(0.01, 1.1)] * 9, reporting_delta=1e-6),
    PrivacyLedger.from_events([FilterEvent(rho=0.01)], reporting_delta=1e-8),
]
COMMANDS = [
    "plan --epsilon 1 --delta 1e-6 --n 48842",
    "plan --n 1000 --epsilon 0.5 --features 20 --classes 3 --estimator svm --relation replace_one",
    "plan --n 1000 --noise-multiplier 40 --n-iter 100 --clip 0.5 --alpha 0.01",
    "plan --n 500 --epsilon 2 --estimator agd --preconditioner diagonal",
    "compare --dataset census --epsilons 0.1,1 --folds 3 --estimators svm,majority --jobs 0",
]
TOKENS = [
    b"1e308", b"-1", b"0", b"nan", b"NaN", b"Infinity", b"-Infinity", b"1e-320", b"null", b"true",
    b"[]", b"{}", b'""', b"\\u0000", b"\xff", b"9" * 40, b"0.0", b"--help", b"'", b'"', b"\n",
    b" ", b",", b'"count": 0', b'"kind": "filter"', b'"mu": ', b'"rho": 1', b"--sampling-rate 2",
]  # fmt: skip


def fuzz_ledger(data: bytes) -> None:
    document = json.loads(data.decode("utf-8", "replace"))
    ledger = PrivacyLedger.from_dict(document)
    assert PrivacyLedger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger
    # Numerical composition takes seconds for extreme events; its inputs are checked elsewhere.
    if not any(event.kind == PoissonSampledEvent.kind for event, _ in ledger.events):
        str(ledger), ledger._repr_html_(), ledger.delta(1.0)
        assert ledger.epsilon() >= 0
        assert not math.isnan(ledger.epsilon())


def fuzz_schema(data: bytes) -> None:
    schema = Schema.from_json(data.decode("utf-8", "replace"))
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.row_bound() > 0
    schema.transformer(), schema.feature_names, repr(schema)


def fuzz_odometer(data: bytes) -> None:
    FUZZED_FILE.write_bytes(data)
    try:
        str(PrivacyOdometer(FUZZED_FILE))
    finally:
        assert FUZZED_FILE.read_bytes() == data


def fuzz_command_line(data: bytes) -> None:
    arguments = shlex.split(data.decode("utf-8", "replace"))
    # Work, and files, are not what is fuzzed here.
    if "compare" in arguments:
        arguments += ["--jobs", "0"]
    for option, most in (("--n-iter", 1000), ("--sampling-rate", 0)):
        for given, value in itertools.pairwise(arguments):
            if given.startswith(option[:5]) and _above(value, most):
                return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = command_line(arguments)
        except SystemExit as exit_:
            code = exit_.code
            if code == 2:
                assert printed.getvalue().count("\n") == 1, printed.getvalue()
    assert code in (0, 2), code


def _above(text: str, most: float) -> bool:
    try:
        return not float(text) <= most
    except ValueError:
        return False


FUZZED_FILE = Path(tempfile.mkdtemp()) / "odometer.jsonl"
HEADER = b'{"format": "dpglm odometer", "version": 1}\n'
ENTRIES = [json.dumps(ledger.to_dict()).encode() + b"\n" for ledger in LEDGERS]
# Each target with its seeds, the exceptions it documents, and its share of the inputs.
TARGETS = {
    "ledger": (fuzz_ledger, ENTRIES, (ValueError, RecursionError), 60),
    "schema": (
        fuzz_schema,
        [load_schema(name).to_json().encode() for name in ("adult", "bank")],
        (ValueError, FileNotFoundError, OSError, RecursionError),
        28,
    ),
    "odometer": (fuzz_odometer, [HEADER + entry for entry in ENTRIES], (ValueError,), 10),
    "command line": (fuzz_command_line, [c.encode() for c in COMMANDS], (ValueError,), 2),
}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return data with one to six random edits."""
    for _ in range(rng.randint(1, 6)):
        numbers = (rng.uniform(-2, 2), rng.randint(-9, 99), 10.0 ** rng.randint(-330, 308))
        start = rng.randrange(len(data) + 1)
        stop = min(len(data), start + rng.choice([0, 0, 1, 2, 8, 40]))
        middle = rng.choice(
            [
                b"",
                rng.choice(TOKENS),
                bytes([rng.randrange(256)]),
                data[start:stop] * 2,
                str(rng.choice(numbers)).encode(),
            ]
        )
        data = data[:start] + middle + data[stop:]
    return data


class Tally:
    """Runs inputs and counts what became of them."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.crashes: list[str] = []

    def run(self, name: str, data: bytes) -> None:
        target, _, documented, _ = TARGETS[name]
        try:
            target(data)
        except documented:
            self.outcomes[name, "refused"] += 1
        except Exception:
            self.outcomes[name, "crashed"] += 1
            self.crashes.append(f"{name}: {data!r}\n{traceback.format_exc()}")
        else:
            self.outcomes[name, "accepted"] += 1

    @property
    def n_runs(self) -> int:
        return sum(self.outcomes.values())

    def report(self, seconds: float, guide: str) -> str:
        lines = [f"{self.n_runs:,} inputs in {seconds:.0f} s, mutated {guide}"]
        for name in TARGETS:
            counts = {o: self.outcomes[name, o] for o in ("accepted", "refused", "crashed")}
            lines.append(f"  {name:<14}" + "".join(f"{n:>10,} {o}" for o, n in counts.items()))
        shown = [f"\n{crash}" for crash in self.crashes[:10]]
        return "\n".join([*lines, *shown])


def choose(rng: random.Random) -> str:
    return rng.choices(list(TARGETS), [share for *_, share in TARGETS.values()])[0]


def run_at_random(tally: Tally, runs: int, deadline: float, seed: int) -> None:
    rng = random.Random(seed)
    while tally.n_runs < runs and time.monotonic() < deadline:
        name = choose(rng)
        tally.run(name, mutated(rng.choice(TARGETS[name][1]), rng))


def run_guided(tally: Tally, runs: int, deadline: float, seed: int, finish) -> None:
    """Let atheris choose the bytes: the first picks the target, the second the seed to mutate."""
    import atheris

    def one_input(data: bytes) -> None:
        rng = random.Random(data)
        name = choose(random.Random(data[:1]))
        if data[1:2] < b"\x80":
            seeds = TARGETS[name][1]
            tally.run(name, mutated(seeds[sum(data[:2]) % len(seeds)], rng))
        else:
            tally.run(name, data[2:])
        if tally.n_runs >= runs or time.monotonic() > deadline:
            finish()

    corpus = Path(tempfile.mkdtemp())
    for first in range(256):
        name = choose(random.Random(bytes([first])))
        for i, data in enumerate(TARGETS[name][1]):
            (corpus / f"{first}-{i}").write_bytes(bytes([first, 128]) + data)
    atheris.Setup([sys.argv[0], f"-seed={seed}", "-verbosity=0", str(corpus)], one_input)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--random", action="store_true", help="do without atheris")
    arguments = parser.parse_args()
    tally, start = Tally(), time.monotonic()
    deadline = start + arguments.seconds
    try:
        import atheris
    except ImportError:
        atheris = None
    guide = "at random" if atheris is None or arguments.random else "by coverage (atheris)"

    def finish() -> None:
        print(tally.report(time.monotonic() - start, guide), flush=True)
        # atheris does not return.
        import os

        os._exit(1 if tally.crashes else 0)

    if guide == "at random":
        run_at_random(tally, arguments.runs, deadline, arguments.seed)
    else:
        atheris.instrument_all()
        run_guided(tally, arguments.runs, deadline, arguments.seed, finish)
    finish()


if __name__ == "__main__":
    main()
