# SPDX-License-Identifier: Apache-2.0
"""Runs backward_pass.py: PyTorch's thread for the device, once a test asked for it, never ends, and
nodes are tasks of the engine's from then on."""

from pathlib import Path

from processes import run_python


def test_in_a_process_of_its_own() -> None:
    cases = Path(__file__).parents[1] / "support" / "backward_pass.py"
    done = run_python("-m", "pytest", "-p", "no:cacheprovider", cases)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
