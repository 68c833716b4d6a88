"""Triton's interpreter with two faults mended, in a quarter of its time.

Nothing of it changes a number: what is remembered are types, shapes and names, what is left out is thrown away there.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import torch
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def mend() -> None:
    """Loops and rounding."""
    patch_tensor, convert = interpreter._patch_lang_tensor, interpreter._convert_float

    def patch_tensor_and_index(tensor, scope):
        """Triton 3.6's interpreter calls int() on an array of one element, which numpy 2.4 refuses
        (github.com/triton-lang/triton/issues/9171): loops over run-time bounds need this."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def convert_to_nearest(array, source, target, rounding):
        """It cuts float32 down to bfloat16 towards zero, where the hardware rounds to nearest."""
        if source == core.float32 and target == core.bfloat16:
            rounded = torch.from_numpy(array.copy()).to(torch.bfloat16)
            return rounded.view(torch.uint16).numpy()
        return convert(array, source, target, rounding)

    interpreter._patch_lang_tensor = patch_tensor_and_index
    interpreter._convert_float = convert_to_nearest


def hasten() -> None:
    """Most of its time goes to its own types: every tensor makes several objects for its shape, every question for a
    numpy dtype a table of all of them, every call of a device function a search through triton.language."""
    _hasten_types()
    _hasten_operators()


def _hasten_types() -> None:
    patch_language, np_dtype = interpreter._patch_lang, functools.cache(interpreter._get_np_dtype)
    make_block, make_tensor, equal = core.block_type.__init__, core.tensor.__init__, core.dtype.__eq__
    scalar = core.float32

    @functools.cache
    def patch_language_once(function):
        """What is replaced for a kernel stays replaced: the scope that is returned has nothing to restore."""
        patch_language(function)
        return interpreter._LangPatchScope()

    @functools.cache
    def block_of(sizes: tuple[int, ...]) -> tuple[dict, str]:
        made = object.__new__(core.block_type)
        make_block(made, scalar, list(sizes))
        return {"shape": made.shape, "numel": made.numel}, str(made.shape)

    def block(self, element_ty, shape):
        sizes, text = block_of(tuple(getattr(size, "value", size) for size in shape))
        self.__dict__.update(sizes, element_ty=element_ty, name=f"<{text}, {element_ty}>")

    @functools.cache
    def tensor_of(sizes: tuple[int, ...]) -> dict:
        made = object.__new__(core.tensor)
        make_tensor(made, None, core.block_type(scalar, sizes) if sizes else scalar)
        return {"shape": made.shape, "numel": made.numel}

    def tensor(self, handle, type):
        sizes = tensor_of(tuple(type.shape.values) if type.is_block() else ())
        self.__dict__.update(sizes, handle=handle, type=type, dtype=type.scalar)

    def same_shape(self, other):
        values = other.values if isinstance(other, core.tuple) else [getattr(size, "value", size) for size in other]
        return core.constexpr(self.values == values)

    interpreter._patch_lang = patch_language_once
    interpreter._get_np_dtype = lambda dtype: np_dtype(core.uint64 if dtype.scalar.is_ptr() else dtype.scalar)
    core.block_type.__init__, core.tensor.__init__ = block, tensor
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    core.tuple.__eq__ = same_shape
    # It computes every sum and product of integers again in 64 bits, for an assertion that it makes with debug alone.
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _hasten_operators() -> None:
    """Operands of one type and one shape, which most are, are handed on as they are; what is no constexpr is not asked
    four times whether it is one."""
    unwrap = core._unwrap_if_constexpr
    convert, broadcast = TritonSemantic.binary_op_type_checking_impl, TritonSemantic.broadcast_impl_value
    between, validate = core.builtin(unwrap).__code__, interpreter.TensorHandle.__post_init__
    bare = {core.tensor, int, float, bool, str, type(None)}
    integers, longer = (core.int32, core.int64), {("int32", "int64"), ("int64", "int32")}
    constants: dict[tuple, tuple] = {}
    kept = {"int1", "int32", "int64", "fp32", "fp64"}  # of two such the result is another

    def patch_attr(obj, name, member, builder, scope):
        """Without the two functions between a builtin and its caller, which only put `_semantic` in and look for it."""
        inside = member.__wrapped__ if getattr(member, "__code__", None) is between else member
        semantic = TritonSemantic(builder)

        def call(*operands, **options):
            options["_semantic"] = semantic
            return inside(*operands, **options)

        scope.set_attr(obj, name, call)

    def operands(self, lhs, rhs, *asked, **options):
        if lhs.__class__ is rhs.__class__ is core.tensor and lhs.dtype is rhs.dtype and lhs.dtype.name in kept:
            return self.broadcast_impl_value(lhs, rhs)
        if len(asked) < 3 and not options:  # nor does a plain number make another of what is beside it
            if lhs.__class__ is core.tensor and takes(lhs.dtype, rhs):
                return lhs, constant(self, rhs, lhs)
            if rhs.__class__ is core.tensor and takes(rhs.dtype, lhs):
                return constant(self, lhs, rhs), rhs
            if lhs.__class__ is rhs.__class__ is core.tensor and (lhs.dtype.name, rhs.dtype.name) in longer:
                return self.broadcast_impl_value(self.cast(lhs, core.int64), self.cast(rhs, core.int64))
            if asked == (True, True) and is_address(lhs) and rhs.__class__ is core.tensor and rhs.dtype in integers:
                return self.broadcast_impl_value(lhs, rhs)
        return convert(self, lhs, rhs, *asked, **options)

    def is_address(operand):
        return operand.__class__ is core.tensor and operand.dtype.__class__ is core.pointer_type

    def takes(dtype, number):
        if dtype is core.float32 or dtype is core.float64:
            return number.__class__ in (int, float)
        return number.__class__ is int and dtype in integers and -(2**31) <= number < 2**31

    def constant(self, number, beside):
        """Of the type and the shape of what stands beside it. Every program of a launch asks for the same ones again,
        which nobody may write into."""
        shape = getattr(beside.type, "shape", None)
        asked = (number, number.__class__, beside.dtype.name, id(shape))
        if asked not in constants:
            made = self.scalar_constant(number, beside.dtype)
            made = made if shape is None else spread(self, made, shape)
            made.handle.data.flags.writeable = False
            constants[asked] = made, shape  # which lives as long as its id is remembered
        return constants[asked][0]

    def of_one_shape(self, lhs, rhs):
        """`block` above gives equal shapes as one object; what is no block has none."""
        left, right = getattr(lhs.type, "shape", None), getattr(rhs.type, "shape", None)
        if left is right:
            return lhs, rhs
        if left is None:
            return spread(self, lhs, right), rhs
        if right is None:
            return lhs, spread(self, rhs, left)
        return broadcast(self, lhs, rhs)

    def spread(self, number, shape):
        data, dtype = number.handle.data, number.handle.dtype.scalar
        handle = interpreter.TensorHandle(np.full(shape.values, data, dtype=data.dtype), dtype)
        return self.tensor(handle, core.block_type(number.type.scalar, shape))

    def valid(self):
        if self.dtype.is_ptr() or self.data.itemsize * 8 > self.dtype.primitive_bitwidth:
            validate(self)

    interpreter._patch_attr, interpreter.TensorHandle.__post_init__ = patch_attr, valid
    core._unwrap_if_constexpr = lambda found: found if found.__class__ in bare else unwrap(found)
    TritonSemantic.binary_op_type_checking_impl, TritonSemantic.broadcast_impl_value = operands, of_one_shape
