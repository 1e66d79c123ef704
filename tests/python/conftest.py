# SPDX-License-Identifier: Apache-2.0
"""Paths and fixtures of all Python tests."""

import os
import sys
from pathlib import Path

# Tiny ops on few cores: waiting threads should sleep, not spin. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Tile by tile, as devices with memory of their own would run: what tests are about. With
# SPMD_COALESCE=1 the same tests run as users do by default.
os.environ.setdefault("SPMD_COALESCE", "0")
# Devices take turns even where tensors are too small for that to pay.
if os.environ["SPMD_COALESCE"] == "0":
    os.environ.setdefault("SPMD_TURNS", "1")
# Every program that a test compiles is verified after every pass.
os.environ.setdefault("SPMD_CHECK_PASSES", "1")

# Nothing that an earlier run has left on disk takes part.
os.environ.setdefault("SPMD_CACHE_DIR", "0")

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
sys.path.insert(0, str(Path(__file__).parent / "support"))
sys.path.append(str(ROOT))  # the folder of `benchmarks`


def pytest_addoption(parser):
    parser.addoption(
        "--full-ops",
        action="store_true",
        help="every sample and every cut of PyTorch's own ops, which takes hours",
    )
    parser.addoption(
        "--full-programs",
        type=int,
        default=0,
        help="test_random_programs.py: so many programs more; 10,000 take two minutes",
    )
    parser.addoption(
        "--full-calls",
        type=int,
        default=0,
        help="test_messages.py: so many calls more; 100,000 take two minutes",
    )
    parser.addoption(
        "--full-models",
        type=int,
        default=0,
        help="test_random_models.py: so many ways more to cut each of 22 models",
    )
    parser.addoption(
        "--first-program",
        type=int,
        default=1000,
        help="test_random_programs.py, test_random_models.py: the first seed of what is more",
    )


@pytest.fixture(scope="session")
def full_ops(request):
    """Whether `--full-ops` was given."""
    return request.config.getoption("--full-ops")


@pytest.fixture
def root():
    """The repository's folder."""
    return ROOT


@pytest.fixture(scope="module", autouse=True)
def _each_file_begins_as_a_process_does():
    """With the settings of above, no mesh in use, and not taken for one that accumulates gradients.

    The session learns from steps of optimizers; the second one here has one backward pass.
    """
    import torch

    import torch_spmd as spmd

    spmd.set_coalescing(os.environ["SPMD_COALESCE"] != "0")
    spmd.set_deduplication(True)
    spmd.set_global_mesh(None)
    weight = torch.ones((), device="spmd", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for _ in range(2):
        weight.square().backward()
        optimizer.step()
        optimizer.zero_grad()
