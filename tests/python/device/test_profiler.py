# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profiler sees programs and their instructions, which run in a thread of the runtime."""

import json
import re
from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import torch_spmd as spmd
from torch_spmd.device import options

CPU_ONLY = [ProfilerActivity.CPU]


def a_step():
    mesh = spmd.make_mesh((4,), ("data",))
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16).to("spmd")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = spmd.mark_sharding(torch.randn(8, 16).to("spmd"), mesh, ("data", None))

    def step():
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    spmd.sync(wait=True)
    return step


def ours(profiled):
    return Counter(e.name for e in profiled.events() if e.name.startswith("spmd: "))


def instructions(text):
    """How often each op or move stands in a program, without what costs nothing."""
    found = Counter(re.findall(r"= (?:call )?([\w:.]+)\(", text))
    return +found


@pytest.mark.parametrize("activities", [None, CPU_ONLY])
def test_programs_and_instructions(activities):
    with options.update(one_place=False):
        step = a_step()
        with profile(activities=activities) as profiled:
            for _ in range(3):
                step()
        program = spmd.debug.print_program()
    seen = ours(profiled)
    programs = {name: count for name, count in seen.items() if "program" in name}
    number = spmd.debug.explain_compile().rows[-1].program
    assert programs == {f"spmd: program {number}": 3}
    by_op = Counter()
    for name, count in seen.items():
        if name not in programs:
            line = r"( of \S+)? at test_profiler\.py:\d+"
            found = re.fullmatch(rf"spmd: (\S+)({line}| of an input)", name)
            by_op[found[1]] += count
    assert by_op == {op: 3 * count for op, count in instructions(program).items()}
    assert by_op["all_reduce"] >= 3
    named = {event.key for event in profiled.key_averages()}
    assert named >= set(seen)


def test_a_chrome_trace(tmp_path):
    step = a_step()
    with profile(activities=CPU_ONLY) as profiled, record_function("my step"):
        step()
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    timed = [e for e in events if e.get("ph") == "X"]
    [mine] = [e for e in timed if e["name"] == "my step"]
    [program] = [e for e in timed if e["name"].startswith("spmd: program")]
    inside = [e for e in timed if e["name"].startswith("spmd: ") and e is not program]
    assert inside and program["tid"] != mine["tid"]
    for event in inside:
        assert event["tid"] == program["tid"]
        assert program["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= program["ts"] + program["dur"] + 1e-3


def test_an_instruction_is_one_op_whoever_computes_its_tiles():
    """Workers have no observers, so that ops that they call would be seen or not by chance."""
    mesh = spmd.make_mesh((4,), ("data",))
    x = spmd.mark_sharding(torch.randn(512, 512).to("spmd"), mesh, ("data", None))

    def run():
        return (x @ x.T).sum().item()

    with options.update(one_place=False):
        run()
        with profile(activities=CPU_ONLY) as profiled:
            run()
    events = profiled.events()
    [program] = [e for e in events if e.name.startswith("spmd: program")]
    there = [e for e in events if e.thread == program.thread]
    inside = [e for e in there if e.cpu_parent is not None and e.cpu_parent.name != program.name]
    assert any(e.name.startswith("spmd: aten::") for e in there)
    assert not inside


def test_nothing_is_seen_without_a_profiler():
    step = a_step()
    step()  # runs while the profile begins
    with profile() as profiled:
        pass
    step()
    spmd.sync(wait=True)
    assert not ours(profiled)
    with profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    ) as profiled:
        for _ in range(5):
            step()
            profiled.step()
    assert 1 <= sum(n for name, n in ours(profiled).items() if "program" in name) <= 3


def test_a_program_that_fails():
    """It is seen up to where it failed; the profile ends, and then its error is raised."""
    x = torch.randn(8, 4, device="spmd")
    index = torch.tensor([9], device="spmd")
    profiled = profile(activities=CPU_ONLY)
    with pytest.raises(IndexError, match="index_select"), profiled:
        chosen = x.index_select(0, index)
        spmd.sync()
    assert any(name.startswith("spmd: aten::index_select") for name in ours(profiled))
    del chosen
    with pytest.raises(KeyError, match="mine"), profile() as profiled:
        (x + 1).sum().item()
        raise KeyError("mine")
    assert any(name.startswith("spmd: program") for name in ours(profiled))
