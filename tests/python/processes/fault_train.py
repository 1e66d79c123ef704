# SPDX-License-Identifier: Apache-2.0
"""A training in which one process does something wrong at a random place: python fault_train.py
FOLDER SEED. Every step passes PLACES places; the fault happens at one of them.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from training_state import Run

import torch_spmd as spmd

PLACES = 9
FOLDER = MESH = None  # set by main
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def own_mistake():
    raise ValueError("my own mistake")


def index_out_of_range(x):
    """On the tiles of one process."""
    at = torch.zeros(16, dtype=torch.long)
    at[RANK * (16 // SIZE)] = 99
    at = at.to("spmd")
    spmd.mark_sharding(at, MESH, ("data",))
    torch.index_select(x, 0, at).sum().item()


# What a process does, and whether the others must hear of it.
FAULTS = {
    "killed": (lambda x: os.kill(os.getpid(), signal.SIGKILL), True),
    "stopped": (lambda x: os.kill(os.getpid(), signal.SIGSTOP), True),
    "interrupted": (lambda x: os.kill(os.getpid(), signal.SIGINT), True),
    "exits": (lambda x: sys.exit(3), True),
    "exits well": (lambda x: sys.exit(0), True),
    "ends without a word": (lambda x: os._exit(0), True),
    "raises": (lambda x: own_mistake(), True),
    "another op": (lambda x: x + 1, True),
    "reads alone": (lambda x: x.cpu(), True),
    "reads a sum alone": (lambda x: x.sum().item(), True),
    "another seed": (lambda x: torch.manual_seed(17), True),
    "saves alone": (lambda x: spmd.save(FOLDER / "alone", {"x": x}), True),
    "gives a part alone": (
        lambda x: spmd.processes.from_process_local(torch.ones(16 // SIZE), MESH, ("data",)), True),
    "is late": (lambda x: time.sleep(1.0), False),
    "drops and collects": (lambda x: __import__("gc").collect(), False),
}  # fmt: skip


def choice(seed, size):
    """The fault, the process, the step and the place. A seed below 0 is no fault to speak of."""
    choose = random.Random(seed)
    fault = choose.choice(sorted(FAULTS)) if seed >= 0 else "is late"
    return fault, choose.randrange(size), choose.randrange(6), choose.randrange(PLACES)


def main():
    global FOLDER, MESH
    FOLDER = Path(sys.argv[1])
    fault, culprit, at_step, at_place = choice(int(sys.argv[2]), SIZE)
    MESH = spmd.make_mesh((12, 1), ("data", "model"))
    run = Run(MESH)
    passed = 0

    def place(x, step):
        nonlocal passed
        passed += 1
        if culprit == RANK and step == at_step and passed % PLACES == at_place:
            FAULTS[fault][0](x)

    with spmd.checkpoint.Checkpointer(FOLDER / "kept", every=2, keep=2) as checkpoints:
        for step in range(10):
            x = torch.randn(16, 12).to("spmd")
            place(x, step)
            spmd.mark_sharding(x, MESH, ("data", None))
            y = run.model(x)
            place(y, step)
            loss = y.square().mean()
            place(x, step)
            loss.backward()
            place(loss, step)
            run.optimizer.step()
            place(x, step)
            run.optimizer.zero_grad()
            checkpoints.save(step + 1, run.tree())
            place(y, step)
            parts = spmd.local_shards(x)
            place(x, step)
            z = spmd.reshard(y, MESH, (None, "data"))
            place(z, step)
            z.sum().item()
            place(x, step)
            print("step", step, len(parts), flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
