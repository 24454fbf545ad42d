"""Events of the log: as the source logs them, and as the packages' tables have them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from benchmarks.house.imports import PRODUCT, files, module_of, tree_of
from benchmarks.house.operating import events

_LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
# The loggers of the product's modules are called so; `Events` of a lease server is another.
_LOGGERS = {"_log", "_events", "events"}


class Logged(NamedTuple):
    """An event as a call logs it, or as a row of a table has it."""

    logger: str
    name: str
    level: str
    fields: frozenset[str]


def _strings(node: ast.AST) -> list[str]:
    """The names that an expression may give: a literal, or one of two."""
    if isinstance(node, ast.IfExp):
        return [*_strings(node.body), *_strings(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def _log_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LEVELS
            and ast.unparse(node.func.value).split(".")[-1] in _LOGGERS
        ):
            yield node, _LEVELS[node.func.attr]


def _takes_event(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The functions and classes that are handed an event's name, and at which place."""
    for node in ast.walk(tree):
        given: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.FunctionDef) and node.name not in _LEVELS:
            given = [(each.arg, each.annotation) for each in node.args.args if each.arg != "self"]
        elif isinstance(node, ast.ClassDef):
            given = [
                (ast.unparse(each.target), each.annotation)
                for each in node.body
                if isinstance(each, ast.AnnAssign)
            ]
        for at, (name, annotation) in enumerate(given):
            if name == "event" and annotation is not None and ast.unparse(annotation) == "str":
                assert isinstance(node, ast.FunctionDef | ast.ClassDef)
                yield node.name, at


def _handed(tree: ast.AST, takers: dict[str, int]) -> Iterator[str]:
    """The names that are handed to somebody who logs them, or kept to be logged."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in takers:
            for argument in node.args[takers[_called(node)] :][:1]:
                yield from _strings(argument)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "event":
            yield from _strings(node.value)


def _loggers(module: str, tree: ast.AST) -> tuple[str, ...]:
    """The loggers that a module asks; the lease server's parts are given theirs.

    Engines of logs are told whose log it is: a group's, or ours.
    """
    if module.startswith("sharedlog._engines."):
        return ("curp.log", "sharedlog")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_log":
            return (ast.unparse(node.value).removeprefix("get_logger(").strip("'\")"),)
    return ("lease_server",)


def _fields(call: ast.Call) -> frozenset[str]:
    """What a call logs beside the name; `**` stands for fields that it does not name."""
    named = {each.arg or "**" for each in call.keywords}
    return frozenset(named | {"exc_info"} if _called(call) == "exception" else named)


@cache
def events_in_the_source() -> tuple[list[Logged], set[str]]:
    """What is logged where its name stands, and the names that are handed on to be logged."""
    trees = {module_of(file): tree_of(file) for file in files(*PRODUCT)}
    takers = {module: dict(_takes_event(tree)) for module, tree in trees.items()}
    public = {name: at for each in takers.values() for name, at in each.items() if name[0] != "_"}
    logged: list[Logged] = []
    handed: set[str] = set()
    for module, tree in trees.items():
        handed.update(_handed(tree, public | takers[module]))
        for call, level in _log_calls(tree):
            assert isinstance(call.func, ast.Attribute)
            names = _strings(call.args[0])
            assert names or ast.unparse(call.args[0]).split(".")[-1] == "event", (
                f"{module}:{call.lineno}: log a literal, or what is called `event`"
            )
            logged += [
                Logged(logger, name, level, _fields(call))
                for logger in _loggers(module, tree)
                for name in names
            ]
    return logged, handed


def events_in_the_tables() -> list[Logged]:
    """Each row, once for each of its levels."""
    return [
        Logged(logger, each.name, level.strip(), frozenset(each.fields.split()))
        for logger, rows in events().items()
        for each in rows
        for level in each.level.split(",")
    ]
