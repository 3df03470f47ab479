"""LLVM's vectors, as a type of Numba's: the only code here that writes LLVM's instructions itself.

A function with `width` makes a vector of so many bytes, which must be a constant. Numba's CPU target has no
16-bit floats: in an array of int16 lie float16, in one of uint16 bfloat16, and both are widened to float32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model


class Vector(types.Type):
    """`lanes` numbers of the Numba type `number`, side by side."""

    def __init__(self, number: types.Float, lanes: int) -> None:
        self.number, self.lanes = number, lanes
        super().__init__(f"Vector({number}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        number = ir.DoubleType() if kind.number == types.float64 else ir.FloatType()
        super().__init__(manager, kind, ir.VectorType(number, kind.lanes))


def _widened(dtype: types.Type) -> types.Float:
    return types.float32 if dtype in (types.int16, types.uint16) else dtype


def _vector_of(number: types.Float, width: types.IntegerLiteral) -> Vector:
    return Vector(number, width.literal_value * 8 // number.bitwidth)


def _address(context, builder, kind, lanes, array, index):
    """A pointer to `lanes` numbers of an array, from array[index] on."""
    start = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(start.type.pointee, lanes)
    return builder.bitcast(builder.gep(start, [index]), vector.as_pointer())


def _loaded(context, builder, kind, lanes, array, index):
    """The vector of floats that lie, or that int16 and uint16 stand for, from array[index] on."""
    address = _address(context, builder, kind, lanes, array, index)
    numbers = builder.load(address, align=kind.dtype.bitwidth // 8)
    return _widen(builder, kind, numbers, lambda number: ir.VectorType(number, lanes), [16] * lanes)


def _widen(builder, kind, numbers, shaped, sixteen):
    """What int16 and uint16 stand for, as floats. shaped: from a type to one of as many; sixteen: as many."""
    floats = shaped(ir.FloatType())
    if kind.dtype == types.int16:
        return builder.fpext(builder.bitcast(numbers, shaped(ir.HalfType())), floats)
    if kind.dtype == types.uint16:  # bfloat16 is the upper half of a float32
        wide = builder.zext(numbers, shaped(ir.IntType(32)))
        return builder.bitcast(builder.shl(wide, ir.Constant(wide.type, sixteen)), floats)
    return numbers


@intrinsic(prefer_literal=True)
def lanes_in(typing_context: Any, array: Any, width: Any) -> Any:
    """width // array.itemsize, which Numba would look up and divide by each time."""
    lanes = width.literal_value * 8 // array.dtype.bitwidth
    return types.int64(array, width), lambda *_: ir.IntType(64)(lanes)


@intrinsic
def number_at(typing_context: Any, array: Any, index: Any) -> Any:
    """float(array[index])"""

    def codegen(context, builder, signature, arguments):
        kind = signature.args[0]
        start = context.make_array(kind)(context, builder, arguments[0]).data
        # Not a vector of one: LLVM makes no vector code of loops that have vectors in them.
        number = builder.load(builder.gep(start, [arguments[1]]))
        return _widen(builder, kind, number, lambda number: number, 16)

    return _widened(array.dtype)(array, types.int64), codegen


@intrinsic(prefer_literal=True)
def load(typing_context: Any, array: Any, index: Any, width: Any) -> Any:
    """array[index : index + lanes] as a vector of `width` bytes"""
    vector = _vector_of(_widened(array.dtype), width)

    def codegen(context, builder, signature, arguments):
        return _loaded(context, builder, signature.args[0], vector.lanes, *arguments[:2])

    return vector(array, types.int64, width), codegen


@intrinsic
def store(typing_context: Any, vector: Any, array: Any, index: Any) -> Any:
    """array[index : index + lanes] = vector"""

    def codegen(context, builder, signature, arguments):
        address = _address(context, builder, signature.args[1], vector.lanes, *arguments[1:])
        builder.store(arguments[0], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(vector, array, types.int64), codegen


@intrinsic(prefer_literal=True)
def spread(typing_context: Any, number: Any, width: Any) -> Any:
    """The number in all lanes of a vector of `width` bytes."""
    vector = _vector_of(number, width)

    def codegen(context, builder, signature, arguments):
        nothing = ir.Constant(context.get_value_type(vector), ir.Undefined)
        one = builder.insert_element(nothing, arguments[0], ir.IntType(32)(0))
        return _shuffle(builder, one, nothing, [0] * vector.lanes)

    return vector(number, width), codegen


@intrinsic
def add_product(typing_context: Any, total: Any, left: Any, right: Any, skip_zeros: Any) -> Any:
    """total + left * right, lane by lane; total alone where right is 0, if `skip_zeros`"""

    def codegen(context, builder, signature, arguments):
        total, left, right, skip_zeros = arguments
        added = builder.fadd(total, builder.fmul(left, right, flags=["contract"]), flags=["contract"])
        is_zero = builder.fcmp_ordered("==", right, ir.Constant(right.type, [0.0] * right.type.count))
        return builder.select(skip_zeros, builder.select(is_zero, total, added), added)

    return total(total, left, right, types.boolean), codegen


@intrinsic
def sum_each(typing_context: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """A vector of four numbers: the sum of each vector's lanes."""

    def codegen(context, builder, signature, arguments):
        def neighbours(a, b, lanes):  # added up: first those of a, then those of b
            even, odd = (_shuffle(builder, a, b, range(s, 2 * lanes, 2)) for s in (0, 1))
            return builder.fadd(even, odd)

        a, b, c, d = arguments
        four = neighbours(neighbours(a, b, first.lanes), neighbours(c, d, first.lanes), first.lanes)
        while four.type.count > 4:
            four = neighbours(four, four, four.type.count // 2)
        return four

    return Vector(first.number, 4)(first, second, third, fourth), codegen


@intrinsic
def larger(typing_context: Any, left: Any, right: Any) -> Any:
    """Lane by lane, right if it is above left, else left."""

    def codegen(context, builder, signature, arguments):
        return _select_larger(builder, *arguments)

    return left(left, right), codegen


@intrinsic
def largest_lane(typing_context: Any, vector: Any) -> Any:
    """The largest number in a vector."""

    def codegen(context, builder, signature, arguments):
        (numbers,), lanes = arguments, vector.lanes
        while lanes > 1:
            lanes //= 2
            halves = (_shuffle(builder, numbers, numbers, range(s, s + lanes)) for s in (0, lanes))
            numbers = _select_larger(builder, *halves)
        return builder.extract_element(numbers, ir.IntType(32)(0))

    return vector.number(vector), codegen


def _select_larger(builder, left, right):
    return builder.select(builder.fcmp_ordered(">", right, left), right, left)


@intrinsic
def fetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Begin to bring array[index] and its cache line near."""

    def codegen(context, builder, signature, arguments):
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(_address(context, builder, signature.args[0], 1, *arguments), byte)
        builder.call(prefetch, [address, flag(0), flag(3), flag(1)])  # to read, keep it close, data
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


def _shuffle(builder, a, b, lanes):
    """A vector of the named lanes of a, whose numbers b's go on from."""
    picks = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
    return builder.shuffle_vector(a, b, picks)
