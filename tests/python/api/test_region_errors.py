# SPDX-License-Identifier: Apache-2.0
"""What manual regions refuse, word for word, where PyTorch's vmap would speak of itself."""

import re

import pytest
import torch
from random_calls import RaisingList
from torch import nn

import torch_spmd as spmd
from torch_spmd import P

READ = (
    "a shard's values cannot be read inside a manual region, since each device has its own; return "
    "the value, or use torch.where"
)
SHAPE = (
    "the shape of a result depends on a shard's values, but all devices run one program; use "
    "torch.where, or compute it outside of the region"
)
BACKWARD = "cannot run inside a manual region; call it outside on what the region returns"


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "f, words",
    [
        (lambda t: t[t > 0], SHAPE),
        (torch.unique, SHAPE),
        (lambda t: torch.bincount(t.long()), SHAPE),
        (lambda t: t.numpy(), READ),
        (lambda t: torch.equal(t, t), READ),
        (lambda t: torch.allclose(t, t), READ),
        (lambda t: f"{t[0]:.2f}", READ),
        (lambda t: t[int(spmd.lax.axis_index("x"))], READ),
        (lambda t: t.requires_grad_().sum().backward(), f"requires_grad_() {BACKWARD}"),
        (
            lambda t: torch.autograd.grad(t.requires_grad_().sum(), t),
            f"requires_grad_() {BACKWARD}",
        ),
        (lambda t: t.data, "t.data cannot be used inside a manual region; use t.detach()"),
        (lambda t: torch.tensor(t[0]), "a shard cannot be copied by torch.tensor"),
        (
            lambda t: torch.add(t, t, out=torch.empty_like(t)),
            "aten::add.out cannot be used inside a manual region, because PyTorch's vmap, which "
            "runs the shards, has no rule for it; call it outside",
        ),
        (
            lambda t: LSTM(t.view(1, 1, 2))[0],
            "aten::lstm.input cannot be used inside a manual region",
        ),
        (
            lambda t: nn.Linear(2, 2, device="spmd")(t),
            "a value that does not vary along a manual axis is overwritten in place by random "
            "numbers, which vary",
        ),
        (torch.distributed.all_reduce, "torch.distributed's collectives need a process group"),
    ],
)
def test_words_of_vmap(mesh, f, words):
    region = spmd.shard_map(lambda t: f(t), mesh, P("x"), P("x"))
    with pytest.raises(RuntimeError, match=r"^shard_map: <lambda> \(.*: " + re.escape(words)):
        region(torch.arange(8.0, device="spmd"))
    assert not torch._C._functorch.maybe_current_level()


LSTM = nn.LSTM(2, 2).to("spmd")


def test_what_a_shard_has_not(mesh):
    """Inside, devices are not asked where a shard lies, and it is not sharded along the axis."""
    x = torch.arange(8.0, device="spmd")
    for f, words in (
        (
            lambda t: spmd.reshard(t, mesh, P("x")),
            "reshard: spec P('x') names axis 'x', along which",
        ),
        (
            lambda t: spmd.mark_sharding(t, mesh, P("x")),
            "mark_sharding: spec P('x') names axis 'x'",
        ),
        (spmd.sharding_of, "sharding_of: the tensor is a shard inside of a manual region"),
        (spmd.local_shards, "local_shards: the tensor is a shard inside of a manual region"),
        (spmd.clear_sharding, "clear_sharding: the tensor is a shard inside of a manual region"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(words)):
            spmd.shard_map(f, mesh, P("x"), P("x"))(x)
    both = spmd.make_mesh((2, 2), ("x", "y"))
    rows = torch.arange(16.0).view(4, 4)
    f = spmd.shard_map(
        lambda t: spmd.reshard(t, both, P(None, "y")) * 2, both, P("x"), P("x"), axis_names={"x"}
    )
    assert torch.equal(f(rows.to("spmd")).cpu(), rows * 2)  # y is automatic inside


def test_tensors_from_outside_wherever_they_are_passed(mesh):
    w = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, P("x"))
    parts = spmd.make_mesh((4,), ("x",))
    half = spmd.mark_sharding(torch.ones(8, device="spmd"), parts, P("x:0"))
    x = torch.arange(8.0, device="spmd")
    for f in (
        lambda t: torch.cat([t, w]),
        lambda t: torch.stack((w, w)).sum() + t,
        lambda t: torch.add(t, other=w[:2]),
        lambda t: torch.einsum("i,j->i", [t, w]),
        lambda t: t + half[:2],
    ):
        with pytest.raises(ValueError, match=r"from outside that is sharded over the manual axis"):
            spmd.shard_map(f, mesh, P("x"), P("x"))(x)


def test_numbers_in_sums(mesh):
    """As in JAX, the sum of 1 is the number of devices."""
    seen = {}

    def f(t):
        seen.update(
            a=spmd.lax.psum(1, "x"), b=spmd.lax.pmean(3.0, "x"), c=spmd.lax.pmax({"k": 2}, "x")
        )
        with pytest.raises(TypeError, match="x must be a tensor or a tree of tensors; got 'one'"):
            spmd.lax.psum("one", "x")
        with pytest.raises(TypeError, match="x must be a tensor or a tree of tensors; got 1"):
            spmd.lax.all_gather(1, "x")
        return t * spmd.lax.psum(0.5, "x")

    x = torch.arange(8.0, device="spmd")
    assert torch.equal(spmd.shard_map(f, mesh, P("x"), P("x"))(x).cpu(), x.cpu() * 2)
    assert seen == {"a": 4, "b": 3.0, "c": {"k": 2}}


class Several(list):
    """A list that PyTorch's trees take for a leaf."""


def test_containers_that_are_no_trees(mesh):
    """They would keep their tensors from becoming shards, and shards from becoming tensors."""
    x = torch.ones(8, device="spmd")
    what = "whose tensors PyTorch's trees do not show; use a list, a tuple or a dict, or register"
    f = spmd.shard_map(lambda t: t, mesh, P("x"), P("x"))
    with pytest.raises(TypeError, match=rf"argument \[0\] is a Several, {what}"):
        f(Several([x]))
    with pytest.raises(TypeError, match=rf"argument \[0\]\['a'\] is a Several, {what}"):
        f({"a": Several([x])})
    with pytest.raises(TypeError, match=r"argument \[0\] cannot be read: RecursionError: deep"):
        f(RaisingList([x]))
    for result, place in (
        (Several, "its result"),
        (lambda ts: (ts[0], Several(ts)), r"result \[1\]"),
    ):
        f = spmd.shard_map(lambda t, result=result: result([t]), mesh, P("x"), P("x"))
        with pytest.raises(TypeError, match=rf"{place} is a Several, {what}"):
            f(x)
    f = spmd.shard_map(lambda t, size: t.view(size), mesh, P("x"), P("x"))
    assert f(x, torch.Size([2])).shape == (8,)  # a tuple of numbers is as good as a number
