# SPDX-License-Identifier: Apache-2.0
"""tools/check_imports.py: the repository passes, and each kind of violation is found."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools" / "check_imports.py")
check_imports = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_imports)


@pytest.fixture
def package(tmp_path):
    """The packages sharding and nn, each with two files, and nn above sharding."""
    package = tmp_path / "torch_spmd"
    for folder in ("sharding", "nn"):
        (package / folder).mkdir(parents=True)
        for name in ("__init__", "a", "b"):
            (package / folder / f"{name}.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "nn/a.py").write_text("from torch_spmd.sharding import a\n")
    return package


def found(package):
    return check_imports.violations(package.parent)


def test_the_repository_is_in_order():
    assert check_imports.violations(ROOT) == []


def test_a_package_imports_those_before_it(package):
    assert found(package) == []
    (package / "sharding/b.py").write_text("def f():\n    from torch_spmd.nn.b import x\n")
    assert found(package) == [
        "torch_spmd/sharding/b.py:2: imports torch_spmd.nn.b, which is not above 'sharding'"
    ]


def test_a_circle_within_a_package(package):
    (package / "nn/a.py").write_text("from torch_spmd.nn.b import x\n")
    (package / "nn/b.py").write_text("import torch_spmd.nn.a\n")
    circle = "torch_spmd.nn.a -> torch_spmd.nn.b -> torch_spmd.nn.a"
    assert found(package) == [f"circle: {circle}"]
    (package / "nn/b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch_spmd.nn.a\n"
    )
    assert found(package) == []


def test_a_package_that_has_no_place_in_the_order(package):
    (package / "odd.py").write_text("from torch_spmd.nn import a\n")
    assert found(package) == ["torch_spmd/odd.py:1: odd may not import nn"]


def test_a_long_module(package):
    (package / "nn/b.py").write_text("x = 1\n" * 501)
    assert found(package) == ["torch_spmd/nn/b.py: has more than 500 lines"]
