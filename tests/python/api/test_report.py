# SPDX-License-Identifier: Apache-2.0
"""The page that spmd.debug.report writes, and the plots in it."""

import re
from html.parser import HTMLParser

import browser
import pytest
import torch
from processes import run_script
from torch import nn

import torch_spmd as spmd
from torch_spmd import _C

pytest.importorskip("matplotlib")

PARTS = ["timeline", "memory", "collectives", "shardings", "program"]


class Page(HTMLParser):
    """Tables as lists of rows of cells, texts by tag, and every attribute that could fetch."""

    def __init__(self, text):
        super().__init__()
        self.sections, self.tables, self.texts = [], {}, {}
        self.fetched, self.tags, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        if tag == "section":
            self.sections.append(given["id"])
        if tag == "table":
            self.tables.setdefault(self.sections[-1], []).append([])
        if tag == "tr":
            self.tables[self.sections[-1]][-1].append([])
        if tag in ("th", "td"):
            self.tables[self.sections[-1]][-1][-1].append("")
        for name in ("src", "href", "xlink:href", "data", "action", "srcset"):
            if not given.get(name, "#").startswith("#"):
                self.fetched.append(given[name])
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"th", "td"} & set(self.open):
            self.tables[self.sections[-1]][-1][-1][-1] += data
        if "pre" in self.open:
            self.texts.setdefault("pre", []).append(data)
        elif self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def numbers(self, part, table, column):
        """The numbers of a column of one of a part's tables."""
        head, *rows = self.tables[part][table]
        return [int(row[head.index(column)].replace(",", "")) for row in rows]


@pytest.fixture
def model():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).to("spmd")
    spmd.mark_sharding(model[0].weight, mesh, ("model", None))
    spmd.mark_sharding(model[2].weight, mesh, (None, "model"))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = spmd.mark_sharding(torch.randn(32, 64).to("spmd"), mesh, ("data", None))
        model(x).square().mean().backward()
    optimizer.step()
    return model


@pytest.fixture
def page(model, tmp_path):
    spmd.debug.report(tmp_path / "step.html", model)
    return Page((tmp_path / "step.html").read_text(encoding="utf-8"))


def test_it_has_all_parts(page):
    assert page.sections == PARTS
    assert page.texts["h1"] and len(page.texts["h2"]) == len(PARTS)
    assert page.open == []
    assert page.tags.count("svg") == 2  # the timeline and memory over time


def test_it_fetches_nothing(page, tmp_path):
    text = (tmp_path / "step.html").read_text(encoding="utf-8")
    assert page.fetched == []
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert set(re.findall(r"\w+://[^\s\"'<]+", text)) <= {
        "http://www.w3.org/2000/svg",  # names of formats
        "http://www.w3.org/1999/xlink",
    }
    assert "url(" not in re.sub(r"url\(#", "", text) and "@import" not in text


def test_the_lines_of_a_page_and_collectives_are_the_same_numbers(page):
    sent = spmd.debug.collectives()
    assert len(sent) > 0
    for column, field in (("bytes", "bytes"), ("on the wire", "wire_bytes")):
        assert sum(page.numbers("collectives", 0, column)) == sum(getattr(r, field) for r in sent)
    assert sum(page.numbers("collectives", 0, "times")) == len(sent)
    wire = page.numbers("collectives", 0, "on the wire")
    assert wire == sorted(wire, reverse=True)
    head, *rows = page.tables["collectives"][1]
    assert sum(int(row[0]) for row in rows) == len(sent) if head[0] == "times" else len(rows)


def test_the_largest_values_are_those_of_memory(page):
    used = spmd.debug.memory()
    assert page.numbers("memory", 0, "bytes") == [row.bytes for row in used]
    assert used.note in "".join(page.texts["p"])


def test_the_programs_and_graphs_are_whole(page):
    programs, _, _ = _C.last_step()
    assert len({p.number for p in programs}) > 1
    shown = "".join(page.texts["pre"]).splitlines()
    for program in programs:
        for text in (program.program_text(), program.graph_text()):
            assert set(filter(None, text.splitlines())) <= set(shown)


def test_parameters_have_their_names_and_parts(page):
    head, *rows = page.tables["shardings"][0]
    assert head == ["parameter", "shape", "spec", "part", "bytes"]
    assert rows == [
        ["0.weight", "(256, 64)", "P('model', None)", "(64, 64)", "16,384"],
        ["0.bias", "(256,)", "P('model')", "(64,)", "256"],
        ["2.weight", "(10, 256)", "P(None, 'model')", "(10, 64)", "2,560"],
        ["2.bias", "(10,)", "P(None)", "(10,)", "40"],
    ]


def test_inputs_have_their_shardings(page):
    programs, _, _ = _C.last_step()
    tables = [t for t in page.tables["shardings"] if t[0][0] == "value"]
    first, *_ = {p.number: p for p in programs}.values()
    expected = [
        line.split(":")[0].strip()
        for line in first.program_text().splitlines()
        if re.match(r"  %\w+: [^=]*$", line)
    ]
    assert [row[0] for row in tables[0][1:]] == expected
    assert ["f32[256,64]", "{model},{}"] in [row[1:3] for row in tables[0]]


def test_memory_over_time_has_every_instruction_and_reaches_the_peak(model):
    used = spmd.debug.memory()
    programs, _, _ = _C.last_step()
    assert len(used.begins) == len(programs) and used.begins[0] == 0
    totals = [sum(after) for after in zip(*used.over_time.values())]
    assert len(totals) == len(spmd.debug.timeline())
    assert 0 < max(totals) <= used.peak_bytes
    assert list(used.over_time) == ["argument", "gradient", "gathered", "activation"]


def test_plots_show_what_the_tables_have(model, tmp_path):
    used, times = spmd.debug.memory(), spmd.debug.timeline("v5e-8")
    figure = used.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    [axes] = figure.axes
    assert axes.get_ylabel() == "KiB of a device"
    [peak] = [line for line in axes.lines if line.get_label() == "peak"]
    assert peak.get_ydata()[0] * 1024 == used.peak_bytes
    [axes] = times.plot().axes
    assert [t.get_text() for t in axes.get_yticklabels()] == times.streams
    drawn = sum(len(bars.get_paths()) for bars in axes.collections)
    assert drawn == len(times)


def test_many_instructions_are_drawn_by_their_largest():
    from torch_spmd.debug import plots

    totals = [0] * 5000
    totals[3210] = 7
    shown = plots._thinned(totals)
    assert 3210 in shown and len(shown) <= plots._MOST_STEPS
    assert plots._thinned([3, 1]) == [0, 1] and plots._thinned([]) == []


def test_names_are_escaped(tmp_path):
    mesh = spmd.make_mesh((2,), ("x",))
    module = nn.Module()
    module.register_parameter("<i>&", nn.Parameter(torch.ones(4, device="spmd")))
    spmd.mark_sharding(getattr(module, "<i>&"), mesh, ("x",))
    getattr(module, "<i>&").sum().item()
    spmd.debug.report(tmp_path / "page.html", module)
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "i" not in page.tags
    assert page.tables["shardings"][0][1][:3] == ["<i>&", "(4,)", "P('x')"]


def test_a_long_program_is_folded(model, tmp_path):
    x = torch.ones(4).to("spmd")
    for k in range(60):
        x = (x * 2).sin() if k % 2 else x.cos().reshape(2, 2).t().flatten()
    x.sum().item()
    spmd.debug.report(tmp_path / "page.html", step=False)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"<details><summary>Program \d+: \d+ lines", text)
    assert re.search(r"<details open><summary>Program \d+, inputs: 1<", text)


def test_nothing_is_sent(tmp_path):
    torch.ones(3, device="spmd").sum().item()
    spmd.debug.report(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Nothing is sent." in text and "Parameters" not in text


def test_errors(model, tmp_path):
    with pytest.raises(FileNotFoundError):
        spmd.debug.report(tmp_path / "missing" / "page.html")
    with pytest.raises(IsADirectoryError):
        spmd.debug.report(tmp_path)
    with pytest.raises(TypeError, match=r"report: module must be an nn\.Module; got 3 \(int\)"):
        spmd.debug.report(tmp_path / "page.html", 3)
    with pytest.raises(ValueError, match=r"timeline: on: .*no GPU 'h101'"):
        spmd.debug.report(tmp_path / "page.html", on="8xh101")
    assert list(tmp_path.iterdir()) == []


def test_before_anything_ran(tmp_path):
    script = """
        import os, torch_spmd as spmd
        try:
            spmd.debug.report("page.html")
        except RuntimeError as error:
            print(error, os.path.exists("page.html"))
    """
    assert run_script(script).stdout.startswith("no program has run yet: ")


LOOK = """{
    fetched: performance.getEntriesByType("resource").length,
    overflow: document.documentElement.scrollWidth - innerWidth,
    parts: [...document.querySelectorAll("section")].map(s => s.getBoundingClientRect().height),
    plots: [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect().height),
    colours: ["color", "backgroundColor"].map(name => getComputedStyle(document.body)[name]),
    size: parseFloat(getComputedStyle(document.querySelector("p")).fontSize),
}"""


@pytest.mark.parametrize("width", [1200, 400])
def test_in_a_browser(model, tmp_path, width):
    spmd.debug.report(tmp_path / "step.html", model)
    seen = browser.measure(tmp_path / "step.html", width, LOOK)
    assert seen["fetched"] == 0 and seen["overflow"] <= 0
    assert len(seen["parts"]) == len(PARTS) and min(seen["parts"]) > 100
    assert len(seen["plots"]) == 2 and min(seen["plots"]) > 80
    assert seen["colours"] == ["rgb(29, 37, 48)", "rgb(255, 255, 255)"] and seen["size"] >= 14
