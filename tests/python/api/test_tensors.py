# SPDX-License-Identifier: Apache-2.0
"""mark_sharding and related functions: effects, and errors of bad calls."""

import pytest
import torch
from processes import run_script

import torch_spmd as spmd
from torch_spmd import P

pytestmark = pytest.mark.modes("coalesced", "in_turns")


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


def message(error, call):
    with pytest.raises(error) as raised:
        call()
    return str(raised.value)


def sizes(t):
    return [tuple(shard.data.shape) for shard in spmd.local_shards(t)]


# --- what it does ---


def test_mark_returns_the_same_plain_tensor(mesh):
    t = torch.arange(32.0).reshape(8, 4).to("spmd")
    assert spmd.mark_sharding(t, mesh, ("data", None)) is t
    assert type(t) is torch.Tensor
    assert spmd.sharding_of(t) == spmd.NamedSharding(mesh, ("data", None))
    assert spmd.sharding_of(t).is_committed


def test_shards_are_the_parts(mesh):
    whole = torch.arange(32.0).reshape(8, 4)
    t = spmd.mark_sharding(whole.to("spmd"), mesh, ("data", "model"))
    shards = spmd.local_shards(t)
    assert [shard.device for shard in shards] == list(range(8))
    for shard in shards:
        assert torch.equal(shard.data, whole[shard.index])
        assert shard.data.shape == (4, 1)
        assert shard.replica_id == 0
    assert torch.equal(spmd.full_tensor(t), whole)


def test_replicas_are_numbered(mesh):
    t = spmd.mark_sharding(torch.zeros(4, device="spmd"), mesh, ("data",))
    assert [shard.replica_id for shard in spmd.local_shards(t)] == [0, 1, 2, 3] * 2


def test_uneven_and_empty_parts():
    mesh = spmd.make_mesh((4,), ("x",))
    ten = spmd.mark_sharding(torch.arange(10, device="spmd"), mesh, ("x",))
    assert sizes(ten) == [(3,), (3,), (3,), (1,)]
    five = spmd.mark_sharding(torch.arange(5, device="spmd"), mesh, ("x",))
    assert sizes(five) == [(2,), (2,), (1,), (0,)]
    assert five.cpu().tolist() == [0, 1, 2, 3, 4]


def test_axis_by_index_several_axes_and_major_first(mesh):
    whole = torch.arange(8)
    t = spmd.mark_sharding(whole.to("spmd"), mesh, ((1, 0),))
    held = {shard.device: shard.data.item() for shard in spmd.local_shards(t)}
    assert held == {data * 4 + model: model * 2 + data for data in range(2) for model in range(4)}


def test_a_pending_result_is_constrained(mesh):
    x = torch.ones(8, 8, device="spmd")
    y = x @ x
    spmd.mark_sharding(y, mesh, ("data", "model"))
    assert sizes(y) == [(4, 2)] * 8
    assert torch.equal(y.cpu(), torch.full((8, 8), 8.0))


def test_a_parameter_keeps_its_mark(mesh):
    layer = torch.nn.Linear(8, 4).to("spmd")
    spmd.mark_sharding(layer.weight, mesh, ("model", None))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        layer(torch.ones(3, 8, device="spmd")).sum().backward()
        optimizer.step()
    assert spmd.sharding_of(layer.weight) == spmd.NamedSharding(mesh, ("model", None))
    assert sizes(layer.weight) == [(1, 8)] * 8


def test_trees(mesh):
    batch = {"a": torch.zeros(4, 2, device="spmd"), "b": [torch.zeros(4, 8, device="spmd")]}
    assert spmd.mark_sharding(batch, mesh, ("data", None)) is batch
    assert spmd.sharding_of(batch["b"][0]).spec == P("data", None)
    pair = (torch.zeros(4, device="spmd"), torch.zeros(2, 4, device="spmd"))
    spmd.mark_sharding(pair, mesh, [P("model"), P(None, "data")])
    assert spmd.sharding_of(pair[1]).spec == P(None, "data")


def test_the_global_mesh_stands_in(mesh):
    with spmd.use_mesh(mesh):
        t = spmd.mark_sharding(torch.zeros(4, device="spmd"), spec=("data",))
    assert spmd.sharding_of(t).mesh == mesh


def test_the_same_mark_twice_has_no_effect(mesh):
    t = torch.zeros(4, 4, device="spmd")
    spmd.mark_sharding(t, mesh, ("data", None))
    spmd.mark_sharding(t, mesh, P(0, None))
    assert spmd.sharding_of(t).spec == P("data", None)


def test_clear_then_another(mesh):
    t = spmd.mark_sharding(torch.zeros(4, 4, device="spmd"), mesh, ("data", None))
    spmd.clear_sharding(t)
    assert not spmd.sharding_of(t).is_committed
    spmd.mark_sharding(t, mesh, (None, "data"))
    assert sizes(t) == [(4, 2)] * 8


def test_reshard_is_new_and_differentiable(mesh):
    t = spmd.mark_sharding(torch.ones(4, 8, device="spmd"), mesh, ("data", None)).requires_grad_()
    moved = spmd.reshard(t, mesh, (None, "model"))
    assert spmd.sharding_of(moved).spec == P(None, "model")
    assert spmd.sharding_of(t).spec == P("data", None)
    (moved * torch.arange(8.0).to("spmd")).sum().backward()
    assert torch.equal(t.grad.cpu(), torch.arange(8.0).expand(4, 8))


def test_without_a_mesh_a_tensor_is_whole():
    code = (
        "import torch, torch_spmd as spmd\nprint(spmd.sharding_of(torch.ones(3, 2, device='spmd')))"
    )
    assert run_script(code).stdout == "NamedSharding([device=1], P(None, None))\n"


def test_from_shards_and_back(mesh):
    whole = torch.arange(24.0).reshape(6, 4)
    t = spmd.mark_sharding(whole.to("spmd"), mesh, ("model", "data"))
    shards = spmd.local_shards(t)
    again = spmd.from_local_shards(shards, mesh, ("model", "data"), (6, 4))
    assert torch.equal(again.cpu(), whole)
    target = spmd.mark_sharding(torch.zeros(6, 4, device="spmd"), mesh, ("model", "data"))
    spmd.load_local_shards_(target, shards)
    assert torch.equal(target.cpu(), whole)


def test_specs_under_vmap_are_about_unbatched_dimensions(mesh):
    def row(x):
        return spmd.mark_sharding(x * 2, mesh, ("model",)).sum()

    x = torch.arange(24.0).reshape(3, 8)
    assert torch.equal(torch.vmap(row)(x.to("spmd")).cpu(), 2 * x.sum(1))


# --- errors of bad calls ---


def test_spec_of_the_wrong_length(mesh):
    t = torch.zeros(4, device="spmd")
    assert message(ValueError, lambda: spmd.mark_sharding(t, mesh, ("data", None))) == (
        "mark_sharding: spec ('data', None) has 2 entries but the tensor has 1 dimension; give one "
        "entry per dimension, None where it is not sharded, as in ('data',)"
    )


def test_errors_of_specs_name_the_function(mesh):
    t, rest = (
        torch.zeros(4, device="spmd"),
        "spec ('data', None) has 2 entries but the tensor has 1",
    )
    shards = spmd.local_shards(t)
    assert message(ValueError, lambda: spmd.reshard(t, mesh, ("data", None))).startswith(
        f"reshard: {rest}"
    )
    assert message(
        ValueError, lambda: spmd.from_local_shards(shards, mesh, ("data", None), (4,))
    ).startswith(f"from_local_shards: {rest}")


def test_unknown_axis(mesh):
    t = torch.zeros(4, 4, device="spmd")
    assert message(ValueError, lambda: spmd.mark_sharding(t, mesh, ("data", "modle"))) == (
        "mark_sharding: spec ('data', 'modle') names axis 'modle', which mesh [data=2, model=4] "
        "does not have; did you mean 'model'?"
    )


def test_repeated_axis(mesh):
    t = torch.zeros(4, 4, device="spmd")
    assert message(ValueError, lambda: spmd.mark_sharding(t, mesh, ("data", "data"))) == (
        "mark_sharding: spec ('data', 'data') uses axis 'data' of mesh [data=2, model=4] in "
        "dimensions 0 and 1; an axis may shard one dimension, once"
    )


@pytest.mark.parametrize("index", [2, -1])
def test_axis_index_out_of_range(mesh, index):
    t = torch.zeros(4, 4, device="spmd")
    assert message(IndexError, lambda: spmd.mark_sharding(t, mesh, (index, None))) == (
        f"mark_sharding: spec ({index}, None) names axis {index}, which mesh [data=2, model=4] "
        "does not have; its axes are 0 to 1"
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda t, m: spmd.mark_sharding(t, m, ("data",)), "mark_sharding"),
        (lambda t, m: spmd.reshard(t, m, ("data",)), "reshard"),
        (lambda t, m: spmd.sharding_of(t), "sharding_of"),
        (lambda t, m: spmd.local_shards(t), "local_shards"),
        (lambda t, m: spmd.full_tensor(t), "full_tensor"),
        (lambda t, m: spmd.clear_sharding(t), "clear_sharding"),
        (lambda t, m: spmd.debug.explain(t), "explain"),
    ],
)
def test_cpu_tensor(mesh, call, name):
    assert message(ValueError, lambda: call(torch.zeros(4), mesh)) == (
        f"{name}: the tensor of shape (4,) is on 'cpu', not on 'spmd'; move it first: "
        "t = t.to('spmd')"
    )


def test_a_number_in_place_of_a_tensor(mesh):
    assert message(TypeError, lambda: spmd.mark_sharding(3, mesh, ("data",))) == (
        "mark_sharding: expected a tensor on 'spmd', got 3 (int)"
    )


def test_a_second_mark_that_differs(mesh):
    t = spmd.mark_sharding(torch.zeros(4, 4, device="spmd"), mesh, ("data", None))
    assert message(ValueError, lambda: spmd.mark_sharding(t, mesh, (None, "data"))) == (
        "mark_sharding: the tensor is marked ('data', None) on mesh [data=2, model=4] already; got "
        "(None, 'data') on mesh [data=2, model=4]. Use reshard for a copy, or clear_sharding first"
    )


def test_no_mesh_at_all():
    t = torch.zeros(4, device="spmd")
    assert message(ValueError, lambda: spmd.mark_sharding(t, spec=("data",))) == (
        "mark_sharding: no mesh was given and there is no global one; pass a mesh, or call it "
        "inside `with spmd.use_mesh(mesh):`"
    )


def test_a_missing_spec(mesh):
    t = torch.zeros(4, device="spmd")
    assert message(TypeError, lambda: spmd.mark_sharding(t, mesh)) == (
        "mark_sharding: no spec was given; write mark_sharding(t, mesh, spec)"
    )


def test_a_spec_where_the_mesh_belongs():
    t = torch.zeros(4, device="spmd")
    assert message(TypeError, lambda: spmd.mark_sharding(t, ("data",), ("data",))) == (
        "mark_sharding: expected a Mesh, got ('data',) (tuple)"
    )


def test_a_string_for_a_spec(mesh):
    t = torch.zeros(4, device="spmd")
    assert message(TypeError, lambda: spmd.mark_sharding(t, mesh, "data")) == (
        "PartitionSpec: expected a tuple with one entry per dimension, got 'data' (str); an entry "
        "is None (not sharded), an axis name or index, a tuple of those (major first), "
        "blocks(n, axes), or UNCONSTRAINED"
    )


def test_tree_of_another_form(mesh):
    tree = {"a": torch.zeros(4, device="spmd")}
    assert message(ValueError, lambda: spmd.mark_sharding(tree, mesh, {"b": P("data")})) == (
        "mark_sharding: the tree of specs has none for 'a'; give one spec for all, or a tree of "
        "specs of the same form"
    )


def test_a_spec_for_a_tensor_that_is_not_there(mesh):
    tree = {"a": torch.zeros(4, device="spmd")}
    specs = {"a": P("data"), "b": P("data")}
    assert message(ValueError, lambda: spmd.mark_sharding(tree, mesh, specs)) == (
        "mark_sharding: the tree of specs has one for 'b', which the tree of tensors does not "
        "have; it has 'a'"
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_tensor(mesh):
    sparse = torch.eye(4).to_sparse_csr()
    assert message(ValueError, lambda: spmd.mark_sharding(sparse, mesh, ("data", None))) == (
        "mark_sharding takes no sparse tensor; got one with layout sparsecsr; give it the values, "
        "t.values(), whose nnz can be sharded"
    )


def test_shards_with_a_hole(mesh):
    t = spmd.mark_sharding(torch.zeros(4, 4, device="spmd"), mesh, ("data", None))
    half = [shard for shard in spmd.local_shards(t) if shard.device < 4]
    assert message(
        ValueError, lambda: spmd.from_local_shards(half, mesh, ("data", None), (4, 4))
    ) == (
        "from_local_shards: the shards leave 8 of 16 elements without data, the first of them at "
        "[2, 0]"
    )
