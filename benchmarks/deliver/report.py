"""The report of deliveries: a row for each figure, with its target."""

from __future__ import annotations

from typing import Any

from benchmarks.pairs import Spread

__all__ = ["Report"]


class Report:
    """What is printed while it is measured, and the figures as JSON has them."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self.figures: dict[str, Any] = {}

    def add(
        self,
        name: str,
        spread: Spread,
        told: str,
        *,
        least: float | None = None,
        most: float | None = None,
        **more: Any,
    ) -> None:
        """Have one more ratio; ``told``: what it is made of. It must be in these bounds."""
        reached = None
        aim = ""
        if least is not None:
            reached, aim = spread.median >= least, f"at least {least:g}"
        elif most is not None:
            reached, aim = spread.median <= most, f"at most {most:g}"
        if reached is False:
            aim += " (missed)"
        found = f"{spread.median:.2f} [{spread.low:.2f}, {spread.high:.2f}]"
        self.rows.append((name, f"{found}{told and f': {told}'}", aim))
        self.figures[name] = {
            "ratio": [round(each, 3) for each in spread],
            **more,
            **({} if reached is None else {"reached": reached}),
        }

    @property
    def markdown(self) -> str:
        """A table of all."""
        rows = [("", "found", "to reach"), ("---", "---", "---"), *self.rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
