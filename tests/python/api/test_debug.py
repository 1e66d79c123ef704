# SPDX-License-Identifier: Apache-2.0
"""The output of spmd.debug."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from processes import run_python, run_script
from reported import reported

import torch_spmd as spmd
from torch_spmd import _C, _versions


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


@pytest.fixture
def product(mesh):
    """A product whose contraction is sharded over `model`, computed and gathered."""
    a = spmd.mark_sharding(torch.ones(64, 32, device="spmd"), mesh, (None, "model"))
    b = spmd.mark_sharding(torch.ones(32, 48, device="spmd"), mesh, ("model", None))
    c = a @ b
    spmd.mark_sharding(c, mesh, (None, None))
    assert c.cpu().unique().tolist() == [32.0]
    return c


def test_collectives(product):
    table = spmd.debug.collectives()
    (row,) = table.rows
    assert (row.kind, row.axes, row.devices, row.bytes) == ("all_reduce", "model", 4, 64 * 48 * 4)
    assert row.wire_bytes == 2 * row.bytes * 3 // 4
    assert row.op.startswith("aten::mm")
    assert table.large == [row] and table.small == []
    assert "1 all_reduce 12.0 KiB, 0 under 4 KiB" in str(table)


def test_memory(product):
    table = spmd.debug.memory()
    assert table.peak_bytes >= 64 * 48 * 4
    assert table.rows[0].bytes == max(row.bytes for row in table.rows)
    assert str(table).splitlines()[-1].startswith("peak ")


def test_programs_and_graphs_are_text(product, capsys):
    program = spmd.debug.print_program()
    assert "all_reduce" in program and "aten::mm" in program
    assert capsys.readouterr().out == program + "\n"
    assert "aten::mm" in spmd.debug.print_graph()


def test_the_pending_graph_is_printed(mesh):
    x = torch.ones(4, device="spmd")
    y = (x + 1).exp()
    assert "aten::exp" in spmd.debug.print_graph(y)
    y.cpu()
    with pytest.raises(ValueError, match="the tensor is not pending"):
        spmd.debug.print_graph(y)


def test_explain_leads_back_to_a_mark(mesh):
    x = spmd.mark_sharding(torch.ones(8, 4, device="spmd"), mesh, ("data", None))
    y = torch.relu(x) * 2
    spmd.sync()
    assert "data" in spmd.debug.explain(y)
    assert "('data', None)" in spmd.debug.explain(x)


def line_of(here: str) -> str:
    """The line of this file that has the comment `# here`, as messages name it."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"  # {here}")]
    return f"test_debug.py:{number}"


def test_explain_names_parameters_and_lines_and_no_values(mesh):
    model = torch.nn.Linear(4, 8).to("spmd")
    spmd.shard_module(model, mesh, {"weight": ("model", None)})  # the module is marked
    ones = torch.ones(8, 4).to("spmd")
    x = spmd.mark_sharding(ones, mesh, ("data", None))  # the batch is marked
    y = torch.relu(model(x))  # the layer
    spmd.sync()
    why = str(spmd.debug.explain(y))
    weight = f"parameter 'weight' that shard_module marked at {line_of('the module is marked')}"
    batch = f"the tensor that mark_sharding marked at {line_of('the batch is marked')}"
    assert why.startswith(f"the result of aten::relu at {line_of('the layer')}: f32[8,8]")
    assert f"from {weight}, stage" in why
    assert f"dimension 0 of {weight} is sharded over model: by its mark" in why
    assert f"dimension 0 of {batch} is sharded over data: by its mark" in why
    assert "%" not in why
    assert str(spmd.debug.explain(model.weight)).startswith(f"{weight}: marked ('model', None)")


def test_explain_says_where_a_result_was_marked(mesh):
    y = torch.ones(8, 4).to("spmd").exp()  # the result
    spmd.mark_sharding(y, mesh, ("data", None))
    spmd.sync()
    name = f"the result of aten::exp at {line_of('the result')}"
    assert f"dimension 0 of {name} is sharded over data: by its mark" in spmd.debug.explain(y)


def test_explain_compile():
    x = torch.ones(5, 7, device="spmd")
    spmd.sync()
    before = reported()["compiles"]
    for _ in range(3):
        (x.sin() * x.cos()).cpu()
    assert reported()["compiles"] == before + 1
    table = spmd.debug.explain_compile()
    assert table.rows[-1].ops == 3 and table.rows[-1].ended_by == "cpu"
    assert "programs compiled" in str(table)


def test_visualize(mesh, capsys):
    t = spmd.mark_sharding(torch.zeros(8, 4, device="spmd"), mesh, ("data", None))
    text = spmd.debug.visualize_sharding(t)
    assert capsys.readouterr().out == text + "\n"
    assert text == (
        "(8, 4) NamedSharding([data=2, model=4], P('data', None), committed)\n"
        "dim 0 0:4 │ 0..3 │\n"
        "──────────┼──────┤\n"
        "dim 0 4:8 │ 4..7 │"
    )


def test_visualize_two_dimensions_and_uneven():
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    t = spmd.mark_sharding(torch.zeros(3, 5, device="spmd"), mesh, ("y", "x"))
    assert spmd.debug.visualize_sharding(t).splitlines()[1:] == [
        "dim 0 \\ dim 1 │ 0:3 │ 3:5 │",
        "──────────────┼─────┼─────┤",
        "0:2           │ 0   │ 2   │",
        "──────────────┼─────┼─────┤",
        "2:3           │ 1   │ 3   │",
    ]


def test_visualize_three_dimensions():
    mesh = spmd.make_mesh((2, 2, 2), ("x", "y", "z"))
    t = spmd.mark_sharding(torch.zeros(2, 2, 2, device="spmd"), mesh, ("x", "y", "z"))
    assert [line for line in spmd.debug.visualize_sharding(t).splitlines() if "dim 2" in line] == [
        "dim 2 0:1",
        "dim 2 1:2",
    ]


def test_visualize_a_whole_tensor(mesh):
    t = spmd.mark_sharding(torch.zeros(8, device="spmd"), mesh, (None,))
    assert spmd.debug.visualize_sharding(t).splitlines()[1] == "whole on 0..7"


def test_save_repro_and_trace(product, root, tmp_path):
    spmd.debug.save_repro(tmp_path / "graph.txt")
    text = (tmp_path / "graph.txt").read_text()
    assert "graph {" in text and "aten::mm" in text
    spmd_opt = root / _versions.build_folder(torch.__version__) / "tools/spmd_opt/spmd-opt"
    checked = subprocess.run(
        [spmd_opt, "--pass=check", tmp_path / "graph.txt"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    spmd.debug.trace_to_chrome(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    stages = [event for event in events if event["pid"] == 0 and event["ph"] == "X"]
    assert [event["name"] for event in stages]
    ends = [event["ts"] + event["dur"] for event in stages]
    assert [event["ts"] for event in stages[1:]] == pytest.approx(ends[:-1])


class TestTimeline:
    """What a model of the machine says that a program takes."""

    @pytest.fixture
    def times(self, product):
        return spmd.debug.timeline(on="v5e-8")

    def test_rows_are_the_programs_instructions_in_order(self, times):
        [mm] = [row for row in times if row.op == "aten::mm"]
        assert mm.stream == "compute" and mm.flops > 0 and mm.microseconds > 0
        assert len(times) == len([row for row in times.rows if row.op != "free"])
        assert times.seconds == max(row.start + row.microseconds for row in times) / 1e6

    def test_it_prints_as_other_tables(self, times):
        assert "aten::mm" in str(times) and "MFU" in times.note and "on v5e-8" in times.note
        assert times._repr_html_().startswith("<table>")

    def test_places_and_utilisation(self, times):
        assert times.devices == len(times.device_order) == 8
        assert times.placement and all("=" in axis for axis in times.placement)
        assert 0 < times.mfu <= times.hfu < 1
        assert 0 <= times.exposed_seconds <= times.seconds

    def test_without_a_machine_it_is_the_backends(self, product):
        assert spmd.debug.timeline().streams == ["compute", "ring"]

    def test_a_faster_machine_takes_less(self, times):
        assert spmd.debug.timeline(on="v6e-8").seconds < times.seconds

    def test_an_efficiency_takes_the_place_of_the_fitted_one(self, product):
        slow, fast = (spmd.debug.timeline("v5e-8", efficiency=e).seconds for e in (0.001, 1.0))
        assert slow > fast
        with pytest.raises(ValueError, match=r"timeline: efficiency is 1\.5, not above 0"):
            spmd.debug.timeline(efficiency=1.5)

    def test_errors_name_the_machine(self, product):
        with pytest.raises(ValueError, match=r"timeline: on: .*no GPU 'h101'"):
            spmd.debug.timeline(on="8xh101")
        with pytest.raises(ValueError, match="a mesh of 8 devices does not divide v5e-4"):
            spmd.debug.timeline(on="v5e-4")

    def test_a_trace_has_a_track_for_each_stream(self, product, tmp_path):
        spmd.debug.trace_to_chrome(tmp_path / "trace.json", on="v5e-8")
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        tracks = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
        assert tracks == ["compute", "x", "y"]
        spans = [e for e in events if e["pid"] == 1 and e["ph"] == "X"]
        assert {e["tid"] for e in spans} <= {0, 1, 2} and all(e["dur"] > 0 for e in spans)
        [mm] = [e for e in spans if e["name"] == "aten::mm"]
        assert mm["args"]["FLOPs"] > 0


def test_before_anything_ran():
    code = "import torch_spmd as spmd; spmd.debug.collectives()"
    result = run_python("-c", code)
    assert result.stderr.splitlines()[-1] == (
        "RuntimeError: no program has run yet: look at a value, step an optimizer, or call "
        "spmd.sync() first"
    )


class TestSteps:
    """`collectives()` and `memory()` are about all programs of an optimizer step."""

    @pytest.fixture
    def trained(self, mesh):
        model = torch.nn.Linear(32, 32).to("spmd")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(micro_steps, read=False):
            for _ in range(micro_steps):
                x = torch.randn(16, 32).to("spmd")
                spmd.mark_sharding(x, mesh, ("data", None))
                loss = model(x).square().mean()
                loss.backward()
                if read:
                    loss.item()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def test_one_program(self, trained):
        trained(1)
        table = spmd.debug.collectives()
        assert [row.kind for row in table.large] == ["all_reduce"] and "runs" not in table.note

    def test_values_read_before_the_step(self, trained):
        trained(1, read=True)
        table = spmd.debug.collectives()
        assert sum(row.kind == "all_reduce" for row in table.large) == 1
        assert "of the last step: 2 runs" in table.note
        assert spmd.debug.collectives(step=False).rows == []

    def test_micro_steps(self, trained):
        for _ in range(3):
            trained(3)
        table, whole = spmd.debug.collectives(), spmd.debug.memory()
        programs, since, _ = _C.last_step()
        assert len(programs) == 4 and since == 0  # three micro-steps, then the optimizer
        assert len(table) == sum(len(p.collectives()) for p in programs)
        assert sum(row.kind == "all_reduce" for row in table.large) == 1
        assert "of the last step: 4 runs, of the programs " in table.note
        assert whole.peak_bytes == max(p.memory()[0] for p in programs)
        assert "the largest of the last step" in whole.note

    def test_an_evaluation_is_no_part_of_a_step(self, trained):
        trained(1)
        step = spmd.debug.collectives().rows
        assert [row.kind for row in spmd.debug.collectives().large] == ["all_reduce"]
        for k in range(3):
            torch.full((k + 2,), 0.5, device="spmd").sum().item()
        assert spmd.debug.collectives().rows == []
        note = spmd.debug.collectives().note
        assert "the last of 3 runs since the optimizer's step, which step=True shows" in note
        assert spmd.debug.collectives(step=True).rows == step
        trained(1)
        assert len(_C.last_step()[0]) == 1
        assert [row.kind for row in spmd.debug.collectives().large] == ["all_reduce"]


def test_tables_are_sequences_of_rows_and_html(product):
    table = spmd.debug.collectives()
    assert [row.kind for row in table] == ["all_reduce"]
    assert table[0] == table.rows[0] and table[:1] == table.rows and len(table) == 1
    html = table._repr_html_()
    assert html.startswith("<table><thead><tr><th>kind</th>") and "<td>all_reduce</td>" in html
    assert "&lt;" in spmd.debug.Table(("a",), [("<b>",)])._repr_html_()


def test_printed_text_is_not_shown_again(product, capsys):
    for show in (
        spmd.debug.print_program,
        spmd.debug.print_graph,
        lambda: spmd.debug.visualize_sharding(product),
    ):
        shown = show()
        assert capsys.readouterr().out == str(shown) + "\n"
        assert repr(shown) == ""


def test_an_op_on_the_host_is_said_once_with_its_bytes():
    script = """
        import torch, torch_spmd
        for _ in range(2):
            torch.linalg.lu_factor(torch.eye(4).to("spmd"))
            torch.randperm(200, dtype=torch.int16, device="spmd")
    """
    lines = [t for t in run_script(script).stderr.splitlines() if "on the host" in t]
    assert len(lines) == 1, lines
    assert "aten::randperm runs on the host, at once and unsharded" in lines[0]
    assert "0 bytes were copied to the host, 400 bytes back" in lines[0]


def test_a_warning_names_the_users_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch_spmd\ntorch.randperm(\n    200, dtype=torch.int16, device='spmd')\n"
    )
    done = run_python(str(script))
    assert done.returncode == 0, done.stderr
    warned = [t for t in done.stderr.splitlines() if "on the host" in t]
    assert len(warned) == 1 and warned[0].startswith(f"{script}:2: UserWarning: "), done.stderr
