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

FOLDER, SEED = Path(sys.argv[1]), int(sys.argv[2])
PLACES = 9
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


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
        lambda x: spmd.from_process_local(torch.ones(16 // SIZE), MESH, ("data",)), True),
    "is late": (lambda x: time.sleep(1.0), False),
    "drops and collects": (lambda x: __import__("gc").collect(), False),
}  # fmt: skip

choose = random.Random(SEED)
FAULT = choose.choice(sorted(FAULTS)) if SEED >= 0 else "is late"
CULPRIT = choose.randrange(SIZE)
STEP, PLACE = choose.randrange(6), choose.randrange(PLACES)
MESH = spmd.make_mesh((12, 1), ("data", "model"))


def main():
    run = Run(MESH)
    passed = 0

    def place(x, step):
        nonlocal passed
        passed += 1
        if RANK == CULPRIT and step == STEP and passed % PLACES == PLACE:
            print("fault", flush=True)
            FAULTS[FAULT][0](x)

    with spmd.Checkpointer(FOLDER / "kept", every=2, keep=2) as checkpoints:
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
