# SPDX-License-Identifier: Apache-2.0
"""Marks of copies, of parts, and of data that was used before; a lost mark gives a warning."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import torch_spmd as spmd
from torch_spmd import P

mesh = spmd.make_mesh((4,), ("a",))


def marked(*shape, spec=None, device=None):
    t = torch.arange(float(torch.Size(shape).numel())).reshape(shape).to("spmd")
    return spmd.mark_sharding(t, mesh, spec or ("a", *[None] * (len(shape) - 1)))


def parts(t):
    return [tuple(shard.data.shape) for shard in spmd.local_shards(t)]


def saved(t):
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return file


def assigned(t):
    layer = nn.Linear(6, 8, bias=False)
    layer.load_state_dict({"weight": t}, assign=True)
    return layer.weight


COPIES = {
    "clone": lambda t: t.clone(),
    "clone of a view": lambda t: t.t().clone().t(),
    "contiguous": lambda t: t.t().contiguous().t(),
    "deepcopy": copy.deepcopy,
    "deepcopy of a parameter": lambda t: copy.deepcopy(nn.Parameter(t)),
    "copy": copy.copy,
    "detach": lambda t: t.detach(),
    "detached clone": lambda t: t.detach().clone(),
    "data": lambda t: t.data,
    "Parameter": nn.Parameter,
    "to another dtype": lambda t: t.to(torch.float64),
    "half": lambda t: t.half(),
    "to with copy": lambda t: t.to("spmd", copy=True),
    "the CPU and back": lambda t: t.cpu().to("spmd"),
    "the CPU and back, double": lambda t: t.cpu().to("spmd", torch.float64),
    "full_tensor": lambda t: spmd.full_tensor(t).to("spmd"),
    "torch.tensor": lambda t: t.new_tensor(t),
    "as_tensor": lambda t: torch.as_tensor(t),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "save": lambda t: torch.load(saved(t)),
    "save a parameter": lambda t: torch.load(saved(nn.Parameter(t))),
    "save, load without weights_only": lambda t: torch.load(saved(t), weights_only=False),
    "assign": assigned,
    "assign from the CPU": lambda t: assigned(t.cpu()).to("spmd"),
    "alias": lambda t: torch.ops.aten.alias(t),
    "unsqueeze": lambda t: t.clone().unsqueeze(0).clone().squeeze(0),
}


@pytest.mark.parametrize("computed", [False, True], ids=["data", "result"])
@pytest.mark.parametrize("way", COPIES, ids=lambda way: way.replace(" ", "_"))
def test_a_copy_has_the_mark(way, computed):
    t = marked(8, 6)
    if computed:
        t = spmd.mark_sharding(t * 1, mesh, ("a", None))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "To copy construct from a tensor")
        c = COPIES[way](t)
    before = spmd.sharding_of(c)
    spmd.sync()
    after = spmd.sharding_of(c)
    assert before == after == spmd.NamedSharding(mesh, ("a", None))
    assert before.is_committed and after.is_committed
    assert parts(c) == [(2, 6)] * 4
    torch.testing.assert_close(c.detach().cpu().float(), torch.arange(48.0).reshape(8, 6))
    c.detach().mul_(2)
    assert parts(c) == [(2, 6)] * 4


def test_another_mark_on_a_copy_replaces_the_one_it_came_with():
    t = marked(8, 8)
    for c in (t.clone(), t.cpu().to("spmd"), copy.deepcopy(t), torch.load(saved(t))):
        spmd.mark_sharding(c, mesh, (None, "a"))
        assert parts(c) == [(8, 2)] * 4
        with pytest.raises(ValueError, match=r"marked \(None, 'a'\)"):
            spmd.mark_sharding(c, mesh, ("a", None))
    c = t.clone()
    spmd.sync()
    c.add_(1)  # constrained by the mark that it was copied with
    spmd.mark_sharding(c, mesh, (None, "a"))
    assert parts(c) == [(8, 2)] * 4 and parts(t) == [(2, 8)] * 4
    spmd.clear_sharding(c)
    assert not spmd.sharding_of(c).is_committed


def test_an_intermediate_copy_does_not_change_the_plan():
    x = marked(8, 8)
    y = spmd.mark_sharding(x.clone() + 1, mesh, (None, "a"))
    spmd.sync()
    kinds = [row.kind for row in spmd.debug.collectives().rows]
    assert kinds == ["all_to_all"] and parts(y) == [(8, 2)] * 4


def test_a_mark_on_used_data_changes_its_layout():
    x = torch.arange(32.0).reshape(8, 4).to("spmd")
    assert (x + 1).sum().item() == 528
    spmd.mark_sharding(x, mesh, ("a", None))
    assert parts(x) == [(2, 4)] * 4
    x = torch.arange(32.0).reshape(8, 4).to("spmd")
    y = x * 2
    spmd.mark_sharding(x, mesh, ("a", None))  # used on this tape
    assert parts(x) == [(2, 4)] * 4
    spmd.mark_sharding(y, mesh, (None, "a"))
    assert parts(y) == [(8, 1)] * 4
    spmd.clear_sharding(y)
    spmd.mark_sharding(y, mesh, ("a", None))
    assert parts(y) == [(2, 4)] * 4
    torch.testing.assert_close(y.cpu(), torch.arange(32.0).reshape(8, 4) * 2)
    u = torch.arange(32.0).reshape(8, 4).to("spmd")
    u.sum().item()
    spmd.mark_sharding(u, mesh, ("a", spmd.UNCONSTRAINED))
    assert parts(u) == [(2, 4)] * 4
    v = torch.arange(32.0).reshape(8, 4).to("spmd")
    v.sum().item()
    spmd.mark_sharding(v.t(), mesh, ("a", None))
    assert parts(v) == [(8, 1)] * 4


def test_a_mark_on_a_part_of_a_result():
    w = torch.arange(192.0).reshape(24, 8).to("spmd") * 1
    q = w[:8]
    spmd.mark_sharding(q, mesh, ("a", None))
    spmd.mark_sharding(q, mesh, ("a", None))
    assert spmd.sharding_of(q) == spmd.NamedSharding(mesh, ("a", None))
    assert spmd.sharding_of(q.t()).spec == P(None, "a")
    assert parts(q) == [(2, 8)] * 4
    assert not spmd.sharding_of(w).is_committed
    z = torch.exp(q)
    spmd.sync()
    assert spmd.sharding_of(z).spec == P("a", None)
    w.add_(1)  # another value: the part is sharded all the same
    z = w[:8] * 2
    spmd.sync()
    assert spmd.sharding_of(z).spec == P("a", None)
    torch.testing.assert_close(z.cpu(), 2 * (torch.arange(64.0).reshape(8, 8) + 1))
    assert spmd.sharding_of(q.clone()).spec == P("a", None)
    with pytest.raises(ValueError, match=r"marked \('a', None\) .* already"):
        spmd.mark_sharding(w[:8], mesh, (None, "a"))
    spmd.mark_sharding(w[8:16], mesh, (None, "a"))  # and a part of stored data
    z = w[8:16] * 2
    spmd.sync()
    assert spmd.sharding_of(z).spec == P(None, "a")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("cut", [None, (None, "b"), ("b", None)])
def test_a_mark_on_a_part_of_data(stored, cut):
    """Data that a program has used or not; the base has another sharding or none."""
    data = torch.arange(192.0).reshape(24, 8)
    w = data.clone().to("spmd")
    both = spmd.make_mesh((4, 2), ("a", "b"))
    if cut is not None:
        spmd.mark_sharding(w, both, cut)
    if stored:
        w.sum().item()
    q = w[:8]
    spmd.mark_sharding(q, both, ("a", None))
    spmd.mark_sharding({"again": w[:8]}, both, ("a", None))
    assert spmd.sharding_of(q) == spmd.NamedSharding(both, ("a", None))
    assert {tuple(s.data.shape) for s in spmd.local_shards(q)} == {(2, 8)}
    z = torch.exp(q / 64)
    assert spmd.sharding_of(z).spec == P("a", None)
    torch.testing.assert_close(z.cpu(), torch.exp(data[:8] / 64))
    with torch.no_grad():
        q.mul_(2)
    data[:8] *= 2
    torch.testing.assert_close(w.cpu(), data)
    assert spmd.sharding_of(w).is_committed == (cut is not None)
    with pytest.raises(ValueError, match=r"marked \('a', None\) .* already"):
        spmd.mark_sharding(w[:8], both, (None, "a"))


def test_clearing_a_part_leaves_the_rest():
    w = spmd.mark_sharding(torch.ones(24, 8, device="spmd") * 1, mesh, (None, "a"))
    spmd.mark_sharding(w[:8], mesh, ("a", None))
    spmd.clear_sharding(w[:8])
    assert not spmd.sharding_of(w[:8]).is_committed
    assert spmd.sharding_of(w).spec == P(None, "a")
    spmd.mark_sharding(w[:8], mesh, (None, None))
    spmd.clear_sharding(w)
    assert spmd.sharding_of(w[:8]).is_committed and not spmd.sharding_of(w).is_committed


def test_a_part_is_sharded_in_a_replayed_call():
    def step(w):
        z = w[:8] * 3
        spmd.sync()
        return z

    w = torch.ones(24, 8, device="spmd") * 1
    spmd.sync()
    for _ in range(4):
        step(w)
    w = torch.ones(24, 8, device="spmd") * 1
    spmd.mark_sharding(w[:8], mesh, (None, "a"))
    spmd.sync()
    for _ in range(3):
        assert spmd.sharding_of(step(w)).spec == P(None, "a")


def layer_on_the_device():
    layer = nn.Linear(8, 8).to("spmd")
    spmd.mark_sharding(layer.weight, mesh, ("a", None))
    return layer


def to_empty(layer):
    return layer.to_empty(device="spmd")


def swapped(layer):
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.half()
        layer.load_state_dict({k: v.cpu() for k, v in layer.state_dict().items()}, assign=True)
        return layer.to("spmd")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def parametrized(layer):
    class Double(nn.Module):
        def forward(self, w):
            return w * 2

        def right_inverse(self, w):
            return w / 2

    nn.utils.parametrize.register_parametrization(layer, "weight", Double())
    assert spmd.sharding_of(layer.parametrizations.weight.original).is_committed
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    return layer


def pruned(layer):
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.remove(layer, "weight")
    return layer


def data_assigned(layer):
    layer.weight.data = layer.weight.data * 2
    return layer


def vector(layer):
    flat = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(flat * 2, layer.parameters())
    return layer


def new_parameter(layer):
    layer.weight = nn.Parameter(torch.ones(8, 8, device="spmd"))
    return layer


def loaded_from_the_cpu(layer):
    layer.load_state_dict(torch.load(saved(layer.state_dict()), map_location="cpu"), assign=True)
    return layer.to("spmd")


CONVERSIONS = {
    "half": lambda layer: layer.half(),
    "double": lambda layer: layer.double(),
    "to bfloat16": lambda layer: layer.to(torch.bfloat16),
    "cpu": lambda layer: layer.cpu().to("spmd"),
    "cpu, half there": lambda layer: layer.cpu().half().to("spmd"),
    "meta": lambda layer: layer.to("meta").to_empty(device="spmd"),
    "to_empty": to_empty,
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
    "save": lambda layer: torch.load(saved(layer), weights_only=False),
    "swapped": swapped,
    "parametrized": parametrized,
    "pruned": pruned,
    "data": data_assigned,
    "vector": vector,
    "assigned": new_parameter,
    "load_state_dict": loaded_from_the_cpu,
}


@pytest.mark.parametrize("way", CONVERSIONS, ids=lambda way: way.replace(" ", "_"))
def test_a_converted_module_has_its_marks(way):
    layer = layer_on_the_device()
    layer = CONVERSIONS[way](layer)
    assert spmd.sharding_of(layer.weight).spec == P("a", None)
    assert spmd.sharding_of(layer.weight).is_committed
    assert parts(layer.weight) == [(2, 8)] * 4
    assert not spmd.sharding_of(layer.bias).is_committed


def test_optimizer_state_lies_as_the_parameter():
    layer = layer_on_the_device()
    optimizer = torch.optim.Adam(layer.parameters())
    for _ in range(2):
        layer(torch.ones(4, 8, device="spmd")).sum().backward()
        optimizer.step()
    for name in ("exp_avg", "exp_avg_sq"):
        assert parts(optimizer.state[layer.weight][name]) == [(2, 8)] * 4


def test_a_lost_mark_gives_one_warning():
    def lose(t):
        t.data = torch.ones(48, device="spmd")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            lose(marked(8, 6))
    assert [str(w.message) for w in caught] == [
        ".data =: the mark ('a', None) on mesh [a=4] is not kept, since its replacement has 1 "
        "dimension; mark the new tensor: spmd.mark_sharding(tensor, mesh, spec)"
    ]


def test_resized_storage_keeps_the_mark():
    t = marked(8, 6)
    t.resize_(16, 6)
    assert spmd.sharding_of(t).spec == P("a", None) and parts(t) == [(4, 6)] * 4


def test_memory_that_is_given_up_and_taken_again_keeps_the_mark():
    t = marked(8, 6)
    storage = t.untyped_storage()
    size = storage.size()
    storage.resize_(0)
    storage.resize_(size)
    t.copy_(torch.ones(8, 6))
    assert spmd.sharding_of(t).is_committed and parts(t) == [(2, 6)] * 4
    assert t.sum().item() == 48


def test_marks_of_host_tensors_end_with_them():
    t = marked(8, 6)
    for _ in range(300):
        t.cpu()
    host = t.cpu()
    assert spmd.sharding_of(host.to("spmd")).is_committed
    assert not spmd.sharding_of(host[:4].to("spmd")).is_committed
    assert not spmd.sharding_of((host * 1).to("spmd")).is_committed


def test_a_deep_copy_keeps_the_mark():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    layer = nn.Linear(8, 8).to("spmd")
    spmd.mark_sharding(layer.weight, mesh, ("model", None))
    sharding = spmd.sharding_of(copy.deepcopy(layer).weight)
    assert sharding.is_committed and sharding.spec == spmd.P("model", None)
    assert not spmd.sharding_of(copy.deepcopy(layer).bias).is_committed


def test_a_reshape_of_all_that_is_stored_is_marked():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    flat = torch.arange(32.0).to("spmd")
    x = flat.view(8, 4)
    spmd.mark_sharding(x, mesh, ("data", "model"))
    assert spmd.sharding_of(x).spec == spmd.P("data", "model")
    assert torch.equal((x * 2).cpu(), torch.arange(32.0).view(8, 4) * 2)
    assert torch.equal(flat.cpu(), torch.arange(32.0))
    x.add_(1)
    assert torch.equal(flat.cpu(), torch.arange(32.0) + 1)


def test_nothing_is_claimed_about_a_view_that_no_spec_describes():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    x = torch.arange(64.0).to("spmd")
    spmd.mark_sharding(x, mesh, ("data",))
    assert not spmd.sharding_of(x.view(8, 8)).is_committed


NEW_ON_THE_HOST = {
    "clone": lambda host: host.clone(),
    "deepcopy": copy.deepcopy,
    "another type": lambda host: host.double(),
    "file": lambda host: torch.load(saved(host)),
}


@pytest.mark.parametrize("way", NEW_ON_THE_HOST)
def test_what_the_host_makes_of_a_host_copy_has_no_mark(way):
    t = marked(8, 6)
    host = t.cpu()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not spmd.sharding_of(NEW_ON_THE_HOST[way](host).to("spmd")).is_committed
        assert spmd.sharding_of(host.detach().to("spmd")).is_committed
