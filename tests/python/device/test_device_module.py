# SPDX-License-Identifier: Apache-2.0
"""torch.spmd and torch.accelerator: streams, events, memory, properties."""

import gc

import pytest
import torch
from torch import nn

import torch_spmd as spmd

MIB = 1 << 20


def test_streams_are_one():
    module = torch.spmd
    stream = module.current_stream()
    assert isinstance(stream, module.Stream) and isinstance(stream, torch.Stream)
    assert stream == module.Stream() == module.default_stream() == module.Stream(priority=-1)
    assert stream == torch.accelerator.current_stream()
    with module.stream(module.Stream()), module.stream(None), stream, module.device(0):
        x = torch.ones(4, device="spmd") * 2
        module.set_stream(stream)
        stream.wait_stream(torch.accelerator.current_stream())
        stream.wait_event(stream.record_event())
    stream.synchronize()
    assert stream.query() and x.tolist() == [2, 2, 2, 2]
    with pytest.raises(TypeError, match="set_stream: stream must be a stream of 'spmd'; got 3"):
        module.set_stream(3)
    with pytest.raises(RuntimeError, match="there is one logical device"):
        module.device(1)


def event_of_pytorch(**options):
    return torch.Event("spmd", **options)


@pytest.mark.parametrize("make", [torch.spmd.Event, event_of_pytorch])
def test_events_have_times_if_asked(make):
    before, after = make(enable_timing=True), make(enable_timing=True)
    with pytest.raises(ValueError, match="Both events must be recorded"):
        before.elapsed_time(after)
    before.record()
    x = torch.ones(64, 64, device="spmd")
    for _ in range(10):
        x = x @ x / 64
    after.record(torch.spmd.current_stream())
    assert before.elapsed_time(after) > 0 > after.elapsed_time(before)
    first = before.elapsed_time(after)
    before.record()  # again
    assert first > 0 > before.elapsed_time(after)
    assert after.query() and x[0, 0].item() == 1
    untimed = torch.spmd.current_stream().record_event()
    untimed.wait()
    untimed.synchronize()
    with pytest.raises(ValueError, match="enable_timing=True"):
        before.elapsed_time(untimed)


def test_interprocess_events_are_refused():
    with pytest.raises(NotImplementedError, match="interprocess"):
        torch.spmd.Event(interprocess=True)


def allocated():
    gc.collect()
    spmd.sync(wait=True)
    assert torch.spmd.memory_allocated() == torch.accelerator.memory_allocated()
    return torch.spmd.memory_allocated()


@pytest.mark.parametrize("spec", [None, ("x", None), (None, None)])
@pytest.mark.parametrize("uploaded", [True, False])
def test_memory_is_that_of_live_tensors(spec, uploaded):
    before = allocated()
    x = torch.ones(1024, 1024).to("spmd") if uploaded else torch.ones(1024, 1024, device="spmd")
    if spec is not None:
        spmd.mark_sharding(x, spmd.make_mesh((4,), ("x",)), spec)
    assert 4 * MIB <= allocated() - before < 4.1 * MIB  # replicas share a tile
    y = x + 1
    assert 8 * MIB <= allocated() - before < 8.2 * MIB
    assert y[0, 0].item() == 2
    del x, y
    assert allocated() - before < 0.1 * MIB


def test_small_tensors_count():
    before = allocated()
    small = torch.ones(100).to("spmd")
    assert 400 <= allocated() - before < 4096
    del small
    assert allocated() == before


def test_the_peak_has_values_within_programs():
    x = torch.ones(1024, 1024, device="spmd")
    before = allocated()
    torch.spmd.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == before
    ((x + 1) @ (x * 2)).sum().item()
    assert allocated() - before < 0.1 * MIB
    assert torch.spmd.max_memory_allocated() - before >= 8 * MIB
    assert torch.spmd.max_memory_allocated() == torch.accelerator.max_memory_allocated()
    assert torch.spmd.memory_reserved() >= before
    assert torch.spmd.max_memory_reserved() >= torch.spmd.max_memory_allocated()
    torch.spmd.empty_cache()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()  # of pinned memory, which there is none of
    assert x[0, 0].item() == 1


def test_statistics_add_up():
    torch.spmd.reset_accumulated_memory_stats()
    x = torch.ones(1024, 1024, device="spmd")
    allocated()
    stats = torch.spmd.memory_stats()
    assert stats == dict(torch.accelerator.memory_stats())
    for name in ("allocated_bytes", "allocation"):
        now, ever, freed = (stats[f"{name}.all.{s}"] for s in ("current", "allocated", "freed"))
        assert now == ever - freed and now > 0
    assert x[0, 0].item() == 1


def test_what_the_device_is():
    properties = torch.spmd.get_device_properties()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free < total == properties.total_memory
    assert properties.name == torch.spmd.get_device_name() and properties.multi_processor_count > 0
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64} <= dtypes
    assert torch.qint8 not in dtypes
    assert torch.spmd.get_device_capability()["supported_dtypes"] == dtypes
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("spmd")
    assert torch.accelerator.current_device_index() == 0


def test_other_devices_work_as_before():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    for wrapped in (nn.DataParallel(layer), nn.DataParallel(layer, device_ids=[0])):
        assert torch.equal(wrapped(x), layer(x))
