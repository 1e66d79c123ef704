# SPDX-License-Identifier: Apache-2.0
"""Optimizers of every kind in a job: python optimizer_cases.py FOLDER.

Each job trains, saves, and goes on; then it resumes what is in FOLDER, of whatever number of
processes, on the same mesh and on another one.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

import torch_spmd as spmd

FOLDER = Path(sys.argv[1])
KINDS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, amsgrad=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Muon": lambda p: torch.optim.Muon([w for w in p if w.dim() == 2]),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=2),
}


def made(kind, mesh, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4)).to("spmd")
    spmd.mark_sharding(model[0].weight, mesh, ("model", None))
    spmd.mark_sharding(model[2].weight, mesh, (None, "model"))
    return {"model": model, "optimizer": KINDS[kind](list(model.parameters()))}


def losses(state, mesh, seed):
    torch.manual_seed(seed)
    found = []
    for _ in range(2):
        x = spmd.mark_sharding(torch.randn(8, 8).to("spmd"), mesh, ("data", None))

        def closure(x=x):
            state["optimizer"].zero_grad()
            loss = state["model"](x).square().mean()
            loss.backward()
            return loss

        found.append(state["optimizer"].step(closure).item())
    return found


def main():
    mesh, other = (spmd.make_mesh(shape, ("data", "model")) for shape in ((2, 4), (4, 2)))
    own = FOLDER / f"of {spmd.processes.process_count()}"
    expected = {}
    for kind in KINDS:
        state = made(kind, mesh, 1)
        losses(state, mesh, 5)
        spmd.save(own / kind, state)
        expected[kind] = losses(state, mesh, 6)
    if spmd.processes.process_index() == 0:
        (own / "losses.json").write_text(json.dumps(expected))
    spmd.save(own / "done", {})
    for folder in sorted(FOLDER.iterdir()):
        expected = json.loads((folder / "losses.json").read_text())
        for kind in KINDS:
            for there in (mesh, other):
                state = made(kind, there, 2)
                spmd.load(folder / kind, state)
                found = losses(state, there, 6)
                if there is mesh:
                    assert found == expected[kind], (folder, kind)
                torch.testing.assert_close(found, expected[kind], rtol=0, atol=1e-6)
    print("done")


if __name__ == "__main__":
    main()
