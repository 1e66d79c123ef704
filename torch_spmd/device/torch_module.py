# SPDX-License-Identifier: Apache-2.0
"""`torch.spmd`: the functions that PyTorch expects of a device's module.

Autocast, checkpoint, fork_rng, DataLoader and manual_seed look here for what they need. There is
one logical device, `spmd:0`; `torch_spmd.config.device_count()` counts the devices of meshes.
"""

from __future__ import annotations

import os
import types
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torch_spmd import _arguments
from torch_spmd.device import hooks, streams


def _check_index(device: Any) -> None:
    if device is None:
        return
    what = f"torch.spmd: device must be 'spmd' or 0; got {_arguments.shown(device)}"
    if isinstance(device, int):
        index: int | None = device
    else:
        try:
            given = torch.device(device)
        except Exception as error:
            raise TypeError(what) from error
        if given.type != "spmd":
            raise ValueError(what)
        index = given.index
    if index not in (None, 0, -1):
        raise RuntimeError(
            f"device index {_arguments.plain(index)} was given, but there is one logical device, "
            "'spmd' (spmd:0); the devices of a mesh are chosen by mark_sharding, not by index"
        )


def _check_stream(caller: str, stream: Any) -> None:
    if not isinstance(stream, torch.Stream) or stream.device.type != "spmd":
        raise TypeError(
            f"torch.spmd.{caller}: stream must be a stream of 'spmd'; got "
            f"{_arguments.shown(stream)}"
        )


class DeviceProperties(NamedTuple):
    """What `torch.spmd.get_device_properties` returns. All virtual devices share the memory."""

    name: str
    total_memory: int
    multi_processor_count: int


class _NoInductor(type):
    """The class that Inductor gets as the device's code generator. Every use raises an error."""

    def _refuse(cls) -> Any:
        raise NotImplementedError(
            "torch_spmd: Inductor has no code generator for 'spmd'; torch.compile(model) records "
            "what it captures, and torch.export.export(…).module() runs what was exported"
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._refuse()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # attributes that inspect, doctest and pickle read
            raise AttributeError(name)
        return cls._refuse()


class _Codegen(metaclass=_NoInductor):
    pass


class DeviceModule(types.ModuleType):
    """The module object; its methods are the module's functions."""

    # Whether registration is complete, and the package's modules at that time (_device.py).
    registered = False
    loaded: ClassVar[dict[str, types.ModuleType]] = {}

    # Read by checkpoint before it saves the random state.
    _initialized = True

    Stream = streams.Stream
    Event = staticmethod(streams.make_event)

    # Called by Inductor (torch/_inductor/codegen/common.py).
    Scheduling = _Codegen
    PythonWrapperCodegen = _Codegen
    CppWrapperCodegen = _Codegen
    WrapperFxCodegen = _Codegen

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def init(self) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return hooks.in_forked_child()

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        _check_index(device)

    class device(nullcontext[None]):
        """A context in which the device with this index is the current one: the only one."""

        def __init__(self, device: Any) -> None:
            _check_index(device)
            super().__init__()

    def current_stream(self, device: Any = None) -> streams.Stream:
        _check_index(device)
        return streams.Stream()

    def default_stream(self, device: Any = None) -> streams.Stream:
        return self.current_stream(device)

    def set_stream(self, stream: Any) -> None:
        _check_stream("set_stream", stream)

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which the stream is the current one, as the device's one stream always is;
        None is no stream."""
        if stream is not None:
            _check_stream("stream", stream)
        return nullcontext(stream)

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        _check_index(device)
        _, total = self.mem_get_info()
        return DeviceProperties(self.get_device_name(), total, os.cpu_count() or 1)

    def get_device_capability(self, device: Any = None) -> dict[str, Any]:
        """The dtypes that the device has ops for, as `torch.accelerator` has it."""
        _check_index(device)
        return dict(torch.accelerator.get_device_capability())

    def get_device_name(self, device: Any = None) -> str:
        from torch_spmd import _C

        _check_index(device)
        return f"spmd on {_C.backend_name()}"

    def synchronize(self, device: Any = None) -> None:
        from torch_spmd import _C
        from torch_spmd.device import profiler

        _check_index(device)
        if not profiler.has_waited():
            _C.sync(True)

    def manual_seed(self, seed: int) -> None:
        from torch_spmd import _C

        _C.manual_seed(_arguments.seed("manual_seed", seed))

    def manual_seed_all(self, seed: int) -> None:
        self.manual_seed(seed)

    def initial_seed(self) -> int:
        from torch_spmd import _C

        return int(_C.initial_seed())

    def seed(self) -> int:
        """Seeds from the system's entropy and returns the seed."""
        seed = torch.Generator().seed()
        self.manual_seed(seed)
        return seed

    def get_rng_state(self, device: Any = 0) -> Tensor:
        from torch_spmd import _C

        _check_index(device)
        state: Tensor = _C.get_rng_state()
        return state

    def set_rng_state(self, new_state: Tensor, device: Any = 0) -> None:
        from torch_spmd import _C

        _check_index(device)
        if not isinstance(new_state, Tensor) or new_state.dtype != torch.uint8:
            raise TypeError(
                "set_rng_state: new_state must be what get_rng_state returned, a tensor of bytes; "
                f"got {_arguments.shown(new_state)}"
            )
        if new_state.layout != torch.strided or new_state.device.type != "cpu":
            raise ValueError(
                f"set_rng_state: new_state must be on 'cpu'; got {_arguments.shown(new_state)}"
            )
        _C.set_rng_state(new_state)

    def get_rng_state_all(self) -> list[Tensor]:
        return [self.get_rng_state()]

    def set_rng_state_all(self, new_states: list[Tensor]) -> None:
        what = "a list with the state of the one device"
        states = _arguments.items("set_rng_state_all", "new_states", new_states, what)
        if len(states) != 1:
            raise ValueError(
                f"set_rng_state_all: new_states must be {what}; got {_arguments.shown(new_states)}"
            )
        self.set_rng_state(states[0])

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        return True

    def empty_cache(self) -> None:
        """Returns the memory that is kept for the next tiles to the system."""
        torch.accelerator.empty_cache()

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        _check_index(device)
        return dict(torch.accelerator.memory_stats())

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes of all tensors on the device in this process: of all virtual devices together,
        where replicas share one tile. What is pending has no memory yet."""
        return int(self.memory_stats(device)["allocated_bytes.all.current"])

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that were allocated since the last reset_peak_memory_stats, values within
        programs included."""
        return int(self.memory_stats(device)["allocated_bytes.all.peak"])

    def memory_reserved(self, device: Any = None) -> int:
        """Allocated bytes and those that are kept for the next tiles."""
        return int(self.memory_stats(device)["reserved_bytes.all.current"])

    def max_memory_reserved(self, device: Any = None) -> int:
        return int(self.memory_stats(device)["reserved_bytes.all.peak"])

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        _check_index(device)
        torch.accelerator.reset_peak_memory_stats()

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        _check_index(device)
        torch.accelerator.reset_accumulated_memory_stats()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes of the machine, whose memory all virtual devices share."""
        _check_index(device)
        free, total = torch.accelerator.get_memory_info()
        return int(free), int(total)
