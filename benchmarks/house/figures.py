"""Figures of the house: how much there is, and how it hangs together."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.house.imports import PRODUCT, circles, files, graph, module_of

__all__ = ["figures"]


def figures() -> Iterator[tuple[str, str]]:
    """Each figure's name and what it is now; reads the source, about three seconds."""
    product = files(*PRODUCT)
    yield "files / lines of the product", f"{len(product)} / {sum(map(_lines, product)):,}"
    private = [file for file in product if "._" in module_of(file)]
    yield "private modules", str(len(private))
    listed = sum(len(names) for file in product for names in _lists(file))
    yield "names in __all__", str(listed)
    faces = [file for file in product if "._" not in module_of(file)]
    yield "public names", str(sum(len(names) for file in faces for names in _lists(file)))
    arrows = graph(*PRODUCT, "chaos", "benchmarks", "examples")
    importers = Counter(other for seen in arrows.values() for other in seen)
    alone = [file for file in product if _module(file) and importers[module_of(file)] == 1]
    yield "modules with one importer", str(len(alone))
    most, where = max((parameters, name) for file in product for name, parameters in _sizes(file))
    yield "most parameters of a function", f"{most} ({where})"
    lengths = sorted(length for file in product for length in _lengths(file))
    yield "95 % of functions have at most", f"{lengths[len(lengths) * 95 // 100]} lines"
    shells = files("chaos/sim")
    yield "files / lines of the simulator", f"{len(shells)} / {sum(map(_lines, shells)):,}"
    groups = files("chaos/sim/group")
    yield "of these, of groups", f"{len(groups)} / {sum(map(_lines, groups)):,}"
    yield "circles of imports", str(len(circles(arrows)))


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def _module(file: Path) -> bool:
    return file.stem not in ("__init__", "__main__")


def _lists(file: Path) -> Iterator[list[ast.expr]]:
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List(names)):
                yield names


def _functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _sizes(file: Path) -> Iterator[tuple[str, int]]:
    for node in _functions(file):
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        named = [each for each in given if each.arg not in ("self", "cls")]
        yield f"{module_of(file)}.{node.name}", len(named)


def _lengths(file: Path) -> Iterator[int]:
    for node in _functions(file):
        yield (node.end_lineno or node.lineno) - node.lineno + 1
