"""The common part of all kernels: their compilation, and arithmetic that LLVM vectorises.

The C library is a call per element and numba's vector library is not part of its wheels.
"""

import contextlib
import hashlib
import math
import sys
from functools import cache
from importlib import resources

import numpy as np
from llvmlite import ir
from numba import njit
from numba.extending import intrinsic, is_jitted

# EXACT forbids reassociation, as the argument's reduction in `exp` needs; FAST is for sums.
# 'nnan' and 'ninf' are never allowed: they would let LLVM remove the tests for a finite margin.
_COMMON = {"error_model": "numpy", "nogil": True}  # speed only
EXACT = {"fastmath": {"contract", "nsz"}, **_COMMON}
FAST = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, **_COMMON}
# Without wrappers for calls from Python, which take a sixth of the time of compilation.
INNER = {**EXACT, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

LARGEST = float(np.finfo(np.float64).max)
SMALLEST = float(np.finfo(np.float64).tiny)

# ``exp(r) = 1 + r + r^2 q(r)``: q interpolates at the Chebyshev nodes of ``|r| <= log(2)/2``. The
# relative error before rounding is 1.6e-17.
_Q0, _Q1 = 0.5000000000000001, 0.16666666666666669
_Q2, _Q3 = 0.041666666666624164, 0.008333333333330065
_Q4, _Q5 = 0.0013888888917196719, 0.00019841269863040545
_Q6, _Q7 = 2.4801521322368692e-05, 2.7557268480310024e-06
_Q8, _Q9 = 2.7620075879983367e-07, 2.5100375832561234e-08

# ``log((1 + s) / (1 - s)) = 2 s + s^3 p(s^2)``: p interpolates at the Chebyshev nodes of
# ``|s| <= (sqrt(2) - 1) / (sqrt(2) + 1)``. The relative error before rounding is 4.6e-18.
_P0, _P1 = 0.666666666666667, 0.39999999999899505
_P2, _P3 = 0.28571428625975487, 0.2222221113479508
_P4, _P5 = 0.18182889125261723, 0.15331721600556042
_P6 = 0.14616449685043406
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD

_LOG2_E = 1 / math.log(2)
# log(2) in two parts; the first has few enough bits for its product with an exponent to be exact
_LOG2_HIGH, _LOG2_LOW = 0.693145751953125, 1.42860682030941723212e-6
# adding 1.5 * 2^52 rounds to an integer and leaves that integer in the low bits
_ROUNDER = 6755399441055744.0
_ROUNDER_BITS = 0x4338000000000000
_FRACTION_BITS = 52


def _on_bits(emit):
    """Make a function of a float64, or of a vector of them, from one of their bits as int64."""

    @intrinsic
    def function(_, x):
        def generate(context, builder, signature, arguments):
            kind = context.get_value_type(x)
            bits = ir.IntType(64)
            if isinstance(kind, ir.VectorType):
                bits = ir.VectorType(bits, kind.count)

            def constant(value):
                lanes = [value] * bits.count if isinstance(bits, ir.VectorType) else value
                return ir.Constant(bits, lanes)

            (number,) = arguments
            result = emit(builder, builder.bitcast(number, bits), constant)
            return builder.bitcast(result, kind)

        return x(x), generate

    return function


@_on_bits
def _power_of_two(builder, shifted, constant):
    """Return 2^k, given ``k + _ROUNDER``."""
    return builder.shl(builder.add(shifted, constant(1023)), constant(_FRACTION_BITS))


def _binary_exponent(builder, x, constant):
    offset = builder.sub(x, constant(_SQRT_HALF_BITS))
    return builder.ashr(offset, constant(_FRACTION_BITS))


@_on_bits
def _shifted_exponent(builder, x, constant):
    """Return ``k + _ROUNDER``, with ``x = 2^k m`` and m in [sqrt(1/2), sqrt(2))."""
    return builder.add(constant(_ROUNDER_BITS), _binary_exponent(builder, x, constant))


@_on_bits
def _fraction(builder, x, constant):
    """Return the m of ``x = 2^k m``."""
    power = _binary_exponent(builder, x, constant)
    return builder.sub(x, builder.shl(power, constant(_FRACTION_BITS)))


@njit(**INNER)
def exp(x):
    """Return the exponential of a number or vector clamped to [-708, 709]: positive and finite."""
    x = min(max(x, -708.0), 709.0)
    shifted = x * _LOG2_E + _ROUNDER
    power = shifted - _ROUNDER
    r = (x - power * _LOG2_HIGH) - power * _LOG2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (_Q0 + _Q1 * r) + (_Q2 + _Q3 * r) * r2
    high = ((_Q4 + _Q5 * r) + (_Q6 + _Q7 * r) * r2) + (_Q8 + _Q9 * r) * r4
    fraction = 1.0 + (r + r2 * (low + high * r4))
    return fraction * _power_of_two(shifted)


@njit(**INNER)
def log(x):
    """Return the logarithm of a positive normal number, or of each of a vector."""
    exponent = _shifted_exponent(x) - _ROUNDER
    m = _fraction(x)
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    s4 = s2 * s2
    low = (_P0 + _P1 * s2) + (_P2 + _P3 * s2) * s4
    high = (_P4 + _P5 * s2) + _P6 * s4
    tail = s * s2 * (low + high * (s4 * s4))
    return exponent * _LOG2_HIGH + (2.0 * s + (tail + exponent * _LOG2_LOW))


def kernel(**options):
    """Compile a function for calls from Python, and keep its machine code on disk if possible.

    Files have a digest of all sources in their names, because numba compares the file of the kernel
    alone. An old compiled kernel must never replace a corrected clipping, wherever that stands.
    """

    def compiled(function):
        function.__qualname__ = f"{function.__name__}_{_digest_of_sources()}"
        try:
            result = njit(cache=True, **options)(function)
        except RuntimeError:
            # No folder can be written to.
            result = njit(**options)(function)
        if is_jitted(result):
            result._cache = _Cache(result._cache)
        return result

    return compiled


class _Cache:
    """The files of a kernel: damaged ones, or a full disk, cost no more than a compilation.

    numba would raise, and so end a fit that has been charged. Two methods and the attribute
    `_cache` are private to numba. Without them, kernels would work all the same.
    """

    def __init__(self, files):
        self._files = files

    def __getattr__(self, name):
        return getattr(self._files, name)

    def load_overload(self, *what):
        found = None
        with contextlib.suppress(Exception):
            found = self._files.load_overload(*what)
        if found is None:
            _announce()
        return found

    def save_overload(self, *what):
        with contextlib.suppress(Exception):
            self._files.save_overload(*what)


@cache
def _announce():
    """Say to a user who waits, once in a process, that kernels are compiled."""
    # Notebooks show this stream, but it is no terminal. In a log of a pipeline it would intrude.
    if "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty()):
        print("dpglm compiles its kernels: some seconds, once per installation.", file=sys.stderr)


@cache
def _digest_of_sources() -> str:
    """Return a digest of the sources of all kernels: of every module of this folder."""
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".py")]
    if not files:
        raise RuntimeError("There are no sources to identify compiled kernels by.")
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]
