# SPDX-License-Identifier: Apache-2.0
"""`xm`: the device, steps, saving, and collectives of a world that has one process."""

from __future__ import annotations

import contextlib
import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

import torch_spmd as spmd
from torch_spmd import torch_xla
from torch_spmd._compat import pytree
from torch_spmd.torch_xla import _XLAC, runtime

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR = "sum", "mul", "and", "or"
REDUCE_MIN, REDUCE_MAX = "min", "max"

XLA_LIB: Any = None
_step_closures: list[Callable[[], Any]] = []

# --- devices ---


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    return torch_xla.device(n)


def is_xla_tensor(tensor: Tensor) -> bool:
    return tensor.device.type == "spmd"


def get_xla_supported_devices(
    devkind: str | None = None, max_devices: int | None = None
) -> list[str]:
    return ["xla:0"]


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """The name of the logical device's first device, for each device given."""
    names = _XLAC._xla_real_devices()
    return names if devices is None else [names[torch.device(d).index or 0] for d in devices]


def xla_device_hw(device: Any) -> str:
    return runtime.device_type()


def xla_device_kind(device: Any = None) -> str:
    return runtime.device_type()


def xla_replication_devices(devices: Sequence[Any] | None = None) -> list[str]:
    return xla_real_devices(devices)


def set_replication(device: Any, devices: Sequence[Any] | None) -> None:
    """Does nothing: a process has all devices."""


def get_local_ordinal() -> int:
    return 0


def get_ordinal() -> int:
    return 0


def xrt_world_size() -> int:
    return 1


def is_master_ordinal(local: bool = True) -> bool:
    return True


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    print(*args, file=fd or sys.stdout, flush=flush)


# --- steps ---


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    torch_xla.sync(wait=wait, reset_scope=reset_scope)


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    _XLAC._xla_wait_device_ops(devices)


def unlazy(tensors: Sequence[Tensor]) -> None:
    _XLAC._xla_sync_multi(tensors)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """`optimizer.step()`. Gradients of a sharded batch are whole: the compiler reduces them."""
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        torch_xla.sync()
    return loss


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Any = None, pin_layout: bool = True
) -> None:
    """Does nothing: the world has one process, and gradients are reduced over the mesh."""


def add_step_closure(
    closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False
) -> None:
    """Calls `closure(*args)` after the next `torch_xla.sync()`."""
    _step_closures.append(lambda: closure(*args))


def _run_step_closures() -> None:
    closures = _step_closures[:]
    _step_closures.clear()
    for closure in closures:
        closure()


def optimization_barrier_(tensors: Sequence[Tensor]) -> None:
    _XLAC._xla_optimization_barrier_(tensors)


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of an optimizer's parameters."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad.data for p in parameters if p.grad is not None]


# --- collectives: of one process, so each is its argument ---


def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """The sum over processes, which are one: scaled, in place for a list."""
    if isinstance(inputs, Tensor):
        return inputs * scale if scale != 1.0 else inputs.clone()
    with torch.no_grad():
        for tensor in inputs:
            if scale != 1.0:
                tensor.mul_(scale)
    return None


def all_gather(
    value: Any,
    dim: int = 0,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """What all processes have, one after another: of one process, the value itself."""
    if output is not None:
        for place, given in zip(output, value) if isinstance(value, list) else [(output, value)]:
            place.copy_(given)
        return output
    return value


def all_gather_bucketized(
    input_list: Any,
    dim: int = 0,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """As `all_gather` of the list."""
    return all_gather(input_list, dim, groups, output)


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """The input times `scale`, or each of a list, also into `output`.

    Errors: ValueError unless `shard_count` is 1, the number of processes."""
    if shard_count != 1:
        raise ValueError(
            f"reduce_scatter: shard_count is {shard_count}, but there is one process; mark tensors "
            "with xs.mark_sharding instead"
        )
    if isinstance(input, Tensor):
        result = input * scale
        return output.copy_(result) if output is not None else result
    results = [tensor * scale for tensor in input]
    if output is None:
        return results
    for place, given in zip(output, results):
        place.copy_(given)
    return output


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """As `reduce_scatter` of the list."""
    return reduce_scatter(reduce_type, input_list, scale, scatter_dim, shard_count, groups, output)


def all_to_all(
    value: Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Any = None,
    pin_layout: bool = True,
) -> Tensor:
    """Errors: ValueError unless `split_count` is 1, the number of processes."""
    if split_count != 1:
        raise ValueError(
            f"all_to_all: split_count is {split_count}, but there is one process; mark tensors "
            "with xs.mark_sharding instead"
        )
    return value


def collective_permute(value: Tensor, pairs: Sequence[Sequence[int]]) -> Tensor:
    """The value if process 0 sends it to itself, else zeros: nothing else sends to it."""
    return value if [0, 0] in [list(pair) for pair in pairs] else torch.zeros_like(value)


def all_reduce_bucketized_gradients(
    gradients: Sequence[Tensor],
    scale: float = 1.0,
    groups: Any = None,
    pin_layout: bool = True,
    bucket_cap_mb: int = 0,
) -> None:
    """As `all_reduce` of the list."""
    all_reduce(REDUCE_SUM, list(gradients), scale)


def collective_broadcast(
    tensors: Sequence[Tensor], root_ordinal: int = 0, groups: Any = None, pin_layout: bool = True
) -> None:
    """Does nothing: there is one process."""


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Does nothing: there is one process."""


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Any = (0,)) -> Any:
    """`target(*data)`, whose tensors are host copies, if process 0 is among the ordinals."""
    if 0 not in ([ordinals] if isinstance(ordinals, int) else ordinals):
        return None
    copies = _maybe_convert_to_cpu(data)
    return target(*copies) if isinstance(copies, tuple) else target(copies)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    return [payload]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[..., Any]) -> Any:
    return reduce_fn([_maybe_convert_to_cpu(data)])


# --- data ---


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """`torch.save` of host copies."""
    torch.save(_maybe_convert_to_cpu(data), file_or_path)


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """A tree with host copies of its tensors. Other objects are kept; tied tensors stay tied."""
    if not convert:
        return data
    copies: dict[int, Tensor] = {}

    def on_host(value: Any) -> Any:
        if not isinstance(value, Tensor) or not is_xla_tensor(value):
            return value
        if id(value) not in copies:
            copies[id(value)] = getattr(value, "global_tensor", value).detach().cpu()
        return copies[id(value)]

    return _mapped(data, on_host)


def _mapped(data: Any, function: Callable[[Any], Any]) -> Any:
    result = pytree.tree_map(function, data)
    if isinstance(data, set):
        result = {function(value) for value in data}
    elif not isinstance(data, (Tensor, list, tuple, dict)) and hasattr(data, "__dict__"):
        result = copy.copy(data)
        for name, value in vars(data).items():
            setattr(result, name, _mapped(value, function))
    return result


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """The tree of tensors on the device, each with the sharding if its rank is the spec's.

    Errors: RuntimeError for a minibatch that the devices do not divide.
    """
    if isinstance(datas, Tensor):
        datas = [datas]

    def send(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            return value
        spec = input_sharding.xla_spec(value) if input_sharding else None
        return _XLAC._xla_tensors_from_aten([value], [str(device)], [spec])[0]

    return pytree.tree_map(send, datas)


# --- random numbers, memory ---


def set_rng_state(seed: int, device: str | None = None) -> None:
    spmd.config.manual_seed(seed)


def get_rng_state(device: str | None = None) -> int:
    """The seed; how many numbers were drawn since is not part of it."""
    return int(torch.spmd.initial_seed())  # type: ignore[attr-defined]


@contextlib.contextmanager
def fork_rng(device: str | None = None, enabled: bool = True) -> Iterator[None]:
    if not enabled:
        yield
        return
    state = torch.spmd.get_rng_state()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.spmd.set_rng_state(state)  # type: ignore[attr-defined]


class MemoryInfo(TypedDict):
    bytes_used: int
    bytes_limit: int


def get_memory_info(device: Any = None) -> MemoryInfo:
    """Errors: RuntimeError: virtual devices share the host's memory; spmd.debug.memory() has the
    peak of a program."""
    raise RuntimeError(
        "MemoryInfo not supported for SPMD virtual device; spmd.debug.memory() shows what the last "
        "program needs per device"
    )


class RateTracker:
    """Samples per second, smoothed."""

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._smooth = 0.4 if smooth_factor is None else smooth_factor
        self._start = self._since = time.time()
        self._total = self._count = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        self._count += count

    def rate(self) -> float:
        now = time.time()
        if now <= self._since:
            return self._rate or 0.0
        current = self._count / (now - self._since)
        if self._rate is not None:
            current = (1 - self._smooth) * current + self._smooth * self._rate
        self._total, self._count = self._total + self._count, 0.0
        self._since, self._rate = now, current
        return current

    def global_rate(self) -> float:
        passed = time.time() - self._start
        return (self._total + self._count) / passed if passed > 0 else 0.0
