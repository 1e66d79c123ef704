# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint with tensors of the device: `torch_spmd.integrations.dcp`.

It asks a tensor for its parts, as it asks a DTensor (torch_spmd/state/dcp_parts.py). What
`async_save` keeps until it is written are snapshots on the device, of which the thread that writes
reads part after part; PyTorch would copy tensors to the host, each as a whole.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import staging

from torch_spmd import _compat
from torch_spmd._replace import replace
from torch_spmd.state import dcp_parts, parts, writing


@functools.cache
def install() -> None:
    """Replaces what is needed, once per process."""
    for name in _ForOurs.NAMES:
        replace(Tensor, name, _ForOurs(name), "dcp()")
    dcp_parts.watch()
    for stager in (staging.DefaultStager, staging.BlockingAsyncStager):
        replace(stager, "stage", _without_ours(stager.stage), "dcp()")
    in_process = _compat.dcp_process_executor()
    replace(in_process, "execute_save", _with_host_copies(in_process.execute_save), "dcp()")


class _ForOurs:
    """A method by which torch.distributed.checkpoint asks a tensor for its parts. Tensors have it
    if they are on the device."""

    NAMES = ("__create_write_items__", "__create_chunk_list__", "__get_tensor_shard__")

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, tensor: Tensor | None, kind: type) -> Any:
        if tensor is None:
            return self  # torch.compile asks the class for all that dir() names
        if tensor.device.type == "spmd":
            return functools.partial(getattr(dcp_parts, self._name.strip("_")), tensor)
        raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}")

    def __set__(self, tensor: Tensor, value: Any) -> None:
        """As of a read-only property: torch.overrides takes every descriptor for a property."""
        raise AttributeError(f"attribute {self._name!r} of a tensor is not writable")


def _each(state: Any, ours: Callable[[Tensor], Any]) -> Any:
    """The state dict with something in the place of each tensor of the device."""
    if isinstance(state, Tensor):
        return ours(state) if parts.is_ours(state) else state
    if type(state) is dict:
        return {key: _each(item, ours) for key, item in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_each(item, ours) for item in state)
    return state


def _without_ours(stage: Any) -> Any:
    @functools.wraps(stage)
    def staged(self: Any, state_dict: Any, **options: Any) -> Any:
        # Where copies are made, a text that nobody else has stands for each.
        token = uuid.uuid4().hex
        tensors: dict[str, Tensor] = {}
        numbers: dict[int, str] = {}

        def place(tensor: Tensor) -> str:
            name = numbers.setdefault(id(tensor), f"{token} {len(tensors)}")
            tensors[name] = tensor
            return name

        others = _each(state_dict, place)
        if not tensors:
            return stage(self, state_dict, **options)
        with torch.no_grad():
            copies = writing.snapshot(tensors)
        result = stage(self, others, **options)
        if not isinstance(result, Future):
            return _put_back(result, copies)
        later: Future[Any] = Future()

        def end(done: Future[Any]) -> None:
            try:
                later.set_result(_put_back(done.result(), copies))
            except BaseException as error:
                later.set_exception(error)

        result.add_done_callback(end)
        return later

    return staged


def _put_back(state: Any, copies: dict[str, Tensor]) -> Any:
    if isinstance(state, str):
        return copies.get(state, state)
    if isinstance(state, dict):
        return {key: _put_back(item, copies) for key, item in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_put_back(item, copies) for item in state)
    return state


def _with_host_copies(execute: Any) -> Any:
    """Another process writes: it gets whole tensors, since it has no devices."""

    @functools.wraps(execute)
    def executed(self: Any, staged: Any, **options: Any) -> Any:
        if not isinstance(staged, Future):
            staged = _each(staged, Tensor.cpu)
        return execute(self, staged, **options)

    return executed
