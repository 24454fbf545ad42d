"""The demo's table as a picture for the README: ``make demo-picture``, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from examples.demo.report import Row

__all__ = ["picture"]

_TITLE = "The bank's books, counted after resets, lost answers and SIGKILLs"
_WIDTH, _LINE, _MARGIN = 760, 26, 16
_COLUMNS_END = (470, 610, _WIDTH - _MARGIN)
_STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 }
  .title, .head, .bad { font-weight: 600 }
  .head, .cell { text-anchor: end; font-variant-numeric: tabular-nums }
  .good { fill: #1a7f37 } .bad { fill: #cf222e }
  .page { fill: #ffffff; stroke: #d1d9e0 } line { stroke: #d1d9e0 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .good { fill: #3fb950 } .bad { fill: #f85149 }
    .page { fill: #0d1117; stroke: #3d444d } line { stroke: #3d444d }
  }
"""


def picture(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the table as an SVG, without times: the counts alone."""
    height = _LINE * (len(rows) + 2) + 2 * _MARGIN
    drawn = [_text(_MARGIN, 0, "title", _TITLE)]
    drawn += [_text(x, 1, "head", name) for x, name in zip(_COLUMNS_END, columns, strict=True)]
    for at, row in enumerate(rows, start=2):
        y = _MARGIN + _LINE * at
        drawn.append(f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{y}" y2="{y}"/>')
        drawn.append(_text(_MARGIN, at, "label", row.label))
        for x, cell in zip(_COLUMNS_END, row.cells, strict=True):
            drawn.append(_text(x, at, f"cell {cell.verdict}".rstrip(), cell.text))
    page = f'<rect class="page" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>'
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_TITLE}" {size}>',
        f"<style>{_STYLE}</style>",
        page,
        *drawn,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _text(x: int, line: int, kind: str, text: str) -> str:
    return f'<text x="{x}" y="{_MARGIN + _LINE * line + 18}" class="{kind}">{escape(text)}</text>'
