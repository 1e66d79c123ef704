# SPDX-License-Identifier: Apache-2.0
"""Fast paths of PyTorch's modules, and layouts that are not strided: each works or raises an error
that says why not."""

import copy
import functools

import pytest
import torch
from torch import nn

import torch_spmd as spmd

NO_GRAD = [torch.no_grad, torch.inference_mode]


def padding(batch=5, length=7):
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[1, 4:] = True
    mask[3, 2:] = True
    return mask


def on_both(module):
    return module.eval(), copy.deepcopy(module).to("spmd").eval()


@pytest.mark.parametrize("context", [torch.enable_grad, *NO_GRAD])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_with_padding(context, norm_first, activation):
    layer = nn.TransformerEncoderLayer(
        12, 4, 20, batch_first=True, norm_first=norm_first, activation=activation
    )
    expected, encoder = on_both(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    )
    x, mask = torch.randn(5, 7, 12), padding()
    with context():
        want = expected(x, src_key_padding_mask=mask)
        got = encoder(x.to("spmd"), src_key_padding_mask=mask.to("spmd"))
    # PyTorch's path with nested tensors leaves zeros at padding.
    torch.testing.assert_close(got.cpu()[~mask], want[~mask])


def test_an_encoder_that_is_made_to_nest_says_what_to_write():
    layer = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, mask_check=False).to("spmd").eval()
    x, mask = torch.randn(5, 7, 12).to("spmd"), padding().to("spmd")
    with torch.no_grad(), pytest.raises(NotImplementedError, match="enable_nested_tensor=False"):
        encoder(x, src_key_padding_mask=mask)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masks", ["", "a", "p", "ap"])
def test_attention_without_gradients(masks, need_weights):
    expected, attention = on_both(nn.MultiheadAttention(12, 4, batch_first=True))
    x = torch.randn(5, 7, 12)
    given = {}
    if "a" in masks:
        given["attn_mask"] = torch.ones(7, 7).triu(1).bool()
    if "p" in masks:
        given["key_padding_mask"] = padding()
    mine = {name: mask.to("spmd") for name, mask in given.items()}
    y = x.to("spmd")
    with torch.no_grad():
        want = expected(x, x, x, need_weights=need_weights, **given)
        got = attention(y, y, y, need_weights=need_weights, **mine)
    torch.testing.assert_close(got[0].cpu(), want[0])
    assert (got[1] is None) == (want[1] is None)
    if need_weights:
        torch.testing.assert_close(got[1].cpu(), want[1])


def test_an_encoder_layer_with_a_mask_of_numbers():
    expected, layer = on_both(nn.TransformerEncoderLayer(12, 4, 20, batch_first=True))
    x, mask = torch.randn(5, 7, 12), torch.full((7, 7), float("-inf")).triu(1)
    with torch.no_grad():
        got = layer(x.to("spmd"), src_mask=mask.to("spmd"))
        torch.testing.assert_close(got.cpu(), expected(x, src_mask=mask))


@pytest.mark.parametrize("split", ["batch", "heads"])
def test_inference_sends_no_more_than_training(split):
    mesh = spmd.make_mesh((2,), ("x",))
    attention = nn.MultiheadAttention(16, 4, batch_first=True).to("spmd").eval()
    x = torch.randn(64, 32, 16).to("spmd")
    if split == "batch":
        spmd.mark_sharding(x, mesh, ("x", None, None))
    else:
        spmd.mark_sharding(attention.out_proj.weight, mesh, (None, "x"))
    sent = []
    for context in (torch.enable_grad, torch.no_grad):
        with context():
            attention(x, x, x, need_weights=False)[0].cpu()
        sent.append(sum(c.bytes for c in spmd.debug.collectives().rows))
    assert sent[1] <= sent[0]


def on_spmd():
    return torch.ones(3, 4, device="spmd")


REFUSED = {
    "nested": [
        lambda: torch.nested.nested_tensor([on_spmd(), on_spmd()]),
        lambda: torch.nested.as_nested_tensor([on_spmd(), on_spmd()]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], device="spmd").unbind(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]).to("spmd"),
        lambda: torch._nested_from_padded(on_spmd()[None], torch.tensor([[3, 4]])),
    ],
    "quantized": [
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to("spmd"),
        lambda: torch.empty(3, dtype=torch.qint8, device="spmd"),
        lambda: on_spmd().to(torch.quint4x2),
    ],
}


@pytest.mark.parametrize(("kind", "make"), [(k, m) for k, all in REFUSED.items() for m in all])
def test_other_layouts_are_refused_in_one_sentence(kind, make):
    with pytest.raises(NotImplementedError) as raised:
        make()
    text = str(raised.value)
    assert text.startswith("torch_spmd: ") and "\n" not in text
    assert kind.split()[0] in text.lower()
    assert text.endswith("not supported on 'spmd:0'; keep them on the CPU")


def test_jagged_tensors_are_tensors_of_the_device():
    jagged = torch.nested.nested_tensor(
        [torch.ones(3, 2), torch.ones(2, 2)], layout=torch.jagged, device="spmd"
    )
    assert (jagged * 2).to_padded_tensor(0.0).sum().item() == 20


LIKE = {
    "empty_like": torch.empty_like,
    "ones_like": torch.ones_like,
    "full_like": functools.partial(torch.full_like, fill_value=7.0),
    "rand_like": torch.rand_like,
    "randint_like": functools.partial(torch.randint_like, high=5),
    "new_zeros": lambda t, **options: t.new_zeros(3, **options),
    "new_empty_strided": lambda t, **options: t.new_empty_strided((2,), (1,), **options),
}


@pytest.mark.parametrize("name", LIKE)
def test_tensors_like_ours_on_another_device(name):
    like = torch.ones(3, 2).to("spmd").t()
    for device in ("cpu", "meta", "spmd"):
        made = LIKE[name](like, device=device)
        assert made.device.type == device
        assert made.stride() == LIKE[name](torch.ones(3, 2).t()).stride()
    made = [LIKE[name](like, device="cpu") for _ in range(5)]
    assert len({t.data_ptr() for t in made}) == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: on_spmd().pin_memory(),
        lambda: torch.empty(3, device="spmd", pin_memory=True),
        lambda: torch.randn(3, device="spmd", pin_memory=True),
        lambda: torch.zeros_like(on_spmd(), pin_memory=True),
    ],
)
def test_pinned_memory_is_the_cpus(make):
    with pytest.raises(RuntimeError, match=r"only tensors of the CPU can be pinned"):
        make()
    batches = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2, pin_memory=True)
    assert [b.to("spmd").sum().item() for b in batches] == [4, 4]
