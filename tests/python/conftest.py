# SPDX-License-Identifier: Apache-2.0
"""Paths, options and fixtures of all Python tests.

A file or test marked `modes("coalesced", …)` runs in these modes, too (support/modes.py).
"""

import gc
import os
import re
import sys
import zlib
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

# The files that take longest, in the order in which they begin.
LONG = (
    *("test_failures.py", "test_job_state.py", "test_job_examples.py", "test_ops.py"),
    *("test_auto_shard.py", "test_random_models.py", "test_cases_on_devices.py"),
    *("test_rule_tiles.py", "test_job_restarts.py", "test_examples.py", "test_optim_db.py"),
    *("test_one_place.py", "test_gpt_losses.py", "test_hf_plan.py", "test_op_dtypes.py"),
    *("test_trainer_of_transformers.py", "test_strides.py", "test_scripts.py"),
    *("test_foreign_checkpoints.py", "test_messages.py", "test_torch_compile.py"),
    *("test_upstream_bugs.py", "test_upstream_bugs_images.py", "test_partial_sums.py"),
    *("test_workloads.py", "test_other_packages.py", "test_autoload.py", "test_docs.py"),
    *("test_planning.py", "test_loader.py", "test_peers.py", "test_collectives.py"),
    *("test_one_f_one_b.py", "test_install.py", "test_shapes.py", "test_job_faults.py"),
    *("test_plan.py", "test_module_db.py", "test_environment.py"),
    *("test_oracle.py", "test_cases.py", "test_job_trainers.py", "test_op_failures.py"),
    *("test_scale.py", "test_trainers.py", "test_dtensors.py"),
    *("test_notebooks.py",),
)


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
        "--dump",
        type=Path,
        help="a folder: the graph and the program of each compilation are written there, one file "
        "for each test; tools/compare_dumps.py compares two such folders",
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
        return f"parts: one in {rotation.parts()}, --turn={rotation.turn()}"


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("modes")
    if marker is not None:
        metafunc.parametrize("device_mode", ("tiles", *marker.args), indirect=True, scope="module")


def pytest_collection_modifyitems(config, items):
    """Leaves out what other commits test. The longest files begin first: each is one process's."""
    kept, dropped = [], []
    for item in items:
        in_parts = item.get_closest_marker("in_parts") or mode_of(item) != "tiles"
        (dropped if in_parts and not rotation.is_chosen(item.nodeid) else kept).append(item)
    config.hook.pytest_deselected(items=dropped)
    place = {name: number for number, name in enumerate(LONG)}
    items[:] = sorted(kept, key=lambda item: place.get(item.path.name, len(LONG)))


def pytest_collection_finish():
    """What all test files have imported stays: collections of garbage need not look at it."""
    gc.collect()
    gc.freeze()


def mode_of(item):
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("device_mode", "tiles") if callspec is not None else "tiles"


@pytest.fixture(scope="session")
def full_ops(request):
    """Whether `--full-ops` was given."""
    return request.config.getoption("--full-ops")


@pytest.fixture
def root():
    """The repository's folder."""
    return ROOT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """With --dump, what this test and the processes that it starts compile goes to its file."""
    folder = item.config.getoption("dump")
    if folder is None:
        return (yield)
    from torch_spmd.device import options

    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.\[\]-]+", "_", item.nodeid)
    if len(name) > 180:
        name = f"{name[:150]}~{zlib.crc32(name.encode()):08x}"
    file = str((folder / f"{name}.txt").resolve())
    with pytest.MonkeyPatch.context() as patch, options.update(dump=file):
        patch.setenv("SPMD_DUMP", file)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def no_seeds_of_absent_devices():
    """`torch.manual_seed` keeps a seed for each kind of device that may come yet, and with it a
    traceback, which takes longer than many a test."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            if not kind.is_available():
                patch.setattr(kind, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(autouse=True)
def checked_passes(request):
    """The verifier runs after every pass of the compiler; with `--parts` in some of the tests."""
    from torch_spmd.device import options

    on = os.environ["SPMD_CHECK_PASSES"] == "1" and rotation.is_chosen_within(request.node.nodeid)
    with options.update(check_passes=on):
        yield


@pytest.fixture(scope="module", autouse=True)
def device_mode(request):
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
