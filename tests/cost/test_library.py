"""Library estimates against what was measured on an H200 (COST_MODEL.md, FIELD.md)."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.cost.device import resolve
from autofuse.cost.library import calls_time, op_time
from autofuse.ir.graph import Apply, Arg, AtenCall, Contract, Map, Op, Ref, Reshape
from tests.cost.programs import tensor

H200 = resolve("h200")


def mm(m: int, n: int, k: int) -> tuple[Op, dict]:
    op = Op("mm", AtenCall("aten.mm.default", (Ref("a"), Ref("b"))), Contract("a", "b", "mk", "kn", "mn"), ("c",))
    return op, {"a": tensor(m, k), "b": tensor(k, n), "c": tensor(m, n)}


def test_large_matmul_lies_in_the_measured_band() -> None:
    found = op_time(*mm(8192, 8192, 8192), H200)
    assert 2 * 8192**3 / 790e6 < found.time_us < 2 * 8192**3 / 690e6
    assert found.binding == "tensor"


def test_thin_matmul_is_bound_by_its_weights() -> None:
    found = op_time(*mm(16, 14336, 4096), H200)
    assert found.binding == "dram"
    assert 28 < found.time_us < 45


def test_addmm_without_a_form_is_still_a_matmul() -> None:
    op = Op("addmm", AtenCall("aten.addmm.default", (Ref("bias"), Ref("a"), Ref("b"))), None, ("c",))
    types = {"bias": tensor(4096), "a": tensor(8192, 1024), "b": tensor(1024, 4096), "c": tensor(8192, 4096)}
    plain, _ = op_time(*mm(8192, 4096, 1024), H200), None
    assert op_time(op, types, H200).time_us == pytest.approx(plain.time_us, rel=0.05)


def test_eager_add_moves_three_tensors() -> None:
    op = Op(
        "add",
        AtenCall("aten.add.Tensor", (Ref("x"), Ref("y"))),
        Map(("x", "y"), Apply("add", (Arg(0), Arg(1))), "float32"),
        ("z",),
    )
    types = {name: tensor(8192, 8192) for name in "xyz"}
    found = op_time(op, types, H200)
    assert found.dram_bytes == 3 * 2 * 8192**2
    assert found.time_us > found.dram_bytes / H200.read_bytes_per_us


def test_views_are_free_and_calls_add_up() -> None:
    view = Op("v", AtenCall("aten.view.default", (Ref("c"),)), Reshape("c"), ("v",))
    op, types = mm(1024, 1024, 1024)
    types["v"] = tensor(1024 * 1024)
    assert op_time(view, types, H200).time_us == 0
    assert calls_time([op, view, op], types, H200).time_us == 2 * op_time(op, types, H200).time_us


def test_a_softmax_moves_its_bytes_once() -> None:
    op = Op("s", AtenCall("aten._softmax.default", (Ref("x"), -1, False)), None, ("y",))
    found = op_time(op, {"x": tensor(8192, 4096), "y": tensor(8192, 4096)}, H200)
    assert found.dram_bytes == 2 * 2 * 8192 * 4096
    assert found.time_us > found.dram_bytes / H200.read_bytes_per_us + H200.launch_us


def test_results_that_nobody_keeps_cost_nothing() -> None:
    op = Op(
        "n", AtenCall("aten.native_layer_norm.default", (Ref("x"), (4096,), None, None, 1e-5)), None, ("y", "m", "r")
    )
    found = op_time(op, {"x": tensor(8192, 4096), "y": tensor(8192, 4096)}, H200)
    assert found.dram_bytes == 2 * 2 * 8192 * 4096


def test_a_loss_picks_one_element_a_row() -> None:
    op = Op("l", AtenCall("aten.nll_loss_forward.default", (Ref("x"), Ref("t"), None, 1, -100)), None, ("y", "w"))
    types = {"x": tensor(8192, 32000), "t": tensor(8192), "y": tensor()}
    found = op_time(op, types, H200)
    assert found.dram_bytes == 8192 * 32 + 2 * 8192 + 2
    assert found.time_us < 10


def attention(*masks: str, **options: Any) -> Op:
    terms = (tuple(Ref(mask) for mask in masks), (), ())
    return Op(
        "a",
        AtenCall("autofuse.attention.default", (Ref("q"), Ref("k"), Ref("v"), *terms), (*options.items(),)),
        None,
        ("o",),
    )


def test_attention_by_hand_counts_its_keys_and_its_masks() -> None:
    types = {"q": tensor(4, 32, 2048, 128), "k": tensor(4, 8, 128, 2048), "v": tensor(4, 8, 2048, 64)}
    types |= {"o": tensor(128, 2048, 64), "bias": tensor(32, 2048, 2048), "row": tensor(4, 1, 1, 2048)}
    plain = op_time(attention(transposed=True), types, H200)
    assert plain.binding == "tensor"
    assert plain.time_us > 2 * 128 * 2048**2 * (128 + 64) / 1e9
    assert op_time(attention(is_causal=True), types, H200).time_us < 0.6 * plain.time_us
    whole, row = (op_time(attention(mask, all_seen=False), types, H200) for mask in ("bias", "row"))
    assert whole.dram_bytes - row.dram_bytes > 6 * 32 * 2048**2 * 2
    assert plain.time_us < row.time_us < whole.time_us
    assert op_time(attention("bias", all_seen=True), types, H200).time_us < whole.time_us


def test_attention_of_one_tensor_thrice() -> None:
    """A value that is read twice is one input, and not the next argument in place of it."""
    types = {name: tensor(2, 32, 2048, 64) for name in "qkv"} | {
        "o": tensor(64, 2048, 64),
        "row": tensor(2, 1, 1, 2048),
    }
    call = AtenCall("autofuse.attention.default", (Ref("q"), Ref("q"), Ref("q"), (Ref("row"),), (), ()))
    itself = op_time(Op("a", call, None, ("o",)), types, H200)
    assert itself.time_us == pytest.approx(op_time(attention("row"), types, H200).time_us)


@pytest.mark.parametrize("m", [0, 1, 7])
def test_small_and_empty_shapes(m: int) -> None:
    found = op_time(*mm(m, 33, 5), H200)
    assert 0 <= found.time_us < 10
