# SPDX-License-Identifier: Apache-2.0
"""Paths, options and fixtures of all Python tests.

A file or test marked `modes("coalesced", …)` runs in these modes, too (support/modes.py).
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))

import modes
import pytest
import rotation

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
sys.path.append(str(ROOT))  # the folder of `benchmarks`

# Tiny ops on few cores: waiting threads should sleep, not spin. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if os.environ.get("SPMD_COALESCE") != "1":
    for variable, value in modes.as_variables(modes.TILES).items():
        os.environ.setdefault(variable, value)
# Programs that tests compile are verified after every pass.
os.environ.setdefault("SPMD_CHECK_PASSES", "1")
# Nothing that an earlier run has left on disk takes part.
os.environ.setdefault("SPMD_CACHE_DIR", "0")


def pytest_addoption(parser):
    parser.addoption(
        "--parts",
        type=int,
        default=1,
        help="of tests marked in_parts and of those in other modes one in N, others with each "
        "commit; 1 (the default) takes all",
    )
    parser.addoption("--turn", type=int, help="which of the parts, instead of the commit's")
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


def pytest_configure(config):
    rotation.configure(config.getoption("parts"), config.getoption("turn"))


def pytest_report_header():
    if rotation.parts() > 1:
        return f"parts: one in {rotation.parts()}, --turn {rotation.turn()}"


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("modes")
    if marker is not None:
        metafunc.parametrize("mode", ("tiles", *marker.args), indirect=True, scope="module")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out what other commits test, and keeps each file's tests in one process."""
    kept, dropped = [], []
    for item in items:
        in_parts = item.get_closest_marker("in_parts") is not None or mode_of(item) != "tiles"
        (dropped if in_parts and not rotation.is_chosen(item.nodeid) else kept).append(item)
        item.add_marker(pytest.mark.xdist_group(process_of(item)))
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def parameter(item, name, otherwise):
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(name, otherwise) if callspec is not None else otherwise


def mode_of(item):
    return parameter(item, "mode", "tiles")


def process_of(item):
    """Tests with the same answer run in one process, one after another: a file's, or in files of
    many ops those whose ops begin with the same letter."""
    return f"{item.path.name} {str(parameter(item, 'name', ''))[:1]}"


@pytest.fixture(scope="session")
def full_ops(request):
    """Whether `--full-ops` was given."""
    return request.config.getoption("--full-ops")


@pytest.fixture
def root():
    """The repository's folder."""
    return ROOT


@pytest.fixture(autouse=True)
def checked_passes(request):
    """The verifier runs after every pass of the compiler; with `--parts` in some of the tests."""
    from torch_spmd import _options

    on = os.environ["SPMD_CHECK_PASSES"] == "1" and rotation.is_chosen(request.node.nodeid)
    with _options.options(check_passes=on):
        yield


@pytest.fixture(scope="module", autouse=True)
def mode(request):
    """The mode in which the tests run. Each file begins as a process does: with its options, no
    mesh in use, and not taken for one that accumulates gradients.

    The session learns from optimizer steps whether gradients accumulate; the second step here has
    one backward pass."""
    import torch

    import torch_spmd as spmd

    name = getattr(request, "param", "tiles")
    with modes.in_mode(name):
        spmd.set_global_mesh(None)
        weight = torch.ones((), device="spmd", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for _ in range(2):
            weight.square().backward()
            optimizer.step()
            optimizer.zero_grad()
        yield name
