# SPDX-License-Identifier: Apache-2.0
"""A program that fails leaves every buffer as it was; what depended on it says so."""

import pytest
import torch

import torch_spmd as spmd


def _accumulate():
    """While gradients accumulate, a backward pass is a program of its own."""
    x = torch.ones(2).to("spmd").requires_grad_()
    for _ in range(2):
        x.sum().backward()


@pytest.fixture(params=["one program a step", "several programs a step"])
def step(request):
    if request.param != "one program a step":
        _accumulate()
    torch.manual_seed(0)
    weight = torch.randn(5, 3).to("spmd").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def run(rows):
        loss = weight.index_select(0, torch.tensor(rows).to("spmd")).square().sum()
        loss.backward()
        if request.param != "one program a step":
            loss = weight.index_select(0, torch.tensor(rows).to("spmd")).square().sum()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run.weight = weight
    return run


def test_the_error_names_the_op_and_parameters_stay(step):
    step([0, 1]).item()
    before = step.weight.detach().cpu()
    for _ in range(2):
        loss = step([0, 9])
        with pytest.raises(IndexError, match=r"aten::index_select.*index out of range"):
            loss.item()
        assert torch.equal(step.weight.detach().cpu(), before)
    assert step([0, 1]).item() > 0
    assert not torch.equal(step.weight.detach().cpu(), before)


def test_steps_after_a_failing_one_fail_with_it(step):
    step([0, 1]).item()
    before = step.weight.detach().cpu()
    losses = [step([0, 9]), step([0, 1]), step([1, 2])]
    for loss in reversed(losses):
        with pytest.raises(IndexError, match="index out of range"):
            loss.item()
    assert torch.equal(step.weight.detach().cpu(), before)


def test_sync_raises_what_nobody_looked_at(step):
    step([0, 1]).item()  # a momentum that a failing step would make first is lost with it
    step([0, 9])
    with pytest.raises(IndexError, match="index out of range"):
        spmd.sync(wait=True)
    assert step([0, 1]).item() > 0
