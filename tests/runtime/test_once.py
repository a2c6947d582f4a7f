"""What is computed of frozen tensors: once, again when one has changed, and not for longer than they live."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from autofuse.runtime.once import Once


class Twice:
    """A step, and how often it ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.made: list[weakref.ref[Any]] = []

    def __call__(self, values: dict[str, Any]) -> None:
        self.runs += 1
        values["y"] = values["w"] * 2 + values["b"]
        self.made.append(weakref.ref(values["y"]))


@pytest.fixture
def step() -> Twice:
    return Twice()


@pytest.fixture
def once(step: Twice) -> Once:
    return Once(("w", "b"), ("y",), step, "cpu")


def result(once: Once, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    values = {"x": torch.zeros(1), "w": w, "b": b}
    once(values)
    assert set(values) == {"x", "w", "b", "y"}
    return values["y"]


def test_it_runs_once(once: Once, step: Twice) -> None:
    w, b = torch.randn(4), torch.randn(4)
    first = result(once, w, b)
    assert result(once, w, b) is first
    assert torch.equal(first, w * 2 + b)
    assert step.runs == 1


@pytest.mark.parametrize("change", [
    lambda w: w.add_(1),
    lambda w: w[1:2].zero_(),
    lambda w: w.detach().mul_(2),
    lambda w: setattr(w, "data", w + 1),
    lambda w: w.set_(torch.randn(4)),
])  # fmt: skip
def test_a_change_in_place_is_seen(once: Once, step: Twice, change: Any) -> None:
    w, b = torch.randn(4), torch.randn(4)
    result(once, w, b)
    change(w)
    assert torch.equal(result(once, w, b), w * 2 + b)
    assert step.runs == 2
    assert len(step.made) == 2
    assert step.made[0]() is None, "the old result is let go"


def test_memory_that_comes_back_at_the_old_address_is_another_storage(once: Once) -> None:
    w, b = torch.zeros(1 << 16), torch.zeros(1 << 16)
    result(once, w, b)
    for number in range(8):  # as moving a model away and back does
        w.data = torch.empty(0)
        w.data = torch.full((1 << 16,), float(number))
        assert torch.equal(result(once, w, b), torch.full((1 << 16,), 2.0 * number))


def test_another_tensor_of_equal_numbers_is_another(once: Once, step: Twice) -> None:
    w, b = torch.randn(4), torch.randn(4)
    result(once, w, b)
    other = w.clone() + 1
    assert torch.equal(result(once, other, b), other * 2 + b)
    result(once, w, b)
    assert step.runs == 2, "both are kept: layers share a plan"


def test_results_go_with_the_weights(once: Once, step: Twice) -> None:
    w, b = torch.randn(4), torch.randn(4)
    result(once, w, b)
    assert step.made[0]() is not None
    del w
    assert step.made[0]() is None


def test_results_go_with_the_executor(step: Twice) -> None:
    once = Once(("w", "b"), ("y",), step, "cpu")
    w, b = torch.randn(4), torch.randn(4)
    result(once, w, b)
    gc.disable()
    try:
        del once
        assert step.made[0]() is None
    finally:
        gc.enable()


def test_tensors_without_versions_are_known_by_identity(once: Once, step: Twice) -> None:
    with torch.inference_mode():
        w, b = torch.randn(4), torch.randn(4)
    result(once, w, b)
    result(once, w, b)
    assert step.runs == 1


def test_a_failure_leaves_nothing_behind(step: Twice) -> None:
    fails = [True]

    def failing(values: dict[str, Any]) -> None:
        if fails:
            raise RuntimeError("out of memory")
        step(values)

    once = Once(("w", "b"), ("y",), failing, "cpu")
    w, b = torch.randn(4), torch.randn(4)
    with pytest.raises(RuntimeError):
        result(once, w, b)
    fails.clear()
    assert torch.equal(result(once, w, b), w * 2 + b)


def test_constants_alone_have_no_tensor_to_live_with(step: Twice) -> None:
    once = Once((), ("y",), lambda values: values.update(y=torch.arange(3)), "cpu")
    values: dict[str, Any] = {}
    once(values)
    first = values["y"]
    once(values)
    assert values["y"] is first


def test_threads_compute_it_once_and_never_see_another_sets(once: Once, step: Twice) -> None:
    sets = [(torch.full((64,), float(i)), torch.zeros(64)) for i in range(4)]
    gate, wrong = threading.Barrier(8), list[int]()

    def work(number: int) -> None:
        gate.wait()
        for turn in range(200):
            i = (number + turn) % 4
            if not torch.equal(result(once, *sets[i]), torch.full((64,), 2.0 * i)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert step.runs == 4
