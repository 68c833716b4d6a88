"""Launches that are kept: the arguments reach the kernel in its order, and a compiled variant serves its own calls."""

from __future__ import annotations

import pytest
import torch
from routines import CUDA, cloud, error, run

from decondense.kernels.launch import Launch


class Kernel:
    """What a launch needs of a kernel of Triton: its calls, and in which of them it had to look for a variant."""

    arg_names = ("x", "y", "number", "eps", "FIRST", "SECOND")

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __getitem__(self, grid):
        def first(*args, **options):
            self.calls.append(("looked", grid, args, options))
            return self

        def again(*args):
            self.calls.append(("knew", grid, args, {}))

        return again if self.calls else first


def test_triton_looks_at_the_arguments_once():
    kernel, x = Kernel(), torch.zeros(8)
    launch = Launch(kernel, (3, 2), 5, 0.5, SECOND="b", FIRST="a", warps=8)
    launch(x, None)
    launch(later := x + 1, None)
    (how, grid, args, options), (again, its_grid, others, _) = kernel.calls
    assert (how, again) == ("looked", "knew")
    assert grid == its_grid == (3, 2, 1)
    assert args[1:] == (None, 5, 0.5, "a", "b")
    assert others == (later.data_ptr(), 0, 5, 0.5, "a", "b")  # by their addresses
    assert options == {"num_warps": 8, "num_stages": 3}


def test_a_tensor_that_begins_elsewhere_is_looked_at():
    kernel, x = Kernel(), torch.zeros(9)
    launch = Launch(kernel, (1, 1))
    launch(x[1:], None)
    kernel.calls.clear()
    launch(x[:8], None)
    assert [how for how, *_ in kernel.calls] == ["looked"]


@pytest.mark.skipif(not CUDA, reason="needs a GPU: the interpreter has no variants")
@pytest.mark.parametrize("name", ["dispersion", "first_order"])
def test_a_later_call_reads_its_own_tensors(name, device):
    """Values, alignment and upstream differ between the calls of one shape."""
    clouds = [cloud(3, 40, 24, seed=seed).to(device) for seed in range(3)]
    ends = torch.empty(3 * 40 * 24 + 1, device=device)[1:].view(3, 40, 24)
    ends.copy_(clouds[2])
    expected = [run(name, z.clone()) for z in clouds]
    for z, wanted in zip([clouds[1], ends, clouds[0], clouds[2]], [expected[1], expected[2], expected[0], expected[2]]):
        assert all(error(a, b) < 1e-6 for a, b in zip(run(name, z), wanted))
