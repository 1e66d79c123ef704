# SPDX-License-Identifier: Apache-2.0
"""Batches of a Loader, and the rows that this process has read for them: python row_cases.py"""

import json
import sys

import torch
from torch.utils.data import DataLoader

import torch_spmd as spmd

mesh = spmd.make_mesh((4, 2), ("data", "model"))
P = spmd.P


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, wrong=None, text=False, log=None):
        self.count, self.wrong, self.text, self.log, self.asked = count, wrong, text, log, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.asked.append(i)
        if self.log is not None:
            with open(self.log, "a") as log:
                log.write(f"{i}\n")
        if i == self.wrong:
            raise ValueError(f"row {i}")
        row = {"x": torch.full((2, 3), float(i)), "y": i}
        return {**row, "name": str(i)} if self.text else row


def values(batch):
    if isinstance(batch, (list, tuple)):
        return [values(item) for item in batch]
    if isinstance(batch, dict):
        return {key: values(value) for key, value in batch.items()}
    if isinstance(batch, torch.Tensor):
        assert batch.device.type == "spmd"
        return batch.cpu().tolist()
    return batch


SPECS = {"x": P("data", None, "model"), "y": P("data")}
CASES = {
    "even": (Rows(16), {}, SPECS, {}),
    "keep": (Rows(21), {}, SPECS, {}),
    "one row left": (Rows(9), {}, SPECS, {"prefetch": 0}),
    "drop": (Rows(21), {}, SPECS, {"last": "drop"}),
    "pad": (Rows(19), {}, SPECS, {"last": "pad"}),
    "less than a batch": (Rows(1), {}, SPECS, {"last": "pad"}),
    "shuffled": (Rows(24), {"shuffle": True}, P("data"), {}),
    "over both axes": (Rows(16), {}, {"x": P(("data", "model")), "y": P("model")}, {}),
    "some devices": (
        Rows(8), {}, P("some"), {"mesh": spmd.Mesh([1, 4, 6], (3,), ("some",))},
    ),
    "text": (Rows(8, text=True), {"shuffle": True}, P("data"), {}),
    "no mark": (Rows(8), {}, {"x": P("data"), "y": None}, {}),
    "replicated": (Rows(8), {}, {"x": P("data"), "y": P(None)}, {}),
    "own collate": (Rows(8), {"collate_fn": lambda rows: torch.utils.data.default_collate(rows)},
                    P("data"), {}),
}  # fmt: skip


def main():
    torch.manual_seed(3)
    found = {}
    for name, (rows, host, specs, more) in CASES.items():
        loader = spmd.Loader(DataLoader(rows, 8, **host), specs, **{"mesh": mesh, **more})
        batches = [values(batch) for batch in loader]
        found[name] = (batches, rows.asked)
        assert len(batches) == len(loader), name
        # The next epoch draws other rows, and all processes the same.
        rows.asked = []
        found[name + ", again"] = ([values(batch) for batch in loader], rows.asked)
    # The position, and random numbers afterwards.
    rows = Rows(32)
    loader = spmd.Loader(DataLoader(rows, 8, shuffle=True), SPECS, mesh=mesh)
    batches = iter(loader)
    first = [values(next(batches)) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict(), default=lambda t: t.tolist()))
    random = state["position"]["random"]
    random["torch"] = torch.tensor(random["torch"], dtype=torch.uint8)
    again = spmd.Loader(DataLoader(rows, 8, shuffle=True), SPECS, mesh=mesh)
    again.load_state_dict(state)
    rest = [values(batch) for batch in batches]
    rows.asked.clear()
    assert len(rest) == 2 and [values(batch) for batch in again] == rest
    assert (
        len(rows.asked) == 16 // spmd.processes.process_count()
    )  # what was taken is not read again
    found["position"] = (first + rest, [])
    # With a worker, which is not asked for what was taken either.
    rows = Rows(32, log=f"{sys.argv[1]}/asked by {spmd.processes.process_index()}")
    host = DataLoader(rows, 8, num_workers=1, timeout=60)
    again = spmd.Loader(host, SPECS, mesh=mesh, skip=True)
    again.load_state_dict({"position": {**state["position"], "random": random}})
    found["position of a worker"] = ([values(batch) for batch in again], [])
    with open(rows.log) as log:
        asked = [int(line) for line in log]
    assert len(asked) == 16 // spmd.processes.process_count() and min(asked) >= 16, asked
    found["random"] = (torch.rand(2).tolist(), [])
    # Placed as the marks say; a step has the gradient of the whole batch.
    batch = next(iter(spmd.Loader(DataLoader(Rows(8), 8), SPECS, mesh=mesh)))
    assert spmd.sharding_of(batch["x"]).spec == SPECS["x"]
    assert spmd.sharding_of(batch["x"]).is_committed
    weight = torch.ones(3, requires_grad=True, device="spmd")
    (batch["x"] @ weight).square().mean().backward()
    found["gradient"] = (weight.grad.cpu().tolist(), [])
    # Errors of one process are errors of all.
    rows = Rows(16, wrong=15)
    for prefetch in (0, 2):
        batches = iter(spmd.Loader(DataLoader(rows, 8), SPECS, mesh=mesh, prefetch=prefetch))
        next(batches)
        try:
            next(batches)
        except ValueError as error:
            found[f"error {prefetch}"] = (str(error).split(" (in")[0], [])
    torch.manual_seed(spmd.processes.process_index())
    try:
        next(iter(spmd.Loader(DataLoader(Rows(800), 8, shuffle=True), SPECS, mesh=mesh)))
    except RuntimeError as error:
        print(error)
    with open(f"{sys.argv[1]}/{spmd.processes.process_index()}.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
