# SPDX-License-Identifier: Apache-2.0
"""FlopCounterMode counts what the device computes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def flops(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


MODELS = {
    "linear": (lambda: nn.Linear(16, 32), (8, 16)),
    "linear of a batch": (lambda: nn.Linear(16, 32, bias=False), (2, 8, 16)),
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), (8, 16)),
    "bilinear": (lambda: Twice(nn.Bilinear(4, 4, 3)), (8, 4)),
    "convolution": (lambda: nn.Conv2d(3, 8, 3), (2, 3, 8, 8)),
    "transposed convolution": (lambda: nn.ConvTranspose1d(3, 8, 3), (2, 3, 8)),
    "embedding": (lambda: nn.Sequential(Numbers(), nn.Embedding(8, 4), nn.Linear(4, 2)), (6,)),
    "gru": (lambda: First(nn.GRU(4, 8)), (5, 2, 4)),
    "attention with weights": (lambda: Thrice(nn.MultiheadAttention(8, 2)), (5, 2, 8)),
}


class First(nn.Sequential):
    def forward(self, x):
        return self[0](x)[0]


class Twice(nn.Sequential):
    def forward(self, x):
        return self[0](x, x)


class Thrice(nn.Sequential):
    def forward(self, x):
        return self[0](x, x, x)[0]


class Numbers(nn.Module):
    def forward(self, x):
        return (x.abs() * 4).long() % 8


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_it_counts_as_on_the_cpu(name, gradient):
    make, sizes = MODELS[name]

    def count(device):
        model = make().to(device)
        x = torch.randn(sizes).to(device).requires_grad_(gradient)
        return flops(lambda: model(x)), flops(lambda: model(x).sum().backward())

    assert count("spmd") == count("cpu")


def test_it_counts_fused_attention():
    """As GPUs' attention is counted; PyTorch has no formula for the CPU's."""
    q = torch.randn(2, 4, 8, 16, device="spmd", requires_grad=True)
    one = 2 * (2 * 4 * 8 * 8 * 16)
    assert flops(lambda: F.scaled_dot_product_attention(q, q, q)) == 2 * one
    assert flops(lambda: F.scaled_dot_product_attention(q, q, q).sum().backward()) == 7 * one
