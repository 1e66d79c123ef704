# SPDX-License-Identifier: Apache-2.0
"""Random numbers depend on the seed and the order of draws, never on the mesh or the sharding."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_spmd as spmd
from torch_spmd import _C

pytestmark = pytest.mark.modes("coalesced", "in_turns")

SHAPE = (10, 6, 4)

# Each draws from a tensor of probabilities, which is sharded in some way.
DRAWS = {
    "rand": lambda p: torch.rand(SHAPE, device="spmd"),
    "randn": lambda p: torch.randn(SHAPE, device="spmd"),
    "randint": lambda p: torch.randint(-5, 90, SHAPE, device="spmd"),
    "randperm": lambda p: torch.randperm(40, device="spmd"),
    "normal": lambda p: torch.normal(p, p + 1),
    "normal of a tensor of means": lambda p: torch.normal(p, 2.0),
    "normal of a tensor of deviations": lambda p: torch.normal(3.0, p),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda p: torch.randint_like(p, 3, 50),
    "normal_": lambda p: p.normal_(1, 2),
    "uniform_": lambda p: p.uniform_(-1, 3),
    "random_": lambda p: p.random_(3, 70),
    "exponential_": lambda p: p.exponential_(2),
    "geometric_": lambda p: p.geometric_(0.3),
    "cauchy_": lambda p: p.cauchy_(1, 2),
    "log_normal_": lambda p: p.log_normal_(0.5, 0.5),
    "bernoulli": torch.bernoulli,
    "bernoulli of a number": lambda p: torch.bernoulli(p, 0.3),
    "bernoulli_": lambda p: p.bernoulli_(0.4),
    "bernoulli_ of a tensor": lambda p: torch.zeros_like(p).bernoulli_(p),
    "dropout": lambda p: F.dropout(p, 0.3),
    "dropout_": lambda p: F.dropout(p, 0.3, inplace=True),
    "dropout2d": lambda p: F.dropout2d(p[None], 0.3),
    "feature_dropout": lambda p: torch.feature_dropout(p, 0.3, True),
    "alpha_dropout": lambda p: F.alpha_dropout(p, 0.3, True),
    "feature_alpha_dropout": lambda p: F.feature_alpha_dropout(p, 0.3, True),
    "rrelu": lambda p: F.rrelu(p - 0.5, training=True),
    "multinomial": lambda p: torch.multinomial(p[0], 3),
    "multinomial with replacement": lambda p: torch.multinomial(p[:, :, 0], 30, True),
    "poisson": lambda p: torch.poisson(p * 9),
    "binomial": lambda p: torch.binomial(torch.full_like(p, 20), p),
    "standard_gamma": lambda p: torch._standard_gamma(p + 1),
    "dirichlet": lambda p: torch._sample_dirichlet(p + 1),
    "gumbel_softmax": lambda p: F.gumbel_softmax(p, hard=True),
    "scaled_dot_product_attention": lambda p: F.scaled_dot_product_attention(
        p, p, p, dropout_p=0.4
    ),
    "fractional_max_pool2d": lambda p: F.fractional_max_pool2d(
        p.permute(2, 1, 0), 2, output_size=(4, 4)
    ),
    "trunc_normal_": torch.nn.init.trunc_normal_,
    "kaiming_uniform_": torch.nn.init.kaiming_uniform_,
    "orthogonal_": torch.nn.init.orthogonal_,
    "distributions": lambda p: torch.distributions.Beta(p + 1, p + 2).sample(),
}

CUTS = [
    ((2,), ("x", None, None)),
    ((3,), (None, "x", None)),
    ((4,), (None, None, "x")),
    ((8,), ("x", None, None)),
    ((2, 2), ("x", "y", None)),
    ((2, 3), (None, ("y", "x"), None)),
    ((2, 3), ("y", None, "x")),
]


def probabilities(cut=None):
    p = torch.rand(SHAPE, generator=torch.Generator().manual_seed(3)).to("spmd")
    if cut:
        sizes, spec = cut
        spmd.mark_sharding(p, spmd.make_mesh(sizes, ("x", "y")[: len(sizes)]), spec)
    return p


def draw(name, cut=None):
    """Two draws and what comes after them."""
    torch.manual_seed(7)
    first, second = DRAWS[name](probabilities(cut)), DRAWS[name](probabilities(cut))
    after = torch.rand(3, device="spmd")
    if cut and first.shape == SHAPE and name in ("rand", "randn", "randint"):
        spmd.mark_sharding(first, spmd.make_mesh(cut[0], ("x", "y")[: len(cut[0])]), cut[1])
    return [t.cpu() for t in (first, second, after)]


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_bits_however_cut(name):
    whole = draw(name)
    for cut in CUTS:
        for got, want in zip(draw(name, cut), whole):
            if name == "scaled_dot_product_attention":  # the same mask, but another order of sums
                torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
            else:
                assert torch.equal(got, want), cut


@pytest.mark.parametrize("name", DRAWS)
def test_two_draws_differ(name):
    first, second, _ = draw(name)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_with_other_seeds_differ(name):
    first, _, _ = draw(name)
    torch.manual_seed(8)
    assert not torch.equal(DRAWS[name](probabilities()).cpu(), first)


# --- statistics ---


def uniform(x, low=0.0, high=1.0):
    return ((x - low) / (high - low)).clamp(0, 1)


NORMAL = torch.distributions.Normal(0.0, 1.0).cdf
CONTINUOUS = {
    "rand": (lambda x: x.uniform_(), uniform),
    "uniform_": (lambda x: x.uniform_(-3, 5), lambda x: uniform(x, -3.0, 5.0)),
    "normal_": (lambda x: x.normal_(2, 3), lambda x: NORMAL((x - 2) / 3)),
    "exponential_": (lambda x: x.exponential_(2), lambda x: 1 - torch.exp(-2 * x)),
    "cauchy_": (lambda x: x.cauchy_(1, 2), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5),
    "log_normal_": (lambda x: x.log_normal_(0.5, 0.25), lambda x: NORMAL((x.log() - 0.5) / 0.25)),
    "standard_gamma below one": (
        lambda x: torch._standard_gamma(x + 0.4),
        lambda x: torch.special.gammainc(torch.tensor(0.4, dtype=x.dtype), x),
    ),
    "standard_gamma": (
        lambda x: torch._standard_gamma(x + 7),
        lambda x: torch.special.gammainc(torch.tensor(7.0, dtype=x.dtype), x),
    ),
    "dirichlet": (  # of two: one is beta(1, 1), which is uniform
        lambda x: torch._sample_dirichlet(torch.stack([x + 1, x + 1], -1))[..., 0],
        uniform,
    ),
    "trunc_normal_": (
        lambda x: torch.nn.init.trunc_normal_(x, 0, 1, -1, 2),
        lambda x: (
            (NORMAL(x) - NORMAL(torch.tensor(-1.0)))
            / (NORMAL(torch.tensor(2.0)) - NORMAL(torch.tensor(-1.0)))
        ),
    ),
}


def cut_in_four(shape, dtype=torch.float32):
    return spmd.mark_sharding(
        torch.zeros(shape, dtype=dtype, device="spmd"), spmd.make_mesh((4,), ("x",)), ("x", None)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_distributions_by_kolmogorov_and_smirnov(name, dtype):
    torch.manual_seed(11)
    fill, distribution = CONTINUOUS[name]
    with torch.no_grad():
        x = fill(cut_in_four((250, 80), dtype)).cpu().double().flatten().sort().values
    expected = distribution(x)
    n = len(x)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = torch.max((steps[1:] - expected).max(), (expected - steps[:-1]).max())
    assert distance < 1.95 / math.sqrt(n)  # one in a thousand is further away


MOMENTS = {  # mean and variance
    "bernoulli_": (lambda x: x.bernoulli_(0.3), 0.3, 0.21),
    "geometric_": (lambda x: x.geometric_(0.25), 4.0, 12.0),
    "random_": (lambda x: x.random_(0, 10), 4.5, 8.25),
    "poisson": (lambda x: torch.poisson(x + 3), 3.0, 3.0),
    "binomial": (lambda x: torch.binomial(x + 10, x + 0.5), 5.0, 2.5),
    "standard_gamma": (lambda x: torch._standard_gamma(x + 2), 2.0, 2.0),
    "poisson, often": (lambda x: torch.poisson(x + 400), 400.0, 400.0),
    "poisson, beyond integers": (lambda x: torch.poisson(x.double() + 1e18) - 1e18, 0.0, 1e18),
    "binomial, often": (lambda x: torch.binomial(x + 900, x + 0.3), 270.0, 189.0),
    "dirichlet": (lambda x: torch._sample_dirichlet(x[:, :4] + 1), 0.25, 0.0375),
    "dropout": (lambda x: F.dropout(x + 1, 0.2), 1.0, 0.25),
    "normal_": (lambda x: x.normal_(1, 2), 1.0, 4.0),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_mean_and_variance(name):
    torch.manual_seed(12)
    fill, mean, variance = MOMENTS[name]
    x = fill(cut_in_four((250, 80))).cpu()
    assert abs(x.mean() - mean) < 5 * math.sqrt(variance / x.numel())
    assert abs(x.var() / variance - 1) < 0.1


@pytest.mark.parametrize("fill", [torch.Tensor.normal_, torch.Tensor.uniform_])
def test_parts_are_independent(fill):
    """Neighbours within a shard, across the boundary of two, and equal positions of all shards."""
    torch.manual_seed(13)
    parts = fill(cut_in_four((4, 20000))).cpu()
    assert parts.corrcoef().fill_diagonal_(0).abs().max() < 0.035
    torch.manual_seed(13)
    rows = fill(cut_in_four((400, 100))).cpu()
    for apart in (1, 2, 100):
        pairs = torch.stack([rows[:-apart].flatten(), rows[apart:].flatten()])
        assert abs(pairs.corrcoef()[0, 1]) < 0.03
    border = torch.stack([fill(cut_in_four((4, 2))).cpu()[1:3, 0] for _ in range(400)], 1)
    assert abs(border.corrcoef()[0, 1]) < 0.2


@pytest.mark.parametrize("name", ["poisson", "binomial", "standard_gamma", "dirichlet"])
def test_draws_with_sharded_parameters_gather_nothing(name):
    p = probabilities(((4,), ("x", None, None)))
    spmd.sync(wait=True)
    _C.forget_programs()
    drawn = DRAWS[name](p)
    spmd.sync(wait=True)
    assert not [row for program in _C.programs() for row in program.collectives()]
    assert spmd.sharding_of(drawn).spec[0] == "x"


def test_draws_with_a_certain_outcome():
    edges = torch.tensor([0.0, 1e20, math.inf], device="spmd")
    assert torch.poisson(edges)[[0, 2]].tolist() == [0, math.inf]
    none, all_of_them = torch.zeros(3, device="spmd"), torch.ones(3, device="spmd")
    assert torch.binomial(torch.full_like(none, 7), none).tolist() == [0, 0, 0]
    assert torch.binomial(torch.full_like(none, 7), all_of_them).tolist() == [7, 7, 7]
    assert torch._standard_gamma(none + 1e-30).min() > 0  # its logarithm is finite, as in eager
    with pytest.raises(RuntimeError, match="expected rate to be non-negative"):
        torch.poisson(edges - 1).cpu()


def test_dropout_of_parts_differs():
    """In other partitioners every shard had the mask of the first."""
    mesh = spmd.make_mesh((4,), ("x",))
    masks = F.dropout(spmd.mark_sharding(torch.ones(4, 64).to("spmd"), mesh, ("x", None))).cpu()
    assert len({tuple(mask.tolist()) for mask in masks}) == 4


# --- generators and states ---


def test_a_generator_of_the_device():
    def numbers(generator):
        return [
            torch.rand(5, device="spmd", generator=generator).tolist(),
            torch.randperm(9, device="spmd", generator=generator).tolist(),
            torch.zeros(4, device="spmd").normal_(generator=generator).tolist(),
            torch.multinomial(torch.ones(9).to("spmd"), 4, generator=generator).tolist(),
        ]

    generator = torch.Generator(device="spmd")
    assert generator.device == torch.device("spmd", 0)
    generator.manual_seed(5)
    state = generator.get_state()
    before = torch.spmd.get_rng_state()
    first = numbers(generator)
    assert torch.equal(torch.spmd.get_rng_state(), before)  # the default one has not moved
    generator.set_state(state)
    assert numbers(generator) == first
    assert numbers(generator) != first
    assert numbers(torch.Generator(device="spmd").manual_seed(5)) == first
    assert generator.initial_seed() == 5


def test_a_generator_of_the_host_is_refused():
    with pytest.raises(RuntimeError):
        torch.rand(3, device="spmd", generator=torch.Generator()).cpu()


def test_fork_rng():
    torch.manual_seed(1)
    want = torch.rand(4, device="spmd")
    torch.manual_seed(1)
    with torch.random.fork_rng(device_type="spmd"):
        torch.manual_seed(2)
        torch.rand(9, device="spmd")
    assert torch.equal(torch.rand(4, device="spmd"), want)


@pytest.mark.parametrize("name", DRAWS)
def test_the_state_brings_draws_back(name):
    torch.manual_seed(4)
    state = torch.spmd.get_rng_state()
    host = torch.get_rng_state()
    first = DRAWS[name](probabilities())
    torch.spmd.set_rng_state(state)
    assert torch.equal(torch.get_rng_state(), host), "it drew from the host's generator"
    assert torch.equal(DRAWS[name](probabilities()), first)


def test_seeds():
    torch.manual_seed(21)
    assert torch.spmd.initial_seed() == 21
    a = torch.rand(3, device="spmd")
    torch.spmd.manual_seed(21)
    assert torch.equal(torch.rand(3, device="spmd"), a)
    torch.spmd.manual_seed_all(21)
    assert torch.equal(torch.rand(3, device="spmd"), a)
    torch.spmd.seed()
    assert not torch.equal(torch.rand(3, device="spmd"), a)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "rrelu", "feature_dropout"])
@pytest.mark.parametrize("cut", [None, CUTS[0], CUTS[5]])
def test_recomputation_draws_the_same(name, cut, reentrant):
    if name == "rrelu" and not reentrant:
        pytest.skip("PyTorch itself reads noise that was not drawn again")

    def gradient(recompute):
        torch.manual_seed(9)
        x = probabilities(cut).requires_grad_()

        def block(t):
            return DRAWS[name](DRAWS[name](t * 2))

        y = checkpoint(block, x, use_reentrant=reentrant) if recompute else block(x)
        torch.rand(5, device="spmd")  # moves the generator between forward and backward
        (y * probabilities()).sum().backward()
        return y.detach().cpu(), x.grad.cpu()

    for got, want in zip(gradient(True), gradient(False)):
        assert torch.equal(got, want)
