# SPDX-License-Identifier: Apache-2.0
"""The workloads beside other compilers: counting of HLO, and the message if there is no JAX."""

import os
import sys

import pytest
from processes import run_python

from benchmarks.peers import hlo
from benchmarks.peers.__main__ import NAMES, Ratios, least, ratios
from benchmarks.peers.conversation import Child
from benchmarks.peers.steps import __main__ as steps
from benchmarks.workloads import WORKLOADS


def module(lines, more=""):
    """The text of a module whose entry computation has these instructions."""
    body = "\n".join(f"  {line}" for line in lines)
    return hlo.parse(f"HloModule m\n\n{more}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n")


@pytest.mark.parametrize(
    ("line", "counts", "wire_bytes"),
    [
        (
            "%r = f32[4,2]{1,0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}",
            {"all_reduce": 1},
            2 * 32 * 3 / 4,
        ),
        (
            "%r = (f32[4]{0}, /*index=1*/bf16[2,2]{1,0}) all-reduce(%p), replica_groups=[2,4]<=[8]",
            {"all_reduce": 1},
            2 * (16 + 8) * 3 / 4,
        ),
        (
            "%r = f32[8]{0} all-gather(%p), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}",
            {"all_gather": 1},
            32 * 3 / 4,
        ),
        (
            "%r = f32[8]{0} all-gather(%p), replica_groups=mesh['a'=8] {'a':(2)4}, dimensions={0}",
            {"all_gather": 1},
            32 * 3 / 4,
        ),
        (
            "%r = f32[2]{0} reduce-scatter(%p), replica_groups={}, dimensions={0}",
            {"reduce_scatter": 1},
            8 * 7,
        ),
        (
            "%r = pred[4]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}",
            {"permute": 1},
            4,
        ),
        ("%r = s32[2]{0} all-gather(%p), replica_groups={{0},{1}}, dimensions={0}", {}, 0),
    ],
)
def test_bytes_on_the_wire(line, counts, wire_bytes):
    assert hlo.collectives(module([line]), 8) == (counts, pytest.approx(wire_bytes))


def test_of_an_all_reduce_what_is_only_sliced_counts_as_a_reduce_scatter():
    fused = """%fused (a: f32[8], i: s32[]) -> f32[2] {
  %a = f32[8]{0} parameter(0)
  %i = s32[] parameter(1)
  %c = f32[8]{0} copy(%a)
  ROOT %s = f32[2]{0} dynamic-slice(%c, %i), dynamic_slice_sizes={2}
}
"""
    lines = [
        "%r = (f32[8]{0}, f32[8]{0}) all-reduce(%p, %q), replica_groups={{0,1,2,3}}, to_apply=%add",
        "%x = f32[8]{0} get-tuple-element(%r), index=0",
        "%y = f32[8]{0} get-tuple-element(%r), index=1",
        "%f = f32[2]{0} fusion(%x, %i), kind=kLoop, calls=%fused",
        "%g = f32[8]{0} negate(%y)",
    ]
    assert hlo.collectives(module(lines, fused), 4).wire_bytes == 32 * 3 / 4 + 2 * 32 * 3 / 4


def test_loops_count_as_often_as_they_run():
    body = """%body (b: f32[8]) -> f32[8] {
  %b = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} all-reduce(%b), replica_groups={{0,1}}, to_apply=%add
}
"""
    loop = (
        "%w = f32[8]{0} while(%p), condition=%c, body=%body, "
        'backend_config={"known_trip_count":{"n":"11"}}'
    )
    looping = module(["%p = f32[8]{0} parameter(0)", loop], body)
    assert hlo.collectives(looping, 2) == ({"all_reduce": 11}, 11 * 32)
    assert hlo.instructions(looping) == 1 + 11


def test_ratios_are_to_the_faster_partitioner_and_rounds_keep_the_least():
    def answers(ours, slower):
        theirs = {"lower": 1.0, "compile": 3.0, "planning": 0.5, "mb": 1.0, "instructions": 7}
        return {
            "ours": {"step": 2 * ours, "compile": ours, "mb": 1.0, "instructions": 5},
            "gspmd": theirs,
            "shardy": theirs | {"compile": slower},
        }

    assert ratios(answers(0.1, 4.0)) == Ratios(pytest.approx(30), pytest.approx(20), 5)
    assert least(answers(0.1, 4.0), answers(0.2, 2.0)) == answers(0.1, 2.0)


def run_peers(root, module, *arguments, **environment):
    return run_python("-m", module, *arguments, cwd=root, **environment)


@pytest.mark.parametrize("module", ["benchmarks.peers", "benchmarks.peers.steps"])
def test_says_where_jax_is_missing(root, tmp_path, module):
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\")\n")
    done = run_peers(root, module, "--python", sys.executable, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"skipped: no JAX in {sys.executable} (No module named 'jax'); name an interpreter that "
        "has it with --python or SPMD_PEERS_PYTHON\n"
    )


def test_a_failing_peer_says_why():
    with Child(sys.executable, "benchmarks.peers.ours") as ours:
        with pytest.raises(RuntimeError, match="KeyError: 'none such'"):
            ours.ask(workload="none such", annotated=False)
        assert ours.ask(workload="mlp", annotated=False)["description"]["mesh"] == {
            "data": 2,
            "model": 4,
        }
        with pytest.raises(RuntimeError, match="'mlp' was compiled in this process before"):
            ours.ask(workload="mlp", annotated=False)


def test_every_workload_is_known():
    assert set(NAMES) == set(WORKLOADS)


def test_a_workload_compiles_under_xla(root):
    if "SPMD_PEERS_PYTHON" not in os.environ:
        pytest.importorskip("jax")
    done = run_peers(root, "benchmarks.peers", "mlp", "--marks", "full")
    assert "mlp        full" in done.stdout, done.stdout + done.stderr
    assert "gspmd: 21.50 MB, 4 all_reduce" in done.stdout or "gspmd" not in done.stdout
    assert "shardy: 21.50 MB, 4 all_reduce" in done.stdout


def test_steps_of_eager_and_ours_are_of_one_model():
    with Child(sys.executable, "benchmarks.peers.steps.ours") as ours:
        described = ours.ask(row="MLP N=64")["description"]
        assert described["mesh"] == {"data": 16, "model": 4}
        assert described["inputs"]["x"]["shape"] == [64, 1024]
        for side in ("eager", "ours"):
            times = ours.ask(run=side)
            assert times["cpu"] > 0 and times["clock"] > 0
        assert ours.ask(row="launch N=8") == {}
        assert ours.ask(run="ours")["clock"] > 0


def test_a_row_of_steps():
    def turn(eager, ours, xla):
        sides = {"eager": eager, "ours": ours, "xla": xla}
        return {side: {"cpu": s, "clock": s / 2} for side, s in sides.items()}

    columns = steps.line("GPT N=1", [turn(1.0, 2.0, 8.0)] * 3).split()
    assert columns[2:] == [
        *("1000.00", "2000.00", "8000.00", "ms"),
        *("2.00", "8.00", "4.00", "4.00", "4.00", "4.00"),
    ]


def test_xla_launches(root):
    if "SPMD_PEERS_PYTHON" not in os.environ:
        pytest.importorskip("jax")
    done = run_peers(root, "benchmarks.peers.steps", "launch N=8", "--pairs", "1")
    assert "launch N=8 " in done.stdout, done.stdout + done.stderr
