# SPDX-License-Identifier: Apache-2.0
"""Metrics, texts of pending work, pictures of shardings."""

import json

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.core.xla_builder
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.distributed.spmd.debugging import visualize_sharding

from torch_spmd.torch_xla import _tiles

N = xr.global_runtime_device_count()
XLAC = torch_xla._XLAC


@pytest.fixture(autouse=True)
def mesh():
    xr.use_spmd()
    torch_xla.sync(wait=True)
    met.clear_all()
    return xs.Mesh(np.arange(N), (1, N))


def test_nothing_is_counted_before_it_happens():
    assert met.counter_names() == [] and met.metric_names() == []
    assert met.counter_value("ExecuteReplicated") is None
    assert met.metric_data("CompileTime") is None and met.metrics_report() == "\n"


def test_programs_are_counted():
    for size in (3, 3, 4):
        (torch.ones(size).to("xla") + 1).cpu()
    assert (
        met.counter_value("ExecuteReplicated") == 3 == met.metric_data("ExecuteReplicatedTime")[0]
    )
    assert met.counter_value("UncachedCompile") == met.metric_data("CompileTime")[0] <= 2
    assert met.metric_data("CompileTime")[1] > 0
    assert "Counter: UncachedCompile" in met.short_metrics_report()
    assert XLAC._xla_metrics_report() == met.metrics_report()
    XLAC._xla_increment_counter("Mine", 2)
    assert met.counter_value("Mine") == 2


def test_bytes_to_the_device_are_counted_once(mesh):
    t = torch.ones(4, N).to("xla")
    assert met.metric_data("OutboundData") is None  # nothing has been copied yet
    xs.mark_sharding(t, mesh, (0, 1))
    assert met.metric_data("OutboundData")[:2] == (1, 16 * N)
    (t + 1).cpu()
    assert met.metric_data("OutboundData")[:2] == (1, 16 * N)


def test_parameters_of_a_module_that_moved_are_counted(mesh):
    model = torch.nn.Linear(N, 4, bias=False).to("xla")  # its Parameter is another tensor now
    xs.mark_sharding(model.weight, mesh, (0, 1))
    assert met.metric_data("OutboundData")[:2] == (1, 16 * N)
    assert met.counter_value("VirtualDeviceUsage") == 1


def test_reads_by_the_host_are_counted(mesh):
    t = xs.mark_sharding(torch.ones(4, N).to("xla"), mesh, (0, 1)).global_tensor
    t.cpu()
    assert met.counter_value("ReplicateShardedData") == 1
    torch.ones(3).to("xla").cpu()  # has not left the host
    assert met.counter_value("ReplicateShardedData") == 1
    (t + 1).to("cpu")
    assert met.counter_value("ReplicateShardedData") == 2


def test_shardings_are_counted_when_made(mesh):
    for spec in ((0, 1), (0, 1), (0, None)):
        xs.mark_sharding(torch.ones(1, N).to("xla"), mesh, spec)
    assert met.counter_value("CreateOpSharding") == 2
    assert met.counter_value("XlaMarkSharding") == 3


def test_inputs_whose_memory_results_take(mesh):
    t = xs.mark_sharding(torch.ones(4, N).to("xla"), mesh, (0, 1))
    t += 1
    torch_xla.sync()
    assert met.metric_data("InputOutputAliasCount")[:2] == (1, 1.0)


def test_texts_of_pending_work(mesh):
    x = torch.ones(2, N).to("xla")
    xs.mark_sharding(x, mesh, (0, 1))
    text = mesh.get_op_sharding((0, 1)).text() if N > 1 else "{replicated}"
    hlo = XLAC._get_xla_tensors_hlo([x])
    assert f"f32[2,{N}]{{1,0}} parameter(0), sharding={text}" in hlo
    y = x * 2
    xs.mark_sharding(y, mesh, (1, 0))
    hlo = XLAC._get_xla_tensors_hlo([y])
    assert "HloModule" in hlo and " mul(" in hlo
    if N > 1:
        assert f"sharding={mesh.get_op_sharding((1, 0)).text()}" in hlo
    assert XLAC._get_graph_hash([y]) == XLAC._get_graph_hash([y])
    first = XLAC._get_graph_hash([y])
    y = y + 1
    assert XLAC._get_graph_hash([y]) != first


def test_an_op_in_place_is_an_instruction_like_others(mesh):
    x = torch.ones(2, N).to("xla")
    xs.mark_sharding(x, mesh, (0, 1))
    x.add_(1)
    placed = mesh.get_op_sharding((0, 1)).text() if N > 1 else "{replicated}"
    kind = f"f32[2,{N}]{{1,0}}"
    assert XLAC._get_xla_tensors_hlo([x]).splitlines()[5:-1] == [
        f"  %add.3 = {kind} add({kind} %p0.1, s64[] %p1.2), alpha=1",
        f"  %custom-call.4 = {kind} custom-call({kind} %add.3), "
        f'custom_call_target="Sharding", sharding={placed}',
    ]


def test_instructions_are_named_by_op_and_position(mesh):
    x = torch.ones(2, N).to("xla")
    xs.mark_sharding(x, mesh, (0, 1))
    others = torch.ones(5).to("xla") + 1  # pending, and not needed
    values, numbers = torch.max(x * 2, dim=0)
    xs.mark_sharding(values, mesh, (1,))
    lines = [line.strip() for line in XLAC._get_xla_tensors_hlo([values]).splitlines()[3:-1]]
    sharded = mesh.get_op_sharding((1,)).text() if N > 1 else "{replicated}"
    placed = mesh.get_op_sharding((0, 1)).text() if N > 1 else "{replicated}"
    both = f"(f32[{N}]{{0}}, s64[{N}]{{0}})"
    assert lines == [
        f"%p0.1 = f32[2,{N}]{{1,0}} parameter(0), sharding={placed}",
        "%p1.2 = s64[] parameter(1)",
        f"%mul.3 = f32[2,{N}]{{1,0}} mul(f32[2,{N}]{{1,0}} %p0.1, s64[] %p1.2)",
        f"%max.4 = {both} max(f32[2,{N}]{{1,0}} %mul.3), dim=0, keepdim=false",
        f"%get-tuple-element.5 = f32[{N}]{{0}} get-tuple-element({both} %max.4), index=0",
        f"%custom-call.6 = f32[{N}]{{0}} custom-call(f32[{N}]{{0}} %get-tuple-element.5), "
        f'custom_call_target="Sharding", sharding={sharded}',
        f"%get-tuple-element.7 = s64[{N}]{{0}} get-tuple-element({both} %max.4), index=1",
    ]
    assert others.tolist() == [2.0] * 5 and numbers.tolist() == [0] * N


def test_fields_of_modules(mesh):
    a, b = (xs.mark_sharding(torch.ones(2, N).to("xla"), mesh, (0, 1)) for _ in range(2))
    context = XLAC.lowering.LoweringContext("Named")
    context.build([(b + a.exp() * 2).global_tensor])
    module = json.loads(context.hlo_json())
    by_id = {i["id"]: i for i in module["computations"][0]["instructions"]}
    last = max(by_id.values(), key=lambda i: i["id"])
    assert module["name"] == "Named" and last["opcode"] == "add"
    assert last["shape"] == {"element_type": "F32", "dimensions": [2, N]}
    first, product = (by_id[i] for i in last["operand_ids"])
    number = context.tensor_parameter_id(b)
    assert product["opcode"] == "mul" and first["parameter_number"] == number
    text = context.hlo_text()
    assert 'name: "Named"' in text and 'opcode: "parameter"' in text and "\n    }\n" in text
    if N > 1:
        assert first["sharding"]["tile_assignment_devices"] == list(range(N))
        assert f"      tile_assignment_devices: {N - 1}\n" in text
    numbers = {i["parameter_number"] for i in by_id.values() if i["opcode"] == "parameter"}
    assert set(context.device_parameter_id_tensor_mapping()) < numbers  # 2 is one, too


def test_dumps_have_the_shardings_of_results(mesh, monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "dump"))
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "hlo")
    x = torch.zeros(2, N, device="xla")
    xs.mark_sharding(x, mesh, (0, 1))
    y = x + 1  # its sharding follows from that of x
    torch_xla.sync(wait=True)
    results = (tmp_path / "dump.0").read_text().split("#OUTPUT_SHARDING_BEGIN\n")[1].splitlines()
    text = XLAC._get_xla_sharding_spec(y)
    assert results[:3] == [f"f32[2,{N}] {text}"] * 2 + ["#OUTPUT_SHARDING_END"]
    assert text == mesh.get_op_sharding((0, 1)).text()


def test_texts_of_programs(mesh, monkeypatch):
    monkeypatch.setenv("XLA_DUMP_POST_OPTIMIZATIONS", "1")
    x, w = torch.ones(1, 8 * N).to("xla"), torch.ones(8 * N, 1).to("xla")
    xs.mark_sharding(x, mesh, (0, 1))
    assert ("all-reduce" in XLAC._get_xla_tensors_hlo([x @ w])) == (N > 1)


def test_what_is_known_of_a_tensor(mesh):
    t = torch.ones(4, N).to("xla")
    info = XLAC._get_xla_tensor_debug_info(t)
    assert f"Tensor on host: with size [4, {N}]" in info and "ShardingSpec: None" in info
    xs.mark_sharding(t, mesh, (0, 1))
    info = XLAC._get_xla_tensor_debug_info(t)
    assert "Tensor on host: None" in info and "XLAShardedData" in info and f"NumShards: {N}" in info
    assert "aten::mul" in XLAC._get_xla_tensor_debug_info(t * 2)


def test_data_of_the_host_are_an_input_once_they_are_read(mesh):
    a, b = (torch.ones(4, N).to("xla") for _ in range(2))
    of_module = torch.nn.Linear(N, 3, bias=False).to("xla").weight  # a tensor of the same storage
    before = XLAC._get_xla_tensor_debug_info(a)
    assert f"Tensor on host: with size [4, {N}]" in before and "IR: None" in before
    y = a @ of_module.T
    info = XLAC._get_xla_tensor_debug_info(a)
    assert "Tensor on host: None" in info and f"IR: xla::device_data, f32[4,{N}]" in info
    assert "ShardingSpec: None" in info and "XLAData: None" in info  # not known before it runs
    assert "Tensor on host: with" in XLAC._get_xla_tensor_debug_info(b)
    assert met.metric_data("OutboundData")[:2] == (2, 4 * (4 * N + 3 * N))
    y.cpu()
    assert met.metric_data("TransferToDeviceTime")[0] == 3  # b has waited for a program
    xs.mark_sharding(b, mesh, (0, 1))
    assert met.metric_data("OutboundData")[0] == 3


def test_numbers_of_inputs(mesh):
    a, b = (xs.mark_sharding(torch.ones(2, N).to("xla"), mesh, (0, 1)) for _ in range(2))
    unused = xs.mark_sharding(torch.ones(2, N).to("xla"), mesh, (0, 1))
    context = XLAC.lowering.LoweringContext()
    context.build([b.global_tensor - 2 * a.global_tensor])
    numbers = [context.tensor_parameter_id(t) for t in (a, b, unused, torch.ones(1))]
    known = context.device_parameter_id_tensor_mapping()
    assert sorted(numbers[:2]) == sorted(known) and numbers[2:] == [-1, -1]


def test_asking_changes_no_program(mesh):
    t = torch.ones(4, N).to("xla")
    xs.mark_sharding(t, mesh, (0, 1))
    y = t * 2
    assert "Tensor on host: None" in XLAC._get_xla_tensor_debug_info(t)
    z = torch.ones(3).to("xla") + 1
    before = XLAC._get_xla_tensors_text([y])
    xs.mark_sharding(y, mesh, (1, 0))
    XLAC._get_xla_tensors_hlo([y, t, z])
    assert XLAC._get_xla_tensors_text([y]).count(" = ") == before.count(" = ") == 2
    assert y.sum().item() == 8 * N and z.sum().item() == 6


def test_inputs_of_pending_work(mesh):
    a, b = torch.ones(2, N).to("xla"), torch.ones(N).to("xla")
    xs.mark_sharding(a, mesh, (0, 1))
    context = XLAC.lowering.LoweringContext("Named")
    total = a + b
    context.build([total])
    assert "Named" in context.hlo_text() and len(context.device_parameter_id_tensor_mapping()) == 2
    assert f"f32[2,{N}]" in torch_xla.core.xla_builder.get_computation_hlo(
        torch_xla.core.xla_builder.computation_from_module_proto("named", context.hlo())
    )


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("{devices=[2,4]0,1,2,3,4,5,6,7}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}", [[[0, 2]], [[1, 3]]]),
        ("{devices=[4]3,2,1,0}", [[3, 2, 1, 0]]),
        ("{devices=[2,2]<=[2,2]T(1,0)}", [[0, 2], [1, 3]]),
        ("{replicated}", [[list(range(N))]]),
        ("", [[list(range(N))]]),
    ],
)
def test_pictures(text, cells, capsys):
    table = visualize_sharding(text, use_color=False)
    shown = [column._cells for column in table.columns]
    assert [[cell.renderable.renderable for cell in row] for row in zip(*shown)] == [
        [f"CPU {devices}" for devices in row] for row in cells
    ]
    assert f"Visualizing {text}" in capsys.readouterr().out


def test_texts_are_read_and_written():
    for text in (
        "{replicated}",
        "{manual}",
        "{devices=[2,2]3,1,2,0}",
        "{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}",
    ):
        assert _tiles.parse(text).text() == text
    iota = _tiles.parse("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}")
    assert iota.text() == "{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}"
    with pytest.raises(ValueError, match="is not organized as expected"):
        _tiles.parse("{devices=2}")


def test_marks_on_inputs_of_a_compiled_module(mesh):
    """A sharding compiles once more where it shards, and not on one device. torch_xla's own test of
    this, dynamo_input_sharding_changed, asks for no program more on one device."""
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    model = model.to("xla").eval()
    x, y = (torch.randn(8, 128, device="xla") for _ in range(2))
    torch_xla.sync()
    met.clear_all()
    compiled = torch.compile(model, backend="openxla")
    whole = compiled(x)
    assert met.metric_data("CompileTime")[0] == 1
    xs.mark_sharding(x, mesh, (1, 0))
    assert torch.allclose(compiled(x).cpu(), whole.cpu(), atol=1e-5)
    assert met.metric_data("CompileTime")[0] == (1 if N == 1 else 2)
    xs.mark_sharding(y, mesh, (0, 1))
    result = compiled(y)
    assert met.metric_data("CompileTime")[0] == (1 if N == 1 else 3)
    assert torch.allclose(model(y).cpu(), result.cpu(), atol=1e-5)
    ids = ",".join(map(str, range(N)))
    assert XLAC._get_xla_sharding_spec(y) == (
        "{replicated}" if N == 1 else f"{{devices=[1,{N}]{ids}}}"
    )
