# SPDX-License-Identifier: Apache-2.0
"""Loaders whose batches are on the device, sharded.

A thread reads batches from the loader ahead of time. They become tensors on the device where the
caller asks for the next one: that copies nothing yet, and keeps the order of a program's ops the
same in every step.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torch_spmd import torch_xla
from torch_spmd.torch_xla.core import xla_model
from torch_spmd.torch_xla.debug import profiler

_END = object()


class ParallelLoader:
    """Reads ahead and shards.

    Args:
        cpu_loader: yields trees of tensors.
        devices: the one logical device.
        batches_per_execution: after how many batches what is pending runs.
        loader_prefetch_size: how many batches are read ahead.
        input_sharding: one ShardingSpec for all tensors of its rank, or one by key of a batch that
            is a dict, or None.

    The other arguments are accepted and have no effect.
    """

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Any,
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
    ) -> None:
        self._cpu_loader = cpu_loader
        self._devices = [torch.device(device) for device in devices]
        self._batches_per_execution = batches_per_execution
        self._input_sharding = input_sharding
        self._queue: queue.Queue[Any] = queue.Queue(max(1, loader_prefetch_size))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def batches_per_execution(self) -> int:
        return self._batches_per_execution

    def per_device_loader(self, device: Any) -> PerDeviceLoader:
        return PerDeviceLoader(self, device)

    def per_device_samples(self) -> int:
        return len(self._cpu_loader)  # type: ignore[arg-type]

    def _read(self) -> None:
        try:
            for batch in self._cpu_loader:
                if not self._put((batch, None)):
                    return
            self._put((_END, None))
        except BaseException as error:  # raised where the batch is asked for
            self._put((_END, error))

    def _put(self, item: Any) -> bool:
        while not self._done.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def next_item(self, device: Any) -> Any:
        """The next batch on the device; None at the end. Errors: those of the loader, and as
        `send`."""
        if self._done.is_set():
            return None
        batch, error = self._queue.get()
        if batch is not _END:
            return self.send(batch, device)
        self._done.set()
        if error is not None:
            raise error
        return None

    def send(self, batch: Any, device: Any) -> Any:
        """Errors: ValueError for a batch that is no dict where shardings are given by key, KeyError
        for a key without one."""
        sharding = self._input_sharding
        if not isinstance(sharding, dict):
            return xla_model.send_cpu_data_to_device([batch], device, sharding)[0]
        if not isinstance(batch, dict):
            raise ValueError("input batch should be a dict when input sharding is a dict.")
        missing = [key for key in batch if key not in sharding]
        if missing:
            raise KeyError(f"Keys: {missing} are missing from input_sharding.")
        return {
            key: xla_model.send_cpu_data_to_device([tensor], device, sharding[key])[0]
            for key, tensor in batch.items()
        }

    def close(self) -> None:
        self._done.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


class PerDeviceLoader:
    """The iterator over batches on the device. Each step runs what is pending."""

    def __init__(self, loader: ParallelLoader, device: Any) -> None:
        self._loader = loader
        self._device = device
        self._yielded = 0

    def __iter__(self) -> PerDeviceLoader:
        return self

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __next__(self) -> Any:
        if profiler.get_tracer_marked_step():
            profiler.set_tracer_marked_step(False)  # StepTrace has run what was pending
        elif self._yielded % self._loader.batches_per_execution == 0:
            torch_xla.sync()
        self._yielded += 1
        item = self._loader.next_item(self._device)
        if item is None:
            torch_xla.sync()
            raise StopIteration
        return item

    next = __next__


class MpDeviceLoader:
    """A loader whose batches are on the device. The keyword arguments are ParallelLoader's.

    Example:
        >>> import torch_spmd.torch_xla.install
        >>> import torch, torch_xla.distributed.parallel_loader as pl
        >>> loader = pl.MpDeviceLoader([torch.ones(8, 2)], "xla")
        >>> [tuple(batch.shape) for batch in loader]
        [(8, 2)]
    """

    def __init__(self, loader: Iterable[Any], device: Any, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs
        self._parallel_loader: ParallelLoader | None = None

    def __iter__(self) -> Iterator[Any]:
        self.close()
        self._parallel_loader = ParallelLoader(
            self._loader, [self._device], **self._parallel_loader_kwargs
        )
        return self._parallel_loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def dataset(self) -> Any:
        """The dataset of the loader, for which accelerate asks when it saves its state."""
        return self._loader.dataset  # type: ignore[attr-defined]

    def close(self) -> None:
        if self._parallel_loader is not None:
            self._parallel_loader.close()
            self._parallel_loader = None
