# SPDX-License-Identifier: Apache-2.0
"""shard_map and its collectives, against functions that do the same with lists of shards."""

import itertools

import pytest
import torch
from torch import nn

import torch_spmd as spmd
from torch_spmd import P

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
    sizes = mesh.shape()
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
        lambda t: spmd.psum(t, "x"),
        lambda s: same(sum(s), len(s)),
    ),
    "pmean": (lambda t: spmd.pmean(t, "x"), lambda s: same(sum(s) / len(s), len(s))),
    "pmax": (lambda t: spmd.pmax(t, "x"), lambda s: same(torch.stack(s).amax(0), len(s))),
    "pmin": (lambda t: spmd.pmin(t, "x"), lambda s: same(torch.stack(s).amin(0), len(s))),
    "all_gather": (
        lambda t: spmd.all_gather(t, "x", axis=1),
        lambda s: same(torch.stack(s, 1), len(s)),
    ),
    "all_gather_tiled": (
        lambda t: spmd.all_gather(t, "x", axis=-1, tiled=True),
        lambda s: same(torch.cat(s, -1), len(s)),
    ),
    "psum_scatter_tiled": (
        lambda t: spmd.psum_scatter(t, "x", scatter_dimension=1, tiled=True),
        lambda s: sum(s).chunk(len(s), 1),
    ),
    "all_to_all_tiled": (
        lambda t: spmd.all_to_all(t, "x", 1, 0, tiled=True),
        lambda s: [torch.cat([t.chunk(len(s), 1)[i] for t in s], 0) for i in range(len(s))],
    ),
    "ppermute": (
        lambda t: spmd.ppermute(
            t, "x", [(i, (i + 1) % spmd.axis_size("x")) for i in range(spmd.axis_size("x"))]
        ),
        lambda s: [s[i - 1] for i in range(len(s))],
    ),
    "ppermute_open": (
        lambda t: spmd.ppermute(t, "x", [(i, i + 1) for i in range(spmd.axis_size("x") - 1)]),
        lambda s: [torch.zeros_like(s[0]), *s[:-1]],
    ),
    "pshuffle": (
        lambda t: spmd.pshuffle(t, "x", list(reversed(range(spmd.axis_size("x"))))),
        lambda s: list(reversed(s)),
    ),
    "pbroadcast": (lambda t: spmd.pbroadcast(t, "x", 1), lambda s: same(s[1], len(s))),
    "axis_index": (lambda t: t * spmd.axis_index("x"), lambda s: [t * i for i, t in enumerate(s)]),
}
DOES_NOT_VARY = {"psum", "pmean", "pmax", "pmin", "all_gather", "all_gather_tiled", "pbroadcast"}


@pytest.mark.parametrize("name", RING)
def test_collectives_and_their_gradients(mesh, name):
    ours, by_lists = RING[name]
    n = mesh.shape()["x"]
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
        return spmd.psum(((spmd.psum(x, "x") * w) ** 2).sum(), "x")

    expected = torch.func.grad(whole)(x)
    f = spmd.shard_map(shards, four, P("x", None), P())
    t = x.to("spmd").requires_grad_()
    f(t, w.to("spmd")).backward()
    torch.testing.assert_close(t.grad.cpu(), expected)
    got = torch.func.grad(lambda x: f(x, w.to("spmd")))(x.to("spmd"))
    torch.testing.assert_close(got.cpu(), expected)


INSIDE = {
    "psum": lambda t: spmd.psum(t, "x"),
    "pmax": lambda t: spmd.pmax(t, "x"),
    "all_gather": lambda t: spmd.all_gather(t, "x", tiled=True),
    "psum_scatter": lambda t: spmd.psum_scatter(t, "x", tiled=True),
    "all_to_all": lambda t: spmd.all_to_all(t, "x", 0, 0, tiled=True),
    "ppermute": lambda t: spmd.ppermute(t, "x", [(0, 1), (1, 2), (2, 0)]),
    "pbroadcast": lambda t: spmd.pbroadcast(t, "x", 2),
    "pvary": lambda t: spmd.pvary(t, "x"),
}


@pytest.mark.parametrize("name", INSIDE)
def test_gradients_taken_inside_are_those_taken_outside(four, name):
    """With respect to a value that varies, of a loss that each device has a part of."""
    w = numbers(4, 8, seed=2)

    def loss(t, w):
        y = INSIDE[name](t)
        y = y if name != "psum_scatter" else spmd.all_gather(y, "x", tiled=True)
        return (y[:4] * w).square().sum()

    def gradients(t, w):
        return torch.func.grad(loss)(t, w)

    x, specs = numbers(16, 8), (P("x", None), P("x", None))
    w = torch.cat([w + i for i in range(4)])
    inside = spmd.shard_map(gradients, four, specs, P("x", None))(x.to("spmd"), w.to("spmd"))
    t = x.to("spmd").requires_grad_()
    total = spmd.shard_map(lambda t, w: spmd.psum(loss(t, w), "x"), four, specs, P())
    total(t, w.to("spmd")).backward()
    torch.testing.assert_close(inside.cpu(), t.grad.cpu())


def test_vmap_inside(four):
    x = numbers(8, 3, 5)
    f = spmd.shard_map(
        lambda t: torch.vmap(lambda u: spmd.psum(u * 2, "x"), 1, 1)(t),
        four,
        P("x", None, None),
        P(),
    )
    with pytest.raises(ValueError, match="has 3 dimensions, but its spec in out_specs is P\\(\\)"):
        f(x.to("spmd"))
    f = spmd.shard_map(
        lambda t: torch.vmap(lambda u: spmd.psum(u * 2, "x"), 1, 1)(t),
        four,
        P("x", None, None),
        P(None, None, None),
    )
    expected = x.view(4, 2, 3, 5).sum(0) * 2
    torch.testing.assert_close(f(x.to("spmd")).cpu(), expected)
    torch.testing.assert_close(torch.vmap(f, 1, 1)(x[:, None].to("spmd")).cpu(), expected[:, None])


def test_trees_and_several_axes(mesh):
    axes = tuple(mesh.axis_names)

    def f(batch, scale):
        return {"sum": spmd.psum(batch["a"].sum(), axes) * scale, "own": [batch["b"] + batch["a"]]}

    a, b = numbers(12, 4), numbers(12, 4, seed=1)
    specs = ({"a": P(axes, None), "b": P(axes, None)}, P())
    g = spmd.shard_map(f, mesh, specs, {"sum": P(), "own": [P(axes, None)]})
    result = g({"a": a.to("spmd"), "b": b.to("spmd")}, torch.tensor(2.0, device="spmd"))
    torch.testing.assert_close(result["sum"].cpu(), a.sum() * 2)
    torch.testing.assert_close(result["own"][0].cpu(), a + b)


def test_some_axes_are_automatic():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    x, w = numbers(8, 16), numbers(16, 32, seed=1)
    t = spmd.mark_sharding(x.to("spmd"), mesh, P("data", None))
    v = spmd.mark_sharding(w.to("spmd"), mesh, P("model", None))
    f = spmd.shard_map(
        lambda x, w: spmd.psum(x @ w, "model"),
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
        lambda x, a, b: spmd.psum(torch.tanh(x @ a) @ b, "x"), four, specs, P(None, None)
    )
    rows, grads = run(by_hand)
    expected_rows, expected = run(lambda x, a, b: torch.tanh(x @ a) @ b)
    assert rows == expected_rows
    for ours, theirs in zip(grads, expected):
        torch.testing.assert_close(ours, theirs)


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
        lambda t: (spmd.psum(t, "x"), spmd.ppermute(t, "x", ring)), four, P("x"), (P(None), P("x"))
    )
    total, rolled = f(x.to("spmd"))
    torch.testing.assert_close(total.cpu(), x.view(4, 2).sum(0, dtype=total.dtype))
    assert torch.equal(rolled.cpu(), x.roll(2))


def test_empty_and_0d(four):
    f = spmd.shard_map(lambda t, s: (t * s, spmd.psum(s, "x")), four, (P("x"), P()), (P("x"), P()))
    empty, total = f(torch.ones(0, device="spmd"), torch.tensor(2.0, device="spmd"))
    assert empty.shape == (0,)
    assert total.item() == 8  # the same value on each of four devices


def test_it_compiles_once(four):
    f = spmd.shard_map(lambda t: spmd.psum(t.sin(), "x"), four, P("x"), P(None))
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
            lambda: spmd.psum(x, "x"),
            ValueError,
            "psum: there are no shards outside of a manual reg",
        ),
        (
            lambda: spmd.shard_map(lambda t: spmd.psum(t, "y"), four, P("x", None), P())(x),
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
            lambda: spmd.shard_map(identity, four, P("x"), P("x", None))(x),
            ValueError,
            r"argument \[0\]: spec P\('x'\) has 1 entries, but the tensor has 2 dimensions",
        ),
        (
            lambda: spmd.shard_map(identity, four, P("x", None), P(None, None))(x),
            ValueError,
            r"identity \(test_shard_map.py:\d+\): result  varies along axis 'x', which its spec",
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
        spmd.axis_index("x")


def test_captured_tensors(four):
    w = spmd.mark_sharding(torch.ones(8, device="spmd"), four, P("x"))
    x, scale = torch.ones(8, device="spmd"), torch.tensor(3.0, device="spmd")
    f = spmd.shard_map(lambda t: t + w[:2], four, P("x"), P("x"))
    with pytest.raises(ValueError, match="from outside that is sharded over the manual axis 'x'"):
        f(x)
    f = spmd.shard_map(lambda t: t + w[:2], four, P("x"), P("x"), check_vma=False)
    assert f(x).tolist() == [2.0] * 8
    f = spmd.shard_map(lambda t: t * scale, four, P("x"), P("x"))  # the same on all devices
    assert f(x).tolist() == [3.0] * 8


def test_overwriting_a_value_that_does_not_vary(four):
    def f(t, total):
        return total.add_(t)

    x, total = torch.ones(8, device="spmd"), torch.zeros(2, device="spmd")
    with pytest.raises(RuntimeError, match="make it vary first"):
        spmd.shard_map(f, four, (P("x"), P(None)), P("x"))(x, total)
    assert total.tolist() == [0.0, 0.0]
