# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_spmd.info` prints what a bug report needs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import torch_spmd as spmd
from torch_spmd import _C, _compat, _replace, _versions
from torch_spmd.device import options as _options

__all__ = ["text"]


def text() -> str:
    """Versions, build, device, processes, processor, options that are set, checks of PyTorch that
    failed, and functions of other packages that are replaced in this process.

    Example:
        >>> from torch_spmd import info
        >>> print(info.text().splitlines()[0])  # doctest: +SKIP
        torch_spmd   0.1.0, /home/me/torch_spmd
    """
    lines = []
    for name, values in _parts():
        first, *others = values or ["none"]
        lines.append(f"{name:<12} {first}")
        lines += [f"{'':<12} {value}" for value in others]
    return "\n".join(lines)


def _parts() -> Iterator[tuple[str, list[str]]]:
    package = Path(spmd.__file__).parent
    yield "torch_spmd", [f"{spmd.__version__}, {package}"]
    yield "build", [os.path.relpath(_C.__file__, package)]
    cuda = torch.version.cuda
    yield "torch", [f"{torch.__version__}, {f'CUDA {cuda}' if cuda else 'without CUDA'}"]
    yield "Python", [f"{platform.python_version()}, {platform.platform()}"]
    gpus = range(torch.cuda.device_count())
    yield "GPUs", [torch.cuda.get_device_name(k) for k in gpus]
    capability = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    yield "CPU", [f"{capability}, {os.cpu_count()} cores, {threads} threads of PyTorch"]
    yield "backend", [f"{_C.backend_name()}, {spmd.config.device_count()} devices"]
    yield "processes", [f"{spmd.processes.process_index()} of {spmd.processes.process_count()}"]
    yield "variables", sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("SPMD_"))
    options = _C.options()
    yield "options", [", ".join(f"{name}={getattr(options, name)}" for name in _options.NAMES)]
    yield "failed", list(_failed_checks())
    yield "replaced", [f"{name}: {why}" for name, why in sorted(_replace.replaced.items())]


def _failed_checks() -> Iterator[str]:
    if _versions.is_newer_than_tested(torch.__version__):
        yield _versions.untested(torch.__version__)
    for name, without in sorted(_compat.missing.items()):
        yield f"PyTorch has no {name}: {without}"


if __name__ == "__main__":
    sys.stdout.write(text() + "\n")
