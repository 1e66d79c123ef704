# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint with tensors of the device in one process: it writes and reads them
in parts, and what async_save keeps are snapshots on the device."""

import collections

import pytest
import torch
import torch.distributed.checkpoint as dcp
from processes import run_script
from torch.distributed.checkpoint import format_utils, staging
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

import torch_spmd as spmd
from torch_spmd import P
from torch_spmd.state import dcp_parts

spmd.integrations.dcp()

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
SHAPES = [(7, 9), (8, 12), (2, 3, 40), (90,), (), (0, 3)]


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


def values(scale=1):
    torch.manual_seed(0)
    return {str(shape): torch.randn(shape) * scale for shape in SHAPES}


def on_device(host, mesh, dim):
    found = {}
    for name, t in host.items():
        spec = [None] * t.dim()
        if t.dim() > dim:
            spec[dim] = "x"
        found[name] = spmd.mark_sharding(t.to("spmd"), mesh, spec) * 1
    return found


def same(tree, host):
    assert all(torch.equal(tree[name].cpu(), t) for name, t in host.items())


@pytest.mark.parametrize("dims", [(0, 0), (0, 1), (1, 0)])
def test_every_tensor_is_written_and_read_in_parts(tmp_path, mesh, dims):
    host = values()
    blocks = torch.arange(96.0).reshape(24, 4)
    tree = on_device(host, mesh, dims[0])
    tree["blocks"] = spmd.mark_sharding(blocks.to("spmd"), mesh, (spmd.blocks(3, "x"), None))
    tree["view"], tree["again"] = tree["(8, 12)"].t()[2:], tree["(7, 9)"]
    dcp.save({"t": tree}, checkpoint_id=tmp_path)
    chunks = dcp.FileSystemReader(tmp_path).read_metadata().state_dict_metadata
    assert len(chunks["t.(8, 12)"].chunks) == 4 and len(chunks["t.blocks"].chunks) == 12
    target = on_device(values(0), mesh, dims[1])
    target["blocks"] = spmd.mark_sharding(torch.zeros(24, 4).to("spmd"), mesh, ("x", None))
    target["view"] = torch.zeros(10, 8, device="spmd")
    target["again"] = target["(7, 9)"]
    dcp.load({"t": target}, checkpoint_id=tmp_path)
    host["view"], host["again"], host["blocks"] = host["(8, 12)"].t()[2:], host["(7, 9)"], blocks
    same(target, host)
    whole = {name: torch.zeros_like(t) for name, t in host.items()}
    dcp.load({"t": whole}, checkpoint_id=tmp_path)  # without the device
    same(whole, host)
    assert not dcp_parts._thread.loaded and not dcp_parts._thread.saved


def test_what_is_loaded_stays_where_it_is():
    """Also the next time, and a step writes there: nothing of the load holds on to the memory."""
    run_script("""
        import tempfile, torch, torch_spmd as spmd
        import torch.distributed.checkpoint as dcp
        from torch_spmd.state import parts

        spmd.integrations.dcp()
        parts._LARGE = 8
        mesh = spmd.make_mesh((4,), ("x",))
        t = spmd.mark_sharding(torch.ones(512, 1024).to("spmd"), mesh, ("x", None)) * 1

        def is_own(value):
            # Whether what would be filled is the memory that has the value.
            parts_of_t = parts.Filling(parts.fillable(t)).parts
            return all(bool((memory == value).all()) for memory in parts_of_t.values())

        def step():
            with torch.no_grad():
                t.add_(1)
            spmd.sync(wait=True)

        path = tempfile.mkdtemp()
        spmd.save(path, {"t": t})
        dcp.save({"t": t}, checkpoint_id=path + "/dcp")
        for n in range(4):
            if n % 2:
                spmd.load(path, {"t": t})
            else:
                dcp.load({"t": t}, checkpoint_id=path + "/dcp")
            assert is_own(1)
            step()
            assert is_own(2)
            [at] = [m.data_ptr() for m in parts.Filling(parts.fillable(t)).parts.values()]
            step()
            [now] = [m.data_ptr() for m in parts.Filling(parts.fillable(t)).parts.values()]
            assert now == at and is_own(3)
    """)


def test_a_load_does_not_write_what_others_share(tmp_path, mesh):
    t = spmd.mark_sharding(torch.ones(8, 4).to("spmd"), mesh, ("x", None)) * 1
    dcp.save({"t": t}, checkpoint_id=tmp_path)
    t *= 3
    copy, alias = t.clone(), t.detach()
    later = spmd.save(tmp_path / "later", {"t": t}, wait=False)
    spmd.sync(wait=True)
    dcp.load({"t": t}, checkpoint_id=tmp_path)
    later.written.result()
    assert float(t.min()) == float(alias.max()) == 1 and float(copy.min()) == 3
    assert float(spmd.load(tmp_path / "later", None)["t"].min()) == 3


@pytest.mark.parametrize("stager", [
    lambda: staging.DefaultStager(staging.StagingOptions(False, False, False, False)),
    lambda: staging.DefaultStager(staging.StagingOptions(False, False, True, False)),
    staging.BlockingAsyncStager,
])  # fmt: skip
def test_what_is_staged_stays_on_the_device(mesh, stager):
    t = spmd.mark_sharding(torch.ones(8, 4).to("spmd"), mesh, ("x", None)) * 1
    state = {"t": t, "n": [3, "text", {"host": torch.ones(2), "again": t}]}
    made = stager()
    staged = made.stage(state)
    staged = staged.result() if hasattr(staged, "result") else staged
    t *= 2
    state["n"][2]["host"] *= 2
    assert staged["t"].device.type == "spmd" and float(staged["t"].max()) == 1
    assert staged["n"][:2] == [3, "text"] and staged["n"][2]["host"].tolist() == [1, 1]
    assert staged["n"][2]["again"] is staged["t"]
    made.close()


@pytest.mark.parametrize("writer", [None, dcp.FileSystemWriter])
def test_async_save_while_training_goes_on(tmp_path, mesh, writer):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).to("spmd")
    spmd.shard_module(model, mesh, {"weight": ("x", None)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    expected, savings = [], []
    for step in range(3):
        model(torch.ones(4, 8, device="spmd")).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append({k: v.detach().cpu() for k, v in model.state_dict().items()})
        path = str(tmp_path / str(step))
        how = {"storage_writer": writer(path)} if writer else {"checkpoint_id": path}
        savings.append(dcp.async_save({"model": model.state_dict()}, **how))
    for step in range(3):
        savings[step].result()
        target = model.state_dict()
        dcp.load({"model": target}, checkpoint_id=str(tmp_path / str(step)))
        same(target, expected[step])


def test_tools_of_dcp(tmp_path, mesh):
    host = values()
    dcp.save(on_device(host, mesh, 0), checkpoint_id=tmp_path / "a")
    format_utils.dcp_to_torch_save(tmp_path / "a", tmp_path / "whole.pt")
    same(torch.load(tmp_path / "whole.pt", weights_only=True), host)
    format_utils.torch_save_to_dcp(tmp_path / "whole.pt", tmp_path / "b")
    target = on_device(values(0), mesh, 1)
    spmd.load(tmp_path / "b", target)
    same(target, host)


def test_a_part_of_a_checkpoint_and_what_is_missing(tmp_path, mesh):
    host = values()
    dcp.save(on_device(host, mesh, 0), checkpoint_id=tmp_path)
    target = on_device(values(0), mesh, 0)
    target["new"] = torch.full((4,), 5.0, device="spmd")
    with pytest.raises(CheckpointException, match="new"):
        dcp.load(target, checkpoint_id=tmp_path)
    assert float(target["new"].min()) == 5 and not dcp_parts._thread.loaded
    planner = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(target, checkpoint_id=tmp_path, planner=planner)
    same(target, {**host, "new": torch.full((4,), 5.0)})


def test_a_file_that_is_missing(tmp_path, mesh):
    host = values()
    dcp.save(on_device(host, mesh, 0), checkpoint_id=tmp_path / "bad")
    dcp.save(on_device(host, mesh, 0), checkpoint_id=tmp_path / "good")
    for file in (tmp_path / "bad").glob("*.distcp"):
        file.unlink()
    target = on_device(values(0), mesh, 0)
    with pytest.raises(CheckpointException, match="No such file"):
        dcp.load(target, checkpoint_id=tmp_path / "bad")
    dcp.load(target, checkpoint_id=tmp_path / "good")
    same(target, host)


def test_paths_of_fsspec(mesh):
    pytest.importorskip("fsspec")
    host = values()
    dcp.save(on_device(host, mesh, 0), checkpoint_id="memory://dcp cases")
    target = on_device(values(0), mesh, 1)
    dcp.load(target, checkpoint_id="memory://dcp cases")
    same(target, host)
    assert spmd.sharding_of(target["(7, 9)"]).spec == P(None, "x")


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_files_of_safetensors_that_dcp_writes(tmp_path, mesh, dim, spread):
    """They have one tensor of a name, so that the parts of one process are written together."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

    host = {name: t for name, t in values().items() if t.numel()}
    tree = on_device(host, mesh, dim)
    writer = HuggingFaceStorageWriter(path=str(tmp_path), save_distributed=spread)
    dcp.save(tree, storage_writer=writer)
    target = on_device({name: t * 0 for name, t in host.items()}, mesh, 0)
    dcp.load(target, storage_reader=HuggingFaceStorageReader(path=str(tmp_path)))
    same(target, host)
    same(spmd.load(tmp_path, on_device({name: t * 0 for name, t in host.items()}, mesh, 1)), host)


def test_what_dcp_does_not_keep_is_found_by_the_target(tmp_path):
    """Keys of mappings become text in its files, and mappings without items are left out."""

    def made():
        model = torch.nn.Linear(3, 3).to("spmd")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 4])
        values = {"numbers": {3: torch.zeros(1), 4: 0}, "none": {}, "list": [{}, torch.zeros(1)]}
        return {"model": model, "optimizer": optimizer, "schedule": schedule, **values}

    tree, target = made(), made()
    tree["numbers"] = {3: torch.ones(1), 4: 5}
    tree["list"] = [{}, torch.ones(1)]
    for _ in range(2):
        tree["optimizer"].step()
        tree["schedule"].step()
    dcp_form = tmp_path / "dcp"
    spmd.save(dcp_form, tree, format="dcp")
    spmd.load(dcp_form, target)
    assert torch.equal(target["model"].weight.cpu(), tree["model"].weight.cpu())
    assert target["schedule"].state_dict() == tree["schedule"].state_dict()
    assert target["numbers"] == tree["numbers"] and target["list"] == tree["list"]
    assert type(target["schedule"].milestones) is type(tree["schedule"].milestones)
    rates = []
    for found in (tree, target):
        for _ in range(3):
            found["optimizer"].step()
            found["schedule"].step()
        rates.append(found["schedule"].get_last_lr())
    assert rates[0] == rates[1] == [pytest.approx(0.01)]
    with pytest.raises(ValueError, match=r"'numbers\.5' was not saved"):
        spmd.load(dcp_form, {**made(), "numbers": {3: torch.zeros(1), 5: 0}})


def test_values_of_numpy_and_others(tmp_path):
    numpy = pytest.importorskip("numpy")
    values = {"array": numpy.arange(6.0).reshape(2, 3), "half": numpy.ones(2, numpy.float16),
              "number": numpy.float32(2.5), "true": numpy.bool_(True), "none": numpy.zeros((0, 2)),
              "bytes": b"", "complex": 1 + 2j, "set": {1, 2}}  # fmt: skip
    tree = {"v": values, "w": torch.ones(1)}
    for by_us in (True, False):
        if by_us:
            spmd.save(tmp_path, tree, format="dcp")
        else:
            dcp.save(tree, checkpoint_id=tmp_path)
        found = spmd.load(tmp_path, None)["v"]
        for name, value in values.items():
            assert type(found[name]) is type(value) and numpy.array_equal(found[name], value)
        assert found["half"].dtype == numpy.float16 and found["none"].shape == (0, 2)
    dcp.save({"o": numpy.array([print], dtype=object)}, checkpoint_id=tmp_path / "objects")
    with pytest.raises(ValueError, match="cannot be read without running code"):
        spmd.load(tmp_path / "objects", {"o": None})
    with pytest.raises(TypeError, match=r"a\.0 is a deque, which files of DCP do not give back"):
        spmd.save(tmp_path, {"a": [collections.deque([1])]}, format="dcp")


def test_every_altered_byte_of_data_is_noticed_or_harmless(tmp_path, mesh):
    """A zip file has sums of its entries. Nothing is changed by what is refused."""
    tree = {"w": on_device({"w": torch.arange(64.0).view(8, 8)}, mesh, 0)["w"], "n": 7}
    spmd.save(tmp_path, tree, format="dcp")
    [path] = tmp_path.glob("*.distcp")
    good = path.read_bytes()
    refused = 0
    for at in range(0, len(good), 61):
        path.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1 :])
        target = {"w": on_device({"w": torch.zeros(8, 8)}, mesh, 1)["w"], "n": 0}
        try:
            found = spmd.load(tmp_path, target)
        except spmd.checkpoint.CheckpointError as error:
            assert "distcp' is altered" in str(error)
            refused += 1
            assert not target["w"].any().item() and target["n"] == 0
        else:
            assert torch.equal(found["w"].cpu(), tree["w"].cpu()) and found["n"] == 7
    assert refused > 20
