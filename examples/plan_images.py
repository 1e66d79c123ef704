# SPDX-License-Identifier: Apache-2.0
"""Plans image models whose images are cut: ResNet-50 with 512 images a chip, and a U-Net at 256³.

    python examples/plan_images.py                          # both; about a minute
    python examples/plan_images.py --images 8 --voxels 32   # as a test runs it

ResNet-50 on the four chips of v4-8: batch against space, in float32 and in bfloat16. The U-Net on
eight chips of v5e: a volume on one chip, over its batch, and cut along all three axes of space.
Nothing is computed. What the figures mean is in docs/planning.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch_spmd as spmd
from benchmarks.workloads.common import Annotate
from benchmarks.workloads.resnet import ResNet50
from benchmarks.workloads.unet3d import INPUTS, UNet

CHIPS = 4


def unmarked() -> Annotate:
    """No marks on activations: the batch's sharding decides."""
    mesh = spmd.get_global_mesh()
    assert mesh is not None  # spmd.plan sets it
    return Annotate(mesh, False)


def resnet(images: int, mesh: dict[str, int], spec: tuple[Any, ...], autocast: str | None) -> Any:
    """A step with `images` images a chip. `spec` is that of the images."""
    batch = (
        torch.empty(CHIPS * images, 3, 224, 224, device="meta"),
        torch.zeros(CHIPS * images, dtype=torch.int64, device="meta"),
    )
    return spmd.plan(
        lambda: ResNet50(unmarked()), batch, on="v4-8", mesh=mesh, specs={}, batch_spec=spec,
        optimizer="momentum", autocast=autocast,
    )  # fmt: skip


def unet(batch: int, voxels: int, on: str, mesh: dict[str, int], spec: tuple[Any, ...]) -> Any:
    """A step on `batch` volumes."""
    size = (voxels, voxels, voxels)
    volumes = torch.empty(batch, INPUTS, *size, device="meta")
    labels = torch.zeros(batch, 1, *size, dtype=torch.int64, device="meta")

    def loss(model: nn.Module, volumes: Tensor, labels: Tensor) -> Tensor:
        made: Tensor = model(volumes, labels.squeeze(1))
        return made

    return spmd.plan(
        lambda: UNet(unmarked()), (volumes, labels), on=on, mesh=mesh, specs={}, batch_spec=spec,
        loss=loss, optimizer="sgd", autocast="bf16",
    )  # fmt: skip


def report(name: str, table: Any, out: Path | None) -> None:
    best = table.best
    row = best.row
    print(
        f"{name:34} {row.hbm / 2**30:6.1f} of {row.memory / 2**30:5.1f} GiB "
        f"{'fits' if row.fits else 'does not fit':12} {1e3 * row.seconds:9.1f} ms "
        f"{sum(row.wire.values()) / 2**20:9.1f} MiB sent",
        flush=True,
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        table.plot(str(out / f"{name.replace(' ', '-').replace(',', '')}.png"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=512, help="images a chip (512)")
    parser.add_argument("--voxels", type=int, default=256, help="along each axis (256)")
    parser.add_argument("--out", type=Path, help="a folder for pictures")
    args = parser.parse_args()
    images: tuple[tuple[str, dict[str, int], tuple[Any, ...]], ...] = (
        ("batch", {"data": CHIPS}, ("data",)),
        ("height", {"rows": CHIPS}, (None, None, "rows")),
    )
    for autocast in (None, "bf16"):
        kind = "float32" if autocast is None else "bfloat16"
        for name, mesh, spec in images:
            table = resnet(args.images, mesh, spec, autocast)
            report(f"ResNet-50 over {name} {kind}", table, args.out)
    space = {"x": 2, "y": 2, "z": 2}
    volumes: tuple[tuple[str, int, str, dict[str, int], tuple[Any, ...]], ...] = (
        ("one chip, one volume", 1, "v5e-1", {"data": 1}, ("data",)),
        ("eight chips, batch", 8, "v5e-8", {"data": 8}, ("data",)),
        ("eight chips, space", 1, "v5e-8", space, (None, None, "x", "y", "z")),
        ("eight chips, space, 8 volumes", 8, "v5e-8", space, (None, None, "x", "y", "z")),
    )
    for name, batch, on, sizes, spec in volumes:
        table = unet(batch, args.voxels, on, sizes, spec)
        report(f"U-Net {name}", table, args.out)


if __name__ == "__main__":
    main()
