# SPDX-License-Identifier: Apache-2.0
"""A ResNet with batch norm, sharded over batch and image height, has plain PyTorch's losses."""

import functools

import pytest
import torch
from training import cnn_losses, label, mesh_of

pytestmark = pytest.mark.modes("coalesced", "in_turns")


@functools.cache
def plain_pytorch(dtype):
    return cnn_losses("cpu", dtype=dtype)


def test_unsharded_equals_plain_pytorch():
    losses = cnn_losses("spmd", dtype=torch.float64)
    assert losses == pytest.approx(plain_pytorch(torch.float64), rel=1e-9)


@pytest.mark.parametrize(
    "mesh", [(8, 1), (1, 8), (2, 4), (4, 2), (2, 2, 2), (1, 3), (5, 1)], ids=label
)
def test_float64_equals_plain_pytorch(mesh):
    losses = cnn_losses("spmd", mesh_of(mesh), dtype=torch.float64)
    assert losses == pytest.approx(plain_pytorch(torch.float64), rel=1e-9)


def test_float32_equals_plain_pytorch():
    losses = cnn_losses("spmd", mesh_of((2, 4)))
    assert losses == pytest.approx(plain_pytorch(torch.float32), rel=1e-4)
