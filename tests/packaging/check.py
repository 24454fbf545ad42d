"""``python -m tests.packaging.check``: build, install into an empty environment, use.

The sdist is built from the tree, the wheel from the sdist; the wheel is installed with its
dependencies where nothing else is, and serves and repeats a call there, away from the tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).parents[2]
_NAME, _PACKAGES = "rifl_grpc", {"rifl", "curp", "lease_server", "sharedlog"}
_DATA = (
    "rifl/py.typed",
    "curp/py.typed",
    "lease_server/py.typed",
    "sharedlog/py.typed",
    "rifl/_stores/redis/scripts/claim.lua",
    "rifl/_stores/postgres/sql/claim.sql",
    "sharedlog/_engines/redis/scripts/commit.lua",
    "sharedlog/_consumer/scripts/commit.lua",
    "sharedlog/_player/status.html",
)
_IN_THE_SDIST = ("Makefile", "CHANGELOG.md", "docs/start.md", "tests/conftest.py", "proto/rifl/v1")
# A service of bytes, over a store in a file, whose answer is lost once.
_USED = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc, rifl

runs = []

class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method != "/check.v1.Check/Run":
            return None
        def run(request, context):
            runs.append(request)
            return b"answer to " + request
        return grpc.unary_unary_rpc_method_handler(run)

dedup = rifl.Deduplicator("sqlite:///check.db")
server = grpc.server(ThreadPoolExecutor(4), interceptors=[dedup.interceptor()])
server.add_generic_rpc_handlers((Handlers(),))
dedup.add_to_server(server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
session = {"session": "check", "secret": "of the packaging check"}
for _ in range(2):
    with rifl.connect(f"127.0.0.1:{port}", **session) as channel:
        answer = channel.unary_unary("/check.v1.Check/Run")(
            b"one", timeout=20, metadata=[rifl.key("one")]
        )
        assert answer == b"answer to one", answer
assert runs == [b"one"], runs
server.stop(None).wait()
dedup.close()
import rifl.spark
for name in ("pyspark", "redis", "psycopg"):
    assert name not in sys.modules, name
print("used", rifl.__file__)
"""


def main() -> int:
    """Do all of it in a directory that is gone afterwards; 0, or what failed is raised."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        _run(sys.executable, "-m", "build", "--outdir", made, str(_ROOT), cwd=directory)
        (sdist,) = directory.glob(f"{_NAME}-*.tar.gz")
        (wheel,) = directory.glob(f"{_NAME}-*.whl")
        _look_into_sdist(sdist)
        version = _look_into_wheel(wheel)
        _use(directory, wheel, version)
    sys.stdout.write(
        f"{_NAME} {version}: sdist and wheel are whole, and work where nothing else is\n"
    )
    return 0


def _look_into_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    missing = [name for name in _IN_THE_SDIST if name not in names]
    _check(not missing, f"the sdist lacks {missing}")


def _look_into_wheel(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(packed.read(metadata).decode())
    missing = [name for name in _DATA if name not in names]
    _check(not missing, f"the wheel lacks {missing}")
    tops = {name.partition("/")[0] for name in names}
    others = {top for top in tops if not top.endswith(".dist-info")} - _PACKAGES
    _check(not others, f"the wheel brings {others}, too")
    _check(told["Name"] == "rifl-grpc", f"it is called {told['Name']}")
    _check(bool(told["License-Expression"]), "it has no license")
    return str(told["Version"])


def _use(directory: Path, wheel: Path, version: str) -> None:
    home = directory / "venv"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    _run(python, "-m", "pip", "install", "--quiet", str(wheel), cwd=directory)
    used = _run(python, "-I", "-c", _USED, cwd=directory)
    _check(str(home) in used, f"it was used from elsewhere: {used}")
    told = _run(str(home / "bin" / "rifl"), "--version", cwd=directory)
    _check(version in told, f"rifl --version says {told!r}")
    _run(str(home / "bin" / "rifl"), "inspect", "sqlite:///check.db", cwd=directory)
    _run(str(home / "bin" / "curp"), "--help", cwd=directory)
    _run(python, "-m", "lease_server", "--help", cwd=directory)
    paths = _run(
        python,
        "-c",
        "from importlib.metadata import entry_points\n"
        "print([path.load() for path in entry_points(group='rifl.paths')])",
        cwd=directory,
    )
    _check("open_path" in paths, "clients do not find the way to a group")


def _run(*command: str, cwd: Path) -> str:
    # Of the tree that is checked, nothing is to be found.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=400
    )
    _check(ran.returncode == 0, f"{' '.join(command)[:200]}: {ran.stdout}{ran.stderr}")
    return ran.stdout


def _check(good: bool, what: str) -> None:
    if not good:
        raise SystemExit(f"packaging: {what}")


if __name__ == "__main__":
    sys.exit(main())
