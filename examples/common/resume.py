# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run that is stopped and started again with the same arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch_spmd import Checkpointer


class Resume:
    """Saves every so many steps into a folder, and begins where the last checkpoint was; without a
    folder it does nothing. `done` steps were made before, with these `losses`."""

    def __init__(
        self, folder: Path | None, every: int, model: nn.Module, optimizer: Optimizer
    ) -> None:
        self.done = 0
        self.losses: list[float] = []
        self._state: dict[str, Any] = {"model": model, "optimizer": optimizer, "losses": None}
        self._checkpoints: Checkpointer | None = None
        if folder is not None:
            import torch_spmd as spmd

            self._checkpoints = spmd.checkpoint.Checkpointer(folder, every=every, keep=2)

    def __enter__(self) -> Resume:
        if self._checkpoints is not None:
            self._checkpoints.__enter__()
            self.done = self._checkpoints.load(self._state) or 0
            self.losses = self._state["losses"] or []
        return self

    def __exit__(self, *error: object) -> None:
        if self._checkpoints is not None:
            self._checkpoints.__exit__(*error)

    def save(self, step: int, losses: list[float]) -> bool:
        """True if the run is to stop, since the machine is taken away (SIGTERM)."""
        if self._checkpoints is None:
            return False
        self._checkpoints.save(step, {**self._state, "losses": losses})
        return self._checkpoints.stopping
