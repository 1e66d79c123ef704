# SPDX-License-Identifier: Apache-2.0
"""Calls with intermediate sums that exceed half precision, and results that do not."""

import torch
import torch.nn.functional as F

ROWS, COLUMNS = 64, 1152  # 73,728 elements, more than float16's greatest number


def ones():
    return torch.ones(ROWS, COLUMNS)


def cancelling():
    """The sums of the shards are far from zero, the sum of all elements is not."""
    x = torch.full((ROWS, COLUMNS), 30.0)
    x[ROWS // 2 :] = -30
    x[:, ::97] += 1
    return x


def positive():
    return torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) * 4 + 6


INPUTS = {"ones": ones, "cancelling": cancelling, "positive": positive}


def places(x, count):
    """Indices with few values, each of which is frequent."""
    return (torch.arange(count) % 3).to(x.device)


def targets(x, rows, classes):
    return (torch.arange(rows) % classes).to(x.device)


def image(x):
    return x.view(2, 4, 96, 96)


def growing(x):
    return x / 8 * (torch.arange(COLUMNS).to(x) / 1024)


def heads(x):
    return x.view(2, 4, 72, 128) * 0.125


def running(x):
    return torch.zeros(4).to(x), torch.ones(4).to(x)


def norm_with_running_statistics(x):
    mean, var = running(x)
    y = F.batch_norm(image(x), mean, var, training=True, momentum=0.5)
    return y, mean, var


REDUCTIONS = {
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: x.mean(1),
    "mean, cast": lambda x: x.float().mean(dtype=x.dtype),
    "nanmean": lambda x: x.nanmean(),
    "sum": lambda x: x.sum(),
    "sum of columns": lambda x: x.sum(0),
    "sum, cast": lambda x: x.float().sum(dtype=x.dtype),
    "nansum": lambda x: x.nansum(1),
    "var": lambda x: x.var(),
    "std of rows": lambda x: x.std(1),
    "var_mean": lambda x: torch.var_mean(x, 0),
    "norm": lambda x: x.norm(),
    "vector norm 1": lambda x: torch.linalg.vector_norm(x, 1, 1),
    "vector norm 3": lambda x: torch.linalg.vector_norm(x, 3),
    "Frobenius": lambda x: torch.linalg.matrix_norm(x),
    "dist": lambda x: torch.dist(x, x * 0.5),
    "logsumexp": lambda x: x.logsumexp(0),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(1),
    "trace": lambda x: x.trace(),
    "cov": lambda x: torch.cov(x[:8]),
    "prod": lambda x: (x.abs().clamp(max=1) * 1.001)[:2].prod(1),
    "foreach norm": lambda x: torch._foreach_norm([x, x * 0.5]),
    "expanded": lambda x: x[:1].expand(4096, COLUMNS),
    "broadcast": lambda x: x * x[:1],
}

LOSSES = {
    "mse": lambda x: F.mse_loss(x, -x),
    "l1": lambda x: F.l1_loss(x, -x),
    "huber": lambda x: F.huber_loss(x, -x),
    "smooth l1": lambda x: F.smooth_l1_loss(x, -x),
    "kl": lambda x: F.kl_div(x * 0.1, x * -0.1, log_target=True),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), (x > 7).to(x)),
    "bce of logits": lambda x: F.binary_cross_entropy_with_logits(
        x, (x > 7).to(x), pos_weight=x[0].detach().abs()
    ),
    "soft margin": lambda x: F.soft_margin_loss(x, -torch.ones_like(x)),
    "poisson": lambda x: F.poisson_nll_loss(x * 0.1, x),
    "gaussian": lambda x: F.gaussian_nll_loss(x, x * 0.5, x.abs() + 1),
    "hinge": lambda x: F.hinge_embedding_loss(x, torch.ones_like(x)),
    "margin ranking": lambda x: F.margin_ranking_loss(x, x * -2, -torch.ones_like(x), margin=9.0),
    "cosine": lambda x: F.cosine_embedding_loss(x / 8, growing(x), -torch.ones(ROWS).to(x)),
    "triplet": lambda x: F.triplet_margin_loss(x, x * 0.5, x * -0.5),
    "cross entropy": lambda x: F.cross_entropy(x.t(), targets(x, COLUMNS, ROWS)),
    "cross entropy, weights": lambda x: F.cross_entropy(
        x.t(), targets(x, COLUMNS, ROWS), weight=x[:, 0].detach().abs()
    ),
    "cross entropy, smoothed": lambda x: F.cross_entropy(
        x.t(), targets(x, COLUMNS, ROWS), label_smoothing=0.1
    ),
    "nll": lambda x: F.nll_loss(x.t() * 3, targets(x, COLUMNS, ROWS)),
}

LAYERS = {
    "layer norm": lambda x: F.layer_norm(x, (COLUMNS,)),
    "rms norm": lambda x: F.rms_norm(x, (COLUMNS,)),
    "group norm": lambda x: F.group_norm(image(x), 2),
    "batch norm": norm_with_running_statistics,
    "weight norm": lambda x: torch._weight_norm(x, x[:, :1] + 2, 0),
    "normalize": lambda x: F.normalize(x, dim=1),
    "avg pool": lambda x: F.avg_pool2d(image(x), 48),
    "adaptive avg pool": lambda x: F.adaptive_avg_pool2d(x.view(1, 1, 256, 288), 1),
    "max pool": lambda x: F.max_pool2d(image(x), 9, stride=1, padding=4),
    "lp pool": lambda x: F.lp_pool2d(x.view(1, 1, 256, 288), 2, 32),
    "bilinear": lambda x: F.interpolate(image(x)[:, :, :24, :24], size=(192, 192), mode="bilinear"),
    "nearest": lambda x: F.interpolate(image(x)[:, :, :8, :8], size=(256, 256), mode="nearest"),
    "conv": lambda x: F.conv2d(image(x) * 0.125, torch.ones(4, 4, 3, 3).to(x)),
    "embedding": lambda x: F.embedding(places(x, 9000), x[:, :16]),
    "embedding bag": lambda x: F.embedding_bag(places(x, 9000).view(3, 3000), x[:, :16]),
    "attention": lambda x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x)),
    "glu": lambda x: F.glu(x, 0),
}

PRODUCTS = {
    "dot": lambda x: torch.dot(x.flatten(), x.flatten() / 1024),
    "mv": lambda x: x @ (x[0] / 64),
    "mm": lambda x: x @ x.t() / 1024,
    "mm of columns": lambda x: x.t()[:64] @ (x / 64),
    "addmm": lambda x: torch.addmm(x[:, :64], x, x.t() / 64, alpha=0.5),
    "bmm": lambda x: torch.bmm(x.view(2, 32, -1), x.view(2, 32, -1).transpose(1, 2) / 64),
    "baddbmm": lambda x: torch.baddbmm(
        x.view(2, 32, -1)[:, :, :32], x.view(2, 32, -1), x.view(2, 32, -1).transpose(1, 2) / 64
    ),
    "linear": lambda x: F.linear(x, x[:8] / 64, x[0, :8]),
    "einsum": lambda x: torch.einsum("ab,ab->a", x, x / 64),
    "tensordot": lambda x: torch.tensordot(x, x / 1024, 2),
}

CALLS = REDUCTIONS | LOSSES | LAYERS | PRODUCTS
