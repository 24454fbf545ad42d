"""``accept``: an operator says that what a log file lacks is lost."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from curp.log._errors import NoSuchLog
from curp.log._sqlite.commit_note import CommitNote
from curp.log._sqlite.file import LogFile
from curp.log._sqlite.rows import write_metadata
from curp.log._sqlite.schema import counts_commits, find_group

# In the log's metadata: who accepted that commits are lost, and why.
LOSS_KEY = "curp-log-loss"
_COMMITS = "SELECT commits FROM curp_group WHERE group_id=?"
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
    note = CommitNote(path)
    with closing(note), closing(LogFile(path, 5.0, create=False)) as file:
        with file.reading() as connection:
            group_id = find_group(connection, path, group)
            counts = counts_commits(connection)
        if group_id is None:
            raise NoSuchLog.of(str(path), group)
        noted = note.read(group_id)
        with file.writing() as connection:
            held = connection.execute(_COMMITS, (group_id,)).fetchone()[0] if counts else noted
            if held >= noted:
                return ""
            lost = f"it lacks {noted - held} commits"
            told = {"who": who, "why": why, "lost": lost}
            write_metadata(connection, group_id, {LOSS_KEY: json.dumps(told).encode()})
            connection.execute(_GO_ON, (group_id,))
        note.raise_to(group_id, held)
        return lost
