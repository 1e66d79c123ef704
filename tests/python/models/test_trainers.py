# SPDX-License-Identifier: Apache-2.0
"""Accelerate, the Trainer of transformers, and Lightning train on the device as on the CPU.

They keep global state, and functions of theirs are replaced, so that each test is a process of its
own.
"""

import importlib.util
import json

import pytest
import torch
from processes import run_script


def needs(*packages):
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")


def results(script, **environment):
    """What the script prints as JSON after "RESULT"."""
    printed = run_script(script, **environment).stdout.splitlines()
    return [json.loads(line[6:]) for line in printed if line.startswith("RESULT")]


ACCELERATE = """
    import json, os, sys, tempfile, warnings
    IMPORTS
    import torch
    from torch import nn

    def train(device, precision, resume=False, dropout=0.0):
        cpu = device == "cpu"
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=cpu, mixed_precision=precision)
        assert accelerator.device.type == device, accelerator.device
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 4))
        if not cpu:
            mesh = torch_spmd.make_mesh((2, 4), ("data", "model"))
            model = model.to("spmd")
            torch_spmd.mark_sharding(model[0].weight, mesh, ("model", None))
        data = torch.utils.data.TensorDataset(torch.randn(32, 16), torch.randint(4, (32,)))
        loader = torch.utils.data.DataLoader(data, batch_size=8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        torch.manual_seed(1)
        losses, folder = [], tempfile.mkdtemp()
        for step, (x, y) in enumerate(loader):
            assert x.device.type == device
            if resume and step == 2:
                accelerator.save_state(folder)
                torch.manual_seed(9)
                for p in model.parameters():
                    nn.init.zeros_(p)
                accelerator.load_state(folder)
            with accelerator.autocast():
                loss = nn.functional.cross_entropy(model(x).float(), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if not cpu:
            assert torch_spmd.sharding_of(model[0].weight).spec == torch_spmd.P("model", None)
        scale = accelerator.scaler
        return losses, None if scale is None else scale.get_scale()
"""


@needs("accelerate")
@pytest.mark.parametrize(
    "imports",
    [
        "import torch_spmd; torch_spmd.integrations.accelerate(); import accelerate.state",
        "import accelerate.state, torch_spmd; torch_spmd.integrations.accelerate()",
    ],
    ids=["before", "after"],
)
def test_accelerate_finds_the_device_and_trains(imports):
    script = ACCELERATE.replace("IMPORTS", imports)
    script += """
    def show(*values):
        print("RESULT", json.dumps(values))

    show(*(train(device, "no", resume=True) for device in ("cpu", "spmd")))
    show(*(train(device, "bf16") for device in ("cpu", "spmd")))
    show(train("spmd", "fp16", resume=True), train("cpu", "no"))
    show(*(train("spmd", "no", resume, dropout=0.5) for resume in (False, True)))
"""
    plain, bf16, fp16, resumed = results(script)
    torch.testing.assert_close(plain[1][0], plain[0][0])
    torch.testing.assert_close(bf16[1][0], bf16[0][0], rtol=2e-2, atol=2e-2)
    assert bf16[1][0] != plain[1][0]
    # There is no float16 with a scaler on accelerate's CPU: compared with float32.
    torch.testing.assert_close(fp16[0][0], fp16[1][0], rtol=1e-2, atol=1e-2)
    assert fp16[0][1] == 2.0**16 and fp16[0][0] != fp16[1][0]
    # Random numbers go on after a checkpoint as without one.
    assert resumed[0] == resumed[1]


@needs("accelerate")
def test_accelerates_own_choices_still_count():
    script = """
    import accelerate, json, os

    def chosen(*arguments, **environment):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.update(environment)
        device = accelerate.Accelerator(*arguments).device.type
        for name in environment:
            del os.environ[name]
        return device

    before = chosen()
    import torch_spmd
    between = chosen()
    torch_spmd.integrations.accelerate()
    print("RESULT", json.dumps([
        before, between,
        chosen(), chosen(ACCELERATE_USE_CPU="true"), chosen(ACCELERATE_TORCH_DEVICE="cpu")
    ]))
    """
    assert results(script) == [["cpu", "cpu", "spmd", "cpu", "cpu"]]


TRAINER = """
    import json, os, sys, tempfile
    import torch_spmd
    torch_spmd.integrations.transformers()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    rows = torch.randint(64, (32, 8))
    data = [{"input_ids": row, "labels": row} for row in rows]
    folder = tempfile.mkdtemp()

    def train(device, steps=4, resume=False, into="a", dropout=0.0, **options):
        torch.manual_seed(1)
        config = LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
            vocab_size=64, attention_dropout=dropout, attn_implementation="eager",
        )
        model = LlamaForCausalLM(config)
        if device == "spmd":
            mesh = torch_spmd.make_mesh((2, 4), ("data", "model"))
            model = model.to("spmd")
            torch_spmd.hf.shard_model(model, mesh)
        args = TrainingArguments(
            os.path.join(folder, into), max_steps=steps, per_device_train_batch_size=8,
            logging_steps=1, save_steps=2, report_to=[], use_cpu=device == "cpu",
            disable_tqdm=True, seed=3, learning_rate=1e-2,
            lr_scheduler_type="constant", **options
        )
        assert args.device.type == device, args.device
        trainer = Trainer(model, args, train_dataset=data)
        trainer.train(resume_from_checkpoint=resume)
        assert next(trainer.model.parameters()).device.type == device
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]
"""


@needs("accelerate", "transformers")
def test_the_trainer_finds_the_device_trains_and_resumes():
    script = TRAINER
    script += """
    def show(*values):
        print("RESULT", json.dumps(values))

    show(train("cpu"), train("spmd"))
    show(train("cpu", bf16=True), train("spmd", bf16=True), train("spmd", fp16=True))
    through = train("spmd", dropout=0.5)
    train("spmd", 2, into="b", dropout=0.5)
    show(through, train("spmd", resume=True, into="b", dropout=0.5))
"""
    (cpu, ours), (cpu_bf16, bf16, fp16), (through, resumed) = results(script)
    torch.testing.assert_close(ours, cpu)
    torch.testing.assert_close(bf16, cpu_bf16, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(fp16, cpu, rtol=1e-2, atol=1e-2)
    assert bf16 != ours and fp16 != ours and through != ours
    assert through == resumed and len(through) == 4


LIGHTNING = """
    import json, sys, tempfile, warnings
    import lightning.pytorch as pl
    import torch
    from torch import nn
    import torch_spmd as spmd
    from torch_spmd.integrations.lightning import Accelerator, Strategy

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
            self.losses, self.specs, self.dtypes = [], [], []

        def training_step(self, batch, index):
            x, y = batch
            if x.device.type == "spmd":
                self.specs.append(spmd.sharding_of(x).spec)
            out = self.net(x)
            self.dtypes.append(out.dtype)
            loss = nn.functional.cross_entropy(out.float(), y)
            self.log("loss", loss)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    data = torch.utils.data.TensorDataset(torch.randn(32, 16), torch.randint(4, (32,)))

    def train(epochs=1, path=None, save=None, **options):
        torch.manual_seed(0)
        model = Model()
        trainer = pl.Trainer(
            max_epochs=epochs, logger=False, enable_checkpointing=False, gradient_clip_val=1.0,
            enable_progress_bar=False, enable_model_summary=False, **options
        )
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=path)
        if save:
            trainer.save_checkpoint(save)
        return model

    def strategy(**options):
        return Strategy(mesh, batch="data", shard=lambda m: spmd.fsdp(m, mesh, "data"), **options)
"""


@needs("lightning")
def test_lightning_trains():
    script = (
        LIGHTNING
        + """
    cpu = train(accelerator="cpu")
    ours = train(strategy=strategy())
    assert ours.specs == [spmd.P("data", None)] * 4, ours.specs
    assert spmd.sharding_of(ours.net[0].weight).spec == spmd.P("data", None)
    torch.testing.assert_close(ours.losses, cpu.losses)

    cpu = train(accelerator="cpu", precision="bf16-mixed")
    for options in ({"precision": "bf16-mixed", "strategy": strategy()},
                    {"strategy": strategy(precision="bf16-mixed")}):
        half = train(**options)
        assert set(half.dtypes) == {torch.bfloat16}
        torch.testing.assert_close(half.losses, cpu.losses, rtol=2e-2, atol=2e-2)
    half = train(strategy=strategy(precision="16-mixed"))
    assert set(half.dtypes) == {torch.float16} and half.trainer.scaler.get_scale() == 2.0**16
    torch.testing.assert_close(half.losses, ours.losses, rtol=1e-2, atol=1e-2)

    path = tempfile.mkdtemp() + "/one.ckpt"
    train(strategy=strategy(), save=path)
    resumed = train(2, path, strategy=strategy())
    through = train(2, strategy=strategy())
    assert resumed.losses == through.losses[4:] and len(resumed.losses) == 4

    for wrong in (
        lambda: Strategy(mesh, batch="none"),
        lambda: Strategy(batch="data"),
        lambda: Strategy(shard=3),
        lambda: pl.Trainer(devices=2, strategy=Strategy()),
        lambda: Accelerator().setup_device(torch.device("cpu")),
    ):
        try:
            wrong()
        except (TypeError, ValueError) as error:
            print("RESULT", json.dumps(str(error)))
"""
    )
    assert results(script) == [
        "Strategy: batch: mesh [data=2, model=4] has no axis 'none'; its axes are 'data', 'model'",
        "Strategy: no mesh was given and there is no global one; pass a mesh, or call it inside "
        "`with spmd.use_mesh(mesh):`",
        "Strategy: shard must be a function of the module; got 3 (int)",
        "Accelerator: devices is 2 (int), but there is one logical device, and the devices of a "
        'mesh are its parts; leave `devices` out and give Strategy(mesh, batch="data")',
        "Accelerator: the device must be 'spmd'; got 'cpu'",
    ]


@needs("lightning")
def test_fabric_trains():
    script = """
    import tempfile
    import torch
    from lightning import Fabric
    from torch import nn
    import torch_spmd as spmd
    from torch_spmd.integrations.lightning import FabricStrategy

    mesh = spmd.make_mesh((8,), ("data",))
    path = tempfile.mkdtemp() + "/one.ckpt"

    def train(resume=False, **options):
        fabric = Fabric(**options)
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8))
        model = fabric.setup(inner)
        optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), 1e-2))
        data = torch.utils.data.DataLoader(torch.randn(32, 16), batch_size=8)
        losses = []
        if resume:
            assert fabric.load(path, {"model": model, "optimizer": optimizer}) == {"steps": 4}
        for x in fabric.setup_dataloaders(data):
            loss = model(x).square().mean()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        fabric.save(path, {"model": model, "optimizer": optimizer, "steps": 4})
        return losses, x, inner[0].weight

    def strategy(**options):
        return FabricStrategy(mesh, "data", shard=lambda m: spmd.fsdp(m, mesh), **options)

    cpu, *_ = train(accelerator="cpu", devices=1)
    more, *_ = train(accelerator="cpu", devices=1, resume=True)
    ours, x, weight = train(strategy=strategy())
    torch.testing.assert_close(ours, cpu)
    for tensor in (x, weight):
        assert spmd.sharding_of(tensor).spec == spmd.P("data", None)
    torch.testing.assert_close(train(strategy=strategy(), resume=True)[0], more)
    for options in ({"strategy": strategy(), "precision": "bf16-mixed"},
                    {"strategy": strategy(precision="bf16-mixed")},
                    {"strategy": FabricStrategy(precision="16-mixed")}):
        half, *_ = train(**options)
        assert half != ours
        torch.testing.assert_close(half, cpu, rtol=2e-2, atol=2e-2)
    try:
        FabricStrategy(mesh, "none")
    except ValueError as error:
        print("RESULT", __import__("json").dumps(str(error)))
"""
    assert results(script) == [
        "FabricStrategy: batch: mesh [data=8] has no axis 'none'; its axis is 'data'"
    ]


MARKED = """
    import warnings
    import torch_spmd as spmd
    import torch
    from torch import nn

    def move(mark):
        module = nn.Sequential(nn.Linear(8, 4)).to("spmd")
        if mark:
            mesh = spmd.make_mesh((4,), ("x",))
            spmd.mark_sharding(module[0].weight, mesh, ("x", None))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            module.cpu()
            moved = module.to("spmd")
        if mark:
            assert spmd.sharding_of(moved[0].weight).spec == spmd.P("x", None)
        return [str(w.message) for w in caught]

    assert move(False) == [], move(False)
    print(*move(True))
    assert move(True) == []
"""


def test_a_marked_module_that_moves_to_the_host_warns_once():
    warned = run_script(MARKED).stdout
    assert warned.startswith("a module with marks has moved to the host, where it is not sharded")
    assert "spmd.integrations.accelerate()" in warned
