# SPDX-License-Identifier: Apache-2.0
"""Errors of wrong calls of the public functions, and how much helpers print."""

import contextlib
import pickle
import random

import pytest
import random_calls
import torch
from processes import run_script
from torch.fx.experimental.proxy_tensor import make_fx

import torch_spmd as spmd
from torch_spmd import P


def test_every_public_parameter_is_known():
    assert random_calls.without_arguments() == [], "add them to RIGHT in random_calls.py"
    assert {"spmd.mark_sharding", "spmd.Mesh.size", "debug.Table.text"} <= set(
        random_calls.surface()
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_random_calls(request, tmp_path, monkeypatch):
    """Each works or raises an error that names the argument, and leaves nothing half done."""
    monkeypatch.chdir(tmp_path)  # some write files
    random_calls.still_works()
    more = request.config.getoption("--full-calls")
    wrong = []
    for seed in range(5000 + more):
        wrong += [message for message in [random_calls.random_call(seed)] if message]
        if seed % 500 == 0:
            random_calls.still_works()
    random_calls.still_works()
    assert not wrong, f"{len(wrong)} of them\n" + "\n".join(wrong[:20])


def test_a_default_backend_is_checked_before_it_is_made():
    run_script("""
        import torch_spmd as spmd

        for name, devices, error in (
            (5, None, TypeError), (b"cpu", None, TypeError), ("", None, ValueError),
            ("cpux", None, ValueError), ("\\ud800", 1, ValueError),
            ("mock_tpu:v4-99999999999999999999", None, ValueError), ("cpu", 2**200, ValueError),
            ("cpu", 0, ValueError), ("cpu", -1, ValueError), ("cpu", 1.5, TypeError),
            ("cpu", "8", TypeError), ("cpu" * 10000, None, ValueError),
        ):
            try:
                spmd.config.set_backend(name, devices)
            except error as raised:
                assert "name" in str(raised) or "devices" in str(raised) or "backend" in str(raised)
            else:
                raise AssertionError(f"{name!r}, {devices} passed")
        spmd.config.set_backend("cpu", 16)
        assert spmd.config.device_count() == 16
    """)


# --- nothing is left half done ---


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


def committed(*tensors):
    return [spmd.sharding_of(t).is_committed for t in tensors]


def of(*sizes, pending=False):
    t = torch.ones(*sizes, device="spmd")
    spmd.sync(wait=True)
    return t * 2 if pending else t


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize(
    ("last", "spec", "expected"),
    [
        (lambda first: of(4), P("data", None), "mark_sharding: t['b'][1]: spec ('data', None) has"),
        (lambda first: of(4), P("modle"), "mark_sharding: t['b'][1]: spec ('modle',) names axis"),
        (lambda first: torch.ones(4), P("data"), "mark_sharding: t['b'][1]: the tensor of shape"),
        (lambda first: 3, P("data"), "mark_sharding: t['b'][1]: expected a tensor"),
        (lambda first: first, P(None, "data"), "mark_sharding: t['b'][1]: the tensor is marked"),
        (lambda first: first.T, P("data", None), "mark_sharding: t['b'][1]: the tensor is marked"),
    ],
)
def test_a_tree_is_marked_as_a_whole_or_not_at_all(mesh, last, spec, expected, pending):
    first, second = of(8, 8, pending=pending), of(4, pending=pending)
    tree = {"a": first, "b": [second, last(first)]}
    specs = {"a": P("data", None), "b": [P(None), spec]}
    with pytest.raises((ValueError, TypeError)) as raised:
        spmd.mark_sharding(tree, mesh, specs)
    assert str(raised.value).startswith(expected)
    assert committed(first, second) == [False, False]
    spmd.mark_sharding(first, mesh, P(None, "model"))  # nothing prevents it
    assert first.sum().item() == (128 if pending else 64)


def test_a_tree_with_one_tensor_twice(mesh):
    t = of(8, 8)
    spmd.mark_sharding([t, t, t.T], mesh, [P("data", None), P("data", None), P(None, "data")])
    assert spmd.sharding_of(t).spec == P("data", None)


def test_trees_longer_than_any_spec(mesh):
    tensors, nested = [of(8) for _ in range(100)], {"a": [of(8, 8) for _ in range(100)]}
    spmd.mark_sharding(tensors, mesh, [("data",)] * 100)
    spmd.mark_sharding(nested, mesh, {"a": [P("data", None)] * 100})
    spmd.mark_sharding([nested["a"]], mesh, [[P("data", None)] * 100])
    assert all(committed(*tensors, *nested["a"]))
    with pytest.raises(ValueError, match="PartitionSpec: 50,000 entries were given"):
        spmd.mark_sharding(tensors[0], mesh, ["data"] * 50_000)
    with pytest.raises(ValueError, match="a string of 100,000 characters"):
        mesh.get_axis_name_idx("x" * 100_000)


def test_parts_of_one_pending_value(mesh):
    whole = of(8, 8, pending=True)
    with pytest.raises(ValueError, match=r"t\[1\]: the tensor is marked"):
        spmd.mark_sharding([whole[:4], whole[:4]], mesh, [P("data", None), P("model", None)])
    spmd.mark_sharding([whole[:4], whole[4:]], mesh, [P("data", None), P("model", None)])
    assert whole.sum().item() == 128


def test_a_module_is_sharded_as_a_whole_or_not_at_all(mesh):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to("spmd")
    rules = {"0.*weight": ("model", None), "1.bias": ("model", None)}
    with pytest.raises(ValueError, match=r"parameter '1.bias': mark_sharding: spec"):
        spmd.shard_module(model, mesh, rules)
    assert committed(*model.parameters()) == [False] * 4
    with torch.device("meta"):
        model = torch.nn.Linear(8, 8)
    with pytest.raises(ValueError, match="parameter 'bias': spec"):
        spmd.shard_module(model, mesh, {"bias": ("model", None)}, materialize=True)
    assert model.weight.is_meta
    with pytest.raises(ValueError, match="parameter 'weight' has no shape yet"):
        spmd.shard_module(torch.nn.LazyLinear(4), mesh, {})


def test_traced_trees_are_checked_first(mesh):
    good, bad = of(8, 8), of(4)

    def marks(a, b):
        with contextlib.suppress(ValueError):
            spmd.mark_sharding([a, b], mesh, [P("data", None), P("data", None)])
        return a + 1

    traced = make_fx(marks)(good, bad)
    assert "mark_sharding" not in traced.code


# --- helpers limit what they print, and say so ---


@pytest.fixture(scope="module")
def many():
    """65,536 devices."""
    return spmd.make_mesh((256, 256), ("a", "b"))


def test_pictures_of_many_devices(many, capsys):
    rows = spmd.mark_sharding(torch.ones(65536, device="spmd"), many, (("a", "b"),))
    lines = spmd.debug.visualize_sharding(rows).splitlines()
    assert len(lines) == 1 + 127 + 1 and lines[-1] == "… and 65,472 more devices"
    assert len(spmd.debug.visualize_sharding(rows, limit=100).splitlines()) == 1 + 199 + 1
    assert len(spmd.debug.visualize_sharding(rows, limit=None).splitlines()) == 1 + 131071
    grid = spmd.mark_sharding(torch.ones(256, 256, device="spmd"), many, ("a", "b"))
    lines = spmd.debug.visualize_sharding(grid).splitlines()
    assert lines[-1] == f"… and {65536 - 64 * 16:,} more devices" and len(lines) == 1 + 129 + 1
    assert max(map(len, lines)) < 300
    columns = spmd.mark_sharding(torch.ones(2, 256, device="spmd"), many, (None, "b"))
    assert "0,256,512,768,… (256 devices)" in spmd.debug.visualize_sharding(columns)
    capsys.readouterr()


def test_pictures_of_many_dimensions(capsys):
    mesh = spmd.make_mesh((16, 16, 16), ("a", "b", "c"))
    t = spmd.mark_sharding(torch.ones(16, 16, 16, device="spmd"), mesh, ("a", "b", "c"))
    lines = spmd.debug.visualize_sharding(t).splitlines()
    assert sum("dim 2" in line and "│" not in line for line in lines) == 4
    assert lines[-1] == f"… and {4096 - 4 * 256:,} more devices"
    capsys.readouterr()


def test_shards_of_some_devices(many):
    t = spmd.mark_sharding(torch.arange(65536, device="spmd"), many, (("a", "b"),))
    few = spmd.local_shards(t, devices=[3, 65535])
    assert [(shard.device, shard.data.tolist()) for shard in few] == [(3, [3]), (65535, [65535])]
    whole = spmd.mark_sharding(torch.arange(4, device="spmd"), many, (None,))
    [last] = spmd.local_shards(whole, devices=[65535])
    assert last.replica_id == 65535 and last.data.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="devices names 65536, which is not in the mesh"):
        spmd.local_shards(whole, devices=[65536])


def test_all_shards_are_the_same_either_way(mesh):
    t = spmd.mark_sharding(torch.arange(10, device="spmd"), mesh, ("model",))
    for one, other in zip(
        spmd.local_shards(t), spmd.local_shards(t, devices=range(8)), strict=True
    ):
        assert (one.index, one.device, one.replica_id) == (
            other.index, other.device, other.replica_id
        )  # fmt: skip
        assert torch.equal(one.data, other.data)


def test_copies_larger_than_memory_are_refused(many):
    big = torch.zeros((1 << 26) + 1, dtype=torch.int8, device="spmd")
    spmd.mark_sharding(big, many, (None,))
    with pytest.raises(ValueError, match=r"the parts of 65,536 devices take .* as copies"):
        spmd.local_shards(big)


def test_texts_of_large_meshes_are_short():
    ids = list(range(65536))
    random.Random(0).shuffle(ids)
    mesh = spmd.Mesh(ids, (65536,), ("x",))
    assert str(mesh).endswith(" … and 65520 more") and len(repr(mesh)) < 300
    assert pickle.loads(pickle.dumps(mesh)) == mesh


def test_long_programs_and_tables(capsys):
    y = x = torch.ones(4, device="spmd")
    for _ in range(300):
        y = y.sin()
    assert y.sum().item() != 0
    whole = spmd.debug.print_program(limit=20)
    shown = capsys.readouterr().out.splitlines()
    more = len(whole.splitlines()) - 20
    assert more > 280 and len(shown) == 21
    assert shown[-1] == f"… and {more} more lines: limit=None prints all"
    assert len(spmd.debug.print_graph(limit=None).splitlines()) > 300
    for _ in range(3):
        x = x.sin()
    table = spmd.debug.Table(("n",), [(n,) for n in range(5000)], "note")
    assert str(table).splitlines()[-2:] == [
        "… and 4,000 more rows: text(limit=None) has all",
        "note",
    ]
    assert table._repr_html_().count("<tr>") == 1001
    assert len(table.text(limit=None).splitlines()) == 5003 and len(table) == 5000
    report = spmd.ShardReport(replicated=[f"p{n}" for n in range(2000)])
    assert str(report).splitlines()[-1] == "… and 1,000 more lines: text(limit=None) has all"
    assert len(report.text(limit=None).splitlines()) == 2000
    capsys.readouterr()


# --- loading ---


def test_reloading_does_no_harm():
    run_script("""
        import importlib, pkgutil, sys
        import torch, torch_spmd as spmd
        from torch.optim.optimizer import _global_optimizer_pre_hooks

        mesh = spmd.make_mesh((2,), ("x",))
        t = spmd.mark_sharding(torch.ones(4, device="spmd"), mesh, ("x",))

        def works(spmd):
            u = spmd.mark_sharding(torch.ones(4, device="spmd"), mesh, ("x",))
            assert (u + t).sum().item() == 8 and spmd.sharding_of(t).mesh == mesh
            spmd.reshard(t, mesh, (spmd.UNCONSTRAINED,))

        names = [f"torch_spmd.{module.name}" for module in pkgutil.iter_modules(spmd.__path__)]
        for name in ["torch_spmd", *(name for name in names if name in sys.modules)]:
            try:
                importlib.reload(sys.modules[name])
            except ImportError as error:
                assert str(error).startswith(f"{name} cannot be reloaded, since "), error
            works(spmd)
        hooks = len(_global_optimizer_pre_hooks)
        for name in [name for name in sys.modules if name.startswith("torch_spmd")]:
            del sys.modules[name]
        import torch_spmd as again

        assert again is spmd
        assert len(_global_optimizer_pre_hooks) == hooks
        works(again)
        found = importlib.util.spec_from_file_location("another_name", spmd.__file__)
        other = importlib.util.module_from_spec(found)
        found.loader.exec_module(other)
        works(other)
    """)


def test_an_import_after_a_failed_one():
    done = run_script(
        """
        import torch, sys

        torch.utils.rename_privateuse1_backend("other")
        for _ in range(2):
            try:
                import torch_spmd
            except ImportError as error:
                print(error)
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.count("backend 'other' has taken it") == 2


def test_an_import_that_failed_half_way():
    done = run_script("""
        import torch

        del torch.autograd.profiler.profile.__exit__
        for _ in range(2):
            try:
                import torch_spmd
            except (ImportError, AttributeError) as error:
                print(error)
    """)
    assert done.stdout.splitlines()[-1] == (
        "torch_spmd: an earlier import in this process failed while it registered the device; "
        "start a new process"
    )


def test_a_sub_interpreter():
    """It gets an error of one sentence, and the main interpreter goes on."""
    done = run_script(
        """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        import torch

        other = interpreters.create()
        run = getattr(interpreters, "run_string", None) or interpreters.exec
        try:
            failed = run(other, "import torch_spmd")
        except Exception as error:
            failed = error
        print(failed)
        import torch_spmd as spmd

        mesh = spmd.make_mesh((2,), ("x",))
        x = spmd.mark_sharding(torch.ones(4, device="spmd"), mesh, ("x",))
        assert (x * 2).sum().item() == 8
        spmd.sync(wait=True)
    """,
        fresh=True,
    )
    assert "torch_spmd cannot be imported in a sub-interpreter, since PyTorch cannot" in done.stdout


# --- PyTorch's functions that the package wraps give their own errors ---


@pytest.mark.parametrize(
    "call",
    [
        lambda device: step(device, eps=10**400),
        lambda device: step(device, weight_decay=10**400),
        lambda device: step(device, lr=10**400),
        lambda device: step(device, lr="x"),
    ],
)
def test_wrapped_functions(call):
    errors = []
    for device in ("cpu", "spmd"):
        with pytest.raises(Exception) as raised:
            call(device)
        errors.append((raised.type, str(raised.value).replace(device, "device")))
    assert errors[0] == errors[1]


def step(device, **options):
    weight = torch.nn.Parameter(torch.ones(2, device=device))
    optimizer = torch.optim.Adam([weight], **options)
    weight.grad = torch.ones(2, device=device)
    optimizer.step()
