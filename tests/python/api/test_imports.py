# SPDX-License-Identifier: Apache-2.0
"""The first steps of a process import no more than PyTorch's own do."""

import json
import pathlib
import subprocess
import sys

import pytest
from imported_programs import PROGRAMS

SUPPORT = pathlib.Path(__file__).parents[1] / "support"
HEAVY = ("torch._dynamo", "torch._inductor", "torch.fx.experimental", "sympy", "numpy", "rich")


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=SUPPORT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found():
    """By program and device, what it imports."""
    return run("imported_programs.py")


@pytest.mark.parametrize("program", [p.__name__ for p in PROGRAMS])
def test_a_program_imports_what_it_imports_on_the_cpu(found, program):
    cpu, device = (found[program][where] for where in ("cpu", "spmd"))
    assert "error" not in cpu and "error" not in device, (cpu, device)
    assert not set(device["imported"]) - set(cpu["imported"])
    assert not device["asked"]


def test_importing_the_package_imports_little():
    text = "import json, sys, torch; before = set(sys.modules); import torch_spmd; "
    imported = run("-c", text + "print(json.dumps(sorted(set(sys.modules) - before)))")
    assert not [name for name in imported if name.startswith(HEAVY)]
