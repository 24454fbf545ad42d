"""Bars of the ratios, as SVG written by hand: no plotting library for three dozen bars."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.tables import is_reached

__all__ = ["write_plot"]

_LABEL_PX, _BAR_PX, _ROW_PX, _TOP_PX = 330, 420, 22, 46
_MOST = 1.2


def write_plot(path: Path, title: str, figures: Mapping[str, dict[str, Any]]) -> None:
    """Write one bar a figure: its throughput ratio, interval and target, from 0 to 1.2.

    One that misses any of its targets is red.
    """
    height = _TOP_PX + _ROW_PX * len(figures) + 16
    width = _LABEL_PX + _BAR_PX + 60
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="18" font-size="14">{escape(title)}</text>',
    ]
    for tenth in range(0, 13, 2):
        x = _x(tenth / 10)
        lines.append(
            f'<line x1="{x}" y1="{_TOP_PX - 6}" x2="{x}" y2="{height - 12}" stroke="#ddd"/>'
            f'<text x="{x}" y="{_TOP_PX - 10}" text-anchor="middle">{tenth / 10}</text>'
        )
    for at, (name, figure) in enumerate(figures.items()):
        spread, target = figure["throughput"], figure["targets"].get("throughput")
        top = _TOP_PX + at * _ROW_PX
        middle = top + _ROW_PX / 2
        color = "#4878a8" if is_reached(figure) else "#c06048"
        lines.append(
            f'<text x="{_LABEL_PX - 8}" y="{middle + 4}" text-anchor="end">'
            f"{escape(name)}</text>"
            f'<rect x="{_LABEL_PX}" y="{top + 4}" width="{_x(spread["median"]) - _LABEL_PX}" '
            f'height="{_ROW_PX - 8}" fill="{color}"/>'
            f'<line x1="{_x(spread["low"])}" y1="{middle}" x2="{_x(spread["high"])}" '
            f'y2="{middle}" stroke="black"/>'
        )
        if target is not None:
            x = _x(target)
            lines.append(
                f'<line x1="{x}" y1="{top + 1}" x2="{x}" y2="{top + _ROW_PX - 1}" '
                'stroke="black" stroke-width="2"/>'
            )
        lines.append(
            f'<text x="{_LABEL_PX + _BAR_PX + 8}" y="{middle + 4}">{spread["median"]:.2f}</text>'
        )
    path.write_text("\n".join([*lines, "</svg>"]) + "\n")


def _x(ratio: float) -> float:
    return round(_LABEL_PX + _BAR_PX * min(ratio, _MOST) / _MOST, 1)
