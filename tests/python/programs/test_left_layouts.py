# SPDX-License-Identifier: Apache-2.0
"""A program takes a value as an earlier one left it; what it sends to have it otherwise counts."""

import pytest
import torch
from reported import reported

import torch_spmd as spmd


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 2), ("a", "b"))


def left(mesh, spec, size=16):
    """A tensor without a mark that a program of its own leaves in the layout `spec`."""
    x = spmd.mark_sharding(torch.rand(size, size, device="spmd"), mesh, spec)
    y = x.exp()
    spmd.sync()
    assert spmd.sharding_of(y).spec == spmd.P(*spec)
    return y


def sent():
    return [(row.kind, row.axes, row.bytes) for row in spmd.debug.collectives(step=False).rows]


def test_what_a_program_wants_otherwise_is_counted(mesh):
    y = left(mesh, ("a", "b"))
    whole = spmd.reshard(y, mesh, (None, None))
    spmd.sync()
    assert sent() == [("all_gather", "b", 512), ("all_gather", "a", 1024)] or sent() == [
        ("all_gather", "a", 512),
        ("all_gather", "b", 1024),
    ]
    torch.testing.assert_close(whole.cpu(), y.cpu())

    y = left(mesh, ("a", None))
    turned = spmd.reshard(y, mesh, (None, "a"))
    spmd.sync()
    assert sent() == [("all_to_all", "a", 512)]
    torch.testing.assert_close(turned.cpu(), y.cpu())


def test_it_is_not_moved_if_it_need_not_be(mesh):
    y = left(mesh, ("a", None))
    z = (y * 2).sum(1)
    spmd.sync()
    assert sent() == []
    assert spmd.sharding_of(z).spec == spmd.P("a")


def test_each_set_of_layouts_has_its_program(mesh):
    """The program for the first layout would move the second one uncounted."""

    def run(y):
        out = spmd.reshard(y.neg(), mesh, (None, None))
        spmd.sync()
        return sent(), out

    data = {spec: left(mesh, spec) for spec in [("a", None), (None, "b"), (None, None)]}
    want = {
        ("a", None): [("all_gather", "a", 1024)],
        (None, "b"): [("all_gather", "b", 1024)],
        (None, None): [],
    }
    for spec, y in data.items():
        rows, out = run(y)
        assert rows == want[spec]
        torch.testing.assert_close(out.cpu(), -y.cpu())
    compiles = reported()["compiles"]
    for spec, y in data.items():
        assert run(y)[0] == want[spec]
    assert reported()["compiles"] == compiles


def test_not_more_programs_than_a_few(mesh):
    """More layouts than a few share programs; the values are moved before they run."""
    specs = [
        ("a", None),
        ("b", None),
        (None, "a"),
        (None, "b"),
        ("a", "b"),
        ("b", "a"),
        (("a", "b"), None),
    ]
    values = [left(mesh, spec) for spec in specs]
    compiles = reported()["compiles"]
    for y in values:
        out = spmd.reshard(y.neg(), mesh, (None, None))
        spmd.sync()
        torch.testing.assert_close(out.cpu(), -y.cpu())
    assert reported()["compiles"] <= compiles + 4


def test_what_is_overwritten_is_moved_once(mesh):
    """What a step overwrites takes the layout of its new value, and then stays in it."""
    x = spmd.mark_sharding(torch.rand(16, 16, device="spmd"), mesh, ("a", None))
    total = torch.zeros(16, 16, device="spmd")
    spmd.sync()
    for _ in range(3):
        total += x
        spmd.sync()
        assert sent() == []
    assert spmd.sharding_of(total).spec == spmd.P("a", None)


def test_values_of_another_mesh():
    first = spmd.make_mesh((4,), ("x",))
    second = spmd.make_mesh((2, 3), ("a", "b"))
    y = left(first, ("x", None), size=24)
    for _ in range(2):
        z = spmd.mark_sharding(torch.ones(24, 24, device="spmd"), second, ("a", "b"))
        out = spmd.reshard(y + z, second, ("a", "b"))
        spmd.sync()
        assert {kind for kind, *_ in sent()} == {"exchange"}
        torch.testing.assert_close(out.cpu(), y.cpu() + 1)
