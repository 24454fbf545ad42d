"""The statements that read a log, each of one moment; ``{0}`` is the schema."""

from __future__ import annotations

from typing import NamedTuple


class Head(NamedTuple):
    """Where a log stands, by its row; ``value`` of the metadata key asked for."""

    tail: int
    trimmed: int
    stopped: str
    configuration: int
    replica: bytes
    address: bytes
    expires_at: float
    term_s: float
    # The server's clock, seconds since its epoch.
    now_s: float
    value: bytes | None


STATUS = """
SELECT l.tail, l.trimmed, l.stopped, l.configuration, l.replica, l.address, l.expires_at,
    l.term_s, extract(epoch FROM clock_timestamp())::float8,
    (SELECT m.value FROM {0}.metadata m WHERE m.log_id = l.log_id AND m.key = %(key)b)
FROM {0}.log l WHERE l.incarnation = %(log)s
"""
# Each row: the log, then how many entries there are within the limit, and one of them.
# Bodies are summed up by their sizes, which are known without reading them.
READ = """
SELECT l.incarnation, l.tail, l.trimmed, l.stopped, k.append_id,
    e.there, e.lsn, e.append_id, e.tags, e.checksum, e.body
FROM {0}.log l
LEFT JOIN {0}.entry k ON k.log_id = l.log_id AND k.lsn = %(after)s::int8
LEFT JOIN LATERAL (
    SELECT candidate.*, count(*) OVER () AS there,
        sum(octet_length(body)) OVER (ORDER BY lsn) AS bytes, row_number() OVER (ORDER BY lsn) AS at
    FROM (
        SELECT * FROM {0}.entry
        WHERE log_id = l.log_id AND lsn > %(after)s::int8 AND lsn <= l.tail
        ORDER BY lsn LIMIT %(limit)s::int8
    ) AS candidate
) AS e ON e.bytes <= %(bytes)s::int8 OR e.at = 1
WHERE l.incarnation = %(log)s ORDER BY e.lsn
"""
READ_TAG = """
SELECT l.incarnation, l.tail, l.trimmed, l.stopped, k.append_id,
    e.there, e.lsn, e.append_id, e.tags, e.checksum, e.body
FROM {0}.log l
LEFT JOIN {0}.entry k ON k.log_id = l.log_id AND k.lsn = %(after)s::int8
LEFT JOIN LATERAL (
    SELECT candidate.*, count(*) OVER () AS there,
        sum(octet_length(body)) OVER (ORDER BY lsn) AS bytes, row_number() OVER (ORDER BY lsn) AS at
    FROM (
        SELECT t.lsn, n.append_id, n.tags, n.checksum, n.body
        FROM {0}.tag t LEFT JOIN {0}.entry n ON n.log_id = t.log_id AND n.lsn = t.lsn
        WHERE t.log_id = l.log_id AND t.tag = %(tag)b AND t.lsn > %(after)s::int8
            AND t.lsn <= l.tail
        ORDER BY t.lsn LIMIT %(limit)s::int8
    ) AS candidate
) AS e ON coalesce(e.bytes, 0) <= %(bytes)s::int8 OR e.at = 1
WHERE l.incarnation = %(log)s ORDER BY e.lsn
"""
METADATA = """
SELECT m.key, m.value FROM {0}.metadata m JOIN {0}.log l USING (log_id)
WHERE l.incarnation = %(log)s
"""
DOOMED = """
SELECT e.lsn, e.tags FROM {0}.entry e JOIN {0}.log l USING (log_id)
WHERE l.incarnation = %(log)s AND e.lsn <= l.trimmed ORDER BY e.lsn LIMIT %(limit)s::int8
"""
