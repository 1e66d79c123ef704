# SPDX-License-Identifier: Apache-2.0
"""Without what only devices that share one CPU can do, models have the same numbers.

`SPMD_ONE_PLACE=0` turns all of csrc/runtime/one_place off, whatever the other variables say.
"""

from pathlib import Path

import pytest
from processes import run_python

TESTS = Path(__file__).parents[1]


@pytest.mark.in_parts
@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("models/test_gpt_losses.py", "float64_equals_plain_pytorch"),
        ("models/test_cnn_losses.py", ""),
        ("optim/test_optimizer_steps.py", ""),
        ("device/test_views.py", ""),
    ],
)
def test_with_nothing_shared(file, chosen):
    off = {"SPMD_ONE_PLACE": "0", "SPMD_COALESCE": "1", "SPMD_TURNS": "1"}
    done = run_python("-m", "pytest", "-q", "-x", TESTS / file, "-k", chosen, cwd=TESTS, **off)
    assert done.returncode == 0, done.stdout
