# SPDX-License-Identifier: Apache-2.0
"""`torch_spmd.torch_xla`: the cases run in processes of their own, since installing the names of
torch_xla changes PyTorch in a process, and on several numbers of devices."""

from pathlib import Path

import pytest
from processes import run_python

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
IN_PARTS = [pytest.param(devices, marks=pytest.mark.in_parts) for devices in (1, 8)]


@pytest.mark.parametrize("devices", [4, *IN_PARTS])
def test_cases(devices):
    done = run_python(
        "-m", "torch_spmd.torch_xla", "-m", "pytest", "-q", "-p", "no:cacheprovider", *CASES,
        SPMD_NUM_DEVICES=str(devices), PYTHONWARNINGS="ignore",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
