# SPDX-License-Identifier: Apache-2.0
"""The examples under torchrun and by hand: the same losses for 1, 2 and 4 processes."""

import re
import subprocess
import sys

import job
import pytest

EXAMPLES = job.ROOT / "examples"
GPT = (
    *("--steps", "4", "--layers", "2", "--width", "64", "--heads", "4"),
    *("--block", "32", "--sample", "8", "--eval-every", "2"),
)
CNN = ("--epochs", "1", "--batch", "240", "--size", "16")
SCRIPTS = {"train_gpt.py": GPT, "train_cnn.py": CNN}


def result(text):
    """What the script prints about losses, without times."""
    (losses,) = re.findall(r"training loss \S+ -> [^;\n]+", text)
    held_out = re.findall(r"held-out loss \S+|test accuracy \S+", text)
    assert len(held_out) == 1
    return losses, held_out[0]


@pytest.fixture(scope="module", params=list(SCRIPTS))
def example(request, tmp_path_factory):
    """A script, its arguments, and what it prints in one process, tile by tile."""
    name = request.param
    arguments = (*SCRIPTS[name], "--out", str(tmp_path_factory.mktemp("alone")))
    alone = {"SPMD_NUM_DEVICES": "8", "SPMD_ONE_PLACE": "0"}
    (ended,) = job.run(EXAMPLES / name, 1, 200, arguments, **alone)
    assert ended.code == 0, ended.err
    return name, arguments, result(ended.out)


@pytest.mark.parametrize("processes", [2, 4])
def test_losses(example, processes):
    name, arguments, expected = example
    exact = {"SPMD_EXACT": "1", "SPMD_TIMEOUT": "60"}
    ends = job.run(EXAMPLES / name, processes, 300, arguments, processes == 2, **exact)
    for ended in ends:
        assert ended.code == 0, ended.err
    assert result(ends[0].out) == expected
    assert all(ended.out == "" for ended in ends[1:])


def test_torchrun(tmp_path):
    """The first command of docs/processes.md."""
    run = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    script = (str(EXAMPLES / "train_gpt.py"), *GPT, "--out", str(tmp_path))
    environment = job.environment(0, 1, 0, SPMD_TIMEOUT="60")
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        del environment[variable]
    done = subprocess.run(
        [sys.executable, *run, *script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    losses, _ = result(done.stdout)
    first, last = (float(loss) for loss in re.findall(r"[\d.]+", losses))
    assert first < 6 and last < 6
