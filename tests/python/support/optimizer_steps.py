# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of optimizer steps."""

import torch

import torch_spmd as spmd


def parameters(shapes, device, generator, dtype=torch.float32, mesh=None):
    """Parameters of these shapes, drawn one after the other; matrices sharded by rows over
    "model"."""
    starts = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
    params = [torch.nn.Parameter(t.to(device)) for t in starts]
    if mesh is not None:
        for p in params:
            if p.dim() == 2:
                spmd.mark_sharding(p, mesh, ("model", None))
    return params


def buffer_of_two(device, make, apart, steps):
    """Eight numbers after steps of two parameters of four, the second `apart` behind the first."""
    buffer = torch.arange(1.0, 9.0).to(device)
    parts = [torch.nn.Parameter(buffer[a : a + 4]) for a in (0, apart)]
    optimizer = make(parts)
    for _ in range(steps):
        for k, p in enumerate(parts):
            p.grad = torch.arange(1.0, 5.0).to(device) * (k + 1)
        optimizer.step()
    return buffer.cpu()


def calls_of_last_program():
    """The ops that it calls, in order."""
    text = str(spmd.debug.print_program())
    return [
        line.split("= call ")[1].split("(")[0] for line in text.splitlines() if "= call" in line
    ]
