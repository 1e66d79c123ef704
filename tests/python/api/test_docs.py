# SPDX-License-Identifier: Apache-2.0
"""What docstrings, the README and docs show is what happens."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import torch
from processes import run_python

import torch_spmd as spmd

MODULES = sorted(
    module.name.removeprefix("torch_spmd.")
    for module in pkgutil.walk_packages(spmd.__path__, "torch_spmd.")
    if not module.name.endswith(("._C", ".__main__")) and ".torch_xla." not in module.name
    if module.name != "torch_spmd.lightning"  # an old name, which warns
)
SUBJECTS = [thing for name in spmd.__all__ if inspect.ismodule(thing := getattr(spmd, name))]
# Values that functions return, and an error.
NO_EXAMPLE = {"LoadReport", "Mixed", "OutOfMemoryError", "Saving", "Shard", "ShardReport"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    if name.endswith("lightning"):
        pytest.importorskip("lightning")
    assert doctest.testmod(importlib.import_module(f"torch_spmd.{name}")).failed == 0


def test_every_public_function_has_an_example():
    public = {
        name: thing
        for module in (spmd, *SUBJECTS)
        for name in module.__all__
        if callable(thing := getattr(module, name))
        and not (module is spmd.debug and isinstance(thing, type))  # what its functions return
    }
    without = [name for name, thing in public.items() if ">>>" not in (thing.__doc__ or "")]
    assert set(without) == NO_EXAMPLE


def test_the_readmes_twenty_lines(root):
    [example] = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    done = run_python("-c", example)
    assert done.returncode == 0, done.stderr
    loss, table = done.stdout.split("\n", 1)
    assert 0 < float(loss) < 2.4  # ln 10 and less
    assert "all_reduce" in table


ROOT = Path(__file__).parents[3]
NO_OLD_NAMES = """
import warnings
warnings.filterwarnings("error", "torch_spmd", DeprecationWarning)
"""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# These have tests of their own: below, and in test_other_packages.py.
OTHERS = ("README", "walk", "other-packages")
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
]
PAGES = [
    path.relative_to(ROOT)
    for path in sorted(DOCUMENTS)
    if path.stem not in OTHERS
    and any(kind == "python" for kind, _ in BLOCK.findall(path.read_text()))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path):
    """All blocks of the page, in order, as one script, in a folder of its own."""
    code = [block for kind, block in BLOCK.findall((ROOT / page).read_text()) if kind == "python"]
    code.insert(0, NO_OLD_NAMES)
    done = run_python("-c", "\n".join(code), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_blocks_of_code_are_at_most_80_columns():
    """What a program prints (`text`) may be longer; the site wraps it."""
    wide = [
        f"{path.name}: {line}"
        for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for kind, block in BLOCK.findall(path.read_text())
        for line in block.split("\n")
        if kind != "text" and len(line) > 80
    ]
    assert wide == []


def test_the_commands_of_the_documents_exist():
    """Files, modules and options that the blocks of shells name."""
    asked = set()
    for path in DOCUMENTS:
        for kind, block in BLOCK.findall(path.read_text()):
            if kind in ("bash", "sh"):
                asked |= set(
                    re.findall(r"python -m ([\w.]+)|(\S*\w/[\w/.-]+\.py|\./tools/\w+)", block)
                )
    assert len(asked) > 5
    missing = [m for m, _ in asked if m and importlib.util.find_spec(m) is None]
    missing += [f for _, f in asked if f and not (ROOT / f).exists()]
    assert missing == []


def test_the_picture_of_the_page_about_meshes():
    text = (ROOT / "docs/meshes.md").read_text()
    [shown] = [block for kind, block in BLOCK.findall(text) if kind == "text"]
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    w = spmd.mark_sharding(torch.randn(8, 16).to("spmd"), mesh, spmd.P("model", None))
    assert shown.strip() in str(spmd.debug.visualize_sharding(w))


def test_the_walk_runs_and_prints_what_it_shows(root, tmp_path):
    blocks = re.findall(
        r"```(python|text)\n(.*?)```", (root / "docs/walk.md").read_text(), re.DOTALL
    )
    separator = "-- end of block --"
    script, shown = "", []
    for kind, block in blocks:
        if kind == "python":
            script += f"{block}print({separator!r})\n"
            shown.append("")
        else:
            shown[-1] = block
    (tmp_path / "walk.py").write_text(script)
    done = run_python("walk.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(separator + "\n")[:-1]
    assert [text.rstrip() for text in printed] == [text.rstrip() for text in shown]


def test_the_row_that_the_walk_quotes(root):
    [row] = re.findall(r"^    (Product\(.*)$", (root / "docs/walk.md").read_text(), re.MULTILINE)
    assert row in (root / "csrc/rules/tables/matmul.cc").read_text()


def test_every_environment_variable_has_a_row(root):
    sources = [*(root / "csrc").rglob("*.cc"), *(root / "torch_spmd").rglob("*.py")]
    used = {name for s in sources for name in re.findall(r'"(SPMD_[A-Z_]+)"', s.read_text())}
    rows = re.findall(r"^\| `SPMD_.*?\|", (root / "docs/settings.md").read_text(), re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"SPMD_[A-Z_]+", row)}
    assert documented == used
