# SPDX-License-Identifier: Apache-2.0
"""The backend that runs programs, and running them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torch_spmd import _C, _arguments
from torch_spmd.device import options

MOST_DEVICES = _arguments.MOST_ITEMS


def set_default_backend(name: str, devices: int | None = None) -> None:
    """Chooses where programs run.

    Args:
        name: `"cpu"`, `"cuda"`, or a simulated machine: `"mock_tpu:v4-16"`, `"mock_gpu:8xh100"`;
            with `":plan"` after it, shapes are known and nothing is computed. The default comes
            from the environment variable SPMD_BACKEND, else `"cpu"`.
        devices: how many devices there are; on `cpu` the default comes from SPMD_NUM_DEVICES, else
            meshes may have any size.

    Errors:
        TypeError: an argument of another kind.
        ValueError: the name is not a known backend, or there is less than 1 device.
        RuntimeError: a tensor on `spmd` exists already, or the hardware does not exist.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.set_default_backend("cpu", devices=16)    # doctest: +SKIP
        >>> spmd.device_count()                            # doctest: +SKIP
        16
    """
    name = _arguments.text("set_default_backend", "name", name)
    if devices is not None:
        devices = _arguments.integer("set_default_backend", "devices", devices, 1, MOST_DEVICES)
    try:
        _C.set_default_backend(name, devices)
    except ValueError as error:
        raise ValueError(f"set_default_backend: name: {str(error)[:400]}") from None


_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def set_memory_limit(limit: str | int | None) -> None:
    """Limits the memory that programs may need, per device; the default is what the device has.

    Where a program needs more, gathered values are gathered again for their later uses, and
    results of element-wise ops computed again, with a warning; `debug.memory()` and
    `debug.explain_compile()` say what that costs. If it does not fit even so, running it raises
    `OutOfMemoryError`, and `debug` shows the program. What is pending is compiled with the limit
    that holds then. A limit above what a device has changes nothing. Virtual devices on the CPU
    have no limit of their own.

    Args:
        limit: bytes, or text such as "12GiB", "512 MiB" or "1.5GB"; None goes back to the default.

    Errors:
        TypeError: an argument of another kind.
        ValueError: text of another form, or less than 1 byte.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.set_memory_limit("12GiB")
        >>> spmd.set_memory_limit(None)
    """
    _C.set_memory_limit(0 if limit is None else _limit_in_bytes(limit))


def _limit_in_bytes(limit: Any) -> int:
    if not isinstance(limit, str):
        if isinstance(limit, bool):
            raise TypeError(f"set_memory_limit: limit must be bytes or text, not {limit}")
        return _arguments.integer("set_memory_limit", "limit", limit, 1)
    text = _arguments.text("set_memory_limit", "limit", limit)
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?i?b|)\s*", text, re.I | re.A)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(
            f"set_memory_limit: limit is {_arguments.shown(text)}, not a number of bytes such as "
            '"12GiB", "512 MiB", "1.5GB" or 2**30'
        )
    count = int(float(match[1]) * _UNITS[match[2].lower()])
    return _arguments.integer("set_memory_limit", "limit", count, 1)


def device_count() -> int:
    """The number of devices of the backend; on `cpu` SPMD_NUM_DEVICES, or 8 if that is not set.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.device_count() >= 1
        True
    """
    return int(_C.device_count())


def describe_devices() -> str:
    """A description of the backend: its devices, where they are, and how much memory they have.

    In a job of several processes, it says which process runs which devices.

    Example:
        >>> import torch_spmd as spmd
        >>> print(spmd.describe_devices())                 # doctest: +SKIP
    """
    _, _, processes = _C.process()
    return processes or str(_C.describe_backend())


def sync(wait: bool = False) -> None:
    """Runs what is pending; with `wait`, returns only when it is done.

    Reading a value and the end of an optimizer's step do this by themselves.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> y = torch.ones(3, device="spmd") * 2
        >>> spmd.sync(wait=True)
    """
    _C.sync(_arguments.boolean("sync", "wait", wait))


def manual_seed(seed: int) -> None:
    """Seeds the device's random numbers alone; `torch.manual_seed` seeds all devices.

    The numbers depend on the seed and the position in the tensor, not on the mesh or the sharding.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> spmd.manual_seed(1)
        >>> a = torch.randn(4, device="spmd")
        >>> spmd.manual_seed(1)
        >>> torch.equal(a, torch.randn(4, device="spmd"))
        True
    """
    torch.spmd.manual_seed(_arguments.seed("manual_seed", seed))  # type: ignore[attr-defined]


def set_coalescing(on: bool) -> None:
    """Sets whether devices that share a place run as one (the default) or tile by tile.

    If on, each instruction of the sharded program runs once, on adjacent tiles as one tensor: an op
    over eight shards of a batch is one call, and a sum over devices is part of the op that computes
    the partial sums. If off, each virtual device's tiles are computed separately, as on devices
    with memory of their own. Results differ only in the order of sums. Collectives and memory are
    reported for the devices in either case.

    `SPMD_COALESCE=0` in the environment switches it off from the start.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.set_coalescing(False)
        >>> spmd.set_coalescing(True)
    """
    options.set_options(coalesce=_arguments.boolean("set_coalescing", "on", on))


def set_deduplication(on: bool) -> None:
    """Sets whether replicas share one tile and are computed once (the default), or separately.

    Off is for timing the full work, tile by tile. Results have the same bits as with coalescing
    off.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.set_deduplication(False)
        >>> spmd.set_deduplication(True)
    """
    options.set_options(deduplicate=_arguments.boolean("set_deduplication", "on", on))


_answers: list[tuple[str, float]] = []


def answers(values: Mapping[str, float] | float) -> contextlib.AbstractContextManager[None]:
    """`with answers(…):` says what values are on a backend that only plans (`mock_tpu:…:plan`).

    There, what depends on constants only is computed: creation ops, uploaded integers and booleans
    (masks, positions, ids), uploaded single numbers. A script that asks for another value
    (`if loss.item() > 3`, `mask.nonzero()`) gets an error that names the op and the line, unless an
    answer fits. An optimizer's step that asks for one floating-point number (Adafactor's norms)
    gets 1.0, since it scales an update. On other backends answers do nothing.

    Args:
        values: answers by a part of the question, which is the op, its line and the line that asks:
            `{"train.py:31": False, "aten::norm": 2.0}`; the first that fits counts, those of an
            inner block first. A number alone answers everything. A tensor is filled with it.

    Errors: TypeError at once for another kind of argument.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> with spmd.answers({"train.py:31": True, "aten::norm": 2.0}):
        ...     t = torch.ones(3, device="spmd").sum().item()    # on this backend: computed
        >>> t
        3.0
    """
    given = {"": values} if not isinstance(values, Mapping) else values
    what = "a number, or a mapping from texts to numbers"
    pairs = [
        (_question(text), _arguments.number("answers", f"values[{_arguments.plain(text)}]", number))
        for text, number in _arguments.mapping("answers", "values", given, what).items()
    ]
    return _answering(pairs)


def _question(text: object) -> str:
    return "" if text == "" else _arguments.text("answers", "a key of values", text)


@contextlib.contextmanager
def _answering(pairs: list[tuple[str, float]]) -> Iterator[None]:
    _answers[:0] = pairs
    _C.set_answers(_answers)
    try:
        yield
    finally:
        del _answers[: len(pairs)]
        _C.set_answers(_answers)
