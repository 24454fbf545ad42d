CREATE SCHEMA IF NOT EXISTS rifl;
-- Layout 1 of the PostgreSQL store. The functions over it are in the other files beside this.
CREATE TABLE rifl.meta (name text PRIMARY KEY, value text NOT NULL);

-- The row of a client is its lease. state: open; session (takes keys only); over (its
-- lease ended, calls still run); closed (a session that ended, kept to be refused by);
-- namespace (of a peer's keys: no lease, and it goes with its last key).
CREATE TABLE rifl.clients (
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
CREATE INDEX clients_due ON rifl.clients (due);

-- A call has a seq, or a key (then its seq is 0). It runs, under the attempt token,
-- until it has a record; the token stays, so that a repeated request is recognised.
CREATE TABLE rifl.calls (
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
CREATE INDEX calls_running ON rifl.calls (owner)
    WHERE expires_at IS NULL AND (kind = 'plain' OR seq = 0);
-- A keyed call is kept for its retention, counted from its completion, 'infinity' in a session.
CREATE INDEX calls_expire ON rifl.calls (expires_at) WHERE expires_at < 'infinity';

-- Keys and their bytes, in several rows a client, so that calls of one session do
-- not all wait for each other's commit.
CREATE TABLE rifl.key_counts (
    client_id bigint NOT NULL,
    shard integer NOT NULL,
    keys bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (client_id, shard)
) WITH (fillfactor = 50);

-- Leases of one caller, in several rows, so that its grants do not all wait for each other's
-- commit.
CREATE TABLE rifl.lease_counts (
    holder bytea NOT NULL,
    shard integer NOT NULL,
    leases bigint NOT NULL,
    PRIMARY KEY (holder, shard)
) WITH (fillfactor = 50);

CREATE TABLE rifl.sessions (
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
CREATE FUNCTION rifl.series_1(p_name text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(p_name FROM '^(.+)#(?:0|[1-9][0-9]{0,17})$')
$$;
CREATE FUNCTION rifl.number_1(p_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(p_name FROM '^.+#(0|[1-9][0-9]{0,17})$')::bigint
$$;
CREATE INDEX sessions_series ON rifl.sessions
    (peer, rifl.series_1(name), rifl.number_1(name));

CREATE TABLE rifl.replicas (
    owner text PRIMARY KEY,
    beats bigint NOT NULL,
    beaten_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE rifl.secrets (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key_id integer NOT NULL,
    value bytea NOT NULL
);

-- The time that was lived through: a date when it began, and moved since by nothing but the
-- beats of one replica at a time (``beat_1``). No jump of a clock ends a retention.
CREATE TABLE rifl.age (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    lived timestamptz NOT NULL DEFAULT clock_timestamp(),
    sweeper text NOT NULL DEFAULT '',
    reading double precision NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO rifl.age DEFAULT VALUES;

-- Calls whose outcome was unknown, whatever became of their clients, and what an operator
-- said of them. Kept for a time that was lived through, and the newest ones only. Where a caller
-- gave up a call that runs, owner and token are its attempt's: unknown once that replica is gone.
CREATE TABLE rifl.unknown (
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
CREATE INDEX unknown_lived ON rifl.unknown (lived);

-- Losses that an operator accepted (``accept_loss_1``).
CREATE TABLE rifl.losses (
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
CREATE TABLE rifl.rows (
    key text PRIMARY KEY,
    value bytea NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

INSERT INTO rifl.meta VALUES ('layout', '1'), ('ids', '0');
INSERT INTO rifl.meta VALUES ('store', gen_random_uuid()::text);
-- Is this the store the caller once opened?
-- Not in SQL: what every call asks would be planned anew each time.
CREATE OR REPLACE FUNCTION rifl.same_store_1(p_store text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM rifl.meta WHERE name = 'store' AND value = p_store);
END $$;

-- Have this transaction's commit wait for the disk, whatever the session has set: one that
-- a pooler lends may be anybody's. Ours say so where they were opened with durability=warn.
CREATE OR REPLACE FUNCTION rifl.durable_1() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off'
       AND current_setting('rifl.durability', true) IS DISTINCT FROM 'warn' THEN
        RETURN set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN NULL;
END $$;

-- Have this transaction wait for nobody's lock for long: a foreign one on a client's row is
-- the trouble of that client alone, and the connection is wanted by others.
CREATE OR REPLACE FUNCTION rifl.soon_1() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('lock_timeout')::interval NOT BETWEEN '1 ms' AND '500 ms' THEN
        RETURN set_config('lock_timeout', '500ms', true);
    END IF;
    RETURN NULL;
END $$;

-- When a retention that begins now ends; the counter may be one beat behind.
CREATE OR REPLACE FUNCTION rifl.ends_1(p_retention interval) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_retention IS NULL THEN RETURN 'infinity'; END IF;
    RETURN (SELECT lived FROM rifl.age) + interval '2 seconds' + p_retention;
END $$;

CREATE OR REPLACE FUNCTION rifl.remember_1(
    p_client bigint, p_seq bigint, p_key bytea, p_method text, p_since timestamptz, p_note text
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO rifl.unknown AS known (client_id, seq, key, method, since, note, lived)
    SELECT p_client, p_seq, p_key, p_method, p_since, p_note, lived FROM rifl.age
    ON CONFLICT (client_id, seq, key) DO UPDATE
    SET method = coalesce(nullif(excluded.method, ''), known.method),
        since = coalesce(excluded.since, known.since), note = excluded.note,
        lived = excluded.lived, owner = '', token = ''
$$;

-- The same for a plain call that its caller gave up while it runs: its replica says what becomes of
-- it (``finish_1``), or is gone. A function: what it does would be prepared for every
-- acknowledgement.
CREATE OR REPLACE FUNCTION rifl.given_up_1(
    p_client bigint, p_seq bigint, p_key bytea, p_method text, p_since timestamptz,
    p_owner text, p_token text
) RETURNS void LANGUAGE sql AS $$
    SELECT rifl.remember_1(p_client, p_seq, p_key, p_method, p_since, NULL);
    UPDATE rifl.unknown SET owner = p_owner, token = p_token
    WHERE client_id = p_client AND seq = p_seq AND key = p_key
$$;

CREATE OR REPLACE FUNCTION rifl.forget_unknown_1(p_kept interval, p_most bigint)
RETURNS void LANGUAGE sql AS $$
    DELETE FROM rifl.unknown WHERE lived < greatest(
        (SELECT lived FROM rifl.age) - p_kept,
        (SELECT min(lived) FROM
            (SELECT lived FROM rifl.unknown ORDER BY lived DESC LIMIT p_most) AS newest))
$$;

-- Tell the replicas that wait for an attempt that it ended; they hear it on commit.
CREATE OR REPLACE FUNCTION rifl.wake_1(p_token text, p_waiters text[]) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('rifl_' || waiter, p_token) FROM unnest(p_waiters) AS waiter
$$;

CREATE OR REPLACE FUNCTION rifl.count_key_1(
    p_client bigint, p_key bytea, p_keys bigint, p_bytes bigint
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO rifl.key_counts AS counts
    VALUES (p_client, get_byte(sha256(p_key), 0) % 16, p_keys, p_bytes)
    ON CONFLICT (client_id, shard) DO UPDATE
    SET keys = counts.keys + p_keys, bytes = counts.bytes + p_bytes
$$;

-- Apply acknowledgements, which only move forward, and delete what they free, in this
-- one transaction; renew the lease. The client's row is locked, and p_old_first and
-- p_old_acks are what it says.
CREATE OR REPLACE FUNCTION rifl.apply_1(
    p_client bigint, p_old_first bigint, p_old_acks int8multirange, p_first bigint,
    p_acks int8multirange
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    new_first bigint := greatest(p_old_first, p_first);
    new_acks int8multirange := p_old_acks;
BEGIN
    IF NOT isempty(p_old_acks) OR NOT isempty(p_acks) THEN
        new_acks := (p_old_acks + p_acks) * int8multirange(int8range(new_first, NULL));
        IF (SELECT count(*) FROM unnest(new_acks)) > 4096 THEN
            -- Beyond the bound the records stay: then nothing may be called acknowledged.
            new_acks := p_old_acks * int8multirange(int8range(new_first, NULL));
        END IF;
    END IF;
    UPDATE rifl.clients
    SET first_incomplete = new_first,
        acknowledged = new_acks,
        -- Not on every call: a quarter more, and again when that is used up.
        due = CASE WHEN due < clock_timestamp() + term THEN clock_timestamp() + 1.25 * term
                   ELSE due END
    WHERE client_id = p_client;
    IF new_first > p_old_first OR new_acks <> p_old_acks THEN
        DELETE FROM rifl.calls
        WHERE ctid = ANY (ARRAY(
            -- A row that is locked is being recorded just now; the next acknowledgement
            -- takes it.
            SELECT ctid FROM rifl.calls
            WHERE client_id = p_client AND seq > 0 AND (seq < new_first OR seq <@ new_acks)
            FOR UPDATE SKIP LOCKED
        )) AND (cardinality(waiters) = 0 OR rifl.wake_1(token, waiters) IS NULL)
        AND (record IS NOT NULL OR kind <> 'plain'
             OR rifl.given_up_1(
                 client_id, seq, key, method, claimed_at, owner, token) IS NULL);
    END IF;
END $$;

-- The same. False if another call of the client is doing so just now and p_wait is false:
-- every header repeats what it acknowledges, and calls of one client shall not wait for
-- each other's commit.
CREATE OR REPLACE FUNCTION rifl.acknowledge_1(
    p_client bigint, p_first bigint, p_acks int8multirange, p_wait boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    client rifl.clients;
BEGIN
    IF p_wait THEN
        SELECT * INTO client FROM rifl.clients WHERE client_id = p_client FOR NO KEY UPDATE;
    ELSE
        SELECT * INTO client FROM rifl.clients WHERE client_id = p_client
        FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM rifl.apply_1(
        p_client, client.first_incomplete, client.acknowledged, p_first, p_acks);
    RETURN true;
END $$;

-- Decide about a call and claim it if it is new (DESIGN §4, steps 2 to 6).
--
-- p_until: by when, by this clock, in seconds. Whoever sent one that is later has given it
-- up, and has abandoned it; NULL for ever. p_writer: of a session, whose call this is.
CREATE OR REPLACE FUNCTION rifl.claim_1(
    p_store text, p_client bigint, p_seq bigint, p_key bytea, p_first bigint,
    p_acks int8multirange, p_fingerprint bytea, p_method text, p_kind text, p_token text,
    p_owner text, p_refusing boolean, p_window bigint, p_max_keys bigint,
    p_max_key_bytes bigint, p_take_over text, p_lost bytea,
    p_retention_s double precision, p_until double precision, p_writer bytea, OUT o_found text, OUT o_token text, OUT o_owner text,
    OUT o_kind text, OUT o_record bytea, OUT o_verified boolean
) LANGUAGE plpgsql AS $$
DECLARE
    known rifl.calls;
    client rifl.clients;
    is_known boolean;
    alive boolean;
    applied boolean;
    held record;
    client_state text;
    old_first bigint;
    old_acks int8multirange;
    is_due boolean;
    top bigint;
    -- What a function returns that is called for what it does: an expression costs a
    -- fraction of a PERFORM.
    ignored text;
BEGIN
    -- Until this has committed, whoever abandons it waits: it is in time, or is undone.
    ignored := pg_advisory_xact_lock_shared(hashtextextended(p_token, 1));
    IF clock_timestamp() > to_timestamp(p_until) THEN o_found := 'late'; RETURN; END IF;
    IF p_kind <> 'plain' AND p_lost = '' THEN
        -- Only a plain call's claim is an intent. What a crash of the database loses of
        -- another's is a run whose record can no longer be written: that of an atomic call
        -- is in a transaction which comes after this one, and an idempotent one runs again.
        ignored := set_config('synchronous_commit', 'off', true);
    ELSE
        ignored := rifl.durable_1();
    END IF;
    <<usual>>
    BEGIN
        -- What most calls are is claimed with few statements: a new call of a sequence, by
        -- a client that lives and has room, while nobody else holds its row. Whatever else
        -- it turns out to be is decided below, which looks at everything anew.
        EXIT usual WHEN p_seq = 0 OR p_refusing OR p_take_over <> ''
            OR p_seq < p_first OR p_seq <@ p_acks;
        IF p_kind = 'atomic' OR p_fingerprint = '' THEN
            EXIT usual WHEN rifl.is_committing_1(p_client, p_seq);
        END IF;
        SELECT state, first_incomplete, acknowledged, due < clock_timestamp() + term,
            (SELECT max(seq) FROM rifl.calls WHERE client_id = p_client AND seq > 0)
        INTO client_state, old_first, old_acks, is_due, top
        FROM rifl.clients
        WHERE client_id = p_client
          AND EXISTS (SELECT FROM rifl.meta WHERE name = 'store' AND value = p_store)
        FOR NO KEY UPDATE SKIP LOCKED;
        EXIT usual WHEN NOT FOUND OR client_state <> 'open' OR p_seq < old_first
            OR p_seq <@ old_acks OR greatest(top, p_seq) - p_first >= p_window;
        IF p_seq <= top THEN
            EXIT usual WHEN EXISTS (
                SELECT FROM rifl.calls WHERE client_id = p_client AND seq = p_seq);
        END IF;
        IF p_first > old_first OR NOT p_acks <@ old_acks OR is_due THEN
            ignored := rifl.apply_1(p_client, old_first, old_acks, p_first, p_acks);
        END IF;
        INSERT INTO rifl.calls (client_id, seq, key, fingerprint, method, kind, token, owner)
        VALUES (p_client, p_seq, '', p_fingerprint, p_method, p_kind, p_token, p_owner)
        ON CONFLICT DO NOTHING;
        EXIT usual WHEN NOT FOUND;
        -- No acknowledgement came between, as below: the client's row is locked.
        o_found := 'new'; RETURN;
    END;
    IF NOT rifl.same_store_1(p_store) THEN o_found := 'backwards'; RETURN; END IF;
    ignored := rifl.soon_1();
    LOOP
        SELECT * INTO known FROM rifl.calls
        WHERE client_id = p_client AND seq = p_seq AND key = p_key;
        is_known := FOUND;
        -- Against removal of the client, until this commits; not against its other calls.
        SELECT * INTO client FROM rifl.clients WHERE client_id = p_client FOR KEY SHARE;
        IF client.state = 'session' AND client.writer <> p_writer THEN
            -- It takes another writer's calls: it is closed to this one.
            client.state := 'closed';
        END IF;
        alive := client.state IN ('open', 'session', 'namespace');
        IF client.client_id IS NULL AND p_client < 0 AND NOT is_known THEN
            INSERT INTO rifl.clients (client_id, state, term)
            VALUES (p_client, 'namespace', '0') ON CONFLICT DO NOTHING;
            CONTINUE;
        END IF;

        IF is_known THEN
            IF p_fingerprint <> '' AND known.fingerprint <> ''
               AND p_fingerprint <> known.fingerprint THEN
                o_found := 'mismatch'; RETURN;
            END IF;
            IF alive AND (p_first > client.first_incomplete
                          OR NOT p_acks <@ client.acknowledged
                          OR client.due < clock_timestamp() + client.term) THEN
                PERFORM rifl.acknowledge_1(p_client, p_first, p_acks, false);
            END IF;
            o_verified := known.fingerprint <> '';
            IF known.record IS NOT NULL THEN
                o_found := 'completed'; o_record := known.record; RETURN;
            END IF;
            IF known.token = p_token THEN o_found := 'new'; RETURN; END IF;
            IF known.token = p_take_over THEN
                -- If it is to run anew, it is judged as if it were.
                IF p_lost = '' AND alive IS NOT TRUE THEN
                    o_found := CASE client.state WHEN 'closed' THEN 'closed'
                                                 ELSE 'unknown-client' END;
                    RETURN;
                ELSIF p_lost = '' AND p_refusing THEN
                    o_found := 'refusing'; RETURN;
                ELSIF NOT rifl.held_1(p_client, p_seq, p_key, known.token, true) THEN
                    o_found := 'running';
                ELSIF p_lost = '' THEN
                    -- Locked only now: others may have come to wait since it was looked at.
                    SELECT waiters INTO known.waiters FROM rifl.calls
                    WHERE client_id = p_client AND seq = p_seq AND key = p_key;
                    UPDATE rifl.calls
                    SET token = p_token, owner = p_owner, kind = p_kind, waiters = '{}',
                        claimed_at = clock_timestamp()
                    WHERE client_id = p_client AND seq = p_seq AND key = p_key
                      AND token = p_take_over AND calls.record IS NULL;
                    CONTINUE WHEN NOT FOUND;
                    PERFORM rifl.wake_1(known.token, known.waiters);
                    o_found := 'new'; RETURN;
                ELSE
                    UPDATE rifl.calls
                    SET record = p_lost, recorded_at = clock_timestamp(),
                        expires_at = rifl.ends_1(retention)
                    WHERE client_id = p_client AND seq = p_seq AND key = p_key
                      AND token = p_take_over AND calls.record IS NULL
                    RETURNING waiters INTO known.waiters;
                    CONTINUE WHEN NOT FOUND;
                    IF p_seq = 0 THEN
                        PERFORM rifl.count_key_1(p_client, p_key, 0, length(p_lost));
                    END IF;
                    PERFORM rifl.remember_1(
                        p_client, p_seq, p_key, known.method, known.claimed_at, NULL);
                    PERFORM rifl.wake_1(known.token, known.waiters);
                    o_found := 'completed'; o_record := p_lost; RETURN;
                END IF;
            ELSIF known.owner = p_owner OR p_owner = ANY (known.waiters) THEN
                o_found := 'running';
            ELSIF NOT rifl.held_1(p_client, p_seq, p_key, known.token, false) THEN
                -- Nobody could note that we wait: the caller has to look again.
                o_found := 'recording';
            ELSE
                UPDATE rifl.calls SET waiters = waiters || p_owner
                WHERE client_id = p_client AND seq = p_seq AND key = p_key
                  AND token = known.token AND calls.record IS NULL;
                CONTINUE WHEN NOT FOUND;
                o_found := 'running';
            END IF;
            o_token := known.token; o_owner := known.owner; o_kind := known.kind; RETURN;
        END IF;

        IF client.state = 'closed' THEN o_found := 'closed'; RETURN; END IF;
        IF alive IS NOT TRUE THEN o_found := 'unknown-client'; RETURN; END IF;
        IF p_seq > 0 AND client.state = 'session' THEN o_found := 'needs-key'; RETURN; END IF;
        IF p_seq > 0 AND (p_seq < client.first_incomplete OR p_seq <@ client.acknowledged) THEN
            o_found := 'stale'; RETURN;
        END IF;
        applied := true;
        IF p_first > client.first_incomplete OR NOT p_acks <@ client.acknowledged
           OR client.due < clock_timestamp() + client.term THEN
            applied := rifl.acknowledge_1(p_client, p_first, p_acks, false);
        END IF;
        IF client.full_term IS NOT NULL THEN
            -- The first call made in a session: it is kept for its retention from now on.
            UPDATE rifl.clients
            SET term = full_term, due = clock_timestamp() + 1.25 * full_term, full_term = NULL
            WHERE client_id = p_client AND full_term IS NOT NULL;
        END IF;
        IF p_refusing THEN o_found := 'refusing'; RETURN; END IF;
        IF p_seq = 0 THEN
            SELECT coalesce(sum(keys), 0) AS keys, coalesce(sum(bytes), 0) AS bytes INTO held
            FROM rifl.key_counts WHERE client_id = p_client;
            IF held.keys >= p_max_keys OR held.bytes >= p_max_key_bytes THEN
                o_found := 'window'; RETURN;
            END IF;
        ELSIF rifl.is_full_1(p_client, p_seq, p_first, p_window) THEN
            IF NOT applied THEN
                PERFORM rifl.acknowledge_1(p_client, p_first, p_acks, true);
            END IF;
            IF applied OR rifl.is_full_1(p_client, p_seq, p_first, p_window) THEN
                o_found := 'window'; RETURN;
            END IF;
        END IF;

        IF p_seq > 0 AND (p_kind = 'atomic' OR p_fingerprint = '')
           AND rifl.is_committing_1(p_client, p_seq) THEN
            SELECT * INTO o_token, o_owner
            FROM rifl.who_commits_1(p_client, p_seq, p_take_over);
            -- It may have ended since, and what it wrote does not show above.
            CONTINUE WHEN o_token IS NULL
                OR o_owner = p_owner AND rifl.has_committed_1(p_client, p_seq);
            o_found := 'recording'; o_kind := 'atomic'; RETURN;
        END IF;

        INSERT INTO rifl.calls
            (client_id, seq, key, fingerprint, method, kind, token, owner, retention)
        VALUES (p_client, p_seq, p_key, p_fingerprint, p_method, p_kind, p_token, p_owner,
                -- What a session keeps, it keeps as long as it lives.
                CASE WHEN p_seq = 0 AND client.state <> 'session'
                     THEN make_interval(secs => p_retention_s) END)
        ON CONFLICT DO NOTHING;
        -- Another claim of the same call was first, and has committed.
        CONTINUE WHEN NOT FOUND;
        IF p_seq = 0 THEN
            PERFORM rifl.count_key_1(p_client, p_key, 1, length(p_key));
        ELSE
            -- An acknowledgement may have freed the record that stood here since we
            -- looked: the insertion waited for it, and now it shows.
            PERFORM FROM rifl.clients WHERE client_id = p_client
                AND (p_seq < first_incomplete OR p_seq <@ acknowledged);
            IF FOUND THEN
                DELETE FROM rifl.calls
                WHERE client_id = p_client AND seq = p_seq AND key = p_key;
                o_found := 'stale'; RETURN;
            END IF;
        END IF;
        o_found := 'new'; RETURN;
    END LOOP;
END $$;

-- Whether a client has no room for one more sequenced call.
CREATE OR REPLACE FUNCTION rifl.is_full_1(p_client bigint, p_seq bigint, p_first bigint, p_window bigint)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    top bigint;
BEGIN
    -- All that is known lies in first incomplete .. top: most clients are done here.
    SELECT max(seq) INTO top FROM rifl.calls WHERE client_id = p_client AND seq > 0;
    IF greatest(coalesce(top, 0), p_seq) - p_first < p_window THEN RETURN false; END IF;
    RETURN (SELECT count(*) FROM (
        SELECT FROM rifl.calls WHERE client_id = p_client AND seq > 0 LIMIT p_window
    ) AS counted) >= p_window;
END $$;

-- Lock a running call, which a handler's transaction may hold that has recorded it and
-- not committed. To take it over, that transaction is ended, and rolls back: nothing of
-- an attempt that is replaced may commit, and its replica may stay silent for ever.
CREATE OR REPLACE FUNCTION rifl.held_1(
    p_client bigint, p_seq bigint, p_key bytea, p_token text, p_take boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    -- Like advisory locks in pg_locks: an unsigned half each.
    hash bigint := hashtextextended(p_token, 0);
BEGIN
    PERFORM set_config('lock_timeout', '300ms', true);
    FOR round IN 1..2 LOOP
        BEGIN
            PERFORM FROM rifl.calls
            WHERE client_id = p_client AND seq = p_seq AND key = p_key FOR UPDATE;
            RETURN true;
        EXCEPTION WHEN lock_not_available THEN
            IF NOT p_take OR round = 2 THEN RETURN false; END IF;
        END;
        BEGIN
            PERFORM pg_terminate_backend(pid) FROM pg_locks
            WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid <> pg_backend_pid()
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
              AND (classid::bigint << 32 | objid::bigint) = hash;
        EXCEPTION WHEN insufficient_privilege THEN
            RETURN false;
        END;
    END LOOP;
    RETURN false;
END $$;

-- Calls that nobody claimed: the commit of the handler's transaction decides (DESIGN §4, step 6).

-- Whether such a transaction may be recording a call just now. If not, none does before this
-- transaction has ended: for each call that lock is a claim's, or one such transaction's.
CREATE OR REPLACE FUNCTION rifl.is_committing_1(p_client bigint, p_seq bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN NOT pg_try_advisory_xact_lock_shared(hashint8extended(p_seq, p_client));
END $$;

-- Who records a call that nobody claimed: a token that stands for it, and its replica, empty for
-- one that is gone, and for a transaction that was prepared (PREPARE TRANSACTION): that is no
-- session's, nothing here can end it, and it may last. NULL where nobody does any more. p_take_over: a token whose transaction is
-- to be ended, as in ``held_1``.
CREATE OR REPLACE FUNCTION rifl.who_commits_1(
    p_client bigint, p_seq bigint, p_take_over text, OUT o_token text, OUT o_owner text
) LANGUAGE plpgsql AS $$
DECLARE
    holder integer;
BEGIN
    WITH held AS (
        -- Advisory locks in pg_locks: an unsigned half each.
        SELECT pid, mode, (classid::bigint << 32 | objid::bigint) AS hash FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND objsubid = 1
          AND pid IS DISTINCT FROM pg_backend_pid()
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
    SELECT held.pid, coalesce(replicas.owner, '') INTO holder, o_owner
    FROM held LEFT JOIN rifl.replicas ON EXISTS (
        SELECT FROM held AS also
        WHERE also.pid = held.pid AND also.hash = hashtextextended(replicas.owner, 3))
    WHERE held.hash = hashint8extended(p_seq, p_client) AND held.mode = 'ExclusiveLock'
    LIMIT 1;
    IF NOT FOUND THEN RETURN; END IF;
    o_token := 'recording by ' || o_owner;
    IF o_token = p_take_over THEN
        BEGIN
            IF pg_terminate_backend(holder, 300) THEN o_token := NULL; END IF;
        EXCEPTION WHEN insufficient_privilege THEN
            RETURN;
        END;
    END IF;
END $$;

-- Wait for such a transaction to end, which may be a commit that is under way; as ``soon_1`` says.
CREATE OR REPLACE FUNCTION rifl.has_committed_1(p_client bigint, p_seq bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashint8extended(p_seq, p_client));
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Record a call that nobody claimed, in the handler's own transaction, which commits in the same
-- breath: whatever has to roll back is an error, as in ``record_or_fail_2``. Without p_at_once
-- it is what is returned, and what the call acknowledges is left: the client's row would be
-- locked for as long as the transaction is open.
CREATE OR REPLACE FUNCTION rifl.record_unclaimed_or_fail_2(
    p_store text, p_client bigint, p_seq bigint, p_token text, p_owner text, p_record bytea,
    p_fingerprint bytea, p_method bytea, p_first bigint, p_acks int8multirange, p_window bigint,
    p_durable boolean, p_mark text, p_at_once boolean DEFAULT true
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    result text;
    client_state text;
    top bigint;
    old_first bigint;
    old_acks int8multirange;
    is_due boolean;
    is_mine boolean := false;
    -- An expression costs a fraction of a PERFORM.
    ignored text;
BEGIN
    IF p_mark <> '' THEN
        IF current_setting('rifl.transaction', true) IS DISTINCT FROM p_mark THEN
            PERFORM current_setting('rifl.transaction_was_ended');
        END IF;
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    <<judging>>
    BEGIN
        result := 'isolation';
        -- Else no later statement would see what was committed meanwhile.
        EXIT judging WHEN current_setting('transaction_isolation') <> 'read committed';
        -- Against its removal, and the end of its lease, until this transaction has ended. Also
        -- against other calls' acknowledgements, unless one of them applies its own just now.
        IF p_at_once THEN
            SELECT state, first_incomplete, acknowledged, due < clock_timestamp() + term,
                (SELECT max(seq) FROM rifl.calls WHERE client_id = p_client AND seq > 0)
            INTO client_state, old_first, old_acks, is_due, top
            FROM rifl.clients
            WHERE client_id = p_client
              AND EXISTS (SELECT FROM rifl.meta WHERE name = 'store' AND value = p_store)
            FOR NO KEY UPDATE SKIP LOCKED;
            is_mine := FOUND;
        END IF;
        IF NOT is_mine THEN
            SELECT state, (SELECT max(seq) FROM rifl.calls
                           WHERE client_id = p_client AND seq > 0)
            INTO client_state, top
            FROM rifl.clients
            WHERE client_id = p_client
              AND EXISTS (SELECT FROM rifl.meta WHERE name = 'store' AND value = p_store)
            FOR KEY SHARE SKIP LOCKED;
        END IF;
        IF client_state IS NULL THEN
            -- Where it is there, it is being removed just now, or a foreign session holds it: a
            -- claim waits for that, and not for long.
            result := CASE WHEN NOT rifl.same_store_1(p_store) THEN 'wrong'
                WHEN EXISTS (SELECT FROM rifl.clients WHERE client_id = p_client) THEN 'fenced'
                ELSE 'gone' END;
            EXIT judging;
        END IF;
        result := 'gone';
        EXIT judging WHEN client_state <> 'open';
        result := 'fenced';
        -- By this a take-over finds whose transaction it is: before there is anything to find,
        -- else it is nobody's for a moment, and is ended.
        ignored := pg_advisory_xact_lock_shared(hashtextextended(p_owner, 3));
        -- Of a call that is being claimed, or recorded by another copy, the store is to be asked.
        EXIT judging WHEN NOT pg_try_advisory_xact_lock(hashint8extended(p_seq, p_client));
        -- All that is known lies in first incomplete .. top, and what the call acknowledges takes
        -- no room, whether or not it has gone.
        IF greatest(top, p_seq) - p_first >= p_window THEN
            EXIT judging WHEN (SELECT count(*) FROM (
                SELECT FROM rifl.calls
                WHERE client_id = p_client AND seq >= p_first AND NOT seq <@ p_acks LIMIT p_window
            ) AS counted) >= p_window;
        END IF;
        INSERT INTO rifl.calls
            (client_id, seq, key, fingerprint, method, kind, token, owner, record, recorded_at)
        VALUES (p_client, p_seq, '', p_fingerprint, convert_from(p_method, 'UTF8'), 'atomic',
                p_token, p_owner, p_record, clock_timestamp())
        ON CONFLICT DO NOTHING;
        EXIT judging WHEN NOT FOUND;
        IF NOT is_mine THEN
            -- Only now: a record that stood when this began may have been acknowledged, and be
            -- gone. From here on none can come, and so none can go.
            SELECT first_incomplete, acknowledged INTO old_first, old_acks
            FROM rifl.clients WHERE client_id = p_client;
        END IF;
        EXIT judging WHEN p_seq < old_first OR p_seq <@ old_acks;
        -- Where another call applies its own just now, these are left to the next.
        IF is_mine AND (p_first > old_first OR NOT p_acks <@ old_acks OR is_due) THEN
            ignored := rifl.apply_1(p_client, old_first, old_acks, p_first, p_acks);
        END IF;
        IF p_durable AND current_setting('synchronous_commit') = 'off' THEN
            -- Else this commit, and the answer it stands for, could be lost in a crash.
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        RETURN 'done';
    END;
    IF p_at_once THEN RAISE EXCEPTION USING ERRCODE = 'RIFL1', MESSAGE = result; END IF;
    RETURN result;
END $$;

CREATE OR REPLACE FUNCTION rifl.record_unclaimed_1(
    p_store text, p_client bigint, p_seq bigint, p_token text, p_owner text, p_record bytea,
    p_fingerprint bytea, p_method bytea, p_first bigint, p_acks int8multirange, p_window bigint,
    p_durable boolean
) RETURNS text LANGUAGE sql AS $$
    SELECT rifl.record_unclaimed_or_fail_2(
        p_store, p_client, p_seq, p_token, p_owner, p_record, p_fingerprint, p_method, p_first,
        p_acks, p_window, p_durable, '', false)
$$;

-- Record a call of an idempotent method that nobody claimed, where no record stands: what ends
-- its run. The transaction is its own.
CREATE OR REPLACE FUNCTION rifl.finish_unclaimed_1(
    p_store text, p_client bigint, p_seq bigint, p_token text, p_owner text, p_record bytea,
    p_fingerprint bytea, p_method text, p_first bigint, p_acks int8multirange, p_window bigint,
    p_unknown boolean, OUT ending text, OUT standing bytea
) LANGUAGE plpgsql AS $$
DECLARE
    known rifl.calls;
    client rifl.clients;
    ignored text;
BEGIN
    ignored := rifl.durable_1();
    ignored := rifl.soon_1();
    IF NOT rifl.same_store_1(p_store) THEN ending := 'backwards'; RETURN; END IF;
    LOOP
        SELECT * INTO known FROM rifl.calls
        WHERE client_id = p_client AND seq = p_seq AND key = '';
        IF FOUND THEN
            -- Another payload under the same identity is refused by a claim, too.
            IF known.record IS NULL OR (known.fingerprint <> '' AND p_fingerprint <> ''
                                        AND known.fingerprint <> p_fingerprint) THEN
                ending := 'fenced';
            ELSIF known.record = p_record THEN ending := 'done';
            ELSE ending := 'stands'; standing := known.record;
            END IF;
            RETURN;
        END IF;
        -- Against its removal, until this commits.
        SELECT * INTO client FROM rifl.clients WHERE client_id = p_client FOR KEY SHARE;
        IF NOT FOUND OR client.state <> 'open' THEN ending := 'gone'; RETURN; END IF;
        IF p_seq < client.first_incomplete OR p_seq <@ client.acknowledged THEN
            ending := 'acknowledged'; RETURN;
        END IF;
        IF p_first > client.first_incomplete OR NOT p_acks <@ client.acknowledged
           OR client.due < clock_timestamp() + client.term THEN
            PERFORM rifl.acknowledge_1(p_client, p_first, p_acks, false);
        END IF;
        IF rifl.is_full_1(p_client, p_seq, p_first, p_window) THEN
            ending := 'fenced'; RETURN;
        END IF;
        INSERT INTO rifl.calls
            (client_id, seq, key, fingerprint, method, kind, token, owner, record, recorded_at)
        VALUES (p_client, p_seq, '', p_fingerprint, p_method, 'idempotent', p_token,
                CASE WHEN p_unknown THEN '' ELSE p_owner END, p_record, clock_timestamp())
        ON CONFLICT DO NOTHING;
        -- Another copy's, or a claim, was first, and has committed.
        CONTINUE WHEN NOT FOUND;
        -- An acknowledgement may have freed the record that stood here since we looked.
        PERFORM FROM rifl.clients WHERE client_id = p_client
            AND (p_seq < first_incomplete OR p_seq <@ acknowledged);
        IF FOUND THEN
            DELETE FROM rifl.calls WHERE client_id = p_client AND seq = p_seq AND key = '';
            ending := 'acknowledged'; RETURN;
        END IF;
        IF p_unknown THEN
            PERFORM rifl.remember_1(
                p_client, p_seq, '', p_method, clock_timestamp(), NULL);
        END IF;
        ending := 'done'; RETURN;
    END LOOP;
END $$;

-- A client whose lease ended while it ran calls goes with the last one. A session's row
-- stays: it is what its calls are refused by.
CREATE OR REPLACE FUNCTION rifl.end_1(p_client bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ended text;
BEGIN
    PERFORM FROM rifl.clients WHERE client_id = p_client AND state IN ('over', 'closed');
    IF NOT FOUND THEN RETURN; END IF;
    -- If a sweep holds it, that sweep or the next one drops it: no waiting, no deadlock.
    SELECT state INTO ended FROM rifl.clients WHERE client_id = p_client
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR EXISTS (
        SELECT FROM rifl.calls WHERE client_id = p_client AND record IS NULL
    ) THEN
        RETURN;
    END IF;
    IF ended = 'over' THEN
        PERFORM rifl.drop_1(p_client);
    ELSE
        DELETE FROM rifl.calls WHERE client_id = p_client;
        DELETE FROM rifl.key_counts WHERE client_id = p_client;
    END IF;
END $$;

-- End an attempt: record the answer, or ('abandon') make the call new again, or ('look')
-- only read what stands. Conditional on the attempt token. All three wait for a
-- transaction of the handler's that may still commit. 'unknown' records that the outcome is
-- not known, 'left' the same where what the handler began may go on: then, as where a
-- take-over has recorded so, the row keeps its owner, who may run it as long as it lives.
CREATE OR REPLACE FUNCTION rifl.finish_1(
    p_store text, p_client bigint, p_seq bigint, p_key bytea, p_token text, p_record bytea,
    p_what text, p_fingerprint bytea, OUT ending text, OUT standing bytea
) LANGUAGE plpgsql AS $$
DECLARE
    finishing boolean := p_what IN ('finish', 'unknown', 'left');
    known rifl.calls;
    client rifl.clients;
    noted text[];
    -- An expression costs a fraction of a PERFORM.
    ignored text;
BEGIN
    IF finishing THEN
        ignored := rifl.durable_1();
        UPDATE rifl.calls
        SET record = p_record, recorded_at = clock_timestamp(),
            expires_at = CASE WHEN p_seq = 0 THEN rifl.ends_1(retention) END,
            -- That of a request stream is known only now.
            fingerprint = CASE p_fingerprint WHEN '' THEN fingerprint ELSE p_fingerprint END,
            owner = CASE p_what WHEN 'unknown' THEN '' ELSE owner END
        WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token
          AND record IS NULL
          AND EXISTS (SELECT FROM rifl.meta WHERE name = 'store' AND value = p_store)
        RETURNING waiters INTO noted;
        IF FOUND THEN
            IF p_seq = 0 THEN
                PERFORM rifl.count_key_1(p_client, p_key, 0, length(p_record));
            END IF;
            IF noted <> '{}' THEN PERFORM rifl.wake_1(p_token, noted); END IF;
            IF p_what <> 'finish' THEN
                PERFORM rifl.remember_1(
                    client_id, seq, key, method, claimed_at, NULL) FROM rifl.calls
                WHERE client_id = p_client AND seq = p_seq AND key = p_key;
            END IF;
            ignored := rifl.end_1(p_client);
            ending := 'done'; RETURN;
        END IF;
    END IF;
    IF NOT rifl.same_store_1(p_store) THEN ending := 'backwards'; RETURN; END IF;
    IF p_what = 'abandon' THEN
        -- A claim of this token that has begun and not committed would not show.
        PERFORM pg_advisory_xact_lock(hashtextextended(p_token, 1));
        DELETE FROM rifl.calls
        WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token
          AND record IS NULL
        RETURNING waiters INTO noted;
        IF FOUND THEN
            IF p_seq = 0 THEN
                PERFORM rifl.count_key_1(p_client, p_key, -1, -length(p_key));
            END IF;
            IF noted <> '{}' THEN PERFORM rifl.wake_1(p_token, noted); END IF;
            PERFORM rifl.end_1(p_client);
            ending := 'done'; RETURN;
        END IF;
    END IF;
    IF p_what = 'look' THEN
        -- Mostly the handler's transaction has committed: nothing to wait for, or to write.
        SELECT * INTO known FROM rifl.calls
        WHERE client_id = p_client AND seq = p_seq AND key = p_key;
        IF known.record IS NOT NULL THEN
            ending := 'stands'; standing := known.record; RETURN;
        END IF;
        -- The lock that is taken now writes nothing that a crash may not lose.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    SELECT * INTO known FROM rifl.calls
    WHERE client_id = p_client AND seq = p_seq AND key = p_key FOR UPDATE;
    IF FOUND THEN
        IF known.record IS NOT NULL THEN
            -- Mostly the same attempt's, by a request whose reply was lost.
            IF finishing AND known.record = p_record THEN
                ending := 'done';
            ELSE
                ending := 'stands'; standing := known.record;
                IF p_what IN ('finish', 'unknown') AND known.token = p_token THEN
                    -- Taken for lost, it has ended after all.
                    UPDATE rifl.calls SET owner = ''
                    WHERE client_id = p_client AND seq = p_seq AND key = p_key;
                END IF;
            END IF;
        ELSIF known.token = p_token THEN ending := 'done';
        ELSE ending := 'fenced';
        END IF;
        RETURN;
    END IF;
    -- If its caller gave it up (``given_up_1``): this is the attempt that ran it.
    IF p_what IN ('unknown', 'left') THEN
        UPDATE rifl.unknown SET owner = '', token = ''
        WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token;
    ELSIF p_what <> 'look' THEN
        DELETE FROM rifl.unknown
        WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token;
    END IF;
    IF NOT finishing THEN ending := 'done'; RETURN; END IF;
    -- A namespace is alive, and its row goes with its last key.
    IF p_client < 0 THEN ending := 'fenced'; RETURN; END IF;
    SELECT * INTO client FROM rifl.clients WHERE client_id = p_client;
    IF NOT FOUND OR client.state IN ('over', 'closed') THEN ending := 'gone';
    ELSIF p_seq > 0 AND (p_seq < client.first_incomplete OR p_seq <@ client.acknowledged) THEN
        ending := 'acknowledged';
    ELSE ending := 'fenced';
    END IF;
END $$;

-- The record of an atomic call, in the handler's own transaction: the client is known
-- and stays so, nothing is recorded or acknowledged, the attempt is current; all of it
-- locked until the transaction ends. Anything but 'done' has to roll it back.
CREATE OR REPLACE FUNCTION rifl.record_1(
    p_store text, p_client bigint, p_seq bigint, p_key bytea, p_token text, p_record bytea,
    p_fingerprint bytea, p_durable boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    noted text[];
    ignored text;
BEGIN
    PERFORM FROM rifl.clients
    WHERE client_id = p_client
      AND EXISTS (SELECT FROM rifl.meta WHERE name = 'store' AND value = p_store)
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN CASE WHEN rifl.same_store_1(p_store) THEN 'gone' ELSE 'wrong' END;
    END IF;
    -- By this a take-over finds the transaction; nobody else ever asks for this lock.
    ignored := pg_advisory_xact_lock_shared(hashtextextended(p_token, 0));
    UPDATE rifl.calls
    SET record = p_record, recorded_at = clock_timestamp(),
        expires_at = CASE WHEN p_seq = 0 THEN rifl.ends_1(retention) END,
        fingerprint = CASE p_fingerprint WHEN '' THEN fingerprint ELSE p_fingerprint END
    WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token
      AND record IS NULL
    RETURNING waiters INTO noted;
    IF NOT FOUND THEN RETURN 'fenced'; END IF;
    IF p_seq = 0 THEN
        PERFORM rifl.count_key_1(p_client, p_key, 0, length(p_record));
    END IF;
    IF noted <> '{}' THEN PERFORM rifl.wake_1(p_token, noted); END IF;
    IF p_durable AND current_setting('synchronous_commit') = 'off' THEN
        -- Else this commit, and the answer it stands for, could be lost in a crash.
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN 'done';
END $$;

-- The same for one who commits in the same breath: whatever has to roll back is an error,
-- and the server does not carry out the COMMIT that follows it. p_mark: the token of the
-- transaction's mark, empty if it has none. Another transaction is an error, too.
CREATE OR REPLACE FUNCTION rifl.record_or_fail_2(
    p_store text, p_client bigint, p_seq bigint, p_key bytea, p_token text, p_record bytea,
    p_fingerprint bytea, p_durable boolean, p_mark text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    result text;
BEGIN
    IF p_mark <> '' THEN
        IF current_setting('rifl.transaction', true) IS DISTINCT FROM p_mark THEN
            PERFORM current_setting('rifl.transaction_was_ended');
        END IF;
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    result := rifl.record_1(
        p_store, p_client, p_seq, p_key, p_token, p_record, p_fingerprint, p_durable);
    IF result <> 'done' THEN RAISE EXCEPTION USING ERRCODE = 'RIFL1', MESSAGE = result; END IF;
END $$;

-- Count a replica's beat, take out those that stand still, and return all. p_known: the
-- beats this replica knows to be durable; a store with fewer has lost something.
-- p_leaving: take it out instead. p_reading: what its own clock shows, in seconds. One
-- replica's clock counts at a time, and what it has moved since its last beat was lived
-- through, two seconds at most.
CREATE OR REPLACE FUNCTION rifl.beat_1(
    p_store text, p_owner text, p_known bigint, p_leaving boolean, p_dead text[],
    p_dead_beats bigint[], p_reading double precision
) RETURNS TABLE (o_owner text, o_beats bigint) LANGUAGE plpgsql AS $$
DECLARE
    mine bigint;
BEGIN
    IF p_leaving THEN
        DELETE FROM rifl.replicas AS replicas WHERE replicas.owner = p_owner;
        RETURN;
    END IF;
    PERFORM rifl.durable_1();
    INSERT INTO rifl.replicas AS replicas (owner, beats) VALUES (p_owner, p_known + 1)
    ON CONFLICT (owner) DO UPDATE SET beats = replicas.beats + 1, beaten_at = clock_timestamp()
    RETURNING beats INTO mine;
    IF mine <= p_known OR NOT rifl.same_store_1(p_store) THEN
        RETURN QUERY SELECT '', -1::bigint; RETURN;
    END IF;
    DELETE FROM rifl.replicas AS replicas
    USING unnest(p_dead, p_dead_beats) AS dead (owner, beats)
    WHERE replicas.owner = dead.owner AND replicas.beats = dead.beats;
    UPDATE rifl.age
    SET lived = lived + CASE WHEN sweeper = p_owner THEN
            make_interval(secs => greatest(0, least(2, p_reading - reading)))
            ELSE interval '0' END,
        sweeper = p_owner, reading = p_reading
    WHERE sweeper = p_owner
        OR NOT EXISTS (SELECT FROM rifl.replicas WHERE owner = sweeper);
    RETURN QUERY SELECT owner, beats FROM rifl.replicas;
END $$;

-- Count leases of one caller; nothing where a lease counts for none.
CREATE OR REPLACE FUNCTION rifl.count_lease_1(
    p_client bigint, p_holder bytea, p_leases bigint
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO rifl.lease_counts AS counts
    SELECT p_holder, p_client % 16, p_leases WHERE p_holder <> ''
    ON CONFLICT (holder, shard) DO UPDATE SET leases = counts.leases + p_leases;
    DELETE FROM rifl.lease_counts
    WHERE p_leases < 0 AND holder = p_holder AND shard = p_client % 16 AND leases <= 0
$$;

-- Grant a lease: 'free', 'full' where there are p_most clients already, or 'taken' where its
-- holder has p_most_of_one leases. Up to p_counted clients are counted; above, the planner's
-- estimate does.
CREATE OR REPLACE FUNCTION rifl.grant_1(
    p_client bigint, p_term_s double precision, p_most bigint, p_counted bigint,
    p_holder bytea, p_most_of_one bigint
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    -- A request that is repeated, since its reply was lost.
    IF EXISTS (SELECT FROM rifl.clients WHERE client_id = p_client) THEN
        RETURN 'free';
    END IF;
    IF p_most <= (SELECT CASE WHEN p_most <= p_counted
                              THEN (SELECT count(*) FROM rifl.clients)
                              ELSE (SELECT reltuples FROM pg_class
                                    WHERE oid = 'rifl.clients'::regclass) END) THEN
        RETURN 'full';
    END IF;
    IF p_holder <> '' AND p_most_of_one > 0 AND p_most_of_one <= (
        SELECT sum(leases) FROM rifl.lease_counts WHERE holder = p_holder
    ) THEN
        RETURN 'taken';
    END IF;
    INSERT INTO rifl.clients (client_id, state, term, due, holder)
    VALUES (p_client, 'open', make_interval(secs => p_term_s),
            clock_timestamp() + 1.25 * make_interval(secs => p_term_s), p_holder)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN 'free'; END IF;
    PERFORM rifl.count_lease_1(p_client, p_holder, 1);
    RETURN 'free';
END $$;

-- Give a lease, or a session's retention, its full length again; how the id stands. What a client
-- acknowledges is applied in this one transaction, unless a call of it does so just now: the next
-- renewal, or call, says it again.
CREATE OR REPLACE FUNCTION rifl.renew_1(
    p_client bigint, p_first bigint, p_acks int8multirange
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    client rifl.clients;
BEGIN
    PERFORM rifl.soon_1();
    SELECT * INTO client FROM rifl.clients WHERE client_id = p_client FOR KEY SHARE;
    IF NOT FOUND OR client.state = 'over' THEN RETURN 'unknown'; END IF;
    IF client.state = 'closed' THEN RETURN 'closed'; END IF;
    IF client.state = 'open'
       AND (p_first > client.first_incomplete OR NOT p_acks <@ client.acknowledged)
       AND rifl.acknowledge_1(p_client, p_first, p_acks, false) THEN
        RETURN 'alive';
    END IF;
    IF client.due < clock_timestamp() + client.term THEN
        UPDATE rifl.clients SET due = clock_timestamp() + 1.25 * term
        WHERE client_id = p_client;
    END IF;
    RETURN CASE client.state WHEN 'session' THEN 'session' ELSE 'alive' END;
END $$;

-- Have a session take a writer's calls alone, if it takes those of p_follows; whose it takes
-- then, NULL if it has ended.
CREATE OR REPLACE FUNCTION rifl.write_session_1(
    p_client bigint, p_writer bytea, p_follows bytea
) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    client rifl.clients;
BEGIN
    PERFORM rifl.durable_1();
    SELECT * INTO client FROM rifl.clients WHERE client_id = p_client FOR NO KEY UPDATE;
    IF NOT FOUND OR client.state <> 'session' THEN RETURN NULL; END IF;
    IF client.writer <> p_follows THEN RETURN client.writer; END IF;
    UPDATE rifl.clients SET writer = p_writer WHERE client_id = p_client;
    RETURN p_writer;
END $$;

-- Remove a client's row, records and counts, in this one transaction.
CREATE OR REPLACE FUNCTION rifl.drop_1(p_client bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    woken bigint;
    counted bytea;
BEGIN
    PERFORM FROM rifl.clients WHERE client_id = p_client FOR UPDATE;
    -- Whoever began these is gone.
    PERFORM rifl.remember_1(client_id, seq, key, method, claimed_at, NULL)
    FROM rifl.calls WHERE client_id = p_client AND record IS NULL AND kind = 'plain';
    WITH gone AS (
        DELETE FROM rifl.calls WHERE client_id = p_client RETURNING token, waiters
    )
    SELECT count(rifl.wake_1(token, waiters)) INTO woken FROM gone WHERE waiters <> '{}';
    DELETE FROM rifl.key_counts WHERE client_id = p_client;
    DELETE FROM rifl.clients WHERE client_id = p_client RETURNING holder INTO counted;
    IF counted <> '' THEN PERFORM rifl.count_lease_1(p_client, counted, -1); END IF;
END $$;

-- Retire a client that is due: refuse new calls, and drop all of it as soon as no living
-- replica runs a call of it. A session leaves its row, to be refused by.
CREATE OR REPLACE FUNCTION rifl.retire_1(p_client bigint, p_unix_s double precision)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    client rifl.clients;
    running bigint;
    locked bigint;
BEGIN
    SELECT * INTO client FROM rifl.clients WHERE client_id = p_client
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN 'busy'; END IF;
    IF client.due IS NULL OR client.due > clock_timestamp() THEN RETURN 'alive'; END IF;
    SELECT count(*) INTO running FROM rifl.calls
    WHERE client_id = p_client AND record IS NULL
      AND owner IN (SELECT owner FROM rifl.replicas);
    IF running > 0 THEN
        UPDATE rifl.clients
        SET state = CASE client.state WHEN 'open' THEN 'over' WHEN 'session' THEN 'closed'
                    ELSE client.state END,
            due = clock_timestamp() + interval '1 second'
        WHERE client_id = p_client;
        RETURN 'busy';
    END IF;
    PERFORM rifl.drop_1(p_client);
    IF client.state IN ('open', 'over') THEN RETURN 'dropped'; END IF;
    IF client.full_term IS NOT NULL THEN
        -- No call was made in it: its name goes, too.
        DELETE FROM rifl.sessions WHERE client_id = p_client AND state = 'open';
        RETURN 'dropped';
    END IF;
    UPDATE rifl.sessions SET state = 'expired', changed_at_unix_s = p_unix_s
    WHERE client_id = p_client AND state = 'open';
    INSERT INTO rifl.clients (client_id, state, term)
    SELECT p_client, 'closed', client.term
    WHERE EXISTS (SELECT FROM rifl.sessions WHERE client_id = p_client);
    RETURN 'dropped';
END $$;

-- Whether a secret, or the lack of one, opens a name and the series that it is in: closing a
-- number closes others, so all sessions of a series have the same: p_secret from now on, if one
-- of p_older opens them. A name that was never seen is anybody's.
CREATE OR REPLACE FUNCTION rifl.opens_1(
    p_peer bytea, p_name text, p_secret bytea, p_older bytea[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    owners bytea[] := ARRAY(
        (SELECT secret FROM rifl.sessions WHERE peer = p_peer AND name = p_name)
        UNION ALL
        (SELECT secret FROM rifl.sessions
         WHERE peer = p_peer AND rifl.series_1(name) = rifl.series_1(p_name)
         LIMIT 1)
    );
BEGIN
    IF NOT owners <@ (p_older || p_secret) THEN RETURN false; END IF;
    IF NOT owners <@ ARRAY[p_secret] THEN
        UPDATE rifl.sessions SET secret = p_secret
        WHERE peer = p_peer
          AND (name = p_name OR rifl.series_1(name) = rifl.series_1(p_name));
    END IF;
    RETURN true;
END $$;

-- Close a session for ever, a numbered one with all below it; the ids that were open.
-- One null where the secret does not open it.
CREATE OR REPLACE FUNCTION rifl.close_session_1(
    p_peer bytea, p_name text, p_unix_s double precision, p_secret bytea, p_older bytea[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    -- Against openers of lower numbers, and of other secrets.
    LOCK TABLE rifl.sessions IN SHARE ROW EXCLUSIVE MODE;
    IF NOT rifl.opens_1(p_peer, p_name, p_secret, p_older) THEN
        RETURN NEXT NULL::bigint; RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM rifl.sessions WHERE peer = p_peer AND name = p_name) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH closed AS (
        UPDATE rifl.sessions AS sessions SET state = 'closed', changed_at_unix_s = p_unix_s
        WHERE sessions.peer = p_peer AND sessions.state = 'open' AND (
            sessions.name = p_name
            OR rifl.series_1(sessions.name) = rifl.series_1(p_name)
               AND rifl.number_1(sessions.name) < rifl.number_1(p_name))
        RETURNING sessions.client_id
    ), refused AS (
        UPDATE rifl.clients SET state = 'closed', due = '-infinity', full_term = NULL
        WHERE client_id IN (SELECT client_id FROM closed)
    )
    SELECT client_id FROM closed;
END $$;

-- Sessions that ended and need no row any more: refused for long enough, and not the end
-- of a series that is in use; or below the end of theirs, for p_superseded_s.
CREATE OR REPLACE FUNCTION rifl.forgettable_1(
    p_unix_s double precision, p_refuse_for_s double precision,
    p_superseded_s double precision, p_limit bigint
) RETURNS SETOF bigint LANGUAGE sql AS $$
    SELECT client_id FROM rifl.sessions AS sessions
    WHERE state <> 'open' AND (
        changed_at_unix_s + p_refuse_for_s <= p_unix_s AND NOT EXISTS (
            SELECT FROM rifl.sessions AS higher
            WHERE higher.peer = sessions.peer
              AND rifl.series_1(higher.name) = rifl.series_1(sessions.name)
              AND rifl.number_1(higher.name) > rifl.number_1(sessions.name))
        OR changed_at_unix_s + p_superseded_s <= p_unix_s AND EXISTS (
            SELECT FROM rifl.sessions AS higher
            WHERE higher.peer = sessions.peer AND higher.state <> 'open'
              AND rifl.series_1(higher.name) = rifl.series_1(sessions.name)
              AND rifl.number_1(higher.name) > rifl.number_1(sessions.name)))
    LIMIT p_limit
$$;

-- Insert or update a session; its id, 'full' where there is no room for it, and 'not-yours'
-- where the secret does not open it. p_opening: an opening, which also makes the client row.
CREATE OR REPLACE FUNCTION rifl.put_session_1(
    p_client bigint, p_peer bytea, p_name text, p_state text, p_retention_s double precision,
    p_changed double precision, p_opening boolean, p_max_names bigint, p_max_open bigint,
    p_max_open_of_all bigint, p_max_names_of_peer bigint, p_secret bytea,
    p_unused_s double precision, p_source text, p_max_open_from bigint,
    p_max_names_from bigint, p_older bytea[], OUT result text, OUT standing bigint
) LANGUAGE plpgsql AS $$
DECLARE
    known rifl.sessions;
    held record;
BEGIN
    -- One at a time: names are unique, and bounded in number.
    LOCK TABLE rifl.sessions IN SHARE ROW EXCLUSIVE MODE;
    IF p_opening AND NOT rifl.opens_1(p_peer, p_name, p_secret, p_older) THEN
        result := 'not-yours'; RETURN;
    END IF;
    SELECT * INTO known FROM rifl.sessions WHERE peer = p_peer AND name = p_name;
    IF NOT FOUND THEN
        SELECT * INTO known FROM rifl.sessions WHERE client_id = p_client;
    END IF;
    result := 'row';
    standing := coalesce(known.client_id, p_client);
    IF known.client_id IS NULL AND p_opening THEN
        SELECT client_id INTO standing FROM rifl.sessions
        WHERE peer = p_peer AND state <> 'open'
          AND rifl.series_1(name) = rifl.series_1(p_name)
          AND rifl.number_1(name) > rifl.number_1(p_name)
        LIMIT 1;
        IF FOUND THEN
            -- Its series is closed up to a higher number.
            result := 'over'; RETURN;
        END IF;
        standing := p_client;
    END IF;
    IF known.client_id IS NULL THEN
        IF p_opening THEN
            SELECT count(*) AS names, count(*) FILTER (WHERE state = 'open') AS open,
                count(*) FILTER (WHERE peer = p_peer) AS peers_names,
                count(*) FILTER (WHERE peer = p_peer AND state = 'open') AS peers_open,
                count(*) FILTER (WHERE source = p_source) AS names_from,
                count(*) FILTER (WHERE source = p_source AND state = 'open') AS open_from
            INTO held FROM rifl.sessions;
            IF held.names >= p_max_names OR held.open >= p_max_open_of_all
               OR held.peers_names >= p_max_names_of_peer OR held.peers_open >= p_max_open
               OR p_source <> '' AND (held.names_from >= p_max_names_from
                                      OR held.open_from >= p_max_open_from) THEN
                result := 'full'; RETURN;
            END IF;
        END IF;
        INSERT INTO rifl.sessions
            (client_id, peer, name, state, retention_s, changed_at_unix_s, secret, source)
        VALUES (p_client, p_peer, p_name, p_state, p_retention_s, p_changed, p_secret,
                p_source);
        IF p_opening THEN
            INSERT INTO rifl.clients (client_id, state, term, due, full_term)
            VALUES (p_client, 'session',
                    make_interval(secs => least(p_unused_s, p_retention_s)),
                    clock_timestamp()
                    + 1.25 * make_interval(secs => least(p_unused_s, p_retention_s)),
                    make_interval(secs => p_retention_s));
        END IF;
    ELSIF p_opening THEN
        IF known.state = 'open' AND p_retention_s > known.retention_s THEN
            UPDATE rifl.sessions SET retention_s = p_retention_s
            WHERE client_id = known.client_id;
            UPDATE rifl.clients
            SET full_term = make_interval(secs => p_retention_s)
            WHERE client_id = known.client_id AND clients.state = 'session'
              AND full_term IS NOT NULL;
            UPDATE rifl.clients
            SET term = make_interval(secs => p_retention_s),
                due = clock_timestamp() + 1.25 * make_interval(secs => p_retention_s)
            WHERE client_id = known.client_id AND clients.state = 'session'
              AND full_term IS NULL;
        END IF;
        IF known.state = 'open' AND rifl.renew_1(known.client_id, 1, '{}') <> 'session' THEN
            -- Its retention ended, and a call of it still runs.
            result := 'over';
        END IF;
    ELSIF known.client_id = p_client AND known.state = 'open' THEN
        UPDATE rifl.sessions
        SET state = p_state, retention_s = p_retention_s, changed_at_unix_s = p_changed
        WHERE client_id = p_client;
    END IF;
END $$;

-- The secrets, newest first; the first call ever makes one, p_rotate adds one.
CREATE OR REPLACE FUNCTION rifl.secrets_1(p_fresh bytea, p_rotate boolean)
RETURNS TABLE (o_key_id integer, o_value bytea) LANGUAGE plpgsql AS $$
DECLARE
    newest integer;
BEGIN
    SELECT key_id INTO newest FROM rifl.secrets ORDER BY position DESC LIMIT 1;
    IF newest IS NULL OR p_rotate THEN
        LOCK TABLE rifl.secrets IN SHARE ROW EXCLUSIVE MODE;
        SELECT key_id INTO newest FROM rifl.secrets ORDER BY position DESC LIMIT 1;
        -- Once: a request that is repeated since its reply was lost must not push out
        -- the other one.
        IF newest IS NULL OR p_rotate AND NOT EXISTS (
            SELECT FROM rifl.secrets WHERE value = p_fresh
        ) THEN
            INSERT INTO rifl.secrets (key_id, value)
            VALUES (CASE WHEN newest IS NULL THEN 0 ELSE (newest + 1) % 65536 END, p_fresh);
            DELETE FROM rifl.secrets WHERE position NOT IN
                (SELECT position FROM rifl.secrets ORDER BY position DESC LIMIT 2);
        END IF;
    END IF;
    RETURN QUERY SELECT key_id, value FROM rifl.secrets ORDER BY position DESC LIMIT 2;
END $$;

-- Let go of keyed calls whose retention is over, at most so many: record, identity and
-- counts in this one transaction. p_lost: the record of a plain call in a namespace whose
-- replica is gone, which no end of a lease would ever take away.
CREATE OR REPLACE FUNCTION rifl.expire_1(p_store text, p_lost bytea, p_limit bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    call rifl.calls;
    namespace bigint;
    expired bigint := 0;
BEGIN
    IF NOT rifl.same_store_1(p_store) THEN RETURN -1; END IF;
    PERFORM rifl.durable_1();
    -- One replica at a time: they would only wait for each other.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('rifl expire', 0)) THEN
        RETURN 0;
    END IF;
    FOR call IN
        DELETE FROM rifl.calls WHERE (client_id, seq, key) IN (
            SELECT client_id, seq, key FROM rifl.calls
            WHERE expires_at <= (SELECT lived FROM rifl.age) AND expires_at < 'infinity'
            LIMIT p_limit FOR UPDATE SKIP LOCKED
        ) RETURNING *
    LOOP
        PERFORM rifl.count_key_1(
            call.client_id, call.key, -1, -length(call.key) - length(call.record));
        expired := expired + 1;
    END LOOP;
    -- Those of clients end with the lease.
    FOR call IN
        SELECT * FROM rifl.calls
        WHERE client_id < 0 AND seq = 0 AND record IS NULL AND expires_at IS NULL
          AND claimed_at < clock_timestamp() - interval '60 s'
          AND owner NOT IN (SELECT owner FROM rifl.replicas)
        LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        IF call.kind = 'plain' THEN
            UPDATE rifl.calls
            SET record = p_lost, recorded_at = clock_timestamp(),
                expires_at = rifl.ends_1(retention)
            WHERE client_id = call.client_id AND seq = call.seq AND key = call.key;
            PERFORM rifl.count_key_1(call.client_id, call.key, 0, length(p_lost));
            PERFORM rifl.remember_1(
                call.client_id, call.seq, call.key, call.method, call.claimed_at, NULL);
        ELSE
            DELETE FROM rifl.calls
            WHERE client_id = call.client_id AND seq = call.seq AND key = call.key;
            PERFORM rifl.count_key_1(call.client_id, call.key, -1, -length(call.key));
        END IF;
        IF call.waiters <> '{}' THEN PERFORM rifl.wake_1(call.token, call.waiters); END IF;
    END LOOP;
    FOR namespace IN
        SELECT client_id FROM rifl.clients AS clients
        WHERE client_id < 0
          AND NOT EXISTS (SELECT FROM rifl.calls WHERE calls.client_id = clients.client_id)
        LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        -- Looked at anew, now that nobody can claim there.
        IF NOT EXISTS (SELECT FROM rifl.calls WHERE client_id = namespace) THEN
            PERFORM rifl.drop_1(namespace);
        END IF;
    END LOOP;
    PERFORM rifl.forget_unknown_1(interval '604800 s', 10000);
    RETURN expired;
END $$;

-- Calls whose outcome is unknown and that no operator settled: how many, and the oldest's age in
-- seconds. Also those whose replica is gone, and that no client asked for since.
CREATE OR REPLACE FUNCTION rifl.unresolved_1(OUT o_calls bigint, OUT o_oldest_s double precision)
LANGUAGE sql STABLE AS $$
    SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0)
    FROM (
        SELECT since FROM rifl.unknown
        WHERE note IS NULL AND owner NOT IN (SELECT owner FROM rifl.replicas)
        UNION ALL
        SELECT claimed_at FROM rifl.calls
        WHERE record IS NULL AND kind = 'plain' AND expires_at IS NULL
          AND owner NOT IN (SELECT owner FROM rifl.replicas)
    ) AS those
$$;

-- Whom a client's lease counts for, and what it has acknowledged; ranges end before o_ends.
CREATE OR REPLACE FUNCTION rifl.look_at_client_1(
    p_store text, p_client bigint, OUT o_found text, OUT o_holder bytea, OUT o_first bigint,
    OUT o_lows bigint[], OUT o_ends bigint[]
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT rifl.same_store_1(p_store) THEN o_found := 'backwards'; RETURN; END IF;
    SELECT 'there', holder, first_incomplete,
        ARRAY(SELECT lower(acks) FROM unnest(acknowledged) AS acks ORDER BY 1),
        ARRAY(SELECT upper(acks) FROM unnest(acknowledged) AS acks ORDER BY lower(acks))
    INTO o_found, o_holder, o_first, o_lows, o_ends
    FROM rifl.clients WHERE client_id = p_client;
    IF NOT FOUND THEN o_found := 'gone'; END IF;
END $$;

-- The server that is written, and on which of its histories: a promotion and a recovery to a
-- point in time begin a new one. Empty where the server does not tell.
CREATE OR REPLACE FUNCTION rifl.history_1() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system()) || '/'
        || ltrim(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), '0');
EXCEPTION WHEN OTHERS THEN
    RETURN '';
END $$;

-- Whether a commit of ours waits until a standby has it.
CREATE OR REPLACE FUNCTION rifl.copied_1() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT current_setting('synchronous_standby_names') <> ''
        AND (current_setting('synchronous_commit') IN ('on', 'remote_apply')
             OR current_setting('synchronous_commit') = 'off'
                AND current_setting('rifl.durability', true) IS DISTINCT FROM 'warn')
$$;

-- Have everyone refused from now on: without its id the store is nobody's. Also after every
-- restart, until somebody accepts the loss.
CREATE OR REPLACE FUNCTION rifl.stop_1(p_store text, p_why text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rifl.durable_1();
    UPDATE rifl.meta SET name = 'stopped_store' WHERE name = 'store' AND value = p_store;
    IF FOUND THEN
        INSERT INTO rifl.meta VALUES ('stopped', p_why)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    END IF;
END $$;

-- Serve again from what is there; the store's new id. Processes that know more stay away,
-- since they know the old one. Clients of before are over: what of theirs is gone would run
-- again. Ids that may have been granted and lost are never granted again.
CREATE OR REPLACE FUNCTION rifl.accept_loss_1(p_who text, p_why text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    fresh text := gen_random_uuid()::text;
BEGIN
    PERFORM rifl.durable_1();
    LOCK TABLE rifl.meta IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO rifl.losses (who, why, stopped, store_before, history_before, history)
    SELECT p_who, p_why,
        coalesce(max(value) FILTER (WHERE name = 'stopped'), ''),
        coalesce(max(value) FILTER (WHERE name IN ('store', 'stopped_store')), ''),
        coalesce(max(value) FILTER (WHERE name = 'history'), ''),
        rifl.history_1()
    FROM rifl.meta;
    DELETE FROM rifl.meta
    WHERE name IN ('store', 'stopped_store', 'stopped', 'history', 'copied');
    INSERT INTO rifl.meta VALUES ('store', fresh), ('history', rifl.history_1()),
        ('copied', rifl.copied_1()::text);
    UPDATE rifl.meta SET value = (value::int8 + (1::int8 << 53))::text WHERE name = 'ids';
    -- Not while a transaction is open that has judged its client to live.
    PERFORM FROM rifl.clients WHERE state = 'open' FOR UPDATE;
    UPDATE rifl.clients SET state = 'over', due = '-infinity' WHERE state = 'open';
    DELETE FROM rifl.replicas;
    RETURN fresh;
END $$;

-- Read rows; those that are not there are left out.
CREATE OR REPLACE FUNCTION rifl.rows_1(
    p_store text, p_keys text[], OUT status text, OUT o_keys text[], OUT o_values bytea[]
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT rifl.same_store_1(p_store) THEN status := 'backwards'; RETURN; END IF;
    SELECT 'rows', array_agg(key), array_agg(value) INTO status, o_keys, o_values
    FROM rifl.rows WHERE key = ANY (p_keys);
END $$;

-- Move one row, if it is as expected (empty: not there).
CREATE OR REPLACE FUNCTION rifl.put_row_1(p_key text, p_expected bytea, p_value bytea)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_expected = '' THEN
        INSERT INTO rifl.rows VALUES (p_key, p_value) ON CONFLICT DO NOTHING;
    ELSE
        UPDATE rifl.rows SET value = p_value WHERE key = p_key AND value = p_expected;
    END IF;
    RETURN FOUND;
END $$;

-- Move rows, all or none. Their order is that of their keys, so that nobody waits in a ring.
CREATE OR REPLACE FUNCTION rifl.move_rows_1(
    p_store text, p_keys text[], p_expected bytea[], p_values bytea[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    ignored text;
BEGIN
    IF NOT rifl.same_store_1(p_store) THEN RETURN 'backwards'; END IF;
    ignored := rifl.durable_1();
    IF cardinality(p_keys) = 1 THEN
        RETURN CASE WHEN rifl.put_row_1(p_keys[1], p_expected[1], p_values[1])
            THEN 'moved' ELSE 'stale' END;
    END IF;
    BEGIN
        FOR i IN 1 .. cardinality(p_keys) LOOP
            IF NOT rifl.put_row_1(p_keys[i], p_expected[i], p_values[i]) THEN
                RAISE EXCEPTION USING ERRCODE = 'RIFL2';
            END IF;
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'RIFL2' THEN
        RETURN 'stale';
    END;
    RETURN 'moved';
END $$;

-- Move one in a handler's own transaction, in the place of a call's record. Anything but 'done'
-- has to roll it back. The key is in UTF-8.
CREATE OR REPLACE FUNCTION rifl.move_1(
    p_store text, p_key bytea, p_expected bytea, p_value bytea, p_durable boolean
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF NOT rifl.same_store_1(p_store) THEN RETURN 'wrong'; END IF;
    IF NOT rifl.put_row_1(convert_from(p_key, 'UTF8'), p_expected, p_value) THEN
        RETURN 'fenced';
    END IF;
    IF p_durable AND current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN 'done';
END $$;

-- The same for one who commits in the same breath, as ``record_or_fail_2``.
CREATE OR REPLACE FUNCTION rifl.move_or_fail_2(
    p_store text, p_key bytea, p_expected bytea, p_value bytea, p_durable boolean, p_mark text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    result text;
BEGIN
    IF p_mark <> '' THEN
        IF current_setting('rifl.transaction', true) IS DISTINCT FROM p_mark THEN
            PERFORM current_setting('rifl.transaction_was_ended');
        END IF;
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    result := rifl.move_1(p_store, p_key, p_expected, p_value, p_durable);
    IF result <> 'done' THEN RAISE EXCEPTION USING ERRCODE = 'RIFL1', MESSAGE = result; END IF;
END $$;


INSERT INTO rifl.meta VALUES ('functions', '1')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

DELETE FROM rifl.meta;
INSERT INTO rifl.meta (name, value) OVERRIDING SYSTEM VALUE
VALUES ('layout', '1');
INSERT INTO rifl.meta (name, value) OVERRIDING SYSTEM VALUE
VALUES ('store', 'ce1a6c9a-141d-4f8c-a830-0d576f322aea');
INSERT INTO rifl.meta (name, value) OVERRIDING SYSTEM VALUE
VALUES ('functions', '1');
INSERT INTO rifl.meta (name, value) OVERRIDING SYSTEM VALUE
VALUES ('history', '-6455476452215613398/1');
INSERT INTO rifl.meta (name, value) OVERRIDING SYSTEM VALUE
VALUES ('ids', '1025');
INSERT INTO rifl.meta (name, value) OVERRIDING SYSTEM VALUE
VALUES ('copied', 'false');
DELETE FROM rifl.clients;
INSERT INTO rifl.clients (client_id, state, first_incomplete, acknowledged, term, due, full_term, holder, writer) OVERRIDING SYSTEM VALUE
VALUES ('1', 'open', '4', '{[5,6)}', '00:01:00', '2026-11-30 03:43:44.293665+00', NULL, E'\\x31302e302e302e37', E'\\x');
INSERT INTO rifl.clients (client_id, state, first_incomplete, acknowledged, term, due, full_term, holder, writer) OVERRIDING SYSTEM VALUE
VALUES ('1025', 'session', '1', '{}', '876000:00:00', '2151-10-31 03:42:29.593153+00', NULL, E'\\x', E'\\x');
INSERT INTO rifl.clients (client_id, state, first_incomplete, acknowledged, term, due, full_term, holder, writer) OVERRIDING SYSTEM VALUE
VALUES ('-2828849456074851408', 'namespace', '1', '{}', '00:00:00', NULL, NULL, E'\\x', E'\\x');
DELETE FROM rifl.calls;
INSERT INTO rifl.calls (client_id, seq, key, fingerprint, method, kind, token, owner, waiters, record, claimed_at, recorded_at, retention, expires_at) OVERRIDING SYSTEM VALUE
VALUES ('1', '4', E'\\x', E'\\x2670f0c1755474445b10181ed9965951', '/bank.Bank/Deposit', 'plain', 'db4033447a39a72b3dc42bbad7cbc219', '993c64b89ea11f93', '{}', NULL, '2026-11-30 03:42:29.558475+00', NULL, NULL, NULL);
INSERT INTO rifl.calls (client_id, seq, key, fingerprint, method, kind, token, owner, waiters, record, claimed_at, recorded_at, retention, expires_at) OVERRIDING SYSTEM VALUE
VALUES ('1', '6', E'\\x', E'\\x2670f0c1755474445b10181ed9965951', '/bank.Bank/Deposit', 'plain', 'b6537c28ba6f6f84a666316d4c2e32f4', '993c64b89ea11f93', '{}', E'\\x1a070a0568656c6c6f220c0a07782d66697273741201312a100a0a782d6c6173742d62696e120200ff30014001', '2026-11-30 03:42:29.574873+00', '2026-11-30 03:42:29.584908+00', NULL, NULL);
INSERT INTO rifl.calls (client_id, seq, key, fingerprint, method, kind, token, owner, waiters, record, claimed_at, recorded_at, retention, expires_at) OVERRIDING SYSTEM VALUE
VALUES ('1', '7', E'\\x', E'\\x2670f0c1755474445b10181ed9965951', '/bank.Bank/Deposit', 'idempotent', 'd37f4fb82b9fb78fd1ca6e3cd2c04d41', '993c64b89ea11f93', '{}', E'\\x080912106e6f7420656e6f756768206d6f6e65793001', '2026-11-30 03:42:29.589801+00', '2026-11-30 03:42:29.59072+00', NULL, NULL);
INSERT INTO rifl.calls (client_id, seq, key, fingerprint, method, kind, token, owner, waiters, record, claimed_at, recorded_at, retention, expires_at) OVERRIDING SYSTEM VALUE
VALUES ('1025', '0', E'\\x6f726465722d3137', E'\\x2670f0c1755474445b10181ed9965951', '/bank.Bank/Deposit', 'plain', 'b37503a7dadb0dbe1346e3b7e684c4d9', '993c64b89ea11f93', '{}', E'\\x1a070a0568656c6c6f220c0a07782d66697273741201312a100a0a782d6c6173742d62696e120200ff30014001', '2026-11-30 03:42:29.593839+00', '2026-11-30 03:42:29.596403+00', NULL, 'infinity');
INSERT INTO rifl.calls (client_id, seq, key, fingerprint, method, kind, token, owner, waiters, record, claimed_at, recorded_at, retention, expires_at) OVERRIDING SYSTEM VALUE
VALUES ('-2828849456074851408', '0', E'\\x696e766f6963652d31', E'\\x2670f0c1755474445b10181ed9965951', '/bank.Bank/Deposit', 'plain', 'b07cc7da6dfbba531f6d0408b7d280cd', '993c64b89ea11f93', '{}', E'\\x1a070a0568656c6c6f220c0a07782d66697273741201312a100a0a782d6c6173742d62696e120200ff30014001', '2026-11-30 03:42:29.604235+00', '2026-11-30 03:42:29.612814+00', '876000:00:00', '2126-11-06 03:42:31.123815+00');
DELETE FROM rifl.key_counts;
INSERT INTO rifl.key_counts (client_id, shard, keys, bytes) OVERRIDING SYSTEM VALUE
VALUES ('1025', '2', '1', '53');
INSERT INTO rifl.key_counts (client_id, shard, keys, bytes) OVERRIDING SYSTEM VALUE
VALUES ('-2828849456074851408', '13', '1', '54');
DELETE FROM rifl.sessions;
INSERT INTO rifl.sessions (client_id, peer, name, state, retention_s, changed_at_unix_s, secret, source) OVERRIDING SYSTEM VALUE
VALUES ('1025', E'\\x', 'orders', 'open', '3153600000', '1700000000', E'\\x', '');
DELETE FROM rifl.replicas;
DELETE FROM rifl.secrets;
INSERT INTO rifl.secrets (position, key_id, value) OVERRIDING SYSTEM VALUE
VALUES ('1', '0', E'\\x92024770b5a9ea13332be1303a64929ef7dc1927241a7530450b376eeef12d18');
DELETE FROM rifl.age;
INSERT INTO rifl.age (single, lived, sweeper, reading) OVERRIDING SYSTEM VALUE
VALUES ('true', '2026-11-30 03:42:29.458757+00', '993c64b89ea11f93', '67130.615132613');
DELETE FROM rifl.unknown;
DELETE FROM rifl.losses;
DELETE FROM rifl.rows;
