"""A process that knows a group by its name alone, as those of before logs had ids (DESIGN §7).

``python -m tests.curp.replica.before_log_ids witness ARGUMENTS`` is ``curp.witness``, and
``... server JSON`` a replica of ``tests.curp.replica.server``, without what was added then.
"""

from __future__ import annotations

import sys

from curp._core import witness_table
from curp._replica import leading, recovery_steps
from curp._replica.witnesses import Witnesses
from curp.witness.__main__ import main as witness
from tests.curp.replica.server import main as server

__all__: list[str] = []


def main() -> None:
    """Serve until killed."""
    # The whole text was compared.
    witness_table.same_group = lambda held, group: group == held
    Witnesses.of_log = lambda self, store_id: None  # type: ignore[method-assign]
    for module in (leading, recovery_steps):
        module.read_store_id = lambda *_: 0  # type: ignore[attr-defined]
    kind = sys.argv.pop(1)
    if kind == "witness":
        sys.exit(witness())
    server()


if __name__ == "__main__":
    main()
