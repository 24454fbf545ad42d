"""The reference pages that the code writes: public names, commands, events, metrics, figures.

They lie in ``docs/reference/api``. A test holds that they are those of the code.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.house import bounds, operating
from benchmarks.house.imports import PRODUCT, ROOT
from benchmarks.house.prose import prose
from benchmarks.nexmark.queries import stages_of
from benchmarks.nexmark.schemas import QUESTIONS, SCHEMAS
from benchmarks.results import RESULTS, Results
from benchmarks.tables import figures_page
from curp._cli import command as curp_command
from curp.witness import __main__ as witness_command
from rifl._cli import command as rifl_command
from sharedlog._cli import arguments as sharedlog_command

__all__ = ["COMMANDS", "MODULES", "pages", "write"]

# The modules that users import, but for those that protoc writes.
MODULES = (
    "rifl",
    "rifl.aio",
    "rifl.core",
    "rifl.metrics",
    "rifl.spark",
    "rifl.testing",
    "rifl.tracing",
    "sharedlog",
    "sharedlog.aio",
    "sharedlog.metrics",
    "sharedlog.spark",
    "sharedlog.testing",
    "sharedlog.tracing",
    "curp",
    "curp.client",
    "curp.log",
    "curp.metrics",
    "curp.observer",
    "curp.witness",
    "lease_server",
)
_PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "rifl": rifl_command._parser,
    "sharedlog": sharedlog_command._parser,
    "curp": curp_command._parser,
    "curp-witness": witness_command._parser,
}
_WIDE = 88
_SHORT = 40


def write(folder: Path) -> None:
    """Write all pages into a folder, and remove those that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    found = pages()
    for file in folder.glob("*.md"):
        if file.name not in found:
            file.unlink()
    for name, text in found.items():
        (folder / name).write_text(text)


def pages() -> dict[str, str]:
    """Return each page's text by its file's name."""
    found = {f"{name}.md": _module(importlib.import_module(name)) for name in MODULES}
    found |= {f"command-{name}.md": _command(make()) for name, make in _PARSERS.items()}
    lines = [
        "# From the code",
        "",
        "On these pages you can look up each public name, option, event and metric.",
    ]
    lines += ["", *(f"- [`{name.removesuffix('.md')}`]({name})" for name in found), ""]
    results = Results(ROOT / RESULTS)
    operation = {name: _joined(each) for name, each in operating.pages().items()}
    operation["bounds.md"] = _joined([*bounds.page()])
    operation["performance-figures.md"] = figures_page(
        results.figures(), results.scale(), results.overload()
    )
    operation["nexmark.md"] = _joined([*_nexmark()])
    lines += (f"- [{each[2:].splitlines()[0]}]({name})" for name, each in operation.items())
    return found | operation | {"README.md": _joined(lines)}


def _nexmark() -> Iterator[str]:
    yield from ("# NEXMark's queries", "")
    yield (
        "On this page you can look up what each query of "
        "[NEXMark](../../explanation/nexmark.md) asks for, the stages that Spark runs, in append "
        "mode, and the columns of its rows. The code writes it: `make reference`."
    )
    yield ""
    yield from ("| | name | asks for | stages | columns |", "|---|---|---|---|---|")
    for query, asked in QUESTIONS.items():
        stages = "; ".join(
            f"{', '.join(f'`{each}`' for each in stage.reads)} → `{stage.name}`"
            for stage in stages_of((query,))
        )
        columns = ", ".join(f"`{each}`" for each in SCHEMAS[query].names)
        yield f"| {' | '.join((query.upper(), *asked, stages, columns))} |"


# Names.


def _module(module: ModuleType) -> str:
    name = module.__name__
    lines = [
        f"# The module `{name}`",
        "",
        f"On this page you can look up each public name of `{name}`. The code writes it: "
        "`make reference`.",
        "",
        *prose(module),
    ]
    for each in sorted(module.__all__):
        value = getattr(module, each)
        if not inspect.ismodule(value):
            lines += _name(each, value)
    return _joined(lines)


def _joined(lines: list[str]) -> str:
    text = "\n".join(lines).rstrip() + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def _name(name: str, value: Any) -> Iterator[str]:
    yield f"## `{name}`"
    yield ""
    if isinstance(value, type) and issubclass(value, enum.Enum):
        yield from prose(value)
        yield from (f"- `{each.name}` = `{each.value!r}`" for each in value)
        yield ""
    elif isinstance(value, type):
        if issubclass(value, BaseException):
            yield f"Is a {', '.join(f'`{each.__name__}`' for each in value.__bases__)}."
            yield ""
        else:
            yield from _signature(name, value)
        yield from prose(value)
        made = vars(value).get("__init__")
        # A short one says nothing of what is given.
        if len(getattr(made, "__doc__", None) or "") > _SHORT:
            yield from prose(made)
        for method, found in _methods(value):
            yield f"### `{name}.{method}`"
            yield ""
            if callable(found):
                yield from _signature(method, found)
            yield from prose(found)
    elif callable(value):
        behind = _behind(value)
        given = inspect.signature(value).parameters.values()
        passes_on = any(each.kind is each.VAR_KEYWORD for each in given)
        yield from _signature(name, behind if passes_on else value)
        yield from prose(behind)
    else:
        yield f"A `{type(value).__name__}`."
        yield ""


def _behind(value: Any) -> Any:
    """Return the function that a wrapper loads on demand, as its docstring says."""
    found = re.search(r"; see ``([\w.]+)\.(\w+)``\.$", inspect.getdoc(value) or "")
    return getattr(importlib.import_module(found[1]), found[2]) if found else value


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Return what a class of this product offers, in the order of names."""
    for name in sorted(dir(cls)):
        if name.startswith("_"):
            continue
        found = inspect.getattr_static(cls, name)
        if isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        getter = found.fget if isinstance(found, property) else found
        where = getattr(getter, "__module__", None) or ""
        if where.split(".")[0] in PRODUCT and inspect.isfunction(getter) and inspect.getdoc(found):
            yield name, found


def _signature(name: str, value: Any) -> Iterator[str]:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return
    given = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    if not given and isinstance(value, type):
        return
    shown: list[str] = []
    for each in given:
        stars = any(before.startswith("*") for before in shown)
        if each.kind is each.KEYWORD_ONLY and not stars:
            shown.append("*")
        shown.append(_parameter(each))
    returned = "" if isinstance(value, type) else _returned(found.return_annotation)
    line = f"{name}({', '.join(shown)}){returned}"
    if len(line) > _WIDE:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){returned}"
    yield from ("```text", *line.split("\n"), "```", "")


def _parameter(given: inspect.Parameter) -> str:
    text = given.name
    if given.kind is given.VAR_POSITIONAL:
        text = f"*{text}"
    elif given.kind is given.VAR_KEYWORD:
        text = f"**{text}"
    if given.annotation is not given.empty:
        text += f": {_annotation(given.annotation)}"
    if given.default is not given.empty:
        text += f" = {_default(given.default)}"
    return text


def _returned(annotation: Any) -> str:
    return "" if annotation is inspect.Signature.empty else f" -> {_annotation(annotation)}"


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, typing.ForwardRef):
        return str(annotation.__forward_arg__)
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__name__
    text = repr(value)
    # An object without a text of its own has its address there.
    return "..." if " object at 0x" in text or " at 0x" in text else text


# Commands.


def _command(parser: argparse.ArgumentParser) -> str:
    lines = [
        f"# The command `{parser.prog}`",
        "",
        f"On this page you can look up each option of `{parser.prog}`. The code writes it: "
        "`make reference`.",
        "",
        *_prose_of(parser.description),
        *_options(parser),
        *_prose_of(parser.epilog),
    ]
    for name, helped, command in _commands(parser):
        lines += [f"## `{name}`", "", *_prose_of(command.description or helped)]
        lines += _options(command)
    return _joined(lines)


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str | None, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {each.dest: each.help for each in action._choices_actions}
            for name, command in action.choices.items():
                yield f"{parser.prog} {name}", told.get(name), command
                yield from _commands(command)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = [
        f"| {_spelt(action)} | {_cell(_helped(parser, action))} |"
        for action in parser._actions
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
    ]
    if rows:
        yield from ("| option | |", "|---|---|", *rows, "")


def _spelt(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        if action.choices is not None:
            value = "{" + ",".join(str(each) for each in action.choices) + "}"
        else:
            named = action.metavar or action.dest.upper()
            value = " ".join(named) if isinstance(named, tuple) else named
        if action.nargs in ("*", "+"):
            value += " ..."
    if not action.option_strings:
        return _cell(f"`{value}`" + (" (optional)" if action.nargs in ("?", "*") else ""))
    return _cell(
        ", ".join(f"`{name} {value}`" if value else f"`{name}`" for name in action.option_strings)
    )


def _helped(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = action.help or ""
    if text is argparse.SUPPRESS:
        return ""
    return text % {"prog": parser.prog, **vars(action)} if "%" in text else text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose_of(text: str | None) -> list[str]:
    if not text:
        return []
    return [
        *(re.sub(r"``([^`]+)``", r"`\1`", line.strip()) for line in text.strip().split("\n")),
        "",
    ]


# Each command with its subcommands, as one types them.
COMMANDS = [name for make in _PARSERS.values() for name, *_ in _commands(make())]
