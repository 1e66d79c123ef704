# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and parts in a job: python state_cases.py FOLDER.

Each job saves its state to a folder of its own in FOLDER, and loads what is in FOLDER already,
from whatever number of processes.
"""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from training_state import Run

import torch_spmd as spmd
from torch_spmd.state import export, files

spmd.integrations.dcp()

FOLDER = Path(sys.argv[1])
BIG = (96, 1 << 18)  # 96 MiB of float32


def grid():
    return spmd.make_mesh((2, 4), ("data", "model"))


def line():
    return spmd.make_mesh((8,), ("all",))


def tensors(seed):
    """Every kind of sharding, of values that differ with `seed`."""

    def made(shape, mesh, spec, dtype=torch.float32):
        t = (torch.arange(torch.Size(shape).numel()).reshape(shape) * seed).to(dtype).to("spmd")
        return spmd.mark_sharding(t, mesh, spec) * 1

    part = spmd.Mesh([1, 4, 6], (3,), ("some",))
    rows = made((16, 6), grid(), (("data", "model"), None))
    blocks = torch.arange(96.0).reshape(24, 4).to("spmd") * seed
    spmd.mark_sharding(blocks, line(), (spmd.blocks(3, "all"), None))
    return {
        "rows": rows,
        "columns": made((6, 16), grid(), (None, ("model", "data"))),
        "uneven": made((10, 7), grid(), ("data", "model"), torch.bfloat16),
        "empty tiles": made((3, 5), line(), ("all", None), torch.int64),
        "no elements": made((0, 4), line(), ("all", None)),
        "replicated": made((5,), grid(), (None,)),
        "partly": made((9, 4), grid(), ("data", None)),
        "some devices": made((7, 2), part, ("some", None)),
        "a number": torch.full((), float(seed), device="spmd"),
        "no mesh": torch.full((3,), seed, device="spmd") * 2,
        "not computed": spmd.mark_sharding(
            torch.full((8, 2), float(seed)).to("spmd"), line(), ("all", None)
        ),
        "a view": rows.t(),
        "a slice": rows[3:11, 1:],
        "blocks": blocks,
        "on the host": torch.full((4,), float(seed)),
    }  # fmt: skip


def whole(tree):
    return {name: t.cpu() for name, t in tree.items()}


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), (name, a[name], b[name])


def read_bytes():
    return int(Path("/proc/self/io").read_text().split()[1])


def memory(kind):
    """MiB: "VmHWM", the most since the last `forget_peak`, or "VmRSS", now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) >> 10


def peak():
    return memory("VmHWM")


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def needed(tree):
    """The bytes that the devices of this process hold."""
    total = 0
    for t in tree.values():
        if t.device.type == "cpu":
            total += t.nbytes
            continue
        shards = spmd.local_shards(t)
        distinct = {str(shard.index): shard.data.nbytes for shard in shards}
        total += sum(distinct.values())
    return total


def save_all(own):
    run = Run(grid())
    run.losses(3)
    spmd.save(own / "run", {**run.tree(), "step": 3})
    saving = spmd.save(own / "later", {**run.tree(), "step": 3}, wait=False)
    losses = run.losses(3)
    saving.written.result()
    spmd.save(own / "tensors", tensors(3))
    spmd.save(own / "dcp form", {"t": tensors(3)}, format="dcp")
    dcp.save({"t": tensors(3)}, checkpoint_id=own / "dcp")
    dcp.async_save({"t": tensors(3)}, checkpoint_id=own / "dcp later").result()
    return losses


def load_all(other, losses):
    for name in ("run", "later"):
        resumed = Run(grid(), seed=1)
        assert spmd.load(other / name, resumed.tree())["step"] == 3
        assert resumed.losses(3) == losses, (other, name)
    moved = Run(spmd.make_mesh((4, 2), ("data", "model")), seed=1)
    spmd.load(other / "run", moved.tree())
    torch.testing.assert_close(moved.losses(3), losses, rtol=0, atol=1e-6)
    expected = whole(tensors(3))
    for name in ("tensors", "dcp form", "dcp", "dcp later"):
        target = tensors(0)
        before = read_bytes()
        if name == "tensors":
            spmd.load(other / name, target, verify=False)
            report = spmd.checkpoint.last_load()
            assert report.bytes_read <= 1.1 * report.bytes_needed, report
            files = (other / name / "manifest.json").stat().st_size
            assert read_bytes() - before <= 1.1 * report.bytes_needed + files + 2000
            # Views are read on their own, too.
            assert report.bytes_needed <= needed(target) + 16, (report, needed(target))
        else:
            dcp.load({"t": target}, checkpoint_id=other / name)
        same(whole(target), expected)


def large(own):
    """No process ever holds a whole tensor of which it has a part."""
    if spmd.processes.process_count() == 1:
        return
    t = spmd.mark_sharding(torch.zeros(BIG, device="spmd"), line(), ("all", None))
    t += 1
    spmd.sync(wait=True)
    few = spmd.mark_sharding(torch.zeros(64, 8, device="spmd"), line(), ("all", None))

    def save(path, tree):
        spmd.save(path, tree)

    def load(path, tree):
        spmd.load(path, tree, verify=False)

    def dcp_save(path, tree):
        dcp.save(tree, checkpoint_id=path)

    def dcp_load(path, tree):
        dcp.load(tree, checkpoint_id=path)

    def dcp_later(path, tree):
        dcp.async_save(tree, checkpoint_id=path).result()

    # Some slabs of 8 MiB are on their way, and what is read comes to where it is in memory. DCP
    # writes and reads a part, of which there are eight, as a whole, and several times in memory.
    for name, write, read, most in (
        ("large", save, load, 5 * 8), ("large dcp", dcp_save, dcp_load, 7 * 12),
        ("large dcp later", dcp_later, dcp_load, 7 * 12),
    ):  # fmt: skip
        for action in (write, read):  # what is needed once, such as modules, does not count
            action(own / "few" / name, {"t": few})
        for action in (write, read):
            t.fill_(1 if action is write else 2)
            spmd.sync(wait=True)
            before = forget_peak()
            action(own / name, {"t": t})
            assert peak() - before < most, (name, action, before, peak())
        for shard in spmd.local_shards(t):
            assert float(shard.data.min()) == float(shard.data.max()) == 1
    spmd.load(own / "large", {"t": t})
    assert spmd.checkpoint.last_load().bytes_needed == t.nbytes // spmd.processes.process_count()


def on_meta(own):
    """Weights come to parameters on meta."""
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Linear(24, 8)).to("spmd")
    spmd.shard_module(model, line(), {"0.weight": ("all", None)})
    spmd.save(own / "weights", model)
    with torch.device("meta"):
        empty = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Linear(24, 8))
    spmd.load(own / "weights", empty, mesh=line(), rules={"*.weight": (None, "all")})
    same(whole(empty.state_dict()), whole(model.state_dict()))
    assert spmd.sharding_of(empty[0].weight).spec == spmd.P(None, "all")


def kept(own):
    """Checkpoints at intervals."""
    run = Run(grid())
    with spmd.checkpoint.Checkpointer(own / "kept", every=2, keep=2) as checkpoints:
        losses = []
        for step in range(7):
            losses += run.losses(1)
            checkpoints.save(step + 1, run.tree())
    if spmd.processes.process_index() == 0:  # which removes those before
        assert checkpoints.steps() == [4, 6]
    again = Run(grid(), seed=1)
    # One that is altered is passed over by all, whoever needs it.
    data = sorted((own / "kept" / "step-0000000006").glob("data-*"))[-1]
    spmd.sync(wait=True)
    if spmd.processes.process_index() == 0:
        content = bytearray(data.read_bytes())
        content[-1] ^= 1
        data.write_bytes(content)
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert checkpoints.load(again.tree()) == 4
    assert any("is altered" in str(w.message) for w in caught)
    assert again.losses(3) == losses[4:]


def stopped(own):
    """One process gets the signal, and all stop behind the same save."""
    with spmd.checkpoint.Checkpointer(own / "stopped", every=100) as checkpoints:
        for step in range(1, 20):
            saved = checkpoints.save(step, {"step": step})
            if step == 3 and spmd.processes.process_index() == spmd.processes.process_count() - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            assert saved == checkpoints.stopping
            if checkpoints.stopping:
                break
    assert step == 4 and checkpoints.steps() == [4]


def exported(own):
    """Files for others, of which each process writes its parts."""
    tree = tensors(3)
    expected = whole(tree)
    one, hub = own / "one.safetensors", own / "hub"
    spmd.save(one, tree, format="safetensors", wait=False).written.result()
    same(load_file(one), expected)
    target = tensors(0)
    spmd.load(one, target)
    same(whole(target), expected)
    largest, export._LARGEST_FILE = export._LARGEST_FILE, 400
    spmd.save(hub, tree, format="hub")
    names = json.loads((hub / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(names.values())) > 3 and names.keys() == tree.keys()
    for name in set(names.values()):
        content = load_file(hub / name)
        assert content.keys() == {key for key in names if names[key] == name}
        same(content, {key: expected[key] for key in content})
    export._LARGEST_FILE = largest
    spmd.save(hub, {"rows": tree["rows"]}, format="hub")
    assert os.listdir(hub) == ["model.safetensors"]  # readers would take it for all

    def full(file, data):
        if spmd.processes.process_index() == spmd.processes.process_count() - 1:
            raise OSError(28, "No space left on device")
        write(file, data)

    before = one.read_bytes()
    write, files.write_all = files.write_all, full
    try:
        spmd.save(one, tensors(5), format="safetensors")
        raise AssertionError("the disk was full")
    except OSError as error:
        assert "No space left on device" in str(error)
    finally:
        files.write_all = write
    spmd.save(own / "met", {})
    assert one.read_bytes() == before and not list(own.glob("*.part"))


def failing_disk(own):
    """A disk that fails in one process while tensors are filled: all raise it, and go on."""

    def failing(*arguments):
        left[0] -= 1
        if left[0] == 0 and spmd.processes.process_index() == spmd.processes.process_count() - 1:
            raise OSError(5, "Input/output error")
        read(*arguments)

    spmd.save(own / "good", tensors(3))
    read, left, failed = files.read_into, [0], 0
    for n in (1, 2, 9, 15, 22):
        left[0] = n
        files.read_into = failing
        try:
            target = tensors(0)
            spmd.load(own / "good", target, verify=False)
        except spmd.checkpoint.CheckpointError as error:
            assert "Input/output error" in str(error)
            failed += 1
        finally:
            files.read_into = read
        spmd.load(own / "good", target)
        same(whole(target), whole(tensors(3)))
    assert failed > 2, failed


def random_states(own):
    """Each process has its own random numbers of the host, and gets them back."""

    def drawn():
        on_device = torch.rand(3, device="spmd").tolist()
        return torch.rand(3).tolist(), random.random(), numpy.random.rand(), on_device

    for seed in (spmd.processes.process_index(), 0):
        torch.manual_seed(5)  # of the device, the same in all
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        random.seed(seed)
        numpy.random.seed(seed)
        spmd.save(own / "random", {"random": spmd.checkpoint.RandomState()})
        expected = drawn()
        spmd.load(own / "random", {"random": spmd.checkpoint.RandomState()})
        assert drawn() == expected
    saved = spmd.load(own / "random", None)["random"]
    assert "processes" not in saved  # they are the same


def loader(own):
    """The position of a loader is saved."""
    rows = [{"x": torch.full((3,), float(i)), "y": i} for i in range(40)]

    def made():
        torch.manual_seed(5)
        host = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
        return spmd.Loader(host, spmd.P("data"), mesh=grid())

    batches = made()
    iterator = iter(batches)
    next(iterator)
    next(iterator)
    spmd.save(own / "loader", {"loader": batches})
    expected = [batch["x"].cpu() for batch in iterator]
    again = made()
    spmd.load(own / "loader", {"loader": again})
    got = [batch["x"].cpu() for batch in again]
    assert len(got) == 3 and all(map(torch.equal, got, expected))


def main():
    count = spmd.processes.process_count()
    own = FOLDER / f"of {count}"
    losses = None
    if not own.exists() or count == 1:
        losses = save_all(own)
        large(own)
        on_meta(own)
        exported(own)
        failing_disk(own)
        random_states(own)
        kept(own)
        stopped(own)
        loader(own)
    if losses is not None and spmd.processes.process_index() == 0:
        (own / "losses.json").write_text(json.dumps(losses))
    spmd.save(own / "done", {})
    for other in sorted(FOLDER.iterdir()):
        load_all(other, json.loads((other / "losses.json").read_text()))
    print("done", threading.active_count(), os.getpid())


if __name__ == "__main__":
    main()
