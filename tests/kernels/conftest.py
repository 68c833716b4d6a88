"""The kernels run on the GPU when there is one, in Triton's interpreter otherwise (chosen in tests/conftest.py)."""

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
    import interpreter

    interpreter.mend()
    interpreter.hasten()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def chosen(monkeypatch) -> None:
    """The losses take the kernels, on a machine without a GPU in the interpreter."""
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
