# SPDX-License-Identifier: Apache-2.0
"""Trains a small ResNet on scikit-learn's handwritten digits, sharded over batch and image height.

    python examples/train_cnn.py                              # 2 × 4 virtual CPU devices
    python examples/train_cnn.py --mesh batch=1,rows=8        # the height alone, over 8 devices
    python examples/train_cnn.py --unsharded --device cpu     # plain PyTorch, for comparison

Each device holds some images of the batch and some rows of each; a 3×3 convolution fetches one row
from either neighbour, and batch norm's statistics are those of the whole batch.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from common.gpt import parameter_count
from common.options import mesh_axes
from common.report import Progress, heading, save_curve, show_in_process_0
from common.resnet import ResNet
from torch import Tensor

if TYPE_CHECKING:
    import torch_spmd as spmd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where and how")
    where.add_argument(
        "--mesh",
        type=mesh_axes,
        default={"batch": 2, "rows": 4},
        help="two axes: the first shards the batch, the second the image height",
    )
    where.add_argument("--backend", default="cpu", help="cpu, cuda, mock_tpu:v4-16, …")
    where.add_argument("--unsharded", action="store_true", help="no mesh, no marks")
    where.add_argument(
        "--device", choices=["spmd", "cpu"], default="spmd", help="cpu: without torch_spmd"
    )
    job = parser.add_argument_group("the job")
    job.add_argument("--epochs", type=int, default=4)
    job.add_argument("--batch", type=int, default=64)
    job.add_argument("--size", type=int, default=32, help="pixels per side after up-scaling")
    job.add_argument("--lr", type=float, default=0.1)
    job.add_argument("--seed", type=int, default=0)
    job.add_argument("--out", type=Path, default=Path("runs/cnn"))
    arguments = parser.parse_args()
    if len(arguments.mesh) != 2:
        parser.error("--mesh needs two axes, for the batch and for the height: batch=2,rows=4")
    if arguments.device == "cpu" and not arguments.unsharded:
        parser.error("--device cpu is plain PyTorch, which has no shardings: add --unsharded")
    return arguments


@dataclass(frozen=True)
class Digits:
    """Images float [n, 1, size, size] of mean 0 and deviation 1, labels int64 [n]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def load_digits(size: int) -> tuple[Digits, Digits]:
    """The 1,797 bundled digits, up-scaled from 8×8, as 1,497 for training and 300 for the test."""
    from sklearn import datasets

    bundle = datasets.load_digits()
    images = torch.tensor(bundle.images, dtype=torch.float32)[:, None]
    images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(bundle.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:300], order[300:]
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


class Placement:
    """Puts batches on the device, sharded over the mesh unless the run is unsharded."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device = args.device
        self.mesh: spmd.Mesh | None = None
        if args.device == "spmd":
            import torch_spmd as spmd

            spmd.config.set_backend(args.backend)
            show_in_process_0(spmd.processes.process_index())
            if not args.unsharded:
                self.mesh = spmd.make_mesh(tuple(args.mesh.values()), tuple(args.mesh))

    def upload(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = images.to(self.device), labels.to(self.device)
        if self.mesh is not None:
            import torch_spmd as spmd

            batch, rows = self.mesh.axis_names
            spmd.mark_sharding(images, self.mesh, (batch, None, rows, None))
            spmd.mark_sharding(labels, self.mesh, (batch,))
        return images, labels

    def __str__(self) -> str:
        if self.mesh is None:
            return f"{self.device}, unsharded"
        return f"{self.device}, mesh {self.mesh}"


@torch.no_grad()
def accuracy(model: ResNet, data: Digits, place: Placement, batch: int) -> float:
    model.eval()
    right = 0
    for start in range(0, len(data), batch):
        images, labels = place.upload(
            data.images[start : start + batch], data.labels[start : start + batch]
        )
        right += int((model(images).argmax(1) == labels).sum().item())
    model.train()
    return right / len(data)


def train(model: ResNet, data: Digits, place: Placement, args: argparse.Namespace) -> list[float]:
    """Runs the epochs over whole batches; returns the loss of each step."""
    per_epoch = len(data) // args.batch
    steps = args.epochs * per_epoch
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps)
    generator = torch.Generator().manual_seed(args.seed)
    losses: list[float] = []
    order = torch.empty(0, dtype=torch.long)
    for step in (progress := Progress(steps, units_per_step=args.batch, unit="img", title="cnn")):
        if step % per_epoch == 0:
            order = torch.randperm(len(data), generator=generator)
        index = order[step % per_epoch * args.batch :][: args.batch]
        images, labels = place.upload(data.images[index], data.labels[index])
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        progress.show(loss=losses[-1])
    return losses


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    train_data, test_data = load_digits(args.size)
    place = Placement(args)
    model = ResNet().to(place.device)
    print(
        f"ResNet with {parameter_count(model) / 1e3:.0f} k parameters on {place}\n"
        f"{len(train_data)} training and {len(test_data)} test images of {args.size}×{args.size}"
    )
    started = time.perf_counter()
    losses = train(model, train_data, place, args)
    seconds = time.perf_counter() - started

    if args.device == "spmd":
        import torch_spmd as spmd

        heading("Collectives of one training step")
        print(spmd.debug.collectives())
        heading("Memory per device in one training step")
        print(spmd.debug.memory())
        images, _ = place.upload(test_data.images[: args.batch], test_data.labels[: args.batch])
        heading("Sharding of a batch of images")
        spmd.debug.visualize_sharding(images)

    reached = accuracy(model, test_data, place, args.batch)
    curve = args.out / "loss.png"
    save_curve(curve, losses, {}, title=f"ResNet, {place}")
    heading("Result")
    print(
        f"{len(losses)} steps in {seconds:.0f} s; training loss {losses[0]:.3f} -> "
        f"{losses[-1]:.3f}; test accuracy {reached:.1%}\nloss curve: {curve}"
    )


if __name__ == "__main__":
    main()
