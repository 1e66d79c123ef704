# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.hf_plans`: every configuration of `transformers` that has a plan for tensor
or expert parallelism, in tiny size, sharded by `spmd.hf.plan` on 2 x 4 virtual devices, beside
plain PyTorch.

A row says whether the loss and the gradients are those of the unsharded model, how many parameters
are sharded over the model axis, which styles are not known, or why the model could not be built at
a tiny size. The loss is that of a language model where there is one, else the mean square of what
the model of the configuration returns for tokens. `--only llama,mixtral` chooses by type;
`--part I/N` runs the I-th of N parts; `--markdown FILE` writes the table, `--page FILE` puts it in
a page that has one. The exit status is 1 if a model that was built has another loss.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import inspect
import io
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torch_spmd as spmd

# Sizes by the names that configurations give them. Heads divide by the axis of 4 devices where a
# model lets them; a name that a configuration does not have is left out.
SIZES = {
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
    "laurel_rank": 8,
    "hidden_size": 64,
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
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "sliding_window": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOST_PARAMETERS = 30_000_000
PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "mlp_only_layers")


@dataclass
class Row:
    model: str
    state: str  # equal, differs, not built, fails
    over_model: int
    parameters: int
    unsupported: str
    note: str


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
    """The language model of a configuration, else its plain model: the class that transformers maps
    it to, else the one in its module that is made of it.

    Errors: LookupError if there is none.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING, PreTrainedModel

    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING):
        if kind in mapping:
            found = mapping[kind]
            return found[0] if isinstance(found, tuple) else found
    module = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, PreTrainedModel):
            is_base = value.__name__.lower().endswith("pretrainedmodel")
            if getattr(value, "config_class", None) is kind and not is_base:
                return value
    raise LookupError(f"{module.__name__} has no model of {kind.__name__}")


def tiny(kind: Any) -> Any:
    """The configuration with the sizes above, and lists per layer cut to two layers."""
    default = kind()
    known = {name: value for name, value in SIZES.items() if _is_size(default, name)}
    if "num_key_value_heads" in known and default.num_key_value_heads == getattr(
        default, "num_attention_heads", None
    ):
        known["num_key_value_heads"] = SIZES["num_attention_heads"]
    per_layer = {}
    for name in PER_LAYER:
        fixed = getattr(type(default), name, None)
        value = None if isinstance(fixed, property) else getattr(default, name, None)
        if isinstance(value, list) and len(value) > 2:
            per_layer[name] = [value[0], value[-1]]
    config = _allowed(kind, known, per_layer)
    _cut_sections(config)
    return config


def _allowed(kind: Any, known: dict[str, Any], per_layer: dict[str, Any]) -> Any:
    """The configuration; without the lists or without one of the sizes, if it refuses all of them.

    Errors: those of the configuration.
    """
    without = ({k: v for k, v in known.items() if k != left} for left in known)
    for sizes in (known | per_layer, known, *without):
        with contextlib.suppress(Exception):
            return kind(**sizes)
    return kind(**known)


def _is_size(config: Any, name: str) -> bool:
    fixed = getattr(type(config), name, None)
    if isinstance(fixed, property) and fixed.fset is None:
        return False
    try:
        value = getattr(config, name)
    except AttributeError as error:  # there is none, or each layer has one
        return "per-layer" in str(error)
    except Exception:
        return True
    return value is None or isinstance(value, int)


def _cut_sections(config: Any) -> None:
    """Rotary embeddings have a base and, for time, height and width, sections of half of a head."""
    module = sys.modules.get(type(config).__module__.replace("configuration_", "modeling_"))
    for name in ("rope_parameters", "rope_scaling"):
        given = getattr(config, name, None)
        if not isinstance(given, dict) or "rope_type" not in given:
            continue
        if given.get("rope_theta") is None:
            given["rope_theta"] = 10_000.0
        if module is not None and "mrope_section" in inspect.getsource(module):
            rotated = int(SIZES["head_dim"] // 2 * given.get("partial_rotary_factor", 1))
            third = rotated // 3
            given["mrope_section"] = [rotated - 2 * third, third, third]


def build(kind: Any) -> nn.Module:
    made_of = model_class(kind)
    config = tiny(kind)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        count = sum(p.numel() for p in made_of(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count} parameters: its sizes have other names")
    torch.manual_seed(0)
    model: nn.Module = made_of(config).eval()
    return model.float()


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of a language model, else the mean square of the first result."""
    known = inspect.signature(model.forward).parameters
    if "input_ids" not in known:
        raise TypeError(f"{type(model).__name__} takes no tokens, but {', '.join(list(known)[:3])}")
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in known else {}
    if "labels" in known:
        result = model(input_ids=tokens, labels=tokens, **options)
        if isinstance(getattr(result, "loss", None), torch.Tensor):
            return result.loss
    else:
        result = model(input_ids=tokens, **options)
    first: torch.Tensor = result[0]
    return first.float().square().mean()


def outcome(model: nn.Module, tokens: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    loss = loss_of(model, tokens)
    loss.backward()
    grads = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), grads


def compare(name: str, kind: Any, mesh: spmd.Mesh) -> Row:
    tokens = torch.randint(3, 128, (4, 16), generator=torch.Generator().manual_seed(1))
    try:
        reference = build(kind)
        ours = copy.deepcopy(reference)
        loss, grads = outcome(reference, tokens)
    except Exception as error:
        return Row(name, "not built", 0, 0, "", _said(error))
    count = sum(1 for _ in ours.parameters())
    try:
        ours = ours.to("spmd")
        has = {"tp": "model" if getattr(ours, "_tp_plan", None) else None}
        has["ep"] = "model" if getattr(ours, "_ep_plan", None) else None
        report = spmd.hf.plan(ours, mesh, **has)
        our_loss, our_grads = outcome(ours, tokens.to("spmd"))
    except Exception as error:
        return Row(name, "fails", 0, count, "", _said(error))
    wrong = [n for n, grad in grads.items() if not _close(our_grads.get(n), grad)]
    over = sum("model" in repr(spec) for spec in report.sharded.values())
    unknown = ", ".join(sorted(set(report.unsupported.values())))
    equal = abs(our_loss - loss) <= 1e-4 * max(1, abs(loss)) and not wrong
    note = (
        "" if equal else f"loss {our_loss:.6f} for {loss:.6f}; {len(wrong)} gradients, {wrong[:1]}"
    )
    return Row(name, "equal" if equal else "differs", over, count, unknown, note)


def _close(ours: torch.Tensor | None, expected: torch.Tensor) -> bool:
    if ours is None:
        return bool((expected == 0).all())
    scale = expected.abs().max().item()
    return torch.allclose(ours, expected, rtol=1e-3, atol=1e-4 * max(scale, 1e-3))


def _said(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    # Files of packages without the folder in which this machine has them.
    text = re.sub(r"/\S*/site-packages/", "", text)
    return f"{type(error).__name__}: {text}"[:160]


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"over {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def markdown(rows: list[Row]) -> str:
    states = {state: sum(row.state == state for row in rows) for state in STATES}
    lines = [", ".join(f"{count} {state}" for state, count in states.items()), ""]
    lines += [
        "| model | state | over `model` | parameters | unknown styles | note |",
        "|" + "---|" * 6,
    ]
    for row in rows:
        cells = (row.model, row.state, row.over_model, row.parameters, row.unsupported, row.note)
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def replace_table(page: Path, table: str) -> None:
    """Writes the table in the place of the one in the page, and which transformers it is of."""
    import transformers

    above = page.read_text().split("<!-- table -->")[0]
    above = re.sub(r"`transformers` [\d.]+", f"`transformers` {transformers.__version__}", above)
    page.write_text(f"{above}<!-- table -->\n{table}")


STATES = ("equal", "differs", "fails", "not built")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="model types, separated by commas")
    parser.add_argument("--part", default="1/1", help="which part, as in 2/4")
    parser.add_argument("--markdown", help="a file for the table")
    parser.add_argument("--page", help="docs/hf-plans.md")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    only = set(options.only.split(",")) if options.only else None
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    rows = []
    for number, (name, kind) in enumerate(configs()):
        if (only is not None and name not in only) or number % parts != part - 1:
            continue
        with limited(120), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            rows.append(compare(name, kind, mesh))
        row = rows[-1]
        print(f"{row.model:28} {row.state:10} {row.over_model:4} of {row.parameters:4}  {row.note}")
        sys.stdout.flush()
    text = markdown(rows)
    print(text.split("\n", 1)[0])
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.page:
        replace_table(Path(options.page), text)
    return int(any(row.state in ("differs", "fails") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
