"""A run as a picture: faults, calls with their outcomes, pauses, answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape

from chaos.check import History
from chaos.run.pauses import pauses
from chaos.run.run import Result

__all__ = ["OUTCOMES", "timeline"]

# What became of calls, by the word that also names their colour.
OUTCOMES: Mapping[str, str] = {
    "executed": "executed",
    "replayed": "replayed",
    "not-executed": "not executed",
    "unknown": "unknown",
    "died": "the caller died",
}
_WIDTH, _ROW, _CALLS, _ANSWERS, _FOOT = 1100.0, 18.0, 170.0, 50.0, 18.0
_SHORTEST_S, _LONGEST_S = 0.001, 20.0
_BUCKET_S = 0.1
_MARK_S = 0.02
# Of a label's letters, roughly.
_LETTER = 6.2


def timeline(result: Result) -> str:
    """Return it as an ``svg`` element."""
    events = result.history.events
    seconds = max((event["at"] for event in events if event.get("at")), default=1.0)
    return "\n".join(_Picture(result, seconds).parts())


class _Picture:
    def __init__(self, result: Result, seconds: float) -> None:
        self._result = result
        self._seconds = seconds

    def parts(self) -> Iterator[str]:
        bars = list(self._faults())
        rows = max((row for row, _ in bars), default=-1) + 1
        calls = rows * _ROW + 8
        answers = calls + _CALLS + 8
        height = answers + _ANSWERS + _FOOT
        yield f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img">'
        yield f"<title>{escape(self._result.scenario.title)}</title>"
        for begin, end in pauses(self._result.history):
            left, right = self._x(begin), self._x(end)
            yield (
                f'<rect class="pause" x="{left:.1f}" y="0" width="{right - left:.1f}" '
                f'height="{answers + _ANSWERS:.1f}"><title>no call was answered for '
                f"{end - begin:.1f} s</title></rect>"
            )
        for _, bar in bars:
            yield bar
        yield from self._grid(calls, answers)
        yield from self._calls(calls)
        yield from self._answers(answers)
        yield "</svg>"

    def _x(self, at: float) -> float:
        return at / self._seconds * _WIDTH

    def _faults(self) -> Iterator[tuple[int, str]]:
        """Each fault in the first row where neither it nor its label is in the way."""
        ends: list[float] = []
        for struck in sorted(self._result.faults, key=lambda each: each.began):
            left = self._x(struck.began)
            wide = max(self._x(struck.ended) - left, 2.0)
            text = str(struck.fault)
            if struck.target != struck.fault.target:
                text += f" ({struck.target})"
            label = left
            if label + len(text) * _LETTER > _WIDTH:
                label = _WIDTH - len(text) * _LETTER
            row = next((row for row, end in enumerate(ends) if end < min(left, label)), len(ends))
            ends[row:] = [max(left + wide, label + len(text) * _LETTER), *ends[row + 1 :]]
            y = row * _ROW
            yield (
                row,
                f'<rect class="fault" x="{left:.1f}" y="{y + 12:.0f}" width="{wide:.1f}" '
                f'height="5"><title>{escape(text)}, {struck.began:.2f} s to {struck.ended:.2f} s'
                f'</title></rect><text class="label" x="{label:.1f}" y="{y + 10:.0f}">'
                f"{escape(text)}</text>",
            )

    def _grid(self, calls: float, answers: float) -> Iterator[str]:
        for duration, name in (
            (0.001, "1 ms"),
            (0.01, "10 ms"),
            (0.1, "0.1 s"),
            (1, "1 s"),
            (10, "10 s"),
        ):
            y = calls + _height(duration)
            yield f'<path class="grid" d="M0 {y:.1f}H{_WIDTH:g}"/>'
            yield f'<text x="2" y="{y - 2:.1f}">{name}</text>'
        step = 1 if self._seconds <= 15 else 2 if self._seconds <= 30 else 5
        for second in range(0, int(self._seconds) + 1, step):
            x, y = self._x(second), answers + _ANSWERS + 14
            yield f'<text x="{x:.1f}" y="{y:.0f}">{second} s</text>'

    def _calls(self, top: float) -> Iterator[str]:
        lines: dict[str, list[str]] = {name: [] for name in OUTCOMES}
        for outcome, began, ended in _spans(self._result.history):
            y = top + _height(ended - began)
            left, right = self._x(began), self._x(ended)
            lines[outcome].append(f"M{left:.1f} {y:.1f}H{max(right, left + 0.1):.1f}")
        for name, drawn in lines.items():
            if drawn:
                yield f'<path class="call" stroke="var(--{name})" d="{"".join(drawn)}"/>'

    def _answers(self, top: float) -> Iterator[str]:
        counts = [0] * (int(self._seconds / _BUCKET_S) + 1)
        for event in self._result.history.events:
            if event["event"] == "end" and event["code"] == "OK":
                counts[int(event["at"] / _BUCKET_S)] += 1
        most = max(counts, default=0) or 1
        foot = top + _ANSWERS
        steps = "".join(
            f"L{self._x(number * _BUCKET_S):.1f} {foot - count / most * _ANSWERS:.1f}"
            f"L{self._x((number + 1) * _BUCKET_S):.1f} {foot - count / most * _ANSWERS:.1f}"
            for number, count in enumerate(counts)
        )
        yield f'<path class="answers" d="M0 {foot:.1f}{steps}L{_WIDTH:g} {foot:.1f}Z"/>'
        yield f'<text x="2" y="{top + 10:.1f}">{most / _BUCKET_S:.0f} answers a second</text>'


def _height(duration: float) -> float:
    """Return how far below the top a call of so many seconds is drawn."""
    bounded = min(max(duration, _SHORTEST_S), _LONGEST_S)
    share = math.log(bounded / _SHORTEST_S) / math.log(_LONGEST_S / _SHORTEST_S)
    return _CALLS * (1 - share)


def _spans(history: History) -> Iterator[tuple[str, float, float]]:
    """Yield what became of each time a caller asked: outcome, from when, until when.

    When a caller that died would have been answered is not known: a mark has to do.
    """
    open_: dict[int, list[float]] = {}
    for event in history.events:
        if event["event"] == "start":
            open_.setdefault(event["call"], []).append(event["at"])
        elif event["event"] == "end" and open_.get(event["call"]):
            outcome = event["outcome"] if event["outcome"] in OUTCOMES else "unknown"
            yield outcome, open_[event["call"]].pop(0), event["at"]
    for begun in open_.values():
        for at in begun:
            yield "died", at, at + _MARK_S
