"""``make demo-deliver``: orders reach three services, each once and in order, whatever is killed.

Callers place orders at a service that commits order, event and answer together. Two players of one
name call inventory, billing and mail with every event; beside them a dispatcher as most write it
calls the same services. The order service, the services, the players and the dispatcher are killed
in turn by SIGKILL, and started again; billing crashes by itself, too. Exits with 1 if anything that
a player delivered is doubled, missing or out of order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import rifl
from chaos.faulty_path import FaultyPath
from examples.delivered_orders import services, shop
from examples.delivered_orders.audit import Audit, audit, done_by
from examples.server_process import ServerProcess

__all__ = ["main"]

_CALLERS = 4
_CALM_S = 0.5
_PLAYERS = ("player 1", "player 2")
# Deliveries that stand still for so long get no further.
_STUCK_S = 90.0
_CALL_S = 120.0
# Of each service's method that crashes, about.
_CRASHES = 2


class _Fleet:
    """The processes: each is killed and started again, behind an address that stays."""

    def __init__(self, directory: Path, stack: ExitStack, crash_every: int) -> None:
        self.database = directory / "shop.db"
        self.views = {name: directory / f"{name}.db" for name in services.NAMES}
        shop.create(self.database)
        for path in self.views.values():
            services.create(path)
        self._paths = {
            name: stack.enter_context(FaultyPath()) for name in ("shop", *services.NAMES)
        }
        addresses = [f"{name}={self._paths[name].target}" for name in services.NAMES]
        here, file = "examples.delivered_orders", str(self.database)
        commands: dict[str, tuple[str, ...]] = {"shop": (f"{here}.shop", file)}
        for name, path in self.views.items():
            crashes = (str(crash_every),) if name == services.CRASHING else ()
            commands[name] = (f"{here}.services", name, str(path), *crashes)
        for name in _PLAYERS:
            commands[name] = (f"{here}.player", shop.url(self.database), *addresses)
        commands["dispatcher"] = (f"{here}.naive", file, *addresses)
        self._processes = {
            name: stack.enter_context(ServerProcess(*command)) for name, command in commands.items()
        }
        with ThreadPoolExecutor(len(commands)) as pool:
            list(pool.map(self.start, commands))

    @property
    def address(self) -> str:
        """The order service's."""
        return self._paths["shop"].target

    @property
    def names(self) -> list[str]:
        """Who can be killed."""
        return list(self._processes)

    def start(self, name: str) -> None:
        """Start a process."""
        port = self._processes[name].start()
        if name in self._paths:
            self._paths[name].lead_to(port)

    def kill(self, name: str) -> None:
        """Kill a process, and start it again."""
        self._processes[name].kill()
        self.start(name)

    def revive(self) -> list[str]:
        """Start those again that have ended by themselves; return who they were."""
        found = [name for name, each in self._processes.items() if each.ended is not None]
        for name in found:
            self.kill(name)
        return found


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.delivered_orders", description=__doc__
    )
    parser.add_argument("--orders", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1, help="of who is killed")
    options = parser.parse_args(arguments)
    # A terminated demo cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 100)
    directory = Path(tempfile.mkdtemp(prefix="rifl-deliver-"))
    try:
        with ExitStack() as stack:
            fleet = _Fleet(directory, stack, max(1, options.orders // _CRASHES))
            found, fallen = _run(console, options, fleet)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _report(console, found, fallen)
    return 0 if found.wrong == 0 and found.orders == options.orders else 1


class _Fallen:
    """Whose processes ended: by us, and by themselves."""

    def __init__(self) -> None:
        self.kills: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()


class _Turns:
    """Who is killed next: all of them once, in an order that is drawn, and so on."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self._names = names
        self._dice = Random(seed)  # noqa: S311 - repeatable, not secret
        self._left: list[str] = []

    def next(self) -> str:
        if not self._left:
            self._left = self._dice.sample(self._names, len(self._names))
        return self._left.pop()


def _run(console: Console, options: argparse.Namespace, fleet: _Fleet) -> tuple[Audit, _Fallen]:
    """Place orders while processes end; what became of them, and who fell."""
    turns, fallen = _Turns(fleet.names, options.seed), _Fallen()
    wanted = [f"order {number}" for number in range(options.orders)]
    errors: list[BaseException] = []
    # However few orders there are, some are placed after each of the first round was killed.
    killed = [threading.Event() for _ in fleet.names]
    threads = [
        threading.Thread(
            target=_place, args=(fleet.address, wanted[caller::_CALLERS], killed, errors.append)
        )
        for caller in range(_CALLERS)
    ]
    whole = len(wanted) * len(fleet.views)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        delivered = progress.add_task("delivered, once", total=whole)
        dispatched = progress.add_task("dispatched, naively", total=whole)
        for thread in threads:
            thread.start()
        try:
            done, grew_s = (0, 0), time.monotonic()
            while min(done) < whole and time.monotonic() - grew_s < _STUCK_S and not errors:
                time.sleep(_CALM_S)
                fallen.crashes.update(fleet.revive())
                now = _done(fleet)
                if now > done:
                    grew_s = time.monotonic()
                    if now[0] < whole:
                        name = turns.next()
                        fleet.kill(name)
                        count = fallen.kills.total()
                        fallen.kills[name] += 1
                        if count < len(killed):
                            killed[count].set()
                done = now
                progress.update(delivered, completed=done[0])
                progress.update(dispatched, completed=done[1])
        finally:
            for each in killed:
                each.set()
            for thread in threads:
                thread.join()
    if errors:
        raise errors[0]
    return audit(wanted, shop.orders(fleet.database), fleet.views), fallen


def _place(
    address: str,
    orders: list[str],
    killed: Sequence[threading.Event],
    failed: Callable[[BaseException], None],
) -> None:
    try:
        with contextlib.closing(rifl.connect(address)) as channel:
            call = channel.unary_unary(shop.METHOD)
            for place, order in enumerate(orders):
                part = place * (len(killed) + 1) // len(orders)
                if part:
                    killed[part - 1].wait()
                if call(order.encode(), timeout=_CALL_S) != b"placed " + order.encode():
                    raise RuntimeError(f"{order} was answered wrongly")
    except BaseException as error:  # noqa: BLE001 - raised by the main thread
        failed(error)


def _done(fleet: _Fleet) -> tuple[int, int]:
    found = [done_by(path) for path in fleet.views.values()]
    return sum(each for each, _ in found), sum(each for _, each in found)


def _report(console: Console, found: Audit, fallen: _Fallen) -> None:
    table = Table(title="The services' databases, read afterwards")
    table.add_column("")
    table.add_column("by the player", justify="right")
    table.add_column("naively", justify="right")
    for name, ours, naive in (
        ("orders placed, once each", f"{found.orders:,}", ""),
        ("deliveries, to three services", f"{found.deliveries:,}", ""),
        ("duplicates", f"{found.duplicates:,}", f"{found.naive_duplicates:,}"),
        ("missing", f"{found.missing:,}", f"{found.naive_missing:,}"),
        ("out of order", f"{found.out_of_order:,}", ""),
        ("longest pause of a service", f"{found.longest_pause_s:,.2f} s", ""),
        ("processes killed", f"{fallen.kills.total():,}", ""),
        ("processes that crashed", f"{fallen.crashes.total():,}", ""),
    ):
        table.add_row(name, ours, naive)
    console.print(table)
    line = {
        "orders": found.orders,
        "deliveries": found.deliveries,
        "duplicates": found.duplicates,
        "missing": found.missing,
        "out_of_order": found.out_of_order,
        "naive_duplicates": found.naive_duplicates,
        "kills": fallen.kills.total(),
        "killed": dict(sorted(fallen.kills.items())),
        "crashed": dict(fallen.crashes),
        "longest_pause_ms": round(found.longest_pause_s * 1000),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
