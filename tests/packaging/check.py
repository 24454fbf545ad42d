"""``python -m tests.packaging.check``: build, install into empty environments, use.

The sdist is built from the tree, the wheel from the sdist. The wheel is installed with its
dependencies into an empty environment, and serves and repeats a call there, away from the tree.
Then each extra has an environment of its own, with what the extra asks for and nothing of another.
"""

from __future__ import annotations

import os
import shutil
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
_NAME, _PACKAGES = "rifl_grpc", {"_rifl_ground", "rifl", "curp", "lease_server", "sharedlog"}
_DATA = (
    "_rifl_ground/py.typed",
    "rifl/py.typed",
    "curp/py.typed",
    "lease_server/py.typed",
    "sharedlog/py.typed",
    "_rifl_ground/redis/scripts/rights.lua",
    "rifl/_stores/redis/scripts/claim.lua",
    "rifl/_stores/postgres/sql/claim.sql",
    "sharedlog/_engines/redis/scripts/commit.lua",
    "sharedlog/_consumer/scripts/commit.lua",
    "sharedlog/_player/status.html",
)
_IN_THE_SDIST = (
    "Makefile",
    "CHANGELOG.md",
    "docs/how-to/start.md",
    "tests/conftest.py",
    "proto/rifl/v1",
)
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

# What an extra is for, used by programs whose first lines are these.
_BEFORE = """
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
import grpc, rifl, sharedlog

SHORT = timedelta(seconds=1)
store, log = "sqlite:///used.db", sharedlog.create("sqlite:///used.log")
orders = log.stream("orders")
log.publish(orders, b"one")
log.publish(orders, b"two")
dedup = rifl.Deduplicator(store)
server = grpc.server(ThreadPoolExecutor(2), interceptors=[dedup.interceptor()])

def refuses(error, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except error:
        return
    raise AssertionError(f"{call} raised no {error}")
"""
_USES = {
    # Each driver asks a port at which no server is.
    "redis": """
import sharedlog._consumer.redis, curp.log
from rifl._stores.errors import StoreUnreachable
refuses(StoreUnreachable, rifl.Deduplicator, "redis://127.0.0.1:1/0")
refuses(sharedlog.LogUnavailable, sharedlog.open, "redis://127.0.0.1:1/0?log=orders", timeout=SHORT)
""",
    "postgres": """
import sharedlog._consumer.postgres, sharedlog._outbox.postgres, curp.log
from rifl._stores.errors import StoreUnreachable
refuses(StoreUnreachable, rifl.Deduplicator, "postgresql://127.0.0.1:1/orders")
url = "postgresql://127.0.0.1:1/orders?log=orders"
refuses(sharedlog.LogUnavailable, sharedlog.open, url, timeout=SHORT)
""",
    "mysql": """
from rifl._stores.errors import StoreUnreachable
refuses(StoreUnreachable, rifl.Deduplicator, "mysql://127.0.0.1:1/orders")
""",
    # Spark's own processes run such a source, without Java.
    "spark": """
import rifl.spark._call, rifl.spark._sink, rifl.spark._source, rifl.spark._write
from sharedlog.spark._format import LogDataSource
source = LogDataSource({"log": "sqlite:///used.log", "stream": "orders"})
reader = source.reader(source.schema())
batches = [batch for part in reader.partitions() for batch in reader.read(part)]
assert sum(batch.num_rows for batch in batches) == 2, batches
""",
    "metrics": """
import curp.metrics, rifl.metrics, sharedlog.metrics
from prometheus_client import CollectorRegistry, generate_latest
registry = CollectorRegistry()
observed = rifl.Deduplicator("memory:", observer=rifl.metrics.PrometheusObserver(registry))
assert b"rifl_" in generate_latest(registry)
""",
    "tracing": """
import rifl.tracing, sharedlog.tracing
rifl.Deduplicator("memory:", observer=rifl.tracing.TracingObserver())
""",
    "health": """
dedup.add_health(server)
dedup.add_reflection(server)
dedup.add_to_server(server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
from grpc_health.v1 import health_pb2, health_pb2_grpc
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    asked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
assert asked.status == asked.SERVING, asked
server.stop(None).wait()
""",
    "cli": """
import rifl._cli, sharedlog._cli
dedup.close()
assert rifl._cli.main(["inspect", store]) == 0
assert sharedlog._cli.main(["streams", "sqlite:///used.log"]) == 0
import rich
""",
    "export": """
import pyarrow.parquet, rifl._cli, sharedlog._cli
dedup.close()
assert rifl._cli.main(["export", store, "--out", "records.parquet"]) == 0
assert sharedlog._cli.main(["export", "sqlite:///used.log", "orders", "--out", "o.parquet"]) == 0
assert pyarrow.parquet.read_table("o.parquet").num_rows == 2
""",
}
# What an extra brings, by the names that are imported; these are another extra's, too.
_BRINGS = {
    "redis": {"redis"},
    "postgres": {"psycopg", "psycopg_pool"},
    "mysql": {"pymysql"},
    "spark": {"pyspark", "pandas", "pyarrow", "numpy", "grpc_reflection"},
    "metrics": {"prometheus_client"},
    "tracing": {"opentelemetry"},
    "health": {"grpc_health", "grpc_reflection"},
    "cli": {"rich"},
    "export": {"pyarrow"},
}
_AFTER = """
others = {others}
assert [name for name in others if importlib.util.find_spec(name)] == [], "it brings another's"
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
        for extra in _USES:
            _use_extra(directory, wheel, extra)
    sys.stdout.write(
        f"{_NAME} {version}: sdist and wheel are whole, and work where nothing else is, "
        f"each extra alone, too: {', '.join(_USES)}\n"
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
    _run(python, "-m", "rifl", "lease-server", "--help", cwd=directory)
    paths = _run(
        python,
        "-c",
        "from importlib.metadata import entry_points\n"
        "print([path.load() for path in entry_points(group='rifl.paths')])",
        cwd=directory,
    )
    _check("open_path" in paths, "clients do not find the way to a group")


def _use_extra(directory: Path, wheel: Path, extra: str) -> None:
    """Install an extra's own requirements beside the wheel's environment, and use it there."""
    home, here = directory / extra, directory / f"in-{extra}"
    here.mkdir()
    venv.create(home)
    (packages,) = home.glob("lib/python3*/site-packages")
    (base,) = (directory / "venv").glob("lib/python3*/site-packages")
    # pip finds the wheel there and its dependencies, and installs what is missing.
    (packages / "base.pth").write_text(f"{base}\n")
    python, pip = str(home / "bin/python"), str(directory / "venv/bin/python")
    _run(pip, "-m", "pip", "--python", python, "install", "-q", f"{wheel}[{extra}]", cwd=directory)
    others = sorted(set().union(*_BRINGS.values()) - _BRINGS[extra])
    _run(python, "-I", "-c", _BEFORE + _USES[extra] + _AFTER.format(others=others), cwd=here)
    shutil.rmtree(home)
    sys.stdout.write(f"rifl-grpc[{extra}] works alone\n")


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
