"""Noise, rounding, entropy and pickles under conditions that were chosen to break them."""

import decimal
import gc
import math
import os
import pickle
import re
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import ndtri
from scipy.stats import chisquare, kstest, norm
from sklearn.base import clone
from strategies import EVERY
from tapes import Failing, Noted, on_tape

from dpglm.audit.recorder import ReleaseRecorder
from dpglm.losses import Hinge
from dpglm.privacy import noise
from dpglm.privacy.noise import (
    entropy_source,
    rounded_gaussian,
    rounded_laplace,
    seeded_noise,
)
from dpglm.privacy.vault import GaussianSum, Vault
from dpglm.sources.arrays import ArraySource
from dpglm.sums.blocks import BlockObjective
from dpglm.sums.objective import Objective

# Those that learn from numbers of 0 and more, or from labels.
NAMES = sorted({*EVERY} - {"gamma"})


class FarTail:
    """Words whose first bits after the sign are zero: tails below ``2**-n_bits``."""

    seeded = True

    def __init__(self, n_bits):
        self._source, self._n_bits, self.words_drawn = entropy_source(0), n_bits, 0

    def words(self, count):
        self.words_drawn += count
        words = self._source.words(count)
        if self.words_drawn == count:
            words = words & np.uint64(2 ** (64 - self._n_bits) - 1)
        return words


@pytest.mark.parametrize(("n_bits", "size"), [(10, 20_000), (20, 20_000), (30, 500)])
def test_the_law_holds_far_out_in_the_tails(n_bits, size):
    """Given a tail below 2^-30, about 1e-9, its probability is uniform below that."""
    scale = 2.0**30
    draws = rounded_gaussian(size, scale, FarTail(n_bits))
    tails = norm.sf(np.abs(draws) / scale)
    # The first of the bits is spent on the sign.
    most = 2.0 ** -(n_bits + 1)
    assert tails.max() < most * (1 + 1e-6)
    assert np.abs(draws).min() > -ndtri(most) * scale * (1 - 1e-6)
    assert kstest(tails / most, "uniform").pvalue > 1e-4
    assert chisquare(np.bincount(draws < 0)).pvalue > 1e-4
    assert chisquare(np.bincount(draws & 7, minlength=8)).pvalue > 1e-4
    laplace = np.abs(rounded_laplace(size, scale, FarTail(n_bits))) / scale
    assert kstest(np.exp(-laplace) * 2.0**n_bits, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("noise_multiplier", [1e-3, 0.3, 1.0, 17.0, 1e6])
@pytest.mark.parametrize("sensitivity", [1e-240, 3e-7, 1.0, 1.1, 5e200])
def test_nothing_is_ever_released_off_the_grid(sensitivity, noise_multiplier):
    """Neither the size nor the bits of a sum choose the grid, and nothing is between its lines."""
    rng = np.random.default_rng(0)
    for slack in (0.0, sensitivity * 1e-6, sensitivity / 3):
        mechanism = GaussianSum(sensitivity, noise_multiplier, slack)
        mantissa, exponent = math.frexp(mechanism.grid)
        assert mantissa == 0.5
        std = mechanism.noise_std(64)
        assert 2.0**29 < std / mechanism.grid < 2.0**33
        for size in (0.0, 1e-9, 1.0, 1e6, 1e12):
            value = rng.normal(size=64) * size * sensitivity
            noisy = mechanism.release(value, entropy_source())
            for number in noisy.tolist():
                numerator, denominator = number.as_integer_ratio()
                places = denominator.bit_length() - (numerator & -numerator).bit_length()
                assert number == 0 or -places >= exponent - 1


def exact_sum(X, signs, basis, clip):
    """Sum of the clipped gradients of the hinge at zero, in 60 digits."""
    with decimal.localcontext(prec=60):
        number, total = decimal.Decimal, [decimal.Decimal(0)] * basis.shape[1]
        columns = [[number(v) for v in column] for column in basis.T.tolist()]
        clip = number(clip)
        for row, sign in zip(X.astype(np.float64).tolist(), signs.tolist(), strict=True):
            row = [*map(number, row), number(1)]
            image = [sum(map(number.__mul__, row, column)) for column in columns]
            length = sum(v * v for v in image).sqrt()
            factor = -number(sign) * min(number(1), clip / length)
            total = [t + factor * v for t, v in zip(total, image, strict=True)]
        return total


def adversarial(kind, n, d):
    rng = np.random.default_rng(11)
    signs = np.where(np.arange(n) % 2, 1.0, -1.0)
    if kind == "huge and tiny":
        X = rng.normal(size=(n, d)) * np.where(np.arange(n) % 3, 1e-12, 1e12)[:, np.newaxis]
    elif kind == "cancelling":
        X = np.repeat(rng.normal(size=(n // 2, d)), 2, axis=0)
        X[1::2] *= 1 + 2.0**-40
    elif kind == "long tail of dust":
        X = np.full((n, d), 1e-17)
        X[0] = 1.0
        signs = np.ones(n)
    else:
        X = np.full((n, d), 1 / 3)
        signs = np.ones(n)
    return X, signs


KINDS = ["huge and tiny", "cancelling", "long tail of dust", "equal"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", [1.0, 1e4])
def test_sums_are_within_the_slack_that_is_charged(kind, condition, monkeypatch):
    monkeypatch.setattr("dpglm.sums.objective._MIN_THREADED_WORK", 1)
    n, d, clip = 1100, 3, 0.1
    X, signs = adversarial(kind, n, d)
    rng = np.random.default_rng(12)
    left, right = (np.linalg.qr(rng.normal(size=(d + 1, d + 1)))[0] for _ in range(2))
    basis = np.eye(d + 1) if condition == 1 else left * np.geomspace(1, condition, d + 1) @ right
    exact = {dtype: exact_sum(X.astype(dtype), signs, basis, clip) for dtype in (float, "float32")}

    def objective(X, signs, n_threads=2):
        plain = Objective(X, signs, Hinge(), n_threads=n_threads)
        return plain if condition == 1 else plain.in_basis(basis)

    found, single = [], X.astype(np.float32)
    for stored, n_threads in (
        (X, 1), (X, 2), (np.asfortranarray(X), 2), (csr_array(X), 2),
        (single, 1), (np.asfortranarray(single), 1),
    ):  # fmt: skip
        holder = objective(stored, signs, n_threads)
        found.append((stored.dtype.name, holder.gradient_sum(np.zeros(d + 1), clip)))
    blocks = ArraySource(X, signs, block_rows=100)
    whole = BlockObjective(blocks.blocks(objective), objective(X[:1], signs[:1]))
    found.append(("float64", whole.gradient_sum(np.zeros(d + 1), clip)))
    slack = decimal.Decimal(holder.rounding_slack(n)) * decimal.Decimal(clip)
    for dtype, total in found:
        truth = exact["float32" if dtype == "float32" else float]
        with decimal.localcontext(prec=60):
            terms = zip(total.tolist(), truth, strict=True)
            error = sum((decimal.Decimal(a) - b) ** 2 for a, b in terms).sqrt()
        # Half of it, because it is charged for two data sets.
        assert error <= slack / 2


X, Y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2


def raising(count):
    raise OSError("no entropy")


def a_byte_less(count):
    return bytes(count - 1)


@pytest.mark.parametrize("fault", [raising, a_byte_less])
@pytest.mark.parametrize("name", NAMES)
def test_entropy_that_fails_stops_the_fit_and_is_never_replaced(name, fault, monkeypatch):
    """Wherever it fails, in a draw of noise or of what is checked, and at what it had released."""
    genuine, calls = os.urandom, []

    def urandom(count):
        calls.append(count)
        return genuine(count) if len(calls) < fails_at else fault(count)

    for generator in ("random", "bytes", "normal", "standard_normal", "randint"):
        monkeypatch.setattr(np.random, generator, lambda *_: pytest.fail("replaced"))
    monkeypatch.setattr(noise, "os", SimpleNamespace(urandom=urandom))
    charged = []
    for fails_at in range(1, 5):
        calls.clear()
        model = clone(EVERY[name])
        with on_tape(Noted()) as noted:
            try:
                model.fit(X, Y)
            except (OSError, ValueError) as caught:
                error = caught
        if len(calls) < fails_at:
            break
        assert re.search(r"no entropy|buffer", str(error))
        assert len(calls) == fails_at and len(noted.events) < fails_at
        charged.append(getattr(error, "privacy_ledger", None))
        assert charged[-1] == model.plan(*X.shape).ledger or not noted.events
        assert not [key for key in vars(model) if key.endswith("_")]
    assert model.plan(*X.shape).ledger in charged


def test_words_of_forked_children_never_repeat(monkeypatch):
    monkeypatch.setattr(noise, "os", os)
    source = entropy_source()
    words = source.words(64).tolist()
    for _ in range(4):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, source.words(64).tobytes())
            os._exit(0)
        os.waitpid(child, 0)
        words.extend(np.frombuffer(os.read(reader, 512), dtype=np.uint64).tolist())
    words.extend(source.words(64).tolist())
    assert len(set(words)) == len(words) == 6 * 64


def reachable(root):
    """All objects that a model holds, apart from classes, modules and functions."""
    seen, queue = {}, [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, type | type(os) | type(reachable)):
            continue
        seen[id(item)] = item
        queue.extend(gc.get_referents(item))
    return list(seen.values())


STORED = [*((name, np.array) for name in NAMES), ("full", csr_array)]


@pytest.mark.parametrize(("name", "store"), STORED)
def test_a_fitted_model_holds_no_data_no_exact_sum_and_no_source_of_noise(
    name, store, caplog, capsys
):
    caplog.set_level("DEBUG", logger="dpglm")
    n = 61
    rng = np.random.default_rng(1)
    data, labels = rng.normal(size=(n, 3)) / 7, (np.arange(n) % 3 == 0).astype(int)
    with on_tape() as recorded:
        model = clone(EVERY[name]).fit(store(data), labels)
    exact_values = [v for release in recorded.releases for v in release.exact.ravel().tolist()]
    assert exact_values
    del recorded
    content, text = pickle.dumps(model), repr(model) + model._repr_html_() + repr(model.trace_)
    text += model.privacy_.statement + caplog.text + "".join(capsys.readouterr())
    secrets = [v for v in data.ravel().tolist() + exact_values if v * 2**20 != int(v * 2**20)]
    assert len(secrets) >= data.size
    for value in secrets:
        for dtype in ("<f8", ">f8"):
            assert np.array(value, dtype).tobytes() not in content
        assert repr(value) not in text and f"{value:.12g}" not in text
    for item in reachable(model):
        assert not isinstance(
            item,
            np.random.RandomState | np.random.Generator | noise.EntropySource
            | Objective | Vault | ReleaseRecorder,
        )  # fmt: skip
        if isinstance(item, np.ndarray):
            assert n not in item.shape and not np.shares_memory(item, data)


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_lets_go_of_the_data(name):
    data, labels = X.copy(), Y.copy()
    references = weakref.ref(data), weakref.ref(labels)
    model = clone(EVERY[name]).fit(data, labels)
    del data, labels
    if any(reference() is not None for reference in references):
        gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert model.coef_.size


def test_an_error_takes_no_data_along():
    with on_tape(Failing(MemoryError("no room"), 2)), pytest.raises(MemoryError) as info:
        clone(EVERY["full"]).fit(X, Y)
    assert info.value.privacy_ledger
    content = pickle.dumps(info.value)
    assert not any(np.array(v).tobytes() in content for v in X.ravel())


def test_a_seed_is_not_kept():
    with pytest.warns(match="reproducible"), seeded_noise(918_273_645):
        model = clone(EVERY["full"]).fit(X, Y)
    assert np.array(918_273_645, "<i4").tobytes() not in pickle.dumps(model)
    assert model.privacy_.seeded and "918273645" not in model.privacy_.statement + repr(
        model.trace_
    )
    assert not [x for x in reachable(model) if isinstance(x, np.random.RandomState)]


ODD_DATA = {
    "denormal": np.clip(X, -1, 1) * 5e-324,
    "huge": np.clip(X, -1, 1) * 1e150,
    "1e308": np.sign(X) * 1e308,
    "mixed": np.array([[1e308, -1e308], [0.0, 1.0], [5e-324, 0.0], [1e-160, 1e160]]),
    "zero": np.zeros((2, 1)),
    "two rows": np.array([[1.0], [2.0]]),
    "wide": np.eye(4, 50),
    "float32": X[:7].astype(np.float32),
}


@pytest.mark.parametrize(("name", "store"), STORED)
def test_any_finite_data_give_finite_coefficients(name, store):
    for kind, rows in ODD_DATA.items():
        model = clone(EVERY[name]).fit(store(rows), np.arange(len(rows)) % 2)
        assert np.isfinite(model.coef_).all() and np.isfinite(model.intercept_).all(), kind
        assert len(model.predict(np.zeros((3, rows.shape[1])))) == 3
