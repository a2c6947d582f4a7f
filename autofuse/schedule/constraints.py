"""The expression language of the search-space files: parsed by Python's ast, checked against a whitelist, evaluated by
walking the tree over whole numpy columns. Text is never executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

MAX_LENGTH = 1000
MAX_NUMBER = 1 << 53

Value = np.ndarray | np.generic | bool | int | float | str


class ConstraintError(ValueError):
    """An expression that the language does not have; column is 1-based within the expression, on its line."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def ceil_div(value: Value, divisor: Value) -> Value:
    return -(-np.asarray(value) // divisor)


def next_pow2(value: Value) -> Value:
    numbers = np.maximum(np.asarray(value, dtype=np.float64), 1)
    return np.exp2(np.ceil(np.log2(numbers))).astype(np.int64)


def _least(*values: Value) -> Value:
    result = values[0]
    for value in values[1:]:
        result = np.minimum(result, value)
    return result


def _greatest(*values: Value) -> Value:
    result = values[0]
    for value in values[1:]:
        result = np.maximum(result, value)
    return result


FUNCTIONS: dict[str, tuple[Callable[..., Value], int, int]] = {
    "min": (_least, 2, 8),
    "max": (_greatest, 2, 8),
    "ceil_div": (ceil_div, 2, 2),
    "next_pow2": (next_pow2, 1, 1),
    "abs": (np.abs, 1, 1),
}
"""Name -> function, least and greatest number of arguments."""

_ARITHMETIC: dict[type[ast.operator], Callable[..., Value]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[..., Value]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression; evaluate() gives a boolean column (or a scalar, where nothing in it varies)."""

    text: str
    body: ast.expr
    names: frozenset[str]

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        """env: name -> column, scalar or string; every name of `names` must be there."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return _evaluate(self.body, env)


def parse(text: str, names: Mapping[str, str]) -> Expression:
    """names: what may be used -> "number", "bool" or "text". Raises ConstraintError at the first fault; the expression
    as a whole must be a truth value."""
    if len(text) > MAX_LENGTH:
        raise ConstraintError(f"longer than {MAX_LENGTH} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ConstraintError(f"not an expression: {error.msg}", error.lineno or 1, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConstraintError(f"not an expression: {error}") from None
    checker = _Checker(names)
    try:
        kind = checker.kind(tree.body)
    except RecursionError:
        raise ConstraintError("nested too deeply") from None
    if kind != "bool":
        raise ConstraintError(f"gives a {kind}, not a truth value", 1, 1)
    return Expression(text, tree.body, frozenset(checker.used))


class _Checker:
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.used: set[str] = set()

    def fault(self, node: ast.expr, message: str) -> ConstraintError:
        return ConstraintError(message, node.lineno, node.col_offset + 1)

    def kind(self, node: ast.expr) -> str:
        match node:
            case ast.Constant():
                return self.constant(node)
            case ast.Name():
                return self.name(node)
            case ast.BoolOp():
                for value in node.values:
                    self.expect(value, "bool")
                return "bool"
            case ast.UnaryOp(op=ast.Not()):
                self.expect(node.operand, "bool")
                return "bool"
            case ast.UnaryOp(op=ast.USub()):
                return self.expect(node.operand, "number")
            case ast.BinOp():
                return self.arithmetic(node)
            case ast.Compare():
                return self.compare(node)
            case ast.Call():
                return self.call(node)
            case _:
                raise self.fault(node, f"{type(node).__name__} is not part of the language")

    def expect(self, node: ast.expr, kind: str) -> str:
        found = self.kind(node)
        if found != kind:
            raise self.fault(node, f"a {found} where a {kind} is needed")
        return kind

    def constant(self, node: ast.Constant) -> str:
        match node.value:
            case bool():
                return "bool"
            case int() | float():
                if not abs(node.value) <= MAX_NUMBER:
                    raise self.fault(node, "a number beyond 2**53")
                return "number"
            case str():
                return "text"
            case _:
                raise self.fault(node, f"constant {node.value!r} is not part of the language")

    def name(self, node: ast.Name) -> str:
        kind = self.names.get(node.id)
        if kind is None:
            raise self.fault(node, f"unknown name {node.id!r}; {_nearest(node.id, self.names)}")
        self.used.add(node.id)
        return kind

    def arithmetic(self, node: ast.BinOp) -> str:
        if type(node.op) not in _ARITHMETIC:
            raise self.fault(node, f"operator {type(node.op).__name__} is not part of the language")
        self.expect(node.left, "number")
        self.expect(node.right, "number")
        divides = isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod)
        if divides and isinstance(node.right, ast.Constant) and node.right.value == 0:
            raise self.fault(node.right, "division by zero")
        return "number"

    def compare(self, node: ast.Compare) -> str:
        kinds = [self.kind(part) for part in (node.left, *node.comparators)]
        for operator, comparator in zip(node.ops, node.comparators, strict=True):
            if type(operator) not in _COMPARE:
                raise self.fault(comparator, f"comparison {type(operator).__name__} is not part of the language")
            if kinds[0] != "number" and not isinstance(operator, ast.Eq | ast.NotEq):
                raise self.fault(comparator, f"a {kinds[0]} has no order")
        for kind, comparator in zip(kinds[1:], node.comparators, strict=True):
            if kind != kinds[0]:
                raise self.fault(comparator, f"a {kinds[0]} compared with a {kind}")
        return "bool"

    def call(self, node: ast.Call) -> str:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            raise self.fault(node, f"no such function; known: {', '.join(FUNCTIONS)}")
        _, least, greatest = FUNCTIONS[node.func.id]
        if node.keywords or not least <= len(node.args) <= greatest:
            wanted = str(least) if least == greatest else f"{least} to {greatest}"
            raise self.fault(node, f"{node.func.id} takes {wanted} arguments")
        for argument in node.args:
            self.expect(argument, "number")
        return "number"


def _nearest(name: str, names: Mapping[str, str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else "see the head of autofuse/schedule/space.py for what there is"


def _evaluate(node: ast.expr, env: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant():
            assert isinstance(node.value, bool | int | float | str)
            return node.value
        case ast.Name():
            return env[node.id]
        case ast.BoolOp():
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            result = _evaluate(node.values[0], env)
            for value in node.values[1:]:
                result = join(result, _evaluate(value, env))
            return result
        case ast.UnaryOp():
            value = _evaluate(node.operand, env)
            return np.logical_not(value) if isinstance(node.op, ast.Not) else np.negative(value)  # type: ignore[arg-type]
        case ast.BinOp():
            return _ARITHMETIC[type(node.op)](_evaluate(node.left, env), _evaluate(node.right, env))
        case ast.Compare():
            parts = [_evaluate(part, env) for part in (node.left, *node.comparators)]
            result = np.True_
            for operator, left, right in zip(node.ops, parts, parts[1:], strict=False):
                result = np.logical_and(result, _COMPARE[type(operator)](left, right))
            return result
        case ast.Call():
            assert isinstance(node.func, ast.Name)
            return FUNCTIONS[node.func.id][0](*(_evaluate(argument, env) for argument in node.args))
        case _:
            raise AssertionError(f"unchecked {type(node).__name__}")
