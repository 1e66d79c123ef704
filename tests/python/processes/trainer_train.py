# SPDX-License-Identifier: Apache-2.0
"""Trains with the Trainer of transformers: python trainer_train.py FOLDER. Prints its losses."""

import json
import sys

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import torch_spmd as spmd

spmd.integrations.transformers()

folder = sys.argv[1]
torch.manual_seed(0)
rows = torch.randint(64, (32, 8))
data = [{"input_ids": row, "labels": row} for row in rows]


def trained(steps, resume=False):
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        vocab_size=64, attention_dropout=0.1, attn_implementation="eager", tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to("spmd")
    spmd.hf.shard_model(model, spmd.make_mesh((2, 4), ("data", "model")))
    args = TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=8, logging_steps=1, save_steps=2,
        report_to=[], disable_tqdm=True, seed=3, learning_rate=1e-2, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.is_world_process_zero() == (spmd.processes.process_index() == 0)
    return trainer


trainer = trained(2)
trainer = trained(4, resume=True)
trainer.save_model(f"{folder}/last")
weight = trainer.model.model.norm.weight.cpu()
assert torch.equal(load_file(f"{folder}/last/model.safetensors")["model.norm.weight"], weight)
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
assert len(losses) == 4
if trainer.is_world_process_zero():
    print("LOSSES", json.dumps(losses))
