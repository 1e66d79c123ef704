# SPDX-License-Identifier: Apache-2.0
"""Finds the other processes of a torch.distributed job, and ends together with them.

Imported when the device is first used, by csrc/python/processes.cc.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import multiprocessing
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

from torch_spmd import _compat, _loading
from torch_spmd._replace import replace

_joined = False
_told = False
_rank = 0
_store: Any = None  # this package's own, of a job that was joined
_timeout = datetime.timedelta()  # of its groups
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _share_memory() -> bool:
    given = os.environ.get("SPMD_SHARED_MEMORY") or "1"
    if given not in ("0", "1"):
        raise ValueError(f"SPMD_SHARED_MEMORY is {given!r}; it may be 0 or 1")
    return given == "1"


def connect(timeout: float) -> tuple[Any, Any, Any, Any, bool] | None:
    """Three groups of this package's own, for scripts, programs and checkpoints, a store, and
    whether processes of one host may exchange through memory.

    They are of the processes of the default group; if there is none, it is made from torchrun's
    environment. None if there is one process.
    """
    global _joined, _rank, _store, _timeout
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
    from torch.distributed.rendezvous import rendezvous

    if not dist.is_available():
        return None
    if not dist.is_initialized():
        if any(name not in os.environ for name in _VARIABLES) or int(os.environ["WORLD_SIZE"]) < 2:
            return None
        wait = datetime.timedelta(seconds=timeout)
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        try:
            # Process 0, which may keep the store, need not wait in it for the others: the
            # handshake says who is missing.
            store, _, _ = next(rendezvous("env://?world_size=1", timeout=wait))
        except dist.DistError as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise TimeoutError(
                f"process {rank} finds no store at {where} within {timeout:g} s, which process 0 "
                f"or torchrun's agent keeps; has process 0 started? {_first_line(error)}"
            ) from error
        with _naming_the_missing(store, rank, size):
            name = _agree_on_name(store, rank, size, timeout)
        first = distributed_c10d.PrefixStore(name, store)
        with _naming_the_missing(first, rank, size):
            dist.init_process_group("gloo", store=first, rank=rank, world_size=size, timeout=wait)
        _name_the_maker_of_the_group()
    if dist.get_world_size() < 2 or dist.get_backend() == "fake":
        return None
    # Waits end by themselves after `timeout`, with words of their own: the groups wait longer.
    _timeout = datetime.timedelta(seconds=timeout + 10)
    default, groups_made = _compat.default_group()
    _, store = groups_made[default]
    rank, size = dist.get_rank(), dist.get_world_size()
    with _naming_the_missing(store, rank, size):
        name = _agree_on_name(store, rank, size, timeout)
    _store = distributed_c10d.PrefixStore(name, store)
    groups = [_new_group("gloo", use) for use in ("scripts", "programs", "checkpoints")]
    _joined, _rank = True, rank
    register: Any = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # the interpreter ends
            register(_tell_before_a_checkpoint)
    if multiprocessing.parent_process() is not None:
        # Children of multiprocessing end without atexit.
        util.Finalize(None, leave, exitpriority=100)
    return groups[0], groups[1], groups[2], _store, _share_memory()


def _name_the_maker_of_the_group() -> None:
    """The default group was made here. A script that makes it later is told so, where PyTorch would
    say that it makes the group twice."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    made, line = dist.group.WORLD, _line_of_the_script()
    init = dist.init_process_group

    @functools.wraps(init)
    def init_process_group(*args: Any, **options: Any) -> Any:
        if dist.group.WORLD is made and made is not None:
            raise ValueError(
                "init_process_group: torch_spmd has made the default group from torchrun's "
                f"environment, when the device was first used ({line}); call init_process_group "
                "before that line, or leave it out"
            )
        return init(*args, **options)

    why = "its error names the line that made the default group"
    for module in (dist, distributed_c10d):
        replace(module, "init_process_group", init_process_group, why)


def _line_of_the_script() -> str:
    """The line that runs, outside of PyTorch and this package: "train.py:12"."""
    import torch

    libraries = tuple(
        f"{Path(file).parent}{os.sep}" for file in (_loading.__file__, str(torch.__file__))
    )
    frame: Any = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _new_group(backend: str, use: str) -> Any:
    """A group of all processes, which find each other through this package's own store."""
    import torch.distributed as dist

    default, made = _compat.default_group()
    theirs = made[default]
    made[default] = (theirs[0], _store)
    try:
        with _naming_the_missing(_store, dist.get_rank(), dist.get_world_size()):
            return dist.new_group(backend=backend, timeout=_timeout, group_desc=f"torch_spmd {use}")
    finally:
        made[default] = theirs


def gpu(index: int) -> tuple[str, str, bool, bool]:
    """A name that no other GPU has, its kind, and whether NCCL is to be used where processes share
    a GPU (`SPMD_NCCL=1`), and at all (not with `SPMD_NCCL=0`)."""
    import torch

    given = os.environ.get("SPMD_NCCL") or ""
    if given not in ("", "0", "1"):
        raise ValueError(f"SPMD_NCCL is {given!r}; it may be 0 or 1")
    facts = torch.cuda.get_device_properties(index)
    kind = f"{facts.name}, capability {facts.major}.{facts.minor}"
    has_nccl = given != "0" and torch.distributed.is_nccl_available()
    return str(facts.uuid), kind, given == "1", has_nccl


def group_of_gpus() -> Any:
    """The group through which tiles go from GPU to GPU. Collective.

    Its backend is ProcessGroupNCCL, which `csrc/runtime/peers_c10d.cc` is written for. Since
    PyTorch 2.15 "nccl" is another one, which takes the GPU from LOCAL_RANK and has watches of its
    own, and "nccl-legacy" is this one.
    """
    from importlib.metadata import entry_points

    names = {backend.name for backend in entry_points(group="torch.distributed.backends")}
    return _new_group("nccl-legacy" if "nccl-legacy" in names else "nccl", "tiles")


@contextlib.contextmanager
def _naming_the_missing(store: Any, rank: int, size: int) -> Iterator[None]:
    """What PyTorch raises here, in all processes that are there, names none that is not. Those that
    are there say so in the store, and wait a second for the others."""
    try:
        yield
    except RuntimeError as error:
        missing = [0] if rank > 0 else list(range(1, size))  # if there is no store any more
        with contextlib.suppress(RuntimeError):
            store.set(f"torch_spmd/failed/{rank}", "1")
            for _ in range(100):
                missing = [r for r in range(size) if not _value(store, f"torch_spmd/failed/{r}")]
                if not missing:
                    break
                time.sleep(0.01)
        who = " and ".join(f"process {r}" for r in missing) or "the others"
        raise RuntimeError(
            f"process {rank} cannot join {who}, as when a process is killed while it starts: "
            f"{_first_line(error)}"
        ) from error


def _agree_on_name(store: Any, rank: int, size: int, timeout: float) -> str:
    """A name that no earlier life of the job has used. The agents of torchrun keep one store for
    all of them, and a group must not find the addresses of processes that have ended.

    Each process greets process 0 with a word of its own until the answer has that word in it."""
    word = uuid.uuid4().hex
    end = time.monotonic() + timeout
    missing = set(range(1, size)) if rank == 0 else {0}
    if rank > 0:
        store.set(f"torch_spmd/greeting/{rank}", word)
    while missing:
        for r in sorted(missing):
            if rank > 0:
                answer = _value(store, f"torch_spmd/answer/{rank}").split()
                if answer[:1] == [word]:
                    store.set(f"torch_spmd/heard/{rank}", answer[1])
                    return f"torch_spmd/{answer[1]}"
            elif _value(store, f"torch_spmd/heard/{r}") == word:
                missing.discard(r)
            elif greeting := _value(store, f"torch_spmd/greeting/{r}"):
                store.set(f"torch_spmd/answer/{r}", f"{greeting} {word}")
        if time.monotonic() > end:
            who = " and ".join(f"process {r}" for r in sorted(missing))
            raise TimeoutError(f"process {rank} has waited {timeout:g} s for {who} to start")
        if missing:
            time.sleep(0.005)
    return f"torch_spmd/{word}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _value(store: Any, key: str) -> str:
    return str(store.get(key).decode()) if store.check([key]) else ""


def _tell_before_a_checkpoint() -> None:
    """Called when the script has ended, before Python waits for its threads. One that writes a
    checkpoint needs the other processes, whose scripts may wait for this one: they are told first.
    """
    from torch_spmd.processes.agreement import WRITER

    main = threading.main_thread()
    others = [t for t in threading.enumerate() if t is not main and not t.daemon]
    if others and all(thread.name == WRITER for thread in others):
        _tell()


def leave() -> None:
    """Called when the script has ended: waits for the others, or tells them why it has ended."""
    global _joined
    if not _joined:
        return
    _joined = False
    import torch.distributed as dist

    _tell()
    if dist.is_initialized():
        dist.destroy_process_group()


def _tell() -> None:
    global _told
    if _told:
        return
    _told = True
    from torch_spmd import _C

    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        text = _first_line(error)
        _C.leave_because(
            f"process {_rank} has ended with {type(error).__name__}{': ' if text else ''}{text}"
        )
    else:
        try:
            _C.leave()
        except Exception as failure:
            print(f"torch_spmd: {failure}", file=sys.stderr, flush=True)
