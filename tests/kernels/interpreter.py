"""Triton's interpreter with two faults mended, in a third of its time.

Nothing of it changes a number: what is remembered are types, shapes and names, what is left out is thrown away there.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from triton.language import core
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

    interpreter._patch_lang = patch_language_once
    interpreter._get_np_dtype = lambda dtype: np_dtype(core.uint64 if dtype.scalar.is_ptr() else dtype.scalar)
    core.block_type.__init__, core.tensor.__init__ = block, tensor
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    # It computes every sum and product of integers again in 64 bits, for an assertion that it makes with debug alone.
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
