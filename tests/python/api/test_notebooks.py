# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures for notebooks, and the notebooks themselves."""

import re
from pathlib import Path

import pytest
import torch
from processes import run_python
from torch import nn

import torch_spmd as spmd

SUPPORT = Path(__file__).parents[1] / "support"
NOTEBOOKS = sorted((Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_has(path):
    done = run_python(SUPPORT / "notebook.py", path, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_notebooks():
    assert NOTEBOOKS


def cells(html):
    """The colour and the devices of every part."""
    return re.findall(r'<td style="background:(.*?);.*?">(.*?)</td>', html)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 8), ("data", "model")),
        ((8, 6), (None, "model")),
        ((5,), (("data", "model"),)),
        ((3, 4, 8), (None, "data", "model")),
        ((4, 4), (None, None)),
        ((4, 4, 6), ("data", None, spmd.blocks(3, "model"))),
        ((), ()),
    ],
)
def test_a_picture_shows_every_part_once(shape, spec):
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    t = spmd.mark_sharding(torch.zeros(shape, device="spmd"), mesh, spec)
    picture = spmd.debug.visualize_sharding(t)
    parts = {}
    for shard in spmd.local_shards(t):
        parts.setdefault(str(shard.index), []).append(shard.device)
    found = cells(picture._repr_html_())
    assert sum(len(devices(text)) for _, text in found) == 8
    assert {tuple(devices(text)) for _, text in found} == {tuple(p) for p in parts.values()}
    assert len({colour for colour, _ in found}) == len(parts)


def devices(text):
    if ".." in text:
        first, last = map(int, text.split(".."))
        return list(range(first, last + 1))
    return [int(device) for device in text.split(",")]


def test_three_sharded_dimensions_are_several_pictures():
    mesh = spmd.make_mesh((2, 2, 2), ("a", "b", "c"))
    t = spmd.mark_sharding(torch.zeros(4, 4, 4, device="spmd"), mesh, ("a", "b", "c"))
    html = spmd.debug.visualize_sharding(t)._repr_html_()
    assert html.count("<table>") == 2 and "dim 2 0:2" in html and "dim 2 2:4" in html
    assert sorted(int(text) for _, text in cells(html)) == list(range(8))


def test_a_report_is_a_table():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False)).to("spmd")
    spmd.mark_sharding(module[1].weight, mesh, (None, "model"))
    with pytest.warns(UserWarning, match="matched no parameter"):
        report = spmd.shard_module(module, mesh, {"0.weight": ("model", None), "<no>": (None,)})
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", report._repr_html_())
    assert rows == [
        ("0.weight", "P(&#x27;model&#x27;, None)", ""),
        ("1.weight", "P(None, &#x27;model&#x27;)", "as before"),
        ("0.bias", "replicated", ""),
    ]
    assert "rule &#x27;&lt;no&gt;&#x27; matched nothing" in report._repr_html_()
