# SPDX-License-Identifier: Apache-2.0
"""Trains StyleGAN2 on scikit-learn's handwritten digits, with the rows of images sharded.

    python examples/train_stylegan2.py                                  # 64², 4 virtual devices
    python examples/train_stylegan2.py --unsharded --device cpu         # plain PyTorch
    python examples/train_stylegan2.py --plan --mesh rows=1             # 1024² on one v2 core
    python examples/train_stylegan2.py --plan --mesh rows=8             # and on eight

The model (common/stylegan2.py) is unchanged: what is marked is what comes from outside, the noise
and the real images. A convolution then fetches a row from either neighbour, as do its gradient and
the gradient of that for the penalties R1 and path length. docs/stylegan2.md says more.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from common.gpt import parameter_count
from common.options import mesh_axes
from common.report import Progress, heading, save_curve
from common.stylegan2 import Config, Discriminator, Generator, discriminator_loss, path_length
from torch import Tensor

if TYPE_CHECKING:
    import torch_spmd as spmd

R1, R1_EVERY = 10.0, 16
PATH, PATH_EVERY = 2.0, 8


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where and how")
    where.add_argument("--mesh", type=mesh_axes, default={"rows": 4}, help="one axis")
    where.add_argument("--backend", default="cpu", help="cpu, cuda, mock_tpu:v4-16, …")
    where.add_argument("--plan", action="store_true", help="1024² on a v2 slice, shapes only")
    where.add_argument("--unsharded", action="store_true", help="no mesh, no marks")
    where.add_argument("--device", choices=["spmd", "cpu"], default="spmd")
    job = parser.add_argument_group("the job")
    job.add_argument("--size", type=int, help="pixels of a side: 64, or 1024 with --plan")
    job.add_argument("--steps", type=int, default=200)
    job.add_argument("--batch", type=int, default=4)
    job.add_argument("--lr", type=float, default=2e-3)
    job.add_argument("--seed", type=int, default=0)
    job.add_argument("--out", type=Path, default=Path("runs/stylegan2"))
    args = parser.parse_args()
    if len(args.mesh) != 1:
        parser.error("--mesh needs one axis, for the rows: rows=8")
    if args.device == "cpu" and (not args.unsharded or args.plan):
        parser.error("--device cpu is plain PyTorch, which has no shardings: add --unsharded")
    args.size = args.size or (1024 if args.plan else 64)
    args.backend = "mock_tpu:v2-8:plan" if args.plan else args.backend
    return args


class Data:
    """Random batches of digits as images [batch, 3, size, size], and random noise."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        self.args, self.config = args, config
        self.mesh: spmd.Mesh | None = None
        if args.device == "spmd" and not args.unsharded:
            import torch_spmd as spmd

            self.mesh = spmd.make_mesh(tuple(args.mesh.values()), tuple(args.mesh))
        self.generator = torch.Generator().manual_seed(args.seed)
        if not args.plan:
            from sklearn import datasets

            self.images = torch.tensor(datasets.load_digits().images, dtype=torch.float32) / 8 - 1

    def upload(self, maps: Tensor) -> Tensor:
        """[batch, channels, rows, columns]; few rows are replicated."""
        maps = maps.to(self.args.device)
        if self.mesh is not None:
            import torch_spmd as spmd

            rows = self.mesh.axis_names[0] if maps.shape[2] >= 2 * self.mesh.size else None
            spmd.mark_sharding(maps, self.mesh, (None, None, rows, None))
        return maps

    def random(self, *shape: int) -> Tensor:
        return torch.randn(self.args.batch, *shape, generator=self.generator)

    def real(self) -> Tensor:
        size = self.config.size
        if self.args.plan:
            return self.upload(torch.zeros(self.args.batch, 3, size, size))
        index = torch.randint(len(self.images), (self.args.batch,), generator=self.generator)
        digits = self.images[index][:, None].expand(-1, 3, -1, -1)
        return self.upload(F.interpolate(digits, size=(size, size), mode="bilinear"))

    def styles(self) -> Tensor:
        return self.random(self.config.style).to(self.args.device)

    def noise(self) -> list[list[Tensor]]:
        return [
            [self.upload(self.random(1, s, s)) for _ in range(1 if s == 4 else 2)]
            for s in self.config.sizes()
        ]


class Trainer:
    def __init__(self, config: Config, data: Data, args: argparse.Namespace) -> None:
        self.data = data
        self.model = Generator(config).to(args.device)
        self.judge = Discriminator(config).to(args.device)
        # Lazy penalties: their gradients come every few steps, which Adam's rates make up for.
        for name, module, every in (("g", self.model, PATH_EVERY), ("d", self.judge, R1_EVERY)):
            share = every / (every + 1)
            rates = {"lr": args.lr * share, "betas": (0.0, 0.99**share)}
            setattr(self, name, torch.optim.Adam(module.parameters(), **rates))
        self.g: torch.optim.Optimizer
        self.d: torch.optim.Optimizer
        self.mean_length = torch.zeros((), device=args.device)

    def fake(self) -> tuple[Tensor, Tensor]:
        style = self.model.mapping(self.data.styles())
        return self.model(style, self.data.noise()), style

    def discriminator_step(self, step: int) -> Tensor:
        with torch.no_grad():
            fake, _ = self.fake()
        r1 = R1 * R1_EVERY if step % R1_EVERY == 0 else 0.0
        loss = discriminator_loss(self.judge, self.data.real(), fake, r1)
        loss.backward()
        self.d.step()
        self.d.zero_grad()
        return loss.detach()

    def generator_step(self, step: int) -> Tensor:
        self.judge.requires_grad_(False)
        image, style = self.fake()
        loss = F.softplus(-self.judge(image)).mean()
        if step % PATH_EVERY == 0:
            size = self.data.config.size
            length = path_length(image, style, self.data.upload(self.data.random(3, size, size)))
            self.mean_length = self.mean_length.lerp(length.mean().detach(), 0.01)
            loss = loss + PATH * PATH_EVERY * (length - self.mean_length).square().mean()
        loss.backward()
        self.g.step()
        self.g.zero_grad()
        self.judge.requires_grad_(True)
        return loss.detach()


def planned(trainer: Trainer, args: argparse.Namespace) -> None:
    """Both steps with their penalties, which need most memory."""
    import torch_spmd as spmd

    for what in ("discriminator", "generator"):
        heading(f"Memory per device: {what}, {args.size}², on {args.mesh}")
        try:
            getattr(trainer, f"{what}_step")(0)
            memory = spmd.debug.memory()
        except spmd.OutOfMemoryError as error:
            print("refused:", str(error).splitlines()[0])
            raise SystemExit(1) from None
        print(f"runs: peak {memory.peak_bytes / 2**30:.2f} GiB\n{memory}")


def train(trainer: Trainer, args: argparse.Namespace) -> list[float]:
    losses: list[float] = []
    for step in Progress(args.steps, units_per_step=args.batch, unit="img", title="stylegan2"):
        judged, made = trainer.discriminator_step(step), trainer.generator_step(step)
        losses.append(float(judged) + float(made))
    return losses


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    config = Config(args.size)
    if args.size < 256:
        config = Config(args.size, style=64, most_channels=64, channels_at_one=1024, mapping=2)
    if args.device == "spmd":
        import torch_spmd as spmd

        spmd.config.set_backend(args.backend)
    trainer = Trainer(config, Data(args, config), args)
    count = parameter_count(trainer.model) + parameter_count(trainer.judge)
    print(f"StyleGAN2 at {args.size}² with {count / 1e6:.1f} M parameters on {args.device}")
    if args.plan:
        return planned(trainer, args)
    losses = train(trainer, args)
    if args.device == "spmd":
        heading("Collectives of one step of the generator")
        print(spmd.debug.collectives())
        heading("Memory per device in it")
        print(spmd.debug.memory())
    with torch.no_grad():
        image, _ = trainer.fake()
    args.out.mkdir(parents=True, exist_ok=True)
    save_curve(args.out / "loss.png", losses, {}, title=f"StyleGAN2 at {args.size}²")
    import matplotlib.image

    rows = image.cpu().clamp(-1, 1).add(1).div(2).permute(0, 2, 3, 1)
    matplotlib.image.imsave(args.out / "images.png", torch.cat(list(rows), 1).numpy())
    heading("Result")
    print(f"losses {losses[0]:.4f} -> {losses[-1]:.4f}; pictures in {args.out}")


if __name__ == "__main__":
    main()
