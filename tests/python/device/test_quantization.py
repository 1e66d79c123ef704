# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training: observers resize their buffers at the first input."""

import copy

import pytest
import torch
from torch import nn
from torch.ao.quantization import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)

import torch_spmd as spmd
from torch_spmd import _C

PER_CHANNEL = {
    "observer": MovingAveragePerChannelMinMaxObserver,
    "quant_min": -128,
    "quant_max": 127,
    "dtype": torch.qint8,
    "qscheme": torch.per_channel_symmetric,
    "ch_axis": 0,
}
PER_TENSOR = {
    "observer": MovingAverageMinMaxObserver,
    "quant_min": 0,
    "quant_max": 255,
    "dtype": torch.quint8,
    "qscheme": torch.per_tensor_affine,
}


class Quantised(nn.Module):
    """A layer whose weight and input are quantized when they are used."""

    def __init__(self, kind):
        super().__init__()
        self.linear = nn.Linear(8, 6)
        self.of_weight = kind(**PER_CHANNEL)
        self.of_input = kind(**PER_TENSOR)

    def forward(self, x):
        return nn.functional.linear(
            self.of_input(x), self.of_weight(self.linear.weight), self.linear.bias
        )


def trained(model, device, mark=None):
    model = copy.deepcopy(model).to(device)
    if mark is not None:
        spmd.mark_sharding(model.linear.weight, *mark)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(5):
        if step == 3:  # the ranges stay as they are
            model.apply(torch.ao.quantization.disable_observer)
        x = torch.randn(16, 8, generator=generator) * (1 + step)
        loss = model(x.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", [FusedMovingAvgObsFakeQuantize, FakeQuantize])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_training_for_quantisation(kind, cut):
    torch.manual_seed(0)
    model = Quantised(kind)
    mark = (spmd.make_mesh((2,), ("model",)), ("model", None)) if cut else None
    losses, state = trained(model, "spmd", mark)
    expected_losses, expected = trained(model, "cpu")
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in expected.items()}
    torch.testing.assert_close(state, expected)


def observe(device, per_row, on, fake):
    """One call of the op on the buffers of a new observer; all that it returns and writes."""
    x = torch.linspace(-3, 5, 12).view(3, 4).to(device)
    switch, quantise = (torch.tensor([int(v)]).to(device) for v in (on, fake))
    smallest, largest = torch.empty(0, device=device), torch.empty(0, device=device)
    if not per_row:
        smallest, largest = (torch.tensor(v).to(device) for v in (torch.inf, -torch.inf))
    scale = torch.ones(1).to(device)
    zero_point = torch.zeros(1, dtype=torch.int).to(device)
    results = torch._fused_moving_avg_obs_fq_helper(
        x, switch, quantise, smallest, largest, scale, zero_point, 0.1, -128, 127, 0, per_row, True
    )
    return [t.cpu() for t in (*results, smallest, largest, scale, zero_point)]


@pytest.mark.parametrize("per_row", [False, True], ids=["tensor", "rows"])
@pytest.mark.parametrize("on", [False, True], ids=["off", "on"])
def test_an_observer_that_has_seen_nothing(per_row, on):
    """The observer takes the size of its input. If it is off, the kernel leaves scales
    undefined."""
    got, want = (observe(device, per_row, on, on) for device in ("spmd", "cpu"))
    assert [t.shape for t in got] == [t.shape for t in want]
    defined = len(got) if on else 4
    torch.testing.assert_close(got[:defined], want[:defined])


def test_an_observer_may_be_recorded_once_it_has_its_size():
    fake = FusedMovingAvgObsFakeQuantize(**PER_CHANNEL).to("spmd")
    x = torch.randn(6, 4).to("spmd")
    fake(x)
    before = _C.statistics()["host_fallbacks"]
    fake(x * 2).cpu()
    assert _C.statistics()["host_fallbacks"] == before


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("sizes", [(0,), (7, 2), (1,)], ids=str)
def test_out_takes_the_size_of_the_result(sizes):
    a, b = torch.arange(6.0).view(2, 3), torch.arange(3.0)
    for call in (
        lambda a, b, out: torch.add(a, b, out=out),
        lambda a, b, out: torch.cumsum(a, 0, out=out),
        lambda a, b, out: torch.mv(a, b, out=out),
    ):
        out = torch.ones(sizes, device="spmd")
        want = call(a, b, torch.empty(0))
        got = call(a.to("spmd"), b.to("spmd"), out)
        assert got is out and out.shape == want.shape
        assert torch.equal(out.cpu(), want)
