"""The house rules of DESIGN §2 and §9, held: import arrows, public names, layout, tests."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.house.figures import same_names
from benchmarks.house.imports import PRODUCT, ROOT, files, imports, module_of, nodes_of, tree_of
from benchmarks.house.reference import MODULES
from lease_server._authority import Grant

PACKAGES = (
    "_rifl_ground",
    "rifl",
    "lease_server",
    "curp",
    "sharedlog",
    "chaos",
    "examples",
    "benchmarks",
)
OTHER_ENTRIES = {
    "proto",
    "tests",
    "docs",
    "pyproject.toml",
    "zensical.toml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
}

# What each part may import of ours; the longest matching name counts, and a
# part may always import itself. `rifl` and `rifl.aio` are the doors: they put
# the parts together, and no part goes through them.
_CODEC = {
    "rifl.v1",
    "rifl._wire",
    "rifl._grpc",
    "rifl.core",
    "lease_server",
}
ARROWS: dict[str, set[str]] = {
    # All stand on the ground floor, which stands on none.
    "_rifl_ground": set(),
    "lease_server": set(),
    "rifl": {"rifl", "lease_server"},
    "rifl.v1": set(),
    "rifl._events": set(),
    "rifl._grpc": set(),
    "rifl._leases": {"rifl._grpc", "rifl.core._shared", "lease_server"},
    "rifl.core": {"rifl.core._calling", "rifl.core._serving"},
    "rifl.core._shared": set(),
    "rifl.core._calling": {"rifl.core._shared"},
    "rifl.core._serving": {"rifl.core._shared"},
    "rifl._wire": {"rifl.core", "rifl.v1", "rifl._grpc.status", "lease_server._tokens"},
    "rifl.metrics": {"rifl.core"},
    "rifl.tracing": {"rifl.core"},
    "rifl._cli": {"rifl._leases", "rifl._stores", "rifl.metrics", *_CODEC},
    "rifl._client": _CODEC,
    "rifl._stores": _CODEC,
    "rifl._server": {"rifl._leases", "rifl._stores", *_CODEC},
    "rifl.testing": {"rifl._client", "rifl._leases", "rifl._server", "rifl._stores", *_CODEC},
    "rifl.spark": {"rifl._client", "rifl._stores", *_CODEC},
    # Groups' logs are kept as shared ones are; a replica's store is embedded in it.
    "curp": {
        *("lease_server", "sharedlog._core", "sharedlog._engines"),
        *("rifl._client", "rifl._grpc", "rifl._leases", "rifl._server"),
        *("rifl._stores.embedded", "rifl._stores.forks", "rifl._stores.held_answers"),
        *("rifl._stores.pending", "rifl._wire", "rifl.core", "rifl.metrics", "rifl.v1"),
    },
    "sharedlog": {"sharedlog"},
    "sharedlog.v1": set(),
    "sharedlog._core": {"sharedlog.v1"},
    "sharedlog._engines": {"sharedlog._core"},
    "sharedlog._engines.etcd.v1": set(),
    "sharedlog.metrics": {"sharedlog._core"},
    "sharedlog.tracing": {"sharedlog._core"},
    "sharedlog.testing": {"sharedlog._consumer", "sharedlog._core"},
    "sharedlog.spark": {
        *("sharedlog._core", "sharedlog._engines", "sharedlog._log", "sharedlog.v1"),
        "rifl.spark",
    },
    "sharedlog._log": {
        *("sharedlog._core", "sharedlog._engines", "sharedlog._remote", "sharedlog.v1"),
    },
    "sharedlog._outbox": {
        *("sharedlog._core", "sharedlog._engines", "sharedlog._log"),
    },
    # Handlers' calls stand on rifl's client.
    "sharedlog._consumer": {
        *("sharedlog._core", "sharedlog._engines", "sharedlog._log"),
        *("rifl._client", "rifl._grpc.codes", "rifl._wire", "rifl.core"),
    },
    "sharedlog._player": {
        *("sharedlog._aio.threads", "sharedlog._core", "sharedlog._engines", "sharedlog._log"),
        *("sharedlog._wire", "sharedlog.v1"),
    },
    "sharedlog._aio": {
        *("sharedlog._core", "sharedlog._log", "sharedlog._outbox"),
    },
    # Over gRPC: what both ends have, the server, and the client.
    "sharedlog._wire": {"sharedlog._core", "sharedlog.v1", "rifl._grpc.status"},
    "sharedlog._service": {
        *("sharedlog._core", "sharedlog._engines", "sharedlog._log", "sharedlog._wire"),
        *("sharedlog.v1", "rifl._grpc", "rifl._server.health"),
    },
    # It runs the handlers of servers whose calls rifl deduplicates.
    "sharedlog._target": {
        *("sharedlog._core", "sharedlog._wire", "sharedlog.v1"),
        *("rifl._grpc", "rifl._server.local_calls"),
    },
    "sharedlog._cli": {"sharedlog"},
    "sharedlog._remote": {
        *("sharedlog._core", "sharedlog._engines", "sharedlog._wire", "sharedlog.v1"),
    },
    "chaos": {"curp", "rifl", "lease_server", "sharedlog"},
    "benchmarks": {"chaos", "curp", "rifl", "lease_server", "sharedlog"},
    "examples": {"chaos", "curp", "rifl", "lease_server", "sharedlog"},
}
DOORS = {"rifl", "rifl.aio"}


def _within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def _part(module: str) -> str:
    """The longest name in ARROWS that the module belongs to; a door is `rifl`."""
    return max((part for part in ARROWS if _within(module, part)), key=len)


def _forbidden(file: Path) -> Iterator[str]:
    module = module_of(file)
    part = _part(module)
    for imported in imports(file):
        if imported.split(".")[0] not in (*PACKAGES, "tests"):
            continue
        if part == "rifl" and module in DOORS and _within(imported, "rifl"):
            continue
        if part.startswith("rifl.") and imported in DOORS:
            yield f"{module} goes through the door {imported}"
        elif not any(_within(imported, each) for each in (part, *ARROWS[part], "_rifl_ground")):
            yield f"{module} imports {imported}"


def test_import_arrows_point_one_way() -> None:
    """No module imports against the arrows of DESIGN §2; benchmarks that are run are exempt."""
    product = set(files(*PRODUCT))
    checked = [each for each in files(*PACKAGES) if each in product or each.name != "__main__.py"]
    assert [error for file in checked for error in _forbidden(file)] == []


# What users may import: everything else has an underscore in its path. Generated code too, by
# which users' own generated code imports ours; and what ``python -m`` runs.
# Those with a page of the reference, and those that protoc writes.
PUBLIC = {*MODULES, *(f"{package}.v1" for package in ("curp", "lease_server", "rifl", "sharedlog"))}


def test_what_is_public_is_a_short_list() -> None:
    """A module that users may not import has an underscore in its path (DESIGN §2)."""
    product = files(*PRODUCT)
    modules = {module_of(file) for file in product if file.name != "__main__.py"}
    assert {each for each in modules if "._" not in each and each[0] != "_"} == PUBLIC


# What not every system has, or has otherwise.
_OF_SYSTEMS = {
    *("os.fsync", "os.fdatasync", "os.name", "os.pipe2", "os.register_at_fork", "os.sync"),
    *("socket.AF_UNIX", "socket.SO_REUSEPORT", "sys.platform", "time.clock_gettime"),
}


def _system_names(file: Path) -> Iterator[str]:
    for node in nodes_of(file):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                if f"{module}.{name}" in _OF_SYSTEMS or f"{module}." in ("fcntl.", "resource."):
                    yield f"{module}.{name}"
            case ast.Constant(value=str(text)) if text.startswith(("/proc", "/dev/", "/sys/")):
                yield text


def test_what_systems_differ_in_is_chosen_in_one_place() -> None:
    """Locks of files, syncs, clocks, /proc, and which system it is (DESIGN §2)."""
    used = {
        f"{module_of(file)} uses {name}"
        for file in files(*PRODUCT)
        for name in _system_names(file)
        if module_of(file) != "_rifl_ground.system"
    }
    assert used == set()
    assert set(_system_names(ROOT / "_rifl_ground/system.py")) >= {"fcntl.flock", "sys.platform"}


def test_examples_import_what_users_may() -> None:
    """The examples are users: they need nothing private (DESIGN §2)."""
    private = {
        f"{module_of(file)} imports {imported}"
        for file in files("examples")
        for imported in imports(file)
        if imported.split(".")[0] in PRODUCT and "._" in f".{imported}"
    }
    assert private == set()


def test_every_part_of_rifl_has_an_arrow() -> None:
    """A new package under rifl/ is put into the rules on purpose (DESIGN §2)."""
    parts = {module_of(file.parent) for file in (ROOT / "rifl").glob("*/__init__.py")}
    parts |= {module_of(file) for file in (ROOT / "rifl").glob("*.py")} - {"rifl.__main__"}
    assert parts - set(ARROWS) - DOORS == set()


def test_core_needs_only_the_standard_library_and_bitarray() -> None:
    """The protocol rules do no I/O of any library (DESIGN §2, functional core)."""
    known = sys.stdlib_module_names | {"bitarray", "rifl"}
    # Pure, as the core is.
    ours = ("_rifl_ground.refusals", "_rifl_ground.numbers", "_rifl_ground.portions")
    outside = {
        f"{module_of(file)} imports {imported}"
        for file in files("rifl/core")
        for imported in imports(file)
        if imported.split(".")[0] not in known and not any(_within(imported, each) for each in ours)
    }
    assert outside == set()


def _public_modules(package: str) -> Iterator[str]:
    """Modules with something in them; entry points and generated code are not public."""
    for file in files(package):
        names = module_of(file).split(".")
        private = any(name.startswith("_") for name in names) or "v1" in names
        content = tree_of(file).body
        docstring_only = all(isinstance(node, ast.Expr) for node in content)
        script = any(
            isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in content
        )
        if not (private or docstring_only or script):
            yield module_of(file)


@pytest.mark.parametrize("package", [each for each in PACKAGES if each[0] != "_"])
def test_public_modules_say_what_is_public(package: str) -> None:
    """Each public module has an `__all__`, and every name in it exists (DESIGN §9)."""
    names = list(_public_modules(package))
    assert names
    for name in names:
        module = importlib.import_module(name)
        public: list[str] = list(module.__all__)
        assert len(public) == len(set(public)), name
        assert [attribute for attribute in public if not hasattr(module, attribute)] == [], name


_QUESTIONS = {
    "What",
    "Whatever",
    "How",
    "However",
    "Who",
    "Whoever",
    "Whose",
    "Whom",
    "When",
    "Where",
    "Which",
    "Whether",
    "Why",
    "Whenever",
    "Wherever",
    "If",
}


def test_a_module_says_which_noun_it_holds() -> None:
    """A module's docstring begins with the noun that the module holds, no question (DESIGN §2)."""
    first = {
        module_of(file): ((ast.get_docstring(tree_of(file)) or "What").split()[0])
        for file in files(*PACKAGES, "tests")
    }
    assert {name: word for name, word in first.items() if word.strip(",.:?") in _QUESTIONS} == {}


@pytest.mark.parametrize(
    "package",
    [file.parent for file in files(*PACKAGES) if file.name == "__init__.py"],
    ids=module_of,
)
def test_a_package_maps_its_modules(package: Path) -> None:
    """A package's docstring names each of its modules, and none that is not there (DESIGN §2)."""
    name, text = module_of(package), ast.get_docstring(ast.parse(_init(package))) or ""
    named = set(re.findall(r"``([a-z_]*[a-z])``", text))
    modules = _modules(package)
    if "__main__" in modules and f"python -m {name}" in text:
        named.add("__main__")
    # Beside its own, a map may speak of its packages' modules, its neighbours and its public names.
    elsewhere = {each for sub in package.iterdir() if sub.is_dir() for each in _modules(sub)}
    elsewhere |= _modules(package.parent) | set(PACKAGES)
    elsewhere |= set(getattr(importlib.import_module(name), "__all__", ()))
    assert (sorted(modules - named), sorted(named - modules - elsewhere)) == ([], [])


def _init(package: Path) -> str:
    return (package / "__init__.py").read_text()


def _modules(package: Path) -> set[str]:
    """The modules and packages in a package; generated code is mapped by its proto."""
    found = {file.stem for file in package.glob("*.py")}
    found |= {each.parent.name for each in package.glob("*/__init__.py")}
    return {each for each in found if "_pb2" not in each} - {"__init__", "v1"}


def test_a_class_name_has_one_meaning() -> None:
    """No two classes of the product share a name, but for the two flavours of one (DESIGN §9).

    What begins with an underscore is read beside its meaning, in one module.
    """
    assert same_names() == {}


# The same number by chance, or where one may not import the other: PostgreSQL's driver is an extra.
_SAME_BY_CHANCE = {("timeout_s", "5.0"), ("schema", "'rifl'"), ("url", "'memory:'")}


def _defaults(file: Path) -> Iterator[tuple[str, str]]:
    """The literal defaults of parameters and fields, but for the trivial ones."""
    for node in nodes_of(file):
        found: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given, last = node.args, len(node.args.defaults)
            names = (given.posonlyargs + given.args)[-last:] if last else []
            found = [(name.arg, value) for name, value in zip(names, given.defaults, strict=True)]
            found += [
                (name.arg, value)
                for name, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            ]
        elif isinstance(node, ast.ClassDef):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            found = [(ast.unparse(each.target), each.value) for each in fields]
        for name, value in found:
            trivial = isinstance(value, ast.Constant) and value.value in (None, 0, 1, "", b"")
            if isinstance(value, ast.Constant | ast.BinOp) and not trivial:
                yield name, ast.unparse(value)


def test_a_default_stands_once() -> None:
    """No two signatures of one parameter repeat its default as a number or word (DESIGN §9)."""
    found = [
        each
        for file in files("rifl", "curp", "sharedlog", "lease_server")
        for each in _defaults(file)
    ]
    assert len(found) > 50
    assert {each for each in found if found.count(each) > 1} - _SAME_BY_CHANCE == set()


def _names_of(file: Path) -> Iterator[str]:
    """The names that a module makes at its top."""
    for node in tree_of(file).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def test_what_a_private_module_makes_is_used() -> None:
    """By itself or by another one, tests apart: imported, or named as an attribute or in text."""
    own: dict[Path, set[str]] = {}
    others: set[str] = set()
    for file in files(*PACKAGES):
        own[file] = set()
        for node in nodes_of(file):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                own[file].add(node.id)
            elif isinstance(node, ast.ImportFrom):
                others.update(each.name for each in node.names)
            elif isinstance(node, ast.Attribute):
                others.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                others.add(node.value)
    unused = [
        f"{module_of(file)}.{name}"
        for file in files(*PRODUCT)
        if "._" in module_of(file)
        for name in _names_of(file)
        if not name.startswith("__") and name not in own[file] and name not in others
    ]
    assert unused == []


def test_top_level_holds_only_what_the_design_lists() -> None:
    """Nothing else lies at the top of the repository (DESIGN §2)."""
    built = {"build", "dist", "__pycache__"}
    entries = {
        entry.name
        for entry in ROOT.iterdir()
        if not entry.name.startswith(".") and entry.suffix != ".egg-info"
    }
    assert entries - built - OTHER_ENTRIES - set(PACKAGES) == set()


def test_protos_have_a_directory_of_their_own() -> None:
    """proto/ holds .proto files, and test vectors, but no code (DESIGN §2).

    As a package it would shadow proto-plus.
    """
    files = [file for file in (ROOT / "proto").rglob("*") if file.is_file()]
    vectors = set((ROOT / "proto" / "testdata").glob("*.json"))
    assert [file for file in files if file.suffix != ".proto" and file not in vectors] == []


def _tests() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for file in files("tests"):
        for node in nodes_of(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                yield file, node


def test_every_test_states_its_property() -> None:
    """Each test function has a docstring (DESIGN §9)."""
    silent = [
        f"{module_of(file)}.{node.name}" for file, node in _tests() if not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_test_sleeps() -> None:
    """Tests wait for conditions or use a fake clock, never `time.sleep` (DESIGN §9)."""
    sleeping = [
        f"{module_of(file)}:{node.lineno}"
        for file in files("tests")
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]
    assert sleeping == []


def test_no_server_of_a_test_has_two_addresses() -> None:
    """A port that is free at ``[::1]`` may be another process' at 127.0.0.1 (DESIGN §9)."""
    both = [
        f"{module_of(file)}:{node.lineno}"
        for top in ("tests", "chaos", "benchmarks", "examples")
        for file in files(top)
        for node in nodes_of(file)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value in ("localhost" + ":0", "[::]" + ":0")
    ]
    assert both == []


def test_nothing_of_ours_waits_for_the_loops_own_threads() -> None:
    """asyncio's default executor is the application's, which may block all of it (DESIGN §5)."""
    waiting = [
        f"{module_of(file)}:{node.lineno}"
        for package in PRODUCT
        for file in files(package)
        for node in nodes_of(file)
        if isinstance(node, ast.Call)
        and (
            ast.unparse(node.func) in ("asyncio.to_thread", "to_thread")
            or (
                isinstance(node.func, ast.Attribute)
                and node.func.attr == "run_in_executor"
                and ast.unparse(node.args[0]) == "None"
            )
        )
    ]
    assert waiting == []


# Each was looked at: it takes no lock, nor calls what does. A collection runs it in the middle
# of anything, in a thread that may hold any lock.
FINALIZERS = {
    # Nothing, in place of psycopg's warning.
    "_rifl_ground.postgres.lent: LentAsyncConnection.__del__",
    "_rifl_ground.postgres.lent: LentConnection.__del__",
    # By ``call_soon_threadsafe``.
    "curp.client._aio_records: weakref.finalize(self, tell_loop, loop, call.cancel)",
    "curp.client._sync_records: weakref.finalize(self, stream.queue.put, None)",
    "rifl._client.aio_client: weakref.finalize(state, tell_loop, loop, self._wakeup.set)",
    "rifl._client.aio_streams: UnaryStreamCall.__del__",
    # One step of a dictionary's.
    "rifl._client.shared_renewals: weakref.ref(state, lambda _: members.pop(number, None))",
    "rifl._client.sync_client: weakref.finalize(state, self._wakeup.put, None)",
    "rifl._client.sync_streams: StreamCall.__del__",
    # Asyncio's own, for tasks that ended well: nothing.
    "rifl._server.eager_task: _EagerTask.__del__",
    "rifl._server.sync: weakref.finalize(self, self._left.put, None)",
    # Lets go of the lock that the dropped one holds, which waits for nobody.
    "sharedlog._log.transaction: Transaction.__del__",
    # The same of a task's: the event loop is told.
    "sharedlog._aio.producer: Transaction.__del__",
}
# Generators that do something where they are closed, by a collection too if nobody else keeps
# them. Context managers' are kept by the ``with`` of a frame that runs.
CLOSED_GENERATORS = {
    # Steps, kept by the frame that drives them to their end.
    "rifl._stores.shared.steps: __await__",
    "rifl._stores.shared.heartbeat: repeat",
    "rifl._stores.shared.claims: _claim",
    "rifl._stores.shared.unclaimed: ask",
    "rifl._stores.shared.steps: _in_step",
    # Leaves what takes locks to another thread.
    "rifl._server.sync_streams: deduplicated",
    "rifl._stores.sqlite.key_lookup: _read_beside",
    # Closes what it alone has opened.
    "rifl.spark._source: read",
}


def test_no_finalizer_is_new() -> None:
    """Finalizers and callbacks of weak references are few, known, and take no lock (DESIGN §9)."""
    found = set()
    for file in files(*PRODUCT):
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef):
                found |= {
                    f"{module_of(file)}: {node.name}.__del__"
                    for item in node.body
                    if isinstance(item, ast.FunctionDef) and item.name == "__del__"
                }
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "weakref.finalize" or (
                    called in ("weakref.ref", "weakref.proxy", "weakref.WeakMethod")
                    and len(node.args) > 1
                ):
                    found.add(f"{module_of(file)}: {ast.unparse(node)}")
    assert found == FINALIZERS


# Where a plain lock may be, which does not know its owner: each was looked at. It is held for
# steps in which no code of an application's runs (events, observers and callbacks come after it),
# and nothing takes it that a signal's handler, a finalizer or a logging handler can call.
PLAIN_LOCKS = {
    # Servers': calls come by other threads. ``drain``, ``statistics`` and ``close`` take none.
    *("rifl._grpc", "rifl._server", "rifl._stores", "lease_server", "curp._replica"),
    *("sharedlog._service", "sharedlog._target", "sharedlog._player"),
    # Of threads of ours, or of Spark's tasks, alone.
    *("sharedlog._aio", "sharedlog.spark"),
    # It is held until another thread lets it go: no section of code.
    "curp.client._record",
    # For tests: a counter, a clock.
    "rifl.testing",
}


def test_a_lock_knows_its_owner() -> None:
    """Or it is one of those that no thread comes to again; ``OwnedLock``, ``RLock`` (DESIGN §9)."""
    plain = {
        module_of(file)
        for file in files(*PRODUCT)
        for node in nodes_of(file)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).removeprefix("threading.")
        in ("Lock", "Semaphore", "BoundedSemaphore")
    }
    allowed = {each for each in PLAIN_LOCKS for module in plain if f"{module}.".startswith(each)}
    assert allowed == PLAIN_LOCKS
    assert [each for each in plain if not f"{each}.".startswith(tuple(PLAIN_LOCKS))] == []


def test_no_generator_that_acts_when_it_is_closed_is_new() -> None:
    """A generator's ``finally`` is a finalizer, too (DESIGN §9)."""
    found = set()
    for file in files(*PRODUCT):
        for node in nodes_of(file):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and not any("contextmanager" in ast.unparse(by) for by in node.decorator_list)
                and _acts_when_closed(node, inside=False)
            ):
                found.add(f"{module_of(file)}: {node.name}")
    assert found == CLOSED_GENERATORS


def _acts_when_closed(node: ast.AST, *, inside: bool) -> bool:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.Yield | ast.YieldFrom) and inside:
            return True
        within = inside or isinstance(child, ast.With | ast.AsyncWith)
        if isinstance(child, ast.Try):
            caught = [ast.unparse(by.type) if by.type else "" for by in child.handlers]
            acts = {"", "BaseException", "GeneratorExit"}.intersection(caught)
            within = within or bool(child.finalbody or acts)
        if _acts_when_closed(child, inside=within):
            return True
    return False


_SECRETS = {"token", "tokens", "secret", "secrets", "password", "group_token", "session_secrets"}
# What is called a token and is no secret: it tells one transaction, or one place, from another.
_MARKS = {
    "_rifl_ground.postgres.owned.TransactionMark",
    "curp.log._states.MovedPlace",
    "sharedlog._outbox.postgres._Put",
}


def test_a_secret_is_in_no_repr() -> None:
    """Named tuples and data classes leave out what their fields keep secret: logs show them."""
    shown = []
    for path in files(*PRODUCT):
        for cls in nodes_of(path):
            if not isinstance(cls, ast.ClassDef):
                continue
            decorators = [ast.unparse(each) for each in cls.decorator_list]
            if "NamedTuple" not in [ast.unparse(each) for each in cls.bases] and not any(
                each.startswith("dataclass") for each in decorators
            ):
                continue
            for each in cls.body:
                if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
                    continue
                name, value = each.target.id, "" if each.value is None else ast.unparse(each.value)
                hidden = "repr=False" in value or any(
                    each.startswith("hides(") and f"'{name}'" in each for each in decorators
                )
                if name in _SECRETS and not hidden:
                    shown.append(f"{module_of(path)}.{cls.name}")
    assert set(shown) == _MARKS


def test_a_hidden_field_is_not_shown() -> None:
    """``hides`` leaves all else as a named tuple has it."""
    grant = Grant(1, b"very secret", 2.0)
    assert "secret" not in repr(grant)
    assert repr(grant) == "Grant(client_id=1, token=..., term_s=2.0)"
