"""The kernels run on the GPU when there is one, in Triton's interpreter otherwise (chosen in tests/conftest.py)."""

import functools
import inspect

import pytest
import torch

pytest.importorskip("triton", reason="the kernel tests need Triton")

from decondense.kernels import rows

INTERPRET = not torch.cuda.is_available()

if INTERPRET and not rows.INTERPRET:
    raise RuntimeError(
        "Triton was imported before tests/conftest.py could choose its interpreter: "
        "run pytest with TRITON_INTERPRET=1 in the environment."
    )

if rows.INTERPRET:
    # Triton 3.6's interpreter calls int() on an array of one element, which numpy 2.4 refuses
    # (github.com/triton-lang/triton/issues/9171): loops over run-time bounds need this.
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index

    # It also cuts float32 down to bfloat16 towards zero, where the hardware rounds to nearest.
    convert = interpreter._convert_float

    def convert_to_nearest(array, source, target, rounding):
        if source == interpreter.tl.float32 and target == interpreter.tl.bfloat16:
            rounded = torch.from_numpy(array.copy()).to(torch.bfloat16)
            return rounded.view(torch.uint16).numpy()
        return convert(array, source, target, rounding)

    interpreter._convert_float = convert_to_nearest

    # And at every call of a device function it looks through all of triton.language for what it has replaced already,
    # a quarter of the time: what is there to replace is looked up once.
    is_builtin = interpreter.tl.core.is_builtin

    @functools.cache
    def builtins_of(package):
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtins(package, builder, scope):
        names = builtins_of(package)
        if names and is_builtin(getattr(package, names[0])):
            for name in names:
                interpreter._patch_attr(package, name, getattr(package, name), builder, scope)

    interpreter._patch_builtin = patch_builtins


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def chosen(monkeypatch) -> None:
    """The losses take the kernels, on a machine without a GPU in the interpreter."""
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
