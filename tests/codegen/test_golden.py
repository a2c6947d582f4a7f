"""Generated Triton, one file a kind of fusion: the text is what `emit` writes today, letter by letter, and what it says
is right, against the workload's own function in float64.

The files in `golden/` are for reading: a change of the generator shows there as a diff that a person can judge. After
such a change, renew them and look at `git diff`:

    AUTOFUSE_GOLDEN=renew python -m pytest tests/codegen/test_golden.py

Each is a shipped workload at the small dims and under the schedule of the table below, in float16 where the workload
has bfloat16 (Triton's interpreter, which runs every one of them here, does no arithmetic in that).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from autofuse.capture.aten import run as run_aten
from autofuse.capture.convert import from_fx
from autofuse.capture.frozen import declared
from autofuse.capture.trace import aot_backend
from autofuse.capture.workload import load
from autofuse.codegen.kernel import Kernel
from autofuse.codegen.triton import emit
from autofuse.fusion.folding import fold, program_of
from autofuse.fusion.rewrites import variants
from autofuse.fusion.subgraph import producing
from autofuse.ir.graph import Graph
from autofuse.measure.inputs import plain
from autofuse.measure.launch import interpret
from autofuse.schedule.schedule import Schedule

FOLDER = Path(__file__).parent / "golden"
RENEW = "AUTOFUSE_GOLDEN=renew python -m pytest tests/codegen/test_golden.py"
MULTIPROCESSORS = 2
"""Of a persistent grid: so few that each program has several tiles."""


@dataclass(frozen=True)
class Golden:
    """One kernel: the whole workload at `dims`, each axis in its role (outermost loop first), with these knobs.

    limit: relative error in the 2-norm. It is wide for float8, of which Triton 3.6's interpreter halves what rounds up
    to a power of two (127.8 becomes 64; a value in 70): the carry out of the mantissa is lost.
    """

    dims: Mapping[str, int]
    roles: Mapping[str, str]
    rewrites: tuple[str, ...] = ()
    knobs: Mapping[str, object] = field(default_factory=dict[str, object])
    limit: float = 3e-3

    @property
    def schedule(self) -> Schedule:
        return Schedule.from_dict({"roles": dict(self.roles), **self.knobs})


ATTENTION = {"batch": 1, "heads": 2, "tokens": 96, "head_dim": 32}
GOLDEN: dict[str, Golden] = {
    "pointwise.rotary": Golden(
        {"batch": 2, "tokens": 6, "heads": 4, "kv_heads": 2, "head_dim": 16},
        {"n": "grid(1)", "p": "grid(16)", "m": "whole", "q": "whole"},
    ),
    "pointwise.geglu_chunk": Golden({"tokens": 5, "hidden": 200}, {"m": "grid(1)", "n": "grid(128)"}),
    "softmax.softmax": Golden(
        {"rows": 6, "columns": 500}, {"m": "grid(2)", "n": "loop(128)"}, ("online",), {"sweep": "hold"}
    ),
    "softmax.cross_entropy": Golden({"rows": 5, "classes": 500}, {"m": "grid(1)", "k": "loop(128)"}, ("online",)),
    "norms.layer_norm": Golden({"tokens": 4, "hidden": 500}, {"m": "grid(1)", "n": "loop(128)"}, ("moments",)),
    "norms.group_norm_silu": Golden(
        {"batch": 2, "channels": 12, "size": 10, "groups": 3},
        {"m": "grid(1)", "p": "grid(1)", "n": "whole", "q": "loop(64)"},
    ),
    "norms.layer_norm_backward": Golden({"tokens": 21, "hidden": 60}, {"m": "split(2,4)", "n": "whole"}),
    "reductions.column_sum": Golden({"rows": 130, "columns": 40}, {"m": "grid(32)", "k": "split(16,4)"}),
    "quantised.rms_norm_fp8_row": Golden({"tokens": 5, "hidden": 200}, {"m": "grid(1)", "n": "whole"}, limit=0.1),
    "linear.linear_bias_gelu": Golden(
        {"tokens": 100, "in_features": 96, "out_features": 64},
        {"m": "grid(32)", "n": "grid(32)", "k": "loop(32)"},
        knobs={"access": "descriptor", "group": 2, "persistent": 1, "flatten": True},
    ),
    "linear.gated_mlp_up": Golden(
        {"tokens": 40, "in_features": 48, "hidden": 56}, {"m": "grid(16)", "n": "grid(32)", "k": "loop(16)"}
    ),
    "matmuls.norm_linear_plain": Golden(
        {"tokens": 40, "hidden": 80, "out_features": 48}, {"m": "grid(16)", "n": "grid(32)", "k": "loop(32)"},
        ("deferred",),
    ),
    "linear.norm_linear_frozen": Golden(
        {"tokens": 40, "hidden": 80, "out_features": 48}, {"m": "grid(16)", "n": "grid(32)", "k": "loop(32)"},
        ("folded",),
    ),
    "epilogues.linear_head_norm": Golden(
        {"tokens": 40, "in_features": 80, "heads": 3, "head_dim": 32},
        {"m": "grid(16)", "n": "grid(1)", "p": "whole", "k": "loop(32)"},
    ),
    "epilogues.router": Golden(
        {"tokens": 40, "hidden": 80, "experts": 24}, {"m": "grid(16)", "n": "whole", "k": "loop(32)"}
    ),
    "quantised.int8_linear": Golden(
        {"tokens": 20, "in_features": 80, "out_features": 48}, {"m": "grid(16)", "n": "grid(32)", "k": "loop(32)"}
    ),
    "quantised.int4_linear": Golden(
        {"tokens": 20, "in_features": 128, "out_features": 48, "group": 64},
        {"m": "grid(16)", "n": "grid(32)", "k": "loop(1)", "r": "whole", "l": "loop(16)"},
    ),
    "matmuls.relu_chain": Golden(
        {"rows": 40, "features": 32, "hidden": 48}, {"m": "grid(16)", "n": "whole", "k": "loop(16)", "l": "whole"}
    ),
    "matmuls.lora_linear": Golden(
        {"tokens": 40, "in_features": 80, "out_features": 48, "rank": 16},
        {"m": "grid(16)", "n": "grid(32)", "k": "loop(32)", "l": "whole"},
        ("seeded",),
    ),
    "matmuls.skinny_linear": Golden(
        {"tokens": 8, "in_features": 200, "out_features": 48}, {"m": "grid(16)", "n": "grid(32)", "k": "split(32,3)"}
    ),
    "attention.attention_causal": Golden(
        ATTENTION, {"m": "grid(1)", "n": "grid(32)", "p": "whole", "k": "loop(32)", "l": "whole"},
        ("deferred", "online"),
    ),
    "attention.attention_window": Golden(
        {**ATTENTION, "window": 40}, {"m": "grid(1)", "n": "grid(32)", "p": "whole", "k": "loop(16)", "l": "whole"},
        ("deferred", "online"),
    ),
    "attention.attention_decode": Golden(
        {"batch": 2, "heads": 6, "kv_heads": 2, "keys": 100, "head_dim": 32},
        {"m": "grid(1)", "p": "grid(1)", "n": "grid(4)", "q": "whole", "k": "split(16,3)", "l": "whole"},
        ("deferred", "online"),
    ),
    "softmax.linear_cross_entropy": Golden(
        {"tokens": 40, "hidden": 48, "classes": 100}, {"m": "grid(16)", "l": "loop(32)", "k": "loop(16)"}, ("online",)
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A golden kernel beside what it came from. tensors: the graph's inputs and what is computed of frozen ones ahead;
    exact: its outputs, by float64."""

    kernel: Kernel
    graph: Graph
    tensors: dict[str, torch.Tensor]
    exact: tuple[torch.Tensor, ...]


@cache
def made(name: str) -> Made:
    golden = GOLDEN[name]
    torch.manual_seed(0)
    fn, args = load(name, dict(golden.dims), "cpu")
    fn, args = fn.half() if isinstance(fn, torch.nn.Module) else fn, tuple(map(narrow, args))
    graph, tensors = captured(fn, args)
    program = program_of(graph, [op.name for op in graph.ops], tuple(v for v in graph.outputs if v is not None))
    folding = fold(graph)
    env = run_aten(producing(folding.onto(graph), folding.values), dict(tensors))
    tensors |= {value: env[value] for value in folding.values}
    kernel = emit(variants(program)[golden.rewrites], golden.schedule, name.partition(".")[2], MULTIPROCESSORS)
    with torch.no_grad():
        exact = (fn.double() if isinstance(fn, torch.nn.Module) else fn)(*map(wide, args))
    return Made(kernel, graph, tensors, exact if isinstance(exact, tuple) else (exact,))


def captured(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> tuple[Graph, dict[str, torch.Tensor]]:
    """As capture(), with the tensor that each input of the graph is: parameters and arguments in torch's order."""
    graphs: list[Graph] = []
    env: dict[str, torch.Tensor] = {}

    def compiler(gm: torch.fx.GraphModule, _example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(from_fx(gm))

        def run(*given: torch.Tensor) -> Any:
            env.update(zip(graphs[0].inputs, (tensor.detach().clone() for tensor in given), strict=True))
            return gm(*given)

        return run

    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        torch.compile(fn, backend=aot_backend(compiler, declared(fn)), fullgraph=True, dynamic=False)(*args)
    (graph,) = graphs
    return graph, env


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.dtype == torch.bfloat16 else tensor


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


@pytest.mark.parametrize("name", GOLDEN)
def test_the_text_is_the_golden_one(name: str) -> None:
    file, source = FOLDER / f"{name.partition('.')[2]}.py", made(name).kernel.source
    if os.environ.get("AUTOFUSE_GOLDEN") == "renew":
        FOLDER.mkdir(exist_ok=True)
        file.write_text(source)
    assert file.exists(), f"{file} is missing; make it: {RENEW}"
    assert source == file.read_text(), f"the generator writes {name} otherwise now; if it is better, keep it: {RENEW}"


@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_text_is_right(name: str) -> None:
    found = made(name)
    env: dict[str, Any] = dict(found.tensors)
    for value in found.kernel.values:
        if value not in env:
            env[value] = plain(found.graph.types[value], "cpu")
            env[value].untyped_storage().fill_(0xFF)  # NaN, in float8 too
    interpret(found.kernel, env)
    for value, exact in zip(found.graph.outputs, found.exact, strict=True):
        assert value is not None
        assert env[value].shape == exact.shape
        error = (env[value].double() - exact.double()).norm() / exact.double().norm()
        assert error < GOLDEN[name].limit, f"{value}: relative error {error:.2g}\n{found.kernel.source}"


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == {name.partition(".")[2] for name in GOLDEN}
