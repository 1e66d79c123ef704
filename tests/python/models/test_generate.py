# SPDX-License-Identifier: Apache-2.0
"""Decoding with models of Hugging Face: the tokens of the CPU, and few programs."""

import pytest
import torch
from reported import reported

import torch_spmd as spmd

transformers = pytest.importorskip("transformers")

NEW = 8


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(params=[gpt2, llama])
def model(request):
    torch.manual_seed(0)
    return request.param().double().eval()


def generate(model, **kwargs):
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]], device=model.device)
    return model.generate(
        ids, max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0, **kwargs
    ).cpu()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_token_compiles_one_program(model, cache):
    want = generate(model, do_sample=False, cache_implementation=cache)
    model.to("spmd")
    before = reported()
    assert torch.equal(generate(model, do_sample=False, cache_implementation=cache), want)
    after = reported()
    # Shapes grow with every token. One program more reads the prompt, some the mask and the end.
    assert after["compiles"] - before["compiles"] <= NEW + 6
    assert after["host_fallbacks"] == before["host_fallbacks"]
    again = generate(model, do_sample=False, cache_implementation=cache)
    assert torch.equal(again, want) and reported()["compiles"] == after["compiles"]


def test_a_sampled_token_compiles_one_program(model):
    model.to("spmd")
    before = reported()["runs"]
    ids = generate(model, do_sample=True, top_k=5, temperature=0.7)
    assert ids.shape == (2, 3 + NEW)
    assert reported()["runs"] - before <= NEW + 6
    compiled = reported()["compiles"]
    generate(model, do_sample=True, top_k=7, temperature=0.9)
    assert reported()["compiles"] - compiled <= NEW + 1  # another k is another shape


def test_a_cache_of_fixed_size_compiles_nothing_for_a_token(model):
    """One token at a time at a position that is a tensor: every shape is the same."""

    def decode(device):
        model.to(device)
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        token = torch.tensor([[5], [6]], device=device)
        tokens, counts = [], []
        for k in range(6):
            before = reported()["compiles"]
            position = torch.tensor([k], device=device)
            with torch.no_grad():
                logits = model(
                    token, past_key_values=cache, cache_position=position, use_cache=True
                ).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
            tokens.append(token.cpu())
            counts.append(reported()["compiles"] - before)
        return torch.cat(tokens, 1), counts

    want, _ = decode("cpu")
    got, counts = decode("spmd")
    assert torch.equal(got, want)
    assert counts[3:] == [0, 0, 0], (counts, spmd.debug.explain_compile())
