# SPDX-License-Identifier: Apache-2.0
"""Tiny models in the style of other projects, each with a function that draws its inputs. No
dropout."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, LENGTH, VOCAB, WIDTH = 4, 6, 17, 12


def tokens(generator):
    return torch.randint(0, VOCAB, (BATCH, LENGTH), generator=generator)


def token_inputs(generator):
    ids = tokens(generator)
    return {"input_ids": ids, "labels": ids.clone()}


def sequence(generator):
    return {"x": torch.randn(BATCH, LENGTH, WIDTH, generator=generator)}


def image(generator):
    return {"x": torch.randn(BATCH, 3, 12, 10, generator=generator)}


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": VOCAB, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": 3}
    none = {
        "resid_pdrop": 0,
        "embd_pdrop": 0,
        "attn_pdrop": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, **none))


LLAMA_LIKE = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE))


def mistral():
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**LLAMA_LIKE, head_dim=2, sliding_window=3))


def qwen():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**LLAMA_LIKE, tie_word_embeddings=True))


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_local_experts": 3, "num_experts_per_tok": 2}
    config = MixtralConfig(**LLAMA_LIKE, **experts, head_dim=2, output_router_logits=True)
    config._experts_implementation = "eager"  # the CPU's grouped_mm has no double precision
    return MixtralForCausalLM(config)


BERT_LIKE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=VOCAB, max_position_embeddings=16, **BERT_LIKE))


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": VOCAB, "d_model": WIDTH, "d_kv": 4, "d_ff": 20, "num_layers": 1}
    config = T5Config(
        **sizes, num_heads=3, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0
    )
    return T5ForConditionalGeneration(config)


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=8, patch_size=4, num_channels=3, num_labels=5, **BERT_LIKE)
    return ViTForImageClassification(config)


def vit_inputs(generator):
    return {
        "pixel_values": torch.randn(BATCH, 3, 8, 8, generator=generator),
        "labels": torch.randint(0, 5, (BATCH,), generator=generator),
    }


def olmoe():
    from transformers import OlmoeConfig, OlmoeForCausalLM

    config = OlmoeConfig(**LLAMA_LIKE, num_experts=4, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    return OlmoeForCausalLM(config)


def mamba2():
    from transformers import Mamba2Config, Mamba2ForCausalLM

    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "chunk_size": 4}
    return Mamba2ForCausalLM(
        Mamba2Config(**sizes, num_heads=6, head_dim=4, state_size=4, n_groups=2, expand=2)
    )


def deberta():
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    terms = {"pos_att_type": ["c2p", "p2c"], "position_buckets": 4, "norm_rel_ebd": "layer_norm"}
    config = DebertaV2Config(
        vocab_size=VOCAB,
        max_position_embeddings=16,
        relative_attention=True,
        share_att_key=True,
        conv_kernel_size=3,
        **terms,
        **BERT_LIKE,
    )
    return DebertaV2ForMaskedLM(config)


def longformer():
    from transformers import LongformerConfig, LongformerForMaskedLM

    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 16, "attention_window": 4}
    return LongformerForMaskedLM(LongformerConfig(**sizes, pad_token_id=0, **BERT_LIKE))


def attended_tokens(generator):
    globally = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    globally[:, 1] = 1
    return {**token_inputs(generator), "global_attention_mask": globally}


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": 1, f"{side}_attention_heads": 3, f"{side}_ffn_dim": 20}
    lengths = {"num_mel_bins": 5, "max_source_positions": 8, "max_target_positions": 12}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return WhisperForConditionalGeneration(
        WhisperConfig(vocab_size=VOCAB, d_model=WIDTH, **sides, **lengths, **marks)
    )


def spectrogram(generator):
    return {
        "input_features": torch.randn(BATCH, 5, 16, generator=generator),
        "labels": tokens(generator),
    }


def swin():
    from transformers import SwinConfig, SwinForImageClassification

    sizes = {"embed_dim": 6, "depths": [2, 1], "num_heads": [2, 3], "window_size": 3}
    config = SwinConfig(image_size=8, patch_size=1, num_labels=5, drop_path_rate=0.0, **sizes)
    return SwinForImageClassification(config)


def segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[6, 8],
        patch_sizes=[3, 3],
        strides=[1, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=8,
        num_labels=3,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
    )
    return SegformerForSemanticSegmentation(config)


def segmented_image(generator):
    return {
        "pixel_values": torch.randn(BATCH, 3, 8, 8, generator=generator),
        "labels": torch.randint(0, 3, (BATCH, 8, 8), generator=generator),
    }


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cells = kind(WIDTH, 8, 2, batch_first=True, **options)
        self.head = nn.LazyLinear(5)
        self.head(self.cells(torch.zeros(1, 1, WIDTH))[0])

    def forward(self, x):
        return self.head(self.cells(x)[0])


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride, groups=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x), inplace=True)


def resnet():
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, 2, 2),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(6, 6, 1),
        Residual(6, 12, 2, groups=3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 4, 2, 1)
        self.norm = nn.GroupNorm(2, 8)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x):
        a = F.silu(self.first(x))
        b = F.gelu(self.norm(self.down(a)))
        up = self.up(F.interpolate(F.avg_pool2d(b, 2), size=b.shape[2:], mode="bilinear") + b)
        return self.last(torch.cat([up, a], 1))


class Sequential(nn.Sequential):
    """Takes its input by name."""

    def forward(self, x):
        return super().forward(x)


def mlp():
    return Sequential(
        nn.Linear(WIDTH, 20), nn.GELU(), nn.LayerNorm(20), nn.Linear(20, 7), nn.BatchNorm1d(LENGTH)
    )


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Transformer(WIDTH, 3, 1, 1, 20, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.body(x, x.flip(1))


MODELS = {
    "bert": (bert, token_inputs),
    "deberta": (deberta, token_inputs),
    "gpt2": (gpt2, token_inputs),
    "gru": (lambda: Recurrent(nn.GRU, bidirectional=True), sequence),
    "llama": (llama, token_inputs),
    "longformer": (longformer, attended_tokens),
    "lstm": (lambda: Recurrent(nn.LSTM, proj_size=4), sequence),
    "mamba2": (mamba2, token_inputs),
    "mistral": (mistral, token_inputs),
    "mixtral": (mixtral, token_inputs),
    "mlp": (mlp, sequence),
    "olmoe": (olmoe, token_inputs),
    "qwen": (qwen, token_inputs),
    "resnet": (lambda: Sequential(*resnet()), image),
    "rnn": (lambda: Recurrent(nn.RNN), sequence),
    "segformer": (segformer, segmented_image),
    "swin": (swin, vit_inputs),
    "t5": (t5, token_inputs),
    "transformer": (Transformer, sequence),
    "unet": (UNet, image),
    "vit": (vit, vit_inputs),
    "whisper": (whisper, spectrogram),
}
