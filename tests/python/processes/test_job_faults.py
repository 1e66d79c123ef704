# SPDX-License-Identifier: Apache-2.0
"""Something goes wrong in one process, at a random place or a random moment. All others end soon,
with an error that names what has happened; nothing hangs, and nothing ends with a signal.

SPMD_TEST_FAULTS=N runs N seeds of each kind, SPMD_TEST_FIRST_FAULT is the first one.
"""

import os
import random
import re
import signal
import time
from pathlib import Path

import fault_train
import job
import pytest
import torch

SCRIPT = Path(__file__).with_name("fault_train.py")
SEEDS = int(os.environ.get("SPMD_TEST_FAULTS", "1"))
FIRST = int(os.environ.get("SPMD_TEST_FIRST_FAULT", "0"))
TIMEOUT = 4
NAMED = (
    r"the processes of the job differ|process(es)? \d.* (is|are) gone|"
    r"process \d+.* has waited \d+ s|"
    r"process \d+ was interrupted|process \d+ has ended|process \d+: "
    r"|\(in process \d+\)|out of memory|can't allocate memory"
)


def start(folder, seed, processes):
    variables = {
        "SPMD_NUM_DEVICES": "12",
        "SPMD_TIMEOUT": str(TIMEOUT),
        "PYTHONPATH": os.pathsep.join(
            [
                str(job.ROOT),
                str(job.ROOT / "tests/python/support"),
                os.environ.get("PYTHONPATH", ""),
            ]
        ),
    }
    return job.Job(SCRIPT, processes, [str(folder), str(seed)], **variables)


def check(ends, culprit, what):
    for rank, ended in enumerate(ends):
        if rank == culprit:
            continue
        assert ended.code not in (0, -6, -11), (what, rank, ended)
        assert re.search(NAMED, ended.err), f"{what}, process {rank}:\n{ended.err}"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_fault_at_a_random_place(tmp_path, seed):
    processes = 2 + seed % 3
    fault, culprit, _, _ = fault_train.choice(seed, processes)
    heard = fault_train.FAULTS[fault][1]
    what = f"seed {seed}: {fault} in process {culprit} of {processes}"
    with start(tmp_path, seed, processes) as running:
        others = [rank for rank in range(processes) if rank != culprit or fault != "stopped"]
        running.wait(60 + TIMEOUT, others)
        ends = [running.ended(rank) for rank in range(processes)]
    if not heard:
        assert all(ended.code == 0 for ended in ends), (what, ends)
    else:
        check(ends, culprit, what)
        assert ends[culprit].code not in (-6, -11), (what, ends[culprit])


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_signal_at_a_random_moment(tmp_path, seed):
    choose = random.Random(1000 + seed)
    processes = choose.choice([2, 3, 4])
    culprit = choose.randrange(processes)
    number = choose.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGINT])
    what = f"seed {seed}: {number.name} to process {culprit} of {processes}"
    with start(tmp_path, -1, processes) as running:
        running.wait_for(culprit, f"step {choose.randrange(3)}")
        time.sleep(choose.random() * 0.3)
        running.signal(culprit, number)
        others = [rank for rank in range(processes) if rank != culprit]
        running.wait(60 + TIMEOUT, others)
        ends = [running.ended(rank) for rank in range(processes)]
    if "done" in ends[others[0]].out and ends[others[0]].code == 0:
        pytest.skip(f"{what} came after the end")
    check(ends, culprit, what)


NO_MEMORY = """
import os, resource
import torch
import torch_spmd as spmd

NONE = resource.RLIM_INFINITY
mesh = spmd.make_mesh((8,), ("data",))

def data(t):
    return spmd.mark_sharding(t, mesh, ("data",))

def limit(more):
    pages = int(open("/proc/self/statm").read().split()[0])
    most = NONE if more is None else pages * resource.getpagesize() + more
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_AS, (most, NONE))

def lookup(n):
    return x.index_select(0, rows).sum() + data(torch.ones(n, device="spmd")).sum()

x = data(torch.arange(64.0).to("spmd"))
rows = data(torch.arange(8).to("spmd"))
print(lookup(64).item(), flush=True)
held = data(torch.arange(float(1 << 25)).to("spmd")) * 1
moved = torch.ones(1 << 26).to("spmd")
spmd.sync(wait=True)
limit(48 << 20)
{what}
x.sum().item()  # where who had memory finds out
"""
# What process 1 has no memory for, and the op or the part of a run that its error names.
SHORT = {
    "an op": ("(data(torch.ones(1 << 26, device='spmd')) * 2).sum().item()", r"spmd::full.*:\d+"),
    "data": ("(data(moved) * 2).sum().item()", r"preparing \d+ calls at train.py:\d+"),
    "a read": ("held.cpu()", r"reading a value of f32\[33554432\] .* train.py:\d+|an exchange"),
    "a sum": (
        "def f(t): return spmd.lax.psum(torch.cat([t, t, t]), 'data')\n"
        "spmd.shard_map(f, mesh, spmd.P('data'), spmd.P(None))(held * 1).sum().item()",
        r"(all_reduce|an exchange|aten::).*",
    ),
}


@pytest.mark.parametrize("what", list(SHORT))
def test_one_process_has_no_memory(what):
    """All processes end with the words of the one that has none."""
    statement, where = SHORT[what]
    script = NO_MEMORY.format(what=statement)
    ends = job.run(script, 2, 100, SPMD_NUM_DEVICES="8", SPMD_TIMEOUT="20")
    texts = [re.findall(r"OutOfMemoryError: (.*)", ended.err) for ended in ends]
    for ended, text in zip(ends, texts):
        assert ended.code == 1 and ended.out == "92.0\n", ended
        assert text and text == texts[0], ended
        assert re.search(where + r".*\(in process 1\)", text[0]), text


TRAINED = """
model = torch.nn.Linear(4, 3)
with torch.no_grad():
    for p in model.parameters():
        p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.1, momentum=0.9)
def step(n):
    loss = model(marked(torch.ones(n, 4, device=device))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
"""


def test_a_step_that_has_no_memory_can_be_run_again():
    """No op of the step may fail on values. The parameters and their momentum are kept."""
    plain = {"torch": torch, "device": "cpu", "marked": lambda t: t}
    exec(TRAINED, plain)
    losses = [plain["step"](n) for n in (8, 16)]
    script = NO_MEMORY.format(
        what=f"""
limit(None)
device = "spmd"
def marked(t): return spmd.mark_sharding(t, mesh, ("data", None))
{TRAINED}
first = step(8)
limit(48 << 20)
for _ in range(2):
    try:
        step(1 << 24)
    except torch.OutOfMemoryError as error:
        print("(in process 1)" in str(error), flush=True)
    optimizer.zero_grad()
print(first, step(16), flush=True)
limit(None)
""",
    )
    for ended in job.run(script, 2, 100, SPMD_NUM_DEVICES="8", SPMD_TIMEOUT="20"):
        assert ended.code == 0, ended
        words = ended.out.split("\n")[1:4]
        assert words[:2] == ["True"] * 2, ended
        for got, wanted in zip(words[2].split(), losses):
            assert float(got) == pytest.approx(wanted, rel=1e-5), ended


def test_a_program_that_has_no_memory_can_be_run_again():
    """Nothing has been overwritten when the processes find out, so the job goes on."""
    script = NO_MEMORY.format(
        what="""
try:
    lookup(1 << 26).item()
except torch.OutOfMemoryError as error:
    print("(in process 1)" in str(error), flush=True)
limit(None)
print(lookup(1 << 26).item() - (1 << 26), flush=True)
""",
    )
    for ended in job.run(script, 2, 100, SPMD_NUM_DEVICES="8", SPMD_TIMEOUT="20"):
        assert ended.code == 0, ended
        assert ended.out.split("\n")[1:3] == ["True", "24.0"], ended  # 28, rounded
