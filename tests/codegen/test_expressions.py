"""Every scalar function: compiles for sm_90 and agrees with torch in Triton's interpreter at special values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autofuse.codegen.expressions import module, register_dtype, render, triton_type
from autofuse.ir.functions import FUNCTIONS
from autofuse.ir.graph import Apply, Arg, Lit

FLOATS = [n for n in FUNCTIONS if not n.startswith(("bitwise", "sh")) and n not in ("and", "or", "xor", "not")]
INTEGERS = [
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "neg",
    "abs",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_not",
    "shl",
    "shr",
    "remainder",
    "fmod",
    "floordiv",
    "truncdiv",
    "sign",
    "relu",
    "eq",
    "lt",
    "not",
]


def body(dtype: str, names: list[str]) -> str:
    lines = [f"def k_{dtype}(pa, pb, pc, out, N: tl.constexpr):"]
    lines += ["    i = tl.arange(0, N)", *(f"    {v} = tl.load(p{v} + i)" for v in "abc")]
    for row, name in enumerate(names):
        args: list[Arg | Apply] = [Arg(i) for i in range(FUNCTIONS[name].arity)]
        if name == "where":
            args[0] = Apply("gt", (Arg(0), Lit(0)))
        text = render(Apply(name, tuple(args)), ["a", "b", "c"], [dtype] * 3, dtype, dtype)
        lines.append(f"    tl.store(out + {row} * N + i, {text})")
    return module("\n".join(lines) + "\n")


DRIVER = """
import importlib.util, json, sys, torch, torch.nn.functional as F
spec = importlib.util.spec_from_file_location("m", sys.argv[1])
m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m)
dtype, names = sys.argv[2], sys.argv[3].split(",")
inf, nan = float("inf"), float("nan")
values = [0, 1, -1, 7, -7, 3, -3, 8]
if dtype == "float32": values = [0., 1., -1., 2.5, -2.5, .5, -.5, 1.5, 1e-6, 3e-1, -3e-1, 90., -90., inf, -inf, nan]
other = [2., -2., .5, 3., -3., 1.] if dtype == "float32" else [2, 3, -3, 1, 5, -2]
pairs = [(x, y) for x in values for y in other]
if dtype == "float32": pairs += [(nan, 1.), (1., nan), (nan, 0.), (-2., 0.), (0., 0.), (-8., 1 / 3)]
else: pairs = [(x, abs(y)) for x, y in pairs] + pairs
pairs += [(values[1], other[0])] * (256 - len(pairs))
a, b = (torch.tensor([p[i] for p in pairs], dtype=getattr(torch, dtype)) for i in (0, 1))
c = torch.full_like(a, 2); out = torch.zeros(len(names), 256, dtype=a.dtype)
getattr(m, "k_" + dtype)[(1,)](a, b, c, out, N=256)
T = {"div": torch.div, "sub": torch.sub, "and": torch.logical_and, "not": torch.logical_not,
     "where": lambda a, b, c: torch.where(a > 0, b, c),
     "fma": lambda a, b, c: a * b + c, "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
     "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
     "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "relu": F.relu,
     "quick_tanh": torch.tanh, "quotient": torch.div, "erfc": torch.special.erfc, "quick_erfc": torch.special.erfc}
bad = []
for row, name in enumerate(names):
    f = T.get(name) or getattr(torch, name)
    n = int(sys.argv[4 + row])
    want = f(*(a, b, c)[:n]).to(a.dtype)
    got = out[row]
    if name.startswith("sh"): keep = b >= 0; want, got = want[keep], got[keep]
    atol = 1e-30 if name in ("tanh", "quick_tanh", "expm1", "log1p") else 1e-6
    rtol = 2.0**-11 if name.startswith("quick") else 3e-6
    if not torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
        i = int((~torch.isclose(got, want, rtol=rtol, atol=1e-6, equal_nan=True)).float().argmax())
        bad.append((name, a[i].item(), b[i].item(), got[i].item(), want[i].item()))
print(bad); sys.exit(bool(bad))
"""


def check(tmp_path: Path, dtype: str, names: list[str]) -> None:
    source, driver = tmp_path / f"k_{dtype}.py", tmp_path / "driver.py"
    source.write_text(body(dtype, names))
    driver.write_text(DRIVER)
    arities = [str(FUNCTIONS[n].arity) for n in names]
    run = subprocess.run(
        [sys.executable, str(driver), str(source), dtype, ",".join(names), *arities],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout or run.stderr[-2000:]


def compiles(tmp_path: Path, dtype: str, names: list[str]) -> None:
    source = tmp_path / f"g_{dtype}.py"
    code = (
        "p = {'float32': '*fp32', 'int32': '*i32'}['"
        + dtype
        + "']\n"
        + (
            "from triton.backends.compiler import GPUTarget\nfrom triton.compiler import ASTSource\n"
            f"src = ASTSource(k_{dtype}, dict(pa=p, pb=p, pc=p, out=p, N='constexpr'), constexprs={{(4,): 256}})\n"
            "assert triton.compile(src, target=GPUTarget('cuda', 90, 32)).asm['ptx']\n"
        )
    )
    source.write_text(body(dtype, names) + code)
    run = subprocess.run([sys.executable, str(source)], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


def test_float_functions_agree_with_torch(tmp_path: Path) -> None:
    check(tmp_path, "float32", FLOATS)


def test_integer_functions_agree_with_torch(tmp_path: Path) -> None:
    check(tmp_path, "int32", INTEGERS)


def test_functions_compile_for_sm_90(tmp_path: Path) -> None:
    compiles(tmp_path, "float32", FLOATS)
    compiles(tmp_path, "int32", INTEGERS)


def test_register_types() -> None:
    assert [register_dtype(d) for d in ("bfloat16", "float16", "int64", "bool")] == [
        "float32",
        "float32",
        "int64",
        "bool",
    ]
    assert triton_type("bool") == "tl.int1"
    assert render(Arg(0), ["x"], ["float32"], "float32", "bfloat16") == "x"
    assert render(Arg(0), ["x"], ["float32"], "float32", "int64") == "x.to(tl.int64)"
    assert render(Lit(float("inf")), [], [], "float32", "float32") == 'float("inf")'
