# SPDX-License-Identifier: Apache-2.0
"""spmd.plan: what it says equals what a script on the planning backend says, and nothing is left
behind."""

import sys

import pytest
import torch
from processes import run_python, run_script
from torch import nn

import torch_spmd as spmd
from torch_spmd import _C
from torch_spmd.planning import report

BATCH = torch.empty(64, 512, device="meta")
RULES = {"0.weight": ("model", None), "0.bias": ("model",), "2.weight": (None, "model")}


def build():
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))


def loss(model, x):
    return model(x).square().mean()


def planned(**changes):
    given = {
        "on": ["v5e-8", "v5p-16"], "mesh": {"data": 2, "model": 4}, "specs": RULES, "loss": loss,
    }  # fmt: skip
    return spmd.plan(build, BATCH, **given | changes)


def test_it_says_what_a_script_on_the_backend_says():
    said = run_script(f"""
        import torch, torch_spmd as spmd
        from torch import nn
        spmd.config.set_backend("mock_tpu:v5e-8:plan")
        mesh = spmd.make_mesh((2, 4), ("data", "model"))
        model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to("spmd")
        spmd.shard_module(model, mesh, {RULES!r})
        optimizer = torch.optim.AdamW(model.parameters())
        x = spmd.mark_sharding(torch.randn(64, 512).to("spmd"), mesh, ("data", None))
        for _ in range(2):
            value = model(x).square().mean()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        memory, times = spmd.debug.memory(), spmd.debug.timeline()
        print(memory.peak_bytes, memory.input_bytes, times.seconds, times.mfu)
        print(sum(row.wire_bytes for row in spmd.debug.collectives()))
    """).stdout
    peak, arguments, seconds, mfu, wire = map(float, said.split())
    [row] = planned(on="v5e-8")
    assert (row.hbm, row.arguments) == (peak, arguments), (row, said)
    assert row.seconds == pytest.approx(seconds) and row.mfu == pytest.approx(mfu)
    assert sum(row.wire.values()) == wire and set(row.wire) <= {"data", "model", "data,model"}
    assert row.fits and row.memory == 15.75 * 2**30
    assert row.hbm == row.arguments + row.gradients + row.activations + row.gathered
    assert row.low < row.seconds < row.high and 0 < row.mfu < 1 and row.exposed >= 0


def test_one_trace_gives_what_a_trace_for_each_gives():
    together = planned(on=["v5e-8", "v5p-16", "v4-16"])
    for row in together:
        [alone] = planned(on=[row.on])
        assert row == alone


def test_other_meshes_of_one_trace():
    auto = planned(on="v5e-8", mesh="auto")
    assert [row.mesh for row in sorted(auto, key=lambda row: row.mesh)] == [
        "data=1 model=8", "data=2 model=4", "data=4 model=2", "data=8 model=1"
    ]  # fmt: skip
    assert [row.seconds for row in auto] == sorted(row.seconds for row in auto)
    for row in auto:
        sizes = {axis: int(size) for axis, size in (part.split("=") for part in row.mesh.split())}
        [alone] = planned(on="v5e-8", mesh=sizes)
        assert row == alone


def test_the_first_axis_takes_what_the_others_leave():
    rows = planned(on=["v5e-8", "v5p-16", "v5e-16"])
    assert {row.on: row.mesh for row in rows} == {
        "v5e-8": "data=2 model=4", "v5p-16": "data=2 model=4", "v5e-16": "data=4 model=4"
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"mesh .* does not fit v5e-8, which has 8 devices"):
        planned(mesh={"data": 2, "model": 3})


def test_what_memory_is_for():
    [plain] = planned(on="v5e-8")
    parameters = 2 * 512 * 2048 + 2048 + 512
    # weights, two moments of each, and half of the batch; the last bias is replicated
    assert plain.arguments == 3 * 4 * ((parameters - 512) // 4 + 512) + 32 * 512 * 4
    [whole] = planned(on="v5e-8", specs={})
    assert whole.arguments == 3 * 4 * parameters + 32 * 512 * 4
    [gathers] = spmd.plan(
        build, torch.empty(1 << 16, 512, device="meta"), on="v5e-8", mesh={"data": 8},
        specs={"*.weight": ("data", None)}, loss=loss,
    )  # fmt: skip
    assert gathers.gathered >= 4 * 512 * 2048 > plain.gathered
    [alone] = planned(on="v5e-8", optimizer=None)
    assert alone.gradients == 0 and alone.arguments < plain.arguments / 2


def test_what_does_not_fit_says_what_to_change():
    def large():
        return nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(8)))

    def over(specs):
        return spmd.plan(
            large, torch.empty(64, 16384, device="meta"), on="v5e-8", mesh={"data": 8},
            specs=specs, loss=loss,
        )  # fmt: skip

    table = over({})
    [row] = table
    assert not row.fits and row.hbm > 3 * 4 * 8 * 16384**2
    first = table.best.advice[0]
    assert "replicated over 'data'" in first and "(as *.weight)" in first
    assert "add 'data' to its spec" in first and first in str(table)
    [better] = over({"*": ("data", None)})
    assert better.hbm < row.hbm / 2
    # Weights and moments, of which some have been updated when most is held.
    held = [v for v in table.best.largest if v.what == "argument" and v.type == "f32[16384,16384]"]
    assert sum(v.number for v in held) == 24
    assert sum(v.bytes for v in held) == 24 * 4 * 16384**2
    assert any(v.line.startswith("test_plan.py:") for v in table.best.largest)


def test_nothing_is_left_behind():
    before = torch.arange(6.0, device="spmd")
    mesh = spmd.make_mesh((4,), ("x",))
    spmd.mark_sharding(before, mesh, ("x",))
    total = before.sum()
    torch.manual_seed(3)
    expected = torch.rand(3, device="spmd").cpu()
    torch.manual_seed(3)
    planned()
    assert total.item() == 15 and torch.equal(torch.rand(3, device="spmd").cpu(), expected)
    assert _C.backend_name() == "cpu" and spmd.get_global_mesh() is None
    assert (before * 2).sum().item() == 30
    with pytest.raises(ZeroDivisionError):
        spmd.plan(lambda: 1 // 0, BATCH, on="v5e-8", mesh={"data": 8}, specs={})
    assert _C.backend_name() == "cpu" and (before + 1).sum().item() == 21


def test_marks_and_questions_inside_of_the_module():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x, mask):
            assert not mask.all() and mask.sum() == 3
            y = spmd.mark_sharding(self.layer(x), spec=("data", "model"))
            return (y * mask[:, None]).sum()

    mask = torch.tensor([1, 0, 1, 1])
    table = spmd.plan(
        Asks, {"x": torch.empty(4, 16, device="meta"), "mask": mask}, on=["v5e-4", "v5e-8"],
        mesh={"data": 2, "model": 2}, specs={}, optimizer=torch.optim.SGD, autocast="bf16",
    )  # fmt: skip
    assert len(table) == 2 and table.parameters == 16 * 17


def test_pictures_have_the_figures():
    table = planned(on="v5e-8")
    best = table.best
    products = best.roofline()
    assert len(products) == 5  # two forward, and all but the gradient of the batch backward
    assert sum(p.flops_per_second * p.seconds for p in products) == pytest.approx(
        5 * 2 * 64 * 512 * 2048 / 8
    )
    times, held = best.memory_over_time()
    assert times == sorted(times) and times[-1] <= best.row.seconds
    sums = [sum(values) for values in zip(*held.values(), strict=True)]
    assert len(sums) == len(times) and max(sums) == best.row.hbm
    pytest.importorskip("matplotlib")
    figure = table.plot()
    roof, memory = figure.axes
    assert len(roof.collections[0].get_offsets()) == len(products)
    assert len(memory.collections) == len(report.PURPOSES)


def test_tables():
    table = planned()
    text = str(table)
    assert text.splitlines()[0].split()[:4] == ["on", "mesh", "fits", "HBM"]
    assert (
        "v5p-16" in text
        and "largest at the peak:" in text
        and "argument   3 of f32[512,2048]" in text
    )
    assert "over data" in str(table.best) and table[0] == table.best.row
    console = pytest.importorskip("rich.console").Console(width=200, record=True)
    console.print(table)
    assert "v5e-8" in console.export_text()


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"on": "v5x-8"}, ValueError, "plan: on: "),
        ({"on": []}, ValueError, "plan: on names no machine"),
        ({"on": 3}, TypeError, "plan: on"),
        ({"mesh": "best"}, ValueError, "plan: mesh must be sizes by axis or 'auto'; got 'best'"),
        ({"mesh": {}}, ValueError, "plan: mesh has no axis"),
        ({"mesh": {"data": 0}}, ValueError, r"plan: mesh\['data'\]"),
        ({"mesh": {"data": 8}}, ValueError, "parameter '0.weight'.*names axis 'model'"),
        ({"specs": "best"}, ValueError, "plan: specs must be rules or 'auto'; got 'best'"),
        ({"specs": 3}, TypeError, "plan: specs must be a mapping"),
        ({"loss": 3}, TypeError, "plan: loss must be a function"),
        ({"loss": None}, ValueError, r"plan: loss: the model returns \(64, 512\), which is"),
        ({"optimizer": 3}, TypeError, "plan: optimizer must be a string; got 3"),
        (
            {"optimizer": "adamx"},
            ValueError,
            "plan: optimizer 'adamx' is not known; known are adamw, adam",
        ),
        ({"autocast": "fp8"}, ValueError, "plan: autocast 'fp8' is not known; known are bf16, f16"),
        ({"batch_spec": 3}, TypeError, "3"),
    ],
)
def test_errors(changes, error, said):
    with pytest.raises(error, match=said):
        planned(**changes)


def test_other_errors():
    with pytest.raises(TypeError, match="plan: build must be callable"):
        spmd.plan(3, BATCH, on="v5e-8")
    with pytest.raises(TypeError, match=r"plan: build must return an nn.Module; got 3"):
        spmd.plan(lambda: 3, BATCH, on="v5e-8", mesh={"data": 8}, specs={})
    with pytest.raises(TypeError, match="plan: batch must be a tensor, a tuple"):
        spmd.plan(build, 3, on="v5e-8", mesh={"data": 8}, specs={}, loss=loss)
    with pytest.raises(RuntimeError, match=r"asks for the value of aten::sum at test_plan"):
        spmd.plan(
            build, BATCH, on="v5e-8", mesh={"data": 8}, specs={},
            loss=lambda model, x: model(x).sum() * x.sum().item(),
        )  # fmt: skip


def test_the_command(tmp_path):
    (tmp_path / "tiny.py").write_text(
        "import torch\n"
        "batch = torch.empty(64, 512, device='meta')\n"
        "specs = {'weight': ('model', None)}\n"
        "def loss(model, x): return model(x).sum()\n"
        "def build(): return torch.nn.Linear(512, 256)\n"
    )
    command = ["-m", "torch_spmd.planning", "tiny:build", "--on", "v5e-8", "v5p-16", "--mesh"]
    done = run_python(*command, "data=2,model=4", cwd=tmp_path, COLUMNS="250")
    assert done.returncode == 0, done.stderr
    assert "v5p-16" in done.stdout and "data=2 model=4" in done.stdout and not done.stderr
    wrong = run_python(*command, "data", cwd=tmp_path)
    assert wrong.returncode == 2 and "'data' is not a mesh" in wrong.stderr
    wrong = run_python("-m", "torch_spmd.planning", "tiny:make", "--on", "v5e-8", cwd=tmp_path)
    assert wrong.returncode == 2 and "tiny:make: module 'tiny' has no attribute" in wrong.stderr


def test_large_models_take_little(tmp_path):
    """A step of 64 B parameters; what takes time and memory is the number of ops."""
    said = run_script("""
        import torch, torch_spmd as spmd
        from torch import nn
        def build():
            return nn.Sequential(*(nn.Linear(32768, 32768, bias=False) for _ in range(60)))
        table = spmd.plan(
            build, torch.empty(4096, 32768, device="meta"), on="v5p-512",
            mesh={"data": 64, "model": 4}, specs={"*": ("data", "model")},
            loss=lambda model, x: model(x).sum(), autocast="bf16")
        assert table.parameters == 60 * 2**30 and table[0].fits
        with open("/proc/self/status") as status:  # ru_maxrss also counts the parent's
            [peak] = [line.split()[1] for line in status if line.startswith("VmHWM")]
        print(int(peak) // 1024)
    """)
    assert int(said.stdout) < 800, sys.argv


def test_importing_the_command_leaves_the_function():
    import torch_spmd.planning.__main__  # noqa: F401

    assert spmd.plan is spmd.planning.plan and callable(spmd.plan)


def test_one_step_is_recorded_for_specs_and_for_the_plan():
    """The batch is a dict, of which one item is no tensor, and Adafactor reads numbers."""
    batch = {"x": BATCH, "scale": 0.5}

    def scaled(model, x, scale):
        return {"loss": (scale * model(x)).square().mean()}

    given = {"on": "v5e-8", "mesh": {"data": 8}, "loss": scaled, "optimizer": "adafactor"}
    found = spmd.planning.auto_shard(build, batch=batch, **given)
    over = {"specs": dict(found), "batch_spec": (found.batch or None,)}
    [by_hand] = spmd.plan(build, batch, **given, **over)
    [proposed] = spmd.plan(build, batch, **given)
    assert proposed == by_hand and proposed.fits


@pytest.mark.parametrize("mesh", [{"data": 2, "model": 4}, "auto"])
def test_proposed_specs(mesh):
    table = planned(on=["v5e-8", "8xh100"], mesh=mesh, specs="auto")
    assert {row.on for row in table} == {"v5e-8", "8xh100"}
    for candidate in table.candidates:
        proposed = spmd.planning.auto_shard(
            build(), batch=BATCH, on=candidate.row.on, mesh=mesh, loss=loss, optimizer="adamw"
        )
        assert candidate.mesh == proposed.mesh
        assert candidate.specs.items() <= proposed.items()
        assert candidate.row.seconds == pytest.approx(proposed.estimate.seconds, rel=0.05)


@pytest.mark.parametrize("mesh", [{"data": 8}, "auto"])
def test_machines_that_are_too_small_for_every_proposal(mesh):
    """They get a row with what is missing, next to machines that are not."""

    def plan(on):
        return spmd.plan(
            lambda: nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(48))),
            torch.empty(512, 16384, device="meta"), on=on, mesh=mesh, loss=loss,
        )  # fmt: skip

    table = plan(["v5e-8", "v5p-16"])
    assert [(row.on, row.fits) for row in table] == [("v5p-16", True), ("v5e-8", False)]
    fits, not_fits = table
    assert fits.missing == 0 and not_fits.missing == not_fits.hbm - not_fits.memory > 0
    missing = f"{not_fits.missing / 2**30:.1f} GiB"
    assert f"NO, {missing} missing" in str(table)
    alone = plan("v5e-8")
    assert [row[:4] for row in alone] == [not_fits[:4]]
    assert f"does not fit: {missing} are missing on each device" in str(alone.best)


def test_gpus():
    [row] = planned(on="16xh100", mesh={"data": 2, "model": 8})
    assert row.fits and row.high - row.seconds == pytest.approx(0.2 * row.seconds)


def test_programs_that_the_cache_drops_are_planned():
    """Adafactor reads numbers in its step, so that a step is many programs, the first of which are
    no longer in the cache when it ends."""
    script = """
        import torch, torch_spmd as spmd
        from torch import nn
        from torch_spmd import _C
        _C.set_program_bytes({bytes})
        table = spmd.plan(
            lambda: nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))),
            torch.empty(64, 512, device="meta"), on="v5e-8", mesh={{"data": 8}}, specs={{}},
            loss=lambda model, x: model(x).sum(), optimizer="adafactor")
        print(table[0])
    """
    few = run_script(script.format(bytes=1)).stdout
    assert few == run_script(script.format(bytes=1 << 30)).stdout
    assert "mfu=0.0," not in few
