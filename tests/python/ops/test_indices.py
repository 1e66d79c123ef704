# SPDX-License-Identifier: Apache-2.0
"""Reading and writing by index: indices that do not exist, rows that none names."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_spmd as spmd

pytestmark = pytest.mark.modes("free_moves")


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


@pytest.mark.parametrize("cut", [False, True])
def test_targets_outside_the_classes(mesh, cut):
    logits = torch.zeros(4, 8).to("spmd")
    if cut:
        spmd.mark_sharding(logits, mesh, (None, "model"))
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        F.cross_entropy(logits, torch.tensor([0, 9, 1, 2]).to("spmd")).item()


@pytest.mark.parametrize("keep_loss", [False, True])
def test_rows_outside_an_embedding(keep_loss):
    table = nn.Embedding(4, 4).to("spmd")
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    before = table.weight.detach().cpu()
    with pytest.raises(IndexError, match="index 9 is out of range"):
        loss = table(torch.tensor([1, 9]).to("spmd")).sum()
        loss.backward()
        if not keep_loss:
            del loss
        optimizer.step()
        spmd.sync(wait=True)
    assert torch.equal(table.weight.detach().cpu(), before)


def test_gradient_of_scatter_reduce_where_rows_are_not_indexed():
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    index = torch.zeros(2, 2, dtype=torch.long).to("spmd")
    spmd.mark_sharding(index, mesh, ("x", "y"))
    x = torch.ones(4, 2).to("spmd").requires_grad_()
    x.scatter_reduce(1, index, torch.full((2, 2), 2.0).to("spmd"), "amin").sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(4, 2))


def test_masked_scatter_gives_rows_in_order():
    t = torch.arange(18.0).view(3, 6).t()
    d = t.to("spmd")
    want = t.masked_scatter(t > 3, -t.flatten())
    got = d.masked_scatter(d > 3, -d.flatten())
    assert got.stride() == want.stride()
    assert torch.equal(got.cpu(), want)
