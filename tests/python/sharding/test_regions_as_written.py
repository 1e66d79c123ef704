# SPDX-License-Identifier: Apache-2.0
"""Programs as people write them with shard_map, against PyTorch on one device in float64."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import torch_spmd as spmd
from torch_spmd import P


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def devices(*shape):
    return spmd.make_mesh(shape, ("x", "y", "z")[: len(shape)])


def shifted(t, n, by=1):
    return spmd.lax.ppermute(t, "x", [(i, i + by) for i in range(n) if 0 <= i + by < n])


def compare(mesh, by_hand, in_specs, out_specs, plain, *args):
    """The results, and the gradients of a weighted sum of them."""
    ours = [t.to("spmd").requires_grad_(t.is_floating_point()) for t in args]
    theirs = [t.clone().requires_grad_(t.is_floating_point()) for t in args]
    got, expected = spmd.shard_map(by_hand, mesh, in_specs, out_specs)(*ours), plain(*theirs)
    torch.testing.assert_close(got.detach().cpu(), expected.detach())
    weights = numbers(*expected.shape, seed=9)
    (got * weights.to("spmd")).sum().backward()
    (expected * weights).sum().backward()
    for a, b in zip(ours, theirs):
        if a.requires_grad:
            torch.testing.assert_close(a.grad.cpu(), b.grad)


def test_a_pipeline():
    stages, batches = 4, 3

    def by_hand(w, x):
        i = spmd.lax.axis_index("x")
        state, results = spmd.lax.pvary(torch.zeros_like(x[0]), "x"), []
        for tick in range(batches + stages - 1):
            given = torch.where(i == 0, x[min(tick, batches - 1)], state)
            results.append(torch.tanh(given @ w[0]))
            state = shifted(results[-1], stages)
        last = torch.stack(results[stages - 1 :])
        return spmd.lax.psum(torch.where(i == stages - 1, last, 0), "x")

    def plain(w, x):
        for each in w:
            x = torch.tanh(x @ each)
        return x

    args = numbers(stages, 5, 5), numbers(batches, 2, 5, seed=1)
    compare(devices(stages), by_hand, (P("x"), P()), P(), plain, *args)


def test_experts():
    n = 4

    def expert_of(x):
        return (x.detach().sum(1) * 1000).long().remainder(n)

    def by_hand(x, w):
        tokens = x.shape[0]
        expert = expert_of(x)
        chosen = F.one_hot(expert, n)
        slot = (chosen.cumsum(0) * chosen).sum(1) - 1
        places = F.one_hot(expert * tokens + slot, n * tokens).to(x.dtype)
        sent = (places.t() @ x).view(n, tokens, -1)
        here = spmd.lax.all_to_all(sent, "x", 0, 0, tiled=True)
        done = torch.tanh(here.reshape(n * tokens, -1) @ w[0]).view(n, tokens, -1)
        back = spmd.lax.all_to_all(done, "x", 0, 0, tiled=True)
        return places @ back.reshape(n * tokens, -1)

    def plain(x, w):
        return torch.stack([torch.tanh(row @ w[e]) for row, e in zip(x, expert_of(x))])

    args = numbers(8, 3), numbers(n, 3, 3, seed=1)
    compare(devices(n), by_hand, (P("x"), P("x")), P("x"), plain, *args)


def test_a_convolution_with_neighbours():
    def by_hand(x, w):
        return F.conv1d(torch.cat([shifted(x[..., -1:], 4), x, shifted(x[..., :1], 4, -1)], -1), w)

    args = numbers(2, 2, 16), numbers(3, 2, 3, seed=1)
    spec = P(None, None, "x")
    plain = lambda x, w: F.conv1d(x, w, padding=1)  # noqa: E731
    compare(devices(4), by_hand, (spec, P()), spec, plain, *args)


def test_rows_of_a_table():
    def by_hand(w, index):
        own = index - spmd.lax.axis_index("x") * len(w)
        here = (own >= 0) & (own < len(w))
        rows = F.embedding(own.clamp(0, len(w) - 1), w)
        return spmd.lax.psum(torch.where(here[:, None], rows, 0), "x")

    plain = lambda w, index: F.embedding(index, w)  # noqa: E731
    args = numbers(12, 3), torch.tensor([0, 5, 11, 5])
    compare(devices(4), by_hand, (P("x"), P()), P(), plain, *args)


def test_statistics_of_the_whole_batch():
    def by_hand(x):
        mean = spmd.lax.pmean(x.mean(0), "x")
        variance = spmd.lax.pmean((x - mean).square().mean(0), "x")
        return (x - mean) / (variance + 1e-5).sqrt()

    def plain(x):
        return F.batch_norm(x, None, None, training=True)

    compare(devices(4), by_hand, (P("x"),), P("x"), plain, numbers(16, 5))


@pytest.mark.parametrize("way", ["gathered", "scattered", "ring", "three axes"])
def test_matrix_products(way):
    def ring(a, b):
        n, i, total = 4, spmd.lax.axis_index("x"), 0
        for step in range(n):
            blocks = a.view(len(a), n, len(b))
            own = blocks.gather(1, ((i - step) % n).expand(len(a), 1, len(b)))[:, 0]
            total = total + own @ b
            b = spmd.lax.ppermute(b, "x", [(k, (k + 1) % n) for k in range(n)])
        return total

    def gathered(a, b):
        a = spmd.lax.all_gather(a, "y", axis=1, tiled=True)
        return a @ spmd.lax.all_gather(b, "x", axis=0, tiled=True)

    def scattered(a, b):
        return spmd.lax.psum_scatter(a @ b, "y", scatter_dimension=1, tiled=True)

    def over_y(a, b):
        return spmd.lax.psum(a @ b, "y")

    both = P("x", "y")
    mesh, by_hand, in_specs, out_specs = {
        "gathered": (devices(2, 2), gathered, (both, both), both),
        "scattered": (devices(2, 2), scattered, (both, P("y")), both),
        "ring": (devices(4), ring, (P("x"), P("x")), P("x")),
        "three axes": (devices(2, 2, 2), over_y, (both, P("y", "z")), P("x", "z")),
    }[way]
    compare(mesh, by_hand, in_specs, out_specs, torch.matmul, numbers(4, 8), numbers(8, 8, seed=1))


def test_data_and_tensor_parallel():
    def layer(x, up, down):
        return torch.relu(x @ up) @ down

    def by_hand(*args):
        return spmd.lax.psum(layer(*args), "y")

    args = numbers(4, 6), numbers(6, 12, seed=1), numbers(12, 6, seed=2)
    specs = (P("x"), P(None, "y"), P("y"))
    compare(devices(2, 3), by_hand, specs, P("x"), layer, *args)


def test_a_ragged_exchange_with_nobody_and_its_gradient():
    """Device i sends its first i + 1 rows to device 0, and none to device 1."""

    def by_hand(x):
        i = spmd.lax.axis_index("x")
        zero = 0 * i
        room = torch.zeros(4, 2, dtype=x.dtype, device="spmd") + 0 * x[:1]
        sizes, ends = torch.stack([i + 1, zero]), torch.stack([zero, i + 1])
        arrive = torch.where(i == 0, torch.arange(1, 3, device="spmd"), 0)
        args = ends, sizes, torch.stack([i, zero]), arrive
        return spmd.lax.ragged_all_to_all(x, room, *args, axis_name="x")

    def plain(x):
        return torch.cat([x[0:1], x[3:5], x.new_zeros(5, 2)])

    compare(devices(2), by_hand, (P("x"),), P("x"), plain, numbers(6, 2))


def test_second_and_forward_derivatives():
    x, v = numbers(4, 4), numbers(4, 4, seed=1)

    def by_hand(t):
        rows = spmd.lax.all_gather(t, "x", tiled=True) ** 3
        part = spmd.lax.psum_scatter(rows, "y", scatter_dimension=0, tiled=True)
        return spmd.lax.psum(part.square().sum(), ("x", "y"))

    def plain(t):
        return 2 * (t[:, :2] ** 3 + t[:, 2:] ** 3).square().sum()

    f = spmd.shard_map(by_hand, devices(2, 2), P("x", "y"), P())
    hessian = torch.func.hessian(f)(x.to("spmd"))
    torch.testing.assert_close(hessian.cpu(), torch.func.hessian(plain)(x))
    _, slope = torch.func.jvp(f, (x.to("spmd"),), (v.to("spmd"),))
    torch.testing.assert_close(slope.cpu(), torch.func.jvp(plain, (x,), (v,))[1])

    def penalty(function, t):
        (gradient,) = torch.autograd.grad(function(t), t, create_graph=True)
        gradient.square().sum().backward()
        return t.grad.cpu()

    ours, theirs = penalty(f, x.to("spmd").requires_grad_()), penalty(plain, x.requires_grad_())
    torch.testing.assert_close(ours, theirs)


def test_threads_have_regions_of_their_own():
    inside, go_on, results = threading.Event(), threading.Event(), []

    def by_hand(t):
        inside.set()
        assert go_on.wait(30)
        return spmd.lax.psum(t, "x")

    def run():
        f = spmd.shard_map(by_hand, devices(4), P("x"), P())
        results.append(f(torch.arange(8.0, device="spmd")).tolist())

    other = threading.Thread(target=run)
    other.start()
    try:
        assert inside.wait(30)
        with pytest.raises(ValueError, match="outside of a manual region"):
            spmd.lax.axis_index("x")
    finally:
        go_on.set()
        other.join()
    assert results == [[12.0, 16.0]]


def test_arguments_of_any_layout_again_and_again():
    """What is remembered of shapes does not depend on strides, types, marks or gradients."""
    mesh, columns = devices(2), numbers(6, 4)
    f = spmd.shard_map(lambda t: t * 2 + spmd.lax.axis_index("x"), mesh, P("x"), P("x"))
    for _ in range(2):
        for t in (columns, columns.float(), columns.clone().requires_grad_()):
            d = t.detach().to("spmd").requires_grad_(t.requires_grad)
            for view in (lambda t: t, lambda t: t.t(), lambda t: t[::3], lambda t: t[:, 1:3]):
                expected = view(t) * 2
                expected[len(expected) // 2 :] += 1
                torch.testing.assert_close(f(view(d)).cpu(), expected)
            with torch.no_grad():
                assert not f(d).requires_grad
            assert f(d).requires_grad == t.requires_grad
        marked = spmd.mark_sharding(columns.to("spmd"), mesh, P(None, "x"))
        torch.testing.assert_close(f(marked)[:3].cpu(), columns[:3] * 2)


def test_a_traced_region():
    f = spmd.shard_map(lambda t: spmd.lax.psum(t * 2, "x"), devices(2), P(None, "x"), P())
    x = numbers(4, 4)
    traced = make_fx(f)(x.to("spmd"))
    for _ in range(2):
        torch.testing.assert_close(traced((x + 1).to("spmd")).cpu(), 2 * (x[:, :2] + x[:, 2:] + 2))
    assert traced.code.count("spmd.reshard") == 2
