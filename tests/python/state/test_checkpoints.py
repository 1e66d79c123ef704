# SPDX-License-Identifier: Apache-2.0
"""spmd.save and spmd.load: what comes back, on which mesh, and what is read for it."""

import collections
import json
import random

import numpy as np
import pytest
import torch
from processes import run_script
from safetensors import safe_open
from torch import nn
from training_state import Run

import torch_spmd as spmd
from torch_spmd import P
from torch_spmd.state import parts, reading, safetensors_file

MESHES = {"one": ((1,), ("x",)), "two": ((2,), ("x",)), "four": ((4,), ("x",)),
          "grid": ((2, 3), ("data", "model"))}  # fmt: skip


def mesh_of(name):
    return spmd.make_mesh(*MESHES[name])


# --- training goes on ---


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adafactor"])
def test_a_resumed_run_has_the_losses_of_an_undisturbed_one(tmp_path, optimizer):
    undisturbed = Run(mesh_of("grid"), optimizer)
    undisturbed.losses(3)
    spmd.save(tmp_path, {**undisturbed.tree(), "step": 3})
    expected = undisturbed.losses(4)
    for name in MESHES:
        resumed = Run(mesh_of(name), optimizer, seed=1)
        assert spmd.load(tmp_path, resumed.tree())["step"] == 3
        if name == "grid":
            assert resumed.losses(4) == expected
        else:
            torch.testing.assert_close(resumed.losses(4), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("wait", [True, False])
def test_saving_disturbs_nothing(tmp_path, wait):
    expected = Run(mesh_of("two")).losses(8)
    run = Run(mesh_of("two"))
    losses = run.losses(4)
    saving = spmd.save(tmp_path, run.tree(), wait=wait)
    assert saving.copied.done()
    assert losses + run.losses(4) == expected
    saving.written.result()
    resumed = Run(mesh_of("two"), seed=1)
    spmd.load(tmp_path, resumed.tree())
    assert resumed.losses(4) == expected[4:]


def test_an_optimizer_that_has_stepped_is_overwritten(tmp_path):
    run = Run(mesh_of("two"))
    run.losses(3)
    spmd.save(tmp_path, run.tree())
    expected = run.losses(3)
    spmd.load(tmp_path, run.tree())
    assert run.losses(3) == expected


def test_a_fresh_optimizers_state_lies_where_its_parameters_do(tmp_path):
    run = Run(mesh_of("grid"))
    run.losses(2)
    spmd.save(tmp_path, run.tree())
    resumed = Run(mesh_of("four"), seed=1)
    spmd.load(tmp_path, resumed.tree())
    for parameter, state in resumed.optimizer.state.items():
        assert spmd.sharding_of(state["exp_avg"]).spec == spmd.sharding_of(parameter).spec
        assert state["step"].device.type == "cpu"


# --- what comes back ---


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32, torch.complex64, torch.complex128,
]  # fmt: skip
ON_THE_HOST = [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]


def some(shape, dtype):
    bits = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
    return bits.view(dtype).reshape(shape) if dtype != torch.bool else bits[..., 0].bool()


@pytest.mark.parametrize(
    "dtype, device",
    [(dtype, device) for dtype in DTYPES for device in ("cpu", "spmd")]
    + [(dtype, "cpu") for dtype in ON_THE_HOST],
    ids=str,
)
def test_dtypes_and_shapes(tmp_path, dtype, device):
    shapes = [(), (1,), (7,), (0,), (5, 3), (4, 0, 2), (2, 3, 5)]
    tree = {str(shape): some(shape, dtype).to(device) for shape in shapes}
    spmd.save(tmp_path, tree)
    target = {key: torch.zeros_like(value) for key, value in tree.items()}
    spmd.load(tmp_path, target)
    for key, value in tree.items():
        assert target[key].device == value.device and target[key].dtype == dtype
        same = target[key].cpu().view(-1).view(torch.uint8) == value.cpu().view(-1).view(
            torch.uint8
        )
        assert same.all()


def test_values_that_are_no_tensors(tmp_path):
    plain = {
        "numbers": [0, -1, 2**70, 0.1, -0.0, float("inf"), float("-inf"), True, None, 1 + 2j],
        "text": "ü\n\x00", "bytes": b"\x00\xff", "empty": [(), [], {}, "", b""],
        "tuples": (1, (2, [3])), 5: "five", (1, "a"): "pair", "$": {"$": "tensor"},
        "dtype": torch.bfloat16, "device": torch.device("cpu"), "size": torch.Size([2, 3]),
        "counter": collections.Counter([1, 1]), "deque": collections.deque([1, 2]), "set": {1, 2},
        "python": random.getstate(), "array": np.arange(6.0).reshape(2, 3),
        "scalar": np.float32(0.1),
    }  # fmt: skip
    spmd.save(tmp_path, plain)
    found = spmd.load(tmp_path, dict.fromkeys(plain))
    for key, value in plain.items():
        assert type(found[key]) is type(value)
        assert (found[key] == value).all() if key == "array" else found[key] == value
    json.loads((tmp_path / "manifest.json").read_text())


def test_trees_are_filled_in_place(tmp_path):
    spmd.save(tmp_path, {"a": [torch.ones(2), {"b": torch.ones(3)}], "c": (torch.ones(1), 5)})
    x, y, z = torch.zeros(2), torch.zeros(3).to("spmd"), torch.zeros(1)
    target = {"a": [x, {"b": y}], "c": (z, 0)}
    assert spmd.load(tmp_path, target) is target
    assert target["a"][0] is x and target["a"][1]["b"] is y and target["c"] == (z, 5)
    assert x.tolist() == [1, 1] and y.tolist() == [1, 1, 1] and z.tolist() == [1]


def test_tied_parameters_are_saved_once(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).to("spmd")
    model[1].weight = model[0].weight
    spmd.save(tmp_path, model)
    [file] = tmp_path.glob("*.safetensors")
    assert file.stat().st_size < 2 * 8 * 8 * 4
    with torch.no_grad():
        expected = model[0].weight.cpu()
        model[0].weight.zero_()
    spmd.load(tmp_path, model)
    assert torch.equal(model[1].weight.cpu(), expected) and model[1].weight is model[0].weight


def test_views_are_saved_by_value(tmp_path):
    whole = torch.arange(24.0).reshape(4, 6)
    views = {"t": whole.t(), "part": whole[1:3, ::2], "conj": torch.complex(whole, whole).conj()}
    ours = {f"{key} of the device": view.to("spmd").clone() for key, view in views.items()}
    ours["view of the device"] = whole.to("spmd").t()[1:3]
    tree = views | ours
    spmd.save(tmp_path, tree)
    found = spmd.load(
        tmp_path, {key: torch.zeros(v.shape, dtype=v.dtype) for key, v in tree.items()}
    )
    assert all(torch.equal(found[key], value.cpu()) for key, value in tree.items())


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("dropped", torch.ones(2), persistent=False)
        self.count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_buffers_and_extra_state(tmp_path):
    module = nn.Sequential(Counting(), nn.BatchNorm1d(3)).to("spmd")
    module[0].count = 5
    module[1](torch.randn(4, 3, device="spmd"))
    spmd.save(tmp_path, module)
    other = nn.Sequential(Counting(), nn.BatchNorm1d(3)).to("spmd")
    with torch.no_grad():
        other[0].kept.zero_()
        other[0].dropped.zero_()
    spmd.load(tmp_path, other)
    assert other[0].count == 5 and other[0].kept.tolist() == [1, 1]
    assert other[0].dropped.tolist() == [0, 0]
    assert torch.equal(other[1].running_mean.cpu(), module[1].running_mean.cpu())
    assert other[1].num_batches_tracked.item() == 1


# --- shards ---


SPECS = [(None, None), ("data", None), (None, "model"), ("model", "data"),
         (("data", "model"), None), (None, ("model", "data"))]  # fmt: skip


@pytest.mark.parametrize("shape", [(12, 18), (7, 5), (3, 1), (1, 13)], ids=str)
def test_every_sharding_loads_into_every_other(tmp_path, shape):
    mesh, other = (
        spmd.make_mesh((2, 3), ("data", "model")),
        spmd.make_mesh((3, 2), ("model", "data")),
    )
    value = torch.randn(shape)
    for i, spec in enumerate(SPECS):
        saved = spmd.mark_sharding(value.to("spmd"), mesh, spec)
        spmd.save(tmp_path / str(i), {"w": saved})
        for target_spec in SPECS:
            target = spmd.mark_sharding(torch.zeros(shape).to("spmd"), other, target_spec)
            spmd.load(tmp_path / str(i), {"w": target})
            assert torch.equal(target.cpu(), value)
            assert spmd.sharding_of(target).spec == P(*target_spec)
            assert spmd.checkpoint.last_load().ratio == 1


def test_each_part_is_written_once(tmp_path):
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    w = spmd.mark_sharding(torch.randn(8, 12).to("spmd"), mesh, (None, "model"))  # two replicas
    spmd.save(tmp_path, {"w": w})
    [path] = tmp_path.glob("*.safetensors")
    with safe_open(path, "pt") as file:  # which anybody can read
        parts = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert list(parts) == [f"w[0:8,{3 * i}:{3 * i + 3}]" for i in range(4)]
    assert torch.equal(torch.cat([*parts.values()], 1), w.cpu())


def test_blocks(tmp_path):
    mesh = spmd.make_mesh((2,), ("x",))
    value = torch.randn(4, 12)
    fused = spmd.mark_sharding(value.to("spmd"), mesh, P(None, spmd.blocks(3, "x")))
    spmd.save(tmp_path, {"w": fused})
    rows = spmd.mark_sharding(torch.zeros(4, 12).to("spmd"), mesh, ("x", None))
    spmd.load(tmp_path, {"w": rows})
    assert torch.equal(rows.cpu(), value)
    again = spmd.mark_sharding(torch.zeros(4, 12).to("spmd"), mesh, P(None, spmd.blocks(3, "x")))
    spmd.load(tmp_path, {"w": again})
    assert torch.equal(again.cpu(), value)


def test_parameters_on_meta_are_created_sharded(tmp_path):
    mesh = spmd.make_mesh((4,), ("x",))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    spmd.save(tmp_path, model)
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        empty[1].weight = empty[0].weight
    spmd.load(tmp_path, empty, mesh=mesh, rules={"*weight": ("x", None)})
    assert empty[1].weight is empty[0].weight and isinstance(empty[0].weight, nn.Parameter)
    assert spmd.sharding_of(empty[0].weight).spec == P("x", None)
    assert torch.equal(empty[0].weight.cpu(), model[0].weight)
    assert empty[1].bias.device.type == "spmd"


# --- bytes and memory ---


def test_a_part_of_a_checkpoint_reads_a_part_of_its_bytes(tmp_path):
    spmd.save(tmp_path, {"large": torch.zeros(1000, 1000), "small": torch.ones(10)})
    spmd.load(tmp_path, {"small": torch.zeros(10)}, strict=False)
    report = spmd.checkpoint.last_load()
    assert report.bytes_needed == report.bytes_read == 40
    assert report.left_out == ("large",)


@pytest.fixture
def small_pieces(monkeypatch):
    """Every tensor counts as a large one, of which a hundred bytes are written or read at once."""
    monkeypatch.setattr(parts, "_LARGE", 8)
    monkeypatch.setattr(safetensors_file, "PIECE", 100)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_large_tensors_are_read_in_pieces(tmp_path, small_pieces, spec):
    mesh, other = spmd.make_mesh((2, 3), ("data", "model")), spmd.make_mesh((2,), ("x",))
    values = {
        "a": torch.randn(7, 9), "half": torch.randn(8, 12).bfloat16(), "line": torch.arange(90),
        "deep": torch.randn(2, 3, 40), "complex": torch.randn(5, 6, dtype=torch.complex128),
        "number": torch.tensor(1.5), "none": torch.ones(0, 3),
    }  # fmt: skip

    def tree(mesh, spec, fill):
        found = {key: fill(t).to("spmd") for key, t in values.items()}
        for key in ("a", "half", "complex"):
            spmd.mark_sharding(found[key], mesh, spec)
        found["view"], found["host"] = found["half"].t()[2:], fill(values["a"])
        return found

    spmd.save(tmp_path, tree(mesh, spec, torch.clone))
    for onto, by in ((mesh, spec), (other, ("x", None)), (other, (None, "x"))):
        target = tree(onto, by, torch.zeros_like)
        before = target["half"].clone()
        spmd.load(tmp_path, target)
        assert torch.equal(target["view"].cpu(), values["half"].t()[2:])
        assert spmd.sharding_of(target["a"]).spec == P(*by)
        for key, value in {**values, "host": values["a"]}.items():
            assert torch.equal(target[key].cpu(), value), key
        assert not before.any()  # a copy shares its memory until the tensor is written
        assert spmd.checkpoint.last_load().ratio == 1
    spmd.load(
        tmp_path, {"a": (wide := torch.zeros(7, 9).double().to("spmd"))}, strict=False, cast=True
    )
    assert torch.equal(wide.cpu(), values["a"].double())
    # Without a target, and onto parameters on meta.
    found = spmd.load(tmp_path, None)
    assert all(torch.equal(found[key].cpu(), value) for key, value in values.items())
    with torch.device("meta"):
        empty = nn.ParameterDict({"a": nn.Parameter(torch.zeros(7, 9))})
    spmd.load(tmp_path, empty, strict=False, mesh=other, rules={"a": ("x", None)})
    assert torch.equal(empty["a"].detach().cpu(), values["a"])
    assert spmd.sharding_of(empty["a"]).spec == P("x", None)


def test_the_state_of_a_fresh_optimizer_is_read_in_pieces(tmp_path, small_pieces, monkeypatch):
    mesh = spmd.make_mesh((2,), ("x",))

    def made():
        torch.manual_seed(0)
        w = spmd.mark_sharding(torch.randn(16, 9).to("spmd"), mesh, ("x", None)).requires_grad_()
        return w, torch.optim.AdamW([w])

    def step(w, optimizer):
        w.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    w, optimizer = made()
    step(w, optimizer)
    spmd.save(tmp_path, {"w": w, "optimizer": optimizer})
    sizes, read = [], reading.Ranges.read

    def noted(self, *arguments):
        sizes.append(read(self, *arguments).nbytes)
        return read(self, *arguments)

    monkeypatch.setattr(reading.Ranges, "read", noted)
    again, fresh = made()
    spmd.load(tmp_path, {"w": again, "optimizer": fresh})
    assert max(sizes) <= 100
    moment = fresh.state[again]["exp_avg"]
    assert torch.equal(moment.cpu(), optimizer.state[w]["exp_avg"].cpu())
    assert spmd.sharding_of(moment).spec == P("x", None)
    step(w, optimizer)
    step(again, fresh)
    assert torch.equal(again.detach().cpu(), w.detach().cpu())


def test_memory_of_the_host():
    """A model of 512 MiB, half of it two tensors: some slabs of 8 MiB."""
    run_script("""
        import tempfile, torch, torch_spmd as spmd

        def memory(kind):
            with open("/proc/self/status") as status:  # ru_maxrss also counts the parent's
                [line] = [line for line in status if line.startswith(kind)]
            return int(line.split()[1]) / 1024

        mesh = spmd.make_mesh((8,), ("x",))
        tree = {}
        for i in range(10):
            w = torch.full((1024 if i < 8 else 4096, 8192), float(i), device="spmd")
            tree[str(i)] = spmd.mark_sharding(w, mesh, (None, "x") if i == 8 else ("x", None))
            spmd.sync(wait=True)
        before = max(memory("VmHWM"), memory("VmRSS"))
        with tempfile.TemporaryDirectory() as path:
            spmd.save(path, tree)
            saved = memory("VmHWM") - before
            before = memory("VmRSS")
            with open("/proc/self/clear_refs", "w") as peak:
                peak.write("5")
            spmd.load(path, tree)
            loaded = memory("VmHWM") - before
            with torch.device("meta"):
                empty = torch.nn.ParameterDict({"9": torch.nn.Parameter(torch.empty(4096, 8192))})
            before = memory("VmRSS")
            with open("/proc/self/clear_refs", "w") as peak:
                peak.write("5")
            spmd.load(path, empty, strict=False, mesh=mesh, rules={"9": ("x", None)})
            made = memory("VmHWM") - before
        assert all(tree[str(i)][5, 5].item() == i for i in range(10))
        assert float(empty["9"].min()) == float(empty["9"].max()) == 9
        assert saved < 96, saved
        assert loaded < 64, loaded
        assert made < 128 + 48, made  # it was not there before
    """)
