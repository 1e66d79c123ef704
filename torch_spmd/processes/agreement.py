# SPDX-License-Identifier: Apache-2.0
"""What the processes of a job tell each other about a checkpoint.

`meet` is a round of the scripts (csrc/trace/run/agree.h); `gather` goes through a channel of its
own, so that a thread may write a checkpoint beside the script. Whoever waits longer than
SPMD_TIMEOUT, or for a process that is gone, gets the error that all processes get.
"""

from __future__ import annotations

import builtins
import json
import pickle
import threading
from typing import Any

from torch_spmd import _C

WRITER = "torch_spmd.save"  # the name of a thread that writes a checkpoint

own_errors: dict[str, type[Exception]] = {}
"""Exceptions of this package that have the same class in all processes, by name."""

_doing = threading.local()


def rank() -> int:
    return _C.process()[0]


def count() -> int:
    return _C.process()[1]


def meet(doing: str) -> None:
    """Called by the scripts of all processes before they save or load.

    Errors: RuntimeError in all of them if one does something else.
    """
    if count() > 1:
        _C.say("", doing)


def ask(value: Any, doing: str) -> list[Any]:
    """The value of each process, which is JSON, asked by the scripts of all processes. Not by
    `gather`, since a thread may be writing a checkpoint."""
    return [json.loads(text) for text in _C.say(json.dumps(value), doing)]


def raise_any_in_scripts(error: BaseException | None, doing: str) -> None:
    """As `raise_any`, called by the scripts of all processes. A process that has met something may
    be behind the others in what its script does: then all raise that they differ."""
    if count() == 1 or not isinstance(error, Exception | None):
        if error is not None:
            raise error
        return
    try:
        texts = ask(None if error is None else [type(error).__name__, str(error)], doing)
    except RuntimeError as differ:
        raise differ from error
    _raise_first(texts, error)


def raise_named(error: RuntimeError, doing: str) -> None:
    """Raises what has happened to the job, if anything has. `error` is of a group of PyTorch's,
    whose words do not say which process is gone or stopped."""
    if count() == 1 or threading.current_thread() is not threading.main_thread():
        return
    try:
        _C.say("", doing)
    except RuntimeError as named:
        raise named from error


class doing:
    """`with doing("saves …"):` says what this thread gathers for."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._before = getattr(_doing, "what", "")
        _doing.what = self._what

    def __exit__(self, *error: object) -> None:
        _doing.what = self._before


def gather(value: Any) -> list[Any]:
    """The value of each process, in all of them.

    Errors: RuntimeError in all of them if they gather for different things.
    """
    if count() == 1:
        return [value]
    what = getattr(_doing, "what", "")
    # What this job's own processes have sent is unpickled, nothing of a file.
    found = [pickle.loads(b) for b in _C.gather_bytes(pickle.dumps((what, value)), what)]
    for process, (other, _) in enumerate(found):
        if other != found[0][0]:
            raise RuntimeError(
                f"the processes of the job differ: process 0 {found[0][0]}, and process {process} "
                f"{other}"
            )
    return [theirs for _, theirs in found]


def from_first(value: Any) -> Any:
    """The value of process 0."""
    return gather(value)[0]


def raise_any(error: BaseException | None) -> None:
    """Raises in all processes what the first of them met that met anything. An exception that is no
    `Exception`, such as Ctrl-C, is also raised where it was met."""
    if count() == 1:
        if error is not None:
            raise error
        return
    if error is not None and not isinstance(error, Exception):
        _C.fail_job(f"{type(error).__name__} during a checkpoint")
        raise error
    _raise_first(gather(None if error is None else (type(error).__name__, str(error))), error)


def _raise_first(texts: list[Any], error: BaseException | None) -> None:
    for process, text in enumerate(texts):
        if text is not None:
            raise error_of(text[0], f"{text[1]} (in process {process})") from error


def error_of(kind: str, text: str) -> Exception:
    """An exception as one of class `kind` in another process: of the same class if that is one of
    Python's or ours, else a RuntimeError."""
    error: Exception = _class(kind)(text)
    return error


def _class(name: str) -> Any:
    found = own_errors.get(name) or getattr(builtins, name, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return RuntimeError
    return RuntimeError if issubclass(found, UnicodeError) else found


def local_devices() -> set[int] | None:
    """The devices of this process; None if it has all."""
    index, processes, _ = _C.process()
    if processes == 1:
        return None
    each = _C.device_count() // processes
    return set(range(index * each, (index + 1) * each))
