# SPDX-License-Identifier: Apache-2.0
"""Tensors with the same values and other strides."""

import torch


def _reversed(t):
    order = range(t.dim())[::-1]
    return t.permute(*order).contiguous().permute(*order) if t.dim() > 1 else t.clone()


def _channels_last(t):
    if t.dim() == 4:
        return t.contiguous(memory_format=torch.channels_last)
    if t.dim() == 5:
        return t.contiguous(memory_format=torch.channels_last_3d)
    return t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t.clone()


def _heads(t):
    """Of [batch, head, place, size]: a view of [batch, place, head, size]."""
    return t.transpose(-2, -3).contiguous().transpose(-2, -3) if t.dim() > 2 else t.clone()


def _expanded(t):
    return t[:1].expand(t.shape) if t.dim() > 0 and t.shape[0] > 0 else t.clone()


LAYOUTS = {
    "contiguous": torch.clone,
    "reversed": _reversed,
    "channels last": _channels_last,
    "heads": _heads,
    "expanded": _expanded,
}


def laid_out(t, layout):
    """`t` with other strides (an expanded one has other values). Other objects are returned
    unchanged."""
    if not isinstance(t, torch.Tensor) or t.layout != torch.strided:
        return t
    return LAYOUTS[layout](t.detach()).requires_grad_(t.requires_grad)


def on_device(t):
    """A CPU tensor on the device with all its strides, also if elements share memory."""
    if not isinstance(t, torch.Tensor):
        return t
    moved = t.detach().to("spmd")
    if moved.stride() != t.stride():
        memory = torch.empty(0, dtype=t.dtype).set_(t.detach().untyped_storage()).to("spmd")
        moved = memory.as_strided(t.shape, t.stride(), t.storage_offset())
    return moved.requires_grad_(t.requires_grad)


def form(t):
    """The strides that matter to a user: those of dimensions with one element do not, nor do those
    of a tensor without elements."""
    strides = [s for s, n in zip(t.stride(), t.shape) if n > 1] if t.numel() else []
    return tuple(t.shape), strides, t.dtype
