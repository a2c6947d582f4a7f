"""Small named-axis programs, candidate columns and a made-up recording for the cost tests."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa

from autofuse.codegen.looptree import build_tree
from autofuse.cost.backbone import estimate
from autofuse.cost.device import Target, resolve
from autofuse.cost.features import Features, featurize
from autofuse.ir.graph import Apply, Arg, TensorType, contiguous_strides
from autofuse.ir.index import Index
from autofuse.ir.program import Axis, ContractNode, Load, MapNode, Program, ReduceNode, Store

ix = Index.of


def tensor(*shape: int, dtype: str = "bfloat16") -> TensorType:
    return TensorType(shape, dtype, contiguous_strides(shape))


def matmul(m: int, n: int, k: int, epilogue: bool = False) -> Program:
    nodes: list = [
        Load("a", (ix("m"), ix("k")), "bfloat16"), Load("b", (ix("k"), ix("n")), "bfloat16"),
        ContractNode(0, 1, ("k",), "bfloat16"),
    ]  # fmt: skip
    if epilogue:
        nodes.append(MapNode((2,), Apply("tanh", (Arg(0),)), "float32", "bfloat16"))
    types = {"a": tensor(m, k), "b": tensor(k, n), "c": tensor(m, n)}
    axes = (Axis("m", m), Axis("n", n), Axis("k", k))
    return Program(axes, tuple(nodes), (Store("c", (ix("m"), ix("n")), len(nodes) - 1),), types)


def softmax(m: int, n: int) -> Program:
    nodes = (
        Load("x", (ix("m"), ix("n")), "bfloat16"),
        ReduceNode("max", 0, ("n",), "float32", "float32"),
        MapNode((0, 1), Apply("exp", (Apply("sub", (Arg(0), Arg(1))),)), "float32", "float32"),
        ReduceNode("sum", 2, ("n",), "float32", "float32"),
        MapNode((2, 3), Apply("div", (Arg(0), Arg(1))), "float32", "bfloat16"),
    )
    types = {"x": tensor(m, n), "y": tensor(m, n)}
    return Program((Axis("m", m), Axis("n", n)), nodes, (Store("y", (ix("m"), ix("n")), 4),), types)


def column_sum(m: int, n: int) -> Program:
    nodes = (Load("x", (ix("m"), ix("n")), "bfloat16"), ReduceNode("sum", 0, ("m",), "float32", "float32"))
    types = {"x": tensor(m, n), "y": tensor(n, dtype="float32")}
    return Program((Axis("m", m), Axis("n", n)), nodes, (Store("y", (ix("n"),), 1),), types)


def pointwise(m: int, n: int, depth: int = 1) -> Program:
    nodes: list = [Load("x", (ix("m"), ix("n")), "bfloat16"), Load("b", (ix("n"),), "bfloat16")]
    nodes.append(MapNode((0, 1), Apply("add", (Arg(0), Arg(1))), "float32", "bfloat16"))
    for _ in range(depth - 1):
        nodes.append(MapNode((len(nodes) - 1,), Apply("tanh", (Arg(0),)), "float32", "bfloat16"))
    types = {"x": tensor(m, n), "b": tensor(n), "y": tensor(m, n)}
    return Program((Axis("m", m), Axis("n", n)), tuple(nodes), (Store("y", (ix("m"), ix("n")), len(nodes) - 1),), types)


MATMUL_KINDS = {"m": "grid", "n": "grid", "k": "loop"}
MATMUL_SPACE = {
    "block.m": (32, 64, 128, 256), "block.n": (32, 64, 128, 256), "block.k": (32, 64, 128), "num_warps": (4, 8),
    "num_stages": (1, 2, 3, 4), "group": (1, 8), "persistent": (0, 1), "flatten": (0, 1), "access": (0, 1),
}  # fmt: skip


def grid(**choices: tuple[int, ...]) -> dict[str, np.ndarray]:
    rows = list(product(*choices.values()))
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(choices)}


def features(
    program: Program, kinds: dict[str, str], target: Target | None = None, **choices: tuple[int, ...]
) -> Features:
    return featurize(program, build_tree(program, kinds), grid(**choices), target or resolve("h200"), kinds)


def recording(seed: int = 0, scale: float = 1.0) -> pa.Table:
    """Candidates of several problems with labels that the rules miss in a learnable way."""
    target, generator = resolve("h200"), np.random.default_rng(seed)
    parts, keys, families = [], [], []
    problems = [("contract", matmul(s, s, 4096), MATMUL_KINDS, MATMUL_SPACE) for s in (1024, 2048, 4096)]
    rows = {"block.m": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8, 16, 32), "num_stages": (1, 2)}
    problems += [("reduction", softmax(4096, s), {"m": "grid", "n": "whole"}, rows) for s in (1024, 4096, 16384)]
    for family, program, kinds, space in problems:
        found = features(program, kinds, **space)
        some = generator.permutation(len(found))[: int(200 * scale)]
        parts.append(found.take(some))
        keys += [f"{family}-{program.axes[0].size}-{program.axes[1].size}"] * len(some)
        families += [family] * len(some)
    joined = Features.concat(parts)
    found = estimate(joined, target)
    have = found.resources
    registers = np.clip(np.round(have.registers * 0.8 + 12 + 6 * (joined["num_warps"] > 4)), 16, 255)
    spills = np.where(have.spill_bytes > 40, np.round(have.spill_bytes * 1.3 + 8), 0)
    time = (
        np.minimum(found.time_us, 1e6)
        * np.where(joined["num_stages"] == 2, 1.4, 1.0)
        * (1 + 0.1 * (joined["num_warps"] > 4))
    )
    labels = {"n_regs": registers, "spill_bytes": spills, "smem_bytes": have.smem_bytes + 0.0, "time_us": time}
    text = {"target": ["h200"] * len(joined), "family": families, "program_key": keys}
    return pa.table({**joined.recording(), **labels, **text})
