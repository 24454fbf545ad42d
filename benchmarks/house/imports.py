"""Every module of the tree and what it imports, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

__all__ = [
    "PRODUCT",
    "ROOT",
    "circles",
    "files",
    "graph",
    "imports",
    "module_of",
    "nodes_of",
    "tree_of",
]

ROOT = Path(__file__).parents[2]
PRODUCT = ("_rifl_ground", "rifl", "lease_server", "curp", "sharedlog")


def files(*packages: str) -> list[Path]:
    """The Python files of these packages, generated ones left out, in order."""
    found = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    return sorted(file for file in found if not file.stem.endswith(("_pb2", "_pb2_grpc")))


def module_of(file: Path) -> str:
    """The dotted name by which the file is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(file: Path) -> ast.Module:
    """The file's syntax tree, not to be changed: a file is read once in a process."""
    return ast.parse(file.read_text())


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Every node of the file, its root first, as ``ast.walk`` has them; once in a process, too."""
    return tuple(ast.walk(tree_of(file)))


def imports(file: Path) -> Iterator[str]:
    """Every module the file imports, wherever in it, relative names resolved.

    ``from package import name`` is ``package.name`` where that is a module of the tree.
    """
    yield from _imported(file)


@cache
def _imported(file: Path) -> tuple[str, ...]:
    return tuple(_read(file))


def _read(file: Path) -> Iterator[str]:
    package = module_of(file) if file.name == "__init__.py" else module_of(file.parent / file.stem)
    if file.name != "__init__.py":
        package = package.rpartition(".")[0]
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                deeper = f"{base}.{alias.name}"
                yield deeper if _exists(deeper) else base


def _exists(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def graph(*packages: str) -> dict[str, set[str]]:
    """Each module of these packages, and those of their modules that it imports."""
    sources = {module_of(file): file for file in files(*packages)}
    return {
        name: {each for each in imports(file) if each in sources and each != name}
        for name, file in sources.items()
    }


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of two and more that reach each other, each in order (Tarjan's algorithm)."""
    found: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(arrows.get(name, ())):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(arrows):
        if name not in index:
            visit(name)
    return found
