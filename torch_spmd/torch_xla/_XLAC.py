# SPDX-License-Identifier: Apache-2.0
"""The private functions of torch_xla's extension that scripts, libraries and tests call."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

import torch_spmd as spmd
from torch_spmd.torch_xla import (
    _auto_pending,
    _compiled,
    _counts,
    _hlo,
    _manual,
    _marks,
    _tiles,
    backends,
    lowering,
)
from torch_spmd.torch_xla._sharding_type import ShardingType
from torch_spmd.torch_xla._tiles import OpSharding
from torch_spmd.torch_xla.debug import metrics

__all__ = ["OpSharding", "lowering"]

_donated: Any = WeakTensorKeyDictionary()

# --- shardings ---


def _xla_mark_sharding(t: Tensor, sharding: OpSharding) -> None:
    if os.environ.get("XLA_USE_SPMD", "0") in ("0", ""):
        raise RuntimeError("Please enable SPMD via `torch_xla.runtime.use_spmd()`")
    _marks.mark(t, sharding)


def _xla_annotate_custom_sharding(t: Tensor, sharding: OpSharding) -> None:
    _marks.annotate(t, sharding)


def _xla_clear_sharding(t: Tensor) -> None:
    _marks.clear(t)


def _get_xla_sharding_spec(t: Tensor) -> str:
    return _marks.text_of(_looked_at(t))


def _get_xla_sharding_specs(tensors: Sequence[Tensor]) -> list[str]:
    return [_get_xla_sharding_spec(t) for t in tensors]


def _get_xla_op_sharding(t: Tensor) -> OpSharding | None:
    return _marks.sharding_of(_looked_at(t))


def _get_xla_sharding_type(t: Tensor) -> int | None:
    text = _marks.text_of(_looked_at(t))
    if not text:
        return None
    if text == _tiles.MANUAL:
        return int(ShardingType.MANUAL)
    if text == _tiles.REPLICATED:
        return int(ShardingType.REPLICATED)
    return int(_tiles.parse(text).type)


def _unwrapped(t: Any) -> Any:
    return getattr(t, "global_tensor", t)


def _looked_at(t: Any) -> Tensor:
    """The plain tensor; a result of a compiled function has been computed."""
    tensor = _marks.check(_unwrapped(t))
    _compiled.run(tensor)
    return tensor


# --- shards ---


def _get_local_shards(tensors: Sequence[Tensor]) -> list[list[tuple[Tensor, str]]]:
    return [
        [(data, _marks.device_name(device)) for data, _, device, _ in _marks.shards(t)]
        for t in tensors
    ]


def _get_local_shard_replica_and_indices(
    tensors: Sequence[Tensor],
) -> list[list[tuple[int, Any]]]:
    return [_marks.indices(t) for t in tensors]


def _load_local_shards(t: Tensor, data: Sequence[Tensor], devices: Sequence[str]) -> None:
    _marks.load(t, list(data), list(devices))


def _global_tensor_from_cpu_shards(
    shards: Sequence[Tensor], sharding: OpSharding, global_shape: Any = None
) -> Tensor:
    return _marks.from_shards(list(shards), sharding, global_shape)


def _xla_get_cpu_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().cpu() for t in tensors]


class XlaShardingSpec:
    """The sharding that an upload gives a tensor."""

    def __init__(self, t: Tensor, sharding: OpSharding, minibatch: bool = False) -> None:
        self.shape = t.shape
        self.sharding = sharding
        self.minibatch = minibatch


def _xla_tensors_from_aten(
    tensors: Sequence[Tensor], devices: Any, specs: Sequence[XlaShardingSpec | None] | None = None
) -> list[Tensor]:
    """A tensor without a spec is replicated, or free where shardings are found automatically."""
    moved = []
    for position, t in enumerate(tensors):
        on_device = t.detach().to("spmd")
        spec = specs[position] if specs else None
        if spec is not None:
            _check_minibatch(t, spec)
            _marks.mark(on_device, spec.sharding)
        elif not _auto_pending.is_on():
            _marks.mark(on_device, OpSharding.of(None))
        moved.append(on_device)
    return moved


def _check_minibatch(t: Tensor, spec: XlaShardingSpec) -> None:
    """One process has all devices, so its part of a batch is the batch. The batch dimension alone
    may be sharded, over devices that divide it."""
    if not spec.minibatch:
        return
    devices = spmd.config.device_count()
    if t.dim() == 0 or t.shape[0] % devices != 0:
        raise RuntimeError(
            "When minibatch is configured, the per-host batch size must be divisible by local "
            f"runtime device count. Per host input data shape = {tuple(t.shape)}, number of "
            f"devices = {devices}"
        )
    tiles = spec.sharding.tiles(t.dim())
    if any(count > 1 for count in tiles[1:]):
        raise RuntimeError(
            "When minibatch is configured, only the batch dimension may be sharded; the sharding "
            f"is {spec.sharding.text()}"
        )


# --- manual regions ---


def _mark_manual_sharding(t: Tensor, sharding: OpSharding) -> None:
    if _manual.is_manual(t):
        return
    if _marks.state(_marks.check(t)) != _marks.PENDING:
        raise RuntimeError("Marking any data tensors as manual is not supported")
    _manual.mark(t)


def _spmd_full_to_shard_shape(t: Tensor) -> Tensor:
    sharding = _marks.sharding_of(_marks.check(t))
    if sharding is None:
        raise RuntimeError("Input tensor is not sharded")
    return _manual.enter(t, sharding)


def _spmd_shard_to_full_shape(
    t: Tensor, sharding: OpSharding, full_shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    if not _manual.is_manual(t):
        raise RuntimeError("Input tensor is not manual sharded")
    full = _manual.leave(t, sharding, full_shape).to(dtype)
    _marks.annotate(full, sharding)
    _manual.end_region(full)
    return full


def _xla_spmd_all_reduce(
    kind: str, t: Tensor, scale: float, groups: Sequence[Sequence[int]]
) -> Tensor:
    return _manual.all_reduce(kind, t, scale, groups)


def _xla_spmd_reduce_scatter(
    kind: str,
    t: Tensor,
    scale: float,
    dim: int,
    shard_count: int,
    groups: Sequence[Sequence[int]],
) -> Tensor:
    return _manual.reduce_scatter(kind, t, scale, dim, shard_count, groups)


# --- texts ---


def _get_xla_tensors_hlo(tensors: Sequence[Tensor]) -> str:
    return _hlo.text([_unwrapped(t) for t in tensors])


def _get_xla_tensors_text(tensors: Sequence[Tensor]) -> str:
    return _hlo.graph([_unwrapped(t) for t in tensors])


def _get_xla_tensor_debug_info(t: Tensor) -> str:
    return _hlo.debug_info(_looked_at(t))


def _get_graph_hash(tensors: Sequence[Tensor]) -> str:
    """A digest of the pending work that ends in the tensors, of their shardings, and of the
    switches that change the program."""
    text = _hlo.text([_unwrapped(t) for t in tensors])
    switches = (_auto_pending.is_on(), os.environ.get("XLA_AUTO_SPMD_MESH"))
    return hashlib.sha256(f"{switches}{text}".encode()).hexdigest()


# --- counts ---


def _xla_metrics_report() -> str:
    return metrics.metrics_report()


def _short_xla_metrics_report(counter_names: Sequence[str], metric_names: Sequence[str]) -> str:
    return metrics.short_metrics_report(counter_names, metric_names)


def _xla_increment_counter(name: str, value: int) -> None:
    _counts.count(name, value)


# --- the runtime ---


def _xla_set_mat_mul_precision(precision: str) -> None:
    backends.set_mat_mul_precision(precision)


def _xla_get_mat_mul_precision() -> str:
    return backends.get_mat_mul_precision()


def _xla_set_use_full_mat_mul_precision(use_full_mat_mul_precision: bool = True) -> None:
    backends.set_mat_mul_precision("highest" if use_full_mat_mul_precision else "default")


def _set_buffer_donation(t: Tensor, should_donate: bool) -> bool:
    """Notes it of a tensor on the device, without effect: a program takes the place of an input
    that nobody else holds, and of no other. Returns whether the tensor is stored."""
    if _marks.state(_marks.check(t)) == _marks.PENDING:
        return False
    _donated[t] = should_donate
    return True


def _get_buffer_donation(t: Tensor) -> bool:
    return bool(_donated.get(t))


def _xla_set_auto_sharding() -> None:
    _auto_pending.turn_on()


def _xla_get_auto_sharding() -> bool:
    return _auto_pending.is_on()


def _xla_step_marker(
    device: Any = None, devices: Any = (), wait: bool = False, reset_scope: bool = True
) -> None:
    _auto_pending.shard_pending()
    spmd.sync(wait=wait)


def _xla_sync_multi(
    tensors: Sequence[Tensor], devices: Any = (), wait: bool = True, sync_xla_data: bool = True
) -> None:
    _auto_pending.shard_pending()
    spmd.sync(wait=wait)


def _xla_wait_device_ops(devices: Any = ()) -> None:
    spmd.sync(wait=True)


def _xla_get_default_device() -> str:
    return "xla:0"


def _xla_set_default_device(device: Any) -> str:
    return "xla:0"


def _xla_get_default_device_ordinal() -> int:
    return 0


def _xla_real_devices(devices: Any = None) -> list[str]:
    return [_marks.device_name(number) for number in range(spmd.config.device_count())]


def _xla_num_runtime_devices() -> int:
    return spmd.config.device_count()


def _xla_optimization_barrier_(tensors: Sequence[Tensor]) -> None:
    """Has no effect: programs compute a value where the order of ops says."""


# --- a signal that ends the process ---

_signalled = False
_previous: Any = None


def _ensure_xla_coordinator_initialized(
    global_rank: int, world_size: int, master_addr: str, master_port: str = ""
) -> None:
    if world_size != 1:
        raise RuntimeError("torch_spmd runs in one process; there is no coordinator of several")


def _note_signal(*_: Any) -> None:
    global _signalled
    _signalled = True


def _activate_preemption_sync_manager() -> None:
    """From now on SIGTERM does not end the process; `_sync_point_reached` says that it came."""
    global _previous, _signalled
    if _previous is None:
        _signalled = False
        _previous = signal.signal(signal.SIGTERM, _note_signal) or signal.SIG_DFL


def _deactivate_preemption_sync_manager() -> None:
    global _previous
    if _previous is not None:
        signal.signal(signal.SIGTERM, _previous)
        _previous = None


def _sync_point_reached(step: int) -> bool:
    return _signalled
