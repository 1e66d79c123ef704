# SPDX-License-Identifier: Apache-2.0
"""A training that goes on from its last checkpoint: python restart_train.py FOLDER STEPS

In its first life, one process kills itself with SIGKILL after the step in the file `kill`, if the
folder has one: "RANK STEP"."""

import os
import signal
import sys
from pathlib import Path

from training_state import Run

import torch_spmd as spmd

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
killed = [int(word) for word in (folder / "kill").read_text().split()] if first else []

run = Run(spmd.make_mesh((2, 4), ("data", "model")))
with spmd.checkpoint.Checkpointer(folder / "checkpoints", every=2, keep=2) as checkpoints:
    begin = checkpoints.load(run.tree()) or 0
    for step in range(begin, steps):
        (loss,) = run.losses(1)
        checkpoints.save(step + 1, run.tree())
        if spmd.processes.process_index() == 0:
            with (folder / "losses").open("a") as file:
                file.write(f"{step} {loss!r}\n")
        if killed == [spmd.processes.process_index(), step]:
            os.kill(os.getpid(), signal.SIGKILL)
