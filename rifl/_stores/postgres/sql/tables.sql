-- Layout 1 of the PostgreSQL store. The functions over it are in the other files beside this.
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
    due timestamptz,
    -- The retention of a session in which no call was made yet, while term is a lease's.
    full_term interval,
    -- Whom a lease counts for, empty for no caller, and for what is no lease.
    holder bytea NOT NULL DEFAULT '',
    -- Whose calls a session takes, empty if it takes all.
    writer bytea NOT NULL DEFAULT ''
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
-- Few run at a time: those whose replica is gone are counted (``unresolved_1``). Plain ones with a
-- seq stay here until they are acknowledged: an index over ``record`` would have no record's update
-- be HOT.
CREATE INDEX calls_running ON @schema@.calls (owner)
    WHERE expires_at IS NULL AND (kind = 'plain' OR seq = 0);
-- A keyed call is kept for its retention, counted from its completion, 'infinity' in a session.
CREATE INDEX calls_expire ON @schema@.calls (expires_at) WHERE expires_at < 'infinity';

-- Keys and their bytes, in several rows a client, so that calls of one session do
-- not all wait for each other's commit.
CREATE TABLE @schema@.key_counts (
    client_id bigint NOT NULL,
    shard integer NOT NULL,
    keys bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (client_id, shard)
) WITH (fillfactor = 50);

-- Leases of one caller, in several rows, so that its grants do not all wait for each other's
-- commit.
CREATE TABLE @schema@.lease_counts (
    holder bytea NOT NULL,
    shard integer NOT NULL,
    leases bigint NOT NULL,
    PRIMARY KEY (holder, shard)
) WITH (fillfactor = 50);

CREATE TABLE @schema@.sessions (
    client_id bigint PRIMARY KEY,
    peer bytea NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    retention_s double precision NOT NULL,
    changed_at_unix_s double precision NOT NULL,
    -- What is kept of the secret that opens a session, empty if it has none.
    secret bytea NOT NULL,
    -- Where its opener was, empty for an authenticated one.
    source text NOT NULL,
    UNIQUE (peer, name)
);

-- What is before the number in the name of a numbered session, null for other names, and
-- the number. A series is closed up to its highest number that ended. The index keeps what
-- these return, so they belong to the layout and never change within it.
CREATE FUNCTION @schema@.series_1(p_name text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(p_name FROM '^(.+)#(?:0|[1-9][0-9]{0,17})$')
$$;
CREATE FUNCTION @schema@.number_1(p_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(p_name FROM '^.+#(0|[1-9][0-9]{0,17})$')::bigint
$$;
CREATE INDEX sessions_series ON @schema@.sessions
    (peer, @schema@.series_1(name), @schema@.number_1(name));

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

-- The time that was lived through: a date when it began, and moved since by nothing but the
-- beats of one replica at a time (``beat_1``). No jump of a clock ends a retention.
CREATE TABLE @schema@.age (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    lived timestamptz NOT NULL DEFAULT clock_timestamp(),
    sweeper text NOT NULL DEFAULT '',
    reading double precision NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO @schema@.age DEFAULT VALUES;

-- Calls whose outcome was unknown, whatever became of their clients, and what an operator
-- said of them. Kept for a time that was lived through, and the newest ones only. Where a caller
-- gave up a call that runs, owner and token are its attempt's: unknown once that replica is gone.
CREATE TABLE @schema@.unknown (
    client_id bigint NOT NULL,
    seq bigint NOT NULL,
    key bytea NOT NULL,
    method text NOT NULL,
    since timestamptz,
    note text,
    lived timestamptz NOT NULL,
    owner text NOT NULL DEFAULT '',
    token text NOT NULL DEFAULT '',
    PRIMARY KEY (client_id, seq, key)
);
CREATE INDEX unknown_lived ON @schema@.unknown (lived);

-- Losses that an operator accepted (``accept_loss_1``).
CREATE TABLE @schema@.losses (
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    who text NOT NULL,
    why text NOT NULL,
    stopped text NOT NULL,
    store_before text NOT NULL,
    history_before text NOT NULL,
    history text NOT NULL
);

-- Rows that are moved conditionally, beside the records: how far other programs are that hand
-- work to the servers' handlers in an order of their own.
CREATE TABLE @schema@.rows (
    key text PRIMARY KEY,
    value bytea NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

INSERT INTO @schema@.meta VALUES ('layout', '1'), ('ids', '0');
INSERT INTO @schema@.meta VALUES ('store', gen_random_uuid()::text);
