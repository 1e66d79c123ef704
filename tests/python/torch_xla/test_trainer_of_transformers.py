# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers on its path for torch_xla: alone, and with FSDP (1 and 2) of it."""

import importlib.util
import json

import pytest
import torch
from processes import run_script

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("accelerate", "transformers")),
    reason="accelerate or transformers is not installed",
)

SCRIPT = """
    import json, os, tempfile, warnings
    warnings.simplefilter("ignore")
    START
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    rows = torch.randint(64, (32, 8))
    data = [{"input_ids": row, "labels": row} for row in rows]
    folder = tempfile.mkdtemp()
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=64, attn_implementation="eager", use_cache=False,
    ))
    args = TrainingArguments(
        folder, max_steps=4, per_device_train_batch_size=8, logging_steps=1, save_steps=2,
        report_to=[], disable_tqdm=True, seed=3, learning_rate=1e-2, lr_scheduler_type="constant",
        OPTIONS
    )
    trainer = Trainer(model, args, train_dataset=data, eval_dataset=data[:8])
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    losses.append(trainer.evaluate()["eval_loss"])
    CHECKS
    print("RESULT", json.dumps(losses))
"""
XLA = """import torch_spmd.torch_xla.install
    torch_spmd.integrations.transformers()
    import torch_xla, torch_xla.runtime as xr
    """
SHARDED = """specs = {torch_xla._XLAC._get_xla_sharding_spec(p) for p in trainer.model.parameters()}
    assert any(spec.startswith("{devices=[8") for spec in specs), specs
    assert "pytorch_model.bin" in os.listdir(folder + "/checkpoint-4")"""
RESUMED = (
    SHARDED
    + """
    path = folder + "/checkpoint-2/pytorch_model.bin"
    weights = torch.load(path)
    assert "_orig_module.model.layers.0._orig_module.mlp.up_proj.weight" in weights
    torch.save({k.replace("_orig_module.", ""): v for k, v in weights.items()}, path)
    again = Trainer(LlamaForCausalLM(model.config), args, train_dataset=data)
    again.train(resume_from_checkpoint=folder + "/checkpoint-2")
    rest = [row["loss"] for row in again.state.log_history if "loss" in row][-2:]
    torch.testing.assert_close(rest, losses[2:4], rtol=1e-4, atol=1e-4)"""
)
LOADED = """again = LlamaForCausalLM.from_pretrained(folder + "/checkpoint-4").state_dict()
    for name, value in trainer.model.module.module.state_dict().items():
        name = name.replace("_fsdp_wrapped_module._fpw_module.", "")
        assert torch.equal(again.pop(name), value.cpu()), name
    assert not again"""
FSDP = 'fsdp=True, fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "xla": True'


def losses(start, options, checks=""):
    script = SCRIPT.replace("START", start).replace("OPTIONS", options).replace("CHECKS", checks)
    done = run_script(script)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return json.loads(line[6:])


@pytest.fixture(scope="module")
def expected():
    return losses("", "use_cpu=True")


def test_half_precision(expected):
    half = losses("", "use_cpu=True, bf16=True")
    ours = losses(XLA + "xr.use_spmd()", FSDP + ', "xla_fsdp_v2": True}, bf16=True')
    torch.testing.assert_close(ours, half, rtol=2e-2, atol=2e-2)
    assert ours != expected and max(abs(a - b) for a, b in zip(ours, expected)) > 1e-5


@pytest.mark.parametrize(
    ("start", "options", "checks"),
    [
        ("", "", ""),
        ("xr.use_spmd()", FSDP + ', "xla_fsdp_v2": True, "xla_fsdp_grad_ckpt": True}', RESUMED),
        ("", FSDP + "}", LOADED),
    ],
    ids=["alone", "fsdp2", "fsdp1"],
)
def test_losses_are_those_of_the_cpu(expected, start, options, checks):
    ours = losses(XLA + start, options, checks)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
