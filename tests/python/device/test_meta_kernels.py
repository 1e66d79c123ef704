# SPDX-License-Identifier: Apache-2.0
"""Shapes that are inferred in C++ (csrc/trace/shape/meta_kernels.h) are those of the CPU's results.

`--full-ops` takes every sample, type and layout.
"""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from layouts import on_device
from meta_calls import forms

import torch_spmd  # noqa: F401
from torch_spmd import _C

ROOT = pathlib.Path(__file__).parents[3]

# Parts of compositions, whose results the table compares.
WRITING = ("_", ".out", "_out", "_.Scalar", "_.Tensor", "_.int_Scalar", "_.int_Tensor", "_.from")
# Ops whose shapes still come from PyTorch's Python.
IN_PYTHON = {
    *("_cdist_backward", "_cdist_forward", "_cholesky_solve_helper", "_fft_c2c", "_fft_c2r"),
    *("_fft_r2c", "_local_scalar_dense", "_pdist_backward", "_pdist_forward", "addbmm", "addr"),
    *("_segment_reduce_backward", "cholesky", "cholesky_inverse", "col2im", "frexp.Tensor_out"),
    *("histc", "index_add", "linalg_eig", "linalg_householder_product", "linalg_matrix_exp"),
    *("linalg_solve_triangular", "linspace.Scalar_Tensor", "linspace.Tensor_Scalar"),
    *("linspace.Tensor_Tensor", "logspace.Scalar_Tensor", "logspace.Tensor_Scalar"),
    *("logspace.Tensor_Tensor", "max_pool3d_with_indices", "max_pool3d_with_indices_backward"),
    *("max_unpool2d", "max_unpool3d", "multi_margin_loss", "multilabel_margin_loss_forward"),
    *("narrow_copy", "ormqr", "pixel_shuffle", "pixel_unshuffle", "reflection_pad2d"),
    *("replication_pad3d_backward", "searchsorted.Scalar", "searchsorted.Tensor"),
    "segment_reduce",
}


def lines_of(script, *arguments):
    """The output of a sweep in a process of its own, whose programs are not verified after every
    pass."""
    command = [sys.executable, ROOT / "tests" / "python" / "support" / script, *arguments]
    env = {**os.environ, "SPMD_CHECK_PASSES": "0"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return run.stdout.splitlines()


def test_calls_have_the_sizes_types_and_strides_of_the_cpu(full_ops):
    *differences, last = lines_of("meta_calls.py", *(["full"] if full_ops else []))
    assert not differences
    called = set(last.split(": ")[1].split())
    rows = {op for op in _C.meta_kernels_in_cpp() if not op.endswith(WRITING)}
    assert not full_ops or rows <= called


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


def test_python_is_asked_about_these_ops_only(full_ops):
    lines = lines_of("meta_in_python.py", *(["10000"] if full_ops else []))
    found = {line.split()[0].removeprefix("aten::") for line in lines}
    assert not found - IN_PYTHON
    assert not full_ops or found == IN_PYTHON


def test_the_table_is_what_pytorch_has():
    sys.path.insert(0, str(ROOT / "tools"))
    import write_meta_kernels

    written = (ROOT / "csrc" / "trace" / "shape" / "meta_kernels.inc").read_text()
    assert set(written.splitlines()) <= set(
        (write_meta_kernels.HEADER + "".join(write_meta_kernels.rows())).splitlines()
    )
