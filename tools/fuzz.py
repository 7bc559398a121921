"""Fuzz what reads the text of others: ledgers, schemas, odometers, the command line.

``python tools/fuzz.py --runs 1000000`` feeds that many mutated inputs to five targets. Half of the
changes to a JSON document replace, drop or repeat one of its entries, so that many stay nearly
valid; the others are to its bytes. It prints
how many were accepted, how many were refused in words, and every crash with the input that caused
it: any exception other than the documented ones. Where atheris is installed (``pip install
atheris``) its coverage guides the mutations, else they are random. ``--seconds`` bounds the time.
"""

import argparse
import contextlib
import copy
import io
import itertools
import json
import math
import os
import random
import shlex
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

# Not the kernels: their compiler cannot read instrumented code.
GUIDED = atheris is not None and "--random" not in sys.argv
READERS = ["dpglm.privacy.ledger", "dpglm.privacy.events", "dpglm.schema", "dpglm.privacy.odometer",
           "dpglm.datasets", "dpglm.study"]  # fmt: skip
with atheris.instrument_imports(include=READERS) if GUIDED else contextlib.nullcontext():
    from dpglm import DPLogisticRegression, PrivacyOdometer
    from dpglm.privacy.events import ChoiceEvent, FilterEvent, GaussianEvent, SampledGaussianEvent
    from dpglm.privacy.ledger import PrivacyLedger
    from dpglm.privacy.odometer import charge_odometers
    from dpglm.schema import Schema, load_schema
    from dpglm.study import cli as audit_command
    from dpglm.study.cli import main as command_line

LEDGERS = [
    PrivacyLedger.from_events([GaussianEvent(40.0)] * 3, reporting_delta=1e-6),
    PrivacyLedger.from_events(
        [GaussianEvent(9.5), ChoiceEvent(0.1), FilterEvent(mu=0.5)],
        reporting_delta=1e-5,
        neighboring_relation="replace_one",
        assumptions=("the label set is public",),
        seeded=True,
    ),
    PrivacyLedger.from_events([SampledGaussianEvent(0.01, 1.1)] * 9, reporting_delta=1e-6),
    PrivacyLedger.from_events([FilterEvent(rho=0.01)], reporting_delta=1e-8),
]
COMMANDS = [
    "plan --epsilon 1 --delta 1e-6 --n 48842",
    "plan --n 1000 --epsilon 0.5 --features 20 --classes 3 --estimator svm --relation replace_one",
    "plan --n 1000 --epsilon 1 --n-iter 100 --clip 0.5 --alpha 0.01",
    "plan --n 500 --epsilon 2 --estimator agd --preconditioner diagonal",
    "compare --datasets census --epsilons 0.1 1 --folds 3 --estimators svm majority --jobs 0",
    "audit --estimator svm --epsilon 2 --canaries 200 --fits 100 --false-positive-rate 1e-4",
    "audit --all --fits 100 --delta 1e-5",
]
ODDITIES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    1e308,
    -1e308,
    5e-324,
    2**63,
    10**400,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "inf",
    "gaussian",
    "filter",
    "selection",
    "zero_out",
    "replace_one",
    "\x00",
    "\ud800",
    [],
    {},
    [[]],
    {"": None},
    ["a", "a"],
    {"kind": "gaussian"},
]
TOKENS = [
    b"1e308", b"-1", b"0", b"nan", b"NaN", b"Infinity", b"-Infinity", b"1e-320", b"null", b"true",
    b"[]", b"{}", b'""', b"\\u0000", b"\xff", b"9" * 40, b"0.0", b"--help", b"'", b'"', b"\n",
    b" ", b",", b'"count": 0', b'"kind": "filter"', b'"mu": ', b'"rho": 1', b"--sampling-rate 2",
]  # fmt: skip

# A schema with a column of each kind and each policy.
ALL_KINDS = {
    "version": 1,
    "name": "staff",
    "columns": [
        {"name": "age", "lower": 16, "upper": 70, "integer": True, "out_of_bounds": "missing"},
        {"name": "income", "lower": 0, "upper": 1e6, "scale": "asinh", "special_values": [0]},
        {"name": "hired", "kind": "date", "first": "2005-01-01", "last": "2025-12-31"},
        {"name": "member", "kind": "boolean", "missing": False},
        {"name": "grade", "kind": "ordinal", "categories": ["junior", "lead"], "missing": "lead"},
        {"name": "job", "categories": ["cook"], "handle_unknown": "indicator"},
        {"name": "note", "kind": "text", "n_features": 16, "missing": "indicator"},
    ],
    "target": {"name": "left", "labels": [0, 1]},
}


def fuzz_ledger(data: bytes) -> None:
    document = json.loads(data.decode("utf-8", "replace"))
    ledger = PrivacyLedger.from_dict(document)
    assert PrivacyLedger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger
    # Numerical composition takes seconds for extreme events; its inputs are checked elsewhere.
    if not any(event.kind == SampledGaussianEvent.kind for event, _ in ledger.events):
        str(ledger), ledger._repr_html_(), ledger.delta(1.0)
        assert ledger.epsilon() >= 0
        assert not math.isnan(ledger.epsilon())


def fuzz_schema(data: bytes) -> None:
    schema = Schema.from_json(data.decode("utf-8", "replace"))
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.max_row_norm() > 0
    encoder = schema.transformer()
    empty = encoder.transform({name: [] for name in schema.feature_names})
    assert empty.shape == (0, schema.n_encoded) == (0, len(encoder.get_feature_names_out()))
    schema.feature_names, repr(schema)


def fuzz_schema_file(data: bytes) -> None:
    FUZZED_SCHEMA.write_bytes(data)
    assert load_schema(FUZZED_SCHEMA) == Schema.from_json(data.decode("utf-8"))


def fuzz_odometer(data: bytes) -> None:
    FUZZED_FILE.write_bytes(data)
    try:
        str(PrivacyOdometer(FUZZED_FILE))
    finally:
        assert FUZZED_FILE.read_bytes() == data


def fuzz_command_line(data: bytes) -> None:
    arguments = shlex.split(data.decode("utf-8", "replace"))
    # The work is not what is fuzzed here.
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
                # An audit says first what it begins.
                lines = printed.getvalue().rstrip("\n").split("\n")
                told = [line for line in lines if not line.endswith("auditing logistic")]
                assert len(told) == 1 and told[0], printed.getvalue()
    assert code in (0, 2), code


def _above(text: str, most: float) -> bool:
    try:
        return not float(text) <= most
    except ValueError:
        return False


def no_audit(*_, **__):
    raise ValueError("audits take seconds")


SCRATCH = Path(tempfile.mkdtemp())
FUZZED_FILE, FUZZED_SCHEMA = SCRATCH / "odometer.db", SCRATCH / "schema.json"
ENTRIES = [json.dumps(ledger.to_dict()).encode() + b"\n" for ledger in LEDGERS]
with PrivacyOdometer(SCRATCH / "begun", epsilon=9.0) as begun, begun.part("north"):
    charge_odometers(LEDGERS[0], DPLogisticRegression())
ODOMETERS = [(SCRATCH / "begun").read_bytes()]
# Each target with its seeds, the exceptions it documents, and its share of the inputs.
SCHEMAS = [load_schema(name).to_json().encode() for name in ("adult", "bank")]
SCHEMAS.append(json.dumps(ALL_KINDS).encode())
TARGETS = {
    "ledger": (fuzz_ledger, ENTRIES, (ValueError, RecursionError), 60),
    "schema": (fuzz_schema, SCHEMAS, (ValueError, OSError, RecursionError), 23),
    "schema file": (fuzz_schema_file, SCHEMAS, (ValueError, OSError, RecursionError), 5),
    "odometer": (fuzz_odometer, ODOMETERS, (ValueError, OSError), 10),
    "command line": (fuzz_command_line, [c.encode() for c in COMMANDS], (ValueError,), 2),
}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return data with random edits of its JSON entries or of its bytes."""
    *lines, last = data.rstrip(b"\n").split(b"\n")
    if last.startswith(b"{") and rng.random() < 0.5:
        document = json.loads(last)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            change_entry(document, rng)
        return b"\n".join([*lines, json.dumps(document).encode(), b""])
    return with_other_bytes(data, rng)


def change_entry(document: dict, rng: random.Random) -> None:
    """Replace, drop or repeat an entry somewhere inside."""
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(place[key], dict | list) or rng.random() < 0.1:
            break
        place = place[key]
    change = rng.random()
    if change < 0.15:
        del place[key]
    elif change < 0.25 and isinstance(place, list):
        place.append(copy.deepcopy(place[key]))
    elif change < 0.3 and isinstance(place, dict):
        place[rng.choice(["", "mu", "rho", "count", "bound", key + " "])] = place.pop(key)
    elif change < 0.6 and isinstance(place[key], int | float):
        with contextlib.suppress(OverflowError):
            place[key] *= rng.choice([-1, 0.5, 2, 1e-9, 1e9, 10.0 ** rng.randint(-300, 300)])
    else:
        place[key] = copy.deepcopy(rng.choice(ODDITIES))


def with_other_bytes(data: bytes, rng: random.Random) -> bytes:
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
    os.chdir(SCRATCH)  # for the files that commands write
    audit_command.audit_estimator = no_audit
    for target, seeds, *_ in TARGETS.values():
        for seed in seeds:
            target(seed)  # an input that is refused as it is has no mutants that are accepted
    tally, start = Tally(), time.monotonic()
    deadline = start + arguments.seconds
    guide = "by coverage (atheris)" if GUIDED else "at random"

    def finish() -> None:
        print(tally.report(time.monotonic() - start, guide), flush=True)
        # atheris does not return.
        os._exit(1 if tally.crashes else 0)

    if not GUIDED:
        run_at_random(tally, arguments.runs, deadline, arguments.seed)
    else:
        run_guided(tally, arguments.runs, deadline, arguments.seed, finish)
    finish()


if __name__ == "__main__":
    main()
