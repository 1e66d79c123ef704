# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` in tiny size, with inputs, for comparisons.

A size is chosen by the name that configurations give it. What follows from a configuration is read
from it: its parts (`vision_config`, `text_config`) are made tiny, too; lists with an entry a layer
are cut to two layers that differ; settings of single layers keep their proportion to the others;
rotary sections fit the head. `FACTS` has what no rule can tell: sizes that are products of others,
and what only published checkpoints say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

BATCH, LENGTH = 4, 16
IMAGE_TOKEN, VIDEO_TOKEN, AUDIO_TOKEN = 125, 126, 127

# Heads divide by an axis of 4 devices where a model lets them; a name that a configuration does
# not have is left out.
SIZES = {
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
    "laurel_rank": 8,
    "hidden_size": 64,
    "out_hidden_size": 64,
    "projector_hidden_size": 64,
    "moe_hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "rotary_dim": 8,
    "global_head_dim": 8,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_dense_layers": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "first_k_dense_replace": 1,
    "sliding_window": 8,
    "image_size": 56,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": VIDEO_TOKEN,
    "audio_token_id": AUDIO_TOKEN,
}

# By model type.
FACTS: dict[str, dict[str, Any]] = {
    # The adapter takes 2 x 2 patches of the vision model at once.
    "muse_glimmer": {"out_hidden_size": 4 * 64},
    "muse_spark": {"out_hidden_size": 4 * 64},
    "llama4_vision_model": {
        "intermediate_size": 4 * 64,
        "projector_input_dim": 64,
        "projector_output_dim": 64,
        "vision_output_dim": 64,
    },
    "dots3_note_vision_encoder": {"adapter_in_dim": 64, "adapter_out_dim": 64},
    # Four layers, each with a width.
    "muse_spark_audio": {"num_hidden_layers": 4, "hidden_sizes": [8, 16, 32, 64]},
    "phi4_multimodal_audio": {
        "num_blocks": 2,
        "nemo_conv_channels": 64,
        "ext_pw_out_channel": 64,
        "depthwise_separable_out_channel": 64,
    },
    # Layers with a sliding window have heads of 12 + 8.
    "dots3_note_text": {"head_dim": 20},
    # The default is None, which the model refuses.
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    # The default has no layer with attention.
    # Layers take a mask of the length of the noise without context, if the window is shorter.
    "muse_glimmer_assistant": {"sliding_window": 64},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    # The model reads it, the configuration does not have it.
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 32},
}
# Models that have `input_ids` in their signature, but refuse them or have no embeddings.
TAKE_EMBEDDINGS = {"qwen3_omni_moe_talker_code_predictor", "qwen3_omni_moe_talker_text"}
# Models that need an embedding of the time, which is not in their signature.
TAKE_TIME = {"voxtral_realtime_text": "t_cond"}
# Fields that a model reads from the result of its language model, which does not have them: no
# call of it ends in transformers 5.24 ("object has no attribute 'image_outputs'"). Here they exist.
READ_BUT_MISSING = {"llama4": "image_outputs"}

MOST_PARAMETERS = 30_000_000
PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")


def configs() -> Iterator[tuple[str, Any]]:
    """The configurations that have a plan, by model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    seen = set()
    for name in sorted(CONFIG_MAPPING):
        with contextlib.suppress(Exception):
            kind = CONFIG_MAPPING[name]
            plans = (getattr(kind, f"base_model_{what}_plan", None) for what in ("tp", "ep"))
            if any(plans) and kind not in seen:
                seen.add(kind)
                yield name, kind


def model_class(kind: Any) -> Any:
    """The language model of a configuration, else its plain model, else one in its module that is
    made of it, else a model of another architecture whose fields it has.

    Errors: LookupError if there is none.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING, PreTrainedModel

    mapped = []
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING):
        with contextlib.suppress(KeyError, ValueError):  # there is none, or one of a wrong name
            found = mapping[kind]
            mapped.append(found[0] if isinstance(found, tuple) else found)
    name = kind.__module__.replace("configuration_", "modeling_")
    own: list[Any] = []
    if importlib.util.find_spec(name) is not None:
        own = list(vars(importlib.import_module(name)).values())
    models = [v for v in own if isinstance(v, type) and issubclass(v, PreTrainedModel)]
    for value in (*mapped, *(model for model in models if "forward" in vars(model))):
        if value.config_class is kind:
            return value
    if mapped and not own:
        return mapped[0]
    raise LookupError(f"{name} has no model of {kind.__name__}")


def wholes(kind: Any) -> Iterator[Any]:
    """The configurations of the same module that have this one as a part, or as a part of one."""
    for value in vars(sys.modules[kind.__module__]).values():
        parts = getattr(value, "sub_configs_defaults", None)
        if isinstance(value, type) and kind in [
            getattr(part, "config_class", part) for part in (parts or {}).values()
        ]:
            yield value
            yield from wholes(value)


def tiny(kind: Any) -> Any:
    """The configuration with the sizes above, of two layers, and so its parts."""
    default = kind()
    # Reading what differs from layer to layer is an error otherwise.
    default.allow_global_per_layer_attribute_access = True
    known = {name: value for name, value in SIZES.items() if _is_size(default, name)}
    if "num_key_value_heads" in known and default.num_key_value_heads == getattr(
        default, "num_attention_heads", None
    ):
        known["num_key_value_heads"] = SIZES["num_attention_heads"]
    for name in getattr(kind, "sub_configs_defaults", None) or {}:
        part = getattr(default, name, None)
        if part is not None:
            known[name] = tiny(type(part))
    facts = FACTS.get(kind.model_type, {})
    config = _allowed(kind, known | facts, _by_layer(default, known | facts) | facts)
    if getattr(config, "use_cache", None):
        config.use_cache = False
    _cut_sections(config)
    return config


def _is_size(config: Any, name: str) -> bool:
    """Whether the configuration takes it; what it computes from others it does not take."""
    fixed = getattr(type(config), name, None)
    if isinstance(fixed, property) and fixed.fset is None:
        return False
    if dataclasses.is_dataclass(config):
        taken = {field.name for field in dataclasses.fields(config)}
        if name not in taken and name not in getattr(config, "attribute_map", {}):
            return False
    try:
        value = getattr(config, name)
    except AttributeError:
        return False
    except Exception:
        return True
    return value is None or isinstance(value, int)


def _by_layer(default: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Lists and settings by layer, for the first layer and the last that differs from it."""
    layers = getattr(default, "num_hidden_layers", 0)
    lists = {}
    for name in PER_LAYER:
        fixed = getattr(type(default), name, None)
        value = None if isinstance(fixed, property) else getattr(default, name, None)
        if isinstance(value, list) and len(value) == layers > 2:
            lists[name] = value
    names = sorted(getattr(default, "per_layer_attributes", None) or ())
    if layers <= 2 or not (lists or names):
        return {}
    kinds = [
        [value[layer] for value in lists.values()]
        + [getattr(default.per_layer_config[layer], name) for name in names]
        for layer in range(layers)
    ]
    last = max((layer for layer in range(layers) if kinds[layer] != kinds[0]), default=layers - 1)
    cut: dict[str, Any] = {name: [value[0], value[last]] for name, value in lists.items()}
    if names:
        cut["per_layer_config"] = {
            new: {
                name: _in_proportion(
                    getattr(default.per_layer_config[old], name),
                    getattr(default, name),
                    known.get(name),
                )
                for name in names
            }
            for new, old in enumerate((0, last))
        }
    return cut


def _in_proportion(of_layer: Any, of_all: Any, tiny_of_all: Any) -> Any:
    if all(isinstance(value, int) for value in (of_layer, of_all, tiny_of_all)) and of_all > 0:
        return max(1, tiny_of_all * of_layer // of_all)
    return of_layer


def _allowed(kind: Any, known: dict[str, Any], by_layer: dict[str, Any]) -> Any:
    """The configuration; without what is by layer or one of the sizes, if it refuses all of them.

    Errors: those of the configuration.
    """
    without = ({k: v for k, v in known.items() if k != left} for left in known)
    for sizes in (known | by_layer, known, *without):
        with contextlib.suppress(Exception):
            return kind(**sizes)
    return kind(**known)


def _cut_sections(config: Any) -> None:
    """Rotary embeddings have a base and, for time, height and width, sections of half of a head;
    all of it once a kind of layer, where the model looks it up by the kind.
    """
    module = sys.modules.get(type(config).__module__.replace("configuration_", "modeling_"))
    source = "" if module is None else inspect.getsource(module)
    for name in ("rope_parameters", "rope_scaling"):
        given = getattr(config, name, None)
        if not isinstance(given, dict):
            continue
        flat = not any(isinstance(value, dict) for value in given.values())
        if flat and "rope_parameters[layer_type]" in source and hasattr(config, "layer_types"):
            given = {kind: {"rope_type": "default"} | given for kind in set(config.layer_types)}
            setattr(config, name, given)
        for one in [given, *(value for value in given.values() if isinstance(value, dict))]:
            if "rope_type" not in one:
                continue
            if one.get("rope_theta") is None:
                one["rope_theta"] = 10_000.0
            if "mrope_section" in source:
                rotated = int(SIZES["head_dim"] // 2 * one.get("partial_rotary_factor", 1))
                third = rotated // 3
                one["mrope_section"] = [rotated - 2 * third, third, third]
                if re.search(r'"mrope_section", \[(\d+), \1, ', source):  # height, width, time
                    one["mrope_section"].reverse()


def build(kind: Any) -> nn.Module:
    """The model of a configuration in tiny size; if it cannot be made of this one, the model of
    which it is a part.

    Errors: those of transformers; ValueError if the model is large nevertheless.
    """
    try:
        return _made_of(kind)
    except Exception as error:
        for whole in wholes(kind):
            with contextlib.suppress(Exception):
                return _made_of(whole)
        raise error


def _made_of(kind: Any) -> nn.Module:
    made_of = model_class(kind)
    config = tiny(kind)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        count = sum(p.numel() for p in made_of(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count} parameters: its sizes have other names")
    model = _initialized(made_of, config)
    missing = READ_BUT_MISSING.get(kind.model_type)
    if missing:
        model.language_model.register_forward_hook(
            lambda _module, _inputs, result: setattr(result, missing, None)
        )
    made: nn.Module = model.float()
    return made


def _initialized(made_of: Any, config: Any) -> Any:
    """The model with seeded weights, those too that transformers leaves as memory was."""
    torch.manual_seed(0)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # memory is filled by nan
    try:
        model = made_of(config).eval()
    finally:
        torch.use_deterministic_algorithms(before)
    for weight in model.parameters():
        if weight.isnan().any():
            nn.init.normal_(weight, std=0.02)
    return model


def inputs_of(model: Any) -> dict[str, Any]:
    """Arguments of a model, by their names: tokens, embeddings, patches of images with their
    places, and images among the tokens where the model has both.

    Errors: TypeError for an argument that the model needs and that is not known here.
    """
    config, known = model.config, inspect.signature(model.forward).parameters
    random = torch.Generator().manual_seed(1)

    def embeddings(of: int = 1) -> torch.Tensor:
        return torch.randn(BATCH, LENGTH, of * config.hidden_size, generator=random)

    given: dict[str, Any] = {}
    if "input_ids" in known and config.model_type not in TAKE_EMBEDDINGS:
        tokens = torch.randint(3, 120, (BATCH, LENGTH), generator=random)
        given["input_ids"] = tokens
        images = _images(model, random) if hasattr(config, "vision_config") else None
        if images is not None:
            of_an_image = images.pop("tokens")
            tokens[:, 1 : 1 + of_an_image] = config.image_token_id
            given |= images
        if "input_values" in known:  # sound, as much as becomes a token
            samples = config.audio_config.samples_per_token
            tokens[:, -1] = config.audio_token_id
            given["input_values"] = torch.randn(BATCH, samples, generator=random)
        if "decoder_input_ids" in known:
            given["decoder_input_ids"] = tokens
        if "labels" in known:
            given["labels"] = tokens
    elif "inputs_embeds" in known:
        given["inputs_embeds"] = embeddings()
    elif "noise_embeds" in known:
        given["noise_embeds"] = embeddings()
        given["context_hidden_states"] = embeddings(len(config.target_layer_ids))
    else:
        given |= _images(model, random) or {}
        given.pop("tokens", None)
    if "num_patches" in known:  # of the embeddings, those that see each other
        given["num_patches"] = LENGTH // 2
    if config.model_type in TAKE_TIME:
        given[TAKE_TIME[config.model_type]] = embeddings()[0, :1]
    if "use_cache" in known:
        given["use_cache"] = False
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in known.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in kinds
        if needed and name not in given:
            raise TypeError(f"{type(model).__name__} takes {name}, which is not known here")
    return given


def _images(model: Any, random: torch.Generator) -> dict[str, Any] | None:
    """An image a sequence, as the model takes them, and how many tokens an image becomes."""
    known = inspect.signature(model.forward).parameters
    config = getattr(model.config, "vision_config", model.config)
    grids = [name for name in ("grid_thw", "image_grid_thw") if name in known]
    if grids:  # 4 x 4 patches; the first weight takes a patch as a row
        values = "pixel_values" if "pixel_values" in known else "hidden_states"
        weights = [m.weight for m in _vision_of(model).modules() if isinstance(m, _TAKE_PATCHES)]
        merged = getattr(config, "merge_size", None) or config.spatial_merge_size
        return {
            values: torch.randn(BATCH * 16, weights[0][0].numel(), generator=random),
            grids[0]: torch.tensor([[1, 4, 4]] * BATCH),
            "tokens": 16 // merged**2,
        }
    if "pixel_position_ids" in known:  # patches that are pooled by squares
        side = 2 * config.pooling_kernel_size
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(-1)
        return {
            "pixel_values": torch.rand(BATCH, side**2, 3 * config.patch_size**2, generator=random),
            "pixel_position_ids": places.repeat(BATCH, 1, 1),
        }
    if "pixel_values" in known and hasattr(config, "pixel_shuffle_ratio"):
        size = config.image_size
        patches = (size // config.patch_size) ** 2
        return {
            "pixel_values": torch.randn(BATCH, 3, size, size, generator=random),
            "tokens": int(patches * config.pixel_shuffle_ratio**2),
        }
    return None


_TAKE_PATCHES = (nn.Linear, nn.Conv2d, nn.Conv3d)


def _vision_of(model: Any) -> nn.Module:
    found: nn.Module = getattr(model, "vision_tower", model)
    return found


def loss_of(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The loss of a language model, else the mean squared distance of the first result, and of what
    is pooled from it, to drawn values (the length of a normalized result would be a constant)."""
    result = model(**inputs)
    loss = getattr(result, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    results = [result[0], getattr(result, "pooler_output", None)]
    distances = [_distance(value) for value in results if isinstance(value, torch.Tensor)]
    total: torch.Tensor = torch.stack(distances).sum()
    return total


def _distance(value: torch.Tensor) -> torch.Tensor:
    drawn = torch.randn(value.shape, generator=torch.Generator().manual_seed(2))
    return (value.float() - drawn.to(value.device)).square().mean()


def remark(kind: Any, model: nn.Module) -> str:
    """What a reader has to know of a model that was built for a configuration."""
    said = []
    if getattr(model, "config", None).__class__ is not kind:
        said.append(f"as a part of {type(model).__name__}")
    missing = READ_BUT_MISSING.get(kind.model_type)
    if missing:
        said.append(f"with the `{missing}` that transformers' own result lacks")
    return "; ".join(said)
