# SPDX-License-Identifier: Apache-2.0
"""shard_map and its collectives, against functions that do the same with lists of shards."""

import itertools
import re

import pytest
import torch
from autograd_steps import nodes_of_regions_are_seen, steps_behind
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_spmd as spmd
from torch_spmd import _C, P
from torch_spmd.regions import manual

MESHES = [((2,), ("x",)), ((4,), ("x",)), ((2, 2), ("x", "y")), ((2, 3), ("x", "y"))]


@pytest.fixture(params=MESHES, ids=lambda m: "x".join(map(str, m[0])))
def mesh(request):
    return spmd.make_mesh(*request.param)


@pytest.fixture
def four():
    return spmd.make_mesh((4,), ("x",))


def numbers(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def by_hand(mesh, f, in_specs, out_spec, *args):
    """What shard_map means: `f` on the lists of all shards, with positions (dicts from axis to
    number); the shards of the result put together."""
    sizes = mesh.shape
    places = [dict(zip(sizes, place)) for place in itertools.product(*map(range, sizes.values()))]

    def part(t, spec, place):
        for dim, entry in enumerate(spec):
            for axis in (entry,) if isinstance(entry, str) else entry or ():
                size = t.shape[dim] // sizes[axis]
                t = t.narrow(dim, place[axis] * size, size)
        return t

    shards = [[part(t, spec, place) for place in places] for t, spec in zip(args, in_specs)]
    results = f(places, *shards)
    local = results[0].shape
    whole = list(local)
    for dim, entry in enumerate(out_spec):
        for axis in (entry,) if isinstance(entry, str) else entry or ():
            whole[dim] *= sizes[axis]
    result = torch.full(whole, float("nan"), dtype=results[0].dtype)
    for place, value in zip(places, results):
        part(result, out_spec, place).copy_(value)
    return result


def groups(places, axis):
    """The numbers of the places that differ along the axis only, in its order."""
    rest = {}
    for i, place in enumerate(places):
        rest.setdefault(tuple(v for k, v in place.items() if k != axis), []).append(i)
    return list(rest.values())


def along(axis, combine):
    """A function of places and shards that gives each group's shards to `combine`."""

    def run(places, shards):
        results = [None] * len(places)
        for group in groups(places, axis):
            for i, value in zip(group, combine([shards[i] for i in group])):
                results[i] = value
        return results

    return run


def same(value, count):
    return [value] * count


RING = {
    "psum": (
        lambda t: spmd.lax.psum(t, "x"),
        lambda s: same(sum(s), len(s)),
    ),
    "pmean": (lambda t: spmd.lax.pmean(t, "x"), lambda s: same(sum(s) / len(s), len(s))),
    "pmax": (lambda t: spmd.lax.pmax(t, "x"), lambda s: same(torch.stack(s).amax(0), len(s))),
    "pmin": (lambda t: spmd.lax.pmin(t, "x"), lambda s: same(torch.stack(s).amin(0), len(s))),
    "all_gather": (
        lambda t: spmd.lax.all_gather(t, "x", axis=1),
        lambda s: same(torch.stack(s, 1), len(s)),
    ),
    "all_gather_tiled": (
        lambda t: spmd.lax.all_gather(t, "x", axis=-1, tiled=True),
        lambda s: same(torch.cat(s, -1), len(s)),
    ),
    "psum_scatter_tiled": (
        lambda t: spmd.lax.psum_scatter(t, "x", scatter_dimension=1, tiled=True),
        lambda s: sum(s).chunk(len(s), 1),
    ),
    "all_to_all_tiled": (
        lambda t: spmd.lax.all_to_all(t, "x", 1, 0, tiled=True),
        lambda s: [torch.cat([t.chunk(len(s), 1)[i] for t in s], 0) for i in range(len(s))],
    ),
    "ppermute": (
        lambda t: spmd.lax.ppermute(
            t, "x", [(i, (i + 1) % spmd.lax.axis_size("x")) for i in range(spmd.lax.axis_size("x"))]
        ),
        lambda s: [s[i - 1] for i in range(len(s))],
    ),
    "ppermute_open": (
        lambda t: spmd.lax.ppermute(
            t, "x", [(i, i + 1) for i in range(spmd.lax.axis_size("x") - 1)]
        ),
        lambda s: [torch.zeros_like(s[0]), *s[:-1]],
    ),
    "pshuffle": (
        lambda t: spmd.lax.pshuffle(t, "x", list(reversed(range(spmd.lax.axis_size("x"))))),
        lambda s: list(reversed(s)),
    ),
    "pbroadcast": (lambda t: spmd.lax.pbroadcast(t, "x", 1), lambda s: same(s[1], len(s))),
    "axis_index": (
        lambda t: t * spmd.lax.axis_index("x"),
        lambda s: [t * i for i, t in enumerate(s)],
    ),
}
DOES_NOT_VARY = {"psum", "pmean", "pmax", "pmin", "all_gather", "all_gather_tiled", "pbroadcast"}


@pytest.mark.parametrize("name", RING)
def test_collectives_and_their_gradients(mesh, name):
    ours, by_lists = RING[name]
    n = mesh.shape["x"]
    all_axes = tuple(mesh.axis_names)
    in_spec = P(all_axes, None)
    x = numbers(12, 4 * n)
    rank = 3 if name == "all_gather" else 2
    rest = tuple(a for a in all_axes if a != "x")
    first = (rest or None) if name in DOES_NOT_VARY else all_axes
    out_spec = P(first, *[None] * (rank - 1))
    theirs = x.clone().requires_grad_()
    expected = by_hand(mesh, along("x", by_lists), (in_spec,), out_spec, theirs)
    t = x.to("spmd").requires_grad_()
    result = spmd.shard_map(ours, mesh, (in_spec,), out_spec)(t)
    torch.testing.assert_close(result.cpu(), expected)
    weights = numbers(*expected.shape, seed=1)
    (expected * weights).sum().backward()
    (result * weights.to("spmd")).sum().backward()
    if name in DOES_NOT_VARY:  # the copies of by_hand overwrite each other: the last one counts
        assert t.grad is not None and t.grad.shape == x.shape
    else:
        torch.testing.assert_close(t.grad.cpu(), theirs.grad)


def test_gradients_of_values_that_do_not_vary(four):
    """A sum that each device uses: the gradient is that of the function of whole tensors."""
    x, w = numbers(8, 4), numbers(8, 4, seed=1)

    def whole(x):
        return ((x.view(4, 2, 4).sum(0)[None] * w.view(4, 2, 4)) ** 2).sum()

    def shards(x, w):
        return spmd.lax.psum(((spmd.lax.psum(x, "x") * w) ** 2).sum(), "x")

    expected = torch.func.grad(whole)(x)
    f = spmd.shard_map(shards, four, P("x", None), P())
    t = x.to("spmd").requires_grad_()
    f(t, w.to("spmd")).backward()
    torch.testing.assert_close(t.grad.cpu(), expected)
    got = torch.func.grad(lambda x: f(x, w.to("spmd")))(x.to("spmd"))
    torch.testing.assert_close(got.cpu(), expected)


INSIDE = {
    "psum": lambda t: spmd.lax.psum(t, "x"),
    "pmax": lambda t: spmd.lax.pmax(t, "x"),
    "all_gather": lambda t: spmd.lax.all_gather(t, "x", tiled=True),
    "psum_scatter": lambda t: spmd.lax.psum_scatter(t, "x", tiled=True),
    "all_to_all": lambda t: spmd.lax.all_to_all(t, "x", 0, 0, tiled=True),
    "ppermute": lambda t: spmd.lax.ppermute(t, "x", [(0, 1), (1, 2), (2, 0)]),
    "pbroadcast": lambda t: spmd.lax.pbroadcast(t, "x", 2),
    "pvary": lambda t: spmd.lax.pvary(t, "x"),
}


@pytest.mark.parametrize("name", INSIDE)
def test_gradients_taken_inside_are_those_taken_outside(four, name):
    """With respect to a value that varies, of a loss that each device has a part of."""
    w = numbers(4, 8, seed=2)

    def loss(t, w):
        y = INSIDE[name](t)
        y = y if name != "psum_scatter" else spmd.lax.all_gather(y, "x", tiled=True)
        return (y[:4] * w).square().sum()

    def gradients(t, w):
        return torch.func.grad(loss)(t, w)

    x, specs = numbers(16, 8), (P("x", None), P("x", None))
    w = torch.cat([w + i for i in range(4)])
    inside = spmd.shard_map(gradients, four, specs, P("x", None))(x.to("spmd"), w.to("spmd"))
    t = x.to("spmd").requires_grad_()
    total = spmd.shard_map(lambda t, w: spmd.lax.psum(loss(t, w), "x"), four, specs, P())
    total(t, w.to("spmd")).backward()
    torch.testing.assert_close(inside.cpu(), t.grad.cpu())


def test_vmap_inside(four):
    x = numbers(8, 3, 5)
    f = spmd.shard_map(
        lambda t: torch.vmap(lambda u: spmd.lax.psum(u * 2, "x"), 1, 1)(t),
        four,
        P("x", None, None),
        P(),
    )
    expected = x.view(4, 2, 3, 5).sum(0) * 2
    torch.testing.assert_close(f(x.to("spmd")).cpu(), expected)
    torch.testing.assert_close(torch.vmap(f, 1, 1)(x[:, None].to("spmd")).cpu(), expected[:, None])


def test_trees_and_several_axes(mesh):
    axes = tuple(mesh.axis_names)

    def f(batch, scale):
        return {
            "sum": spmd.lax.psum(batch["a"].sum(), axes) * scale,
            "own": [batch["b"] + batch["a"]],
        }

    a, b = numbers(12, 4), numbers(12, 4, seed=1)
    specs = ({"a": P(axes, None), "b": P(axes, None)}, P())
    g = spmd.shard_map(f, mesh, specs, {"sum": P(), "own": [P(axes, None)]})
    result = g({"a": a.to("spmd"), "b": b.to("spmd")}, torch.tensor(2.0, device="spmd"))
    torch.testing.assert_close(result["sum"].cpu(), a.sum() * 2)
    torch.testing.assert_close(result["own"][0].cpu(), a + b)


def test_short_specs_leave_the_last_dimensions_whole(mesh):
    """As in JAX, where P() is the spec of everything that is not sharded."""
    axis = mesh.axis_names[0]
    rows, whole = torch.randn(12, 3, 2), torch.randn(3, 2)
    seen = []

    def f(tree, w):
        seen.append([tuple(t.shape) for t in (*tree, w)])
        return tree[0] * w, {"sum": spmd.lax.psum((tree[0] * w).sum(), axis), "w": w}

    g = spmd.shard_map(f, mesh, (P(axis), P()), (P(axis), P()))
    inputs = [t.to("spmd").requires_grad_() for t in (rows, rows, whole)]
    product, rest = g(inputs[:2], inputs[2])
    own = 12 // mesh.mesh_shape[0]
    assert seen == [[(own, 3, 2), (own, 3, 2), (3, 2)]]
    torch.testing.assert_close(product.cpu(), rows * whole)
    torch.testing.assert_close(rest["sum"].cpu(), (rows * whole).sum())
    assert torch.equal(rest["w"].cpu(), whole)
    product.sum().backward()
    torch.testing.assert_close(inputs[2].grad.cpu(), rows.sum(0))


def test_some_axes_are_automatic():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    x, w = numbers(8, 16), numbers(16, 32, seed=1)
    t = spmd.mark_sharding(x.to("spmd"), mesh, P("data", None))
    v = spmd.mark_sharding(w.to("spmd"), mesh, P("model", None))
    f = spmd.shard_map(
        lambda x, w: spmd.lax.psum(x @ w, "model"),
        mesh,
        (P(None, "model"), P("model", None)),
        P(None, None),
        axis_names={"model"},
    )
    result = f(t, v)
    torch.testing.assert_close(result.cpu(), x @ w)
    kinds = {(row.kind, row.axes) for row in spmd.debug.collectives() if row.bytes > 64}
    assert ("all_gather", "data") not in kinds  # the batch stays where it is


def test_bytes_are_those_of_automatic_code(four):
    """Megatron's MLP by hand: one all-reduce of the output forwards, one of the input backwards."""
    x, w1, w2 = numbers(32, 64), numbers(64, 256, seed=1), numbers(256, 64, seed=2)

    def run(function):
        t = x.to("spmd").requires_grad_()
        a = spmd.mark_sharding(w1.to("spmd"), four, P(None, "x")).requires_grad_()
        b = spmd.mark_sharding(w2.to("spmd"), four, P("x", None)).requires_grad_()
        spmd.sync(wait=True)
        function(t, a, b).square().sum().backward()
        spmd.sync(wait=True)
        rows = sorted((row.kind, row.bytes) for row in spmd.debug.collectives() if row.bytes > 64)
        return rows, [p.grad.cpu() for p in (t, a, b)]

    specs = (P(None, None), P(None, "x"), P("x", None))
    by_hand = spmd.shard_map(
        lambda x, a, b: spmd.lax.psum(torch.tanh(x @ a) @ b, "x"), four, specs, P(None, None)
    )
    rows, grads = run(by_hand)
    expected_rows, expected = run(lambda x, a, b: torch.tanh(x @ a) @ b)
    assert rows == expected_rows
    for ours, theirs in zip(grads, expected):
        torch.testing.assert_close(ours, theirs)


def test_a_region_copies_nothing(four):
    """What pins arguments and results to their specs takes no memory and no time."""
    x = spmd.mark_sharding(numbers(8, 4).to("spmd"), four, P("x", None))
    f = spmd.shard_map(lambda t: spmd.lax.psum(t, "x"), four, P("x", None), P(None, None))
    spmd.sync(wait=True)
    total = f(x)
    spmd.sync(wait=True)
    text = _C.last_program().program_text()
    assert "aten::clone" not in text and text.count(" = all_reduce(") == 1
    x.add_(1)  # the results of views are values of their own
    again = f(x)
    assert torch.equal(total.cpu(), numbers(8, 4).view(4, 2, 4).sum(0))
    torch.testing.assert_close(again.cpu(), total.cpu() + 4)


class _Dispatched(TorchDispatchMode):
    """The names of the ops that reach the device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function).split(".")[1])
        return function(*args, **(kwargs or {}))


def test_a_region_adds_no_ops_that_change_nothing(mesh):
    """What puts shards in front of a tensor is one view and at most one permutation, however many
    axes and dimensions there are; a collective is the op on that dimension, and what nobody asks
    for is not recorded."""
    names, n = mesh.axis_names, mesh.size
    rows, columns = numbers(12, 5).to("spmd"), numbers(5, 12).to("spmd")
    f = spmd.shard_map(
        lambda a, b, c: (spmd.lax.psum(a, names), b),
        mesh,
        (P(names, None), P(None, names), P(None, None)),
        (P(None, None), P(None, names)),
    )
    f(rows, columns, rows)
    with _Dispatched() as ops:
        total, same = f(rows, columns, rows)
    entering = ["reshard", "view", "reshard", "view", "permute", "reshard"]
    summing = ["sum"] * len(names)
    leaving = ["reshard", "permute", "view", "reshard"]
    assert ops.names == entering + summing + leaving
    torch.testing.assert_close(total.cpu(), rows.cpu().view(n, -1, 5).sum(0))
    assert torch.equal(same.cpu(), columns.cpu())


def test_a_region_is_one_step_of_autograd(mesh):
    """So are its borders, where the nodes inside are seen."""
    names = mesh.axis_names
    a, b, c = (
        numbers(12, 12, seed=seed).to("spmd").requires_grad_(wanted)
        for seed, wanted in enumerate([True, True, False])
    )
    f = spmd.shard_map(
        lambda a, b, c: (a + b) * c,
        mesh,
        (P(names, None), P(names, None), P(names, None)),
        P(names, None),
    )
    borders, leaves = ["LanesBackward"] * 2, ["torch::autograd::AccumulateGrad"] * 2
    for _ in range(2):
        with nodes_of_regions_are_seen():
            y = f(a, b, c)
        assert steps_behind(y) == ["AddBackward0", *borders, "MulBackward0", *leaves]
        assert steps_behind(f(a, b, c)) == ["RegionBackward", *leaves]
    # A part of the gradients only, and derivatives of them.
    (of_b,) = torch.autograd.grad(y.sum(), b, create_graph=True)
    torch.testing.assert_close(of_b.cpu(), c.cpu())
    squares = f(a * a, b, c)
    (of_a,) = torch.autograd.grad(squares.sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(of_a.sum(), a)
    torch.testing.assert_close(second.cpu(), 2 * c.cpu())


def test_results_of_one_function_that_differ(mesh):
    """What is known of a result's shards is used only for results like it."""
    names = mesh.axis_names
    x = numbers(24, 6)
    what = []
    f = spmd.shard_map(lambda t: what[-1](t), mesh, P(names, None), P(names, None))

    def check(function, expected):
        what.append(function)
        for _ in range(2):
            torch.testing.assert_close(f(x.to("spmd")).cpu(), expected, msg=str(len(what)))

    n = mesh.size
    shards = x.view(n, -1, 6)
    check(lambda t: t * 2, x * 2)
    check(lambda t: t[:1], shards[:, :1].reshape(n, 6))  # of another size
    check(lambda t: t, x)
    check(lambda t: spmd.lax.psum(t, names), shards.sum(0).repeat(n, 1))  # which does not vary
    check(lambda t: spmd.lax.psum(t, names[0]), spmd_sum_along_first(mesh, shards))
    check(lambda t: t > 0, x > 0)
    check(lambda t: t.T.contiguous().T, x)
    check(lambda t: torch.vmap(torch.sin)(t), x.sin())
    what.append(lambda t: [t, 2 * t])
    first, second = f(x.to("spmd"))
    assert torch.equal(first.cpu(), x) and torch.equal(second.cpu(), 2 * x)
    what.append(lambda t: t.sum())
    with pytest.raises(ValueError, match="has 0 dimensions, but its spec"):
        f(x.to("spmd"))
    whole = spmd.shard_map(lambda t: what[-1](t), mesh, P(names, None), P(None, None))
    what.append(lambda t: spmd.lax.psum(t, names))
    for _ in range(2):
        torch.testing.assert_close(whole(x.to("spmd")).cpu(), shards.sum(0))
    what.append(lambda t: t * 1)  # of the same size, but it varies
    with pytest.raises(ValueError, match="varies along axis"):
        whole(x.to("spmd"))
    what.append(lambda t: spmd.lax.psum(t, names))
    torch.testing.assert_close(whole(x.to("spmd")).cpu(), shards.sum(0))
    assert torch._C._functorch.maybe_current_level() is None  # no level is left open


def spmd_sum_along_first(mesh, shards):
    """What a sum over the first axis gives to each device, one behind the other."""
    first, *_ = mesh.shape.values()
    apart = shards.view(first, -1, *shards.shape[1:])
    return apart.sum(0, keepdim=True).expand_as(apart).reshape(-1, shards.shape[-1])


def test_collectives_are_one_op_for_those_who_watch_ops(four):
    names = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    def watched(t):
        with Watching():
            t = torch.sin(spmd.lax.psum(t, "x"))
        return t

    f = spmd.shard_map(watched, four, P("x"), P(None))
    assert f(torch.zeros(4, device="spmd")).tolist() == [0]
    assert names == ["_apply", "sin"]


def test_what_is_remembered_of_shapes_and_specs(four):
    """Each call has its own shapes, specs and checks, and the memory of them is bounded."""
    f = spmd.shard_map(lambda t: t * 1, four, P("x", None), P("x", None))
    padded = spmd.shard_map(lambda t: t * 1, four, P("x", None), P("x", None), uneven=True)
    other = spmd.shard_map(lambda t: t * 1, four, P(None, "x"), P(None, "x"))
    for shape in [(4, 8), (8, 4), (4, 8), (8, 8)]:
        x = numbers(*shape)
        assert torch.equal(f(x.to("spmd")).cpu(), x)
        assert torch.equal(other(x.to("spmd")).cpu(), x)
    for _ in range(2):
        assert torch.equal(padded(numbers(6, 4).to("spmd")).cpu(), numbers(6, 4))
        with pytest.raises(ValueError, match=r"\[0\]: dimension 0 has size 6, which 4 devices"):
            f(numbers(6, 4).to("spmd"))
        with pytest.raises(ValueError, match=r"has 2 entries, but the tensor has 1 dimensions"):
            f(numbers(8).to("spmd"))
    layouts = manual._layouts(four, ("x",))
    for size in range(3000):
        layouts.way_in(P("x"), torch.Size([4 * size]))
        layouts.way_out(P("x"), ("x",), torch.Size([4, size]))
    assert len(layouts._ways) <= 1024


def test_a_position_that_is_first_asked_for_inside_of_transforms(mesh):
    """It belongs to the axis, below the levels in which it is asked for."""
    x = numbers(12, 3)

    def f(t):
        gradient = torch.func.grad(lambda s: (s * s * spmd.lax.axis_index("x")).sum())(t)
        rows = torch.vmap(lambda s: s + spmd.lax.axis_index(mesh.axis_names[-1]))(t)
        return gradient + rows * spmd.lax.axis_index("x")

    names = mesh.axis_names
    expected = by_hand(
        mesh,
        lambda places, ts: [
            (2 * t + t + place[names[-1]]) * place["x"] for t, place in zip(ts, places)
        ],
        (P(names, None),),
        P(names, None),
        x,
    )
    got = spmd.shard_map(f, mesh, P(names, None), P(names, None))(x.to("spmd"))
    torch.testing.assert_close(got.cpu(), expected)


def test_resharded_values_are_their_own(four):
    """A tensor and what `reshard` makes of it may share memory until one is overwritten."""
    spec, x = P("x", None), numbers(8, 4)
    t = spmd.mark_sharding(x.to("spmd"), four, spec)
    spmd.sync(wait=True)
    same, other = spmd.reshard(t, four, spec), spmd.reshard(t, four, P(None, "x"))
    spmd.sync(wait=True)
    for _ in range(2):  # once with all of them held, once with t alone
        t.mul_(2)
        same.sub_(1)
        spmd.sync(wait=True)
    assert torch.equal(t.cpu(), x * 4)
    assert torch.equal(same.cpu(), x - 1 - 1)
    assert torch.equal(other.cpu(), x)


def test_modules_random_numbers_and_checkpoints_around(four):
    torch.manual_seed(0)
    layer = nn.Linear(8, 8, dtype=torch.float64).to("spmd")
    f = spmd.shard_map(lambda t: layer(t).relu(), four, P("x", None), P("x", None))
    x = numbers(8, 8)
    y = torch.utils.checkpoint.checkpoint(f, x.to("spmd"), use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(y.detach().cpu(), layer.cpu()(x).relu().detach())
    draw = spmd.shard_map(lambda t: torch.rand_like(t), four, P("x"), P("x"))
    drawn = draw(torch.zeros(8, device="spmd")).cpu()
    assert len(set(drawn.tolist())) == 8


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_dtypes(four, dtype):
    x = numbers(8, dtype=torch.float32).mul(4).to(dtype)
    ring = [(i, (i + 1) % 4) for i in range(4)]
    f = spmd.shard_map(
        lambda t: (spmd.lax.psum(t, "x"), spmd.lax.ppermute(t, "x", ring)),
        four,
        P("x"),
        (P(None), P("x")),
    )
    total, rolled = f(x.to("spmd"))
    torch.testing.assert_close(total.cpu(), x.view(4, 2).sum(0, dtype=total.dtype))
    assert torch.equal(rolled.cpu(), x.roll(2))


def test_empty_and_0d(four):
    f = spmd.shard_map(
        lambda t, s: (t * s, spmd.lax.psum(s, "x")), four, (P("x"), P()), (P("x"), P())
    )
    empty, total = f(torch.ones(0, device="spmd"), torch.tensor(2.0, device="spmd"))
    assert empty.shape == (0,)
    assert total.item() == 8  # the same value on each of four devices


def test_it_compiles_once(four):
    f = spmd.shard_map(lambda t: spmd.lax.psum(t.sin(), "x"), four, P("x"), P(None))
    x = torch.ones(8, device="spmd")
    for _ in range(3):
        f(x).cpu()
    before = len(spmd.debug.explain_compile())
    for _ in range(3):
        f(x).cpu()
    assert len(spmd.debug.explain_compile()) == before


def identity(t):
    return t


def test_errors(four):
    two = spmd.make_mesh((2, 2), ("x", "y"))
    x = torch.ones(8, 6, device="spmd")
    for make, error, message in (
        (
            lambda: spmd.lax.psum(x, "x"),
            ValueError,
            "psum: there are no shards outside of a manual reg",
        ),
        (
            lambda: spmd.shard_map(lambda t: spmd.lax.psum(t, "y"), four, P("x", None), P())(x),
            ValueError,
            "psum: axis_name: 'y' is not an axis of the region; its axes are 'x'",
        ),
        (
            lambda: spmd.shard_map(identity, four, P("z", None), P("x", None)),
            ValueError,
            "shard_map: in_specs: .*'z'",
        ),
        (
            lambda: spmd.shard_map(identity, two, P("x", None), P("x"), axis_names={"y"}),
            ValueError,
            "names axis 'x', which is not manual; the manual axes are 'y'",
        ),
        (
            lambda: spmd.shard_map(identity, four, P("x", "x"), P("x", None)),
            ValueError,
            "axis 'x' occurs twice in",
        ),
        (
            lambda: spmd.shard_map(identity, four, P(None, "x"), P(None, "x"))(x),
            ValueError,
            r"identity \(test_shard_map.py:\d+\): argument \[0\]: dimension 1 has size 6, which 4",
        ),
        (
            lambda: spmd.shard_map(identity, four, P("x", None, None), P("x"))(x),
            ValueError,
            r"argument \[0\]: spec P\('x', None, None\) has 3 entries, but the tensor has 2 dim",
        ),
        (
            lambda: spmd.shard_map(identity, four, P("x"), P("x", None, None))(x),
            ValueError,
            r"its result has 2 dimensions, but its spec in out_specs is P\('x', None, None\)",
        ),
        (
            lambda: spmd.shard_map(identity, four, P("x", None), P(None, None))(x),
            ValueError,
            r"identity \(test_shard_map.py:\d+\): its result varies along axis 'x', which its spec",
        ),
        (
            lambda: spmd.shard_map(identity, four, (P("x", None), P()), P("x", None))(x),
            ValueError,
            "in_specs has 2 specs, but .* was called with 1 arguments",
        ),
        (
            lambda: spmd.shard_map(lambda t: t.sum().item(), four, P("x", None), P())(x),
            RuntimeError,
            "a shard's values cannot be read inside a manual region",
        ),
        (
            lambda: spmd.shard_map(
                lambda t: spmd.shard_map(identity, four, P("x", None), P("x", None))(t),
                four,
                P("x", None),
                P("x", None),
            )(x),
            ValueError,
            "the region is inside of another one over axis 'x'",
        ),
        (lambda: spmd.shard_map(3, four, P(), P()), TypeError, "shard_map: f must be a function"),
    ):
        with pytest.raises(error, match=message):
            make()
    assert torch.equal(x.cpu(), torch.ones(8, 6))  # and no region is left open
    with pytest.raises(ValueError, match="outside of a manual region"):
        spmd.lax.axis_index("x")


def test_captured_tensors(four):
    w = spmd.mark_sharding(torch.ones(8, device="spmd"), four, P("x"))
    x, scale = torch.ones(8, device="spmd"), torch.tensor(3.0, device="spmd")
    f = spmd.shard_map(lambda t: t + w[:2], four, P("x"), P("x"))
    with pytest.raises(ValueError, match="from outside that is sharded over the manual axis 'x'"):
        f(x)
    for _ in range(2):  # and when the call is known
        with pytest.raises(ValueError, match="from outside that is sharded over the manual axis"):
            f(x)
    f = spmd.shard_map(lambda t: t + w[:2], four, P("x"), P("x"), check_vma=False)
    for _ in range(2):
        assert f(x).tolist() == [2.0] * 8
    f = spmd.shard_map(lambda t: t * scale, four, P("x"), P("x"))  # the same on all devices
    assert f(x).tolist() == [3.0] * 8


def test_captured_tensors_of_regions_in_regions():
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    w = torch.arange(8.0, device="spmd")
    over_x, over_y = (spmd.mark_sharding(w + 0, mesh, P(axis)) for axis in ("x", "y"))

    def nested(inner):
        def outer(t):
            return spmd.shard_map(inner, mesh, P("y"), P("y"), axis_names="y")(t)

        return spmd.shard_map(outer, mesh, P("x"), P("x"), axis_names="x")

    assert nested(lambda t: t * 2)(over_x).tolist() == (2 * w).tolist()
    for marked, axis in ((over_x, "x"), (over_y, "y")):  # the inner region is in both
        with pytest.raises(ValueError, match=f"over the manual axis '{axis}'"):
            nested(lambda t, marked=marked: t + marked[:2])(w)
    # An argument of the inner region has a mark over its axis, its shards have none.
    marks = spmd.shard_map(lambda t: t.flip(0), mesh, P("y"), P("y"), axis_names="y")
    f = spmd.shard_map(
        lambda t: marks(spmd.mark_sharding(t + 0, mesh, P("y"))),
        mesh,
        P("x"),
        P("x"),
        axis_names="x",
    )
    expected = w.cpu().view(2, 2, 2).flip(2).flatten().tolist()
    assert [f(w).tolist() for _ in range(2)] == [expected] * 2


def test_overwriting_a_value_that_does_not_vary(four):
    def f(t, total):
        return total.add_(t)

    x, total = torch.ones(8, device="spmd"), torch.zeros(2, device="spmd")
    with pytest.raises(RuntimeError, match="make it vary first"):
        spmd.shard_map(f, four, (P("x"), P(None)), P("x"))(x, total)
    assert total.tolist() == [0.0, 0.0]


def shuffled(x, sources):
    """By lists: the shard of each source, zeros where there is none."""
    shards = x.chunk(len(sources))
    return torch.cat([shards[s] if s >= 0 else shards[0] * 0 for s in sources])


def partial_permutations(n):
    for sources in itertools.product(range(-1, n), repeat=n):
        used = [s for s in sources if s >= 0]
        if len(used) == len(set(used)):
            yield sources


def permuted(mesh, sources):
    pairs = [(s, d) for d, s in enumerate(sources) if s >= 0]
    return spmd.shard_map(
        lambda t: spmd.lax.ppermute(t, "x", pairs), mesh, P("x", None), P("x", None)
    )


def test_all_partial_permutations_and_their_gradients():
    mesh, x, w = spmd.make_mesh((3,), ("x",)), numbers(6, 5), numbers(6, 5, seed=1)
    for sources in partial_permutations(3):
        theirs, ours = x.clone().requires_grad_(), x.to("spmd").requires_grad_()
        (shuffled(theirs, sources) * w).sum().backward()
        result = permuted(mesh, sources)(ours)
        (result * w.to("spmd")).sum().backward()
        assert torch.equal(result.detach().cpu(), shuffled(x, sources)), sources
        assert torch.equal(ours.grad.cpu(), theirs.grad), sources


@pytest.mark.parametrize("rows", [(4, 8), (1, 6)], ids=str)
def test_what_permutations_send(four, rows):
    """Each shard once, in one exchange, whatever the permutation, and so do the gradients."""
    x = numbers(4 * rows[0], rows[1], dtype=torch.float32)
    t = spmd.mark_sharding(x.to("spmd"), four, P("x", None)).requires_grad_()
    shard = rows[0] * rows[1] * 4
    for sources in [*itertools.permutations(range(4)), (-1, 0, 1, 2), (1, 2, 3, -1), (3, -1, 0, 1)]:
        spmd.sync(wait=True)
        result = permuted(four, sources)(t)
        assert torch.equal(result.detach().cpu(), shuffled(x, sources))
        if sources == (0, 1, 2, 3):
            continue  # sends nothing, and may run nothing
        sent = [(r.kind, r.bytes, r.wire_bytes) for r in spmd.debug.collectives()]
        assert sent == [("exchange", shard, shard)], sources
        [grad] = torch.autograd.grad(
            result, t, spmd.mark_sharding(x.to("spmd"), four, P("x", None))
        )
        spmd.sync(wait=True)
        sent = [(r.kind, r.bytes, r.wire_bytes) for r in spmd.debug.collectives()]
        assert sent == [("exchange", shard, shard)], sources
        inverse = [sources.index(i) if i in sources else -1 for i in range(4)]
        assert torch.equal(grad.cpu(), shuffled(x, inverse))


def test_permutations_of_some_axes_and_tile_by_tile():
    """On (2, 3), where neighbours along an axis are not neighbours in the order of devices."""
    mesh, x = spmd.make_mesh((2, 3), ("y", "x")), numbers(12, 5)
    by_lists = along("x", lambda s: [s[2], s[0], s[0] * 0])

    def region(t):
        return spmd.lax.ppermute(t, "x", [(2, 0), (0, 1)])

    spec = P(("y", "x"), None)
    expected = by_hand(mesh, by_lists, (spec,), spec, x)
    for coalescing in (True, False):
        spmd.config.update(coalesce=coalescing)
        try:
            assert torch.equal(
                spmd.shard_map(region, mesh, spec, spec)(x.to("spmd")).cpu(), expected
            )
            tangent = torch.func.jvp(
                spmd.shard_map(region, mesh, spec, spec), (x.to("spmd"),), (x.to("spmd"),)
            )[1]
            assert torch.equal(tangent.cpu(), expected)
        finally:
            spmd.config.update(coalesce=True)


@pytest.mark.parametrize("n", [2, 3])
def test_ragged_all_to_all(n):
    """Against lists, with sizes that change and do not compile again; its gradients, too."""
    mesh, random = spmd.make_mesh((n,), ("x",)), torch.Generator().manual_seed(0)
    rows, end, compiled = 7, 11, []

    def by_lists(operands, outputs, starts, sizes, places):
        results = [list(t) for t in outputs]
        for source, target in itertools.product(range(n), range(n)):
            for k in range(sizes[source][target]):
                row = operands[source][starts[source][target] + k]
                results[target][places[source][target] + k] = row
        return torch.cat([torch.stack(rows) for rows in results])

    f = spmd.shard_map(
        lambda *args: spmd.lax.ragged_all_to_all(*args, axis_name="x"),
        mesh,
        (P("x", None), P("x", None), *[P("x")] * 4),
        P("x", None),
    )
    for _ in range(4):
        sizes = torch.randint(0, 3, (n, n), generator=random)  # by source and target
        starts = torch.randint(0, rows - 2, (n, n), generator=random)
        places = sizes.cumsum(0) - sizes + torch.randint(0, 3, (1, n), generator=random)
        operand, output = numbers(n * rows, 2), numbers(n * end, 2, seed=1)
        theirs = [t.clone().requires_grad_() for t in (operand, output)]
        expected = by_lists(
            *(t.chunk(n) for t in theirs), *(t.tolist() for t in (starts, sizes, places))
        )
        ours = [t.to("spmd").requires_grad_() for t in (operand, output)]
        integers = [t.flatten().to("spmd") for t in (starts, sizes, places, sizes.T)]
        spmd.sync(wait=True)
        got = f(*ours, *integers)
        spmd.sync(wait=True)
        sent = [(r.kind, r.bytes) for r in spmd.debug.collectives()]
        assert ("all_to_all", n * rows * 2 * 8) in sent and {kind for kind, _ in sent} == {
            "all_to_all"
        }
        torch.testing.assert_close(got.detach().cpu(), expected.detach())
        weights = numbers(n * end, 2, seed=2)
        (expected * weights).sum().backward()
        (got * weights.to("spmd")).sum().backward()
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a.grad.cpu(), b.grad)
        compiled.append(len(spmd.debug.explain_compile()))
    assert compiled[1] == compiled[-1]
    with pytest.raises(ValueError, match="send_sizes must have one integer for each of the"):
        f(*ours, integers[0], integers[1][:n], *integers[2:])


# By source and target, except that `received` is by target and source.
FITS = {
    "starts": ((0, 1), (0, 2)),
    "sizes": ((1, 2), (2, 1)),
    "places": ((0, 0), (1, 2)),
    "received": ((1, 2), (2, 1)),
}
DOES_NOT_FIT = [  # one number of FITS, and what is then wrong
    (
        "places",
        (1, 0),
        3,
        "output_offsets + send_sizes must be in 0 to 4, the rows of output; got 5",
    ),
    ("places", (1, 0), -1, "output_offsets must be in 0 to 4, the rows of output; got -1"),
    (
        "starts",
        (0, 1),
        2,
        "input_offsets + send_sizes must be in 0 to 3, the rows of operand; got 4",
    ),
    ("sizes", (0, 1), 9, "send_sizes must be in 0 to 3, the rows of operand; got 9"),
    ("received", (1, 0), 1, "recv_sizes minus the send_sizes of the senders must be 0; got -1"),
]


@pytest.mark.parametrize(("which", "at", "number", "words"), DOES_NOT_FIT)
def test_sizes_that_do_not_fit_are_an_error(which, at, number, words):
    """Where it is read, and by sync; other values of the program are as they were. The program is
    the one that runs for sizes that fit."""
    mesh = spmd.make_mesh((2,), ("x",))
    rows, vector = P("x", None), P("x")
    f = spmd.shard_map(
        lambda *args: spmd.lax.ragged_all_to_all(*args, axis_name="x"),
        mesh,
        (rows, rows, *[vector] * 4),
        rows,
    )
    operand, output = numbers(6, 2).to("spmd"), numbers(8, 2, seed=1).to("spmd")
    kept = torch.zeros(3, device="spmd")

    def run(given):
        kept.add_(1)
        return f(operand, output, *(t.flatten().to("spmd") for t in given.values()))

    fits = {name: torch.tensor(given) for name, given in FITS.items()}
    for _ in range(3):
        run(fits).cpu()
    compiled = len(spmd.debug.explain_compile())
    fits[which][at] = number
    result = run(fits)
    with pytest.raises(RuntimeError, match="ragged_all_to_all: " + re.escape(words)):
        spmd.sync(wait=True)
    with pytest.raises(RuntimeError, match="the value was lost.*" + re.escape(words)):
        result.cpu()
    assert kept.tolist() == [4.0] * 3
    assert torch.equal(operand.cpu(), numbers(6, 2))
    assert len(spmd.debug.explain_compile()) == compiled


def test_a_ragged_exchange_of_no_rows():
    mesh = spmd.make_mesh((2,), ("x",))
    f = spmd.shard_map(
        lambda t, u, n: spmd.lax.ragged_all_to_all(t, u, n, n, n, n, axis_name="x"),
        mesh,
        (P("x", None), P("x", None), P("x")),
        P("x", None),
    )
    empty, output = torch.zeros(0, 2, device="spmd"), torch.ones(4, 2, device="spmd")
    zeros = torch.zeros(4, dtype=torch.int32, device="spmd")
    assert f(empty, output, zeros).tolist() == [[1.0, 1.0]] * 4
    with pytest.raises(RuntimeError, match="send_sizes must be 0, the rows of operand; got 1"):
        f(empty, output, zeros + 1).tolist()


@pytest.mark.parametrize("size", [1, 2, 5, 7, 12, 13])
def test_uneven_shards(mesh, size):
    """Values and gradients are those of the whole, and each device knows what it has. Nothing is
    sent for the zeros at the end, only for the sums; a single row comes from where it is."""
    axes, devices = tuple(mesh.axis_names), len(mesh.device_ids)
    largest, seen = -(-size // devices), []

    def f(t, w):
        seen.append(t.shape)
        is_own = torch.arange(len(t), device="spmd") < spmd.lax.shard_size(size, axes)
        y = t.sin() * w
        total = spmd.lax.psum(torch.where(is_own[:, None], y.exp(), 0).sum(), axes)
        return y, total

    rows = P(axes, None)
    g = spmd.shard_map(f, mesh, (rows, P(None)), (rows, P()), uneven=True)
    x, w = numbers(size, 3), numbers(3, seed=1)
    theirs = [t.clone().requires_grad_() for t in (x, w)]
    ours = [t.to("spmd").requires_grad_() for t in (x, w)]
    spmd.mark_sharding(ours[0], mesh, rows)
    spmd.sync(wait=True)
    y, total = g(*ours)
    expected = theirs[0].sin() * theirs[1]
    (expected.square().sum() + expected.exp().sum()).backward()
    (y.square().sum() + total).backward()
    spmd.sync(wait=True)
    assert seen == [(largest, 3)]
    if size > 1:
        sent = [(r.kind, r.bytes) for r in spmd.debug.collectives() if r.wire_bytes > 0]
        assert {kind for kind, _ in sent} == {"all_reduce"}
        assert sum(n for _, n in sent) <= 8 * (3 + 2)  # the gradient of w, the total, the loss
    torch.testing.assert_close(y.detach().cpu(), expected.detach())
    torch.testing.assert_close(total.detach().cpu(), expected.exp().sum().detach())
    own = spmd.shard_map(lambda: spmd.lax.shard_size(size, axes)[None], mesh, (), P(axes))()
    held = [len(range(i * largest, min((i + 1) * largest, size))) for i in range(devices)]
    assert own.tolist() == held
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


def test_uneven_shards_of_two_sizes(four):
    """A result of which two arguments tell two sizes is refused; two dimensions are two matters."""
    rows, x = P("x", None), torch.ones(6, 3, device="spmd")
    f = spmd.shard_map(lambda t, u: t + u, four, (rows, rows), rows, uneven=True)
    assert f(x, x).shape == (6, 3)
    words = (
        f"shard_map: <lambda> (test_shard_map.py:{f.__wrapped__.__code__.co_firstlineno}): its "
        "result: dimension 0 has shards of 2 along 'x', as have dimensions of arguments of sizes "
        "6 and 7, so that its own size is not known; return it with one more dimension, t[None], "
        "that is sharded in place of this one"
    )
    with pytest.raises(ValueError) as caught:
        f(x, torch.ones(7, 3, device="spmd"))
    assert str(caught.value) == words
    f = spmd.shard_map(
        lambda t, u: (t + u)[None], four, (rows, rows), P("x", None, None), uneven=True
    )
    assert f(x, torch.ones(7, 3, device="spmd"))[3].tolist() == [[1.0] * 3, [0.0] * 3]
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    f = spmd.shard_map(lambda t: t * 2, mesh, P("x", "y"), P("x", "y"), uneven=True)
    t = numbers(3, 5)
    assert torch.equal(f(t.to("spmd")).cpu(), t * 2)
    f = spmd.shard_map(lambda t: t.T * 2, mesh, P("x", "y"), P("y", "x"), uneven=True)
    assert torch.equal(f(t.to("spmd")).cpu(), t.T * 2)


def test_recomputation_inside(mesh):
    """The gradients are the same, and the layer runs again in the backward pass."""
    axes = tuple(mesh.axis_names)
    x, w, runs = numbers(12, 4), numbers(4, 4, seed=1), []

    def layer(t, scale):
        runs.append(t.shape)
        t = torch.tanh(t @ scale["w"])
        return [spmd.lax.psum(t, "x") * t, {"total": spmd.lax.psum(t.sum(), axes)}]

    def run(f):
        def region(t, w):
            parts, totals = f(t, {"w": w})
            return parts.sin(), totals["total"]

        t, v = x.to("spmd").requires_grad_(), w.to("spmd").requires_grad_()
        specs = ((P(axes, None), P(None, None)), (P(axes, None), P()))
        parts, total = spmd.shard_map(region, mesh, *specs)(t, v)
        (parts.sum() + total).backward()
        return [r.detach().cpu() for r in (parts, total, t.grad, v.grad)]

    expected = run(layer)
    assert len(runs) == 1
    for ours, theirs in zip(run(spmd.lax.remat(layer)), expected):
        torch.testing.assert_close(ours, theirs)
    assert runs == [runs[0]] * 3
    outside = spmd.lax.remat(lambda t: t.sin())(x.to("spmd"))
    torch.testing.assert_close(outside.cpu(), x.sin())
    with pytest.raises(
        RuntimeError, match=r"remat: in a manual region there can be no torch\.vmap"
    ):
        f = spmd.shard_map(
            torch.vmap(spmd.lax.remat(torch.sin)), mesh, P(axes, None), P(axes, None)
        )
        f(x.to("spmd"))
    spmd.shard_map(identity, mesh, P(axes, None), P(axes, None))(x.to("spmd"))  # nothing is open


REDUCTIONS = {
    "sum": spmd.lax.psum,
    "mean": spmd.lax.pmean,
    "amax": spmd.lax.pmax,
    "amin": spmd.lax.pmin,
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")])
def test_shards_are_reduced_and_then_devices_along_two_axes(order, dim, name):
    mesh, t = spmd.make_mesh((2, 3), ("x", "y")), numbers(12, 12)
    spec = P(order) if dim == 0 else P(None, order)
    f = spmd.shard_map(lambda t: REDUCTIONS[name](getattr(t, name)(dim), order), mesh, spec, P())
    torch.testing.assert_close(f(t.to("spmd")).cpu(), getattr(t, name)(dim))


COLUMNS = P(None, "x")


@pytest.mark.parametrize("specs", [(P(), P("x")), (P("x"), P()), (COLUMNS, COLUMNS), (P(), P())])
def test_products_are_computed_again_as_they_were(four, specs):
    """A product of a matrix that does not vary with one that does is another op in a region."""

    def layer(t, w):
        return spmd.lax.psum(torch.nn.functional.linear(t, w).sin().sum(), "x")

    def run(f):
        t, w = (numbers(8, 4, seed=i).to("spmd").requires_grad_() for i in range(2))
        spmd.shard_map(f, four, specs, P())(t, w).square().backward()
        return t.grad.cpu(), w.grad.cpu()

    for ours, expected in zip(run(spmd.lax.remat(layer)), run(layer), strict=True):
        torch.testing.assert_close(ours, expected)


def test_functional_collectives_of_torch(four):
    """With the name of an axis as the group, they are the collectives along it."""
    c10d, x = torch.ops._c10d_functional, numbers(8, 4)
    shards = x.view(4, 2, 4)
    cases = {
        "sum": (lambda t: c10d.all_reduce(t, "sum", "x"), P(None, None), shards.sum(0)),
        "max": (lambda t: c10d.all_reduce(t, "max", "x"), P(None, None), shards.amax(0)),
        "gather": (lambda t: c10d.all_gather_into_tensor(t, 4, "x"), P(None, None), x),
        "scatter": (
            lambda t: c10d.reduce_scatter_tensor(t.T, "avg", 4, "x"),
            P("x", None),
            shards.mean(0).T,
        ),
        "all_to_all": (
            lambda t: c10d.all_to_all_single(t.T, [1] * 4, [1] * 4, "x"),
            P("x", None),
            shards.permute(2, 0, 1).reshape(16, 2),
        ),
        "broadcast": (lambda t: c10d.broadcast(t, 2, "x"), P(None, None), shards[2]),
    }
    for name, (f, spec, expected) in cases.items():
        g = spmd.shard_map(lambda t, f=f: c10d.wait_tensor(f(t)), four, P("x", None), spec)
        torch.testing.assert_close(g(x.to("spmd")).cpu(), expected, msg=name)
    from torch.distributed import _functional_collectives as funcol

    g = spmd.shard_map(
        lambda t: funcol.all_reduce(t, "sum", "x"), four, P("x", None), P(None, None)
    )
    torch.testing.assert_close(g(x.to("spmd")).cpu(), shards.sum(0))
    for f, error, message in (
        (lambda t: c10d.all_reduce(t, "sum", "7"), ValueError, "'7' is not an axis of the region"),
        (
            lambda t: c10d.all_to_all_single(t.T, [2, 1, 1, 0], [1] * 4, "x"),
            ValueError,
            r"all parts have the same size; got output_split_sizes \[2, 1, 1, 0\]",
        ),
        (
            lambda t: c10d.all_gather_into_tensor(t, 2, "x"),
            ValueError,
            "group_size is 2, but axis 'x' has 4 devices",
        ),
        (
            lambda t: c10d.all_gather_into_tensor_coalesced([t], 4, "x"),
            NotImplementedError,
            "all_gather_into_tensor_coalesced cannot be used in a manual region",
        ),
    ):
        with pytest.raises(error, match=message):
            spmd.shard_map(f, four, P("x", None), P(None, None))(x.to("spmd"))


def test_functional_collectives_between_other_levels():
    """Over two axes, under vmap and of values that do not vary; their derivative is taken outside,
    and they are PyTorch's own where no region is."""
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    c10d, x = torch.ops._c10d_functional, numbers(8, 4)
    parts = x.view(2, 2, 2, 4)  # by x, y, rows
    spec = P(("x", "y"), None)

    def over(name):
        return lambda t: c10d.all_reduce(t, "sum", name)

    for f, out, expected in (
        (over("x"), P("y", None), parts.sum(0).reshape(4, 4)),
        (over("y"), P("x", None), parts.sum(1).reshape(4, 4)),
        (lambda t: over("x")(over("y")(t)), P(None, None), parts.sum((0, 1))),
        (torch.vmap(over("x")), P("y", None), parts.sum(0).reshape(4, 4)),
        (lambda t: over("x")(torch.ones_like(t[0, 0])) + t, spec, 2 + x),
    ):
        t = x.to("spmd").requires_grad_()
        got = spmd.shard_map(f, mesh, spec, out)(t)
        torch.testing.assert_close(got.cpu().detach(), expected)
        got.sum().backward()
        torch.testing.assert_close(t.grad.cpu(), torch.ones_like(x))
    inside = torch.func.grad(lambda t: over("x")(t).sum())
    with pytest.raises(
        NotImplementedError, match=r"PyTorch has no derivative .* use spmd\.lax\.psum"
    ):
        spmd.shard_map(inside, mesh, spec, spec)(x.to("spmd"))
    for on in ("cpu", "spmd"):  # no region, no group of this name
        with pytest.raises((RuntimeError, ValueError), match="x"):
            torch.vmap(over("x"))(x.to(on))
    assert torch._C._functorch.maybe_current_level() is None


def test_attention_inside(four):
    """Fused attention over heads that each device has a part of."""
    q, k, v = (numbers(2, 4, 5, 6, seed=i) for i in range(3))
    spec = P(None, "x", None, None)
    attention = nn.functional.scaled_dot_product_attention
    f = spmd.shard_map(lambda q, k, v: attention(q, k, v, is_causal=True), four, spec, spec)
    got = f(*(t.to("spmd") for t in (q, k, v)))
    torch.testing.assert_close(got.cpu(), attention(q, k, v, is_causal=True))


def test_regions_in_regions_and_second_derivatives():
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    x = numbers(4, 6)

    def inner(t):
        return spmd.lax.psum(t.sin(), "y") * t

    def outer(t):
        t = spmd.shard_map(inner, mesh, P(None, "y"), P(None, "y"), axis_names={"y"})(t)
        return spmd.lax.psum((t**3).sum(), "x")

    def whole(t):
        return ((t.sin().view(4, 2, 3).sum(1, keepdim=True) * t.view(4, 2, 3)) ** 3).sum()

    f = spmd.shard_map(outer, mesh, P("x", None), P(), axis_names={"x"})

    def second(f, t):
        t = t.requires_grad_()
        value = f(t)
        [first] = torch.autograd.grad(value, t, create_graph=True)
        return value.detach(), first.detach(), torch.autograd.grad(first.square().sum(), t)[0]

    for ours, theirs in zip(second(f, x.to("spmd")), second(whole, x.clone())):
        torch.testing.assert_close(ours.cpu(), theirs)


def divides(t):
    return t


def sums_over_y(t):
    return spmd.lax.psum(t, "y")


def nests(t):
    return spmd.shard_map(divides, spmd.make_mesh((4,), ("x",)), P("x", None), P("x", None))(t)


def reads(t):
    return t * t.sum().item()


def lists(t):
    return t.tolist()


def branches(t):
    return t if t.sum() > 0 else -t


def finds(t):
    return t.nonzero()


def derives(t):
    t.sum().backward()


def leaves(t):
    return t.cpu()


def line(f):
    return f"{f.__name__} (test_shard_map.py:{f.__code__.co_firstlineno})"


def test_the_words_of_errors(four):
    x, total = torch.ones(8, 6, device="spmd"), torch.zeros(2, 6, device="spmd")
    cut = spmd.mark_sharding(torch.ones(8, 6, device="spmd"), four, P("x", None))
    rows = P("x", None)

    def closes(t):
        return t + cut[:2]

    def adds(t):
        return total.add_(t)

    def fills(t):
        total[0] = t[0]

    read = "a shard's values cannot be read inside a manual region, since each device has its own; "
    for f, spec, words in (
        (
            None,
            rows,
            "psum: there are no shards outside of a manual region; call it in a function that "
            "spmd.shard_map runs",
        ),
        (sums_over_y, rows, "psum: axis_name: 'y' is not an axis of the region; its axes are 'x'"),
        (
            divides,
            P(None, "x"),
            f"shard_map: {line(divides)}: argument [0]: dimension 1 has size 6, which 4 devices "
            "along 'x' do not divide; pad it, choose other axes, or pass uneven=True",
        ),
        (divides, P("x", "x"), "shard_map: in_specs: axis 'x' occurs twice in P('x', 'x')"),
        (
            closes,
            rows,
            f"shard_map: {line(closes)} uses a tensor of shape (8, 6) from outside that is sharded "
            "over the manual axis 'x'; pass it as an argument with a spec",
        ),
        (
            nests,
            rows,
            f"shard_map: {line(divides)}: the region is inside of another one over axis 'x'; name "
            "other axes in axis_names",
        ),
        (
            adds,
            rows,
            f"shard_map: {line(adds)}: a value is overwritten in place by one of another shape, or "
            "one that does not vary along a manual axis by one that varies; then make it vary "
            "first: x = spmd.lax.pvary(x, axis)",
        ),
        (
            fills,
            rows,
            f"shard_map: {line(fills)}: a value that does not vary along a manual axis is "
            "overwritten in place by one that varies; make it vary first: "
            "x = spmd.lax.pvary(x, axis)",
        ),
        (reads, rows, f"shard_map: {line(reads)}: {read}return the value, or use torch.where"),
        (lists, rows, f"shard_map: {line(lists)}: {read}return the value, or use torch.where"),
        (
            branches,
            rows,
            f"shard_map: {line(branches)}: Python cannot branch on a shard's values inside a "
            "manual region, since each device has its own; use torch.where",
        ),
        (
            finds,
            rows,
            f"shard_map: {line(finds)}: the shape of a result depends on a shard's values, but all "
            "devices run one program; use torch.where, or compute it outside of the region",
        ),
        (
            derives,
            rows,
            f"shard_map: {line(derives)}: backward() cannot run inside a manual region; call it "
            "outside on what the region returns, or use torch.func.grad inside",
        ),
        (
            leaves,
            rows,
            f"shard_map: {line(leaves)}: its result is on 'cpu'; inside a manual region tensors "
            "stay on 'spmd', so move it outside",
        ),
    ):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            spmd.lax.psum(x, "x") if f is None else spmd.shard_map(f, four, spec, rows)(x)
        assert str(caught.value) == words
    assert total.count_nonzero().item() == 0
