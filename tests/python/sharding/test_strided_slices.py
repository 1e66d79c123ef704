# SPDX-License-Identifier: Apache-2.0
"""Views by strides that are slices: read, written and differentiated as on the CPU; nothing is
sent."""

import math

import pytest
import torch

import torch_spmd as spmd

# The dims of x, a view of it, and the size, the strides and the offset of a view by strides.
CASES = {
    "rows": ((8, 6), lambda x: x, (4, 6), (6, 1), 12),
    "columns": ((8, 6), lambda x: x, (8, 3), (6, 1), 2),
    "every other": ((8, 6), lambda x: x, (4, 3), (12, 2), 7),
    "turned": ((8, 6), lambda x: x, (3, 4), (1, 12), 1),
    "one row": ((8, 6), lambda x: x, (6,), (1,), 18),
    "one column": ((8, 6), lambda x: x, (8,), (6,), 5),
    "one element": ((8, 6), lambda x: x, (), (), 20),
    "one row, kept": ((8, 6), lambda x: x, (1, 6), (6, 1), 18),
    "the whole, turned": ((8, 6), lambda x: x, (6, 8), (1, 6), 0),
    "the whole": ((8, 6), lambda x: x, (8, 6), (6, 1), 0),
    "the whole, flat": ((8, 6), lambda x: x, (48,), (1,), 0),
    "the whole, cut": ((8, 6), lambda x: x, (8, 2, 3), (6, 3, 1), 0),
    "three dimensions": ((8, 3, 4), lambda x: x, (8, 2, 2), (12, 4, 2), 5),
    "of a slice": ((8, 6), lambda x: x[1:], (3, 4), (12, 1), 7),
    "of a transposition": ((8, 6), lambda x: x.t(), (6, 4), (1, 12), 6),
    "of columns": ((8, 6), lambda x: x[:, 2:], (8, 2), (6, 2), 2),
    "of a vector": ((24,), lambda x: x, (6,), (3,), 4),
}
# What no slices are; other rules read and write these.
OTHERS = {
    "rows that go on": ((8, 6), lambda x: x, (3, 8), (8, 1), 0),
    "repeated": ((8, 6), lambda x: x, (3, 6), (0, 1), 0),
    "a diagonal": ((8, 6), lambda x: x, (6,), (7,), 0),
    "outside of the view": ((8, 6), lambda x: x[:, :2], (8, 3), (6, 1), 1),
    "before the view": ((8, 6), lambda x: x[2:], (2, 6), (6, 1), 0),
    "nothing": ((8, 6), lambda x: x, (0, 6), (6, 1), 0),
}
WRITABLE = [name for name in CASES | OTHERS if name != "repeated"]


def numbers(dims):
    return torch.linspace(-1, 2, math.prod(dims), dtype=torch.float64).reshape(dims)


def marked(x, mesh, dim=0):
    if mesh is not None:
        spmd.mark_sharding(x, mesh, tuple("x" if d == dim else None for d in range(x.dim())))
    return x


@pytest.fixture(params=[None, 2, 4], ids=["whole", "in 2", "in 4"])
def mesh(request):
    return request.param and spmd.make_mesh((request.param,), ("x",))


def assert_same(got, want):
    assert got.shape == want.shape and got.stride() == want.stride()
    assert got.storage_offset() == want.storage_offset()
    assert torch.equal(got.detach().cpu(), want.detach())


def both(case, mesh):
    dims, view, *strided = case
    for device in ("spmd", "cpu"):
        x = numbers(dims).to(device)
        yield (marked(x, mesh) if device == "spmd" else x), view, strided


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", CASES | OTHERS)
def test_reads(name, mesh, grad):
    results = []
    for x, view, strided in both((CASES | OTHERS)[name], mesh):
        with torch.set_grad_enabled(grad):
            results.append(view(x).as_strided(*strided))
    assert_same(*results)
    with torch.inference_mode():
        results = [view(x).as_strided(*s) for x, view, s in both((CASES | OTHERS)[name], mesh)]
        assert_same(*results)


@pytest.mark.parametrize("name", CASES | OTHERS)
def test_gradients(name, mesh):
    results = []
    for x, view, strided in both((CASES | OTHERS)[name], mesh):
        x.requires_grad_()
        y = view(x).as_strided(*strided)
        (y * y.sin()).sum().backward()
        results.append((y, x.grad))
    for got, want in zip(*results):
        torch.testing.assert_close(got.detach().cpu(), want.detach())


WRITES = {
    "a number": lambda y: y.fill_(7),
    "values": lambda y: y.copy_(torch.arange(y.numel(), device=y.device).view(y.shape)),
    "in place": lambda y: y.mul_(3).add_(1),
    "an element": lambda y: y.view(-1)[-1:].zero_() if y.is_contiguous() else y.neg_(),
    "through another": lambda y: y.as_strided(y.shape, y.stride(), y.storage_offset()).exp_(),
    "out": lambda y: torch.add(y, 1, out=y),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", WRITABLE)
def test_writes(name, write, mesh):
    results = []
    for x, view, strided in both((CASES | OTHERS)[name], mesh):
        y = view(x).as_strided(*strided)
        WRITES[write](y)
        results.append((x, y, x[1:3] * 2))
        spmd.sync()
        y.sub_(1)  # of a view whose base is computed
        results[-1] += (x.clone(), y.clone())
    for got, want in zip(*results):
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("name", WRITABLE)
def test_gradients_through_writes(name, mesh):
    """Of a value that is written to a view, and of the base that it is written over."""
    results = []
    for x, view, strided in both((CASES | OTHERS)[name], mesh):
        x.requires_grad_()
        base = x * 2
        y = view(base).as_strided(*strided)
        new = numbers(y.shape).to(x.device).requires_grad_()
        y.mul_(new.exp())
        y.add_(new)
        (base.sin() * base).sum().backward()
        results.append((base, y, x.grad, new.grad))
    for got, want in zip(*results):
        torch.testing.assert_close(got.detach().cpu(), want.detach())


@pytest.mark.parametrize("name", WRITABLE)
def test_writes_without_gradients_to_a_leaf(name, mesh):
    results = []
    for x, view, strided in both((CASES | OTHERS)[name], mesh):
        x.requires_grad_()
        with torch.no_grad():
            view(x).as_strided(*strided).mul_(2)
        (x * x).sum().backward()
        results.append((x, x.grad))
    for got, want in zip(*results):
        torch.testing.assert_close(got.detach().cpu(), want.detach())


def test_random_slices_of_random_views():
    draw = torch.Generator().manual_seed(0)

    def pick(n):
        return int(torch.randint(n, (1,), generator=draw))

    mesh = spmd.make_mesh((2,), ("x",))
    for _ in range(120):
        dims = tuple(2 * (1 + pick(3)) for _ in range(1 + pick(3)))
        order = torch.randperm(len(dims), generator=draw).tolist()
        cuts = [(pick(n), 1 + pick(2)) for n in dims]

        def viewed(x, order=order, cuts=cuts):
            for d, (start, step) in enumerate(cuts):
                x = x[(slice(None),) * d + (slice(start, None, step),)]
            return x.permute(order)

        example = viewed(numbers(dims))
        strided = example.size(), example.stride(), example.storage_offset()
        results = []
        for x, _, _ in both((dims, None), mesh):
            x.requires_grad_()
            base = x + 1
            y = base.as_strided(*strided)
            y.mul_(y.detach().cos())
            base.square().sum().backward()
            results.append((base, y, x.grad))
        for got, want in zip(*results):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got.detach().cpu(), want.detach())


# --- sharding ---

# How x is cut, and how the view is.
KEPT = {
    "rows": (1, 1),
    "columns": (0, 0),
    "every other": (1, None),
    "turned": (0, None),
    "one row": (1, 0),
    "one column": (0, 0),
    "the whole, turned": (0, 1),
    "the whole, cut": (0, 0),
    "three dimensions": (0, 0),
    "of columns": (0, 0),
}


@pytest.mark.parametrize("name", [n for n, (_, at) in KEPT.items() if at is not None])
def test_a_slice_keeps_its_sharding(name):
    """Read, written and differentiated, nothing is sent."""
    mesh = spmd.make_mesh((2,), ("x",))
    dims, view, *strided = CASES[name]
    dim, where = KEPT[name]
    x = marked(numbers(dims).to("spmd"), mesh, dim).requires_grad_()
    base = x * 2
    y = view(base).as_strided(*strided)
    y.mul_(3)
    base.square().sum(dim=1 - dim if len(dims) == 2 else 1).sin().backward(
        torch.ones(dims[dim], device="spmd") if len(dims) == 2 else torch.ones(8, 4, device="spmd")
    )
    spec = spmd.sharding_of(y).spec
    assert spec == spmd.P(*("x" if d == where else None for d in range(y.dim())))
    assert spmd.sharding_of(x.grad).spec == spmd.sharding_of(x).spec
    spmd.sync()
    assert spmd.debug.collectives().rows == []


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_slice_keeps_its_sharding_without_gradients(context):
    mesh = spmd.make_mesh((2,), ("x",))
    with context():
        for name, (dim, where) in KEPT.items():
            if where is None:
                continue
            dims, view, *strided = CASES[name]
            x = marked(numbers(dims).to("spmd"), mesh, dim)
            y = view(x).as_strided(*strided) * 2
            view(x).as_strided(*strided).add_(1)
            spec = spmd.sharding_of(y).spec
            assert spec == spmd.P(*("x" if d == where else None for d in range(y.dim()))), name
            spmd.sync()
            assert spmd.debug.collectives().rows == [], name
