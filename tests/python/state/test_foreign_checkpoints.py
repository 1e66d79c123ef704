# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of others: torch.distributed.checkpoint (DDP, FSDP2, torchtitan), safetensors, the
hub; and ours for them."""

import json

import pytest
import torch
import torch.distributed as dist
from processes import run_python
from safetensors.torch import load_file, save_file
from torch import nn
from training_state import Run

import torch_spmd as spmd
from torch_spmd import P

spmd.integrations.dcp()

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="PyTorch without torch.distributed"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


def model_of(mesh=None):
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 5))
    if mesh is not None:
        model.to("spmd")
        spmd.shard_module(model, mesh, {"*.weight": (mesh.axis_names[0], None)})
    return model


# --- written by others ---

# Two processes train by DDP or FSDP2, and save as torchtitan does or as the helpers do.
OTHERS = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as helpers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def main(rank, folder, kind):
    store = dist.FileStore(folder + "/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 5))
    if kind == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model)
    else:
        wrapped = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5**step])
    for _ in range(3):
        wrapped(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    flat = helpers.StateDictOptions(flatten_optimizer_state_dict=kind == "torchtitan")
    states = helpers.get_state_dict(wrapped, optimizer, options=flat)
    if kind == "torchtitan":  # the model's names are at the top
        saved = {**states[0], "optimizer": states[1], "lr_scheduler": schedule.state_dict(),
                 "train_state": {"step": torch.tensor(3)}}
    elif kind == "ddp":
        saved = {"model": wrapped.state_dict(), "optimizer": states[1], "step": 3}
    else:
        saved = {"model": states[0], "optimizer": states[1], "schedule": schedule.state_dict()}
    dcp.save(saved, checkpoint_id=folder + "/saved")
    whole = helpers.StateDictOptions(full_state_dict=True, cpu_offload=True)
    states = helpers.get_state_dict(wrapped, optimizer, options=whole)
    if rank == 0:
        torch.save(states, folder + "/whole.pt")
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(main, sys.argv[1:], nprocs=2)
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "torchtitan"])
def test_checkpoints_of_torch_distributed(tmp_path, mesh, kind):
    (tmp_path / "others.py").write_text(OTHERS)
    done = run_python("others.py", str(tmp_path), kind, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    model = model_of(mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5**step])
    if kind == "torchtitan":
        target = {**dict(model.named_parameters()), "optimizer": optimizer,
                  "lr_scheduler": schedule, "train_state": {"step": torch.tensor(0)}}  # fmt: skip
        assert spmd.load(tmp_path / "saved", target)["train_state"]["step"] == 3
    elif kind == "ddp":
        target = {"model": model, "optimizer": optimizer, "step": 0}
        assert spmd.load(tmp_path / "saved", target)["step"] == 3
    else:
        target = {"model": model, "optimizer": optimizer, "schedule": schedule}
        spmd.load(tmp_path / "saved", target)
    weights, state = torch.load(tmp_path / "whole.pt", weights_only=True)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.cpu(), weights[name])
        for field in ("exp_avg", "exp_avg_sq", "step"):
            mine = optimizer.state[parameter][field]
            assert torch.equal(mine.cpu(), state["state"][name][field])
        assert (
            spmd.sharding_of(optimizer.state[parameter]["exp_avg"]).spec
            == spmd.sharding_of(parameter).spec
        )
    assert optimizer.param_groups[0]["lr"] == state["param_groups"][0]["lr"]
    if kind != "ddp":
        assert schedule.last_epoch == 3
    model(torch.ones(2, 6, device="spmd")).sum().backward()
    optimizer.step()


def test_names_of_wrappers_are_left_out(tmp_path, mesh):
    model = model_of()
    weights = {f"module._orig_mod.{name}": t for name, t in model.state_dict().items()}
    spmd.save(tmp_path, weights)
    other = model_of(mesh)
    spmd.load(tmp_path, other)
    assert torch.equal(other[0].weight.cpu(), model[0].weight)


# --- torch.distributed.checkpoint itself ---


def test_dcp_takes_tensors_of_the_device(tmp_path, mesh, recwarn):
    import torch.distributed.checkpoint as dcp

    saved = {"w": spmd.mark_sharding(torch.arange(24.0).view(8, 3).to("spmd"), mesh, ("x", None))}
    dcp.save(saved, checkpoint_id=tmp_path / "a", no_dist=True)
    dcp.async_save(saved, checkpoint_id=tmp_path / "b", no_dist=True).result()
    for name in ("a", "b"):
        target = spmd.mark_sharding(torch.zeros(8, 3).to("spmd"), mesh, (None, "x"))
        dcp.load({"w": target}, checkpoint_id=tmp_path / name, no_dist=True)
        assert torch.equal(target.cpu(), saved["w"].cpu())
        assert spmd.sharding_of(target).spec == P(None, "x")
    assert not [w for w in recwarn if "runs on the host" in str(w.message)]


def test_dcp_helpers(tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    two, four = (spmd.make_mesh((n,), ("x",)) for n in (2, 4))
    run = Run(two)
    run.losses(3)
    weights, state = get_state_dict(run.model, run.optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    for mesh in (two, four):
        other = Run(mesh, seed=1)
        weights, state = get_state_dict(other.model, other.optimizer)
        found = {"model": weights, "optimizer": state}
        dcp.load(found, checkpoint_id=tmp_path, no_dist=True)
        set_state_dict(
            other.model,
            other.optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )
        for mine, theirs in zip(run.model.parameters(), other.model.parameters()):
            assert torch.equal(mine.cpu(), theirs.cpu())
            for field, value in run.optimizer.state[mine].items():
                assert torch.equal(value.cpu(), other.optimizer.state[theirs][field].cpu())


def test_our_checkpoints_in_the_form_of_dcp(tmp_path):
    run = Run(spmd.make_mesh((2,), ("x",)))
    run.losses(3)
    spmd.save(tmp_path, {**run.tree(), "step": 3}, format="dcp")
    expected = run.losses(3)
    other = Run(spmd.make_mesh((2,), ("x",)), seed=1)
    assert spmd.load(tmp_path, other.tree())["step"] == 3
    assert other.losses(3) == expected


# --- safetensors ---


def test_files_of_safetensors(tmp_path, mesh):
    model = model_of()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        target = model_of(mesh)
        spmd.load(path, target)
        assert torch.equal(target[2].weight.cpu(), model[2].weight)
        assert spmd.checkpoint.last_load().ratio == 1


def test_the_hubs_form(tmp_path, mesh, monkeypatch):
    from torch_spmd.state import export

    monkeypatch.setattr(export, "_LARGEST_FILE", 250)
    model = model_of(mesh)
    spmd.save(tmp_path, model, format="hub")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "model-00001-of-00003.safetensors" and len(names) == 4
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    found = {}
    for name in names[:3]:
        found |= load_file(tmp_path / name)
    assert set(index["weight_map"]) == set(found) == set(model.state_dict())
    with torch.device("meta"):
        empty = model_of()
    spmd.load(tmp_path, empty, mesh=mesh, rules={"*.weight": ("x", None)})
    for name, parameter in empty.named_parameters():
        assert torch.equal(parameter.cpu(), model.get_parameter(name).cpu())
    (tmp_path / names[1]).unlink()
    with pytest.raises(
        spmd.checkpoint.CheckpointError, match=r"00002-of-00003\.safetensors' is missing"
    ):
        spmd.load(tmp_path, empty)


def test_one_file(tmp_path, mesh):
    model = model_of(mesh)
    spmd.save(tmp_path / "weights.safetensors", model, format="safetensors")
    found = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(t.cpu(), found[name]) for name, t in model.state_dict().items())
    with pytest.raises(TypeError, match="files of safetensors have dense tensors only"):
        spmd.save(tmp_path / "x.safetensors", {"model": model, "step": 1}, format="safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


def test_truncated_files_of_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(10)}, path)
    good = path.read_bytes()
    for length in (0, 7, 20, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(
            spmd.checkpoint.CheckpointError, match=r"model.safetensors' is truncated"
        ):
            spmd.load(path, {"w": torch.zeros(10)})


def test_models_of_hugging_face(tmp_path):
    """From files to shards: the model is never whole on the host."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    mesh = spmd.make_mesh((2,), ("model",))
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "vocab_size": 40, "intermediate_size": 32}  # fmt: skip
    for kind, config, rules in (
        (LlamaForCausalLM, LlamaConfig(**small), {"*q_proj.weight": ("model", None)}),
        (GPT2LMHeadModel, GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40),
         {"*c_fc.weight": (None, "model")}),
    ):  # fmt: skip
        model = kind(config).eval()
        folder = tmp_path / kind.__name__
        model.save_pretrained(folder, max_shard_size="8KB")
        with torch.device("meta"):
            empty = kind(config).eval()
        spmd.load(folder, empty, mesh=mesh, rules=rules)
        assert all(t.device.type == "spmd" for t in [*empty.parameters(), *empty.buffers()])
        ids = torch.arange(10).view(1, 10)
        with torch.no_grad():
            expected, found = model(ids).logits, empty(ids.to("spmd")).logits.cpu()
        torch.testing.assert_close(found, expected)
        empty.save_pretrained(tmp_path / "again")
        assert kind.from_pretrained(tmp_path / "again")(ids).logits.allclose(expected, atol=1e-5)


def test_models_whose_files_have_other_names(tmp_path):
    """Experts are one tensor each in the files, and one together in the model: each process reads
    the bytes of its shards all the same."""
    from transformers import MixtralConfig, MixtralForCausalLM

    mesh = spmd.make_mesh((2,), ("x",))
    config = MixtralConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                           num_key_value_heads=2, vocab_size=40, intermediate_size=24,
                           num_local_experts=3)  # fmt: skip
    model = MixtralForCausalLM(config).eval()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for rules in ({"*.experts.*": (None, "x", None)}, {"*.experts.*": ("x", None, None)}):
        with torch.device("meta"):
            empty = MixtralForCausalLM(config).eval()
        spmd.load(tmp_path, empty, mesh=mesh, rules=rules)
        for name, tensor in model.state_dict().items():
            assert torch.equal(empty.state_dict()[name].cpu(), tensor), name
        assert spmd.checkpoint.last_load().ratio == 1
        experts = empty.model.layers[0].mlp.experts.gate_up_proj
        assert spmd.sharding_of(experts).spec == P(*rules["*.experts.*"])
    spmd.save(tmp_path / "own", empty)  # and its own names are found as they are
    with torch.no_grad():
        experts.zero_()
    spmd.load(tmp_path / "own", empty)
    assert experts.any().item()


def test_tensors_side_by_side(tmp_path):
    """What is stacked, joined and split is bytes of the files."""
    from torch_spmd.state import boxes, conversions, reading, sources

    torch.manual_seed(0)
    host = {name: torch.randn(3, 4) for name in "abc"} | {"d": torch.randn(2, 4).half()}
    host |= {"e": torch.randn(3, 2), "f": torch.tensor(1.0)}
    save_file(host, tmp_path / "model.safetensors")
    source = sources.open_source(str(tmp_path))
    assert isinstance(source, reading.Ranges)
    a, b, c, d, e, f = (source.tensors[name] for name in "abcdef")

    def value(saved):
        source.tensors["made"] = saved
        whole = boxes.whole(saved.shape)
        source.check([("made", whole)], True)
        parts = [source.read("made", box) for box in boxes.slabs(whole, saved.itemsize, 20)]
        return torch.cat([part.flatten() for part in parts]).view(saved.shape)

    stacked = conversions._stacked([a, b, c])
    joined = conversions._joined([stacked, stacked], 1)
    assert torch.equal(value(stacked), torch.stack([host[k] for k in "abc"]))
    assert torch.equal(value(joined), torch.cat([value(stacked)] * 2, 1))
    assert torch.equal(value(conversions._joined([a, e], -1)), torch.cat([host["a"], host["e"]], 1))
    for whole, sizes in ((joined, [1, 2]), (joined, [2, 0, 1]), (a, [2, 1])):
        expected = value(whole).split(sizes)
        for part, right in zip(conversions._split(whole, sizes), expected):
            assert torch.equal(value(part), right)
    for wrong in ([a, e], [a, d]):
        assert conversions._stacked(wrong) is None
    assert conversions._joined([a, e], 0) is None and conversions._joined([f, f], 0) is None


def test_conversions_that_need_more_are_left_as_they_are(tmp_path):
    class Rule:
        source_patterns, target_patterns = ("a",), ("b",)

        def __init__(self, *operations):
            self.operations = operations

    class Transpose:
        pass

    class Chunk:
        dim = 1

    from torch_spmd.state import conversions, manifest

    saved = {"a": [manifest.SavedTensor("float32", (2, 2), ())]}
    for step in (Transpose(), Chunk()):
        assert conversions._converted(Rule(step), "b", saved, {"b": torch.empty(2, 2)}) is None
    assert set(conversions.converted(nn.Linear(2, 2), {}, {"a": saved["a"][0]})) == {"a"}
