# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device that other processes make: workers of a DataLoader, queues."""

from processes import run_python

PROGRAM = """
import sys
import torch
import torch_spmd as spmd

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        if sys.argv[1] == "raises" and i == 3:
            raise ValueError("the third")
        mesh = spmd.make_mesh((2,), ("x",))
        return spmd.mark_sharding(torch.full((4,), float(i)).to("spmd"), mesh, ("x",))

def as_it_is(items):
    return items

def loader(**options):
    return torch.utils.data.DataLoader(Numbers(), 2, num_workers=1, timeout=60, **options)

if __name__ == "__main__":
"""


def run(tmp_path, body, argument=""):
    script = tmp_path / "program.py"
    lines = body.strip().splitlines()
    script.write_text(PROGRAM + "\n".join(f"    {line}" for line in lines) + "\n")
    done = run_python(script, argument)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_spawned_worker_returns_tensors_of_the_device(tmp_path):
    printed = run(
        tmp_path,
        """
for batch in loader(multiprocessing_context="spawn"):
    assert batch.device.type == "spmd"
    print(batch[:, 0].tolist())
for batch in loader(multiprocessing_context="spawn", collate_fn=as_it_is):
    print([spmd.sharding_of(t).spec for t in batch])
""",
    )
    assert printed.splitlines() == ["[0.0, 1.0]", "[2.0, 3.0]"] + ["[P('x'), P('x')]"] * 2


def test_what_a_worker_raises_is_raised_where_its_batch_is_asked_for(tmp_path):
    printed = run(
        tmp_path,
        """
batches = iter(loader(multiprocessing_context="spawn"))
print(next(batches).shape)
try:
    next(batches)
except ValueError as error:
    print("the third" in str(error))
spmd.sync()
torch.ones(2, device="spmd").sum().item()
try:
    next(iter(loader(multiprocessing_context="fork")))
except RuntimeError as error:
    print("set_start_method('spawn')" in str(error))
""",
        "raises",
    )
    assert printed.splitlines() == ["torch.Size([2, 4])", "True", "True"]


def test_a_queue_copies(tmp_path):
    printed = run(
        tmp_path,
        """
queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
sent = torch.nn.Parameter(Numbers()[1])
queue.put([sent, sent.detach() * 2])
parameter, double = queue.get()
print(type(parameter).__name__, parameter.requires_grad, parameter.tolist(), double.tolist())
print(spmd.sharding_of(parameter).spec, parameter is sent)
try:
    queue.put(sent * 2)
except RuntimeError as error:
    print(error)
""",
    )
    assert printed.splitlines() == [
        "Parameter True [1.0, 1.0, 1.0, 1.0] [2.0, 2.0, 2.0, 2.0]",
        "P('x') False",
        "torch.multiprocessing: the tensor requires grad and is not a leaf, and autograd does not "
        "cross processes; send tensor.detach()",
    ]
