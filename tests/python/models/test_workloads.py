# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' workloads, with small sizes, give plain PyTorch's losses and parameters."""

import pytest
import torch

from benchmarks.workloads import WORKLOADS, conformer, gpt, llama, moe, stylegan2
from benchmarks.workloads.host import on_the_host

pytestmark = pytest.mark.modes("coalesced", "in_turns")

SMALL = {
    gpt: {"LAYERS": 1, "WIDTH": 32, "LENGTH": 16, "VOCAB": 64},
    llama: {"LAYERS": 1, "WIDTH": 32, "HIDDEN": 64, "LENGTH": 16, "VOCAB": 64},
    moe: {"LAYERS": 2, "WIDTH": 32, "HIDDEN": 64, "LENGTH": 16, "VOCAB": 64, "CAPACITY": 5},
    conformer: {
        "BLOCKS": 1,
        "WIDTH": 16,
        "HIDDEN": 32,
        "KERNEL": 5,
        "VOCAB": 8,
        "LENGTH": 12,
        "MICRO_BATCHES": 3,
    },
    stylegan2: {"STYLE": 8},
}
SIZES = {
    "mlp": {"batch": 16, "width": 32, "hidden": 64},
    "resnet50": {"batch": 2, "size": 64},
    "sg2_d": {"size": 64},
    "sg2_g": {"size": 64},
    "unet3d": {"size": 16},
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small models of doubles."""
    for module, constants in SMALL.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(stylegan2, "channels", lambda size: min(8, 256 // size))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def trained(name, annotated):
    """The losses of two steps, and the parameters after them, on the host."""
    torch.manual_seed(0)
    workload = WORKLOADS[name](annotated, **SIZES.get(name, {}))
    losses = [workload.step().item() for _ in range(2)]
    return losses, [p.detach().cpu() for p in workload.model.parameters()]


@pytest.mark.parametrize("name", WORKLOADS)
def test_equals_plain_pytorch(name):
    with on_the_host():
        losses, parameters = trained(name, False)
    for annotated in (False, True):
        got = trained(name, annotated)
        assert got[0] == pytest.approx(losses, rel=1e-9)
        torch.testing.assert_close(got[1], parameters, rtol=1e-7, atol=1e-9)
