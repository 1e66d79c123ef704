# SPDX-License-Identifier: Apache-2.0
"""The results of calls have the sizes, types and strides of the CPU's.

`--full-ops` takes every sample, type and layout.
"""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from layouts import on_device
from shapes_of_calls import forms

import torch_spmd  # noqa: F401

ROOT = pathlib.Path(__file__).parents[3]


def lines_of(script, *arguments):
    """The output of a sweep in a process of its own, whose programs are not verified after every
    pass."""
    command = [sys.executable, ROOT / "tests" / "python" / "support" / script, *arguments]
    env = {**os.environ, "SPMD_CHECK_PASSES": "0"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return run.stdout.splitlines()


def test_calls_have_the_sizes_types_and_strides_of_the_cpu(full_ops):
    *differences, _ = lines_of("shapes_of_calls.py", *(["full"] if full_ops else []))
    assert not differences


def empty_and_scalar_operands():
    yield from (torch.rand(shape) for shape in ((), (0,), (3, 0), (0, 5), (1, 1), (3, 5)))
    yield torch.rand(5, 3).t()


CALLS = {
    "abs": torch.abs,
    "clamp_max": lambda x: torch.ops.aten.clamp_max(x, 0.5),
    "cummax": lambda x: torch.cummax(x, 0),
    "dropout's gradient": lambda x: torch.ops.aten.native_dropout_backward(x, x > 0.5, 2.0),
    "flip": lambda x: torch.flip(x, [0] if x.dim() else []),
    "hardtanh": torch.nn.functional.hardtanh,
    "index_select": lambda x: x.index_select(0, torch.zeros(1, dtype=torch.long, device=x.device)),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "logical_and": lambda x: torch.logical_and(x, x.t() if x.dim() == 1 else x),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 1),
    "mean": torch.mean,
    "relu": torch.relu,
    "repeat": lambda x: x.repeat(2, 1, 3),
    "roll": lambda x: x.roll(1),
    "std": lambda x: x.std(0),
    "where": lambda x: torch.where(x > 0.5, x, 1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_tensors_without_dimensions_or_elements(name):
    for x in empty_and_scalar_operands():
        try:
            want = forms(CALLS[name](x))
        except (RuntimeError, IndexError):
            continue
        assert forms(CALLS[name](on_device(x))) == want, x.shape
