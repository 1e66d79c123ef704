#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes csrc/trace/meta_kernels.inc: Meta kernels in C++ that one in Python stands before.

PyTorch registers Python functions for the Meta device over its own C++ kernels; the dispatcher then
calls Python, which takes milliseconds and imports sympy and torch._dynamo. The C++ kernel is
still there as a function of `at::meta`, and a row of the table names it.
"""

from __future__ import annotations

import pathlib
import re

import torch

TABLE = pathlib.Path(__file__).parent.parent / "csrc" / "trace" / "meta_kernels.inc"
HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// SPMD_META_KERNEL(op in at::_ops, function of at::meta). Written by tools/write_meta_kernels.py.
"""
LEFT_OUT = (
    # What the oldest PyTorch that is supported does not have.
    *("_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa_backward"),
    # The CPU's kernel gives results other sizes than its own Meta kernel says.
    *("isin.Scalar_Tensor", "isin.Tensor_Scalar"),
    *("gelu", "gelu_backward"),  # do not look at the name of the approximation
    # No sample of PyTorch's calls these, so that tests/python/device/test_meta_kernels.py could not
    # compare them.
    *("_addmm_activation", "_upsample_bicubic2d_aa", "norm.ScalarOpt_dim_dtype"),
    "normal.float_Tensor",
)
# Of ops that write, those that compositions are made of.
WRITING = (
    *("add_.Tensor", "addmv_", "arange.start_out", "clamp_min_", "div_.Tensor", "eye.m_out"),
    *("exp_", "sqrt_"),
    *("fill_.Scalar", "fill_.Tensor", "lgamma_", "linspace.out", "log1p_", "log_", "logspace.out"),
    *("mul.out", "mul_.Tensor", "neg.out", "sub_.Tensor", "sum.IntList_out"),
)
HEADERS = pathlib.Path(torch.__file__).parent / "include" / "ATen" / "ops"


def is_hidden(op: str) -> bool:
    """Whether a Python kernel for Meta stands before one in C++."""
    kernels = torch._C._dispatch_dump(op)
    in_python = re.search(r"^Meta: .*_meta_registrations\.py", kernels, re.MULTILINE)
    in_cpp = re.search(r"^Meta \(inactive\): .*RegisterMeta", kernels, re.MULTILINE)
    return in_python is not None and in_cpp is not None


def function_of(schema: torch._C.FunctionSchema) -> str:
    """The function of `at::meta`; where there are two, the one that takes symbolic sizes."""
    base = schema.name.removeprefix("aten::")
    text = (HEADERS / f"{base.removesuffix('_')}_meta_dispatch.h").read_text()
    out = "_outf" if schema.is_mutable and not base.endswith("_") else ""
    symbolic = f"{base}_symint{out}"
    return symbolic if f" {symbolic}(" in text else base + out


def rows() -> list[str]:
    """The rows, sorted by op."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        namespace, base = schema.name.split("::")
        op = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        in_namespace = op.removeprefix("aten::")
        if namespace != "aten" or in_namespace in LEFT_OUT or not is_hidden(op):
            continue
        if schema.is_mutable and in_namespace not in WRITING:
            continue
        struct = base + ("_" + schema.overload_name if schema.overload_name else "")
        found.append(f"SPMD_META_KERNEL({struct}, {function_of(schema)})\n")
    return sorted(found)


if __name__ == "__main__":
    TABLE.write_text(HEADER + "".join(rows()))
