# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong in one process, all of them end soon, with the same words."""

import re
import signal

import job
import pytest

TRAINING = """
import sys, time
import torch
import torch_spmd as spmd

rank = int(__import__("os").environ["RANK"])
torch.manual_seed({seed})
mesh = spmd.make_mesh((8,), ("data",))
model = torch.nn.Linear(4, 3).to("spmd")
optimizer = torch.optim.SGD(model.parameters(), lr={lr})

def step(i):
    x = torch.full((8, 4), float(i)).to("spmd")
    spmd.mark_sharding(x, mesh, ("data", None))
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss, x

for i in range({steps}):
    loss, x = step(i)
    {extra}
    print("step", i, loss.item(), flush=True)
print("done", flush=True)
"""


def script(extra="pass", steps="5", seed="0", lr="0.1"):
    return TRAINING.format(extra=extra, steps=steps, seed=seed, lr=lr)


def last_line(err):
    """The message of the exception with which a process ended."""
    lines = [line for line in err.strip().splitlines() if line and not line.startswith("[")]
    return lines[-1] if lines else ""


def check_all(ends, pattern, but=()):
    for rank, ended in enumerate(ends):
        if rank in but:
            continue
        assert ended.code not in (0, -6), (rank, ended)
        assert re.search(pattern, ended.err), (rank, ended.err[-2000:])


def test_without_a_fault():
    for ended in job.run(script()):
        assert ended.code == 0, ended.err
        assert "done" in ended.out


DIFFERENCES = {
    "an op more": (
        {"extra": "y = x + 1 if rank == 1 else x; z = (y * 2).sum(); z.item()"},
        r"round \d+: process 0 runs aten::mul.*, and process 1 runs aten::add",
    ),
    "another shape": (
        {"extra": "y = torch.ones(3 + rank).to('spmd') * 2; spmd.sync(wait=True)"},
        r"process 0 runs aten::mul\S*\(f32\[3\].*\) .*at train.py:\d+, and process 1 runs "
        r"aten::mul\S*\(f32\[4\]",
    ),
    "another dtype": (
        {"extra": "y = x.to(torch.float64 if rank else torch.bfloat16) * 2; spmd.sync(wait=True)"},
        r"process 0 runs .* -> bf16\[8,4\] at train.py:\d+, and process 1 runs .* -> f64\[8,4\]",
    ),
    "another mark": (
        {
            "extra": "y = torch.ones(8, 8).to('spmd'); "
            "spmd.mark_sharding(y, mesh, ('data', None) if rank else (None, 'data')); "
            "z = (y * 2).sum(); z.item()"
        },
        r"all of them run aten::mul.* at train.py:\d+, where the mark of self is \(None, 'data'\)"
        r" on .* in process 0, and the mark of self is \('data', None\) on .* in process 1",
    ),
    "another mark of what is pending": (
        {
            "extra": "m = mesh if rank else spmd.make_mesh((2, 4), ('data', 'model')); "
            "z = spmd.mark_sharding(torch.ones(8, 4).to('spmd') * 1, m, ('data', None)); "
            "(z + 1).sum().item()"
        },
        r"process 0 marks the result of aten::mul\S*\(f32\[8,4\]\).* at train.py:\d+ as "
        r"\('data', None\) on \[data=2, model=4\] over devices 0..7, and process 1 marks the "
        r"result of .* as \('data', None\) on \[data=8\] over devices 0..7",
    ),
    "another mark at the end": (
        {
            "extra": "z = torch.ones(8, 4).to('spmd') * 1; "
            "spmd.mark_sharding(z, mesh, ('data', None)) if rank else None; z.cpu()"
        },
        r"process 0 stops here \(.*\).*, and process 1 marks the result of aten::mul.* as "
        r"\('data', None\) on \[data=8\]",
    ),
    "another operand": (
        {"extra": "y = x * 2; z = x * 3; (y if rank else z).sum().item()"},
        r"all of them run aten::sum.*, where self is the result of call (\d+), aten::mul\S* at "
        r"train.py:\d+ in process 0, and self is the result of call (?!\1)\d+, aten::mul",
    ),
    "another argument": (
        {"extra": "y = x.cumsum(0 if rank else 1); spmd.sync(wait=True)"},
        r"all of them run aten::cumsum.*, where dim is 1 in process 0, and dim is 0 in process 1",
    ),
    "another seed": (
        {"extra": "torch.manual_seed(rank + i); y = torch.rand(4, device='spmd'); y.cpu()"},
        r"(a number that is passed to .*|process 0 runs .*)",
    ),
    "another learning rate": (
        {"lr": "0.1 + rank"},
        r"a number that is passed to aten::.* is -?0\.1\S* in process 0 and -?1\.1\S* in process 1",
    ),
    "other data": (
        {"extra": "y = torch.full((3,), float(rank)).to('spmd') * 2; spmd.sync(wait=True)"},
        r"data that is moved to the device, f32\[3\], is not the same in process 0 and process 1",
    ),
    "parts on another mesh": (
        {
            "extra": "m = mesh if rank else spmd.make_mesh((2, 4), ('data', 'model')); "
            "spmd.processes.from_process_local(torch.ones(4, 4), m, ('data', None)).cpu()"
        },
        r"ValueError: from_process_local: mesh is .*\[data=2, model=4\].* in process 0, and "
        r".*\[data=8\].* in process 1",
    ),
    "a lone reader": (
        {"extra": "print(x.sum(1).cpu()) if rank == 0 and i == 2 else None"},
        r"the processes of the job differ in round \d+",
    ),
    "a lone reader of what has been computed": (
        {"extra": "spmd.sync(wait=True); print(x.cpu()) if rank == 0 and i == 2 else None"},
        r"process 0 reads a value of f32\[8,4\] .* at train.py:\d+, "
        r"and process 1 runs the \d+ calls",
    ),
    "a longer loader": (
        {"steps": "4 + rank"},
        r"process 0 has ended its script after round \d+, and process 1 runs the \d+ calls .*"
        r"loaders",
    ),
}


@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_a_difference_is_named_in_all(name):
    changes, pattern = DIFFERENCES[name]
    ends = job.run(script(**changes), limit=40)
    ended_well = (0,) if name == "a longer loader" else ()
    check_all(ends, pattern, ended_well)
    for rank in ended_well:
        assert re.search(pattern, ends[rank].err)


def test_other_set_up():
    ends = job.run(script(), limit=40, SPMD_NUM_DEVICES=lambda rank: str(8 + 2 * rank))
    check_all(ends, r"not set up alike: the number of devices: 8 in process 0, 10 in process 1")


@pytest.mark.parametrize("gone", [0, 1])
def test_a_process_has_ended_before_the_start(gone):
    """Process 0 keeps the store where there is no agent of torchrun."""
    text = "import os\nimport torch, torch_spmd\n"
    text += f"if os.environ['RANK'] == '{gone}': os._exit(0)\ntorch.ones(2).to('spmd')"
    text += ".add_(1).cpu()"
    ends = job.run(text, limit=25, SPMD_TIMEOUT="3")
    words = "finds no store at 127.0.0.1" if gone == 0 else "has waited 3 s for process 1 to start"
    check_all(ends, f"cannot join .* process {1 - gone} {words}", but=(gone,))


def test_a_process_is_killed_while_it_starts():
    text = """
import os, signal
import torch, torch_spmd
import torch.distributed as dist

if os.environ["RANK"] == "1":
    dist.new_group = lambda **how: os.kill(os.getpid(), signal.SIGKILL)
torch.ones(2).to("spmd").add_(1).cpu()
"""
    ends = job.run(text, limit=40, SPMD_TIMEOUT="2")
    check_all(ends, r"cannot join the processes .* process 0 cannot join process 1,", but=(1,))


def test_auto_shard_finds_the_same_in_all_processes():
    extra = (
        "print(dict(spmd.planning.auto_shard(torch.nn.Linear(8, 8), batch=torch.zeros(8, 8), "
        "on='v5e-8', loss=lambda m, x: m(x).sum())))"
    )
    ended = job.run(script(extra=extra), limit=60)
    for each in ended:
        assert each.code == 0 and "done" in each.out, each.err
        found = [line for line in each.out.splitlines() if line.startswith("{'weight': P(")]
        assert found and set(found) == {ended[0].out.splitlines()[0]}


def test_devices_that_cannot_be_dealt():
    ends = job.run(script(), limit=40, SPMD_NUM_DEVICES="7")
    check_all(ends, r"7 devices cannot be dealt to 2 processes .* SPMD_NUM_DEVICES")


def test_a_mesh_that_is_too_large():
    text = "import torch, torch_spmd as s\ntorch.ones(2).to('spmd') + 1\ns.sync()\n"
    text += "m = s.make_mesh((16,), ('a',))\ns.mark_sharding(torch.ones(16).to('spmd'), m, ('a',))"
    check_all(job.run(text, limit=40), r"SPMD_NUM_DEVICES|device_count|8 devices")


ENDLESS = {"steps": "10**9", "extra": "time.sleep(0.01)"}


@pytest.mark.parametrize(("processes", "shared"), [(2, "1"), (3, "1"), (2, "0")])
def test_a_process_is_killed(processes, shared):
    variables = {"SPMD_NUM_DEVICES": "12", "SPMD_SHARED_MEMORY": shared}
    with job.Job(script(**ENDLESS), processes, **variables) as running:
        running.wait_for(1, "step 3")
        running.signal(1, signal.SIGKILL)
        ends = running.wait(20)
    check_all(ends, r"process 1 is gone", but=(1,))


@pytest.mark.parametrize("shared", ["1", "0"])
def test_a_process_is_stopped(shared):
    with job.Job(script(**ENDLESS), SPMD_TIMEOUT="3", SPMD_SHARED_MEMORY=shared) as running:
        running.wait_for(1, "step 3")
        running.signal(1, signal.SIGSTOP)
        (ended,) = running.wait(25, [0])
    check_all([ended], r"process 0.* has waited 3 s for process 1")


def test_two_processes_are_stopped():
    with job.Job(script(**ENDLESS), 3, SPMD_NUM_DEVICES="12", SPMD_TIMEOUT="3") as running:
        running.wait_for(1, "step 3")
        running.signal(1, signal.SIGSTOP)
        running.signal(2, signal.SIGSTOP)
        (ended,) = running.wait(25, [0])
    check_all([ended], r"process 0.* has waited 3 s for processes 1 and 2\.")


def test_the_process_that_keeps_the_store_is_stopped():
    with job.Job(script(**ENDLESS), SPMD_TIMEOUT="3") as running:
        running.wait_for(0, "step 3")
        running.signal(0, signal.SIGSTOP)
        (ended,) = running.wait(30, [1])
    check_all([ended], r"process 1.* has waited 3 s")


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_ends_early(code):
    text = script(steps="10**9", extra=f"sys.exit({code}) if rank == 1 and i == 3 else None")
    ends = job.run(text, limit=30)
    assert ends[1].code == code
    check_all(ends, r"process 1 has ended its script after round \d+", but=(1,))


def test_a_process_ends_without_a_word():
    extra = "__import__('os')._exit(0) if rank == 1 and i == 3 else None"
    ends = job.run(script(steps="10**9", extra=extra), limit=30)
    check_all(ends, r"process 1 is gone", but=(1,))


def test_a_process_raises():
    text = script(steps="10**9", extra="assert rank == 0 or i < 3, 'my own mistake'")
    ends = job.run(text, limit=30)
    check_all(ends, r"process 1 has ended with AssertionError: my own mistake", but=(1,))


def test_an_interrupt_of_one():
    with job.Job(script(**ENDLESS)) as running:
        running.wait_for(1, "step 3")
        running.signal(1, signal.SIGINT)
        ends = running.wait(30)
    assert "KeyboardInterrupt" in ends[1].err
    check_all(ends, r"process 1 (was interrupted|has ended with KeyboardInterrupt)", but=(1,))


def test_an_interrupt_of_one_that_waits():
    """Process 1 does not come; process 0 is interrupted while it waits for it."""
    text = script(steps="10**9", extra="time.sleep(60) if rank == 1 and i == 3 else None")
    with job.Job(text, SPMD_TIMEOUT="60") as running:
        running.wait_for(0, "step 3")
        running.signal(0, signal.SIGINT)
        (ended,) = running.wait(20, [0])
    assert "KeyboardInterrupt" in ended.err


def test_an_index_out_of_range_in_one_process():
    extra = (
        "j = torch.arange(8); j[6] = 99; j = j.to('spmd'); spmd.mark_sharding(j, mesh, ('data',)); "
        "torch.index_select(x, 0, j).sum().item()"
    )
    ends = job.run(script(extra=extra), limit=40)
    check_all(ends, r"index 99 is out of bounds.*\(in process 1\)")


def test_ragged_rows_that_do_not_fit_in_one_process():
    """All processes have the error, where it is read; what the program does not change is kept."""
    extra = (
        "from torch_spmd import P; "
        "f = spmd.shard_map(lambda t, u, n, o: spmd.lax.ragged_all_to_all(t, u, 0 * n, n, o, n, "
        "axis_name='data'), mesh, (P('data', None), P('data', None), P('data'), P('data')), "
        "P('data', None)); "
        "o = torch.arange(8).repeat_interleave(8); o[50] = 8; "
        "y = f(x, torch.zeros(64, 4).to('spmd'), torch.ones(64, dtype=torch.long).to('spmd'), "
        "o.to('spmd'))\n    "
        "try: y.cpu()\n    "
        "except RuntimeError as error: print('kept', x.sum().item()); raise"
    )
    ends = job.run(script(extra=extra), limit=40)
    check_all(
        ends,
        r"ragged_all_to_all: output_offsets \+ send_sizes must be in 0 to 8, the rows of output; "
        r"got 9.*\(in process 1\)",
    )
    for ended in ends:
        assert "kept 0.0" in ended.out


def test_spmd_distributed_0_lets_each_work_alone():
    text = script(extra="assert spmd.processes.process_count() == 1", lr="0.1 + rank")
    for ended in job.run(text, limit=40, SPMD_DISTRIBUTED="0"):
        assert ended.code == 0, ended.err


def test_programs_are_verified_together():
    """The unsharded runs read what all processes hold; large data are compared to the last byte."""
    variables = {"SPMD_VERIFY": "1", "SPMD_TIMEOUT": "30"}
    for ended in job.run(script(steps="2"), limit=90, **variables):
        assert ended.code == 0, ended.err
    extra = "y = torch.zeros(300, 300); y[7, 7] = rank; y = y.to('spmd') * 2; spmd.sync(wait=True)"
    ends = job.run(script(extra=extra), limit=90, **variables)
    check_all(ends, r"data that is moved to the device, f32\[300,300\], is not the same")


def test_a_fork_after_the_start():
    """The child gets the usual error, and the job goes on."""
    extra = (
        "child = os.fork() if i == 1 and rank == 1 else None\n"
        "    if child == 0:\n"
        "        try:\n"
        "            (x + 1).cpu()\n"
        "        except RuntimeError as error:\n"
        "            print(error, flush=True)\n"
        "        os._exit(0)\n"
        "    elif child:\n"
        "        os.waitpid(child, 0)"
    )
    ends = job.run(
        script(extra=extra).replace("import sys, time", "import os, sys, time"), limit=60
    )
    for ended in ends:
        assert ended.code == 0 and "done" in ended.out, ended.err
    assert "this process was forked from one that had used the device" in ends[1].out


def test_one_prints_a_loss_that_has_been_computed():
    ends = job.run(script(extra="print('loss', loss.item()) if rank == 0 else None"), limit=60)
    for ended in ends:
        assert ended.code == 0, ended.err
    assert "loss 0." in ends[0].out and "loss" not in ends[1].out
