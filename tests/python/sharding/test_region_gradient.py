# SPDX-License-Identifier: Apache-2.0
"""A region's gradient is one node of autograd, replayed as one call. It is that of the function, in
whatever way it changes from step to step."""

import gc
import weakref

import pytest
import torch
from autograd_steps import nodes_of_regions_are_seen, steps_behind

import torch_spmd as spmd
from torch_spmd import _C, P

STEPS = 4  # recorded, followed, replayed
ROWS = P("x", None)


@pytest.fixture(scope="module")
def mesh():
    return spmd.make_mesh((4,), ("x",))


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaf(*shape, seed=0):
    return numbers(*shape, seed=seed).to("spmd").requires_grad_()


def rows(f, mesh, count=2, out=ROWS):
    return spmd.shard_map(f, mesh, (ROWS,) * count, out)


def gradients(y, *leaves, **options):
    return [g.cpu() for g in torch.autograd.grad(y, leaves, **options)]


def test_it_is_that_of_the_function(mesh):
    a, b = leaf(8, 3), leaf(8, 3, seed=1)
    f = rows(lambda a, b: (a.sin() * b).exp() + a, mesh)
    ours, theirs = a.detach().cpu().requires_grad_(), b.detach().cpu().requires_grad_()
    expected = torch.autograd.grad(
        ((ours.sin() * theirs).exp() + ours).square().sum(), (ours, theirs)
    )
    for _ in range(STEPS):
        y = f(a, b)
        assert "RegionBackward" in steps_behind(y)
        y.square().sum().backward()
        for t, g in zip((a, b), expected):
            torch.testing.assert_close(t.grad.cpu(), g)
            t.grad = None
        spmd.sync()


def test_a_number_that_changes(mesh):
    a, number = leaf(8, 3), [0.0]
    f = rows(lambda a: (a * number[0]).tanh() * 2.5, mesh, count=1)
    for step in range(2 * STEPS):
        number[0] = 0.5 + step // 2
        (found,) = gradients(f(a).sum(), a)
        t = a.detach().cpu()
        expected = 2.5 * number[0] * (1 - (t * number[0]).tanh() ** 2)
        torch.testing.assert_close(found, expected)
        spmd.sync()


def test_what_is_differentiated_changes(mesh):
    """The ops are the same; which of them are differentiated is not."""
    a, b, way = leaf(8, 3), leaf(8, 3, seed=1), [0]

    def f(a, b):
        if way[0] == 0:
            return a * b.detach() + b
        if way[0] == 1:
            return a.detach() * b + b
        if way[0] == 2:
            with torch.no_grad():
                product = a * b
            return product + b
        return a * b + b

    g = rows(f, mesh)
    one, x, y = torch.ones(8, 3), a.detach().cpu(), b.detach().cpu()
    expected = [(y, one), (0 * one, x + one), (0 * one, one), (y, x + one)]
    for step in range(3 * STEPS):
        way[0] = step % 4
        found = gradients(g(a, b).sum(), a, b, materialize_grads=True)
        for ours, theirs in zip(found, expected[way[0]]):
            torch.testing.assert_close(ours, theirs)
        spmd.sync()


def test_arguments_of_which_one_needs_a_gradient(mesh):
    f = rows(lambda a, b: a * b, mesh)
    a, b = leaf(8, 3), leaf(8, 3, seed=1)
    for step in range(2 * STEPS):
        a.requires_grad_(step % 2 == 0)
        b.requires_grad_(step % 2 == 1)
        which, other = (a, b) if step % 2 == 0 else (b, a)
        (found,) = gradients(f(a, b).sum(), which)
        torch.testing.assert_close(found, other.detach().cpu())
        spmd.sync()


def test_hooks(mesh):
    """Of arguments and of the result; each is called once for a pass."""
    a, seen = leaf(8, 3), []

    def called(name, factor):
        def hook(g):
            seen.append(name)
            return g * factor

        return hook

    a.register_hook(called("argument", 2))
    g = rows(lambda a: a.sin() * 3, mesh, count=1)
    for _ in range(STEPS):
        y = g(a)
        y.register_hook(called("result", 5))
        y.sum().backward()
        assert seen == ["result", "argument"]
        torch.testing.assert_close(a.grad.cpu(), 30 * a.detach().cpu().cos())
        a.grad = None
        seen.clear()
        spmd.sync()


def test_passes_that_come_again(mesh):
    a = leaf(8, 3)
    f = rows(lambda a: a.sin() * a, mesh, count=1)
    t = a.detach().cpu()
    expected = t.cos() * t + t.sin()
    for _ in range(STEPS):
        y = f(a)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        torch.testing.assert_close(a.grad.cpu(), 2 * expected)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.sum().backward()
        a.grad = None
        spmd.sync()


def test_passes_in_another_order(mesh):
    """Two regions with equal ops, whose gradients are asked for in either order."""
    a, b = leaf(8, 3), leaf(8, 3, seed=1)
    f = rows(lambda a: a.sin() * a, mesh, count=1)
    for step in range(2 * STEPS):
        y, z = f(a), f(b)
        for u, t in [(y, a), (z, b)] if step % 2 else [(z, b), (y, a)]:
            (found,) = gradients(u.sum(), t)
            v = t.detach().cpu()
            torch.testing.assert_close(found, v.cos() * v + v.sin())
        spmd.sync()


def test_second_derivatives(mesh):
    a, b = leaf(8, 3), leaf(8, 3, seed=1)
    f = rows(lambda a, b: a * a * a * b, mesh)
    x, y = a.detach().cpu(), b.detach().cpu()
    for _ in range(STEPS):
        first, _ = torch.autograd.grad(f(a, b).sum(), (a, b), create_graph=True)
        found = gradients(first.sum(), a, b)
        torch.testing.assert_close(found[0], 6 * x * y)
        torch.testing.assert_close(found[1], 3 * x * x)
        spmd.sync()


def test_a_step_that_ends_between(mesh):
    """The forward pass is a program of its own, or not."""
    a = leaf(8, 3)
    f = rows(lambda a: a.sin() * a, mesh, count=1)
    t = a.detach().cpu()
    for step in range(2 * STEPS):
        y = f(a)
        if step % 2:
            spmd.sync()
        (found,) = gradients(y.sum(), a)
        torch.testing.assert_close(found, t.cos() * t + t.sin())
        spmd.sync()


def test_what_is_captured(mesh):
    """A gradient leaves the region by a value that is no argument, too."""
    a, w = leaf(8, 3), leaf(3, seed=1)
    f = rows(lambda a: (a * w).sin(), mesh, count=1)
    t, u = a.detach().cpu(), w.detach().cpu()
    for _ in range(STEPS):
        y = f(a)
        assert "RegionBackward" in steps_behind(y)
        y.sum().backward()
        torch.testing.assert_close(a.grad.cpu(), (t * u).cos() * u)
        torch.testing.assert_close(w.grad.cpu(), ((t * u).cos() * t).sum(0))
        a.grad = w.grad = None
        spmd.sync()


class Doubled(torch.autograd.Function):
    """Its gradient is another function's."""

    factor = 2

    @staticmethod
    def forward(t):
        return t * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * Doubled.factor

    @staticmethod
    def vmap(info, in_dims, t):
        return Doubled.apply(t), in_dims[0]


def test_a_function_with_a_gradient_of_its_own(mesh):
    a = leaf(8, 3)
    f = rows(lambda a: Doubled.apply(a) * 3, mesh, count=1)
    for step in range(STEPS):
        Doubled.factor = step
        (found,) = gradients(f(a).sum(), a)
        assert torch.equal(found, torch.full((8, 3), 3.0 * step))
        spmd.sync()


@pytest.mark.parametrize("again", [spmd.lax.remat, None], ids=["remat", "checkpoint"])
def test_recomputation(mesh, again):
    a, runs = leaf(8, 3), []

    def body(a):
        runs.append(1)
        return a.sin().exp()

    if again is not None:
        f = rows(lambda a: again(body)(a) * 2, mesh, count=1)
    else:
        region = rows(lambda a: body(a) * 2, mesh, count=1)

        def f(a):
            return torch.utils.checkpoint.checkpoint(region, a, use_reentrant=False)

    t = a.detach().cpu()
    for _ in range(STEPS):
        (found,) = gradients(f(a).sum(), a)
        torch.testing.assert_close(found, 2 * t.cos() * t.sin().exp())
        assert len(runs) == 2
        runs.clear()
        spmd.sync()


@pytest.mark.parametrize("between", [False, True], ids=["one program", "two programs"])
def test_sums_of_gradients(mesh, between):
    """Passes of micro-steps add to the gradients that are there. Their forward passes may be
    programs of their own; then nothing but the region is in the backward pass."""
    w = leaf(8, 3)
    f = rows(lambda w, x: (w * x).sin(), mesh)
    t = w.detach().cpu()
    for _ in range(STEPS):
        expected = torch.zeros(8, 3)
        for seed in range(3):
            x = numbers(8, 3, seed=seed)
            y = f(w, x.to("spmd"))
            if between:
                spmd.sync()
                y.backward(torch.ones(8, 3).to("spmd"))
            else:
                y.sum().backward()
            expected += (t * x).cos() * x
        torch.testing.assert_close(w.grad.cpu(), expected)
        w.grad = None
        spmd.sync()


def test_a_written_argument(mesh):
    """What was overwritten is found out as it is where the nodes are seen."""
    a, b = leaf(8, 3), leaf(8, 3, seed=1)

    def f(a, b):
        c = a * b
        c.mul_(2)
        return c + b

    g = rows(f, mesh)
    for _ in range(STEPS):
        found = gradients(g(a, b).sum(), a, b)
        torch.testing.assert_close(found[0], 2 * b.detach().cpu())
        torch.testing.assert_close(found[1], 2 * a.detach().cpu() + 1)
        spmd.sync()


def test_gradients_in_half_precision(mesh):
    """A pass under autocast, and one without."""
    a, w = leaf(8, 4), leaf(4, 4, seed=1)
    f = spmd.shard_map(lambda a, w: a @ w, mesh, (ROWS, P()), ROWS)
    expected = torch.ones(8, 4) @ w.detach().cpu().T
    for step in range(2 * STEPS):
        y = f(a, w).sum()
        with torch.autocast("spmd", torch.bfloat16, enabled=step % 2 == 1):
            (found,) = gradients(y, a)
        tolerance = 0.05 if step % 2 else 1e-6
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        spmd.sync()


def test_the_program_is_that_of_the_nodes(mesh):
    """As much is recorded as node by node, by fewer calls, and nothing is compiled again."""
    f = spmd.shard_map(
        lambda a, b: spmd.lax.psum((a @ b).tanh() * 0.5, "x"),
        mesh,
        (P(None, "x"), P("x", None)),
        P(),
    )

    def counts(*leaves):
        before = _C.statistics()
        f(*leaves).square().sum().backward()
        for t in leaves:
            t.grad = None
        spmd.sync(wait=True)
        after = _C.statistics()
        return {k: after[k] - before[k] for k in ("compiles", "records", "replayed")}

    a, b = leaf(8, 4), leaf(4, 8, seed=1)
    as_one = [counts(a, b) for _ in range(STEPS)]
    c, d = leaf(16, 4), leaf(4, 16, seed=1)  # which no recording knows
    with nodes_of_regions_are_seen():
        apart = [counts(c, d) for _ in range(STEPS)]
    assert [n["compiles"] for n in as_one] == [1] + [0] * (STEPS - 1)
    assert {n["records"] for n in as_one} == {n["records"] for n in apart}
    assert as_one[-1]["replayed"] <= apart[-1]["replayed"] - 5


def test_a_region_that_is_not_used_any_more(mesh):
    """Nothing keeps the function, nor what it has seen."""
    a = leaf(8, 3)
    seen = []
    for _ in range(STEPS):
        w = leaf(8, 3)
        f = rows(lambda a, w=w: a * w.sum(), mesh, count=1)
        for _ in range(2):
            f(a).sum().backward()
        seen.append(weakref.ref(w))
        del f, w
        spmd.sync(wait=True)
    gc.collect()
    assert [ref() for ref in seen[:-1]] == [None] * (STEPS - 1)
