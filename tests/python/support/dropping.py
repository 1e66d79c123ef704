# SPDX-License-Identifier: Apache-2.0
"""Tensors that are freed on other threads while pending work is compiled."""

from __future__ import annotations

import queue
import threading

import torch
from torch import Tensor

import torch_spmd as spmd


def drop_on_other_threads(tensors: int, steps: int) -> None:
    """Asserts that the remaining tensors are right after `steps` steps over that many tensors."""
    dropped: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()

    def drop() -> None:
        while dropped.get() is not None:
            pass

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    kept = [torch.zeros(4).to("spmd") for _ in range(tensors)]
    for k in range(steps):
        for n in range(tensors):
            once = kept[n] + 1
            dropped.put(once * 3)
            dropped.put(once.view(2, 2))
            kept[n] = once
        spmd.sync(wait=k % 3 == 0)
    for _ in threads:
        dropped.put(None)
    for thread in threads:
        thread.join()
    assert all((t.cpu() == steps).all() for t in kept)
