# SPDX-License-Identifier: Apache-2.0
"""How the published runs were sharded."""

from __future__ import annotations

from torch import Tensor

import torch_spmd as spmd
from benchmarks.published.rows import Row
from benchmarks.workloads.common import Spec, largest_dim

# By the role of a matrix, (out, in) or (vocabulary, width): "0" and "1" stand for the mesh's axes.
# gpt2-2d and llama-2d: the scripts of the PyTorch/XLA blog posts. 2d: MaxText's axis rules. gspmd:
# GSPMD (arXiv:2105.04663), table 1, "2D finalized", as Lingvo's DenseLm configurations have it.
_MATRICES: dict[str, dict[str, str]] = {
    "gpt2-2d": {
        "embed": "10", "positions": "10", "q": "10", "k": "10", "v": "10", "o": "01", "up": "10",
        "down": "01",
    },
    "llama-2d": {
        "embed": "10", "head": "10", "q": "01", "k": "01", "v": "01", "o": "10", "gate": "10",
        "up": "10", "down": "01",
    },
    "2d": {
        "embed": "10", "head": "10", "q": "10", "k": "10", "v": "10", "o": "01", "gate": "10",
        "up": "10", "down": "01",
    },
    "gspmd": {
        "embed": "10", "positions": "-0", "q": "10", "k": "10", "v": "10", "o": "01", "gate": "10",
        "up": "10", "down": "01",
    },
}  # fmt: skip


class Specs:
    """Marks the tensors of one run."""

    def __init__(self, row: Row, mesh: spmd.Mesh) -> None:
        self.kind, self.mesh = row.spec, mesh
        self.axes = tuple(row.mesh)
        self.sharded = row.spec != "none"
        self._second = self.axes[1] if len(self.axes) == 2 else None

    def _mark(self, x: Tensor, spec: Spec) -> Tensor:
        return spmd.mark_sharding(x, self.mesh, spec) if self.sharded else x

    def parameter(self, name: str, tensor: Tensor) -> Tensor:
        """Of a parameter, or of the optimizer's state of that shape."""
        role = next((p for p in reversed(name.split(".")) if p not in ("weight", "bias")), "")
        letters = _MATRICES.get(self.kind, {}).get(role)
        if tensor.dim() < 2 or not self.sharded:
            return self._mark(tensor, (None,) * tensor.dim())
        if letters is None:
            return self._mark(tensor, largest_dim(tensor.shape, self.axes[0], self.mesh.size))
        return self._mark(tensor, tuple(None if c == "-" else self.axes[int(c)] for c in letters))

    def batch(self, tokens: Tensor) -> Tensor:
        return self._mark(tokens, (self.axes[0], None))

    def stream(self, x: Tensor) -> Tensor:
        """The residual stream, [batch, length, width]."""
        return self._mark(x, (self.axes[0], None, self._second if self.kind != "2d" else None))

    def hidden(self, x: Tensor) -> Tensor:
        """The inner layer of a feed-forward, [batch, length, ff]."""
        return self._mark(x, (self.axes[0], None, self._second))

    def heads(self, x: Tensor) -> Tensor:
        """[batch, heads, length, anything]."""
        return self._mark(x, (self.axes[0], self._second, None, None))
