# SPDX-License-Identifier: Apache-2.0
"""Rows that are read by the places of one mask and written by those of another stay where they are
if both masks have as many places in each sample."""

import pytest
import torch
from torch.nn import functional as F

import torch_spmd as spmd
from torch_spmd import _C, _options

BATCH, LENGTH, HEADS, D = 8, 12, 2, 8
WIDTH = HEADS * D
SMALL = 1024

MASKS = {
    "as_many": lambda g: torch.rand(BATCH, LENGTH, generator=g).argsort(1) < 3,
    "random": lambda g: torch.rand(BATCH, LENGTH, generator=g) < 0.3,
    "of_some": lambda g: torch.arange(LENGTH) < torch.tensor([[0, 3, 0, 0, 12, 1, 0, 2]]).mT,
    "of_one": lambda g: (torch.arange(BATCH) == 5)[:, None].expand(BATCH, LENGTH),
    "of_all": lambda g: torch.ones(BATCH, LENGTH, dtype=torch.bool),
}

PLACES = {
    "tuple": lambda mask: mask.nonzero(as_tuple=True),
    "columns": lambda mask: (mask.nonzero()[:, 0], mask.nonzero()[:, 1]),
    "unbound": lambda mask: mask.long().nonzero().unbind(1),
    "where": lambda mask: torch.where(mask),
}


def samples_first(x, w, v, a, b, most):
    packed = x.new_zeros(BATCH, most, WIDTH)
    packed[b] = x[a]
    y = F.linear(packed.softmax(1) + packed.sum(1, keepdim=True), w).tanh()
    out = F.linear(x, v)
    out[a] = y[b]
    return out


def samples_second(x, w, v, a, b, most):
    """As Longformer does: lists in the other order, and a slice between them."""
    x = x.transpose(0, 1)
    packed = x.new_zeros(most, BATCH, WIDTH)
    packed[b[::-1]] = x[a[::-1]]
    q = F.linear(packed, w).view(most, BATCH * HEADS, D).transpose(0, 1)
    k = F.linear(x, v).reshape(LENGTH, BATCH * HEADS, D).transpose(0, 1)
    y = torch.bmm(torch.bmm(q, k.mT).softmax(-1), k).view(BATCH, HEADS, most, D)
    out = x * 2
    out[a[::-1]] = y[b[0], :, b[1]].view(len(b[0]), -1)
    return out.transpose(0, 1)


def added(x, w, v, a, b, most):
    packed = x.new_zeros(BATCH, most, WIDTH).index_put(b, F.linear(x[a], w), accumulate=True)
    return (x @ v).index_put(a, (packed * packed.mean(1, keepdim=True))[b], accumulate=True)


MODELS = {"samples_first": samples_first, "samples_second": samples_second, "added": added}


def gradients(model, places, x, w, v, mask):
    leaves = [t.detach().requires_grad_() for t in (x, w, v)]
    counts = mask.long().sum(1)
    most = counts.max().item()
    a = places(mask)
    b = places(torch.arange(most, device=x.device) < counts.unsqueeze(-1))
    rest = places(torch.arange(most, device=x.device) >= counts.unsqueeze(-1))
    out = model(*leaves, a, b, most)
    (out.square().sum() / out.numel()).backward()
    filled = torch.zeros(BATCH, most, device=x.device)
    filled[rest] = 1
    return [out.detach(), filled, *(t.grad for t in leaves)]


def drawn(mask):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=g)
    w, v = (0.3 * torch.randn(WIDTH, WIDTH, generator=g) for _ in range(2))
    return x, w, v, MASKS[mask](g)


def placed(mesh, x, w, v, mask):
    x, w, v, mask = (t.to("spmd") for t in (x, w, v, mask))
    spmd.mark_sharding((x, mask), mesh, [("data", None, None), ("data", None)])
    spmd.mark_sharding((w, v), mesh, [(None, None)] * 2)
    return x, w, v, mask


def compare(model, places, mask, devices=4):
    """The rows of what the step sends."""
    given = drawn(mask)
    want = gradients(MODELS[model], PLACES[places], *given)
    mesh = spmd.make_mesh((devices,), ("data",))
    _C.forget_programs()
    got = gradients(MODELS[model], PLACES[places], *placed(mesh, *given))
    spmd.sync()
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    return [row for program in _C.programs() for row in program.collectives()]


def check_sent(rows):
    # Kind and bytes: the gradients of the weights, and numbers.
    large = [(row[0], row[4]) for row in rows if row[4] >= SMALL]
    assert {kind for kind, _ in large} == {"all_reduce"}
    assert sum(size for _, size in large) == 2 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("model", MODELS)
def test_only_gradients_are_sent(model, mask):
    check_sent(compare(model, "tuple", mask))


@pytest.mark.parametrize("places", PLACES)
def test_in_whatever_form_the_places_are(places):
    check_sent(compare("samples_second", places, "random", devices=2))


@pytest.mark.parametrize("options", [{"verify": True}, {"coalesce": False}], ids=str)
def test_in_other_modes(options):
    with _options.options(**options):
        check_sent(compare("samples_second", "tuple", "random"))


def moved(x, w, first, second):
    """x[first] @ w at the places of `second`, and the gradients."""
    leaves = [t.detach().requires_grad_() for t in (x, w)]
    a, b = first.nonzero(as_tuple=True), second.nonzero(as_tuple=True)
    out = torch.zeros_like(x).index_put(b, F.linear(leaves[0][a], leaves[1]))
    out.square().sum().backward()
    return [out.detach(), *(t.grad for t in leaves)]


def test_lists_are_equal_in_some_steps_only():
    """The samples of the lists are the same, and then as many, but others."""
    x, w, _, mask = drawn("random")
    mesh = spmd.make_mesh((4,), ("data",))
    at = placed(mesh, x, w, w, mask)
    compiles = []
    for other in (0, 1, 0, 3, 1, 0):
        masks = mask, mask.flip(1).roll(other, 0)
        want = moved(x, w, *masks)
        on_device = [spmd.mark_sharding(m.to("spmd"), mesh, ("data", None)) for m in masks]
        got = moved(*at[:2], *on_device)
        spmd.sync()
        compiles.append(_C.statistics()["compiles"])
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    # One program for equal lists and one for others, each compiled for the ways in which they come.
    assert compiles[1] > compiles[0] and compiles[-1] == compiles[2]


def test_equal_lists_are_tensors_of_their_own():
    mesh = spmd.make_mesh((4,), ("data",))
    mask = spmd.mark_sharding(drawn("random")[3].to("spmd"), mesh, ("data", None))
    want = drawn("random")[3].nonzero()
    a, b, c = mask.nonzero(), mask.nonzero(), mask.nonzero()
    assert torch.equal((a[:, 0] + b[:, 0]).cpu(), 2 * want[:, 0])
    a[:, 0] += 1
    b += 2
    spmd.mark_sharding(c, mesh, ("data", None))
    spmd.sync()
    assert torch.equal((a + b + c).cpu(), 3 * want + torch.tensor([3, 2]))
    assert torch.equal(
        torch.stack([a[:, 0], b[:, 0], c[:, 0]]).cpu(),
        torch.stack([want[:, 0] + k for k in (1, 2, 0)]),
    )
    c.add_(a)
    assert torch.equal(c.cpu(), 2 * want + torch.tensor([1, 0]))
    assert torch.equal(a.cpu(), want + torch.tensor([1, 0]))
