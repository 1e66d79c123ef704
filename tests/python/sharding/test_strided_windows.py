# SPDX-License-Identifier: Apache-2.0
"""Overlapping windows by strides: values, strides and gradients as on the CPU; nothing is sent."""

import pytest
import torch

import torch_spmd as spmd

# The dims of x, a view of it, and the sizes and strides of the windows.
CASES = {
    "rows": ((8, 8, 3), lambda x: x, (8, 3, 4, 3), (24, 6, 3, 1)),
    "chunks": ((8, 2, 4, 3), lambda x: x, (8, 3, 4, 3), (24, 6, 3, 1)),
    "elements": ((8, 9), lambda x: x, (8, 4, 3), (9, 2, 1)),
    "fewer than there are": ((8, 9), lambda x: x, (8, 2, 3), (9, 2, 1)),
    "heads apart": ((6, 8, 3), lambda x: x.transpose(0, 1), (8, 2, 4, 3), (3, 48, 24, 1)),
    "part of the storage": ((8, 4, 10), lambda x: x[:, 1:3], (8, 2, 4, 4), (40, 10, 2, 1)),
}
NO_WINDOWS = {
    "apart": ((8, 9), lambda x: x, (8, 3, 3), (9, 3, 1)),
    "gaps": ((8, 9), lambda x: x, (8, 2, 3), (9, 4, 1)),
    "beyond the row": ((8, 9), lambda x: x, (7, 5, 3), (9, 2, 1)),
    "another start": ((8, 9), lambda x: x[:, 1:], (7, 3, 3), (9, 2, 1)),
    "both dimensions": ((8, 9), lambda x: x, (3, 3, 4, 2), (18, 9, 2, 1)),
}


def windows(device, case, mesh=None):
    dims, view, size, stride = case
    x = torch.linspace(-1, 2, torch.Size(dims).numel()).reshape(dims).to(device)
    if mesh is not None:
        # The first dimension of the view is one of the tensor.
        first = x.stride().index(view(x).stride(0))
        spmd.mark_sharding(x, mesh, tuple("x" if d == first else None for d in range(x.dim())))
    x.requires_grad_()
    y = view(x).as_strided(size, stride)
    (y * y.sin()).sum().backward()
    return y.detach(), x.grad


@pytest.mark.parametrize("name", CASES | NO_WINDOWS)
def test_values_strides_and_gradients(name):
    case = (CASES | NO_WINDOWS)[name]
    for mesh in (None, spmd.make_mesh((4,), ("x",))):
        got, want = windows("spmd", case, mesh), windows("cpu", case)
        assert got[0].stride() == want[0].stride()
        for mine, expected in zip(got, want):
            torch.testing.assert_close(mine.cpu(), expected)


@pytest.mark.parametrize("name", CASES)
def test_a_cut_beside_the_windows_sends_nothing(name):
    results = windows("spmd", CASES[name], spmd.make_mesh((4,), ("x",)))
    spmd.sync()
    assert len(results) == 2
    assert spmd.debug.collectives().rows == []
