# SPDX-License-Identifier: Apache-2.0
"""`splash_attention`, which torchprime's models call. No kernel is called: what it computes is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from torch import Tensor

from torch_spmd.torch_xla.distributed.spmd.mesh import Mesh
from torch_spmd.torch_xla.experimental._attention import attention, sharded


@dataclasses.dataclass(eq=True, frozen=True)
class SplashAttentionConfig:
    """The sharding (`mesh` is `str(mesh)`) and the window. Block sizes and layouts have no effect:
    the compiler tiles by itself."""

    sa_block_q: int = 2048
    sa_block_kv: int = 2048
    sa_block_kv_compute: int = 2048
    sa_block_q_dkv: int = 2048
    sa_block_kv_dkv: int = 2048
    sa_block_kv_dkv_compute: int = 2048
    sa_block_q_dq: int = 2048
    sa_block_kv_dq: int = 2048
    sa_use_fused_bwd_kernel: bool = True
    sa_q_layout: str = "HEAD_DIM_MINOR"
    sa_k_layout: str = "HEAD_DIM_MINOR"
    sa_v_layout: str = "HEAD_DIM_MINOR"
    mesh: str | None = None
    qkv_partition_spec: tuple[Any, ...] = (("data", "fsdp"), None, None, None)
    segment_ids_partition_spec: tuple[Any, ...] = (("data", "fsdp"), None)
    attentiontype_local_sliding: bool = False
    slide_window_size: int | None = None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, data: str) -> SplashAttentionConfig:
        return cls(**{name: _with_tuples(value) for name, value in json.loads(data).items()})


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def splash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    decoder_segment_ids: Tensor | None = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """`softmax(q @ k.T) @ v`, of tensors (batch, heads, length, width); scale q before.

    Args:
        config: `SplashAttentionConfig.to_json()`.
        decoder_segment_ids: (batch, length); tokens of other segments are masked.
        attn_logits_soft_cap: c, for logits `c * tanh(logits / c)`.

    Errors: ValueError for a sliding window without its size, or without a mesh.
    """
    options = SplashAttentionConfig.from_json(config)
    window = options.slide_window_size if options.attentiontype_local_sliding else None
    if options.attentiontype_local_sliding and window is None:
        raise ValueError("slide_window_size must be set if attentiontype_local_sliding is")
    mesh = None if options.mesh is None else Mesh.from_str(options.mesh)
    q, k, v = sharded((q, k, v), options.qkv_partition_spec, mesh)
    ids = decoder_segment_ids
    segments = None if ids is None or ids.dim() == 0 else (ids, ids)
    result = attention(
        q, k, v, causal=causal, segments=segments, window=window, soft_cap=attn_logits_soft_cap
    )
    return sharded((result,), options.qkv_partition_spec, mesh)[0]
