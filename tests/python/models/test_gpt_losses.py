# SPDX-License-Identifier: Apache-2.0
"""A sharded GPT has the losses of the unsharded one and of plain PyTorch."""

import functools

import pytest
import torch
from training import Job, combinations, gpt_losses, label, mesh_of

pytestmark = pytest.mark.modes("coalesced", "in_turns")

DOUBLE = Job(dtype=torch.float64)
DROPOUT = Job(dtype=torch.float64, dropout=0.2)
SINGLE = Job()
ADAMW = Job(optimizer="adamw", steps=50)


@functools.cache
def plain_pytorch(job):
    return gpt_losses(job, "cpu")


@functools.cache
def unsharded(job):
    return gpt_losses(job, "spmd")


def sharded(job, mesh, plan):
    return gpt_losses(job, "spmd", mesh_of(mesh), plan)


@pytest.mark.parametrize("job", [DOUBLE, SINGLE, ADAMW], ids=["double", "single", "adamw"])
def test_unsharded_equals_plain_pytorch(job):
    tolerance = {DOUBLE: 1e-9, SINGLE: 1e-4, ADAMW: 1e-2}[job]
    assert unsharded(job) == pytest.approx(plain_pytorch(job), rel=tolerance)


def test_training_lowers_the_loss():
    losses = plain_pytorch(ADAMW)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize(("mesh", "plan"), combinations(), ids=label)
def test_float64_equals_plain_pytorch(mesh, plan):
    assert sharded(DOUBLE, mesh, plan) == pytest.approx(plain_pytorch(DOUBLE), rel=1e-9)


@pytest.mark.parametrize(("mesh", "plan"), combinations([(8,), (2, 4), (5,)]), ids=label)
def test_dropout_equals_unsharded(mesh, plan):
    assert sharded(DROPOUT, mesh, plan) == pytest.approx(unsharded(DROPOUT), rel=1e-9)


@pytest.mark.parametrize(("mesh", "plan"), combinations([(2, 4), (3,)]), ids=label)
def test_float32_equals_plain_pytorch(mesh, plan):
    assert sharded(SINGLE, mesh, plan) == pytest.approx(plain_pytorch(SINGLE), rel=1e-4)


@pytest.mark.parametrize(("mesh", "plan"), combinations([(2, 4)]), ids=label)
def test_adamw_equals_plain_pytorch(mesh, plan):
    assert sharded(ADAMW, mesh, plan) == pytest.approx(plain_pytorch(ADAMW), rel=1e-2)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_few_devices(devices):
    assert sharded(DOUBLE, (devices,), "fsdp") == pytest.approx(plain_pytorch(DOUBLE), rel=1e-9)


def test_heads_that_do_not_divide():
    job = Job(dtype=torch.float64, heads=2, steps=5)
    assert sharded(job, (4,), "tp") == pytest.approx(plain_pytorch(job), rel=1e-9)
