# SPDX-License-Identifier: Apache-2.0
"""Public scripts of users of torch_xla, restated in small: how they make, shard, wrap and train
their models. Losses and parameters are those of plain PyTorch."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from functorch.compile import min_cut_rematerialization_partition
from torch import nn
from torch_xla.amp.syncfree import AdamW
from torch_xla.distributed.fsdp import checkpoint_module
from torch_xla.distributed.fsdp.utils import apply_xla_patch_to_nn_linear
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.experimental.scan_layers import scan_layers
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

N = xr.global_runtime_device_count()
TENSOR = 2 if N % 2 == 0 else 1
WORDS, WIDTH, LENGTH = 32, 16, 8


@pytest.fixture(autouse=True)
def mesh():
    xr.use_spmd()
    torch.manual_seed(0)
    mesh = xs.Mesh(
        list(range(N)), (1, N // TENSOR, TENSOR, 1), ("data", "fsdp", "tensor", "context")
    )
    xs.set_global_mesh(mesh)
    yield mesh
    xs.set_global_mesh(None)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        for name in names:
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (4, 4)).transpose(1, 2)
            for w in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, scale=1.0):
        x = x + self.attention(self.norm(x)) * scale
        return x + self.down(F.silu(self.up(x)))


class Layers(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


class ScannedLayers(Layers):
    """The layers get a value besides, which goes through the loop unchanged."""

    def forward(self, x):
        class With(nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.layer = layer

            def forward(self, x, others):
                return self.layer(x, **others), others

        layers = [With(layer) for layer in self]
        y, _ = scan_layers(
            layers, (x, {"scale": 1.0}), partition_fn=min_cut_rematerialization_partition
        )
        return y


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = Layers(*(Layer() for _ in range(2)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, input_ids, labels=None, **_):
        logits = self.head(self.layers(self.embed(input_ids)))
        return logits, F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def rows(count):
    tokens = torch.randint(WORDS, (count, LENGTH))
    return [{"input_ids": row, "labels": row} for row in tokens]


def reference(model, batches, optimizer, norm=1.0):
    """The losses of plain PyTorch."""
    losses = []
    for batch in batches:
        loss = model(**batch)[1]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def alike(model, expected):
    for (name, p), q in zip(model.named_parameters(), expected.parameters()):
        message = functools.partial("{}: {}".format, name)
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-3, atol=1e-4, msg=message)


class Sharded(nn.Module):
    def __init__(self, module, mesh, spec):
        super().__init__()
        self._orig_mod, self.mesh, self.spec = module, mesh, spec

    def forward(self, *args, **kwargs):
        result = self._orig_mod(*args, **kwargs)
        return xs.mark_sharding_with_gradients(result, self.mesh, self.spec)


WEIGHTS = {
    "embed.weight": ("fsdp", "tensor"),
    "head.weight": ("tensor", "fsdp"),
    "norm.weight": ("fsdp",),
    "q_proj.weight": ("tensor", "fsdp"),
    "k_proj.weight": ("tensor", "fsdp"),
    "v_proj.weight": ("tensor", "fsdp"),
    "o_proj.weight": ("fsdp", "tensor"),
    "up.weight": ("tensor", "fsdp"),
    "down.weight": ("fsdp", "tensor"),
}


def sharded_by_config(model, mesh):
    """Weights by name, replaced in the module, and outputs of layers, with their gradients."""
    state = {}
    for name, value in model.state_dict().items():
        spec = next((s for ending, s in WEIGHTS.items() if name.endswith(ending)), None)
        state[name] = value if spec is None else xs.mark_sharding(value, mesh, spec).global_tensor
    model.load_state_dict(state, assign=True)
    for i, layer in enumerate(model.layers):
        layer.attention = Sharded(layer.attention, mesh, ("fsdp", None, "tensor"))
        model.layers[i] = layer
    return model


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("scanned", [False, True])
def test_a_trainer_whose_step_is_one_graph(mesh, optimizer, scanned):
    """As in torchprime: shardings in a configuration, a compiled method, closures of steps."""
    make = functools.partial(torch.optim.AdamW, lr=1e-2)
    if optimizer == "adafactor":
        transformers = pytest.importorskip("transformers")
        make = functools.partial(
            transformers.optimization.Adafactor,
            lr=1e-2, relative_step=False, scale_parameter=False,
        )  # fmt: skip
    expected = Decoder()
    model = apply_xla_patch_to_nn_linear(copy.deepcopy(expected).to(xm.xla_device()))
    model = sharded_by_config(model, mesh)
    if scanned:
        model.layers = ScannedLayers(*model.layers)
    data = rows(6 * N)
    sampler = torch.utils.data.DistributedSampler(
        data, num_replicas=xr.process_count(), rank=xr.process_index(), shuffle=False
    )
    loader = torch.utils.data.DataLoader(data, batch_size=2 * N, sampler=sampler, drop_last=True)
    spec = xs.ShardingSpec(mesh, (("data", "fsdp"), "context"), minibatch=TENSOR == 1)

    class Trainer:
        def __init__(self):
            self.optimizer = make(model.parameters())
            self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)

        @torch_xla.compile(full_graph=True)
        def train_step(self, batch):
            _, loss = model(**batch)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            self.optimizer.step()
            self.scheduler.step()
            model.zero_grad()
            return loss, norm

    trainer, seen = Trainer(), []
    torch_xla.sync()
    for batch in pl.MpDeviceLoader(loader, xm.xla_device(), input_sharding=spec):
        loss, norm = trainer.train_step(batch)
        xm.add_step_closure(
            lambda loss, norm: seen.append((loss.detach().item(), norm.item())),
            args=(loss, norm),
            run_async=True,
        )
    xm.wait_device_ops()
    torch_xla.sync()
    losses = reference(expected, loader, make(expected.parameters()))
    torch.testing.assert_close([loss for loss, _ in seen], losses, rtol=1e-4, atol=1e-4)
    assert all(math.isfinite(norm) for _, norm in seen)
    torch_xla._XLAC._xla_set_mat_mul_precision("highest")
    assert torch_xla._XLAC._xla_get_mat_mul_precision() == "highest"
    torch_xla._XLAC._xla_set_use_full_mat_mul_precision(use_full_mat_mul_precision=False)
    assert torch_xla.backends.get_mat_mul_precision() == "default"


def test_fsdp_of_checkpointed_layers(mesh):
    """As the Trainer of transformers and others wrap a model."""
    mesh = xs.Mesh(np.arange(N), (N, 1), axis_names=("fsdp", "tensor"))
    xs.set_global_mesh(mesh)
    expected = Decoder()
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
    model = FSDPv2(
        copy.deepcopy(expected),
        shard_output=lambda output, mesh: xs.mark_sharding(
            output[0] if isinstance(output, tuple) else output, mesh, ("fsdp", None, None)
        ),
        auto_wrap_policy=policy,
        auto_wrapper_callable=lambda m, *args, **kwargs: FSDPv2(
            checkpoint_module(m), *args, **kwargs
        ),
    )
    assert all(torch_xla._XLAC._get_xla_sharding_spec(p) for p in model.parameters())
    optimizer = AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(rows(3 * N), batch_size=N)
    spec = xs.ShardingSpec(mesh, ("fsdp", None), minibatch=True)
    losses = []
    for batch in pl.MpDeviceLoader(loader, torch_xla.device(), input_sharding=spec):
        loss = model(**batch)[1]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        xm.mark_step()
        losses.append(loss.item())
    theirs = reference(expected, loader, torch.optim.AdamW(expected.parameters(), lr=1e-2))
    torch.testing.assert_close(losses, theirs, rtol=1e-4, atol=1e-4)


def test_parameters_that_replace_those_on_meta():
    """Deferred initialization: each parameter is made on the host, moved, registered and marked."""
    mesh = xs.HybridMesh(
        ici_mesh_shape=[1, N // TENSOR, TENSOR],
        dcn_mesh_shape=[1, 1, 1],
        axis_names=("dcn", "data", "model"),
    )
    with torch.device("meta"):
        model = Decoder()
    values = {}
    for name, given in list(model.named_parameters()):
        with torch.no_grad():
            value = torch.nn.init.uniform_(torch.empty_like(given, device="cpu"), -0.1, 0.1)
        values[name] = value.clone()
        parameter = nn.Parameter(value.to(xm.xla_device()))
        path, _, last = name.rpartition(".")
        model.get_submodule(path).register_parameter(last, parameter)
        if parameter.dim() == 2:
            xs.mark_sharding(parameter, mesh, ("model", "data"))
    for layer in model.layers:
        xs.xla_sharding.apply_backward_optimization_barrier(layer)
    expected = Decoder()
    expected.load_state_dict(values)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [{k: v.unsqueeze(0).expand(N, -1) for k, v in row.items()} for row in rows(2)]
    for batch in batches:
        moved = {key: value.to(xm.xla_device()) for key, value in batch.items()}
        xs.mark_sharding(moved["input_ids"], mesh, (("dcn", "data"), None))
        with xp.Trace("step"), xp.Trace("build"):
            model(**moved)[1].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        xm.mark_step()
    reference(expected, batches, torch.optim.SGD(expected.parameters(), lr=0.1))
    alike(model, expected)


def test_generating_with_a_static_cache():
    """As tt-xla's sharded Llama and Qwen: tensor parallel, `generate`, and a compiled model over a
    cache of fixed size."""
    transformers = pytest.importorskip("transformers")
    mesh = xs.Mesh(np.arange(N), (1, N), ("batch", "model"))
    config = transformers.Qwen2Config(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=64, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    expected = transformers.Qwen2ForCausalLM(config).eval()
    model = copy.deepcopy(expected).to(torch_xla.device())
    for layer in model.model.layers:
        columns = [layer.mlp.up_proj, layer.mlp.gate_proj]
        columns += [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        for linear in columns:
            xs.mark_sharding(linear.weight, mesh, ("model", None))
        for linear in (layer.mlp.down_proj, layer.self_attn.o_proj):
            xs.mark_sharding(linear.weight, mesh, (None, "model"))
    ids = torch.randint(64, (2, 5))
    moved, mask = (t.to(torch_xla.device()) for t in (ids, torch.ones_like(ids)))
    xs.mark_sharding(moved, mesh, (None, None))
    xs.mark_sharding(mask, mesh, (None, None))
    options = {"max_new_tokens": 3, "do_sample": False}
    with torch.no_grad():
        wanted = expected.generate(ids, **options)
        assert torch.equal(model.generate(moved, attention_mask=mask, **options).cpu(), wanted)
        compiled = torch.compile(model, backend="openxla")
        cache = transformers.StaticCache(config=config, max_cache_len=8)
        place, tokens = torch.arange(5, device=torch_xla.device()), [moved]
        for _ in range(3):
            out = compiled(
                input_ids=tokens[-1], past_key_values=cache, cache_position=place, use_cache=True
            )
            tokens.append(out.logits[:, -1:].argmax(-1))
            place = place[-1:] + 1
        assert torch.equal(torch.cat(tokens, 1).cpu(), wanted)
    if N == 8:
        text = torch_xla._XLAC._get_xla_sharding_spec(cache.layers[0].keys)
        assert text.startswith("{devices=[1,8,1,1]")


def test_a_compiled_function_has_run_for_who_asks(mesh):
    """A training step with one stays one program; a metric or the sharding of a result runs it."""
    model = nn.Linear(8, 8).to("xla")
    xs.mark_sharding(model.weight, mesh, (("fsdp", "tensor"), None))
    compiled = torch.compile(model, backend="openxla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8, device="xla")
    torch_xla.sync()
    for _ in range(2):
        met.clear_all()
        compiled(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
    assert met.counter_value("ExecuteReplicated") == 1

    met.clear_all()
    result = compiled(x)
    assert met.counter_value("ExecuteReplicated") == 1  # of the result, which somebody holds
    result = compiled(x + 1)
    before = torch_xla._XLAC._get_xla_tensor_debug_info(x * 2)
    assert "ShardingSpec: None" in before and met.counter_value("ExecuteReplicated") == 2
    result = compiled(x + 2)
    assert "ShardingSpec: None" not in torch_xla._XLAC._get_xla_tensor_debug_info(result)
    assert torch_xla._XLAC._get_xla_sharding_spec(result) != ""


def test_places_and_donations():
    x = torch.arange(4.0, device="xla", requires_grad=True)
    y = torch.ops.xla.place_to_device(torch.ops.xla.place_to_host(x * 2))
    y.square().sum().backward()
    assert torch.equal(y.cpu(), 2 * torch.arange(4.0)) and torch.equal(x.grad.cpu(), 8 * x.cpu())
    z = torch.zeros(4, device="xla")
    torch_xla.sync()
    torch.ops.xla.dynamo_set_buffer_donor_(z, True)
    assert torch_xla._XLAC._get_buffer_donation(z) and not torch_xla._XLAC._get_buffer_donation(x)
    assert not torch_xla._XLAC._set_buffer_donation(z + 1, True)


def test_accelerates_state_is_saved(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator()
    assert accelerator.distributed_type == accelerate.utils.DistributedType.XLA
    model = nn.Linear(8, 4)
    data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randn(16, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters())
    expected = copy.deepcopy(model)
    theirs = torch.optim.AdamW(expected.parameters())
    model, optimizer, on_device = accelerator.prepare(model, optimizer, loader)
    for (x, y), (a, b) in zip(on_device, loader):
        loss = F.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        wanted = F.mse_loss(expected(a), b)
        wanted.backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(loss.item(), wanted.item())
    accelerator.save_state(tmp_path)
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state(tmp_path)
    alike(accelerator.unwrap_model(model), expected)


def test_full_tensors(mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    of = init_device_mesh("xla", (N // TENSOR, TENSOR), mesh_dim_names=("dp", "tp"))
    w = torch.randn(8, 16)
    given = distribute_tensor(w, of, [Shard(0), Shard(1)])
    assert torch.equal(given.full_tensor().cpu(), w)
    again = given.redistribute(of, [Replicate(), Shard(0)])
    assert again.placements == (Replicate(), Shard(0))
    assert torch.equal(again.full_tensor().cpu(), w)
    with pytest.raises(NotImplementedError, match="one process has all devices; local_shards"):
        given.to_local()
