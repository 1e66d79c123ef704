# SPDX-License-Identifier: Apache-2.0
"""A region that comes again runs its function on shards that are only numbers. What it computes,
and its gradients, are those of the function under levels of vmap, as in a new region."""

import gc
import weakref
from contextlib import nullcontext as no_context

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


def check(function, mesh, specs, out, *args, steps=STEPS):
    """Each step of one region has the value and the gradients of a new region. Returns which calls
    of the function were under levels."""
    seen = []

    def f(*shards):
        seen.append(is_on_levels(shards[0]))
        return function(*shards)

    again = spmd.shard_map(f, mesh, specs, out)
    for _ in range(steps):
        expected = value_and_gradients(spmd.shard_map(function, mesh, specs, out), *args)
        for ours, theirs in zip(value_and_gradients(again, *args), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        spmd.sync()
    return seen


ON_SHARDS = [True] + [False] * (STEPS - 1)
# What depends on more than shards and numbers is under levels from the third step on.
ON_LEVELS = [True, False] + [True] * (STEPS - 2)
# The function is called once more in the step in which it turns out to need levels.
ENDED = [True, False] + [True] * (STEPS - 1)


CASES = {
    "products": lambda a, b: spmd.lax.psum((a.T @ b).tanh(), "x") @ a.T[:, :2].contiguous(),
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
    "mean": lambda a, b: a - spmd.lax.pmean(b, "x"),
    "largest": lambda a, b: a * spmd.lax.pmax(b, "x") + spmd.lax.pmin(a, "x"),
    "gather": lambda a, b: spmd.lax.all_gather(a, "x", axis=0, tiled=True)[:2] * b,
    "scatter": lambda a, b: spmd.lax.psum_scatter(
        torch.cat([a, b]), "x", scatter_dimension=0, tiled=True
    ),
    "exchange": lambda a, b: spmd.lax.all_to_all(torch.cat([a, b]), "x", 0, 0, tiled=True)[:2] * b,
    "broadcast": lambda a, b: a * spmd.lax.pbroadcast(b, "x", 2),
    "position": lambda a, b: (
        a * spmd.lax.axis_index("x") + spmd.lax.pvary(spmd.lax.psum(b, "x"), "x")
    ),
    "second order": lambda a, b: torch.func.grad(lambda t: (t * b).sin().sum())(a),
    "vmap": lambda a, b: torch.func.vmap(lambda s, t: s.cumsum(0) * t)(a, b),
}


EXPECTED = {"indices": ON_LEVELS, "new tensors": ON_LEVELS, "second order": ENDED}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("differentiated", [True, False])
def test_functions(mesh, case, differentiated):
    a, b = (leaf(8, 3, seed=seed).detach().requires_grad_(differentiated) for seed in (0, 1))
    seen = check(CASES[case], mesh, (ROWS, ROWS), ROWS, a, b)
    assert seen == EXPECTED.get(case, ON_SHARDS)


def test_two_axes(grid):
    a, b = leaf(4, 6), leaf(6, 4, seed=1)
    rows = (P("x", "y"), P("y", None))
    assert check(lambda a, b: spmd.lax.psum(a @ b, "y"), grid, rows, ROWS, a, b) == ON_SHARDS
    both = (P(None, ("x", "y")), P(("x", "y"), None))
    a, b = leaf(3, 8), leaf(8, 5, seed=1)
    sums = lambda a, b: spmd.lax.psum(a @ b, ("x", "y"))  # noqa: E731
    assert check(sums, grid, both, WHOLE, a, b) == ON_SHARDS
    tiles = P("x", "y")
    assert check(lambda a: a * 2, grid, (tiles,), tiles, leaf(4, 4)) == ON_SHARDS
    one = spmd.shard_map(lambda a: spmd.lax.psum(a * 2, "x"), grid, P("x"), P(), axis_names="x")
    for _ in range(STEPS):  # the other axis is automatic
        torch.testing.assert_close(one(a[:2]).cpu(), (2 * a[:2]).detach().cpu().sum(0)[None])


def is_skipped(region, *args):
    """Whether a step of two equal calls skips what it recorded the last time: then autograd makes
    one node for each."""
    first, second = region(*args), region(*args)
    (first + second).sum().backward()
    spmd.sync()
    for t in args:
        t.grad = None
    return second.grad_fn._sequence_nr() - first.grad_fn._sequence_nr() == 1


@pytest.mark.parametrize("case", [c for c in CASES if c not in EXPECTED])
def test_a_step_that_comes_again_is_skipped(mesh, case):
    a, b = leaf(8, 3), leaf(8, 3, seed=1)
    region = spmd.shard_map(CASES[case], mesh, (ROWS, ROWS), ROWS)
    skipped = [is_skipped(region, a, b) for _ in range(STEPS)]
    assert skipped == [False] * 2 + [True] * (STEPS - 2)


def test_steps_over_two_axes_are_skipped(grid):
    columns, rows = P(None, ("y", "x")), P(("y", "x"), None)
    cases = [
        (lambda a, b: spmd.lax.psum(a @ b, "y"), (P("x", "y"), P("y", None)), ROWS),
        (lambda a, b: spmd.lax.psum(a @ b, ("y", "x")), (columns, rows), WHOLE),
        (lambda a, b: spmd.lax.psum(a.sum() * b, "x"), (P("y", None), P("x", "y")), P(None, "y")),
    ]
    for function, specs, out in cases:
        region = spmd.shard_map(function, grid, specs, out)
        a, b = leaf(4, 4), leaf(4, 4, seed=1)
        skipped = [is_skipped(region, a, b) for _ in range(STEPS)]
        assert skipped == [False] * 2 + [True] * (STEPS - 2)


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


class Negative(torch.autograd.Function):
    @staticmethod
    def forward(t):
        return t.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return -grad

    @staticmethod
    def vmap(info, in_dims, t):
        return Negative.apply(t), in_dims[0]


class Flipped(Negative):
    """Its result is its argument itself, so no op shows that it was called."""

    @staticmethod
    def forward(t):
        return t

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
    "recomputed": lambda a: spmd.lax.remat(lambda t: t.sin() * t)(a),
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


def test_a_gradient_of_its_own_of_what_is_outside(mesh):
    w, x = leaf(3, 3), leaf(8, 3, seed=1)
    region = spmd.shard_map(lambda x: x @ Negative.apply(w * 1), mesh, ROWS, ROWS)
    with torch.no_grad():
        region(x)
    for _ in range(STEPS):
        (found,) = torch.autograd.grad(region(x).sum(), w)
        torch.testing.assert_close(found.cpu(), -x.detach().cpu().sum(0)[:, None].expand(3, 3))
        spmd.sync()


def test_a_shard_is_no_leaf(mesh):
    """Levels say that nothing requires a gradient, in each step."""
    seen = []

    def f(t):
        u = t * 2
        seen.append((t.requires_grad, u.requires_grad, t.is_leaf, u.grad_fn))
        return u

    region = spmd.shard_map(f, mesh, ROWS, ROWS)
    for _ in range(STEPS):
        region(leaf(8, 3)).sum().backward()
    assert seen == [(False, False, True, None)] * STEPS


@pytest.mark.parametrize("when", ["inside", "outside", "not inside", "types"])
def test_autocast(mesh, when):
    a, b = leaf(8, 3), leaf(3, 3, seed=1)

    def product(a, b):
        if when == "inside":
            with torch.autocast("spmd", torch.bfloat16):
                return a @ b
        with torch.autocast("spmd", enabled=False) if when == "not inside" else no_context():
            return a @ b

    region = spmd.shard_map(product, mesh, (ROWS, WHOLE), ROWS)
    for step in range(3 * STEPS):
        on = when != "inside" and step >= STEPS
        dtype = torch.float16 if when == "types" and step >= 2 * STEPS else torch.bfloat16
        with torch.autocast("spmd", dtype) if on else no_context():
            y = region(a, b)
        is_cast = when == "inside" or (on and when != "not inside")
        assert y.dtype == (dtype if is_cast else torch.float32)
        expected = a.detach().cpu() @ b.detach().cpu()
        close = {"atol": 0.1, "rtol": 0.1} if is_cast else {}
        torch.testing.assert_close(y.detach().float().cpu(), expected, **close)
        (found,) = torch.autograd.grad(y.float().sum(), a)
        torch.testing.assert_close(found.cpu(), b.detach().cpu().sum(1).expand(8, 3), **close)
        spmd.sync()


def test_random_numbers_are_drawn_once(mesh):
    a, which = torch.zeros(8, 3, device="spmd"), [1]

    def f(t):
        u = t + torch.rand_like(t) if which[0] else t + 1
        u = u * 1
        u.mul_(1)
        return u

    for first in (0, 1):
        region, found = spmd.shard_map(f, mesh, ROWS, ROWS), []
        for step in range(STEPS):
            which[0] = first or step >= 2
            torch.manual_seed(0)
            value = region(a).cpu()
            if which[0]:
                found.append((value, torch.rand(3, device="spmd").cpu()))
        for value, following in found[1:]:
            torch.testing.assert_close(value, found[0][0], rtol=0, atol=0)
            torch.testing.assert_close(following, found[0][1], rtol=0, atol=0)


def test_a_tensor_that_the_function_keeps(mesh):
    """What is made of no shard is a tensor as everywhere."""
    kept, keeps = {}, [False]

    def f(t):
        if not keeps[0]:
            return t.tanh() * 2
        if "mask" not in kept:
            kept["mask"] = torch.ones(2, 3, device="spmd")
        u = (t * kept["mask"]).tanh()
        u.add_(1)
        return u

    a = leaf(8, 3)
    region = spmd.shard_map(f, mesh, ROWS, ROWS)
    for step in range(2 * STEPS):
        keeps[0] = step >= 2
        expected = a.detach().cpu().tanh() + 1 if keeps[0] else a.detach().cpu().tanh() * 2
        torch.testing.assert_close(region(a).detach().cpu(), expected)
    assert kept["mask"].cpu().tolist() == [[1.0] * 3] * 2


def test_hooks_see_what_collectives_save(mesh):
    a, hooked = leaf(8, 3), [False]

    def f(t):
        t = t * 1
        if not hooked[0]:
            return spmd.lax.pmax(t, "x") * 1
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, torch.zeros_like):
            return spmd.lax.pmax(t, "x") * 1

    again = spmd.shard_map(f, mesh, ROWS, WHOLE)
    for step in range(2 * STEPS):
        hooked[0] = step >= STEPS
        found, expected = (
            torch.autograd.grad(region(a).sum(), a)[0].cpu()
            for region in (again, spmd.shard_map(f, mesh, ROWS, WHOLE))
        )
        torch.testing.assert_close(found, expected)
        spmd.sync()


def test_a_region_without_arguments(mesh):
    region = spmd.shard_map(
        lambda: torch.arange(3, device="spmd")[None] + spmd.lax.axis_index("x"), mesh, (), ROWS
    )
    for _ in range(STEPS):
        assert region().cpu().tolist() == [[i, i + 1, i + 2] for i in range(4)]


def test_tensors_from_outside_are_not_kept(mesh):
    a, held, gone = leaf(8, 3), [torch.ones(3, device="spmd")], []
    region = spmd.shard_map(lambda t: t * held[0], mesh, ROWS, ROWS)
    for _ in range(STEPS):
        held[0] = torch.ones(3, device="spmd")
        gone.append(weakref.ref(held[0]))
        region(a).sum().backward()
        a.grad = None
    held.clear()
    gc.collect()
    assert [ref() for ref in gone] == [None] * STEPS


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
        "from outside that is sharded over the manual axis 'x'": lambda t: t + cut[:2],
        "is inside of another one over axis 'x'": lambda t: spmd.shard_map(
            torch.sin, mesh, ROWS, ROWS
        )(t),
        "is not an axis of the region": lambda t: spmd.lax.psum(t, "y"),
        "must match the size": lambda t: t + t.new_zeros(7, 3),
        "has 1 dimensions, but its spec": lambda t: spmd.lax.psum(t.sum(1), "x"),
    }
    for words, refused in functions.items():
        which[0] = 0

        def f(t, refused=refused):
            return refused(t) if which[0] else t.sin()

        region = spmd.shard_map(f, mesh, ROWS, ROWS)
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
            found = torch.autograd.grad(again[0].square().sum(), (a, b))
            for ours, theirs in zip(found, second):
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
        lambda a, b: spmd.lax.psum(torch.tanh(a @ b) * 0.5, "x"), mesh, (P(None, "x"), ROWS), WHOLE
    )

    def counts():
        before = _C.statistics()
        y = region(a, b)
        assert "RegionBackward" in steps_behind(y)
        y.square().sum().backward()
        spmd.sync(wait=True)
        a.grad = b.grad = None
        after = _C.statistics()
        return {k: after[k] - before[k] for k in ("compiles", "records", "replayed")}

    found = [counts() for _ in range(2 * STEPS)]
    assert [n["compiles"] for n in found] == [1] + [0] * (2 * STEPS - 1)
    # A step that is skipped counts as what it skips.
    assert len({n["records"] for n in found}) == 1
    assert len({n["replayed"] for n in found[2:]}) == 1 and found[2]["replayed"] > 0
    gc.collect()
    tensors = sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
    for _ in range(STEPS):
        counts()
    gc.collect()
    assert sum(isinstance(o, torch.Tensor) for o in gc.get_objects()) <= tensors


def test_lines_are_those_of_the_function(mesh, capsys):
    """Also of a function whose steps are known."""
    a = leaf(8, 3)
    region = spmd.shard_map(lambda t: t.sinh(), mesh, ROWS, ROWS)
    line = test_lines_are_those_of_the_function.__code__.co_firstlineno + 3
    y = region(region(region(a)))
    spmd.debug.print_graph(y * 1)
    lines = capsys.readouterr().out.splitlines()
    of_ops = [text for text in lines if "aten::sinh" in text]
    assert len(of_ops) == 3
    assert all(f"test_regions_on_shards.py:{line}" in text for text in of_ops)


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
        return spmd.lax.psum(torch.tanh(a @ up) @ down, "x")

    def both(a, *w):
        return layer(layer(a, *w[:2]), *w[2:])

    def counts(region, *args):
        before = _C.statistics()["replayed"]
        region(*args).sum().backward()
        spmd.sync(wait=True)
        for t in args:
            t.grad = None
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
