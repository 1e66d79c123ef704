# SPDX-License-Identifier: Apache-2.0
"""What training scripts write around their steps, and the kernels that models call."""

import doctest
import importlib
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
import torch_xla.test.test_utils as test_utils
import torch_xla.utils.serialization as xser
from torch import nn
from torch_xla import backends
from torch_xla.experimental.assume_pure import PureModule, assume_pure
from torch_xla.experimental.custom_kernel import FlashAttention, flash_attention
from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention

import torch_spmd as spmd

N = xr.global_runtime_device_count()


@pytest.fixture(autouse=True)
def mesh():
    xr.use_spmd()
    torch.manual_seed(0)
    return xs.Mesh(np.arange(N), (N, 1), ("data", "model"))


def reference(q, k, v, scale=1.0, seen=None, ab=None, cap=None):
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k)
    logits = scale * (logits if ab is None else logits + ab)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    if seen is not None:
        logits = logits.masked_fill(~seen, -1e30)
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(logits, -1), v)


def compared(ours, theirs, *given):
    """Both functions on leaves: results and gradients agree. Gives the results of `ours`."""
    leaves = [t.clone().requires_grad_() for t in given]
    on_device = [t.detach().to("xla").requires_grad_() for t in given]
    expected, result = theirs(*leaves), ours(*on_device)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (result * weights.to("xla")).sum().backward()
    torch.testing.assert_close(result.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    for a, b in zip(on_device, leaves):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)
    return result


def heads(keys=6):
    return torch.randn(N, 2, 6, 4), torch.randn(N, 2, keys, 4), torch.randn(N, 2, keys, 4)


LATER = torch.arange(6)[None] - torch.arange(6)[:, None]


def test_flash_attention():
    scale = 1 / math.sqrt(4)
    compared(flash_attention, reference, *heads(keys=8))
    compared(
        lambda *t: flash_attention(*t, causal=True, sm_scale=scale),
        lambda *t: reference(*t, scale, LATER <= 0), *heads(),
    )  # fmt: skip
    compared(
        lambda *t: flash_attention(*t[:3], sm_scale=scale, ab=t[3]),
        lambda *t: reference(*t[:3], scale, ab=t[3]), *heads(), torch.randn(N, 2, 6, 6),
    )  # fmt: skip
    ids = torch.tensor([0, 0, 1, 1, 1, 2]).repeat(N, 1)
    same = ids[:, None, :, None] == ids[:, None, None, :]
    of = ids.to("xla")
    compared(
        lambda *t: FlashAttention.apply(*t, True, of, of, scale),
        lambda *t: reference(*t, scale, same & (LATER <= 0)), *heads(),
    )  # fmt: skip
    compared(
        lambda *t: FlashAttention.apply(*t[:3], False, None, None, scale, t[3]),
        lambda *t: reference(*t[:3], scale, ab=t[3]), *heads(), torch.randn(N, 2, 6, 6),
    )  # fmt: skip
    with pytest.raises(TypeError, match=r"there are 10 arguments \(q, k, v, .*mesh\); got 11"):
        FlashAttention.apply(*range(11))
    with pytest.raises(AssertionError, match="Both q_segment_ids and kv_segment_ids"):
        flash_attention(*(t.to("xla") for t in heads()), False, of)


def test_flash_attention_is_sharded_as_its_spec_says(mesh):
    spec = ("data", None, None, None)
    call = lambda *t: flash_attention(*t, causal=True, partition_spec=spec, mesh=mesh)  # noqa: E731
    result = compared(call, lambda *t: reference(*t, seen=LATER <= 0), *heads())
    text = mesh.get_op_sharding(spec).text()
    assert torch_xla._XLAC._get_xla_sharding_spec(result) == text
    torch_xla.sync()
    call(*(t.to("xla") for t in heads()))
    torch_xla.sync()
    assert spmd.debug.collectives().rows == []
    xs.set_global_mesh(None)
    with pytest.raises(ValueError, match="mesh must be specified"):
        flash_attention(*(t.to("xla") for t in heads()), partition_spec=spec)


def test_splash_attention(mesh):
    ids = torch.tensor([0, 0, 0, 0, 1, 1]).repeat(N, 1)
    same = ids[:, None, :, None] == ids[:, None, None, :]
    config = SplashAttentionConfig(
        mesh=str(mesh), qkv_partition_spec=(("data", "model"), None, None, None),
        attentiontype_local_sliding=True, slide_window_size=2,
    )  # fmt: skip
    assert SplashAttentionConfig.from_json(config.to_json()) == config
    result = compared(
        lambda *t: splash_attention(*t, config.to_json(), ids.to("xla"), True, 5.0),
        lambda *t: reference(*t, seen=same & (LATER <= 0) & (LATER >= -2), cap=5.0), *heads(),
    )  # fmt: skip
    text = mesh.get_op_sharding((("data", "model"), None, None, None)).text()
    assert torch_xla._XLAC._get_xla_sharding_spec(result) == text
    plain = SplashAttentionConfig(mesh=str(mesh), qkv_partition_spec=("data", None, None, None))
    compared(
        lambda *t: splash_attention(*t, plain.to_json()),
        lambda q, *t: reference(q, *(each.repeat_interleave(2, 1) for each in t), seen=LATER <= 0),
        torch.randn(N, 4, 6, 4), *heads()[1:],
    )  # fmt: skip
    with pytest.raises(ValueError, match="q has 3 heads, k and v have 2"):
        many = torch.randn(N, 3, 6, 4), *heads()[1:]
        splash_attention(*(t.to("xla") for t in many), plain.to_json())
    wrong = SplashAttentionConfig(mesh=str(mesh), attentiontype_local_sliding=True)
    with pytest.raises(ValueError, match="slide_window_size must be set"):
        splash_attention(*(t.to("xla") for t in heads()), wrong.to_json())


def test_functions_without_side_effects():
    module = nn.Linear(3, 2).to("xla")
    x = torch.randn(4, 3).to("xla")
    assert torch.equal(PureModule(module)(x), module(x))
    assert torch.equal(assume_pure(torch.sin)(x), torch.sin(x))
    draw = assume_pure(lambda t: t + torch.rand_like(t), add_rng_seed_argument=True)
    torch_xla.manual_seed(7)
    first, behind = draw(x, rng_seed=1), torch.rand(3, device="xla")
    torch_xla.manual_seed(7)
    assert torch.equal(behind, torch.rand(3, device="xla"))
    assert torch.equal(first, draw(x, rng_seed=1)) and not torch.equal(first, draw(x, rng_seed=2))
    with pytest.raises(AssertionError, match="rng_seed"):
        draw(x)


def test_a_step_as_scripts_write_it(tmp_path, capsys):
    model = nn.Linear(4, 2).to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen, tracker = [], xm.RateTracker()
    with xp.StepTrace("train", step_num=0):
        loss = model(torch.ones(8, 4, device="xla")).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        xm.add_step_closure(lambda value: seen.append(value.item()), args=(loss,))
        assert seen == []
    assert seen == [loss.item()]
    tracker.add(8)
    xm.master_print("done" if xm.is_master_ordinal() else "not here")
    test_utils.print_training_update(
        torch_xla.device(), 3, seen[0], tracker.rate(), tracker.global_rate(), epoch=1
    )
    test_utils.print_test_update(torch_xla.device(), 97.5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "done"
    assert lines[1].startswith(f"| Training Device=xla:0/0 Epoch=1 Step=3 Loss={seen[0]:.5f} Rate=")
    assert "Test Device=xla:0/0 Accuracy=97.50 Time=" in lines[2]

    class Writer(dict):
        def add_scalar(self, name, value, step):
            self[name] = value, step

    writer = Writer()
    test_utils.write_to_summary(writer, 5, {"loss": 1.5}, write_xla_metrics=True)
    assert writer["loss"] == (1.5, 5) and writer["ExecuteReplicated"][0] > 0
    assert test_utils.get_summary_writer(None) is None


def test_traces_are_written(tmp_path):
    xp.start_trace(tmp_path / "run")
    with pytest.raises(RuntimeError, match="already been started"):
        xp.start_trace(tmp_path)
    with xp.Trace("my scope"):
        torch.ones(3, device="xla").sin()
        torch_xla.sync()
    xp.stop_trace()
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    assert any(event["name"] == "my scope" for event in events)
    with pytest.raises(RuntimeError, match="No profile started"):
        xp.stop_trace()
    with pytest.raises(RuntimeError, match="is no server"):
        xp.trace("localhost:9012", str(tmp_path))
    with pytest.warns(UserWarning, match="nothing is written"):
        xp.trace_detached("localhost:9012", str(tmp_path))


def test_each_tensor_in_a_file_of_its_own(mesh, tmp_path):
    model = nn.Sequential(nn.Linear(N, 2), nn.Linear(2, 2, bias=False)).to("xla")
    xs.mark_sharding(model[0].weight, mesh, (None, "data"))
    data = {"model": model.state_dict(), "again": [model[0].weight, 3], "step": 7}
    path = str(tmp_path / "state")
    for _ in range(2):  # the second call replaces the files
        xser.save(data, path)
    assert sorted(os.listdir(f"{path}.tensors")) == [f"tensor_{i}.pt" for i in range(4)]
    read = xser.load(path)
    for name, value in model.state_dict().items():
        assert torch.equal(read["model"][name], value.cpu())
    assert torch.equal(read["again"][0], model[0].weight.cpu()) and read["again"][1] == 3
    assert read["step"] == 7
    xser.save(model[1].weight, path)
    assert torch.equal(xser.load(path), model[1].weight.cpu())


def test_collectives_of_one_process():
    x = torch.arange(4.0, device="xla")
    assert torch.equal(xm.all_to_all(x, 0, 0, 1), x)
    with pytest.raises(ValueError, match="split_count is 2"):
        xm.all_to_all(x, 0, 0, 2)
    assert torch.equal(xm.collective_permute(x, [[0, 0]]), x)
    assert xm.collective_permute(x, [[0, 1]]).sum().item() == 0
    gradients = [x.clone(), x + 1]
    xm.all_reduce_bucketized_gradients(gradients, 0.5, None, False)
    assert torch.equal(gradients[1], (x + 1) / 2)
    assert xm.do_on_ordinals(lambda t, n: (t.device.type, n), (x, 3)) == ("cpu", 3)
    assert xm.do_on_ordinals(lambda: 1, (), ordinals=(1,)) is None
    places = [torch.zeros(4, device="xla") for _ in range(2)]
    assert xm.reduce_scatter_bucketized(xm.REDUCE_SUM, [x, x + 1], 0.5, 0, 1, output=places)
    assert torch.equal(places[1], (x + 1) / 2)
    assert xm.all_gather_bucketized([x])[0] is x
    w = torch.ones(2, 4, device="xla", requires_grad=True)
    scaled = xf.all_reduce(xm.REDUCE_SUM, xf.distributed_mm(w, xf.all_gather(x[:, None])), 0.5)
    scaled.sum().backward()
    assert torch.equal(w.grad.cpu(), torch.arange(4.0).expand(2, 4) / 2)
    with pytest.raises(ValueError, match="as many columns as x has rows"):
        xf.distributed_mm(w, w)


def test_what_scripts_with_jax_import():
    from torch_xla.core.xla_builder import call_jax

    with torch_xla._internal.jax_workarounds.jax_env_context():
        assert torch_xla._internal.jax_workarounds.requires_jax(abs)(-1) == 1
    with pytest.raises(NotImplementedError, match="sin is a function of JAX"):
        call_jax(math.sin, (1.0,))


def test_names_that_have_moved():
    here = importlib.import_module("torch_xla._dynamo.dynamo_bridge").extract_compiled_graph
    assert here is importlib.import_module("torch_xla.core.dynamo_bridge").extract_compiled_graph
    assert not torch_xla._dynamo.config.skip_input_data_check


def test_batch_normalization_over_the_whole_batch(mesh):
    x = torch.randn(8, 3, 2, N)
    norm, plain = xf.SyncBatchNorm(3).to("xla"), torch.nn.BatchNorm2d(3)
    batch = x.to("xla").requires_grad_()
    xs.mark_sharding(batch, mesh, (0, None, None, 1))
    expected = x.clone().requires_grad_()
    for result in (norm(batch), plain(expected)):
        (result * result.detach().cos()).sum().backward()
    torch.testing.assert_close(batch.grad.cpu(), expected.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(norm.running_mean.cpu(), plain.running_mean)
    of_batch = x.var((0, 2, 3), unbiased=False)
    torch.testing.assert_close(norm.running_var.cpu(), 0.9 + 0.1 * of_batch)
    norm.eval()
    torch.testing.assert_close(
        norm(batch).cpu()[:, 1],
        (x[:, 1] - norm.running_mean[1].item()) / (norm.running_var[1].item() + 1e-5) ** 0.5,
        rtol=1e-4,
        atol=1e-4,
    )
    with pytest.raises(ValueError, match="has 3 features"):
        norm(batch[:, :2])


def test_precision():
    assert backends.get_mat_mul_precision() == "default"
    backends.set_mat_mul_precision("highest")
    assert backends.get_mat_mul_precision() == "highest"
    backends.set_mat_mul_precision("default")
    with pytest.raises(ValueError, match="Invalid precision: low"):
        backends.set_mat_mul_precision("low")


def test_examples_of_docstrings():
    root = Path(torch_xla.__file__).parent
    modules = [
        ".".join(("torch_xla", *path.relative_to(root).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in sorted(root.rglob("*.py"))
        if ">>> " in path.read_text()
    ]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules]
    assert len(results) >= 2 and all(r.attempted > 0 == r.failed for r in results)
