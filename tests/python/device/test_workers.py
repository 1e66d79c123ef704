# SPDX-License-Identifier: Apache-2.0
"""What programs leave in the process that runs them: threads and memory
(docs/design/0013-memory-and-workers.md)."""

import pytest
from processes import run_script

# Sizes that PyTorch processes in parallel and that tile memory keeps. The model has batch
# normalization, whose kernels open a parallel region whatever the size.
TRAINING = """
import os, torch, torch_spmd as spmd
from torch import nn

def threads():
    return len(os.listdir("/proc/self/task"))

torch.manual_seed(0)
torch.randn(1_000_000).add_(1)  # the main thread has its team
before = threads()
mesh = spmd.make_mesh((2,), ("data",))
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
                      nn.Linear(32 * 30 * 30, 10)).to("spmd")
optimizer = torch.optim.AdamW(model.parameters())
host = torch.randn(8, 3, 32, 32)
images = host.to("spmd")
spmd.mark_sharding(images, mesh, ("data", None, None, None))

def step():
    loss = model(images).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""


def lines_of(script, **environment):
    return run_script(script, **environment).stdout.split()


def test_a_training_loop_has_one_team():
    """The queue's thread takes over from the main thread; recording needs no workers."""
    [more] = lines_of(
        TRAINING
        + """
for _ in range(3):
    step().item()
print(threads() - before)
"""
    )
    # The queue's thread, and autograd's for each kind of device.
    assert int(more) <= 3


def test_numbers_do_not_depend_on_kept_memory():
    """Neither of these steps nor of tensors that outlive them, nor in a forked child."""
    script = (
        TRAINING
        + """
import gc, hashlib
kept, digests = [], []
for i in range(6):
    loss = step()
    first = model[4].weight.detach().clone()
    kept.append((first, first.cpu().clone(), first.cpu().numpy()))
    digests.append(hashlib.sha1(loss.detach().cpu().numpy().tobytes()).hexdigest())
    gc.collect()
for tensor, then, view in kept:
    assert torch.equal(tensor.cpu(), then) and (view == then.numpy()).all()
child = os.fork()
if child == 0:
    same = (kept[0][2] == kept[0][1].numpy()).all()
    del kept
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
print(*digests)
"""
    )
    assert lines_of(script) == lines_of(script, SPMD_KEEP_MEMORY="0")


def test_memory_does_not_grow_with_shapes():
    """Blocks of sizes that do not occur again are returned: no more memory than without keeping
    any."""
    script = (
        TRAINING
        + """
def work(rows):
    x = torch.ones(rows, 1000).to("spmd")
    spmd.mark_sharding(x, mesh, ("data", None))
    return (x.exp().sin() * 2).sum().item()

for i in range(60):
    work(200 + 37 * i)
print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
"""
    )
    [kept] = lines_of(script)
    [given_back] = lines_of(script, SPMD_KEEP_MEMORY="0")
    # Blocks take at most one and a half times those of the largest program, some 20 MB.
    assert int(kept) < int(given_back) + 40e6


def test_a_forked_child_has_no_team_to_end():
    """The team of the thread that forked has stayed in the parent."""
    lines_of("""
import os, signal, torch, torch_spmd

torch.randn(1_000_000).add_(1)
if os.fork() == 0:
    signal.alarm(100)  # instead of waiting for ever
    x = torch.ones(64, 64).to("spmd")
    os._exit(0 if (x * 2).sum().item() == 8192 else 1)
assert os.wait()[1] == 0
""")


@pytest.mark.parametrize(
    "before",
    [
        "",  # the import alone
        "print((torch.ones(4, 4).to('spmd') * 2).sum().item())",
        "(torch.randn(1000, 1000).to('spmd') @ torch.randn(1000, 1000).to('spmd')).sum().item()",
        "torch.randn(1_000_000).add_(1)",  # without torch_spmd the child hangs
    ],
)
def test_a_forked_child_computes_on_the_cpu(before):
    lines_of(
        f"""
import os, signal, torch, torch_spmd

{before}
if os.fork() == 0:
    signal.alarm(60)  # instead of waiting for ever
    torch.randn(1000, 1000).exp()
    os._exit(0)
assert os.wait()[1] == 0
""",
        OMP_NUM_THREADS="2",
    )


def test_a_child_is_forked_while_another_thread_waits_for_a_program():
    """That thread, which stays in the parent, holds what steps of optimizers ask for."""
    lines_of(
        """
import os, signal, threading, time, torch, torch_spmd

x = torch.ones(1500, 1500).to("spmd")
for _ in range(30):
    x = x @ x / 1500
waiting = threading.Thread(target=x.cpu)
waiting.start()
time.sleep(0.3)
if os.fork() == 0:
    signal.alarm(60)  # instead of waiting for ever
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.double()(torch.ones(1, 2).double()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    try:
        torch.ones(2, device="spmd")
    except RuntimeError as error:
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
assert os.wait()[1] == 0
""",
        OMP_NUM_THREADS="1",
    )


def test_import_starts_no_thread():
    lines = lines_of(
        """
import os, torch
before = os.listdir("/proc/self/task")
import torch_spmd
print(before == os.listdir("/proc/self/task"))
""",
        OMP_NUM_THREADS="2",
    )
    assert lines == ["True"]
