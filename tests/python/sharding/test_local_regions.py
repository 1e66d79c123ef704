# SPDX-License-Identifier: Apache-2.0
"""Manual regions on local shapes (torch_spmd/regions/local_shapes.py), which are private so far."""

import pytest
import torch
from torch import nn

import torch_spmd as spmd
from torch_spmd import P
from torch_spmd.regions import manual


@pytest.fixture(autouse=True)
def local_shapes(monkeypatch):
    monkeypatch.setattr(manual, "ON_LOCAL_SHAPES", True)


@pytest.fixture
def four():
    return spmd.make_mesh((4,), ("x",))


@pytest.fixture
def grid():
    return spmd.make_mesh((2, 2), ("x", "y"))


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def test_a_tensor_is_its_shard(four):
    seen = []

    def f(t):
        seen.append(tuple(t.shape))
        return t.sin()

    t = numbers(8, 6)
    result = spmd.shard_map(f, four, P("x"), P("x"))(t.to("spmd"))
    assert seen == [(2, 6)]
    torch.testing.assert_close(result.cpu(), t.sin())


def test_megatron(four):
    x, up, down = numbers(3, 8), numbers(8, 16, seed=1), numbers(16, 8, seed=2)

    def mlp(x, up, down):
        return spmd.lax.psum(torch.relu(x @ up) @ down, "x")

    f = spmd.shard_map(mlp, four, (P(), P(None, "x"), P("x")), P())
    ours = [t.to("spmd").requires_grad_() for t in (x, up, down)]
    theirs = [t.clone().requires_grad_() for t in (x, up, down)]
    y = f(*ours)
    z = torch.relu(theirs[0] @ theirs[1]) @ theirs[2]
    torch.testing.assert_close(y.cpu(), z)
    weight = numbers(3, 8, seed=3)
    (y * weight.to("spmd")).sum().backward()
    (z * weight).sum().backward()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


def test_a_value_that_does_not_vary_is_used_in_both_ways(four):
    t, w = numbers(8, 3), numbers(3, seed=1)

    def f(t, w):
        return spmd.lax.psum((t * w.exp()).sum(), "x") + w.square().sum()

    ours = w.to("spmd").requires_grad_()
    spmd.shard_map(f, four, (P("x"), P()), P())(t.to("spmd"), ours).backward()
    theirs = w.clone().requires_grad_()
    ((t * theirs.exp()).sum() + theirs.square().sum()).backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_collectives(four):
    t = numbers(8, 4)
    parts = list(t.view(4, 2, 4))
    ours = t.to("spmd")

    def run(f, out):
        return spmd.shard_map(f, four, P("x"), out)(ours).cpu()

    torch.testing.assert_close(run(lambda s: spmd.lax.psum(s, "x"), P()), sum(parts))
    torch.testing.assert_close(run(lambda s: spmd.lax.pmax(s, "x"), P()), t.view(4, 2, 4).amax(0))
    torch.testing.assert_close(run(lambda s: spmd.lax.all_gather(s, "x", tiled=True), P()), t)
    ring = [(i, (i + 1) % 4) for i in range(4)]
    moved = torch.cat([parts[3], *parts[:3]])
    torch.testing.assert_close(run(lambda s: spmd.lax.ppermute(s, "x", ring), P("x")), moved)
    exchanged = run(lambda s: spmd.lax.all_to_all(s, "x", 1, 0, tiled=True), P(None, "x"))
    torch.testing.assert_close(exchanged, t)
    total = run(
        lambda s: spmd.lax.psum_scatter(s, "x", scatter_dimension=1, tiled=True), P(None, "x")
    )
    torch.testing.assert_close(total, sum(parts))
    index = run(lambda s: s * 0 + spmd.lax.axis_index("x"), P("x"))
    assert index[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    torch.testing.assert_close(run(lambda s: spmd.lax.pbroadcast(s, "x", 2), P()), parts[2])


def test_second_derivatives(four):
    t = numbers(8)

    def f(t):
        return spmd.lax.psum((t.sin() * spmd.lax.psum(t, "x")).sum(), "x")

    ours, theirs = t.to("spmd").requires_grad_(), t.clone().requires_grad_()
    g = spmd.shard_map(f, four, P("x"), P())
    value, expected = g(ours), None
    total = theirs.view(4, 2).sum(0)
    expected = (theirs.view(4, 2).sin() * total).sum()
    torch.testing.assert_close(value.cpu(), expected)
    (first,) = torch.autograd.grad(value, ours, create_graph=True)
    (of_cpu,) = torch.autograd.grad(expected, theirs, create_graph=True)
    torch.testing.assert_close(first.cpu(), of_cpu)
    first.square().sum().backward()
    of_cpu.square().sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_a_result_that_varies_names_its_axis(four):
    f = spmd.shard_map(lambda t: t.sum(), four, P("x"), P())
    with pytest.raises(ValueError, match="its result varies along axis 'x'"):
        f(numbers(8).to("spmd"))


def test_a_total_that_does_not_vary_is_not_written(four):
    def f(t):
        total = torch.zeros(2, dtype=torch.float64, device="spmd")
        return total.add_(t)

    with pytest.raises(RuntimeError, match="make it vary first"):
        spmd.shard_map(f, four, P("x"), P("x"))(numbers(8).to("spmd"))


def test_a_shard_is_not_read(four):
    with pytest.raises(RuntimeError, match="a shard's values cannot be read"):
        spmd.shard_map(lambda t: t * t.sum().item(), four, P("x"), P("x"))(numbers(8).to("spmd"))


def test_tensors_from_outside(four):
    w = spmd.mark_sharding(numbers(8).to("spmd"), four, P("x"))
    f = spmd.shard_map(lambda t: t + w[:2], four, P("x"), P("x"))
    with pytest.raises(ValueError, match="pass it as an argument"):
        f(numbers(8).to("spmd"))


def test_some_axes_and_regions_in_regions(grid):
    t = numbers(4, 6)

    def inner(s):
        return spmd.lax.psum(s.exp().sum(1), "y")

    def outer(s):
        return spmd.shard_map(inner, grid, P(None, "y"), P(), axis_names={"y"})(s).log()

    f = spmd.shard_map(outer, grid, P("x"), P("x"), axis_names={"x"})
    torch.testing.assert_close(f(t.to("spmd")).cpu(), t.logsumexp(1))


def test_dropout_differs_between_devices(four):
    f = spmd.shard_map(lambda t: nn.functional.dropout(t, 0.5), four, P("x"), P("x"))
    kept = f(torch.ones(4, 64, device="spmd")).cpu()
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert len({tuple(row.tolist()) for row in kept}) == 4


def test_remat(four):
    calls = []

    def layer(t):
        calls.append(1)
        return torch.tanh(t) / spmd.lax.psum(t.exp(), "x")

    t = numbers(8, 2)
    ours, theirs = t.to("spmd").requires_grad_(), t.clone().requires_grad_()
    spmd.shard_map(spmd.lax.remat(layer), four, P("x"), P("x"))(ours).sum().backward()
    parts = theirs.view(4, 2, 2)
    (parts.tanh() / parts.exp().sum(0)).sum().backward()
    assert len(calls) == 2
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_vmap_of_a_region_and_in_a_region(four):
    t = numbers(3, 8)
    f = spmd.shard_map(lambda s: s * spmd.lax.psum(s.sum(), "x"), four, P("x"), P("x"))
    expected = t * t.sum(1, keepdim=True)
    torch.testing.assert_close(torch.vmap(f)(t.to("spmd")).cpu(), expected)
    inside = torch.vmap(lambda row: row * spmd.lax.psum(row.sum(), "x"))
    g = spmd.shard_map(inside, four, P(None, "x"), P(None, "x"))
    torch.testing.assert_close(g(t.to("spmd")).cpu(), expected)


def test_grad_of_a_region_and_in_a_region(four):
    t = numbers(8)
    f = spmd.shard_map(lambda s: spmd.lax.psum(s.sin().sum(), "x"), four, P("x"), P())
    torch.testing.assert_close(torch.func.grad(f)(t.to("spmd")).cpu(), t.cos())
    inside = torch.func.grad(lambda s: s.sin().sum())
    g = spmd.shard_map(inside, four, P("x"), P("x"))
    torch.testing.assert_close(g(t.to("spmd")).cpu(), t.cos())


def test_steps_are_replayed(four):
    calls = []
    linear = nn.Linear(4, 4, dtype=torch.float64)
    ours = nn.Linear(4, 4, dtype=torch.float64)
    ours.load_state_dict(linear.state_dict())
    ours.to("spmd")

    def layer(t, w, b):
        calls.append(1)
        return torch.tanh(nn.functional.linear(t, w, b))

    f = spmd.shard_map(layer, four, (P("x"), P(), P()), P("x"))
    for model in (linear, ours):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(4):
            t = numbers(8, 4, seed=step)
            optimizer.zero_grad()
            if model is ours:
                loss = f(t.to("spmd"), model.weight, model.bias).square().mean()
            else:
                loss = torch.tanh(model(t)).square().mean()
            loss.backward()
            optimizer.step()
    assert len(calls) == 4
    for a, b in zip(ours.parameters(), linear.parameters()):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(t):
        return t**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (t,) = ctx.saved_tensors
        return 3 * t**2 * grad


def test_functions_with_a_gradient_of_their_own(four):
    t = numbers(8)
    ours = t.to("spmd").requires_grad_()
    spmd.shard_map(Cube.apply, four, P("x"), P("x"))(ours).sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), 3 * t**2)
    inside = torch.func.grad(lambda s: Cube.apply(s).sum())
    g = spmd.shard_map(inside, four, P("x"), P("x"))
    torch.testing.assert_close(g(t.to("spmd")).cpu(), 3 * t**2)


def test_a_program_may_end_between_the_passes(four):
    t, w = numbers(8, 3), numbers(3, seed=1)
    ours = [t.to("spmd").requires_grad_(), w.to("spmd").requires_grad_()]
    product = spmd.shard_map(lambda t, w: t * w, four, (P("x"), P()), P("x"))(*ours)
    torch.testing.assert_close(product.cpu(), t * w)  # what was saved is a program's result now
    product.sum().backward()
    torch.testing.assert_close(ours[0].grad.cpu(), w.expand(8, 3))
    torch.testing.assert_close(ours[1].grad.cpu(), t.sum(0))


def test_shapes_do_not_depend_on_a_shard(four):
    x = numbers(8).to("spmd")
    for f in (lambda t: t[t > 0], torch.unique, lambda t: torch.bincount(t.long().abs())):
        with pytest.raises(RuntimeError, match="the shape of a result depends on a shard's values"):
            spmd.shard_map(f, four, P("x"), P("x"))(x)


def test_what_a_varying_index_reads_varies(four):
    table = numbers(6, 2)
    index = torch.tensor([0, 5, 3, 3, 1, 0, 2, 4])
    ours, theirs = table.to("spmd").requires_grad_(), table.clone().requires_grad_()
    f = spmd.shard_map(lambda t, i: t[i].sin(), four, (P(), P("x")), P("x"))
    result = f(ours, index.to("spmd"))
    torch.testing.assert_close(result.cpu(), theirs[index].sin())
    result.sum().backward()
    theirs[index].sin().sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_sums_are_one_instruction(four):
    """An all-reduce of what the devices have, between the two borders."""
    x = numbers(8, 4).to("spmd")
    spmd.sync(wait=True)
    spmd.shard_map(lambda t: spmd.lax.psum(t.sin(), "x"), four, P("x"), P())(x).cpu()
    assert [row.kind for row in spmd.debug.collectives()] == ["all_reduce"]
