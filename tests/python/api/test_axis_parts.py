# SPDX-License-Identifier: Apache-2.0
"""Parts of mesh axes in specs: after views that split a sharded dimension."""

import pytest
import torch

import torch_spmd as spmd
from torch_spmd import P

mesh = spmd.make_mesh((4,), ("a",))

SPLITS = {
    "vector": ((8,), ("a",), lambda x: x.view(2, 4)),
    "rows": ((8, 3), ("a", None), lambda x: x.view(2, 4, 3)),
    "middle": ((2, 32, 4), (None, "a", None), lambda x: x.view(2, 2, 16, 4)),
    "uneven": ((12, 2), ("a", None), lambda x: x.view(3, 4, 2)),
    "columns": ((5, 24), (None, "a"), lambda x: x.view(5, 2, 12)),
    "joined": ((2, 4), (None, "a"), lambda x: x.reshape(8)),
    "slices": ((8, 8), ("a", None), lambda x: x[2:6]),
    "select": ((8, 8), (None, "a"), lambda x: x[3]),
    "diagonal": ((8, 8), ("a", None), lambda x: x.diagonal()),
}


def boxes(t):
    return [(s.device, s.index, tuple(s.data.shape)) for s in spmd.local_shards(t)]


@pytest.mark.parametrize("computed", [True, False], ids=["result", "view"])
@pytest.mark.parametrize("name", SPLITS)
def test_every_helper_understands_what_it_shows(name, computed, capsys):
    shape, spec, view = SPLITS[name]
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    x = spmd.mark_sharding(values.to("spmd"), mesh, spec)
    y = view(x)
    if computed:
        y = y * 1
    before = spmd.sharding_of(y)
    picture = spmd.debug.visualize_sharding(y)
    spmd.debug.explain(y)
    shards = boxes(y)
    after = spmd.sharding_of(y)
    assert before == after and hash(before) == hash(after)
    assert spmd.debug.visualize_sharding(y).splitlines()[1:] == picture.splitlines()[1:]
    assert after.hlo_string().startswith("{")
    for shard in spmd.local_shards(y):
        # The parts of a tensor of blocks are those of the view in which the blocks are a dimension.
        whole = view(values) if len(shard.index) == y.dim() else values
        assert torch.equal(shard.data, whole[shard.index])
    # A spec that is shown can be used as a spec.
    z = spmd.mark_sharding(view(values).to("spmd").clone(), mesh, after.spec)
    if after.spec != P(*[None] * y.dim()) and "uneven" not in name and "slices" not in name:
        assert boxes(z) == shards


def test_parts_of_axes_in_text():
    x = spmd.mark_sharding(torch.arange(8.0, device="spmd"), mesh, ("a",))
    y = x.view(2, 4) * 2
    assert (
        repr(spmd.sharding_of(y))
        == "NamedSharding([a=4], P('a:0', 'a:1'), a:0=2, a:1=2; provisional)"
    )
    assert spmd.sharding_of(y).hlo_string() == "{devices=[2,2]0,1,2,3}"
    spmd.sync()
    assert repr(spmd.sharding_of(y)) == "NamedSharding([a=4], P('a:0', 'a:1'), a:0=2, a:1=2)"
    assert "a:0" in spmd.debug.explain(y)


def test_all_parts_in_order_are_the_axis():
    whole = spmd.NamedSharding(mesh, ("a", None))
    parts = spmd.NamedSharding(mesh, (("a:0", "a:1"), None))
    assert whole == parts and hash(whole) == hash(parts)
    assert whole == spmd.NamedSharding(mesh, (0, None))
    assert parts != spmd.NamedSharding(mesh, (("a:1", "a:0"), None))
    assert whole.hlo_string() == parts.hlo_string()


def test_parts_of_any_size():
    six = spmd.make_mesh((12,), ("x",))
    t = spmd.mark_sharding(torch.ones(6, 4, device="spmd"), six, ("x:(2)6", "x:0"))
    assert [s.index for s in spmd.local_shards(t)][7] == (slice(1, 2), slice(2, 4))
    assert spmd.sharding_of(t) == spmd.NamedSharding(six, (("x:1", "x:2"), "x:0"))
    assert "x:0=2" in repr(spmd.sharding_of(t))


def test_unknown_parts_of_axes():
    with pytest.raises(
        ValueError, match=r"axis 'a' has the parts 'a:0' of size 2, 'a:1' of size 2"
    ):
        spmd.NamedSharding(mesh, ("a:2",))
    with pytest.raises(ValueError, match=r"mark_sharding: spec .*axis 'a' has the parts 'a:0'"):
        spmd.mark_sharding(torch.ones(4, device="spmd"), mesh, ("a:x",))
    with pytest.raises(ValueError, match=r"has no axis 'b'"):
        spmd.mark_sharding(torch.ones(4, device="spmd"), mesh, ("b:0",))
    two = spmd.make_mesh((2,), ("z",))
    with pytest.raises(ValueError, match=r"axis 'z' has no parts"):
        spmd.NamedSharding(two, ("z:1",))
    with pytest.raises(ValueError, match=r"uses axis 'a' of mesh"):
        spmd.mark_sharding(torch.ones(4, 4, device="spmd"), mesh, ("a:0", "a"))


def test_other_meshes_change_no_names():
    eight = spmd.make_mesh((8,), ("model",))
    spmd.make_mesh((2, 2, 2), ("p", "q", "r"))
    x = spmd.mark_sharding(torch.ones(8, device="spmd"), eight, ("model",))
    y = x.view(2, 4) * 1
    assert spmd.sharding_of(y).spec == P("model:0", ("model:1", "model:2"))
