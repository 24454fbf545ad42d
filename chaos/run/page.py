"""The report as one page that needs nothing else: its styles and pictures are in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from chaos.run.pauses import longest_pause
from chaos.run.run import Result
from chaos.run.timeline import OUTCOMES, timeline

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --dim: #777; --paper: #fff; --line: #ddd;
  --executed: #4f9d69; --replayed: #3b7dd8; --not-executed: #c98a1b; --unknown: #d0342c;
  --died: #8a5bb5; --fault: #e8590c; --pause: #d0342c; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --dim: #999; --paper: #181a1b;
  --line: #3a3d3f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 0; }
p { margin: .2rem 0; } .dim { color: var(--dim); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; }
a { color: inherit; } .held { color: var(--executed); } .broken { color: var(--unknown);
  font-weight: bold; }
pre { white-space: pre-wrap; color: var(--unknown); }
svg { width: 100%; height: auto; display: block; margin: .5rem 0; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
svg .fault { fill: var(--fault); fill-opacity: .75; } svg .label { fill: var(--ink); }
svg .pause { fill: var(--pause); fill-opacity: .12; }
svg .answers { fill: var(--executed); fill-opacity: .35; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .call { fill: none; stroke-width: 1.6; stroke-linecap: round; stroke-opacity: .7; }
.key span { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; }
"""
_COLUMNS = ("calls", "executed", "replayed", "not-executed", "unknown", "effects")


def page(results: Sequence[Result]) -> str:
    """Return the page; it asks the network for nothing."""
    return "\n".join(_parts(results)) + "\n"


def _parts(results: Sequence[Result]) -> Iterator[str]:
    held = sum(result.good for result in results)
    yield '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>Real faults: {held} of {len(results)} held</title><style>{_STYLE}</style>"
    yield f"<h1>Real faults: {held} of {len(results)} runs held</h1>"
    yield "<p>Processes behind a real Toxiproxy. What callers were told, and what is there in the"
    yield "end, is judged by <code>chaos.check</code>.</p>"
    yield from _table(results)
    yield '<p class="key">'
    for name, text in OUTCOMES.items():
        yield f'<span style="background: var(--{name})"></span>{escape(text)}'
    yield '<span style="background: var(--fault)"></span>a fault, and until it was mended'
    yield '<span style="background: var(--pause); opacity: .3"></span>no call was answered</p>'
    yield '<p class="dim">A call is a line from when it was asked for to when its caller was told;'
    yield "the longer, the higher. Below: answers, by tenths of a second.</p>"
    for number, result in enumerate(results):
        yield from _run(number, result)
    yield "</html>"


def _table(results: Sequence[Result]) -> Iterator[str]:
    heads = ("scenario", "seed", "faults", *_COLUMNS, "longest pause", "took", "")
    yield "<table><tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"
    for number, result in enumerate(results):
        verdict = _verdict(result)
        cells = [
            f'<a href="#run-{number}">{escape(result.scenario.name)}</a>',
            str(result.seed),
            str(len(result.faults)),
            *(f"{result.counts.get(name, 0):,}" for name in _COLUMNS),
            f"{longest_pause(result.history):.1f} s",
            f"{result.seconds:.1f} s",
            verdict,
        ]
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def _run(number: int, result: Result) -> Iterator[str]:
    scenario = result.scenario
    yield f'<h2 id="run-{number}">{escape(scenario.title)} {_verdict(result)}</h2>'
    yield f'<p class="dim">{escape(scenario.name)}, seed {result.seed}</p>'
    if scenario.expect.exempt:
        why = f"Not asked for: {', '.join(scenario.expect.exempt)}; {scenario.expect.because}."
        yield f'<p class="dim">{escape(why)}</p>'
    if result.problems:
        yield "<pre>" + escape("\n".join(result.problems)) + "</pre>"
    yield timeline(result)


def _verdict(result: Result) -> str:
    word = "held" if result.good else "broken"
    return f'<span class="{word}">{word}</span>'
