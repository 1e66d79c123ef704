# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the start page: python tools/draw_pictures.py FOLDER

Each is a piece of HTML, as a notebook shows it, of the training step in the first block of
docs/index.md: sharding.html (which device holds which part of a weight), collectives.html (what the
step sends), memory.html (memory over time, as SVG).
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch_spmd as spmd  # noqa: E402


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    page = (ROOT / "docs" / "index.md").read_text()
    [block, *_] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    script: dict[str, Any] = {}
    figure = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block, "start.py", "exec"), script)
        sharding = spmd.debug.visualize_sharding(script["model"][0].weight)
    spmd.debug.memory().plot().savefig(figure, format="svg", bbox_inches="tight")
    svg = figure.getvalue()
    (folder / "sharding.html").write_text(sharding.html)
    (folder / "collectives.html").write_text(spmd.debug.collectives()._repr_html_())
    (folder / "memory.html").write_text(svg[svg.index("<svg") :])
    return 0


if __name__ == "__main__":
    sys.exit(main())
