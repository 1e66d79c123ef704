# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the start page: python tools/draw_pictures.py FOLDER

Each is a piece of HTML, as a notebook shows it: sharding.html (which device holds which part of a
weight), collectives.html (what a training step sends), memory.html (memory over time, as SVG).
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch_spmd as spmd  # noqa: E402


def step() -> torch.Tensor:
    """The first step of docs/index.md; returns the sharded weight."""
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    up, down = nn.Linear(64, 256), nn.Linear(256, 10)
    model = nn.Sequential(up, nn.GELU(), down).to("spmd")
    spmd.mark_sharding(up.weight, mesh, ("model", None))
    spmd.mark_sharding(down.weight, mesh, (None, "model"))
    optimizer = torch.optim.AdamW(model.parameters())
    x = spmd.mark_sharding(torch.randn(32, 64).to("spmd"), mesh, ("data",))
    y = spmd.mark_sharding(torch.randint(10, (32,)).to("spmd"), mesh, ("data",))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    spmd.sync(wait=True)
    return up.weight


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    weight = step()
    with contextlib.redirect_stdout(io.StringIO()):
        sharding = spmd.debug.visualize_sharding(weight)
    (folder / "sharding.html").write_text(sharding.html)
    (folder / "collectives.html").write_text(spmd.debug.collectives()._repr_html_())
    figure = io.StringIO()
    spmd.debug.memory().plot().savefig(figure, format="svg", bbox_inches="tight")
    svg = figure.getvalue()
    (folder / "memory.html").write_text(svg[svg.index("<svg") :])
    return 0


if __name__ == "__main__":
    sys.exit(main())
