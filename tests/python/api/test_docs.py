# SPDX-License-Identifier: Apache-2.0
"""What docstrings and the README show is what happens."""

import doctest
import importlib
import pkgutil
import re

import pytest
from processes import run_python

import torch_spmd as spmd
from torch_spmd import debug, testing

MODULES = sorted(
    module.name for module in pkgutil.iter_modules(spmd.__path__) if module.name != "_C"
)
# Values that functions give, and an error.
NO_EXAMPLE = {"OutOfMemoryError", "Shard", "ShardReport"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"torch_spmd.{name}")).failed == 0


def functions(module):
    own = {n: f for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__}
    return [n for n, f in own.items() if callable(f) and not isinstance(f, type) and n[0] != "_"]


def test_every_public_function_has_an_example():
    public = [(spmd, name) for name in spmd.__all__ if callable(getattr(spmd, name))]
    public += [(debug, name) for name in functions(debug)] + [(testing, "check_rule")]
    without = [
        name for module, name in public if ">>>" not in (getattr(module, name).__doc__ or "")
    ]
    assert set(without) == NO_EXAMPLE


def test_the_readmes_twenty_lines(root):
    [example] = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    done = run_python("-c", example)
    assert done.returncode == 0, done.stderr
    loss, table = done.stdout.split("\n", 1)
    assert 0 < float(loss) < 2.4  # ln 10 and less
    assert "all_reduce" in table
