"""The statements that read a log, each of one moment; ``{0}`` is the schema."""

from __future__ import annotations

# In front of all rows: the log, alike in each.
HEAD = "l.incarnation, l.steps, l.stopped, l.tail, l.removed"

STATUS = f"SELECT {HEAD} FROM {{0}}.log l WHERE l.incarnation = %(log)s"  # noqa: S608
GET = f"""
SELECT {HEAD}, k.key, k.value FROM {{0}}.log l
LEFT JOIN {{0}}.key k ON k.log_id = l.log_id AND k.key = ANY (%(keys)s::bytea[])
    AND (k.ends IS NULL OR k.ends > {{0}}.now_1())
WHERE l.incarnation = %(log)s
"""  # noqa: S608 - our own words
SCAN = f"""
SELECT {HEAD}, k.key, k.value FROM {{0}}.log l
LEFT JOIN {{0}}.key k ON k.log_id = l.log_id AND k.key >= %(from)b AND k.key < %(to)b
    AND (k.ends IS NULL OR k.ends > {{0}}.now_1())
WHERE l.incarnation = %(log)s
"""  # noqa: S608 - our own words
REMAINING = f"""
SELECT {HEAD}, k.key, k.ends, k.term_s, {{0}}.now_1() FROM {{0}}.log l
LEFT JOIN {{0}}.key k ON k.log_id = l.log_id AND k.key = %(key)b
WHERE l.incarnation = %(log)s
"""  # noqa: S608 - our own words
# Each row: how many entries there are within the limit, and one of them; there is none behind the
# tail unless the log is damaged. Bodies are summed up by
# their sizes, which are known without reading them.
_BOUNDED = f"""
SELECT {HEAD}, e.there, e.lsn, e.at_us, e.tags, e.checksum, e.body FROM {{0}}.log l
LEFT JOIN LATERAL (
    SELECT candidate.*, count(*) OVER () AS there,
        sum(octet_length(body)) OVER (ORDER BY lsn) AS bytes, row_number() OVER (ORDER BY lsn) AS at
    FROM (%s) AS candidate
) AS e ON coalesce(e.bytes, 0) <= %%(bytes)s::int8 OR e.at = 1
WHERE l.incarnation = %%(log)s ORDER BY e.lsn
"""  # noqa: S608 - our own words
READ = (
    _BOUNDED
    % """
    SELECT lsn, at_us, tags, checksum, body FROM {0}.entry
    WHERE log_id = l.log_id AND lsn > %(after)s::int8
    ORDER BY lsn LIMIT %(limit)s::int8
    """
)
READ_TAG = (
    _BOUNDED
    % """
    SELECT t.lsn, n.at_us, n.tags, n.checksum, n.body FROM {0}.tag t
    LEFT JOIN {0}.entry n ON n.log_id = t.log_id AND n.lsn = t.lsn
    WHERE t.log_id = l.log_id AND t.tag = %(tag)b AND t.lsn > %(after)s::int8
    ORDER BY t.lsn LIMIT %(limit)s::int8
    """
)
DOOMED = f"""
SELECT {HEAD}, e.lsn, e.tags FROM {{0}}.log l
LEFT JOIN LATERAL (
    SELECT lsn, tags FROM {{0}}.entry
    WHERE log_id = l.log_id AND lsn <= least(%(through)s::int8, l.tail)
    ORDER BY lsn LIMIT %(limit)s::int8
) AS e ON true
WHERE l.incarnation = %(log)s ORDER BY e.lsn
"""  # noqa: S608 - our own words
