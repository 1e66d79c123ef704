# SPDX-License-Identifier: Apache-2.0
"""The backend that runs programs, and running them."""

from __future__ import annotations

import torch

from torch_spmd import _C, _arguments

MOST_DEVICES = _arguments.MOST_ITEMS


def set_backend(name: str, devices: int | None = None) -> None:
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
        >>> spmd.config.set_backend("cpu", devices=16)  # doctest: +SKIP
        >>> spmd.config.device_count()  # doctest: +SKIP
        16
    """
    name = _arguments.text("set_backend", "name", name)
    if devices is not None:
        devices = _arguments.integer("set_backend", "devices", devices, 1, MOST_DEVICES)
    try:
        _C.set_default_backend(name, devices)
    except ValueError as error:
        raise ValueError(f"set_backend: name: {str(error)[:400]}") from None


def device_count() -> int:
    """The number of devices of the backend; on `cpu` SPMD_NUM_DEVICES, or 8 if that is not set.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.config.device_count() >= 1
        True
    """
    return int(_C.device_count())


def describe_devices() -> str:
    """A description of the backend: its devices, where they are, and how much memory they have.

    In a job of several processes, it says which process runs which devices.

    Example:
        >>> import torch_spmd as spmd
        >>> print(spmd.config.describe_devices())  # doctest: +SKIP
    """
    _, _, processes = _C.process()
    return processes or str(_C.describe_backend())


def sync(*, wait: bool = False) -> None:
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
        >>> spmd.config.manual_seed(1)
        >>> a = torch.randn(4, device="spmd")
        >>> spmd.config.manual_seed(1)
        >>> torch.equal(a, torch.randn(4, device="spmd"))
        True
    """
    torch.spmd.manual_seed(_arguments.seed("manual_seed", seed))  # type: ignore[attr-defined]
