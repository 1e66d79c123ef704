# SPDX-License-Identifier: Apache-2.0
"""Jobs under torchrun: a killed process, and two agents that stand for two hosts."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import job
import pytest

# Each starts Python four or five times.
pytestmark = pytest.mark.in_parts
SCRIPT = Path(__file__).with_name("restart_train.py")
STEPS = 5


class Agents:
    """Agents of torchrun, each with its processes in a session that is killed as a whole."""

    def __init__(self, folder, *options, nodes=1, arguments=()):
        variables = job.environment(0, 1, 0, SPMD_NUM_DEVICES="8", SPMD_TIMEOUT="30")
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK",
                     "LOCAL_WORLD_SIZE"):  # fmt: skip
            del variables[name]
        support = str(job.ROOT / "tests/python/support")
        variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], support])
        where = f"--rdzv-endpoint=127.0.0.1:{job.free_port()}"
        self.processes = []
        self.files = []
        for node in range(nodes):
            self.files.append(Path(folder, f"agent {node}"))
            with self.files[-1].open("w") as out:
                command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}",
                           "--rdzv-backend=c10d", where, "--rdzv-id=test",
                           "--local-addr=127.0.0.1", "--monitor-interval=0.1", *options,
                           *arguments]  # fmt: skip
                self.processes.append(
                    subprocess.Popen(
                        command,
                        env=variables,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:  # an agent that is told to end ends its processes
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def wait(self, limit):
        codes = [process.wait(limit) for process in self.processes]
        return codes, [file.read_text() for file in self.files]


def losses(folder):
    """By step, as the last life of the script computed them."""
    lines = [line.split() for line in (folder / "losses").read_text().splitlines()]
    return {int(step): float(loss) for step, loss in lines}, len(lines)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "kill").write_text("")
    ends = job.run(
        SCRIPT, 2, 90, [str(folder), str(STEPS)], SPMD_NUM_DEVICES="8", PYTHONPATH=path()
    )
    assert [ended.code for ended in ends] == [0, 0], ends
    found, lines = losses(folder)
    assert lines == STEPS
    return found


def path():
    own = [str(job.ROOT), str(job.ROOT / "tests/python/support")]
    return os.pathsep.join([*own, os.environ.get("PYTHONPATH", "")])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_job_goes_on_from_its_last_checkpoint(tmp_path, undisturbed, rank):
    (tmp_path / "kill").write_text(f"{rank} 3")
    arguments = (str(SCRIPT), str(tmp_path), str(STEPS))
    with Agents(tmp_path, "--nproc-per-node=2", "--max-restarts=1", arguments=arguments) as agents:
        (code,), (text,) = agents.wait(150)
    assert code == 0, text[-3000:]
    found, lines = losses(tmp_path)
    assert found == undisturbed
    # The steps behind the last complete checkpoint have been made twice.
    assert STEPS < lines <= STEPS + 4


def test_two_hosts(tmp_path, undisturbed):
    """Two agents, each with a process: the same losses, and a description that names both."""
    (tmp_path / "kill").write_text("")
    arguments = (str(SCRIPT), str(tmp_path), str(STEPS))
    with Agents(tmp_path, "--nproc-per-node=1", nodes=2, arguments=arguments) as agents:
        codes, texts = agents.wait(150)
    assert codes == [0, 0], texts
    assert losses(tmp_path) == (undisturbed, STEPS)
