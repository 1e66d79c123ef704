# SPDX-License-Identifier: Apache-2.0
"""Marks, their texts, and what devices hold."""

import copy

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.distributed.spmd.xla_sharding import MarkShardingFunction

N = xr.global_runtime_device_count()
IDS = np.arange(N)
TURNED = IDS.reshape(min(2, N), -1).T
several = pytest.mark.skipif(N < 4, reason="needs four devices")
spec_of = torch_xla._XLAC._get_xla_sharding_spec


@pytest.fixture(autouse=True)
def spmd_is_on():
    xr.use_spmd()


def mesh(*shape, ids=IDS, names=None):
    return xs.Mesh(ids, shape, names)


def ids(order):
    return ",".join(map(str, np.array(order).reshape(-1)))


def test_a_mark_needs_spmd(monkeypatch):
    monkeypatch.delenv("XLA_USE_SPMD")
    with pytest.raises(RuntimeError, match="Please enable SPMD via"):
        xs.mark_sharding(torch.ones(8, device="xla"), mesh(N), (0,))


def test_the_text_of_no_mark_and_of_what_the_compiler_chose():
    t = torch.ones(8, 8).to("xla")
    y = t + 1
    assert spec_of(t) == spec_of(y) == ""
    assert torch_xla._XLAC._get_xla_sharding_type(t) is None
    torch_xla.sync()
    assert spec_of(y) == "{replicated}"


@several
@pytest.mark.parametrize(
    ("shape", "axes", "spec", "tiles", "order"),
    [
        ((2, N // 2), None, (0, 1), (2, N // 2), IDS),
        ((2, N // 2), None, (1, 0), (N // 2, 2), TURNED),
        ((2, N // 2), None, (0, None), (2, 1, N // 2), IDS),
        ((2, N // 2), None, (None, (0, 1)), (1, N), IDS),
        ((2, N // 2), None, ((1, 0), None), (N, 1), TURNED),
        ((2, N // 2), ("a", "b"), ("b", None), (N // 2, 1, 2), TURNED),
        ((1, 2, N // 2), ("r", "b", "m"), (None, ("r", "m")), (1, N // 2, 2), TURNED),
        ((2, N // 2, 1), None, (2, 1), (1, N // 2, 2), TURNED),
    ],
)  # fmt: skip
def test_texts(shape, axes, spec, tiles, order):
    t = torch.arange(256.0).reshape(16, 16)
    marked = xs.mark_sharding(t.to("xla"), mesh(*shape, names=axes), spec)
    partial = " last_tile_dim_replicate" if len(tiles) == 3 else ""
    sizes = ",".join(map(str, tiles))
    assert marked.sharding_spec == f"{{devices=[{sizes}]{ids(order)}{partial}}}"
    kind = xs.ShardingType.PARTIAL if partial else xs.ShardingType.TILED
    assert marked.sharding_type == kind
    for shard in marked.local_shards:
        assert torch.equal(shard.data, t[tuple(shard.indices)])
    assert torch.equal(marked.global_tensor.cpu(), t)


def test_devices_in_another_order():
    t = torch.arange(2.0 * N).reshape(2, N).to("xla")
    marked = xs.mark_sharding(t, mesh(1, N, ids=np.flip(IDS)), (0, 1))
    if N > 1:
        assert marked.sharding_spec == f"{{devices=[1,{N}]{ids(np.flip(IDS))}}}"
    else:
        assert marked.sharding_spec == "{replicated}"
        return
    assert [shard.indices[1].start for shard in marked.local_shards] == list(reversed(range(N)))
    assert marked.local_shards[0].shard_device == "CPU:0"


def test_shards_with_padding():
    t = torch.arange(N + 1.0)
    shards = xs.mark_sharding(t.to("xla"), mesh(N), (0,)).local_shards
    assert len(shards) == N
    if N == 1:
        assert shards[0].indices is Ellipsis and torch.equal(shards[0].data, t)
        return
    size = -(-(N + 1) // N)
    for i, shard in enumerate(shards):
        begin, end = min(i * size, N + 1), min((i + 1) * size, N + 1)
        assert shard.indices == [slice(begin, end, 1)] and shard.replica_id == 0
        expected = torch.zeros(size)
        expected[: end - begin] = t[begin:end]
        assert torch.equal(shard.data, expected)
        assert torch.equal(shard.unpadded_data, t[begin:end])


def test_replicated_shards():
    t = torch.arange(6.0)
    marked = xs.mark_sharding(t.to("xla"), mesh(N), (None,))
    assert [shard.replica_id for shard in marked.local_shards] == list(range(N))
    for shard in marked.local_shards:
        assert shard.indices is Ellipsis and torch.equal(shard.unpadded_data, t)
    scalar = xs.mark_sharding(torch.tensor(1.0).to("xla"), mesh(1, N), ())
    assert scalar.sharding_spec == "{replicated}" and len(scalar.local_shards) == N


@several
def test_shards_of_copies():
    t = torch.arange(256.0).reshape(16, 16)
    shards = xs.mark_sharding(t.to("xla"), mesh(N // 2, 2), (None, 1)).local_shards
    assert [shard.replica_id for shard in shards] == [i // 2 for i in range(N)]
    assert [shard.indices[1].start for shard in shards] == [8 * (i % 2) for i in range(N)]


def test_loading_shards():
    t = torch.arange(N + 1.0)
    marked = xs.mark_sharding(t.to("xla"), mesh(N), (0,))
    shards = marked.local_shards
    if N > 1:
        for shard in shards:
            shard.unpadded_data = -shard.unpadded_data
        marked.load_local_shards_(shards)
        assert torch.equal(marked.global_tensor.cpu(), -t)
        with pytest.raises(RuntimeError, match=f"{N - 1} shards"):
            marked.load_local_shards_(shards[:-1])
        shards[0].data = torch.ones(1000)
        with pytest.raises(RuntimeError, match="a shard has shape"):
            marked.load_local_shards_(shards)
    replicated = xs.mark_sharding(t.to("xla"), mesh(N), (None,))
    with pytest.raises(RuntimeError, match="is not sharded"):
        replicated.load_local_shards_(replicated.local_shards)
    with pytest.raises(RuntimeError, match="Tensor is not sharded"):
        xs.XLAShardedTensor(t.to("xla")).local_shards  # noqa: B018


def test_marking_again():
    t = torch.ones(8, 8).to("xla")
    xs.mark_sharding(t, mesh(1, N), (None, None))
    xs.mark_sharding(t, mesh(1, N), (0, 1))  # a replicated mark may be overwritten
    before = spec_of(t)
    xs.mark_sharding(t, mesh(N), (None, 0))  # another mesh, the same sharding
    if N > 1:
        with pytest.raises(RuntimeError, match="Existing annotation must be cleared first"):
            xs.mark_sharding(t, mesh(N, 1), (0, 1))
    assert spec_of(t) == before
    xs.annotate_custom_sharding(t, mesh(N, 1), (0, 1))
    torch_xla.sync()
    if N > 1:
        assert spec_of(t) == f"{{devices=[{N},1]{ids(IDS)}}}"
    xs.clear_sharding(t)
    assert spec_of(t) == ""
    pending = torch.ones(8, 8, device="xla") * 2
    xs.mark_sharding(pending, mesh(1, N), (0, 1))
    xs.mark_sharding(pending, mesh(N, 1), (0, 1))
    assert pending.sum().item() == 128
    if N > 1:
        assert spec_of(pending) == f"{{devices=[{N},1]{ids(IDS)}}}"


def test_copies_and_in_place_ops_keep_marks():
    t = torch.ones(2, 4, 8, 16).to("xla")
    xs.mark_sharding(t, mesh(1, 1, 1, N), (0, 1, 2, 3))
    text = spec_of(t)
    assert spec_of(copy.deepcopy(t)) == spec_of(t.clone()) == text
    t.add_(1)
    assert spec_of(t) == text
    torch_xla.sync()
    assert spec_of(t) == text and t.sum().item() == 2 * t.numel()


def test_one_result_of_an_op():
    values, places = torch.max(torch.randn(8, 8, device="xla"), 1)
    xs.mark_sharding(values, mesh(N), (0,))
    assert spec_of(values) != "" and spec_of(places) == ""


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ((0,), AssertionError, r"Partition spec length \(1\) should be equal to the input rank"),
        ((0, 2), AssertionError, "contains out of bound index into mesh_shape"),
        ((0, -1), AssertionError, "contains out of bound index into mesh_shape"),
        ((0, 0), AssertionError, "should appear at most once in partition_spec"),
        (("a", "c"), ValueError, "Axis name c is not defined in the given mesh"),
        ((1.5, None), ValueError, "is not supported in partition spec"),
        ((((0,), 1), None), AssertionError, "cannot contain nested tuples"),
        (([0], None), TypeError, "unhashable"),
    ],
)
def test_wrong_specs(spec, kind, message):
    with pytest.raises(kind, match=message):
        xs.mark_sharding(torch.ones(8, 8).to("xla"), mesh(1, N, names=("a", "b")), spec)


def test_wrong_tensors():
    with pytest.raises(RuntimeError, match="Input tensor is not an XLA tensor: CPUFloatTensor"):
        xs.mark_sharding(torch.ones(8), mesh(N), (0,))


def test_the_wrapper_stands_for_the_tensor():
    t = torch.arange(8.0).to("xla")
    marked = xs.mark_sharding(t, mesh(N), (0,))
    assert isinstance(marked, xs.XLAShardedTensor) and marked.global_tensor is t
    assert marked.mesh_shape == (N,) and marked.partition_spec == (0,)
    total = marked + 1
    assert isinstance(total, xs.XLAShardedTensor) and total.sum().item() == 36
    marked += 1
    assert marked.global_tensor is t and t.sum().item() == 36
    assert "XLAShardedTensor" in str(marked) and "XLAShardedTensor" not in str(t * 2)
    assert xs.wrap_if_sharded(t).global_tensor is t
    assert xs.wrap_if_sharded(torch.ones(2)).device.type == "cpu" and xs.wrap_if_sharded(3) == 3


@pytest.mark.parametrize("by", [xs.mark_sharding_with_gradients, MarkShardingFunction.apply])
def test_gradients_get_the_mark(by):
    x = torch.arange(8.0).to("xla").requires_grad_()
    y = by(x, mesh(N), (0,))
    (y * y).sum().backward()
    assert spec_of(x) == "" and spec_of(y) == spec_of(x.grad) != ""
    assert torch.equal(x.grad.cpu(), 2 * torch.arange(8.0))


def test_pairs_are_sharded_alike():
    x = xs.mark_sharding_with_gradients(torch.ones(8, device="xla"), mesh(N), (0,))
    y = torch.ones(8, device="xla") + 1
    ours, theirs = xs.shard_as({"a": x, "b": None}, {"a": y, "b": None})
    torch_xla.sync()
    assert spec_of(ours["a"]) == spec_of(theirs["a"]) == spec_of(x)
    assert theirs["a"].tolist() == [2] * 8
    with pytest.raises(AssertionError, match="must have the same structure"):
        xs.shard_as([x], [x, y])


def test_tensors_of_shards():
    build = torch_xla._XLAC._global_tensor_from_cpu_shards
    sharding = mesh(N).get_op_sharding((0,))
    shards = [torch.arange(N) + i * N for i in range(N)]
    assert torch.equal(build(shards, sharding).cpu(), torch.arange(N * N))
    for missing in range(N if N > 1 else 0):
        size = N * N - missing
        t = build(shards, sharding, torch.Size([size]))
        assert torch.equal(t.cpu(), torch.arange(size))
    for wrong in ((N * N + 1,), (1, N * N), *([(N * N - N,)] if N > 1 else [])):
        with pytest.raises(RuntimeError, match="are no tensor of shape"):
            build(shards, sharding, torch.Size(wrong))
    with pytest.raises(RuntimeError, match="give one for each"):
        build(shards[:-1], sharding)
    replicated = build([torch.arange(4)] * N, mesh(N).get_op_sharding((None,)))
    assert replicated.tolist() == [0, 1, 2, 3]


def test_training_keeps_marks_and_shards_what_depends_on_them():
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = copy.deepcopy(plain).to("xla")
    xs.mark_sharding(model[0].weight, mesh(1, N), (1, 0))
    text = spec_of(model[0].weight)
    x, y = torch.randn(32, 16), torch.randn(32, 1)
    losses = []
    for net, to in ((plain, "cpu"), (model, "xla")):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x.to(to)), y.to(to))
            loss.backward()
            optimizer.step()
            torch_xla.sync()
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) < 1e-5
    assert spec_of(model[0].weight) == text
    assert spec_of(model[2].weight) == "{replicated}" or N > 1


def test_compiled_functions():
    spec_text = "(0, None)"

    def f(t):
        torch.ops.xla.dynamo_mark_sharding(t, IDS.tolist(), [N, 1], "('a', 'b')", spec_text)
        return t * 2

    t = torch.arange(16.0).reshape(8, 2).to("xla")
    assert torch.equal(torch.compile(lambda x: x * 2, backend="openxla")(t).cpu(), (t * 2).cpu())
    assert f(t).sum().item() == 240
    assert spec_of(t) == mesh(N, 1).get_op_sharding((0, None)).text()
