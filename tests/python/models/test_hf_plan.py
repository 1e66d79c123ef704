# SPDX-License-Identifier: Apache-2.0
"""spmd.hf.shard_model: plans of transformers. `python -m benchmarks.hf_plans` has all models."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_spmd as spmd
from benchmarks import hf_plans
from torch_spmd import P


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


@pytest.mark.parametrize("name", ["gpt_oss", "llama", "mixtral", "phi3"])
def test_losses_and_gradients(mesh, name):
    pytest.importorskip("transformers")
    kinds = dict(hf_plans.configs())
    row = hf_plans.compare(name, kinds[name], mesh)
    assert (row.state, row.note, row.unsupported) == ("equal", "", "")
    assert row.over_model > 8


PAGE = Path(__file__).parents[3] / "docs" / "hf-plans.md"
EQUAL = re.findall(
    r"^\| (\w+) \| equal \| (\d+) \| \d+ \| .*\| (.*) \|$", PAGE.read_text(), re.MULTILINE
)


def test_there_are_rows_and_no_other_result():
    text = PAGE.read_text()
    assert len(EQUAL) > 160
    assert f"\n{len(EQUAL)} equal, 0 differs, 0 fails, 0 not built\n" in text


@pytest.mark.in_parts
@pytest.mark.parametrize(("name", "over_model", "note"), EQUAL)
def test_a_row_of_the_page(mesh, name, over_model, note):
    pytest.importorskip("transformers")
    kinds = dict(hf_plans.configs())
    if name not in kinds:
        pytest.skip(f"this version of transformers has no plan for {name}")
    row = hf_plans.compare(name, kinds[name], mesh)
    assert (row.state, row.note, row.over_model) == ("equal", note.strip(), int(over_model))


class Planned(nn.Module):
    """A model with plans in the form that transformers gives them."""

    def __init__(self, **plans):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.embed = nn.Embedding(32, 16)
        self.experts = nn.ParameterDict(
            {
                "gate_up": nn.Parameter(torch.ones(8, 32, 16)),
                "bias": nn.Parameter(torch.ones(8, 32)),
            }
        )
        self._tp_plan = plans.get("tp")
        self._ep_plan = plans.get("ep")

    def forward(self, x):
        return self.layers[1](self.layers[0](self.embed(x)))


TENSOR = {
    "layers.*": "colwise",
    "embed": "embedding_rowwise",
    "experts.gate_up": "packed_colwise",
    "experts": "moe_tp_experts",
}
EXPERTS = {"experts.gate_up": "grouped_gemm", "experts.bias": "grouped_gemm"}


def test_styles_are_specs(mesh):
    model = Planned(tp=TENSOR).to("spmd")
    report = spmd.hf.shard_model(model, mesh, fsdp=None)
    assert report.sharded == {
        "layers.0.weight": P("model", None),
        "layers.0.bias": P("model"),
        "layers.1.weight": P("model", None),
        "layers.1.bias": P("model"),
        "embed.weight": P("model", None),
        "experts.gate_up": P(None, spmd.blocks(2, "model"), None),
    }
    assert report.replicated == ["experts.bias"]


def test_experts_are_dealt_out_and_everything_is_fully_sharded(mesh):
    model = Planned(tp=TENSOR, ep=EXPERTS).to("spmd")
    report = spmd.hf.shard_model(model, mesh, ep="data")
    assert report.sharded["experts.gate_up"] == P("data", None, None)
    assert report.sharded["layers.0.weight"] == P("model", "data")
    assert report.replicated == []
    tokens = torch.zeros(8, 4, dtype=torch.long)
    expected = copy.deepcopy(model).cpu()(tokens)
    torch.testing.assert_close(model(tokens.to("spmd")).cpu(), expected)


def test_what_is_not_known_is_named(mesh):
    model = Planned(tp={"layers.0": "diagonal", "layers.1": "rowwise"}).to("spmd")
    report = spmd.hf.shard_model(model, mesh, fsdp=None)
    assert report.unsupported == {"layers.0": "diagonal"}
    assert "layers.0: style 'diagonal' is not known" in str(report).splitlines()
    assert report.sharded == {"layers.1.weight": P(None, "model")}


def test_errors(mesh):
    model = Planned(tp=TENSOR).to("spmd")
    for arguments, message in (
        ({"tp": "modle"}, "hf.shard_model: tp: .*modle"),
        ({"ep": "model"}, "Planned has no plan for expert parallelism; write the rules yourself"),
    ):
        with pytest.raises(ValueError, match=message):
            spmd.hf.shard_model(model, mesh, **arguments)
    with pytest.raises(TypeError, match=r"hf\.shard_model: model must be an nn.Module; got 3"):
        spmd.hf.shard_model(3, mesh)
    assert not spmd.sharding_of(model.embed.weight).is_committed
