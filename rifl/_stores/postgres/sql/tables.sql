-- Layout 1 of the PostgreSQL store. What reads it is in the other files beside this.
CREATE TABLE @schema@.meta (name text PRIMARY KEY, value text NOT NULL);

-- The row of a client is its lease. state: open; session (takes keys only); over (its
-- lease ended, calls still run); closed (a session that ended, kept to be refused by);
-- namespace (of a peer's keys: no lease, and it goes with its last key).
CREATE TABLE @schema@.clients (
    client_id bigint PRIMARY KEY,
    state text NOT NULL,
    first_incomplete bigint NOT NULL DEFAULT 1,
    acknowledged int8multirange NOT NULL DEFAULT '{}',
    term interval NOT NULL,
    due timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX clients_due ON @schema@.clients (due);

-- A call has a seq, or a key (then its seq is 0). It runs, under the attempt token,
-- until it has a record; the token stays, so that a repeated request is recognised.
CREATE TABLE @schema@.calls (
    client_id bigint NOT NULL,
    seq bigint NOT NULL,
    key bytea NOT NULL,
    fingerprint bytea NOT NULL,
    method text NOT NULL,
    kind text NOT NULL,
    token text NOT NULL,
    owner text NOT NULL,
    waiters text[] NOT NULL DEFAULT '{}',
    record bytea,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    recorded_at timestamptz,
    retention interval,
    expires_at timestamptz,
    PRIMARY KEY (client_id, seq, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
-- A keyed call is kept for its retention, counted from its completion.
CREATE INDEX calls_expire ON @schema@.calls (expires_at) WHERE expires_at IS NOT NULL;

-- Keys and their bytes, in several rows a client, so that calls of one session do
-- not all wait for each other's commit.
CREATE TABLE @schema@.key_counts (
    client_id bigint NOT NULL,
    shard integer NOT NULL,
    keys bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (client_id, shard)
) WITH (fillfactor = 50);

CREATE TABLE @schema@.sessions (
    client_id bigint PRIMARY KEY,
    peer bytea NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    retention_s double precision NOT NULL,
    changed_at_unix_s double precision NOT NULL,
    UNIQUE (peer, name)
);

CREATE TABLE @schema@.replicas (
    owner text PRIMARY KEY,
    beats bigint NOT NULL,
    beaten_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE @schema@.secrets (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key_id integer NOT NULL,
    value bytea NOT NULL
);

INSERT INTO @schema@.meta VALUES ('layout', '1'), ('ids', '0');
INSERT INTO @schema@.meta VALUES ('store', gen_random_uuid()::text);
