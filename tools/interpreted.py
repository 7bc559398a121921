"""Kernels without a compiler: numpy in place of the vectors of `dpglm.kernels.vectors`.

For mutation testing, which has no time to compile each mutant. `install` must be called before
``dpglm.kernels`` is imported, with numba's JIT disabled.
"""

import builtins
import importlib
import math
import pkgutil
import sys
import types

import numpy as np

LANES = 8


class Vector(np.ndarray):
    """Eight numbers, never changed in place: kernels give one vector several names."""

    __iadd__ = np.ndarray.__add__
    __isub__ = np.ndarray.__sub__
    __imul__ = np.ndarray.__mul__
    __itruediv__ = np.ndarray.__truediv__


def _vector(values):
    return np.asarray(values, dtype=np.float64).view(Vector)


def load(array, index):
    return _vector(array.reshape(-1)[index : index + LANES].copy())


def store(array, index, values):
    array.reshape(-1)[index : index + LANES] = values


def spread(number):
    return _vector(np.full(LANES, number))


def lane(values, which):
    return spread(values[which])


def where(condition, yes, no):
    return _vector(np.where(condition, yes, no))


def sum_each(*rows):
    return _vector([add_across(row) for row in rows])


def add_across(values):
    for _ in range(3):
        values = values[::2] + values[1::2]
    return values[0]


def max_across(values):
    return np.asarray(values).max()


def prefetch(array, index):
    pass


def _choice(compare, scalar):
    def choose(a, b):
        if isinstance(a, Vector) or isinstance(b, Vector):
            return where(compare(a, b), a, b)
        return scalar(a, b)

    return choose


def _either(of_vectors, of_numbers):
    def function(*arguments):
        if any(isinstance(argument, Vector) for argument in arguments):
            return of_vectors(*arguments)
        return of_numbers(*arguments)

    return function


def _on_bits(function):
    def on_floats(x):
        result = function(np.asarray(x, dtype=np.float64).view(np.int64)).view(np.float64)
        return result.view(Vector) if isinstance(x, Vector) else result[()]

    return on_floats


_EXPONENT = 52


def _binary_exponent(bits):
    return (bits - 0x3FE6A09E667F3BCD) >> _EXPONENT


_STAND_INS = {
    "min": _choice(lambda a, b: a < b, builtins.min),
    "max": _choice(lambda a, b: a > b, builtins.max),
    "math": types.SimpleNamespace(
        **{
            **vars(math),
            "sqrt": _either(np.sqrt, math.sqrt),
            "copysign": _either(np.copysign, math.copysign),
        }
    ),
}
_BITS = {
    "_power_of_two": _on_bits(lambda bits: (bits + 1023) << _EXPONENT),
    "_shifted_exponent": _on_bits(lambda bits: 0x4338000000000000 + _binary_exponent(bits)),
    "_fraction": _on_bits(lambda bits: bits - (_binary_exponent(bits) << _EXPONENT)),
}


def install():
    """Import the kernels with these functions for those that only a compiler understands."""
    sys.modules["dpglm.kernels.vectors"] = sys.modules[__name__]
    kernels = importlib.import_module("dpglm.kernels")
    for entry in pkgutil.iter_modules(kernels.__path__, "dpglm.kernels."):
        module = importlib.import_module(entry.name)
        if "njit" in vars(module):
            vars(module).update(_STAND_INS)
    vars(importlib.import_module("dpglm.kernels.arithmetic")).update(_BITS)
