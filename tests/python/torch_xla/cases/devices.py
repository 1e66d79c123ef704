# SPDX-License-Identifier: Apache-2.0
"""Names of the device."""

import importlib
import pickle
import pkgutil

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.amp import autocast

import torch_spmd as spmd

N = xr.global_runtime_device_count()


@pytest.mark.parametrize("name", ["xla", "xla:0", torch.device("xla"), torch_xla.device()])
def test_tensors_are_made_on_the_device(name):
    made = [
        torch.zeros(2, device=name), torch.tensor([1.0], device=name), torch.ones(2).to(name),
        torch.arange(3, device=name), torch.randn(2, 2, device=name), torch.eye(2, device=name),
        torch.as_tensor([1.0], device=name), torch.ones(2).to(device=name, dtype=torch.float64),
        torch.ones_like(torch.ones(2), device=name), torch.ones(1).new_zeros(3, device=name),
        torch.ones(1).new_tensor([3.0], device=name), torch.nn.Linear(2, 2).to(name).weight,
        torch.nn.Linear(2, 2, device=name).weight, torch.full((2,), 3, device=name),
    ]  # fmt: skip
    assert {t.device.type for t in made} == {"spmd"}
    assert all(map(xm.is_xla_tensor, made))
    with torch.device(name):
        assert torch.ones(2).device.type == torch.tensor(1.0).device.type == "spmd"


def test_nothing_is_copied_where_nothing_is_to_do():
    t = torch.ones(2, device="xla")
    assert t.to("xla") is t and t.to(torch_xla.device()) is t


def test_there_is_one_logical_device():
    with pytest.raises(RuntimeError, match="xla:1 was given, but with SPMD there is one"):
        torch.zeros(2, device="xla:1")
    with pytest.raises(IndexError, match="out of range"):
        torch_xla.device(1)
    assert torch_xla.device() == torch.device("xla:0") and xm.get_xla_supported_devices() == [
        "xla:0"
    ]
    assert xr.world_size() == xr.global_device_count() == xr.process_count() == 1
    assert xr.global_ordinal() == xr.process_index() == xm.get_ordinal() == 0
    assert torch_xla.device_count() == xr.addressable_runtime_device_count() == N
    assert len(torch_xla.real_devices()) == N == spmd.config.device_count()


def test_autocast():
    a = torch.ones(2, 2, device="xla")
    for context in (
        autocast(torch_xla.device()),
        torch.autocast("xla", dtype=torch.bfloat16),
        torch.autocast(torch_xla.device().type, dtype=torch.bfloat16),
    ):
        with context:
            assert (a @ a).dtype == torch.bfloat16


def test_seeds():
    torch_xla.manual_seed(3)
    first = torch.randn(4, device="xla").cpu()
    torch_xla.manual_seed(3)
    assert torch.equal(first, torch.randn(4, device="xla").cpu())
    with xm.fork_rng():
        torch.randn(4, device="xla")
    xm.set_rng_state(3)
    with xm.fork_rng():
        torch.randn(4, device="xla").cpu()
    assert torch.equal(first, torch.randn(4, device="xla").cpu())


def test_numbers_of_classes_may_be_floats():
    scores = torch.randn(6, 3)
    classes = torch.tensor([0, 1, 2, 0, 1, 2])
    expected = torch.nn.functional.cross_entropy(scores, classes)
    loss = torch.nn.CrossEntropyLoss()(scores.to("xla"), classes.float().to("xla"))
    torch.testing.assert_close(loss.cpu(), expected)
    with pytest.raises(RuntimeError):
        torch.nn.functional.cross_entropy(scores, classes.float())


def test_operands_of_einsum_may_have_different_types():
    x, picked = torch.randn(4, 3), torch.rand(4, 5) > 0.5
    for w in (picked, torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5)):
        ours = x.to("xla").requires_grad_()
        result = torch.einsum("ab,ac->bc", ours, w.to("xla"))
        expected = x.to(result.dtype).T @ w.to(result.dtype)
        torch.testing.assert_close(result.cpu(), expected)
        (gradient,) = torch.autograd.grad(result.sum(), ours)
        torch.testing.assert_close(gradient.cpu(), w.sum(1, keepdim=True).float().expand(4, 3))
    with torch.inference_mode():
        assert torch.equal(torch.einsum("ab->b", picked.to("xla")).cpu(), picked.sum(0))
    with pytest.raises(RuntimeError):
        torch.einsum("ab,ac->bc", x, picked)


def test_steps():
    seen = []
    xm.add_step_closure(
        lambda value: seen.append(value.item()), (torch.ones(2, device="xla").sum(),)
    )
    assert not seen
    xm.mark_step()
    assert seen == [2.0]

    @torch_xla.compile(full_graph=True)
    def double(t):
        return t * 2

    assert double(torch.ones(2, device="xla")).tolist() == [2, 2]

    def reads(t):
        return t * 3 if t.sum().item() > 0 else t

    with pytest.raises(RuntimeError, match="was to be one graph, and ran 2 programs"):
        torch_xla.compile(reads, full_graph=True)(torch.ones(2, device="xla"))


def test_saving(tmp_path):
    shared = torch.ones(2, device="xla")
    xm.save({"a": shared, "b": [shared, 3]}, tmp_path / "file")
    loaded = torch.load(tmp_path / "file")
    assert loaded["a"].device.type == "cpu" and loaded["b"][1] == 3
    assert loaded["a"].data_ptr() == loaded["b"][0].data_ptr()


def test_launching_processes():
    xr.use_spmd()
    with pytest.raises(NotImplementedError, match="one process has all devices"):
        torch_xla.launch(print)


def test_every_module_can_be_imported():
    """Under torch_xla's name, as the same object."""
    found = pkgutil.walk_packages(torch_xla.__path__, "torch_spmd.torch_xla.")
    names = [module.name for module in found if not module.name.endswith("__main__")]
    assert len(names) > 40
    for name in names:
        theirs = importlib.import_module(name.removeprefix("torch_spmd."))
        assert theirs is importlib.import_module(name)


def test_process_group_is_refused():
    with pytest.raises(AssertionError, match="XLA backend is not supported with SPMD"):
        torch.distributed.init_process_group("xla", init_method="xla://")


def test_files_are_loaded_to_the_device(tmp_path):
    torch.save({"w": torch.arange(3.0)}, tmp_path / "cpu.pt")
    for place in ("xla", "xla:0", torch.device("xla")):
        read = torch.load(tmp_path / "cpu.pt", map_location=place)["w"]
        assert read.device.type == "spmd" and read.tolist() == [0, 1, 2]
    torch.save(torch.ones(2, device="xla"), tmp_path / "device.pt")
    assert torch.load(tmp_path / "device.pt").is_xla
    assert not torch.load(tmp_path / "device.pt", map_location="cpu").is_xla
    with pytest.raises(RuntimeError, match="one logical device"):
        torch.load(tmp_path / "cpu.pt", map_location="xla:1")


def test_is_xla():
    assert torch.ones(1, device="xla").is_xla and not torch.ones(1).is_xla
    assert torch.nn.Parameter(torch.ones(1, device="xla")).is_xla


def test_names_in_functions_that_are_traced():
    x = torch.ones(4, device="xla")
    made = {
        "tensor": lambda: torch.tensor([1.0, 2.0, 3.0, 4.0], device="xla"),
        "arange": lambda: torch.arange(4, device=torch_xla.device()),
        "full": lambda: torch.full((4,), 3.0, device="xla:0"),
        "zeros_like": lambda: torch.zeros_like(x, device="xla"),
        "new_ones": lambda: x.new_ones(4, device="xla"),
    }

    def whole(a):
        return torch.stack([a + make() for make in made.values()])

    compiled = torch.compile(whole, backend="openxla", fullgraph=True)
    assert torch.equal(compiled(x).cpu(), whole(x).cpu())

    @torch.jit.script
    def scripted(a: torch.Tensor):
        return a + torch.zeros([4]) + torch.ones([4], device=a.device)

    assert scripted(torch.ones(4)).tolist() == [2, 2, 2, 2]
    assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros
    with torch.device("meta"):
        assert torch.empty(2).device.type == "meta"
