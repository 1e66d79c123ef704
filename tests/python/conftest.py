# SPDX-License-Identifier: Apache-2.0
"""Paths and fixtures of all Python tests."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def root():
    """The repository's folder."""
    return ROOT
