# SPDX-License-Identifier: Apache-2.0
"""Direct calls of ops that no sample of `op_db` calls by their own names.

Most tensors have 6 rows, which divide evenly over two and over three devices.
"""

import torch
from op_call import call

_generator = torch.Generator().manual_seed(0)


def normal(*size):
    return torch.randn(size, generator=_generator)


def between(low, high, *size):
    """Floats, uniformly."""
    return low + (high - low) * torch.rand(size, generator=_generator)


def integers(low, high, *size):
    return torch.randint(low, high, size, generator=_generator)


X, Y = normal(6, 4), normal(6, 4)
POSITIVE, ABOVE_ONE = between(0.1, 3, 6, 4), between(1.1, 3, 6, 4)
INTS, MORE, BITS = integers(1, 50, 6, 4), integers(1, 50, 6, 4), integers(0, 5, 6, 4)
IMAGE = normal(6, 3, 8, 8)

BITWISE = [
    call(f"{op}.{overload}", *args)
    for op in ("bitwise_and", "bitwise_or", "bitwise_xor")
    for overload, args in (
        ("Scalar", (INTS, 12)),
        ("Scalar_Tensor", (12, INTS)),
        ("Tensor", (INTS, MORE)),
    )
] + [
    call(f"bitwise_{side}_shift.{overload}", *args)
    for side in ("left", "right")
    for overload, args in (
        ("Tensor_Scalar", (INTS, 2)),
        ("Scalar_Tensor", (100, BITS)),
        ("Tensor", (INTS, BITS)),
    )
]

DUNDER = [
    call(f"{op}.{overload}", INTS, other)
    for op in ("__lshift__", "__rshift__")
    for overload, other in (("Scalar", 2), ("Tensor", BITS))
]

POLYNOMIALS = [
    call(f"special_{name}.{overload}", *args)
    for name in (
        *(f"chebyshev_polynomial_{kind}" for kind in "tuvw"),
        *(f"shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"),
        "hermite_polynomial_h",
        "hermite_polynomial_he",
        "laguerre_polynomial_l",
        "legendre_polynomial_p",
    )
    for overload, args in (
        ("n_scalar", (between(-1, 1, 6, 4), 3)),
        ("x_scalar", (0.3, BITS.float())),
    )
]

SCALARS = [
    call("xlogy.Scalar_Other", X, 2.5),
    call("xlogy.Scalar_Self", 2.5, POSITIVE),
    call("special_xlog1py.other_scalar", X, 2.5),
    call("special_xlog1py.self_scalar", 2.5, POSITIVE),
    call("special_zeta.other_scalar", ABOVE_ONE, 2.5),
    call("special_zeta.self_scalar", 2.5, POSITIVE),
    call("remainder.Scalar_Tensor", 7.5, X),
    call("remainder.Scalar", X, 0.7),
    call("fmod.Scalar", X, 0.7),
    call("floor_divide.Scalar", X, 0.7),
    call("div.Scalar_mode", X, 0.7, rounding_mode="floor"),
    call("div.Scalar_mode", X, 0.7, rounding_mode="trunc"),
    call("div.Scalar_mode", X, 0.7, rounding_mode=None),
    call("copysign.Scalar", X, -1.5),
]

ELEMENTWISE = [
    call("gcd", INTS, MORE),
    call("lcm", INTS, MORE),
    call("copy", X, Y[0]),
    call("copy", X, INTS),
    call("fill.Tensor", X, torch.tensor(2.5)),
    call("fill.Scalar", X, 2.5),
    call("zero", X),
    call("lift_fresh_copy", X),
]

DISTANCES = [call("_euclidean_dist", X, Y, dim=dim) for dim in (0, 1)]

REDUCTIONS = [
    call("norm.Scalar", X, 3),
    call("norm.ScalarOpt_dtype", X, 2, dtype=torch.float64),
    *(
        call("norm.ScalarOpt_dim_dtype", X, p, [dim], False, dtype=torch.float64)
        for p in (0, 1, 2, 3, float("inf"))
        for dim in (0, 1)
    ),
]

SCANS = [call("_logcumsumexp", X, dim, dim=cut) for dim in (0, 1) for cut in (0, 1)]

GRADIENTS = [
    call("_standard_gamma_grad", POSITIVE, ABOVE_ONE),
    *(
        call("_cdist_backward", *tensors, 2.0, torch.zeros(0, 4, 6), dim=1)
        for tensors in (
            (normal(0, 4, 6), normal(1, 4, 2), normal(0, 6, 2)),
            (normal(0, 4, 6), normal(0, 4, 2), normal(1, 6, 2)),
        )
    ),
    call("_dirichlet_grad", POSITIVE, POSITIVE, POSITIVE.sum(-1, True).expand(6, 4)),
]

INDEX = integers(0, 6, 6, 4)

MOVES = [
    call("_unsafe_index.Tensor", X, [integers(0, 6, 5)]),
    call("_unsafe_index.Tensor", X, [None, integers(0, 4, 5)]),
    call("_unsafe_index_put", X, [torch.tensor([4, 0, 5])], Y[:3]),
    call("_unsafe_index_put", X, [integers(0, 6, 6)], Y, True),
    call("_unsafe_index_put", X, [None, torch.tensor([2, 0])], Y[:, :2]),
    *(
        call("scatter.reduce", X, dim, INDEX % size, Y, reduce=reduce)
        for dim, size in ((0, 6), (1, 4))
        for reduce in ("add", "multiply")
    ),
    *(
        call("scatter.value_reduce", X, dim, INDEX % size, 2.5, reduce=reduce)
        for dim, size in ((0, 6), (1, 4))
        for reduce in ("add", "multiply")
    ),
    call("unsafe_split_with_sizes", X, [1, 3, 2]),
    call("unsafe_split_with_sizes", X, [1, 3], 1),
]

WEIGHT_NORMS = [
    call("_weight_norm_interface", X, normal(1, 4), 1),
    call("_weight_norm_interface_backward", Y, X, normal(1, 4), X.norm(dim=0, keepdim=True), 1),
]

_scales, _zeros = between(0.02, 0.2, 6), integers(0, 9, 6)
_one = (torch.tensor([0.05]), torch.tensor([3.0]))

QUANTIZED = [
    call("fake_quantize_per_tensor_affine_cachemask", X, 0.05, 3, -128, 127),
    call(
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
        *(X, _one[0], _one[1].int(), torch.tensor([1]), -128, 127),
    ),
    call("_fake_quantize_learnable_per_tensor_affine", X, *_one, -8, 7, 0.5),
    call("_fake_quantize_learnable_per_tensor_affine_backward", Y, X, *_one, -8, 7, 0.5),
    *(
        made
        for axis, n in ((0, 6), (1, 4))
        for made in (
            call(
                "fake_quantize_per_channel_affine_cachemask",
                *(X, _scales[:n], _zeros[:n].int(), axis, -128, 127),
            ),
            call(
                "_fake_quantize_learnable_per_channel_affine",
                *(X, _scales[:n], _zeros[:n].float(), axis, -8, 7, 0.5),
            ),
            call(
                "_fake_quantize_learnable_per_channel_affine_backward",
                *(Y, X, _scales[:n], _zeros[:n].float(), axis, -8, 7, 0.5),
            ),
        )
    ),
]

MEMBERS = [
    call("bucketize.Scalar", 0.5, POSITIVE[:, 0].sort().values),
    call("isin.Scalar_Tensor", 3, INTS),
    call("isin.Tensor_Scalar", INTS, 3),
    call("isin.Tensor_Tensor", INTS, MORE[:3]),
    call("isin.Tensor_Tensor", INTS, MORE[:3], invert=True),
    call("repeat_interleave.Tensor", torch.tensor([1, 2, 0, 3, 1, 1])),
]

PRODUCTS = [
    call("_addmm_activation", Y[0], X, normal(4, 4)),
    call("_addmm_activation", Y[0], X, normal(4, 4), use_gelu=True),
    call("_int_mm", integers(-9, 9, 6, 8).to(torch.int8), integers(-9, 9, 8, 4).to(torch.int8)),
    call("_weight_int8pack_mm", X, integers(-9, 9, 6, 4).to(torch.int8), between(0.1, 1, 6)),
    call("conv_tbc", normal(8, 6, 3), normal(3, 3, 4), normal(4), 1),
]

GRIDS = [
    call("affine_grid_generator", normal(6, *sizes), [6, 1, *places], corners, dim=dim)
    for sizes, places in (((2, 3), (4, 6)), ((3, 4), (2, 4, 6)))
    for corners in (False, True)
    for dim in (0, 1)
]

RULELESS = [
    call("_add_relu.Tensor", X, Y),
    call("_aminmax.dim", X, 0),
    call("_compute_linear_combination", X, normal(3, 6)),
    call("_convert_indices_from_coo_to_csr", torch.tensor([0, 1, 1, 2, 4, 5]), 6),
    call("_masked_softmax", normal(6, 2, 4, 4), normal(6, 4) > 0, 3, 1),
    call("_slow_conv2d_forward", IMAGE, normal(2, 3, 3, 3), [3, 3], normal(2), [1, 1], [1, 1]),
    call("_stack", [X, Y], 1),
    call("glu_jvp", normal(3, 4), X, Y, 0),
    call("linalg__powsum", X, 3.0, [0], True),
    call("slow_conv_dilated2d", IMAGE, normal(2, 3, 3, 3), [3, 3], None, [1, 1], [0, 0], [2, 2]),
]

_places = torch.ops.aten.max_pool2d_with_indices(IMAGE, [2, 2])[1]

_OUT = {name: torch.empty(0) for name in ("out", "save_mean", "save_invstd")}

LAYERS = [
    call("_linalg_eigvals", normal(6, 4, 4)),
    *(call("geqrf", normal(6, 4, 3), dim=dim) for dim in (0, 1, 2)),
    *(
        made
        for dim in (0, 1)
        for low, high in ((-1, 1), (0, 0), (5, 5))
        for made in (
            call("histc", X, 5, low, high, dim=dim),
            call("histc.out", X, 5, low, high, out=torch.empty(0), dim=dim),
        )
    ),
    call("histc", torch.full((6, 4), 2.5), 5),
    *(
        call(op, IMAGE[..., 0, :2], bins, range=bounds, weight=weight, density=density, dim=dim)
        for dim in (0, 1)
        for density, weight in ((False, None), (True, normal(6, 3).abs()))
        for op, bins, bounds in (
            ("_histogramdd_from_bin_cts", [2, 3], None),
            ("_histogramdd_from_bin_cts", [2, 3], [-1.0, 1.0, -2.0, 0.5]),
            ("_histogramdd_bin_edges", [2, 3], None),
            ("_histogramdd_bin_edges", [2, 3], [-1.0, 1.0, 2.0, 2.0]),
        )
    ),
    *(
        call(f"histogram.{form}", X, bins, weight=weight, density=density)
        for density, weight in ((False, None), (True, POSITIVE))
        for form, bins in (("bin_ct", 4), ("bins_tensor", torch.tensor([-1.0, 0.0, 0.1, 2.0])))
    ),
    call(
        "_native_batch_norm_legit_no_training",
        IMAGE,
        *(normal(3), normal(3), normal(3), between(0.5, 2, 3), 0.1, 1e-5),
    ),
    call("_native_batch_norm_legit_no_training", X, None, None, Y[0], POSITIVE[0], 0.1, 1e-5),
    call("_batch_norm_no_update", X, Y[1], Y[2], Y[0], POSITIVE[0], 0.1, 1e-5),
    call("_batch_norm_with_update", X, Y[1], Y[2], Y[0], POSITIVE[0], 0.1, 1e-5),
    call("_batch_norm_with_update_functional", X, Y[1], Y[2], Y[0], POSITIVE[0], 0.1, 1e-5),
    *(
        call("native_batch_norm.out", X, None, None, Y[0], POSITIVE[0], training, 0.1, 1e-5, **_OUT)
        for training in (True, False)
    ),
    call("batch_norm_update_stats", IMAGE, torch.zeros(3), torch.ones(3), 0.1),
    call("batch_norm_update_stats", X, None, None, 0.1),
    call("batch_norm_update_stats", X.bfloat16(), torch.zeros(4), torch.ones(4), 0.1),
    call("_upsample_bicubic2d_aa", IMAGE, [5, 12], False),
    call("_upsample_bicubic2d_aa", IMAGE, [5, 12], True, dim=2),
    call("_upsample_bicubic2d_aa_backward", normal(6, 3, 5, 12), [5, 12], [6, 3, 8, 8], False),
    *(
        made
        for dim in (0, 2)
        for made in (
            call("max_pool2d_with_indices", IMAGE, [2, 2], dim=dim),
            call("max_pool2d_with_indices", IMAGE, [3, 3], [2, 2], [1, 1], dim=dim),
            call(
                "max_pool2d_with_indices_backward",
                *(normal(6, 3, 4, 4), IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False, _places),
                dim=dim,
            ),
        )
    ),
]


_lists = [[normal(6, 4), normal(6)] for _ in range(3)] + [
    [between(0.1, 1, 6, 4), between(0.1, 1, 6)] for _ in range(2)
]
_steps = [torch.tensor(3.0), torch.tensor(3.0)]
_rate = torch.tensor(0.1)
_sgd = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.2, "nesterov": True}
_adam = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-6}


def adam(op, amsgrad=False, **options):
    maxima = _lists[4] if amsgrad else []
    return call(op, *_lists[:4], maxima, _steps, amsgrad=amsgrad, **_adam | options)


def sgd(op, **options):
    return call(op, *_lists[:3], maximize=False, is_first_step=False, **_sgd | options)


def adagrad(op, **options):
    lists = [*_lists[:2], _lists[3], _steps]
    return call(op, *lists, lr_decay=0.1, weight_decay=0.1, eps=1e-6, **options)


def scaled(found):
    return {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(found)}


def _above(limit):
    """X, infinite above a limit."""
    return torch.where(limit > X, X, torch.inf)


OPTIMIZERS = [
    *(
        fused(op, name=f"{op}, {what}", **options)
        for op, fused, choices in (
            ("_fused_adam_", adam, {"maximize": False}),
            ("_fused_adamw_", adam, {"maximize": False}),
            ("_fused_sgd_", sgd, {}),
        )
        for what, options in (
            ("plain", choices),
            ("scaled", choices | scaled(0.0)),
            ("overflown", choices | scaled(1.0)),
        )
    ),
    *(
        adam(op, **options)
        for op in ("_fused_adam", "_fused_adamw")
        for options in (
            {"maximize": False},
            {"maximize": True, "amsgrad": True},
            {"maximize": False, **scaled(0.0)},
            {"maximize": False, **scaled(1.0)},
        )
    ),
    *(
        adagrad(f"_fused_adagrad{form}", lr=rate, maximize=maximize)
        for form, rate in (("", 0.1), ("_", 0.1), (".tensor_lr", _rate), ("_.tensor_lr", _rate))
        for maximize in (False, True)
    ),
    *(sgd("_fused_sgd", **options) for options in ({}, scaled(0.0), scaled(1.0))),
    *(
        fused(op, **choices, lr=_rate)
        for op, fused, choices in (
            ("_fused_adam.tensor_lr", adam, {"maximize": False}),
            ("_fused_adamw.tensor_lr", adam, {"maximize": True}),
            ("_fused_sgd.tensor_lr", sgd, {}),
        )
    ),
    *(
        call(
            "_amp_foreach_non_finite_check_and_unscale",
            *([_above(limit), Y], torch.tensor([0.0]), torch.tensor([0.5])),
        )
        for limit in (1.0, 100.0)
    ),
    *(
        call(
            "_amp_update_scale",
            *(torch.tensor([4.0]), torch.tensor([tracked], dtype=torch.int32)),
            *(torch.tensor([found]), 2.0, 0.5, 3),
        )
        for tracked, found in ((1, 0.0), (2, 0.0), (2, 1.0))
    ),
]

CALLS = [
    *BITWISE,
    *DUNDER,
    *POLYNOMIALS,
    *SCALARS,
    *ELEMENTWISE,
    *DISTANCES,
    *REDUCTIONS,
    *SCANS,
    *GRADIENTS,
    *MOVES,
    *WEIGHT_NORMS,
    *QUANTIZED,
    *MEMBERS,
    *PRODUCTS,
    *GRIDS,
    *RULELESS,
    *LAYERS,
    *OPTIMIZERS,
]

# Their results are random: drawn and compared in test_random.py.
DRAWS = [
    call("_sample_dirichlet", POSITIVE),
    call("_standard_gamma", POSITIVE),
    call("binomial", POSITIVE.round() + 3, torch.full_like(POSITIVE, 0.3)),
    call("poisson", POSITIVE),
]

# Calls that are not right yet, and why.

WRONG: dict[str, str] = {}
