# SPDX-License-Identifier: Apache-2.0
"""The processes that run one script on the devices of all of them (docs/processes.md)."""

from __future__ import annotations

from torch_spmd import _C


def process_index() -> int:
    """The number of this process among those of the job, from 0; 0 if there is one process.

    Example:
        >>> import torch_spmd as spmd
        >>> if spmd.process_index() == 0:
        ...     print("printed once")
        printed once
    """
    return _C.process()[0]


def process_count() -> int:
    """The number of processes that share the devices; 1 without torch.distributed.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.process_count()
        1
    """
    return _C.process()[1]


def local_devices() -> tuple[int, ...]:
    """The ids of the devices that this process runs, in order; all of them if it is the only one.

    Example:
        >>> import torch_spmd as spmd
        >>> len(spmd.local_devices()) == spmd.device_count()
        True
    """
    index, count, _ = _C.process()
    each = _C.device_count() // count
    return tuple(range(index * each, (index + 1) * each))
