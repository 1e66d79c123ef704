# SPDX-License-Identifier: Apache-2.0
"""Ring attention against attention over the whole sequence on the CPU, and what it sends."""

import math

import pytest
import torch

import torch_spmd as spmd
from torch_spmd.nn import ring_steps, unzigzag, zigzag

pytestmark = pytest.mark.modes("coalesced", "verified")


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def full_attention(q, k, v, *, is_causal=False, segment_ids=None, scale=None, kept=None):
    """By the definition; `kept` are the factors of dropout."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    if segment_ids is not None:
        other = segment_ids[:, None, :, None] != segment_ids[:, None, None, :]
        scores = scores.masked_fill(other, -math.inf)
    weights = scores.softmax(-1)
    return (weights if kept is None else weights * kept) @ v


def kept_in_dropout(p, seed, q, k):
    """The factors for the whole sequence, from the same numbers."""
    how = ring_steps.How(None, "", 1, False, 1.0, False, (q.shape[2], k.shape[2]), p, None)
    queries = ring_steps._Queries(q.unflatten(1, (k.shape[1], -1)), None, torch.arange(q.shape[2]))
    keys = ring_steps._Keys(k, None, torch.arange(k.shape[2]), k.shape[3])
    return ring_steps._kept(how, seed, queries, keys).flatten(1, 2)


def segments(batch, length):
    """Three sequences of different lengths, others in each row."""
    rows = [[0] * (5 + b) + [1] * (length // 2) for b in range(batch)]
    return torch.tensor([row + [2] * (length - len(row)) for row in rows])


MESHES = {
    "1": ((1,), ("context",)),
    "2": ((2,), ("context",)),
    "4": ((4,), ("context",)),
    "2x2": ((2, 2), ("data", "context")),
    "2x3": ((2, 3), ("model", "context")),
}
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "packed": {"segment_ids": True},
    "packed_causal": {"is_causal": True, "segment_ids": True},
    "zigzag": {"is_causal": True, "zigzag": True},
    "zigzag_packed": {"is_causal": True, "segment_ids": True, "zigzag": True},
    "zigzag_open": {"zigzag": True, "segment_ids": True},
    "blocks": {"key_block": 4, "segment_ids": True},
    "zigzag_blocks": {"is_causal": True, "segment_ids": True, "zigzag": True, "key_block": 2},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mesh", MESHES)
def test_it_is_attention_over_the_whole_sequence(mesh, case):
    """Values and gradients, in float64, with two queries for each key head."""
    mesh = spmd.make_mesh(*MESHES[mesh])
    n, arguments = mesh.shape["context"], dict(CASES[case])
    in_zigzag, key_block = arguments.pop("zigzag", False), arguments.pop("key_block", None)
    q, k, v = numbers(2, 4, 24, 6), numbers(2, 2, 24, 6, seed=1), numbers(2, 2, 24, 5, seed=2)
    weight = numbers(2, 4, 24, 5, seed=3)
    if "segment_ids" in arguments:
        arguments["segment_ids"] = segments(2, 24)
    theirs = [t.clone().requires_grad_() for t in (q, k, v)]
    expected = full_attention(*theirs, **arguments)
    (expected * weight).sum().backward()

    def ordered(t, dim):
        return zigzag(t, dim, n) if in_zigzag else t

    ours = [ordered(t, 2).to("spmd").requires_grad_() for t in (q, k, v)]
    if "segment_ids" in arguments:
        arguments["segment_ids"] = ordered(arguments["segment_ids"], 1).to("spmd")
    got = spmd.nn.ring_attention(*ours, mesh, zigzag=in_zigzag, key_block=key_block, **arguments)
    (got * ordered(weight, 2).to("spmd")).sum().backward()
    torch.testing.assert_close(got.detach().cpu(), ordered(expected.detach(), 2))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad.cpu(), ordered(b.grad, 2))


def test_dropout_follows_from_the_seed_and_not_from_the_mesh():
    q, k, v = numbers(2, 4, 16, 6), numbers(2, 2, 16, 6, seed=1), numbers(2, 2, 16, 5, seed=2)
    outs = []
    for shape, in_zigzag in (((2,), False), ((4,), False), ((4,), True)):
        mesh, n = spmd.make_mesh(shape, ("context",)), shape[0]
        order = (lambda t, n=n: zigzag(t, 2, n)) if in_zigzag else (lambda t: t)
        back = (lambda t, n=n: unzigzag(t, 2, n)) if in_zigzag else (lambda t: t)
        ours = [order(t).to("spmd").requires_grad_() for t in (q, k, v)]
        torch.manual_seed(7)
        out = spmd.nn.ring_attention(*ours, mesh, is_causal=True, dropout_p=0.25, zigzag=in_zigzag)
        out.square().sum().backward()
        outs.append([back(t.detach().cpu()) for t in (out, *(a.grad for a in ours))])
    torch.manual_seed(7)
    seed = torch.randint(1 << 31, (), device="spmd").cpu()
    theirs = [t.clone().requires_grad_() for t in (q, k, v)]
    kept = kept_in_dropout(0.25, seed, q, k)
    expected = full_attention(*theirs, is_causal=True, kept=kept)
    expected.square().sum().backward()
    for results in outs:
        for a, b in zip(results, (expected.detach(), *(t.grad for t in theirs))):
            torch.testing.assert_close(a, b)
    many = kept_in_dropout(0.25, seed, numbers(4, 4, 128, 2), numbers(4, 4, 128, 2)) > 0
    share = many.double().mean()  # a quarter of 262,144 is dropped, ± 6 standard deviations
    assert abs(share - 0.75) < 6 * math.sqrt(0.25 * 0.75 / many.numel())
    for dim in range(4):  # neighbours are independent
        pairs = (many.narrow(dim, 0, many.shape[dim] - 1), many.narrow(dim, 1, many.shape[dim] - 1))
        both = (pairs[0] & pairs[1]).double().mean()
        assert abs(both - 0.75**2) < 6 * math.sqrt(0.25 / pairs[0].numel())


def sent(function):
    """What a program sends, without what is small: kind and bytes."""
    spmd.sync(wait=True)
    function()
    spmd.sync(wait=True)
    return [(row.kind, row.bytes) for row in spmd.debug.collectives() if row.bytes > 64]


@pytest.mark.parametrize("in_zigzag", [False, True])
def test_keys_and_values_go_once_around_the_ring(in_zigzag):
    """On four devices each passes its keys and values on three times forwards, and three times
    backwards, where the gradients are passed on four times. A step of the ring is one exchange, in
    which each device sends. Batch and heads stay where they are, and only the two key heads
    travel."""
    mesh = spmd.make_mesh((2, 4), ("data", "context"))
    shapes = ((2, 4, 32, 16), (2, 2, 32, 16), (2, 2, 32, 24))
    q, k, v = (
        spmd.mark_sharding(
            numbers(*shape, dtype=torch.float32).to("spmd"), mesh, ("data", None, "context", None)
        ).requires_grad_()
        for shape in shapes
    )
    step = [("exchange", 1 * 2 * (32 // 4) * (16 + 24) * 4)]
    out = []
    rows = sent(
        lambda: out.append(spmd.nn.ring_attention(q, k, v, mesh, is_causal=True, zigzag=in_zigzag))
    )
    assert rows == step * 3
    assert sent(lambda: out[0].backward(torch.ones_like(out[0]))) == step * 7
    for t in (q, k, v):
        part = spmd.local_shards(t.grad, [0])[0].data.shape
        assert part == (1, t.shape[1], 8, t.shape[3])


def test_half_types_travel_as_they_are():
    mesh = spmd.make_mesh((4,), ("context",))
    q, k, v = (numbers(1, 2, 32, 16, seed=i).bfloat16() for i in range(3))
    ours = [
        spmd.mark_sharding(t.to("spmd"), mesh, (None, None, "context", None)) for t in (q, k, v)
    ]
    out = []
    rows = sent(lambda: out.append(spmd.nn.ring_attention(*ours, mesh, is_causal=True)))
    assert rows == [("exchange", 2 * 8 * (16 + 16) * 2)] * 3
    exact = full_attention(*(t.double() for t in (q, k, v)), is_causal=True)
    assert out[0].dtype == torch.bfloat16
    torch.testing.assert_close(out[0].cpu().double(), exact, rtol=2**-8, atol=1e-6)


def test_zigzag_computes_half_of_the_other_blocks():
    """Of n blocks of scores on each device, one and half of n - 1."""
    mesh, work = spmd.make_mesh((4,), ("context",)), {}
    ours = [
        spmd.mark_sharding(t.to("spmd"), mesh, (None, None, "context", None))
        for t in (numbers(1, 2, 64, 16, seed=i) for i in range(3))
    ]
    for in_zigzag in (False, True):
        out = spmd.nn.ring_attention(*ours, mesh, is_causal=True, zigzag=in_zigzag)
        spmd.sync(wait=True)
        rows = spmd.debug.timeline("v5e-4").rows
        work[in_zigzag] = sum(row.flops for row in rows if "matmul" in row.op)
        del out
    assert work[False] == 4 * 2 * 2 * 2 * 16 * 16 * 16  # blocks, products, flops, heads
    assert work[True] / work[False] == (1 + 3 / 2) / 4


def test_blocks_of_keys_bound_the_memory_of_scores():
    """Backwards a device holds several blocks of scores [heads, 256, keys] at a time."""
    mesh, peaks = spmd.make_mesh((2,), ("context",)), {}
    for key_block in (None, 32):
        ours = [
            spmd.mark_sharding(t.to("spmd"), mesh, (None, None, "context", None)).requires_grad_()
            for t in (numbers(1, 2, 512, 8, seed=i, dtype=torch.float32) for i in range(3))
        ]
        spmd.sync(wait=True)
        spmd.nn.ring_attention(*ours, mesh, key_block=key_block).sum().backward()
        spmd.sync(wait=True)
        peaks[key_block] = spmd.debug.memory().peak_bytes
    block = 2 * 256 * 256 * 4
    assert peaks[None] > 2 * block and peaks[32] < block


def test_second_derivatives_transforms_and_checkpoints():
    mesh = spmd.make_mesh((2,), ("context",))
    q, k, v = (numbers(1, 2, 8, 4, seed=i) for i in range(3))

    def ours(q, k, v):
        return spmd.nn.ring_attention(q, k, v, mesh, is_causal=True)

    def theirs(q, k, v):
        return full_attention(q, k, v, is_causal=True)

    def penalty(attention, *args):
        args = [t.requires_grad_() for t in args]
        grads = torch.autograd.grad(attention(*args).square().sum(), args, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), args)

    def check(got, expected):
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a.detach().cpu(), b.detach())

    on_device = [t.to("spmd") for t in (q, k, v)]
    check(
        penalty(ours, *(t.clone() for t in on_device)),
        penalty(theirs, *map(torch.clone, (q, k, v))),
    )
    loss = {
        f: lambda q, f=f: f(q, k.to(q.device), v.to(q.device)).sin().sum() for f in (ours, theirs)
    }
    check([torch.func.grad(loss[ours])(on_device[0])], [torch.func.grad(loss[theirs])(q)])
    stacked = [torch.stack([t, 2 * t]) for t in (q, k, v)]
    check(
        [torch.vmap(ours)(*(t.to("spmd") for t in stacked))],
        [torch.stack([theirs(*ts) for ts in zip(*stacked)])],
    )
    leaf = on_device[0].clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(
        ours, leaf, *on_device[1:], use_reentrant=False
    ).sum().backward()
    leaf2 = q.clone().requires_grad_()
    theirs(leaf2, k, v).sum().backward()
    check([leaf.grad], [leaf2.grad])


def test_errors():
    mesh = spmd.make_mesh((4,), ("context",))
    q = torch.ones(2, 4, 8, 4, device="spmd")

    def other(*shape):
        return torch.ones(shape, device="spmd")

    for make, error, message in (
        (
            lambda: spmd.nn.ring_attention(q, q, q, mesh, "x"),
            ValueError,
            "ring_attention: axis: .*'x'",
        ),
        (
            lambda: spmd.nn.ring_attention(q[0], q, q, mesh),
            ValueError,
            r"q must have 4 dimensions, batch, heads, length, width; got shape \(4, 8, 4\)",
        ),
        (
            lambda: spmd.nn.ring_attention(q.cpu(), q, q, mesh),
            ValueError,
            "q: the tensor of shape .* is on 'cpu'",
        ),
        (
            lambda: spmd.nn.ring_attention(q, other(2, 3, 8, 4), other(2, 3, 8, 4), mesh),
            ValueError,
            "the number of heads of k must divide that of q",
        ),
        (
            lambda: spmd.nn.ring_attention(q, other(2, 4, 12, 4), q, mesh),
            ValueError,
            "k and v the same batch, heads and length; got shapes",
        ),
        (
            lambda: spmd.nn.ring_attention(
                q, other(2, 4, 12, 4), other(2, 4, 12, 4), mesh, is_causal=True
            ),
            ValueError,
            "with is_causal or segment_ids, q and k have the same length",
        ),
        (
            lambda: spmd.nn.ring_attention(*[other(2, 4, 6, 4)] * 3, mesh),
            ValueError,
            "q has length 6, which the 4 devices along axis 'context' do not divide; pad it",
        ),
        (
            lambda: spmd.nn.ring_attention(*[other(2, 4, 12, 4)] * 3, mesh, zigzag=True),
            ValueError,
            r"q has length 12, which the 2 \* 4 parts of zigzag order along axis 'context' do not",
        ),
        (
            lambda: spmd.nn.ring_attention(q, q, q, mesh, dropout_p=1.0),
            ValueError,
            "dropout_p must be at least 0 and below 1; got 1.0",
        ),
        (
            lambda: spmd.nn.ring_attention(q, q, q, mesh, segment_ids=other(2, 4)),
            ValueError,
            r"segment_ids must have shape \(2, 8\), batch and length; got \(2, 4\)",
        ),
        (
            lambda: zigzag(torch.ones(6), 0, 2),
            ValueError,
            "zigzag: dimension 0 has size 6, which 2",
        ),
        (lambda: unzigzag(torch.ones(4), 1, 2), IndexError, "unzigzag: dim is 1, but the tensor"),
    ):
        with pytest.raises(error, match=message):
            make()
