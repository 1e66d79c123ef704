# SPDX-License-Identifier: Apache-2.0
"""Paths and fixtures of all Python tests."""

import os
import sys
from pathlib import Path

# Tiny ops on few cores: waiting threads should sleep, not spin. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(ROOT))  # the folder of `benchmarks`


def pytest_addoption(parser):
    parser.addoption(
        "--full-ops",
        action="store_true",
        help="test_ops.py: every sample and every cut, which takes hours",
    )


@pytest.fixture(scope="session")
def full_ops(request):
    """Whether `--full-ops` was given."""
    return request.config.getoption("--full-ops")


@pytest.fixture
def root():
    """The repository's folder."""
    return ROOT
