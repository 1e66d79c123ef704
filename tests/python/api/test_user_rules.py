# SPDX-License-Identifier: Apache-2.0
"""Users' ops: rules for them, and the brute-force check of rules."""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import torch_spmd as spmd
from torch_spmd import _C

MESH = (4,)
number = 0


def define(function, schema, device_types="cpu"):
    """A fresh op of `function`, and its name."""
    global number
    number += 1
    name = f"spmd_test_rules::op{number}"
    op = torch.library.custom_op(name, mutates_args=(), schema=schema, device_types=device_types)(
        function
    )
    op.register_fake(lambda *args, **kwargs: tree_map(torch.empty_like, function(*args, **kwargs)))
    return op, name


def _doubled(x: Tensor) -> Tensor:
    return 2 * x


def collectives(function):
    _C.forget_programs()
    result = function().cpu()
    return result, [row[0] for p in _C.programs() for row in p.collectives()]


def test_an_op_with_a_rule_is_partitioned():
    op, name = define(lambda x, s: x * s[:, None], "(Tensor x, Tensor s) -> Tensor")
    x, s = torch.randn(10, 3), torch.randn(10)
    a, b = x.to("spmd"), s.to("spmd")
    spmd.mark_sharding(a, spmd.make_mesh(MESH, ("x",)), ("x", None))
    _, before = collectives(lambda: op(a, b))
    spmd.register_rule(name, "r c, r -> r c")
    assert spmd.testing.check_rule(name, x, s) == 5
    result, after = collectives(lambda: op(a, b))
    torch.testing.assert_close(result, x * s[:, None])
    assert before == ["all_gather"]
    assert after == []


def test_an_op_for_every_device_arrives_whole_once_it_has_a_rule():
    op, name = define(lambda x: x.sort(1).values, "(Tensor x) -> Tensor", device_types=None)
    spmd.register_rule(name, "r [c] -> r c")
    x = torch.randn(10, 3)
    a = spmd.mark_sharding(x.to("spmd"), spmd.make_mesh(MESH, ("x",)), ("x", None))
    torch.testing.assert_close(op(a).cpu(), x.sort(1).values)
    assert f"call {name}(" in spmd.debug.print_program()


def test_a_factor_combines_as_its_kind_says():
    op, name = define(lambda x: x.amax(1), "(Tensor x) -> Tensor")
    spmd.register_rule(name, "r c -> r", kinds={"c": "max"})
    x = torch.randn(6, 7)
    spmd.testing.check_rule(name, x)
    a = spmd.mark_sharding(x.to("spmd"), spmd.make_mesh(MESH, ("x",)), (None, "x"))
    result, kinds = collectives(lambda: op(a))
    torch.testing.assert_close(result, x.amax(1))
    assert kinds == ["all_reduce"]


def test_a_bias_is_added_once_and_terms_pass_through_linear_operands():
    op, name = define(lambda x, w, b: x @ w + b, "(Tensor x, Tensor w, Tensor b) -> Tensor")
    spmd.register_rule(name, "m k, k n, +n -> m n", each=[0, 1])
    x, w, b = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5)
    assert spmd.testing.check_rule(name, x, w, b) == 11
    mesh = spmd.make_mesh(MESH, ("x",))
    d = spmd.mark_sharding(x.to("spmd"), mesh, (None, "x"))
    result, kinds = collectives(lambda: op(d, w.to("spmd"), b.to("spmd")))
    torch.testing.assert_close(result, x @ w + b)
    assert kinds == ["all_reduce"]


def test_a_result_that_every_shard_computes_alike():
    def solve(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.solve(a, b), a.inverse()

    schema = "(Tensor a, Tensor b) -> (Tensor, Tensor)"
    _, terms = define(solve, schema)
    op, name = define(solve, schema)
    a, b = torch.randn(4, 4) + 4 * torch.eye(4), torch.randn(4, 400)
    spmd.register_rule(terms, "[m] [n], [m] k -> [n] k, [m] [n]")
    with pytest.raises(AssertionError, match="factor 2 of size 400 in 2: result 1 differs"):
        spmd.testing.check_rule(terms, a, b)
    spmd.register_rule(name, "[m] [n], [m] k -> [n] k, = [m] [n]")
    assert spmd.testing.check_rule(name, a, b) == 2
    cut = spmd.mark_sharding(b.to("spmd"), spmd.make_mesh(MESH, ("x",)), (None, "x"))
    results, kinds = collectives(lambda: torch.cat([t.flatten() for t in op(a.to("spmd"), cut)]))
    torch.testing.assert_close(results, torch.cat([t.flatten() for t in solve(a, b)]))
    assert "all_reduce" not in kinds


def test_local_attributes_are_those_of_the_tile():
    def rows(x: Tensor, first: int, size: list[int]) -> Tensor:
        return x + torch.arange(first, first + size[0], device=x.device).view(-1, 1)

    op, name = define(rows, "(Tensor x, int first, int[] size) -> Tensor")
    spmd.register_rule(
        name, "r c -> r c", local={"first": "start(o0,0)", "size": "[size(r0,0), size(r0,1)]"}
    )
    x = torch.zeros(10, 2)
    spmd.testing.check_rule(name, x, 0, [10, 2])
    d = spmd.mark_sharding(x.to("spmd"), spmd.make_mesh(MESH, ("x",)), ("x", None))
    result, kinds = collectives(lambda: op(d, 0, [10, 2]))
    torch.testing.assert_close(result, rows(x, 0, [10, 2]))
    assert kinds == []
    assert f"{name}(%" in _C.last_program().program_text()


@pytest.mark.parametrize(
    ("function", "text", "options", "args", "message"),
    [
        (lambda x: x / x.sum(1, keepdim=True), "r c -> r c", {}, 1, "factor 1 of size 7 in 2"),
        (lambda x: x.amax(1), "r c -> r", {}, 1, "factor 1 of size 7 in 2"),
        (
            lambda x: x * 2 + 1,
            "r c -> r c",
            {"jointly": [0]},
            1,
            r"operands \[0\] as two partial results",
        ),
        (lambda x, y: x @ y + 1, "m k, k n -> m n", {"each": [0]}, 2, "factor 1 of size 7"),
    ],
)
def test_a_wrong_rule_is_found(function, text, options, args, message):
    schema = "(Tensor x) -> Tensor" if args == 1 else "(Tensor x, Tensor y) -> Tensor"
    _, name = define(function, schema)
    spmd.register_rule(name, text, **options)
    tensors = [torch.rand(6, 7), torch.rand(7, 5)][:args]
    with pytest.raises(AssertionError, match=message):
        spmd.testing.check_rule(name, *tensors)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("r c", {}, r"""text "r c": expected exactly one '->'"""),
        ("r r -> r", {}, "'r' occurs twice in one tensor"),
        ("r c -> r c", {"kinds": {"k": "max"}}, r"kinds names 'k', which the text .* r, c"),
        (
            "r [c] -> r",
            {"kinds": {"c": "max"}},
            "'c' is in brackets, so it is never sharded and has no kind",
        ),
        ("r c -> r c", {"kinds": {"c": "max"}}, "'c' is in every result"),
        ("r c -> r", {"kinds": {"c": "mean"}}, "kind of 'c': .*mean"),
        ("r c -> r c", {"each": [1]}, "operand 1 is not one of the 1"),
        ("r c -> r c", {"local": {"size": "[size(o0,"}}, "local attribute 'size' = .*"),
        ("r c -> r c", {"local": {"size": "size(o1,0)"}}, "refers to operand 1; there are 1"),
        ("r c, c -> r c", {}, "has 1 tensor arguments, the text .* 2"),
        ("r c -> r c, r", {}, "has 1 results, the text .* 2"),
    ],
)
def test_malformed_rules_say_what_is_wrong(text, options, message):
    _, name = define(lambda x: x + 1, "(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match="register_rule.*" + message):
        spmd.register_rule(name, text, **options)


def test_rules_are_for_ops_that_exist_and_have_none():
    with pytest.raises(ValueError, match="there is no op 'spmd_test_rules::nowhere'"):
        spmd.register_rule("spmd_test_rules::nowhere", "r -> r")
    with pytest.raises(ValueError, match="'aten::mm' has a rule"):
        spmd.register_rule("aten::mm", "m k, k n -> m n")
    _, name = define(lambda x: x + 1, "(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match=f"check_rule: '{name}' has no rule"):
        spmd.testing.check_rule(name, torch.zeros(2, 2))
    blind = torch.library.custom_op(
        "spmd_test_rules::no_fake", mutates_args=(), device_types="cpu"
    )(_doubled)
    with pytest.raises(ValueError, match=r"no_fake' ran on the host"):
        spmd.testing.check_rule("spmd_test_rules::no_fake", torch.zeros(2, 2))
    assert torch.equal(blind(torch.ones(2).to("spmd")).cpu(), 2 * torch.ones(2))
    with pytest.raises(ValueError, match=r"'aten::std' is traced as aten::std\.correction"):
        spmd.testing.check_rule("aten::std", torch.zeros(2, 2))


def test_a_later_shard_that_computes_something_else_is_found():
    def drifting(a: Tensor, b: Tensor, first: int) -> tuple[Tensor, Tensor]:
        return b + 1, a + 100 * (first > 0)

    _, name = define(drifting, "(Tensor a, Tensor b, int first) -> (Tensor, Tensor)")
    spmd.register_rule(name, "[m], k -> k, = [m]", local={"first": "start(o1,0)"})
    for a in (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")])):
        with pytest.raises(AssertionError, match="factor 1 of size 6 in 2: result 1 differs"):
            spmd.testing.check_rule(name, a, torch.arange(6.0), 0)


def test_shards_of_a_factor_of_one_result_are_no_partial_sums_of_another():
    def spread(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        return x[:, None].repeat(1, n), x.sum()

    op, name = define(spread, "(Tensor x, int n) -> (Tensor, Tensor)")
    spmd.register_rule(name, "r -> r c, ()", local={"n": "size(r0,1)"})
    assert spmd.testing.check_rule(name, torch.arange(6.0), 4) == 5
    x = spmd.mark_sharding(torch.arange(6.0).to("spmd"), spmd.make_mesh(MESH, ("x",)), ("x",))
    wide, total = op(x, 4)
    assert total.item() == 15
    assert wide.cpu().sum() == 60


def test_a_call_runs_when_a_value_of_it_is_asked_for():
    ran = []

    def says(word: str):
        def run(x: Tensor) -> Tensor:
            ran.append(word)
            return 2 * x

        name = f"spmd_test_rules::says_{word}"
        op = torch.library.custom_op(
            name, run, mutates_args=(), device_types="cpu", schema="(Tensor x) -> Tensor"
        )
        op.register_fake(torch.empty_like)
        return op

    first, second, other = map(says, ("first", "second", "other"))
    x = torch.randn(6, 4)
    calls = spmd.testing.calls_of(lambda x: (second(first(x)), other(x)), x)
    call = {call.op.rpartition("_")[2]: call for call in calls}
    assert call.keys() == {"first", "second", "other"} and ran == []
    assert torch.equal(call["first"].operands[0], x) and ran == []
    assert torch.equal(call["second"].whole[0], 4 * x) and ran == ["first", "second"]
    assert torch.equal(call["first"].whole[0], 2 * x) and ran == ["first", "second"]
    assert torch.equal(call["other"].whole[0], 2 * x) and ran == ["first", "second", "other"]


def test_a_maximum_does_not_pass_through_what_is_not_monotone():
    calls = spmd.testing.calls_of(lambda x: (-x).relu(), torch.randn(6, 4))
    negated, clipped = calls
    assert negated.jointly["max"] == []
    assert clipped.jointly["max"] == [0]
    clipped.op, clipped.jointly["sum"] = "relu, said to be linear", [0]
    with pytest.raises(AssertionError, match=r"operands \[0\] as two partial results of a sum"):
        clipped.check((2,))
