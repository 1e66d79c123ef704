# SPDX-License-Identifier: Apache-2.0
"""A region that comes again runs its function on shards that are only numbers. What it computes, and
its gradients, are those of the function under levels of vmap, which a new region always runs."""

import gc

import pytest
import torch
from autograd_steps import steps_behind

import torch_spmd as spmd
from torch_spmd import _C, P

STEPS = 5  # on levels, learned, noted where the tape follows, skipped
ROWS, WHOLE = P("x", None), P(None, None)


@pytest.fixture(scope="module")
def mesh():
    return spmd.make_mesh((4,), ("x",))


@pytest.fixture(scope="module")
def grid():
    return spmd.make_mesh((2, 2), ("x", "y"))


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaf(*shape, seed=0):
    return numbers(*shape, seed=seed).to("spmd").requires_grad_()


def is_on_levels(t):
    return torch._C._functorch.is_functorch_wrapped_tensor(t)


def value_and_gradients(f, *args):
    y = f(*args)
    if not y.requires_grad:
        return [y.cpu()]
    leaves = [t for t in args if t.requires_grad]
    found = torch.autograd.grad(y.square().sum(), leaves, materialize_grads=True)
    return [y.detach().cpu(), *(g.cpu() for g in found)]


def check(function, mesh, specs, out, *args, levels=False, steps=STEPS):
    """Each step of one region has the value and the gradients of a new region."""
    seen = []

    def f(*shards):
        seen.append(is_on_levels(shards[0]))
        return function(*shards)

    again = spmd.shard_map(f, mesh, specs, out)
    for step in range(steps):
        expected = value_and_gradients(spmd.shard_map(function, mesh, specs, out), *args)
        for ours, theirs in zip(value_and_gradients(again, *args), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        spmd.sync()
    # The function is called once a step, and once more where it turns out to need levels.
    assert seen == [True] * steps if levels else seen == [True] + [False] * (steps - 1)


CASES = {
    "products": lambda a, b: spmd.psum((a.T @ b).tanh(), "x") @ a.T[:, :2].contiguous(),
    "softmax": lambda a, b: (a.softmax(1) * torch.nn.functional.layer_norm(b, (3,))).T.reshape(
        3, 2
    ),
    "numbers": lambda a, b: 1.5 * a + 2 / (b * b + 1) - (a > 0.5) * b,
    "several results": lambda a, b: (
        torch.cat([*a.split(1), b.unbind(0)[0][None]]) + a.max(0, keepdim=True).values
    ),
    "indices": lambda a, b: torch.stack([a[1], b[0]])[[1, 0, 1]] + a[:, [2, 0, 1]][:1],
    "no grad": lambda a, b: a * b.detach() + torch.where(a > b, a.exp(), b),
    "new tensors": lambda a, b: a + torch.arange(3, device="spmd") * b + torch.zeros_like(a),
    "casts": lambda a, b: a.double().sin().float() + b.to(torch.bfloat16).float(),
    "mean": lambda a, b: a - spmd.pmean(b, "x"),
    "largest": lambda a, b: a * spmd.pmax(b, "x") + spmd.pmin(a, "x"),
    "gather": lambda a, b: spmd.all_gather(a, "x", axis=0, tiled=True)[:2] * b,
    "scatter": lambda a, b: spmd.psum_scatter(
        torch.cat([a, b]), "x", scatter_dimension=0, tiled=True
    ),
    "exchange": lambda a, b: spmd.all_to_all(torch.cat([a, b]), "x", 0, 0, tiled=True)[:2] * b,
    "broadcast": lambda a, b: a * spmd.pbroadcast(b, "x", 2),
    "position": lambda a, b: a * spmd.axis_index("x") + spmd.pvary(spmd.psum(b, "x"), "x"),
    "second order": lambda a, b: torch.func.grad(lambda t: (t * b).sin().sum())(a),
    "vmap": lambda a, b: torch.func.vmap(lambda s, t: s.cumsum(0) * t)(a, b),
}


@pytest.mark.parametrize("case", CASES)
def test_functions(mesh, case):
    check(CASES[case], mesh, (ROWS, ROWS), ROWS, leaf(8, 3), leaf(8, 3, seed=1))


@pytest.mark.parametrize("case", CASES)
def test_functions_without_gradients(mesh, case):
    a, b = numbers(8, 3).to("spmd"), numbers(8, 3, seed=1).to("spmd")
    check(CASES[case], mesh, (ROWS, ROWS), ROWS, a, b)


def test_two_axes(grid):
    a, b = leaf(4, 6), leaf(6, 4, seed=1)
    check(lambda a, b: spmd.psum(a @ b, "y"), grid, (P("x", "y"), P("y", None)), P("x", None), a, b)
    check(lambda a, b: spmd.psum(a @ b, ("x", "y")), grid, (P(None, ("x", "y")), P(("x", "y"), None)),
          P(None, None), leaf(3, 8), leaf(8, 5, seed=1))  # fmt: skip
    check(lambda a: a * 2, grid, (P("x", "y"),), P("x", "y"), leaf(4, 4))


def test_one_tensor_as_two_arguments(mesh):
    a = leaf(8, 3)
    check(lambda a, b: a * b.exp(), mesh, (ROWS, ROWS), ROWS, a, a)
    region = spmd.shard_map(lambda a, b: a * b.exp(), mesh, (ROWS, ROWS), ROWS)
    b = leaf(8, 3, seed=1)
    for step in range(3 * STEPS):  # one edge of autograd, or two
        args = (a, b) if step % 2 else (a, a)
        expected = value_and_gradients(lambda a, b: a * b.exp(), *args)
        for ours, theirs in zip(value_and_gradients(region, *args), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        spmd.sync()


class Flipped(torch.autograd.Function):
    """Its result is its argument itself, so no op shows that it was called."""

    @staticmethod
    def forward(t):
        return t

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return -grad

    @staticmethod
    def vmap(info, in_dims, t):
        return Flipped.apply(t), in_dims[0]


def written(a):
    b = a * 1
    b.add_(a)
    return b * a


def with_hooks(a):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return a.sin() * a


OTHERS = {
    "a gradient of its own": lambda a: Flipped.apply(a * 1) * a,
    "of an argument": lambda a: Flipped.apply(a) * a,
    "of the result": lambda a: Flipped.apply(a * a),
    "in place": written,
    "hooks": with_hooks,
    "recomputed": lambda a: spmd.remat(lambda t: t.sin() * t)(a),
    "no grad": lambda a: (lambda held: held * a)(torch.no_grad()(torch.sin)(a)),
    "detached": lambda a: a.detach() * a,
    "another number": lambda a: a * 2.5,
    "another op": lambda a: a.cos() * a,
    "one op less": lambda a: a * a,
    "one op more": lambda a: a.sin() * a * a,
    "an argument": lambda a: a,
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_function_that_becomes_another(mesh, other):
    """In the fifth step, when its steps are known; then from step to step."""
    calls, which, a = [], [0], leaf(8, 3)

    def one(t):
        return t.sin() * t

    def f(t):
        calls.append(which[0])
        return OTHERS[other](t) if which[0] else one(t)

    region = spmd.shard_map(f, mesh, ROWS, ROWS)
    for step in range(4 * STEPS):
        which[0] = step >= STEPS and step % 2 == 1
        function = OTHERS[other] if which[0] else one
        expected = value_and_gradients(spmd.shard_map(function, mesh, ROWS, ROWS), a)
        for ours, theirs in zip(value_and_gradients(region, a), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        spmd.sync()
    assert len(calls) <= 4 * STEPS + 1


def test_what_levels_are_needed_for_is_called_once_more(mesh):
    """At most once, in the step in which that turns out."""
    for function in OTHERS.values():
        calls, a = [], leaf(8, 3)
        region = spmd.shard_map(lambda t: calls.append(0) or function(t), mesh, ROWS, ROWS)  # noqa: B023
        for _ in range(2 * STEPS):
            value_and_gradients(region, a)
            spmd.sync()
        assert len(calls) <= 2 * STEPS + 1


def test_errors_are_those_of_the_function(mesh):
    """Once a step raises an error, and the next one does not."""
    a, fails = leaf(8, 3), [False]

    def f(t):
        if fails[0]:
            raise KeyError("no such key")
        return t.sin()

    region = spmd.shard_map(f, mesh, ROWS, ROWS)
    for step in range(3 * STEPS):
        fails[0] = step % 3 == 2
        if fails[0]:
            with pytest.raises(KeyError, match="no such key"):
                region(a)
            continue
        torch.testing.assert_close(region(a).detach().cpu(), a.detach().cpu().sin())
        spmd.sync()


def test_what_a_later_step_refuses(mesh):
    a, which, cut = leaf(8, 3), [0], spmd.mark_sharding(numbers(8, 3).to("spmd"), mesh, ROWS)
    functions = {
        "cannot be read inside a manual region": lambda t: t * t.sum().item(),
        "cannot branch on a shard's values": lambda t: t if t.sum() > 0 else -t,
        "varies along axis 'x'": lambda t: t.sum(),
        "from outside that is sharded over the manual axis 'x'": lambda t: t + cut[:2],
        "is inside of another one over axis 'x'": lambda t: spmd.shard_map(
            torch.sin, mesh, ROWS, ROWS
        )(t),
        "is not an axis of the region": lambda t: spmd.psum(t, "y"),
        "must match the size": lambda t: t + t.new_zeros(7, 3),
        "has 1 dimensions, but its spec": lambda t: spmd.psum(t.sum(1), "x"),
    }
    for words, function in functions.items():
        which[0] = 0
        region = spmd.shard_map(
            lambda t: [torch.sin, function][which[0]](t), mesh, ROWS, P("x", None)
        )  # noqa: B023
        for _ in range(STEPS):
            region(a)
            spmd.sync()
        which[0] = 1
        with pytest.raises((RuntimeError, ValueError), match=words):
            region(a)
        which[0] = 0
        torch.testing.assert_close(region(a).detach().cpu(), a.detach().cpu().sin())


def test_a_shard_that_is_used_elsewhere(mesh):
    kept, a = [], leaf(8, 3)
    region = spmd.shard_map(lambda t: kept.append(t) or t * 2, mesh, ROWS, ROWS)
    for _ in range(STEPS):
        region(a)
    words = (
        "a shard of a manual region is used after the region has ended, or by another thread; "
        "return it from the function that shard_map runs"
    )
    for use in (lambda t: t + 1, lambda t: torch.cat([t, t]), lambda t: t.sum().item()):
        with pytest.raises(ValueError) as error:
            use(kept[-1])
        assert str(error.value).splitlines()[0] == words
    other = spmd.shard_map(lambda t: t + kept[2], mesh, ROWS, ROWS)
    for _ in range(3):
        with pytest.raises(ValueError) as error:
            other(a)
        assert words in str(error.value)


def test_a_gradient_whose_nodes_must_run(mesh):
    a, b = leaf(8, 3), leaf(8, 3, seed=1)
    region = spmd.shard_map(lambda a, b: (a.sin() * b).exp(), mesh, (ROWS, ROWS), ROWS)
    x, y = (t.detach().cpu().requires_grad_() for t in (a, b))
    z = (x.sin() * y).exp().square().sum()
    first = torch.autograd.grad(z, (x, y), create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), (x, y))
    for step in range(4 * STEPS):
        loss = region(a, b).square().sum()
        if step >= STEPS and step % 3 == 1:  # one gradient only
            (found,) = torch.autograd.grad(loss, b)
            torch.testing.assert_close(found.cpu(), first[1].detach())
        elif step >= STEPS and step % 3 == 2:
            again = torch.autograd.grad(loss, (a, b), create_graph=True)
            for ours, theirs in zip(torch.autograd.grad(again[0].square().sum(), (a, b)), second):
                torch.testing.assert_close(ours.cpu(), theirs)
        else:
            for ours, theirs in zip(torch.autograd.grad(loss, (a, b)), first):
                torch.testing.assert_close(ours.cpu(), theirs.detach())
        spmd.sync()


@pytest.mark.parametrize("write", [False, True], ids=["kept", "written"])
def test_a_step_that_ends_before_the_gradient(mesh, write):
    """The nodes run in another program than the function, whose arguments may have been written."""
    a = leaf(8, 3)
    region = spmd.shard_map(lambda t: t.sin() * t, mesh, ROWS, ROWS)
    for step in range(4 * STEPS):
        held = a.detach().clone().requires_grad_() if write else a
        loss = region(held * 1).sum() if write else region(held).sum()
        ends = step >= STEPS and step % 2 == 0
        if ends:
            loss.item()
        (found,) = torch.autograd.grad(loss, held)
        t = a.detach().cpu()
        torch.testing.assert_close(found.cpu(), t.cos() * t + t.sin())
        spmd.sync()


def test_an_argument_that_is_written_before_the_gradient(mesh):
    a = leaf(8, 3)
    region = spmd.shard_map(lambda t: t.sin() * t, mesh, ROWS, ROWS)
    t = a.detach().cpu()
    for step in range(3 * STEPS):
        x = a * 1
        loss = region(x).sum()
        x.detach().mul_(0.0)
        if step % 3 == 2:
            spmd.sync()
        (found,) = torch.autograd.grad(loss, a)
        torch.testing.assert_close(found.cpu(), t.cos() * t + t.sin())
        spmd.sync()


def test_nothing_is_compiled_again_and_nothing_grows(mesh):
    a, b = leaf(8, 4), leaf(4, 8, seed=1)
    region = spmd.shard_map(
        lambda a, b: spmd.psum(torch.tanh(a @ b) * 0.5, "x"), mesh, (P(None, "x"), ROWS), WHOLE
    )

    def counts():
        before = _C.statistics()
        y = region(a, b)
        assert "RegionBackward" in steps_behind(y)
        y.square().sum().backward()
        a.grad = b.grad = None
        spmd.sync(wait=True)
        after = _C.statistics()
        return {k: after[k] - before[k] for k in ("compiles", "records", "replayed")}

    found = [counts() for _ in range(2 * STEPS)]
    assert [n["compiles"] for n in found] == [1] + [0] * (2 * STEPS - 1)
    # A step that is skipped counts as what it skips.
    assert all(n == found[1] for n in found[1:])
    gc.collect()
    tensors = sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
    for _ in range(STEPS):
        counts()
    gc.collect()
    assert sum(isinstance(o, torch.Tensor) for o in gc.get_objects()) <= tensors


def test_lines_are_those_of_the_function(mesh):
    """Also where the function is noted first and then performed."""
    a = leaf(8, 3)
    region = spmd.shard_map(lambda t: t.sinh(), mesh, ROWS, ROWS)
    line = test_lines_are_those_of_the_function.__code__.co_firstlineno + 3
    for step in range(2):
        y = region(region(a))
        text = spmd.debug.print_graph(y, quiet=True) if False else _graph_of(y)
        assert text.count(f"test_regions_on_shards.py:{line}") >= 2
        del y
        spmd.sync()


def _graph_of(y):
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        spmd.debug.print_graph(y)
    return out.getvalue()


def test_deterministic_algorithms(mesh):
    """What they change is another program."""
    a, index = leaf(8, 3), torch.tensor([1, 0, 1])
    region = spmd.shard_map(lambda t: t[[1, 0, 1]].exp(), mesh, ROWS, ROWS)
    x = a.detach().cpu().requires_grad_()
    pick = torch.cat([index + 2 * i for i in range(4)])
    (expected,) = torch.autograd.grad(x[pick].exp().sum(), x)
    try:
        for step in range(4 * STEPS):
            torch.use_deterministic_algorithms(step // 3 % 2 == 1)
            (found,) = torch.autograd.grad(region(a).sum(), a)
            torch.testing.assert_close(found.cpu(), expected)
            spmd.sync()
    finally:
        torch.use_deterministic_algorithms(False)


def test_calls_of_another_recording_do_not_stay(mesh):
    """A tape that begins like another one and leaves it within a call knows its own call."""

    def layer(a, up, down):
        return spmd.psum(torch.tanh(a @ up) @ down, "x")

    def both(a, *w):
        return layer(layer(a, *w[:2]), *w[2:])

    def counts(region, *args):
        before = _C.statistics()["replayed"]
        region(*args).sum().backward()
        spmd.sync(wait=True)
        return _C.statistics()["replayed"] - before

    def replayed(width, after_layers):
        weights = [leaf(width, 8, seed=1), leaf(8, width, seed=2)] * 2
        a = leaf(4, width)
        specs = (WHOLE, *[P(None, "x"), P("x", None)] * 2)
        one = spmd.shard_map(layer, mesh, specs[:3], WHOLE)
        if after_layers:
            for _ in range(STEPS):
                counts(lambda a, *w: one(one(a, *w[:2]), *w[2:]), a, *weights)
        region = spmd.shard_map(both, mesh, specs, WHOLE)
        return [counts(region, a, *weights) for _ in range(STEPS)][-1]

    assert replayed(3, after_layers=True) == replayed(5, after_layers=False) > 0
