"""Where a function may be as rough as the hardware's approximation of it, because eager is no better there.

tanh.approx has a relative error of 2^-11 at most (PTX). Eager rounds a result in float16 by as much, in bfloat16 by
four times that; and an operand that eager has rounded to bfloat16 brings up to four times that to the result, but where
tanh is flat (beyond 1.65), and there 2^-11 is an eighth of what lies between two numbers of bfloat16. Not so where a
number is added: 1 + tanh(x) may be small, and eager's is right to the last place.

No sigmoid is made of it: (1 + tanh(x / 2)) / 2 is right to 2^-12 of 1, for x below -3 less than eager's rounding.
"""

from __future__ import annotations

from dataclasses import replace

from autofuse.fusion.algebra import smooth, strip
from autofuse.ir.graph import Apply, Arg, Expr, Lit
from autofuse.ir.program import MapNode, Program, operands

QUICK = {"tanh": "quick_tanh", "erfc": "quick_erfc"}
"""Functions -> what is in their place; both are in ir.functions."""

HALF = frozenset({"float16", "bfloat16"})
SINGLE = HALF | {"float32"}
"""Computed in float32 in registers."""


def quickened(program: Program) -> Program:
    """The program with each function of QUICK replaced where eager's own rounding is as large."""
    calm = smooth(program)
    nodes = tuple(
        _quick(program, position, node) if isinstance(node, MapNode) and position in calm else node
        for position, node in enumerate(program.nodes)
    )
    return replace(program, nodes=nodes)


def _quick(program: Program, position: int, node: MapNode) -> MapNode:
    if node.compute not in SINGLE:
        return node
    if node.dtype in HALF:
        return replace(node, expr=_factors(node.expr))
    match node.expr:
        case Apply("tanh", (operand,)):
            if _from_bfloat16(program, node, operand) and not _shifted(program, position):
                return replace(node, expr=replace(node.expr, fn=QUICK["tanh"]))
        case _:
            pass
    return node


def _factors(expr: Expr) -> Expr:
    """The expression with functions replaced that are factors of it: its relative error is then theirs."""
    match expr:
        case Apply(fn, (_,)) if fn in QUICK:
            return replace(expr, fn=QUICK[fn])
        case Apply("mul" | "div" | "neg", args):
            return replace(expr, args=tuple(_factors(part) for part in args))
        case _:
            return expr


def _from_bfloat16(program: Program, node: MapNode, expr: Expr) -> bool:
    """Is it a value that eager rounds to bfloat16, times a number?"""
    match strip(expr):
        case Arg(index):
            operand = node.operands[index]
            below = program.nodes[operand]
            if getattr(below, "dtype", "") == "bfloat16":
                return True
            return isinstance(below, MapNode) and below.dtype in SINGLE and _from_bfloat16(program, below, below.expr)
        case Apply("mul" | "div", (part, Lit())) | Apply("neg", (part,)):
            return _from_bfloat16(program, node, part)
        case _:
            return False


def _shifted(program: Program, node: int) -> bool:
    """Is a number added to it, or to a multiple of it?"""
    for position, reader in enumerate(program.nodes):
        if isinstance(reader, MapNode) and node in operands(reader):
            match strip(reader.expr):
                case Apply("add" | "sub", args) if any(isinstance(part, Lit) for part in args):
                    return True
                case Arg() | Apply("mul" | "div", (Arg(), Lit())) | Apply("neg"):
                    if _shifted(program, position):
                        return True
                case _:
                    pass
    return False
