CREATE TABLE @schema@.meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO @schema@.meta VALUES ('format', '@format@');

-- One row a log, which every write locks first. `incarnation` is this copy of the log: who
-- knows another one writes and reads nothing. `history`: the server and timeline it is
-- written on; `copied`: the last commit waited until a standby had it, and so had all
-- before it; `stopped`: why nobody may go on. Names are bytes: they may hold a zero.
CREATE TABLE @schema@.log (
    log_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    incarnation text NOT NULL UNIQUE,
    tail int8 NOT NULL,
    trimmed int8 NOT NULL,
    configuration int8 NOT NULL,
    replica bytea NOT NULL DEFAULT '',
    address bytea NOT NULL DEFAULT '',
    expires_at float8 NOT NULL DEFAULT 0,
    term_s float8 NOT NULL DEFAULT 0,
    history text NOT NULL,
    copied boolean NOT NULL,
    stopped text NOT NULL DEFAULT '',
    touched int8 NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- `tags` is a JSON list of texts.
CREATE TABLE @schema@.entry (
    log_id int8 NOT NULL,
    lsn int8 NOT NULL,
    append_id bytea NOT NULL,
    tags text NOT NULL,
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

CREATE TABLE @schema@.metadata (
    log_id int8 NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (log_id, key)
);

-- `chunks` is null until the snapshot is whole.
CREATE TABLE @schema@.snapshot (
    snapshot_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log_id int8 NOT NULL,
    lsn int8 NOT NULL,
    chunks int8
);
CREATE INDEX ON @schema@.snapshot (log_id);

CREATE TABLE @schema@.chunk (
    snapshot_id int8 NOT NULL,
    number int8 NOT NULL,
    checksum int8 NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (snapshot_id, number)
);
ALTER TABLE @schema@.chunk ALTER COLUMN body SET STORAGE EXTERNAL;

-- Who accepted that acknowledged entries are lost, and on which server the log went on.
CREATE TABLE @schema@.loss (
    log_id int8 NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    who text NOT NULL,
    why text NOT NULL,
    stopped text NOT NULL,
    history_before text NOT NULL,
    history text NOT NULL
);
