# SPDX-License-Identifier: Apache-2.0
"""Modules whose parameters are not initialised yet, and other modules that PyTorch takes as they
are: what is replaced or hooked fails nowhere where PyTorch does not."""

import io
import itertools

import pytest
import torch
from torch import nn

MOVES = itertools.product(["cpu", "spmd"], ["cpu", "spmd", "meta"])


def lazy(device="cpu"):
    return nn.Sequential(
        nn.LazyLinear(4, device=device), nn.ReLU(), nn.LazyBatchNorm1d(device=device)
    )


@pytest.mark.parametrize(("start", "end"), [*MOVES])
def test_a_move(start, end):
    model = lazy(start).to(end)
    assert all(t.device.type == end for t in (*model.parameters(), *model.buffers()))
    if end != "meta":
        assert model(torch.ones(2, 3, device=end)).device.type == end
        assert all(t.device.type == end for t in (*model.parameters(), *model.buffers()))


def test_a_move_under_a_default_device():
    torch.set_default_device("spmd")
    try:
        model = nn.LazyLinear(4).to("cpu")
    finally:
        torch.set_default_device(None)
    assert model(torch.ones(2, 3)).shape == (2, 4)


OTHER_USES = {
    "half": lambda model: model.half(),
    "double": lambda model: model.double(),
    "printing": repr,
    "printing a parameter": lambda model: repr(model[0].weight),
    "zero_grad": lambda model: model.zero_grad(),
    "another parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 3))),
    "an optimizer": lambda model: torch.optim.SGD(model.parameters(), 0.1).zero_grad(),
    "saving": lambda model: torch.save(model.state_dict(), io.BytesIO()),
    "loading": lambda model: model.load_state_dict(lazy("spmd").state_dict()),
}


@pytest.mark.parametrize("use", OTHER_USES)
@pytest.mark.parametrize("device", ["cpu", "spmd"])
def test_another_use(use, device):
    """None raises, as none does on a device of PyTorch."""
    OTHER_USES[use](lazy(device))
