"""The picture of the packages: each on the floor above all that it imports, as SVG.

An arrow A -> B is drawn where A imports B and no longer way leads there over what is drawn
already. It changes only when a package comes, goes, or imports another one.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from benchmarks.house.imports import PRODUCT, graph

__all__ = ["parts", "picture"]

# Drawn as one: what surrounds the product.
_WHOLE = ("chaos", "benchmarks", "examples")
_DEEPER = "rifl.core"
_BOX, _HIGH, _GAP, _ROW, _EDGE, _MOST = 132, 34, 20, 92, 24, 7


def parts() -> dict[str, set[str]]:
    """The packages of the tree, a module at a package's first level too, and what each imports.

    The face of a package (``rifl``, ``curp``) is the part that puts the others together.
    """
    drawn: dict[str, set[str]] = {}
    for module, others in graph(*PRODUCT, *_WHOLE).items():
        # What puts parts together is not one: entry points, and faces that hand names on.
        if module.endswith("__main__") or module == _DEEPER:
            continue
        mine = _part(module)
        used = {_part(other) for other in others if other != _DEEPER}
        drawn.setdefault(mine, set()).update(used - {mine})
    faces = {name for name in drawn if name in (*PRODUCT, "rifl.aio")}
    shown = {name: used - faces for name, used in drawn.items() if name not in faces}
    return {name: used for name, used in shown.items() if not name.endswith(".v1")}


def _part(module: str) -> str:
    names = module.split(".")
    if names[0] in _WHOLE:
        return names[0]
    if names[0] == "lease_server" and names[1:2] != ["v1"]:
        return "lease_server."
    depth = 3 if module.startswith(_DEEPER + ".") else 2
    return ".".join(names[:depth])


def picture() -> str:
    """The SVG, the same for the same imports."""
    arrows = {
        name: {other for other in used if not other.endswith(".v1")}
        for name, used in parts().items()
    }
    floors = _floors(arrows)
    rows: list[list[str]] = []
    for floor in range(max(floors.values()), -1, -1):
        row = sorted(name for name, at in floors.items() if at == floor)
        row = _near(row, rows, arrows)
        rows += [row[start : start + _MOST] for start in range(0, len(row), _MOST)]
    width = max(len(row) for row in rows) * (_BOX + _GAP) + 2 * _EDGE
    height = len(rows) * _ROW + _EDGE
    places = {
        name: (_left(row, width) + place * (_BOX + _GAP), _EDGE + number * _ROW)
        for number, row in enumerate(rows)
        for place, name in enumerate(row)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        "<title>The packages of rifl: an arrow points at what a package imports</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#8a94a6"/></marker></defs>',
    ]
    for name in sorted(arrows):
        for other in sorted(_shortest(name, arrows)):
            lines.append(_arrow(places[name], places[other]))
    for name, (x, y) in sorted(places.items()):
        lines += _box(name.rstrip("."), x, y)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _floors(arrows: dict[str, set[str]]) -> dict[str, int]:
    floors: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in floors:
            floors[name] = 0
            floors[name] = max((floor(other) + 1 for other in arrows[name]), default=0)
        return floors[name]

    for name in sorted(arrows):
        floor(name)
    return floors


def _shortest(name: str, arrows: dict[str, set[str]]) -> set[str]:
    further: set[str] = set()
    for other in arrows[name]:
        further |= _reached(other, arrows)
    return arrows[name] - further


def _reached(name: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    rest = list(arrows[name])
    while rest:
        each = rest.pop()
        if each not in found:
            found.add(each)
            rest += arrows[each]
    return found


def _near(row: list[str], above: list[list[str]], arrows: dict[str, set[str]]) -> list[str]:
    """The row in the order of what imports its parts, so that fewer arrows cross."""
    middles = {name: place - len(line) / 2 for line in above for place, name in enumerate(line)}

    def place(name: str) -> tuple[float, str]:
        importers = [at for other, at in middles.items() if name in arrows[other]]
        return (sum(importers) / len(importers) if importers else 0.0, name)

    return sorted(row, key=place)


def _left(row: list[str], width: int) -> int:
    return (width - len(row) * (_BOX + _GAP) + _GAP) // 2


_COLOURS = {"rifl": "#dcebfb", "curp": "#e3f4e1", "lease_server": "#fdf0d5", "sharedlog": "#efe3f7"}


def _box(name: str, x: int, y: int) -> list[str]:
    colour = _COLOURS.get(name.split(".")[0], "#eeeeee")
    return [
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HIGH}" rx="5" fill="{colour}" '
        'stroke="#5b6472"/>',
        f'<text x="{x + _BOX // 2}" y="{y + 22}" text-anchor="middle">{escape(name)}</text>',
    ]


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + _BOX // 2, start[1] + _HIGH
    x2, y2 = end[0] + _BOX // 2, end[1]
    bend = (y2 - y1) // 2
    return (
        f'<path d="M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}" fill="none" '
        'stroke="#8a94a6" marker-end="url(#tip)"/>'
    )
