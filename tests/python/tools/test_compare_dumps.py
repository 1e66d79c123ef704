# SPDX-License-Identifier: Apache-2.0
"""SPMD_DUMP and tools/compare_dumps.py."""

import re
import subprocess
import sys

import torch

from torch_spmd.device import options


def compare(root, *arguments):
    return subprocess.run(
        [sys.executable, root / "tools/compare_dumps.py", *arguments],
        capture_output=True,
        text=True,
    )


def dump(folder, *steps):
    folder.mkdir()
    with options.update(dump=str(folder / "test.txt")):
        for step in steps:
            step(torch.ones(3, 5, device="spmd")).cpu()
    return folder


def test_equal_compilations_are_equal_wherever_they_are_written(tmp_path, root):
    first = dump(tmp_path / "first", lambda x: (x * 3).erf().sum(1))
    text = (first / "test.txt").read_text()
    # The graph has global values; the program has the instructions of one device.
    assert text.startswith("=== graph\n") and "aten::erf" in text.split("=== program\n")[1]
    (tmp_path / "second").mkdir()
    moved = text.replace('at "', 'at "other_')
    assert moved != text
    (tmp_path / "second/test.txt").write_text(moved)
    done = compare(root, first, tmp_path / "second")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "1 tests with 1 compilations in both; 0 tests differ\n"


def test_what_differs_is_shown(tmp_path, root):
    first = dump(tmp_path / "first", lambda x: (x * 5).erfc().sum(1))
    second = dump(tmp_path / "second", lambda x: (x * 5).erf().sum(1), lambda x: x.cos().sum())
    done = compare(root, first, second)
    assert done.returncode == 1
    assert re.search(r"^-  %2: f32\[3,5\] = aten::erfc\(%1\)$", done.stdout, re.MULTILINE)
    assert "differs: test.txt" in done.stdout


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    x = torch.ones(7, device="spmd")
    with options.update(dump=str(tmp_path / "missing/file.txt")):
        y = x.lgamma()
        try:
            y.cpu()
        except RuntimeError as error:
            message = str(error)
    assert f"SPMD_DUMP: '{tmp_path}/missing/file.txt' cannot be written: No such file" in message
