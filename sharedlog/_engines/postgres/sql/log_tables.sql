CREATE TABLE @schema@.meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO @schema@.meta VALUES ('format', '@format@');

-- One row a log, which every write locks first. `incarnation` is this copy of the log: who
-- knows another one writes and reads nothing. `steps`: how many writes there were. `history`:
-- the server and timeline it is written on; `copied`: the last commit waited until a standby
-- had it, and so had all before it; `stopped`: why nobody may go on.
CREATE TABLE @schema@.log (
    log_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    incarnation text NOT NULL UNIQUE,
    tail int8 NOT NULL DEFAULT 0,
    removed int8 NOT NULL DEFAULT 0,
    at_us int8 NOT NULL DEFAULT 0,
    steps int8 NOT NULL DEFAULT 0,
    history text NOT NULL,
    copied boolean NOT NULL,
    stopped text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- `tags`: a line each. Bytes, since text holds no zero.
CREATE TABLE @schema@.entry (
    log_id int8 NOT NULL,
    lsn int8 NOT NULL,
    at_us int8 NOT NULL,
    tags bytea NOT NULL,
    checksum int8 NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log_id, lsn)
);
ALTER TABLE @schema@.entry ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE @schema@.tag (
    log_id int8 NOT NULL,
    tag bytea NOT NULL,
    lsn int8 NOT NULL,
    PRIMARY KEY (log_id, tag, lsn)
);

-- `value` begins with a checksum, see checksums.py. `ends`: when a key's term is over, seconds since 1970 by this server's clock; null without one.
CREATE TABLE @schema@.key (
    log_id int8 NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    ends float8,
    term_s float8,
    PRIMARY KEY (log_id, key)
) WITH (fillfactor = 70);
