"""Figures of the house: how much there is, and how it hangs together."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.house.imports import PRODUCT, circles, files, graph, module_of, tree_of

__all__ = ["figures", "same_names", "small"]

# A module below this many lines with one importer, in its own folder, is a candidate to join it.
SMALL_LINES = 100


def figures() -> Iterator[tuple[str, str]]:
    """Each figure's name and what it is now; reads the source."""
    product = files(*PRODUCT)
    yield "files / lines of the product", f"{len(product)} / {sum(map(_lines, product)):,}"
    private = [file for file in product if "._" in module_of(file)]
    yield "private modules", str(len(private))
    sources = {file: _read(file) for file in product}
    yield "names in __all__", str(sum(source.listed for source in sources.values()))
    faces = [file for file in product if "._" not in module_of(file)]
    yield "public names", str(sum(sources[file].listed for file in faces))
    arrows = graph(*PRODUCT, "chaos", "benchmarks", "examples")
    importers = Counter(other for seen in arrows.values() for other in seen)
    alone = [file for file in product if _module(file) and importers[module_of(file)] == 1]
    yield "modules with one importer", str(len(alone))
    yield f"of these, small and beside it ({SMALL_LINES})", str(sum(1 for _ in small()))
    yield "class names of two classes and more", str(len(same_names()))
    stems = Counter(file.stem for file in product if _module(file))
    many = ", ".join(f"{count} {stem}" for stem, count in stems.most_common(4))
    yield "file names that repeat most", many
    functions = [each for source in sources.values() for each in source.functions]
    most, where = max((parameters, name) for name, parameters, _ in functions)
    yield "most parameters of a function", f"{most} ({where})"
    lengths = sorted(lines for _, _, lines in functions)
    yield "95 % of functions have at most", f"{lengths[len(lengths) * 95 // 100]} lines"
    shells = files("chaos/sim")
    yield "files / lines of the simulator", f"{len(shells)} / {sum(map(_lines, shells)):,}"
    groups = files("chaos/sim/group")
    yield "of these, of groups", f"{len(groups)} / {sum(map(_lines, groups)):,}"
    yield "circles of imports", str(len(circles(arrows)))


def small() -> Iterator[tuple[str, int, str]]:
    """Each small module with one importer, which is in its own folder: name, lines, importer."""
    importer: dict[str, list[str]] = {}
    for name, seen in graph(*PRODUCT, "chaos", "benchmarks", "examples").items():
        for other in seen:
            importer.setdefault(other, []).append(name)
    for file in files(*PRODUCT):
        name, lines = module_of(file), _lines(file)
        if not _module(file) or lines >= SMALL_LINES or len(importer.get(name, ())) != 1:
            continue
        (by,) = importer[name]
        if by.rpartition(".")[0] == name.rpartition(".")[0]:
            yield name, lines, by


def same_names() -> dict[str, list[str]]:
    """Each class name that more than one module of the product defines, and those modules.

    Without names that begin with an underscore, which no other module uses, and without the
    asynchronous counterpart of a class of the same package, which means the same.
    """
    found: dict[str, list[str]] = {}
    for file in files(*PRODUCT):
        for node in tree_of(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module_of(file))
    return {name: where for name, where in sorted(found.items()) if len(_meanings(where)) > 1}


def _meanings(modules: list[str]) -> list[str]:
    """Those modules that have no class of the same name beside them for the other flavour."""
    others = {each.partition(".")[0] for each in modules if "aio" not in each}
    return [each for each in modules if "aio" not in each or each.partition(".")[0] not in others]


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def _module(file: Path) -> bool:
    return file.stem not in ("__init__", "__main__")


class _Source(NamedTuple):
    """What is counted in a file."""

    listed: int
    # Each function's name, its parameters and its lines.
    functions: list[tuple[str, int, int]]


def _read(file: Path) -> _Source:
    tree = tree_of(file)
    listed = 0
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List(names)):
                listed += len(names)
            # Those that are imported when they are asked for.
            case ast.If(ast.Name("TYPE_CHECKING"), imports, [_, *_]):
                listed += sum(
                    len(each.names) for each in imports if isinstance(each, ast.ImportFrom)
                )
    return _Source(listed, list(_functions(file, tree)))


def _functions(file: Path, tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            named = [each for each in given if each.arg not in ("self", "cls")]
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"{module_of(file)}.{node.name}", len(named), lines
