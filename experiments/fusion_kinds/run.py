"""Is every kind of fusion found from plain PyTorch code, and is the plan ahead of torch.compile on this GPU?

python experiments/fusion_kinds/run.py [--rows softmax,"router 128",...] [--out DIR] [--seconds 20] [--without default]
python experiments/fusion_kinds/run.py --list        the rows with their goals and floors; needs no GPU
python experiments/fusion_kinds/run.py --table       the results as Markdown; needs no GPU

`--rows` takes names of rows, of workloads, or of kinds. Results are written after each row; rows that an earlier run
left in --out are kept, so that the table can be filled a few rows at a time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's own folder is on the path, not the one above

import common
import scripts

from autofuse.capture.trace import capture
from autofuse.capture.workload import load, resolve
from autofuse.results.experiment import Experiment, Figure, read
from autofuse.runtime import counters
from autofuse.search.events import TuneResult

Args = tuple[Any, ...]
Library = Callable[[Args], dict[str, common.Call]]
"""Library calls that the row is compared with, by name: the quickest that runs counts."""

SHARE, MAX, BARE, MEMORY, KERNELS = (
    "share of floor", "against max-autotune", "of bare library time", "peak memory", "kernels less than default's",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """goals: metric -> goal. attended: share of a hand-written attention's scores that are not masked."""

    kind: str
    name: str
    workload: str
    shape: Mapping[str, int] = field(default_factory=dict[str, int])
    goals: Mapping[str, float] = field(default_factory=dict[str, float])
    library: Library | None = None
    attended: float = 1.0


# --- library calls ---


def _matmul(x: int, weight: int) -> Library:
    """F.linear of these arguments."""

    def calls(args: Args) -> dict[str, common.Call]:
        return {"matmul": common.Bare(F.linear, (args[x], args[weight]))}

    return calls


def _matmuls(x: int, *weights: int) -> Library:
    """Linears one after the other."""

    def calls(args: Args) -> dict[str, common.Call]:
        return {"matmuls": common.Bare(lambda: [F.linear(args[x], args[w]) for w in weights], ())}

    return calls


def _sdpa(mask: Callable[[Args], torch.Tensor | None] | None = None, *, decode: bool = False) -> Library:
    """Every backend of scaled dot product attention; causal by its own flag where there is no mask."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
                "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip

    def calls(args: Args) -> dict[str, common.Call]:
        q, k, v = args[:3]
        q = q.unsqueeze(2) if decode else q
        chosen = None if mask is None else mask(args)

        def through(backend: Any) -> common.Call:
            def call() -> torch.Tensor:
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(
                        q, k, v, chosen, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
                    )

            return common.Bare(call, ())

        return {name: through(backend) for name, backend in backends.items()}

    return calls


def _alibi(args: Args) -> torch.Tensor:
    q, slopes = args[0], args[3]
    at = torch.arange(q.shape[-2], device=q.device)
    bias = slopes.view(-1, 1, 1) * (at[None] - at[:, None])
    return bias.masked_fill(at[None] > at[:, None], float("-inf")).to(q.dtype).unsqueeze(0)


def _window(width: int) -> Callable[[Args], torch.Tensor]:
    def mask(args: Args) -> torch.Tensor:
        at = torch.arange(args[0].shape[-2], device=args[0].device)
        return (at[None] <= at[:, None]) & (at[:, None] - at[None] < width)

    return mask


def _filled(args: Args) -> torch.Tensor:
    return torch.arange(args[1].shape[-2], device=args[1].device) < args[3].view(-1, 1, 1, 1)


# --- the table of issue 3 ---


def _elementwise() -> list[Row]:
    goals = {SHARE: 0.95, MAX: 1.0}
    found = {
        "rotary 4x4096": ("rotary", {"batch": 4, "tokens": 4096}), "GEGLU of halves": ("geglu_chunk", {}),
        "embedding + scale + position": ("embedding_position", {}), "token shift": ("token_shift", {}),
        "gather + weighted sum": ("gather_add", {}), "SwiGLU": ("swiglu", {}),
        "SwiGLU float32": ("swiglu_float32", {}),
    }  # fmt: skip
    return [Row("elementwise", name, workload, shape, goals) for name, (workload, shape) in found.items()] + [
        # bound by arithmetic, not by bytes
        Row("elementwise", "bias + GELU", "bias_gelu", {}, {MAX: 1.0}),
        Row("elementwise", "bias + GELU float16", "bias_gelu_float16", {}, {MAX: 1.0}),
    ]


def _softmax() -> list[Row]:
    narrow, wide, widest = {SHARE: 0.85}, {SHARE: 0.80}, {SHARE: 0.75}
    return [
        Row("softmax", "softmax 8192x4096", "softmax", {}, narrow),
        Row("softmax", "softmax 4096x65536", "softmax", {"rows": 4096, "columns": 65536}, wide),
        Row("softmax", "softmax 2048x262144", "softmax", {"rows": 2048, "columns": 262144}, widest),
        Row("softmax", "softmax float32", "softmax_float32", {}, narrow),
        Row("softmax", "log-softmax 4096x65536", "log_softmax", {}, wide),
        Row("softmax", "log-softmax 2048x262144", "log_softmax", {"rows": 2048, "columns": 262144}, widest),
        Row("softmax", "log-sum-exp 8192x32000", "log_sum_exp", {}, narrow),
        Row("softmax", "scaled masked softmax", "masked_softmax", {}, narrow),
    ]


def _cross_entropy() -> list[Row]:
    goals = {SHARE: 0.95, MAX: 2.3}
    names = {
        "cross entropy": "cross_entropy", "cross entropy with ignored rows": "cross_entropy_ignore",
        "cross entropy with smoothing": "cross_entropy_smoothing", "cross entropy with z-loss": "cross_entropy_z_loss",
    }  # fmt: skip
    return [Row("cross entropy", name, workload, {}, goals) for name, workload in names.items()]


def _norms() -> list[Row]:
    names = {
        "layer norm": "layer_norm", "layer norm float32": "layer_norm_float32", "RMS norm": "rms_norm",
        "residual + RMS norm": "residual_rms_norm", "instance norm + ReLU + residual": "instance_norm_relu",
        "batch norm of stored statistics": "batch_norm_eval", "batch norm of batch statistics": "batch_norm_train",
    }  # fmt: skip
    return [Row("norm", name, workload, {}, {MAX: 1.0}) for name, workload in names.items()] + [
        Row("norm", "group norm + SiLU 8x320x64x64", "group_norm_silu", {"channels": 320}, {MAX: 1.4}),
        Row("norm", "group norm + SiLU 8x1280x32x32", "group_norm_silu", {"channels": 1280, "size": 32}, {MAX: 1.4}),
    ]


def _quantising() -> list[Row]:
    names = {"RMS norm + fp8 a row": "rms_norm_fp8_row", "RMS norm + fp8 a block": "rms_norm_fp8_block",
             "RMS norm + int8 a row": "rms_norm_int8_row"}  # fmt: skip
    return [Row("norm + quantisation", name, work, {}, {SHARE: 0.80, MAX: 1.8}) for name, work in names.items()]


def _columns() -> list[Row]:
    return [
        Row("rows and columns", "layer norm backward", "layer_norm_backward", {}, {SHARE: 0.65, MAX: 1.6}),
        Row("rows and columns", "bias gradient to float32", "column_sum", {}, {SHARE: 0.92}),
        Row("rows and columns", "bias gradient to bfloat16", "column_sum_half", {}, {SHARE: 0.92}),
    ]


def _epilogues() -> list[Row]:
    at_most, bare = {BARE: 1.03}, _matmul(0, 1)
    return [
        Row("matmul + map", "linear + bias + GELU", "linear_bias_gelu", {}, at_most, bare),
        Row("matmul + map", "linear + residual", "linear_residual", {}, at_most, bare),
        Row("matmul + map", "linear + dropout + residual", "linear_dropout_residual", {}, at_most, bare),
        Row("matmul + map", "linear + ReLU float16", "linear_float16", {}, at_most, bare),
    ]


def _tile_reductions() -> list[Row]:
    kind, bare = "matmul + reduction", _matmul(0, 1)
    return [
        Row(kind, "linear + head norm 32x128", "linear_head_norm", {}, {BARE: 1.04}, bare),
        Row(kind, "linear + fp8 a block", "linear_fp8_block", {}, {BARE: 1.04}, bare),
        Row(kind, "router 128", "router", {}, {MAX: 1.12, BARE: 1.04}, bare),
        Row(kind, "router 128 best one", "router_top1", {}, {MAX: 1.12, BARE: 1.04}, bare),
        Row("fusing loses", "linear + layer norm 8192", "linear_layer_norm", {}, {MAX: 1.0}, bare),
        Row("fusing loses", "two large linears", "two_linears", {}, {MAX: 1.0}),
    ]


def _prologues() -> list[Row]:
    wide = {"out_features": 6144}
    weights = [
        Row("quantised weights", f"{name} linear at {tokens} tokens", f"{name}_linear", {"tokens": tokens},
            {MAX: 3.0 if (name, tokens) == ("int8", 16) else 1.0})
        for name in ("int8", "int4", "fp8")
        for tokens in (1, 16, 64)
    ]  # fmt: skip
    return [
        Row("norm + matmul", "RMS norm + linear", "norm_linear", wide, {BARE: 1.05}, _matmul(0, 2)),
        # Inductor freezes parameters only, and these are arguments: its plain max-autotune stands beside.
        Row("norm + matmul", "RMS norm + linear of frozen weights", "norm_linear_frozen", wide, {BARE: 1.05},
            _matmul(0, 2)),
        Row("norm + matmul", "RMS norm without scale + linear", "norm_linear_plain", wide, {BARE: 1.05}, _matmul(0, 1)),
        *weights,
    ]  # fmt: skip


def _shared_inputs() -> list[Row]:
    goals = {1: {}, 16: {MAX: 1.05}, 512: {}, 8192: {MAX: 1.1}}
    return [
        Row(
            "shared input", f"gated MLP at {tokens} tokens", "gated_mlp_up", {"tokens": tokens}, goal, _matmuls(0, 1, 2)
        )
        for tokens, goal in goals.items()
    ] + [Row("shared input", "q k v of unequal width", "qkv", {}, {MAX: 1.0}, _matmuls(0, 1, 2, 3))]


def _chains() -> list[Row]:
    return [
        Row("chain", "two layers of 128", "relu_chain", {}, {MAX: 2.0}),
        Row("chain", "adapter of rank 16", "lora_linear", {}, {BARE: 1.07, MAX: 1.1}, _matmul(0, 1)),
    ]


def _skinny() -> list[Row]:
    sides = ((4096, 14336), (14336, 4096))
    return [
        Row("skinny", f"linear {tokens}x{k}x{n}", "skinny_linear",
            {"tokens": tokens, "in_features": k, "out_features": n}, {SHARE: 0.85}, _matmul(0, 1))
        for tokens in (1, 2, 8, 16) for k, n in sides
    ] + [
        Row("skinny", f"matrix-vector {k}x{n}", "matrix_vector", {"in_features": k, "out_features": n}, {SHARE: 0.85})
        for k, n in sides
    ]  # fmt: skip


def _attention() -> list[Row]:
    """Where SDPA can express it, its best is the mark; elsewhere max-autotune."""
    kind, as_good = "attention", {BARE: 1.0}
    return [
        Row(kind, "causal 4x32x2048x128", "attention_causal", {}, as_good, _sdpa(), 0.5),
        Row(kind, "grouped heads causal", "attention_grouped", {}, as_good, _sdpa(), 0.5),
        Row(kind, "mask of keys", "attention_masked", {}, as_good, _sdpa(lambda args: args[3])),
        Row(kind, "ALiBi", "attention_alibi", {}, as_good, _sdpa(_alibi), 0.5),
        # In the window are (2 * 4096 - 1024) * 1024 / 2 of 4096 * 4096 scores.
        Row(kind, "sliding window 1024", "attention_window", {}, as_good, _sdpa(_window(1024)), 0.21875),
        Row(kind, "bias + soft cap 2x16x2048x128", "attention_bias_softcap", {}, {MAX: 4.5}),
        Row(kind, "decode over 32k keys", "attention_decode", {}, as_good, _sdpa(_filled, decode=True)),
    ]


def _heads() -> list[Row]:
    """Extra memory: under a tenth of the logits."""
    names = {"linear + cross entropy": "linear_cross_entropy", "linear + best class": "linear_top1"}
    return [
        Row("linear + loss", f"{name} {classes}", workload, {"classes": classes},
            {MAX: 1.0, MEMORY: 0.1 * 4096 * classes * 2 / 1e6})
        for name, workload in names.items()
        for classes in (32000, 128256)
    ]  # fmt: skip


def _blocks() -> list[Row]:
    goals = {MAX: 1.1, KERNELS: 1.0}
    return [
        Row("block", "MLP half of a Llama block", "llama_mlp", {"tokens": 4096}, goals),
        Row("block", "attention half of a Llama block", "llama_attention", {}, goals),
        Row("block", "ViT block", "vit_block", {}, goals),
        Row("block", "diffusion ResNet block", "resnet_block", {}, goals),
    ]


ROWS = tuple(
    row
    for rows in (
        _elementwise, _softmax, _cross_entropy, _norms, _quantising, _columns, _epilogues, _tile_reductions,
        _prologues, _shared_inputs, _chains, _skinny, _attention, _heads, _blocks,
    )
    for row in rows()
)  # fmt: skip


# --- what only a GPU tells ---


def kernels(call: common.Call) -> int | None:
    """Kernels that one call launches, copies and fills left out; None where the profiler sees nothing."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events() or () if event.device_type.name == "CUDA"]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names) or None


def generated(call: common.Call) -> int:
    """Kernels that Inductor makes itself for a function not compiled before: library calls come on top."""
    from torch._inductor import metrics

    metrics.reset()
    call()
    return int(metrics.generated_kernel_count)


def peak_memory(call: common.Call) -> float:
    """MB that a call takes at its peak beside what it is given and what it returns."""
    kept = call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    again = call()
    torch.cuda.synchronize()
    results = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del kept, again
    return (peak - results) / 1e6


def one(row: Row, options: argparse.Namespace, experiment: Experiment) -> None:
    result, seconds = common.tuned(row, options.out, options.seconds, row.goals.get(MEMORY))
    put = Figures(row, experiment)
    put("tuning time", seconds, "s", "lower", goal=60.0)
    if result.plan_id is None:
        print(f"{row.name}: {result.status} {result.detail}", flush=True)
        return
    store = options.out / "store"
    fn, args = common.loaded(row)
    floor = common.floor_of(capture(fn, args)[0].graph, row.attended).time_us
    counters.reset()
    put("error against eager", common.difference(fn, args, store), "of RMS", "lower")
    calls = common.contestants(fn, args, store, options.without)
    made = {name: generated(calls[name]) for name in ("default", "max-autotune") if name in calls}
    library = {} if row.library is None else {f"bare {name}": call for name, call in row.library(args).items()}
    found = common.times(calls | library, may_fail={*library, "default", "max-autotune", "eager"})
    compare(put, found, floor, library)
    resources(put, result, calls, made)
    put(MEMORY, peak_memory(calls["autofuse"]), "MB", "lower")
    if "eager" in calls:
        put("peak memory of eager", peak_memory(calls["eager"]), "MB", "lower")
    print(line(row, result, found, floor, seconds), flush=True)


@dataclass
class Figures:
    """Adds figures of one row with the row's goals."""

    row: Row
    experiment: Experiment

    def __call__(self, metric: str, value: float, unit: str, better: str, goal: float | None = None) -> None:
        self.experiment.add(self.row.name, metric, value, unit, better=better, goal=self.row.goals.get(metric, goal))


def compare(put: Figures, found: Mapping[str, float], floor: float, library: Mapping[str, common.Call]) -> None:
    mine = found["autofuse"]
    for name, value in found.items():
        put(f"{name} time", value, "us", "lower")
    put("floor", floor, "us", "lower")
    put(SHARE, floor / mine, "", "higher")
    for name, metric in (("max-autotune", MAX), ("default", "against default"), ("eager", "against eager")):
        if name in found:
            put(metric, found[name] / mine, "x", "higher")
    if best := min((found[name] for name in library if name in found), default=None):
        put(BARE, mine / best, "x", "lower")


def resources(put: Figures, result: TuneResult, calls: Mapping[str, common.Call], made: Mapping[str, int]) -> None:
    groups = [group for group in result.groups if group.n_regs is not None]
    put("groups", float(len(result.groups)), "", "lower")
    put("generated", float(len(groups)), "", "lower")
    if groups:
        put("most registers", float(max(group.n_regs or 0 for group in groups)), "", "lower")
        put("most spills", float(max(group.n_spills or 0 for group in groups)), "", "lower")
    launched = {name: kernels(call) for name, call in calls.items() if name != "eager"}
    for name, count in launched.items():
        if count is not None:
            put(f"kernels of {name}", float(count), "", "lower")
    if (mine := launched["autofuse"]) is not None and (theirs := launched.get("default")) is not None:
        put(KERNELS, float(theirs - mine), "", "higher")
    for name, count in made.items():
        put(f"generated by {name}", float(count), "", "lower")
    put("candidates timed", float(result.candidates.timed), "", "lower")
    put("candidates failed", float(result.candidates.failed), "", "lower")


def line(row: Row, result: TuneResult, found: Mapping[str, float], floor: float, seconds: float) -> str:
    mine = found["autofuse"]
    rivals = ", ".join(f"{name} {us:.1f} ({us / mine:.2f}x)" for name, us in found.items() if name != "autofuse")
    plan = "\n".join(
        f"    {group.name}: {group.implementation} {dict(group.config)} regs {group.n_regs} spills {group.n_spills} "
        f"predicted {group.predicted_us} measured {group.measured_us}"
        for group in result.groups
    )
    return (
        f"{row.name}: {mine:.1f} us, {floor / mine:.2f} of the floor; {rivals}; tuned in {seconds:.0f} s; "
        f"{result.status} {result.detail} {counters.counts()}\n{plan}"
    )


# --- the table itself ---


def table(rows: Sequence[Row]) -> str:
    """Rows with their goals and floors, from fake tensors."""
    lines = ["| kind | row | workload | floor, us | goals |", "| --- | --- | --- | ---: | --- |"]
    for row in rows:
        fn, args = load(row.workload, dict(row.shape), "cuda", fake=True)
        floor = common.floor_of(capture(fn, args)[0].graph, row.attended).time_us
        shape = ", ".join(f"{name} {size}" for name, size in resolve(row.workload, row.shape).shape.items())
        goals = "; ".join(f"{metric} {goal:g}" for metric, goal in row.goals.items())
        lines.append(f"| {row.kind} | {row.name} | {row.workload}: {shape} | {floor:.1f} | {goals} |")
    return "\n".join(lines)


def report(figures: Sequence[Figure]) -> str:
    """Results as a table: times in microseconds, ratios, goals where they are missed."""
    found = {(figure.row, figure.metric): figure for figure in figures}
    columns = ("row, us", "autofuse", "max-autotune", "default", "eager", "library", "share of floor", "against max",
               "of library", "kernels, Inductor's", "registers, spills", "tuning, s", "code")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    for row in ROWS:
        if (row.name, "autofuse time") not in found:
            continue
        at = {metric: figure for (name, metric), figure in found.items() if name == row.name}
        names = ("autofuse", "max-autotune", "default", "eager")
        times = [_number(at.get(f"{name} time"), ".1f") for name in names]
        library = min((f.value for metric, f in at.items() if metric.startswith("bare ")), default=None)
        cells = [
            row.name, *times, "" if library is None else f"{library:.1f}", _number(at.get(SHARE)),
            _number(at.get(MAX), suffix="x"), _number(at.get(BARE), suffix="x"),
            f"{_number(at.get('kernels of autofuse'), '.0f')}, {_number(at.get('kernels of default'), '.0f')}",
            f"{_number(at.get('most registers'), '.0f')}, {_number(at.get('most spills'), '.0f')}",
            _number(at.get("tuning time"), ".0f"), at["autofuse time"].git_sha[:7],
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    met = [figure.met for figure in figures if figure.met is not None and figure.metric != "tuning time"]
    return "\n".join(
        [*lines, "", f"{sum(met)} of {len(met)} goals met; {len(lines) - 2} of {len(ROWS)} rows measured."]
    )


def _number(figure: Figure | None, spec: str = ".2f", suffix: str = "") -> str:
    if figure is None:
        return "-"
    missed = f" (goal {figure.goal:g})" if figure.met is False else ""
    return f"{figure.value:{spec}}{suffix}{missed}"


def main() -> None:
    parser = common.arguments(__doc__, Path(__file__).parent, 20.0)
    parser.add_argument("--without", action="append", default=[], choices=["eager", "default", "max-autotune"])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true", help="the results in --out as Markdown")
    options = parser.parse_args()
    if options.table:
        print(report(read(options.out / "results.parquet")))
        return
    rows = common.chosen(ROWS, options.rows, lambda row: (row.kind,))
    if options.list:
        print(table(rows))
        return
    experiment = Experiment(common.device_name(), git_sha=options.git_sha)
    earlier = options.out / "results.parquet"
    if earlier.is_file():
        again = {row.name for row in rows}
        experiment.figures += [figure for figure in read(earlier) if figure.row not in again]
    common.run(rows, lambda row, found: one(row, options, found), experiment, options.out)


if __name__ == "__main__":
    scripts.run(main)
