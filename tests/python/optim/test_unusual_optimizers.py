# SPDX-License-Identifier: Apache-2.0
"""Optimizers of users' own making: the hooks around steps ask nothing that PyTorch does not."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer


class Unhashable(SGD):
    __hash__ = None

    def __eq__(self, other):
        return True


class Own(Optimizer):
    """Keeps its parameters itself."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.own, self.lr = list(self.param_groups[0]["params"]), lr

    @torch.no_grad()
    def step(self):
        for p in self.own:
            p -= self.lr * p.grad

    def zero_grad(self):
        for p in self.own:
            p.grad = None


class Wrapper(Optimizer):
    """Its own __init__ only."""

    def __init__(self, parameters, lr):
        self.inner = SGD(parameters, lr)

    param_groups = property(lambda self: self.inner.param_groups)

    def step(self):
        self.inner.step()

    def zero_grad(self):
        self.inner.zero_grad()


def without(attribute, value=None):
    def make(parameters, lr):
        optimizer = Own(parameters, lr)
        delattr(optimizer, attribute)
        if value is not None:
            setattr(optimizer, attribute, value)
        return optimizer

    return make


def with_a_tuple(parameters, lr):
    optimizer = SGD(parameters, lr)
    optimizer.param_groups = tuple(optimizer.param_groups)
    return optimizer


OPTIMIZERS = {
    "usual": SGD,
    "unhashable": Unhashable,
    "a tuple of groups": with_a_tuple,
    "no groups": without("param_groups"),
    "empty groups": without("param_groups", [{}]),
    "groups that are none": without("param_groups", 3),
    "no state": without("state"),
    "state of another kind": without("state", [1]),
    "a wrapper": Wrapper,
}


@pytest.mark.parametrize("device", ["cpu", "spmd"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_steps(name, device):
    model = nn.Linear(2, 1, bias=False).to(device)
    nn.init.zeros_(model.weight)
    optimizer = OPTIMIZERS[name](model.parameters(), 0.5)
    for _ in range(3):
        model(torch.ones(1, 2, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.weight.tolist() == [[-1.5, -1.5]]
