# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers on sequences of several lengths."""

import copy

import pytest
import torch
from torch import nn

import torch_spmd as spmd

pytestmark = pytest.mark.modes("free_moves")


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


def test_packed_sequences(mesh):
    torch.manual_seed(0)
    lengths = torch.tensor([5, 4, 2])
    net = nn.LSTM(4, 6, batch_first=True)

    def run(device):
        lstm = copy.deepcopy(net).to(device)
        x = torch.arange(60.0).reshape(3, 5, 4).div(60).to(device).requires_grad_()
        if device == "spmd":
            spmd.mark_sharding(lstm.weight_ih_l0, mesh, ("model", None))
            spmd.mark_sharding(x, mesh, (None, "data", None))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        out.square().sum().backward()
        return [t.detach().cpu() for t in (out, x.grad, *(p.grad for p in lstm.parameters()))]

    torch.testing.assert_close(run("spmd"), run("cpu"))
