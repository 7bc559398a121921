"""Eight numbers at a time: a type for the kernels whose arithmetic is vector code, by construction.

LLVM vectorises most loops over numbers automatically. But the number of its partial sums depends on
the length of the loop, the version and the processor. Kernels for which that matters use a
`Vector`, which holds eight float64. Operators, ``abs``, ``min``, ``max`` and ``math.copysign`` act
on each number, and a plain number is eight equal ones. Comparisons give masks for `where`.
"""

import math
import operator
from functools import partial

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

LANES = 8

_CACHE_LINE = 64  # speed only


class _Register(types.Type):
    def __init__(self, name, element):
        super().__init__(name)
        self.content = ir.VectorType(element, LANES)


@register_model(_Register)
class _RegisterModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.content)


vector, mask = _Register("Vector", ir.DoubleType()), _Register("Mask", ir.IntType(1))
_DOUBLES = vector.content


def _shuffle(builder, first, second, indices):
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), len(indices)), indices)
    return builder.shuffle_vector(first, second, chosen)


def _spread(builder, value):
    """Repeat a number; return a vector unchanged."""
    if isinstance(value.type, ir.VectorType):
        return value
    undefined = ir.Constant(_DOUBLES, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.IntType(32)(0))
    return _shuffle(builder, single, undefined, [0] * LANES)


def _library(name, builder, *operands):
    kind = ir.FunctionType(_DOUBLES, [_DOUBLES] * len(operands))
    function = builder.module.declare_intrinsic(f"llvm.{name}.v{LANES}f64", fnty=kind)
    return builder.call(function, operands)


def _float(name, builder, *operands):
    """Emit an instruction that may be contracted with the next to a fused multiply-add."""
    return getattr(builder, name)(*operands, flags=("contract",))


def _comparison(symbol, builder, left, right):
    """Compare; false where either side is NaN."""
    return builder.fcmp_ordered(symbol, left, right)


def _choice(symbol, builder, left, right):
    """Choose an operand by a comparison; the second where either is NaN."""
    return builder.select(builder.fcmp_ordered(symbol, left, right), left, right)


def _define(operation, emit, n_operands, result=vector):
    """Let an operator or function of Python act on vectors, or on a vector and a number."""
    kinds = [(vector,)]
    typed = lambda x: result if x == vector else None  # noqa: E731
    if n_operands == 2:
        kinds = [(vector, vector), (vector, types.float64), (types.float64, vector)]
        typed = lambda x, y: result if (x, y) in kinds else None  # noqa: E731

    def generate(context, builder, sig, operands):
        return emit(builder, *(_spread(builder, operand) for operand in operands))

    for operands in kinds:
        lower_builtin(operation, *operands)(generate)
    type_callable(operation)(lambda _: typed)


for _name, _instruction in {"add": "fadd", "sub": "fsub", "mul": "fmul", "truediv": "fdiv"}.items():
    _define(getattr(operator, _name), partial(_float, _instruction), 2)
    _define(getattr(operator, f"i{_name}"), partial(_float, _instruction), 2)
for _name, _symbol in {"lt": "<", "le": "<=", "gt": ">", "eq": "=="}.items():
    _define(getattr(operator, _name), partial(_comparison, _symbol), 2, mask)
_define(min, partial(_choice, "<"), 2)
_define(max, partial(_choice, ">"), 2)
_define(operator.neg, lambda builder, operand: builder.fneg(operand), 1)
_define(abs, partial(_library, "fabs"), 1)
_define(math.sqrt, partial(_library, "sqrt"), 1)
_define(math.copysign, partial(_library, "copysign"), 2)


def _address(context, builder, array_type, array, index):
    if array_type.layout != "C":
        raise TypeError(f"Kernels take contiguous arrays only, not {array_type}.")
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def load(_, array, index):
    """Return eight numbers of a flattened array as float64, without tests for the bounds."""

    def generate(context, builder, sig, arguments):
        element = context.get_value_type(array.dtype)
        pointer = builder.bitcast(
            _address(context, builder, array, *arguments),
            ir.VectorType(element, LANES).as_pointer(),
        )
        values = builder.load(pointer, align=array.dtype.bitwidth // 8)
        if isinstance(array.dtype, types.Integer):
            return builder.sitofp(values, _DOUBLES)
        return values if array.dtype == types.float64 else builder.fpext(values, _DOUBLES)

    return vector(array, types.int64), generate


@intrinsic
def store(_, array, index, values):
    """Set eight numbers of a flattened array, without tests for the bounds."""

    def generate(context, builder, sig, arguments):
        pointer = builder.bitcast(
            _address(context, builder, array, *arguments[:2]), _DOUBLES.as_pointer()
        )
        builder.store(arguments[2], pointer, align=8)
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic
def spread(_, number):
    """Return eight equal numbers."""

    def generate(context, builder, sig, arguments):
        return _spread(builder, *arguments)

    return vector(types.float64), generate


@intrinsic(prefer_literal=True)
def lane(_, values, which):
    """Return eight copies of the number with this constant index."""

    def generate(context, builder, sig, arguments):
        return _shuffle(builder, arguments[0], arguments[0], [which.literal_value] * LANES)

    return vector(vector, which), generate


@intrinsic
def where(_, condition, yes, no):
    """Return the numbers of `yes` where the mask is set, and of `no` where not."""

    def generate(context, builder, sig, arguments):
        yes, no = (_spread(builder, argument) for argument in arguments[1:])
        return builder.select(arguments[0], yes, no)

    return vector(mask, yes, no), generate


def _neighbors(builder, first, second):
    """Return the numbers at even indices, of both vectors, and those at odd indices."""
    return (
        _shuffle(builder, first, second, list(range(0, 2 * LANES, 2))),
        _shuffle(builder, first, second, list(range(1, 2 * LANES, 2))),
    )


@intrinsic
def sum_each(_, s0, s1, s2, s3, s4, s5, s6, s7):
    """Return the vector of the sums of eight vectors, each added up in the same order."""

    def generate(context, builder, sig, rows):
        while len(rows) > 1:
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [builder.fadd(*_neighbors(builder, *pair)) for pair in pairs]
        return rows[0]

    return vector(*[vector] * LANES), generate


def _across(combine):
    @intrinsic
    def function(_, values):
        def generate(context, builder, sig, arguments):
            (result,) = arguments
            for _ in range(3):
                result = combine(builder, *_neighbors(builder, result, result))
            return builder.extract_element(result, ir.IntType(32)(0))

        return types.float64(vector), generate

    return function


add_across = _across(lambda builder, even, odd: builder.fadd(even, odd))
max_across = _across(partial(_choice, ">"))


@intrinsic
def prefetch(_, array, index):
    """Start to load 64 numbers of a flattened array; an index past the end does no harm."""

    def generate(context, builder, sig, arguments):
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)  # speed only
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        address = builder.bitcast(_address(context, builder, array, *arguments), byte)
        read, keep_in_every_cache, of_data = flag(0), flag(3), flag(1)  # speed only
        for line in range(64 * (array.dtype.bitwidth // 8) // _CACHE_LINE):  # speed only
            there = builder.gep(address, [ir.IntType(64)(line * _CACHE_LINE)])  # speed only
            builder.call(hint, [there, read, keep_in_every_cache, of_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
