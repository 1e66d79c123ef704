# SPDX-License-Identifier: Apache-2.0
"""Finds the other processes of a torch.distributed job, and ends together with them.

Imported when the device is first used, by csrc/python/processes.cc.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import sys
from multiprocessing import util
from typing import Any

_joined = False
_rank = 0
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def connect(timeout: float) -> tuple[Any, Any, Any, Any] | None:
    """Three groups of this package's own, for scripts, programs and checkpoints, and a store.

    They are of the processes of the default group; if there is none, it is made from torchrun's
    environment. None if there is one process.
    """
    global _joined, _rank
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if not dist.is_available():
        return None
    if not dist.is_initialized():
        if any(name not in os.environ for name in _VARIABLES) or int(os.environ["WORLD_SIZE"]) < 2:
            return None
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
    if dist.get_world_size() < 2 or dist.get_backend() == "fake":
        return None
    # Waits end by themselves after `timeout`, with words of their own: the groups wait longer.
    longer = datetime.timedelta(seconds=timeout + 10)
    groups = [
        dist.new_group(backend="gloo", timeout=longer, group_desc=f"torch_spmd {use}")
        for use in ("scripts", "programs", "checkpoints")
    ]
    store = distributed_c10d.PrefixStore("torch_spmd", distributed_c10d._get_default_store())
    _joined, _rank = True, dist.get_rank()
    if multiprocessing.parent_process() is not None:
        # Children of multiprocessing end without atexit.
        util.Finalize(None, leave, exitpriority=100)
    return groups[0], groups[1], groups[2], store


def leave() -> None:
    """Called when the script has ended: waits for the others, or tells them why it has ended."""
    global _joined
    if not _joined:
        return
    _joined = False
    import torch.distributed as dist

    from torch_spmd import _C

    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        text = str(error).strip().split("\n")[0]
        _C.leave_because(
            f"process {_rank} has ended with {type(error).__name__}{': ' if text else ''}{text}"
        )
    else:
        try:
            _C.leave()
        except Exception as failure:
            print(f"torch_spmd: {failure}", file=sys.stderr, flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
