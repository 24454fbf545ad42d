"""``accept``: an operator says that what a log file lacks is lost."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from curp.log._errors import NoSuchLog
from curp.log._owner import GROUPS
from curp.log._sqlite.counting import counting_of
from curp.log._sqlite.rows import write_metadata
from curp.log._sqlite.schema import counts_commits, find_group
from sharedlog._engines.sqlite.file import LogFile

# In the log's metadata: who accepted that commits are lost, and why.
LOSS_KEY = "curp-log-loss"
# Numbers that were given under what is lost are never given again.
_GO_ON = (
    "UPDATE curp_group SET configuration=configuration+(1<<32), boot='', expires_at=0, term_s=0 "
    "WHERE group_id=?"
)


def accept(path: Path, group: str, who: str, why: str) -> str:
    """Have the log go on; what it lacks, empty if nothing. Raises a ``LogError``."""
    path = path.absolute()
    if not path.exists():
        raise NoSuchLog.of(str(path), group)
    with closing(LogFile(path, 5.0, GROUPS, create=False)) as file:
        with file.reading() as connection:
            group_id = find_group(connection, path, group)
            counts = counts_commits(connection)
        if group_id is None:
            raise NoSuchLog.of(str(path), group)
        counting = counting_of(path, group_id)
        with closing(counting.note) as note:
            noted = file.noted(note) or 0
            with file.writing() as connection:
                held = counting.held(connection) if counts else noted
                if held >= noted:
                    return ""
                lost = f"it lacks {noted - held} commits"
                told = {"who": who, "why": why, "lost": lost}
                write_metadata(connection, group_id, {LOSS_KEY: json.dumps(told).encode()})
                connection.execute(_GO_ON, (group_id,))
            note.raise_to(held)
            return lost
