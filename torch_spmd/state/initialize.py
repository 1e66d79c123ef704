# SPDX-License-Identifier: Apache-2.0
"""Buffers on `meta` that no checkpoint has, such as the frequencies of rotary embeddings: the
models of transformers know how to compute them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_spmd import _compat

Found = list[tuple[str, nn.Module, str]]  # (name, the module that has it, its name there)


def meta_buffers(module: nn.Module) -> Found:
    """The buffers on `meta` that are not saved with the module."""
    return [
        (f"{prefix}.{name}" if prefix else name, child, name)
        for prefix, child in module.named_modules()
        for name, buffer in _compat.buffers(child).items()
        if buffer is not None and buffer.is_meta and name in _compat.transient_buffers(child)
    ]


def without_value(module: nn.Module, found: Found) -> list[str]:
    if callable(getattr(module, "_init_weights", None)):
        return []
    return [
        f"buffer {name!r} is on 'meta' and is not saved (persistent=False); give it a value first"
        for name, _, _ in found
    ]


def fill_buffers(module: nn.Module, found: Found) -> None:
    """Computes them, then moves them to the device. Parameters are still on `meta`, where
    initializing them changes nothing, or have their final values in other modules."""
    model: Any = module
    for child in dict.fromkeys(child for _, child, _ in found):
        names = [name for _, owner, name in found if owner is child]
        held: Any = _compat.buffers(child)
        for name in names:
            held[name] = torch.zeros_like(held[name], device="cpu")
        with torch.no_grad():
            model._init_weights(child)
        for name in names:
            held[name] = held[name].to("spmd")
