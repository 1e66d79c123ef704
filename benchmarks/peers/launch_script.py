# SPDX-License-Identifier: Apache-2.0
"""Runs a script of others as it is, on `spmd` or on the CPU, with the same random numbers.

    python launch_script.py spmd|cpu script.py [arguments]

`torch.accelerator` says the device. Random numbers are drawn on the CPU and moved, since devices
have different generators; attention is without dropout, whose numbers its kernel draws. What
scripts would download is there in files, but for two things that are replaced: weights of
torchvision's VGG, and `requests.get`, which returns the archive of ./cora. Pillow gets the name
ANTIALIAS back, which newer versions do not have.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import random
import runpy
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import torch_spmd  # noqa: F401


def main() -> None:
    device, script = sys.argv[1], Path(sys.argv[2])
    sys.argv = [str(script), *sys.argv[3:]]
    sys.path[0] = str(script.parent)
    if device == "cpu":
        torch.accelerator.current_accelerator = lambda *_, **__: torch.device("cpu")
    torch.manual_seed(0)  # some scripts do not
    random.seed(0)
    _draw_on_the_cpu()
    _replace_downloads(any("torchvision" in p.read_text() for p in script.parent.glob("*.py")))
    runpy.run_path(str(script), run_name="__main__")


def _draw_on_the_cpu() -> None:
    def moved(draw: Any) -> Any:
        @functools.wraps(draw)
        def function(*shape: Any, device: Any = None, **options: Any) -> Tensor:
            return draw(*shape, **options).to(device or torch.get_default_device())

        return function

    for name in ("rand", "randn", "randint", "randperm"):
        setattr(torch, name, moved(getattr(torch, name)))

    def in_place(name: str) -> Any:
        draw = getattr(Tensor, name)

        @functools.wraps(draw)
        def function(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
            if self.device.type == "cpu":
                return draw(self, *arguments, **options)
            drawn = draw(torch.empty(self.shape, dtype=self.dtype), *arguments, **options)
            return self.copy_(drawn)

        return function

    for name in ("normal_", "uniform_"):
        setattr(Tensor, name, in_place(name))
    torch.randn_like = lambda t, **_: torch.randn(t.shape, dtype=t.dtype).to(t.device)

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        return x * (torch.rand(x.shape) >= p).to(x.device) / (1 - p)

    def by_channel(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0:
            return x
        kept = torch.rand(x.shape[:2]) >= p
        return x * kept.reshape(*kept.shape, *[1] * (x.dim() - 2)).to(x.device) / (1 - p)

    attend = torch.nn.functional.scaled_dot_product_attention

    @functools.wraps(attend)
    def without_dropout(*arguments: Any, dropout_p: float = 0.0, **options: Any) -> Tensor:
        return attend(*arguments[:4], dropout_p=0.0, **options)

    torch.nn.functional.scaled_dot_product_attention = without_dropout
    torch.nn.functional.dropout = dropout
    torch.nn.functional.dropout2d = by_channel


def _replace_downloads(uses_torchvision: bool) -> None:
    if uses_torchvision and importlib.util.find_spec("torchvision") is not None:
        models = _torchvision().models
        vgg16 = models.vgg16
        models.vgg16 = lambda weights=None, **options: vgg16(**options)

    if importlib.util.find_spec("PIL") is not None:
        image = importlib.import_module("PIL.Image")
        image.ANTIALIAS = image.Resampling.LANCZOS

    def get(url: str, **options: Any) -> Any:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            tar.add("cora")
        packed.seek(0)
        return _Response(raw=packed)

    try:
        import requests
    except ImportError:
        return
    requests.get = get


def _torchvision() -> Any:
    """A torchvision whose library of ops is for another build of PyTorch does not import, since an
    op is missing; scripts use none of them."""
    import torch.library

    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _OPS.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _OPS[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module("torchvision")


_OPS: list[Any] = []


class _Response(SimpleNamespace):
    def __enter__(self) -> _Response:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    main()
