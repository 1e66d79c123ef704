# SPDX-License-Identifier: Apache-2.0
"""State in jobs of several processes: checkpoints, parts, and what goes wrong with them."""

import os
import re
import signal
from pathlib import Path

import job
import pytest

HERE = Path(__file__).parent
SUPPORT = str(job.ROOT / "tests/python/support")
EXACT = {
    "SPMD_NUM_DEVICES": "8",
    "SPMD_EXACT": "1",
    "SPMD_ONE_PLACE": "0",
    "SPMD_TIMEOUT": "60",
    "PYTHONPATH": os.pathsep.join([str(job.ROOT), SUPPORT, os.environ.get("PYTHONPATH", "")]),
}


def test_checkpoints_of_any_number_of_processes(tmp_path):
    """Each job loads what it and those before it have saved; the last one loads those of more."""
    for processes in (1, 2, 4, 1):
        arguments = [str(tmp_path)]
        ends = job.run(HERE / "state_cases.py", processes, 240, arguments, **EXACT)
        for ended in ends:
            assert ended.code == 0, ended.err[-4000:]
            assert "done" in ended.out


def test_optimizers_of_any_number_of_processes(tmp_path):
    for processes in (2, 4, 1):
        ends = job.run(HERE / "optimizer_cases.py", processes, 120, [str(tmp_path)], **EXACT)
        for ended in ends:
            assert ended.code == 0 and "done" in ended.out, ended.err[-4000:]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_parts_of_processes(processes):
    ends = job.run(HERE / "part_cases.py", processes, 120, SPMD_NUM_DEVICES="8", SPMD_TIMEOUT="30")
    for ended in ends:
        assert ended.code == 0, ended.err[-4000:]
        assert ended.out == ends[0].out
    if processes > 1:
        last = processes - 1
        lines = ends[0].out.splitlines()
        rows = 16 // processes
        assert lines[0] == (
            f"ValueError from_process_local: process {last} gives ({rows + 1}, 4), and its devices "
            f"hold ({rows}, 4) of (16, 4)"
        )
        assert lines[1].endswith(f"float32 in process 0, and torch.float64 in process {last}")
        assert f"must be a dense tensor; got None (NoneType) (in process {last})" in lines[2]
        assert "the shards leave 4 of 4 elements without data" in lines[7]


TRAINING = """
import os, signal, sys, time
import torch
import torch_spmd as spmd
from torch_spmd.state import checkpoints, files

rank = int(os.environ["RANK"])
folder = sys.argv[1]
mesh = spmd.make_mesh((8,), ("all",))
def state(value):
    w = torch.full((64, 9), float(value)).to("spmd")
    return {{"w": spmd.mark_sharding(w, mesh, ("all", None))}}
spmd.save(folder, state(1))
write = files.write_all
def wrong(file, data):
    {wrong}
    write(file, data)
def again():
    files.write_all = wrong
    try:
        saving = spmd.save(folder, state(2), wait={wait})
        checkpoints.forget(saving)  # what went wrong is raised here, not by the next call
        saving.written.result()
    except (OSError, RuntimeError) as error:
        print(type(error).__name__, error, flush=True)
    files.write_all = write
again()
{after}
"""
READ = """
t = state(0)
spmd.load(folder, t)
print("value", float(t["w"].cpu().min()), flush=True)
spmd.save(folder, state(3))
spmd.load(folder, t)
print("value", float(t["w"].cpu().max()), len(os.listdir(folder)), flush=True)
"""


@pytest.mark.parametrize("wait", [True, False])
def test_the_disk_of_one_process_is_full(tmp_path, wait):
    """One error in all, the last good checkpoint stays, and the next one is written."""
    wrong = "if rank == 1: raise OSError(28, 'No space left on device')"
    text = TRAINING.format(wrong=wrong, wait=wait, after=READ)
    for ended in job.run(text, 2, 60, [str(tmp_path)], SPMD_NUM_DEVICES="8"):
        assert ended.code == 0, ended.err
        first, *others = ended.out.splitlines()
        assert first == "OSError [Errno 28] No space left on device (in process 1)"
        # The manifest and the files of two processes: what was begun is gone.
        assert others == ["value 1.0", "value 3.0 3"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_writer_is_killed(tmp_path, rank):
    wrong = f"if rank == {rank}: os.kill(os.getpid(), signal.SIGKILL)"
    text = TRAINING.format(wrong=wrong, wait=True, after="")
    ends = job.run(text, 2, 60, [str(tmp_path)], SPMD_NUM_DEVICES="8")
    assert ends[rank].code == -signal.SIGKILL
    other = ends[1 - rank]
    assert re.search(rf"process {rank} is gone", other.out + other.err), other
    text = TRAINING.split("spmd.save(folder")[0].format() + READ
    for ended in job.run(text, 2, 60, [str(tmp_path)], SPMD_NUM_DEVICES="8"):
        assert ended.code == 0, ended.err
        assert ended.out.splitlines() == ["value 1.0", "value 3.0 3"]


LONE = {
    "a lone saver": (
        "if rank == 0: spmd.save(folder, state(4))\nelse: (state(4)['w'] + 1).cpu()",
        r"process 0 saves a checkpoint to '.*' at train.py:\d+, and process 1 runs the \d+ calls",
    ),
    "one loads": (
        "spmd.load(folder, state(4)) if rank == 0 else spmd.save(folder, state(4))",
        r"process 0 loads the checkpoint '.*', and process 1 saves a checkpoint to",
    ),
    "another tree": (
        "spmd.save(folder, {'w': torch.ones(3 + rank)})",
        r"ValueError: save: tensor 'w' is float32 \(4,\), and in process 0 .*in process 1",
    ),
    "another tree for others": (
        "spmd.save(folder + '/x.safetensors', {'w': torch.ones(3 + rank)}, format='safetensors')",
        r"ValueError: save: tensor 'w' is float32 \(4,\), and in process 0 .*in process 1",
    ),
    "what one cannot save": (
        "spmd.save(folder, {'w': torch.ones(3), 'x': object() if rank else 1})",
        r"TypeError: save: .*object object.*\(in process 1\)",
    ),
    "what one cannot save while the others talk": (
        "state = spmd.checkpoint.RandomState()\n"
        "spmd.save(folder, {'x': object() if rank else 1, 'random': state})",
        r"process 0 saves the states of random numbers, and process 1 saves a checkpoint to",
    ),
    "what one has no room to load": (
        "from torch_spmd.state import targets\n"
        "spmd.save(folder, state(4))\n"
        "if rank: targets.Plan.prepare = lambda _: [0] * (1 << 60)\n"
        "spmd.load(folder, state(4))",
        r"MemoryError:.*\(in process 1\)|and process 1 loads the checkpoint",
    ),
    "a saver that ends": (
        "if rank == 0: spmd.save(folder, state(4))",
        r"process 1 has ended its script|process 1 is gone",
    ),
}


@pytest.mark.parametrize("name", list(LONE))
def test_processes_that_do_not_save_alike(tmp_path, name):
    after, pattern = LONE[name]
    text = TRAINING.format(wrong="pass", wait=True, after=after)
    ends = job.run(text, 2, 60, [str(tmp_path)], SPMD_NUM_DEVICES="8")
    for rank, ended in enumerate(ends):
        if name != "a saver that ends" or rank == 0:
            assert ended.code not in (0, -6), ended
            assert re.search(pattern, ended.err), ended.err[-2000:]


WRITER = """
import os, signal, sys
import torch
import torch.distributed.checkpoint as dcp
import torch_spmd as spmd

x = torch.ones(4).to("spmd") * 2
spmd.sync(wait=True)
if os.environ["RANK"] == "1":
    dcp.FileSystemWriter.write_data = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
spmd.integrations.dcp()
dcp.save({"x": x}, checkpoint_id=sys.argv[1])
"""


def test_a_process_is_killed_in_dcp_save(tmp_path):
    """PyTorch's group says that a connection is closed; the error says which process is gone."""
    other, killed = job.run(WRITER, 2, 60, [str(tmp_path / "saved")], SPMD_NUM_DEVICES="8")
    assert killed.code == -signal.SIGKILL
    assert re.search(r"RuntimeError: process 1 is gone: .*dcp.save", other.err), other


ARGUMENTLESS = """
import torch
import torch.distributed as dist
{first}
import torch_spmd as spmd
{before}
dist.init_process_group()
total = torch.ones(3) * (1 + dist.get_rank())
dist.all_reduce(total)
every = [None] * 2
dist.all_gather_object(every, dist.get_rank())
dist.all_reduce(total, group=dist.new_group())
mesh = spmd.make_mesh((8,), ("all",))
x = spmd.mark_sharding(torch.arange(8.0).to("spmd"), mesh, ("all",))
print(total.tolist(), every, x.sum().item(), spmd.processes.process_count())
"""


def test_a_group_without_a_backend():
    for ended in job.run(ARGUMENTLESS.format(first="", before=""), 2, 60, SPMD_NUM_DEVICES="8"):
        assert ended.code == 0, ended.err
        assert ended.out.splitlines() == ["[6.0, 6.0, 6.0] [0, 1] 28.0 2"]


def test_a_group_after_the_device_was_used_alone():
    """Without torchrun's environment at first: nothing else could tell the others' existence."""
    first = "import os; kept = {k: os.environ.pop(k) for k in ('RANK', 'WORLD_SIZE')}"
    before = "torch.ones(3, device='spmd').sum().item(); os.environ.update(kept)"
    ends = job.run(ARGUMENTLESS.format(first=first, before=before), 2, 60)
    for ended in ends:
        assert ended.code == 1
        assert "Mesh: this process has used the device spmd before init_process_group" in ended.err


GROUP_TWICE = """
import torch
import torch.distributed as dist
import torch_spmd as spmd
mesh = spmd.make_mesh((2,), ("all",))
for make in (dist.init_process_group, dist.distributed_c10d.init_process_group):
    try:
        make("gloo")
    except ValueError as error:
        print(error)
x = spmd.mark_sharding(torch.arange(2.0).to("spmd"), mesh, ("all",))
print(x.sum().item())
"""


def test_a_group_after_a_mesh_says_which_line_made_it():
    for ended in job.run(GROUP_TWICE, 2, 60, SPMD_NUM_DEVICES="2"):
        *errors, total = ended.out.splitlines()
        assert len(errors) == 2 and set(errors) == {
            "init_process_group: torch_spmd has made the default group from torchrun's "
            "environment, when the device was first used (train.py:5); call init_process_group "
            "before that line, or leave it out"
        }
        assert total == "1.0"


OTHER_DATA = """
import os, sys
import torch
import torch_spmd as spmd

mesh = spmd.make_mesh((8,), ("all",))
for own in (int(os.environ["RANK"]), 0):
    data = torch.zeros(300, 300)
    data[7, 7] = own  # the last bytes are compared with SPMD_VERIFY only
    x = spmd.mark_sharding(data.to("spmd"), mesh, ("all", None))
    for format in ("spmd", "dcp"):
        try:
            spmd.save(os.path.join(sys.argv[1], format), {"x": x}, format=format)
            print("saved", flush=True)
        except ValueError as error:
            print(error, flush=True)
"""


def test_data_that_is_saved_before_it_is_used_is_compared(tmp_path):
    variables = {"SPMD_NUM_DEVICES": "8", "SPMD_VERIFY": "1", "SPMD_TIMEOUT": "30"}
    for ended in job.run(OTHER_DATA, 2, 60, [str(tmp_path)], **variables):
        assert ended.code == 0, ended.err[-4000:]
        differs = (
            "save: the data of tensor 'x', float32 (300, 300), is not the same as in process 0. "
            "Every process moves the whole value to the device; "
            "spmd.processes.from_process_local takes parts (in process 1)"
        )
        assert ended.out.splitlines() == [differs, differs, "saved", "saved"]


LEAVING = """
import os, sys
import torch
import torch_spmd as spmd

rank = int(os.environ["RANK"])
mesh = spmd.make_mesh((8,), ("all",))
w = spmd.mark_sharding(torch.zeros(64, 9).to("spmd"), mesh, ("all", None))
with spmd.checkpoint.Checkpointer(sys.argv[1], every=1, keep=3) as checkpoints:
    first = checkpoints.load({{"w": w}}) or 0
    print("from", first, w.sum().item() / 576 == first, flush=True)
    for step in range(first, 8):
        w.add_(1)
        checkpoints.save(step + 1, {{"w": w}})
        if rank == 1 and step == 5 and first == 0:
            {how}
        w.sum().item()
"""


@pytest.mark.parametrize("how", ["raise ValueError('my own mistake')", "break", "sys.exit(3)"])
def test_one_process_leaves_a_checkpointer(tmp_path, how):
    """A save is being written, for which each process needs the other. Nobody waits for it."""
    text = LEAVING.format(how=how)
    ends = job.run(text, 2, 40, [str(tmp_path)], SPMD_NUM_DEVICES="8", SPMD_TIMEOUT="120")
    by = {"r": " by ValueError", "b": "", "s": " by SystemExit"}[how[0]]
    assert re.search(f"process 1 leaves the block of a Checkpointer{by} at", ends[0].err), ends
    assert ends[0].code == 1
    if how[0] == "r":
        assert ends[1].err.rstrip().endswith("ValueError: my own mistake"), ends[1]
    elif how[0] == "s":
        assert ends[1].code == 3, ends[1]
    for ended in job.run(text, 2, 40, [str(tmp_path)], SPMD_NUM_DEVICES="8"):
        assert ended.code == 0, ended
        assert ended.out.splitlines()[0] in ("from 5 True", "from 6 True"), ended


@pytest.mark.parametrize("how", ["raise ValueError('my own mistake')", "sys.exit(0)"])
def test_a_script_ends_while_its_checkpoint_is_written(tmp_path, how):
    """The thread that writes needs the other process, whose script waits for this one."""
    text = LEAVING.replace(
        "with spmd.checkpoint.Checkpointer", "if checkpoints := spmd.checkpoint.Checkpointer"
    )
    text = text.replace(", keep=3) as checkpoints:", ", keep=3):").format(how=how)
    ends = job.run(text, 2, 40, [str(tmp_path)], SPMD_NUM_DEVICES="8", SPMD_TIMEOUT="120")
    why = "with ValueError: my own mistake" if how[0] == "r" else "its script after round"
    assert ends[0].code == 1 and f"process 1 has ended {why}" in ends[0].err, ends
    assert ends[1].code == (1 if how[0] == "r" else 0), ends[1]
