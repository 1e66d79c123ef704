# SPDX-License-Identifier: Apache-2.0
"""Checkpoints by step: when one is due, how many are kept, in the background or not."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import pickle
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from torch_spmd import torch_xla
from torch_spmd.torch_xla import _XLAC, runtime
from torch_spmd.torch_xla.core import xla_model
from torch_spmd.torch_xla.experimental.distributed_checkpoint._helpers import (
    _sharded_cpu_state_dict,
)
from torch_spmd.torch_xla.experimental.distributed_checkpoint.planners import (
    SPMDLoadPlanner,
    SPMDSavePlanner,
)

_METADATA = ".manager_metadata"  # in the folder of each checkpoint


def _fsspec_filesystem() -> Any:
    """PyTorch's module of this name, whose name is private before PyTorch 2.15."""
    name = "torch.distributed.checkpoint.{}fsspec_filesystem"
    found = importlib.util.find_spec(name.format(""))
    return importlib.import_module(name.format("" if found else "_"))


@dataclass
class _CheckpointMetadata:
    step: int
    ts: datetime


class CheckpointManager:
    """One folder per step below `path`, which may be any place that fsspec knows.

    Args:
        path: the folder of all checkpoints.
        save_interval: a step is saved if this divides it.
        max_to_keep: how many checkpoints are kept, the last ones written; 0 means all.
        max_pending_async: how many `save_async` may wait to be written before it blocks.
        num_of_threads: of the writer.
        process_group: who writes together; a new group of all by default.
        chkpt_on_preemption: a step is saved, too, after the process has got SIGTERM.

    Errors: AssertionError without a process group (`torch.distributed.init_process_group("gloo",
    …)` with one process will do) and for numbers that are not positive.
    """

    def __init__(
        self,
        path: str,
        save_interval: int,
        max_to_keep: int | None = 0,
        max_pending_async: int | None = 1,
        num_of_threads: int | None = 1,
        process_group: Any = None,
        chkpt_on_preemption: bool = True,
    ) -> None:
        assert dist.is_initialized(), "A process group is required."
        assert save_interval > 0, "save_interval must be positive"
        assert max_pending_async is not None and max_pending_async > 0, (
            "max_pending_async must be positive"
        )
        assert max_to_keep is not None and max_to_keep >= 0, "max_to_keep must be non-negative"
        self.base_path = os.path.join(path, "")
        self.save_interval = save_interval
        self.max_to_keep = max_to_keep
        self.num_of_threads = num_of_threads or 1
        self.chkpt_on_preemption = chkpt_on_preemption
        self.pg: Any = process_group or dist.new_group()
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._places = threading.Semaphore(max_pending_async)
        self._futures: list[Future[None]] = []
        self._writing = threading.Lock()
        self._tracked = self._load_tracked()
        if chkpt_on_preemption:
            _XLAC._ensure_xla_coordinator_initialized(
                runtime.process_index(), runtime.process_count(), runtime.get_master_ip()
            )
            _XLAC._activate_preemption_sync_manager()

    def _load_tracked(self) -> list[_CheckpointMetadata]:
        """The checkpoints that are there, oldest first."""
        from fsspec.core import url_to_fs

        files, folder = url_to_fs(self.base_path)
        if not files.exists(folder):
            files.makedirs(folder)
            return []
        tracked = []
        for path in files.ls(folder, detail=False):
            try:
                with files.open(os.path.join(path, _METADATA), "rb") as file:
                    tracked.append(pickle.load(file))
            except (OSError, pickle.PickleError, EOFError, ImportError, AttributeError):
                logging.warning("Ignoring invalid checkpoint: %s", path)
        return sorted(tracked, key=lambda metadata: metadata.ts)

    def _path(self, step: int) -> str:
        return os.path.join(self.base_path, str(step))

    def _delete(self, step: int) -> None:
        from fsspec.core import url_to_fs

        files, folder = url_to_fs(self._path(step))
        if dist.get_rank(self.pg) == 0 and files.exists(folder):
            files.rm(folder, recursive=True)

    def _save(self, step: int, state_dict: Any) -> None:
        import fsspec

        with self._writing:
            self._delete(step)
            self._tracked = [m for m in self._tracked if m.step != step]
            writer = _fsspec_filesystem().FsspecWriter(
                self._path(step), thread_count=self.num_of_threads, per_thread_copy_ahead=0
            )
            save(
                state_dict,
                storage_writer=writer,
                planner=SPMDSavePlanner(),
                process_group=self.pg,
            )
            metadata = _CheckpointMetadata(step, datetime.now())
            self._tracked.append(metadata)
            if dist.get_rank(self.pg) == 0:
                with fsspec.open(os.path.join(self._path(step), _METADATA), "wb") as file:
                    pickle.dump(metadata, file)
                while 0 < self.max_to_keep < len(self._tracked):
                    self._delete(self._tracked.pop(0).step)

    def should_save(self, step: int) -> bool:
        """Whether `save_interval` divides the step, or SIGTERM has come."""
        preempted = self.chkpt_on_preemption and self.reached_preemption(step)
        if preempted:
            logging.warning("SIGTERM has come; step %s is saved", step)
        return step % self.save_interval == 0 or preempted

    def save(self, step: int, state_dict: Any, force: bool | None = False) -> bool:
        """Writes the state dict if the step should be saved. Returns whether it was."""
        if not (self.should_save(step) or force):
            return False
        self._wait_for_data()
        self._save(step, state_dict)
        return True

    def save_async(self, step: int, state_dict: Any, force: bool | None = False) -> bool:
        """As `save`: copies the state dict to the host and writes it in the background. What fails
        there is raised by `join`."""
        if not (self.should_save(step) or force):
            return False
        self._wait_for_data()
        copied = _sharded_cpu_state_dict(state_dict)
        self._places.acquire()
        future = self._pool.submit(self._save, step, copied)
        future.add_done_callback(lambda _: self._places.release())
        self._futures.append(future)
        return True

    def _wait_for_data(self) -> None:
        torch_xla.sync()
        xla_model.wait_device_ops()

    def restore(self, step: int, state_dict: Any) -> None:
        """Reads a step into the tensors of the state dict, in place.

        Errors: AssertionError for a step that is not there.
        """
        steps = self.all_steps()
        assert step in steps, f"Cannot restore from untracked step {step}. Valid steps are: {steps}"
        load(
            state_dict,
            storage_reader=_fsspec_filesystem().FsspecReader(self._path(step)),
            planner=SPMDLoadPlanner(),
            process_group=self.pg,
        )

    def all_steps(self) -> list[int]:
        """The steps that are there, in order."""
        return sorted(metadata.step for metadata in self._tracked)

    def join(self) -> None:
        """Waits until everything is written. Errors: the first that writing raised."""
        futures, self._futures = self._futures, []
        for future in futures:
            future.result()

    def reached_preemption(self, step: int) -> bool:
        """Whether SIGTERM has come. Errors: AssertionError without `chkpt_on_preemption`."""
        assert self.chkpt_on_preemption, (
            "Preemption detection not enabled; create the manager with chkpt_on_preemption=True"
        )
        return _XLAC._sync_point_reached(step)
