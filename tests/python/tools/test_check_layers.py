# SPDX-License-Identifier: Apache-2.0
"""tools/check_layers.py: the repository passes, and each kind of violation is found."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools" / "check_layers.py")
check_layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layers)


@pytest.fixture
def tree(tmp_path):
    """util <- mesh <- ir, and runtime over them; each with one clean file."""
    csrc = tmp_path / "csrc"
    deps = {"util": "", "mesh": "util", "ir": "mesh", "runtime": "ir"}
    for folder, dep in deps.items():
        (csrc / folder).mkdir(parents=True)
        dep_text = f" DEPS {dep}" if dep else ""
        (csrc / folder / "CMakeLists.txt").write_text(f"spmd_library({folder}{dep_text})\n")
        (csrc / folder / "a.h").write_text("#pragma once\n")
    lines = [f"add_subdirectory({folder})" for folder in deps]
    (csrc / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_repository_keeps_its_layers():
    assert check_layers.violations(ROOT) == []


def test_a_clean_tree_passes(tree):
    (tree / "csrc/ir/b.cc").write_text('#include "csrc/ir/a.h"\n#include "csrc/util/a.h"\n')
    (tree / "csrc/runtime/b.cc").write_text("#include <ATen/core/Tensor.h>\n")
    assert check_layers.violations(tree) == []


def test_including_a_folder_that_is_not_named(tree):
    (tree / "csrc/mesh/b.cc").write_text('#include <vector>\n#include "csrc/ir/a.h"\n')
    assert check_layers.violations(tree) == [
        "csrc/mesh/b.cc:2: includes csrc/ir/a.h, but 'mesh' does not name 'ir' in its "
        "CMakeLists.txt"
    ]


def test_naming_a_folder_below(tree):
    (tree / "csrc/mesh/CMakeLists.txt").write_text("spmd_library(mesh DEPS util ir ABSL status)\n")
    assert check_layers.violations(tree) == [
        "csrc/mesh/CMakeLists.txt: names 'ir', which is not above 'mesh'"
    ]


def test_the_door_to_pytorch(tree):
    """Every folder below the line includes it, and it includes nothing of csrc."""
    door = tree / "csrc/trace/compat"
    door.mkdir(parents=True)
    (tree / "csrc/trace/CMakeLists.txt").write_text("spmd_library(trace DEPS runtime)\n")
    listed = tree / "csrc/CMakeLists.txt"
    listed.write_text(listed.read_text() + "add_subdirectory(trace)\n")
    (door / "b.h").write_text("#include <c10/core/Scalar.h>\n")
    (door / "a.h").write_text('#include "csrc/trace/compat/b.h"\n#include "csrc/util/a.h"\n')
    for folder in ("ir", "runtime"):
        (tree / "csrc" / folder / "b.h").write_text('#include "csrc/trace/compat/a.h"\n')
    assert check_layers.violations(tree) == [
        "csrc/ir/b.h:1: includes csrc/trace/compat/a.h, but 'ir' does not name 'trace' in its "
        "CMakeLists.txt",
        "csrc/trace/compat/a.h:2: includes csrc/util/a.h; the door includes LibTorch",
    ]


def test_libtorch_above_the_line(tree):
    (tree / "csrc/ir/b.h").write_text("#include <c10/core/Scalar.h>\n")
    assert check_layers.violations(tree) == [
        "csrc/ir/b.h:1: includes c10/core/Scalar.h; LibTorch begins at 'runtime'"
    ]


def test_an_unlisted_folder_is_found(tree):
    (tree / "csrc/extra").mkdir()
    assert check_layers.violations(tree) == ["csrc/extra: not listed in csrc/CMakeLists.txt"]


def test_a_room_below(tree):
    folder = tree / "csrc/ir"
    (folder / "CMakeLists.txt").write_text("spmd_library(ir DEPS mesh ROOMS first second)\n")
    (folder / "a.h").unlink()
    for room, included in (("first", "second"), ("second", "first")):
        (folder / room).mkdir()
        (folder / room / "a.h").write_text(f'#include "csrc/ir/{included}/a.h"\n')
    (folder / "b.h").write_text("#pragma once\n")
    assert check_layers.violations(tree) == [
        "csrc/ir/b.h: is in none of the rooms of 'ir'",
        "csrc/ir/first/a.h:1: includes csrc/ir/second/a.h, which is not above room 'first'",
    ]
