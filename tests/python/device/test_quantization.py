# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training: observers resize their buffers at the first input."""

import copy

import pytest
import torch
from reported import reported
from torch import nn
from torch.ao.quantization import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)

import torch_spmd as spmd

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


def test_training_for_quantisation_runs_on_the_device():
    torch.manual_seed(0)
    model = Quantised(FusedMovingAvgObsFakeQuantize)
    before = reported()["host_fallbacks"]
    trained(model, "spmd", (spmd.make_mesh((2,), ("model",)), ("model", None)))
    assert reported()["host_fallbacks"] == before


X, SCALE, ZERO = torch.linspace(-3, 5, 48).view(8, 6), torch.full((1,), 0.04), torch.full((1,), 2.0)
SCALES, ZEROS = torch.linspace(0.02, 0.06, 8), torch.arange(8.0)
LEARNED = {
    "one": (torch._fake_quantize_learnable_per_tensor_affine, SCALE, ZERO, ()),
    "each": (torch._fake_quantize_learnable_per_channel_affine, SCALES, ZEROS, (0,)),
    "each column": (
        torch._fake_quantize_learnable_per_channel_affine,
        *(SCALES[:6], ZEROS[:6]),
        (1,),
    ),
}


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("cut", [("x", None), (None, "x"), ("x", "y")], ids=str)
def test_learned_quantizers(name, cut):
    quantize, scale, zero, axis = LEARNED[name]

    def gradients(device):
        tensors = [t.clone().to(device).requires_grad_() for t in (X, scale, zero)]
        if device == "spmd":
            spmd.mark_sharding(tensors[0], spmd.make_mesh((2, 2), ("x", "y")), cut)
        y = quantize(*tensors, *axis, -128, 127, 0.5)
        (y**3).sum().backward()
        return [y.detach(), *(t.grad for t in tensors)]

    before = reported()["host_fallbacks"]
    got = gradients("spmd")
    assert [spmd.sharding_of(t).spec for t in got[:2]] == [cut, cut]
    torch.testing.assert_close([t.cpu() for t in got], gradients("cpu"))
    assert reported()["host_fallbacks"] == before


FAKE = {
    "numbers": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -128, 127),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(
        *(x, SCALE.to(x.device), ZERO.int().to(x.device), 0, 255)
    ),
    "rows": lambda x: torch.fake_quantize_per_channel_affine(
        *(x, SCALES.to(x.device), ZEROS.int().to(x.device), 0, 0, 255)
    ),
    "columns": lambda x: torch.fake_quantize_per_channel_affine(
        *(x, SCALES[:6].to(x.device), ZEROS[:6].int().to(x.device), 1, 0, 255)
    ),
}


@pytest.mark.parametrize("name", FAKE)
@pytest.mark.parametrize("cut", [("x", None), (None, "x")], ids=str)
def test_fake_quantization_sends_nothing(name, cut):
    x = spmd.mark_sharding(X.to("spmd"), spmd.make_mesh((2,), ("x",)), cut).requires_grad_()
    host = X.clone().requires_grad_()
    before = reported()["host_fallbacks"]
    y = FAKE[name](x)
    y.square().sum().backward()
    assert [spmd.sharding_of(t).spec for t in (y, x.grad)] == [cut, cut]
    spmd.sync(wait=True)
    sent = [row.kind for row in spmd.debug.collectives().rows]
    assert reported()["host_fallbacks"] == before
    want = FAKE[name](host)
    want.square().sum().backward()
    torch.testing.assert_close([y.detach().cpu(), x.grad.cpu()], [want.detach(), host.grad])
    assert sent in ([], ["all_gather"])  # of scales, which have no mark


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 300, -128, 127),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, 5, 1),
        lambda x: torch.fake_quantize_per_channel_affine(
            *(x, SCALE.to(x.device), ZERO.int().to(x.device), 0, 0, 255)
        ),
    ],
)
def test_quantizers_that_do_not_fit_are_refused_at_their_line(call):
    with pytest.raises(RuntimeError) as refused:
        call(X)
    with pytest.raises(RuntimeError) as here:
        call(X.to("spmd"))
    assert str(here.value).splitlines()[0] == str(refused.value).splitlines()[0]


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


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("low, high", [(-3, 5), (0, 2), (-4, 0), (0, 0), (1, 4), (-1e-5, 1e-4)])
def test_the_quantizer_of_a_range(symmetric, low, high):
    def quantizer(device):
        x = torch.linspace(low, high, 12).view(3, 4).to(device)
        buffers = [torch.tensor([v]).to(device) for v in (torch.inf, -torch.inf, 1.0)]
        buffers.append(torch.zeros(1, dtype=torch.int).to(device))
        switches = [torch.tensor([1]).to(device)] * 2
        for scale in (1, 2):
            out = torch._fused_moving_avg_obs_fq_helper(
                x * scale, *switches, *buffers, 0.1, -128, 127, 0, False, symmetric
            )
        return [t.cpu() for t in (*out, *buffers)]

    torch.testing.assert_close(quantizer("spmd"), quantizer("cpu"))


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
