# SPDX-License-Identifier: Apache-2.0
"""Trees, views, names and files that are unusual, and right or refused."""

import collections
import json
import types

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

import torch_spmd as spmd
from torch_spmd.state import files, parts

spmd.integrations.dcp()


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("large", [0, 1 << 24])
@pytest.mark.parametrize("form", ["host", "device", "later", "dcp"])
def test_views_that_are_conjugated_or_negated_when_read(tmp_path, mesh, monkeypatch, form, large):
    """They show the memory of another tensor, and have other values."""
    monkeypatch.setattr(parts, "_LARGE", large)
    host = torch.randn(8, dtype=torch.complex64)
    x = host if form == "host" else spmd.mark_sharding(host.to("spmd"), mesh, ("x",)) * 1
    tree = {"x": x, "conj": x.conj(), "neg": x.conj().imag, "imag": x.imag}
    expected = {"x": host, "conj": host.conj(), "neg": -host.imag, "imag": host.imag}
    target = {name: torch.zeros_like(t).to(x.device) for name, t in expected.items()}
    shown = target["conj"]
    target["conj"] = shown.conj()
    if form == "dcp":
        dcp.save(tree, checkpoint_id=tmp_path)
        dcp.load(target, checkpoint_id=tmp_path)
    else:
        spmd.save(tmp_path, tree, wait=form != "later").written.result()
        spmd.load(tmp_path, target)
    assert all(torch.equal(target[name].cpu(), t) for name, t in expected.items())
    assert torch.equal(shown.cpu(), host)


def test_targets_whose_elements_share_places(tmp_path):
    spmd.save(tmp_path, {"w": torch.arange(12.0).view(4, 3)})
    for target in (torch.zeros(6).unfold(0, 3, 1), torch.zeros(3).expand(4, 3),
                   torch.zeros(20).as_strided((4, 3), (2, 3))):  # fmt: skip
        with pytest.raises(ValueError, match=r"'w' has one element in several places"):
            spmd.load(tmp_path, {"w": target})
        assert not target.any()
    for strides in ((1, 4), (3, 1), (3, 4)):  # of the last, a dimension goes on within the other
        fits = torch.zeros(20).as_strided((4, 3), strides)
        spmd.load(tmp_path, {"w": fits})
        assert fits.tolist() == torch.arange(12.0).view(4, 3).tolist()
    with pytest.raises(ValueError, match=r"'w' is a sparse tensor, and another value was saved"):
        spmd.load(tmp_path, {"w": torch.zeros(4, 3).to_sparse()})


def test_mappings_of_other_classes_are_filled_in_place(tmp_path):
    numpy = pytest.importorskip("numpy")
    spmd.save(tmp_path, {"a": {"w": torch.ones(2), "n": 3}, "b": {"w": torch.ones(2)},
                         "text": numpy.str_("x")})  # fmt: skip
    a = collections.UserDict(w=torch.zeros(2), n=0)
    w = torch.zeros(2)
    found = spmd.load(tmp_path, {"a": a, "b": types.MappingProxyType({"w": w}), "text": ""})
    assert found["a"] is a and a["w"].tolist() == [1, 1] and a["n"] == 3
    assert found["b"]["w"] is w and w.tolist() == [1, 1] and found["text"] == "x"


def test_generators(tmp_path):
    host, device = torch.Generator(), torch.Generator("spmd")

    def drawn():
        on_device = torch.rand(3, generator=device, device="spmd")
        return torch.rand(3, generator=host).tolist(), on_device.tolist()

    tree = {"host": host, "device": device}
    drawn()
    spmd.save(tmp_path, tree)
    expected = drawn()
    drawn()
    assert spmd.load(tmp_path, tree)["host"] is host and drawn() == expected


def test_names_of_wrappers_in_a_part_of_a_model(tmp_path):
    """Of what was saved, or of the target."""

    def made(wrap):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        return nn.Sequential(model[0], torch.compile(model[1], backend="eager")) if wrap else model

    for saved, target in ((True, False), (False, True), (True, True)):
        model, again = made(saved), made(target)
        spmd.save(tmp_path, model)
        spmd.load(tmp_path, again)
        assert torch.equal(again[1].weight, model[1].weight)
    whole = torch.compile(made(False), backend="eager")
    spmd.load(tmp_path, whole)
    assert torch.equal(whole.state_dict()["_orig_mod.1.weight"], model[1].weight)
    with pytest.raises(ValueError, match="'n_averaged' was not saved"):
        spmd.load(tmp_path, torch.optim.swa_utils.AveragedModel(made(False)))


def test_one_name_of_two_tensors_is_refused_in_files_for_others(tmp_path):
    tree = {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}
    with pytest.raises(ValueError, match=r"two tensors would be called 'a\.b'"):
        spmd.save(tmp_path / "hub", tree, format="hub")
    spmd.save(tmp_path / "own", tree)
    found = spmd.load(tmp_path / "own", None)
    assert found["a.b"].item() == 1 and found["a"]["b"].item() == 0
    tied = nn.Parameter(torch.ones(1))
    spmd.save(tmp_path / "hub", {"a": tied, "b": tied}, format="hub")


def test_paths_of_several_file_systems():
    pytest.importorskip("fsspec")
    path = "simplecache::memory://odd_trees"
    spmd.save(path, {"w": torch.ones(2)})
    assert spmd.load(path, {"w": torch.zeros(2)})["w"].tolist() == [1, 1]
    assert files.is_url(path) and not files.is_url("C:/x") and not files.is_url("a::b/c")


def test_folders_with_several_files_of_the_hub(tmp_path):
    for name, value in (("model", 1.0), ("model.fp16", 2.0)):
        save_file({"w": torch.full((2,), value)}, tmp_path / f"{name}-1.safetensors")
        index = {"weight_map": {"w": f"{name}-1.safetensors"}}
        (tmp_path / f"{name}.safetensors.index.json").write_text(json.dumps(index))
    assert spmd.load(tmp_path, None)["w"].tolist() == [1, 1]
    (tmp_path / "model.safetensors.index.json").rename(tmp_path / "a.safetensors.index.json")
    with pytest.raises(
        spmd.checkpoint.CheckpointError, match=r"several checkpoints: a\.safetensors\.index"
    ):
        spmd.load(tmp_path, None)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    with pytest.raises(
        spmd.checkpoint.CheckpointError, match=r"the tensor 'w' in two files, .*give the path"
    ):
        spmd.load(tmp_path, None)
    assert spmd.load(tmp_path / "model-1.safetensors", None)["w"].tolist() == [1, 1]


def test_headers_of_safetensors_that_do_not_fit_their_bytes(tmp_path):
    path = tmp_path / "x.safetensors"

    def write(a, b, rest=16):
        fields = {name: {"dtype": "F32", "shape": [2], "data_offsets": list(at)}
                  for name, at in (("a", a), ("b", b))}  # fmt: skip
        header = json.dumps(fields).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(rest))
        return spmd.load(path, None)

    assert set(write((8, 16), (0, 8))) == {"a", "b"}
    for a, b, rest in (((0, 8), (4, 12), 16), ((0, 8), (12, 20), 20), ((0, 8), (0, 8), 16),
                       ((0, 8), (8, 16), 17)):  # fmt: skip
        with pytest.raises(spmd.checkpoint.CheckpointError, match=r"x\.safetensors' is altered"):
            write(a, b, rest)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("large", [0, 1 << 24])
def test_where_tensors_are_created_on_the_device(tmp_path, mesh, monkeypatch, large):
    """`torch.set_default_device("spmd")`: what is for the host stays there."""
    numpy = pytest.importorskip("numpy")
    monkeypatch.setattr(parts, "_LARGE", large)

    def made(value):
        w = spmd.mark_sharding(torch.full((8, 2), value), mesh, ("x", None)) * 1
        host = torch.full((3,), value, device="cpu")
        return {"w": w, "n": torch.full((2,), value), "host": host, "array": numpy.full(2, value),
                "view": torch.full((4, 3), value).t(),
                "random": spmd.checkpoint.RandomState()}  # fmt: skip

    def check(tree):
        assert tree["host"].device.type == "cpu" and tree["w"].device.type == "spmd"
        assert all(bool((tree[name] == 1).all()) for name in ("w", "n", "host", "array", "view"))

    torch.set_default_device("spmd")
    try:
        for form in ("spmd", "dcp"):
            spmd.save(tmp_path / form, made(1.0), format=form)
            check(spmd.load(tmp_path / form, made(0.0)))
        tensors = {name: made(1.0)[name] for name in ("w", "n", "host")}
        spmd.save(tmp_path / "hub", tensors, format="hub")
        spmd.load(tmp_path / "hub", {**tensors, "w": made(0.0)["w"]})
        target = {"w": made(0.0)["w"]}
        dcp.save(tensors, checkpoint_id=tmp_path / "by dcp")
        dcp.load(target, checkpoint_id=tmp_path / "by dcp")
        assert bool((target["w"] == 1).all())
        rows = torch.utils.data.DataLoader([torch.ones(2, device="cpu")] * 3, 2)
        for batch, mask in spmd.Loader(rows, spmd.P("x"), mesh=mesh, last="pad"):
            assert batch.device.type == mask.device.type == "spmd"
        assert mask.tolist() == [True, False]
    finally:
        torch.set_default_device(None)
