-- Is this the store the caller once opened?
-- Not in SQL: what every call asks would be planned anew each time.
CREATE OR REPLACE FUNCTION @schema@.same_store_1(p_store text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM @schema@.meta WHERE name = 'store' AND value = p_store);
END $$;

-- Have this transaction's commit wait for the disk, whatever the session has set: one that
-- a pooler lends may be anybody's. Ours say so where they were opened with durability=warn.
CREATE OR REPLACE FUNCTION @schema@.durable_1() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off'
       AND current_setting('rifl.durability', true) IS DISTINCT FROM 'warn' THEN
        RETURN set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN NULL;
END $$;

-- Have this transaction wait for nobody's lock for long: a foreign one on a client's row is
-- the trouble of that client alone, and the connection is wanted by others.
CREATE OR REPLACE FUNCTION @schema@.soon_1() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('lock_timeout')::interval NOT BETWEEN '1 ms' AND '500 ms' THEN
        RETURN set_config('lock_timeout', '500ms', true);
    END IF;
    RETURN NULL;
END $$;

-- When a retention that begins now ends; the counter may be one beat behind.
CREATE OR REPLACE FUNCTION @schema@.ends_1(p_retention interval) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_retention IS NULL THEN RETURN 'infinity'; END IF;
    RETURN (SELECT lived FROM @schema@.age) + interval '2 seconds' + p_retention;
END $$;

CREATE OR REPLACE FUNCTION @schema@.remember_1(
    p_client bigint, p_seq bigint, p_key bytea, p_method text, p_since timestamptz, p_note text
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO @schema@.unknown AS known (client_id, seq, key, method, since, note, lived)
    SELECT p_client, p_seq, p_key, p_method, p_since, p_note, lived FROM @schema@.age
    ON CONFLICT (client_id, seq, key) DO UPDATE
    SET method = coalesce(nullif(excluded.method, ''), known.method),
        since = coalesce(excluded.since, known.since), note = excluded.note,
        lived = excluded.lived, owner = '', token = ''
$$;

-- The same for a plain call that its caller gave up while it runs: its replica says what becomes of
-- it (``finish_1``), or is gone. A function: what it does would be prepared for every
-- acknowledgement.
CREATE OR REPLACE FUNCTION @schema@.given_up_1(
    p_client bigint, p_seq bigint, p_key bytea, p_method text, p_since timestamptz,
    p_owner text, p_token text
) RETURNS void LANGUAGE sql AS $$
    SELECT @schema@.remember_1(p_client, p_seq, p_key, p_method, p_since, NULL);
    UPDATE @schema@.unknown SET owner = p_owner, token = p_token
    WHERE client_id = p_client AND seq = p_seq AND key = p_key
$$;

CREATE OR REPLACE FUNCTION @schema@.forget_unknown_1(p_kept interval, p_most bigint)
RETURNS void LANGUAGE sql AS $$
    DELETE FROM @schema@.unknown WHERE lived < greatest(
        (SELECT lived FROM @schema@.age) - p_kept,
        (SELECT min(lived) FROM
            (SELECT lived FROM @schema@.unknown ORDER BY lived DESC LIMIT p_most) AS newest))
$$;

-- Tell the replicas that wait for an attempt that it ended; they hear it on commit.
CREATE OR REPLACE FUNCTION @schema@.wake_1(p_token text, p_waiters text[]) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('rifl_' || waiter, p_token) FROM unnest(p_waiters) AS waiter
$$;

CREATE OR REPLACE FUNCTION @schema@.count_key_1(
    p_client bigint, p_key bytea, p_keys bigint, p_bytes bigint
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO @schema@.key_counts AS counts
    VALUES (p_client, get_byte(sha256(p_key), 0) % 16, p_keys, p_bytes)
    ON CONFLICT (client_id, shard) DO UPDATE
    SET keys = counts.keys + p_keys, bytes = counts.bytes + p_bytes
$$;

-- Apply acknowledgements, which only move forward, and delete what they free, in this
-- one transaction; renew the lease. The client's row is locked, and p_old_first and
-- p_old_acks are what it says.
CREATE OR REPLACE FUNCTION @schema@.apply_1(
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
    UPDATE @schema@.clients
    SET first_incomplete = new_first,
        acknowledged = new_acks,
        -- Not on every call: a quarter more, and again when that is used up.
        due = CASE WHEN due < clock_timestamp() + term THEN clock_timestamp() + 1.25 * term
                   ELSE due END
    WHERE client_id = p_client;
    IF new_first > p_old_first OR new_acks <> p_old_acks THEN
        DELETE FROM @schema@.calls
        WHERE ctid = ANY (ARRAY(
            -- A row that is locked is being recorded just now; the next acknowledgement
            -- takes it.
            SELECT ctid FROM @schema@.calls
            WHERE client_id = p_client AND seq > 0 AND (seq < new_first OR seq <@ new_acks)
            FOR UPDATE SKIP LOCKED
        )) AND (cardinality(waiters) = 0 OR @schema@.wake_1(token, waiters) IS NULL)
        AND (record IS NOT NULL OR kind <> 'plain'
             OR @schema@.given_up_1(
                 client_id, seq, key, method, claimed_at, owner, token) IS NULL);
    END IF;
END $$;

-- The same. False if another call of the client is doing so just now and p_wait is false:
-- every header repeats what it acknowledges, and calls of one client shall not wait for
-- each other's commit.
CREATE OR REPLACE FUNCTION @schema@.acknowledge_1(
    p_client bigint, p_first bigint, p_acks int8multirange, p_wait boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    client @schema@.clients;
BEGIN
    IF p_wait THEN
        SELECT * INTO client FROM @schema@.clients WHERE client_id = p_client FOR NO KEY UPDATE;
    ELSE
        SELECT * INTO client FROM @schema@.clients WHERE client_id = p_client
        FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM @schema@.apply_1(
        p_client, client.first_incomplete, client.acknowledged, p_first, p_acks);
    RETURN true;
END $$;

-- Decide about a call and claim it if it is new (DESIGN §4, steps 2 to 6).
--
-- p_until: by when, by this clock, in seconds. Whoever sent one that is later has given it
-- up, and has abandoned it; NULL for ever. p_writer: of a session, whose call this is.
CREATE OR REPLACE FUNCTION @schema@.claim_1(
    p_store text, p_client bigint, p_seq bigint, p_key bytea, p_first bigint,
    p_acks int8multirange, p_fingerprint bytea, p_method text, p_kind text, p_token text,
    p_owner text, p_refusing boolean, p_window bigint, p_max_keys bigint,
    p_max_key_bytes bigint, p_take_over text, p_lost bytea,
    p_retention_s double precision, p_until double precision, p_writer bytea, OUT o_found text, OUT o_token text, OUT o_owner text,
    OUT o_kind text, OUT o_record bytea, OUT o_verified boolean
) LANGUAGE plpgsql AS $$
DECLARE
    known @schema@.calls;
    client @schema@.clients;
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
        ignored := @schema@.durable_1();
    END IF;
    <<usual>>
    BEGIN
        -- What most calls are is claimed with few statements: a new call of a sequence, by
        -- a client that lives and has room, while nobody else holds its row. Whatever else
        -- it turns out to be is decided below, which looks at everything anew.
        EXIT usual WHEN p_seq = 0 OR p_refusing OR p_take_over <> ''
            OR p_seq < p_first OR p_seq <@ p_acks;
        IF p_kind = 'atomic' OR p_fingerprint = '' THEN
            EXIT usual WHEN @schema@.is_committing_1(p_client, p_seq);
        END IF;
        SELECT state, first_incomplete, acknowledged, due < clock_timestamp() + term,
            (SELECT max(seq) FROM @schema@.calls WHERE client_id = p_client AND seq > 0)
        INTO client_state, old_first, old_acks, is_due, top
        FROM @schema@.clients
        WHERE client_id = p_client
          AND EXISTS (SELECT FROM @schema@.meta WHERE name = 'store' AND value = p_store)
        FOR NO KEY UPDATE SKIP LOCKED;
        EXIT usual WHEN NOT FOUND OR client_state <> 'open' OR p_seq < old_first
            OR p_seq <@ old_acks OR greatest(top, p_seq) - p_first >= p_window;
        IF p_seq <= top THEN
            EXIT usual WHEN EXISTS (
                SELECT FROM @schema@.calls WHERE client_id = p_client AND seq = p_seq);
        END IF;
        IF p_first > old_first OR NOT p_acks <@ old_acks OR is_due THEN
            ignored := @schema@.apply_1(p_client, old_first, old_acks, p_first, p_acks);
        END IF;
        INSERT INTO @schema@.calls (client_id, seq, key, fingerprint, method, kind, token, owner)
        VALUES (p_client, p_seq, '', p_fingerprint, p_method, p_kind, p_token, p_owner)
        ON CONFLICT DO NOTHING;
        EXIT usual WHEN NOT FOUND;
        -- No acknowledgement came between, as below: the client's row is locked.
        o_found := 'new'; RETURN;
    END;
    IF NOT @schema@.same_store_1(p_store) THEN o_found := 'backwards'; RETURN; END IF;
    ignored := @schema@.soon_1();
    LOOP
        SELECT * INTO known FROM @schema@.calls
        WHERE client_id = p_client AND seq = p_seq AND key = p_key;
        is_known := FOUND;
        -- Against removal of the client, until this commits; not against its other calls.
        SELECT * INTO client FROM @schema@.clients WHERE client_id = p_client FOR KEY SHARE;
        IF client.state = 'session' AND client.writer <> p_writer THEN
            -- It takes another writer's calls: it is closed to this one.
            client.state := 'closed';
        END IF;
        alive := client.state IN ('open', 'session', 'namespace');
        IF client.client_id IS NULL AND p_client < 0 AND NOT is_known THEN
            INSERT INTO @schema@.clients (client_id, state, term)
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
                PERFORM @schema@.acknowledge_1(p_client, p_first, p_acks, false);
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
                ELSIF NOT @schema@.held_1(p_client, p_seq, p_key, known.token, true) THEN
                    o_found := 'running';
                ELSIF p_lost = '' THEN
                    -- Locked only now: others may have come to wait since it was looked at.
                    SELECT waiters INTO known.waiters FROM @schema@.calls
                    WHERE client_id = p_client AND seq = p_seq AND key = p_key;
                    UPDATE @schema@.calls
                    SET token = p_token, owner = p_owner, kind = p_kind, waiters = '{}',
                        claimed_at = clock_timestamp()
                    WHERE client_id = p_client AND seq = p_seq AND key = p_key
                      AND token = p_take_over AND calls.record IS NULL;
                    CONTINUE WHEN NOT FOUND;
                    PERFORM @schema@.wake_1(known.token, known.waiters);
                    o_found := 'new'; RETURN;
                ELSE
                    UPDATE @schema@.calls
                    SET record = p_lost, recorded_at = clock_timestamp(),
                        expires_at = @schema@.ends_1(retention)
                    WHERE client_id = p_client AND seq = p_seq AND key = p_key
                      AND token = p_take_over AND calls.record IS NULL
                    RETURNING waiters INTO known.waiters;
                    CONTINUE WHEN NOT FOUND;
                    IF p_seq = 0 THEN
                        PERFORM @schema@.count_key_1(p_client, p_key, 0, length(p_lost));
                    END IF;
                    PERFORM @schema@.remember_1(
                        p_client, p_seq, p_key, known.method, known.claimed_at, NULL);
                    PERFORM @schema@.wake_1(known.token, known.waiters);
                    o_found := 'completed'; o_record := p_lost; RETURN;
                END IF;
            ELSIF known.owner = p_owner OR p_owner = ANY (known.waiters) THEN
                o_found := 'running';
            ELSIF NOT @schema@.held_1(p_client, p_seq, p_key, known.token, false) THEN
                -- Nobody could note that we wait: the caller has to look again.
                o_found := 'recording';
            ELSE
                UPDATE @schema@.calls SET waiters = waiters || p_owner
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
            applied := @schema@.acknowledge_1(p_client, p_first, p_acks, false);
        END IF;
        IF client.full_term IS NOT NULL THEN
            -- The first call made in a session: it is kept for its retention from now on.
            UPDATE @schema@.clients
            SET term = full_term, due = clock_timestamp() + 1.25 * full_term, full_term = NULL
            WHERE client_id = p_client AND full_term IS NOT NULL;
        END IF;
        IF p_refusing THEN o_found := 'refusing'; RETURN; END IF;
        IF p_seq = 0 THEN
            SELECT coalesce(sum(keys), 0) AS keys, coalesce(sum(bytes), 0) AS bytes INTO held
            FROM @schema@.key_counts WHERE client_id = p_client;
            IF held.keys >= p_max_keys OR held.bytes >= p_max_key_bytes THEN
                o_found := 'window'; RETURN;
            END IF;
        ELSIF @schema@.is_full_1(p_client, p_seq, p_first, p_window) THEN
            IF NOT applied THEN
                PERFORM @schema@.acknowledge_1(p_client, p_first, p_acks, true);
            END IF;
            IF applied OR @schema@.is_full_1(p_client, p_seq, p_first, p_window) THEN
                o_found := 'window'; RETURN;
            END IF;
        END IF;

        IF p_seq > 0 AND (p_kind = 'atomic' OR p_fingerprint = '')
           AND @schema@.is_committing_1(p_client, p_seq) THEN
            SELECT * INTO o_token, o_owner
            FROM @schema@.who_commits_1(p_client, p_seq, p_take_over);
            -- It may have ended since, and what it wrote does not show above.
            CONTINUE WHEN o_token IS NULL
                OR o_owner = p_owner AND @schema@.has_committed_1(p_client, p_seq);
            o_found := 'recording'; o_kind := 'atomic'; RETURN;
        END IF;

        INSERT INTO @schema@.calls
            (client_id, seq, key, fingerprint, method, kind, token, owner, retention)
        VALUES (p_client, p_seq, p_key, p_fingerprint, p_method, p_kind, p_token, p_owner,
                -- What a session keeps, it keeps as long as it lives.
                CASE WHEN p_seq = 0 AND client.state <> 'session'
                     THEN make_interval(secs => p_retention_s) END)
        ON CONFLICT DO NOTHING;
        -- Another claim of the same call was first, and has committed.
        CONTINUE WHEN NOT FOUND;
        IF p_seq = 0 THEN
            PERFORM @schema@.count_key_1(p_client, p_key, 1, length(p_key));
        ELSE
            -- An acknowledgement may have freed the record that stood here since we
            -- looked: the insertion waited for it, and now it shows.
            PERFORM FROM @schema@.clients WHERE client_id = p_client
                AND (p_seq < first_incomplete OR p_seq <@ acknowledged);
            IF FOUND THEN
                DELETE FROM @schema@.calls
                WHERE client_id = p_client AND seq = p_seq AND key = p_key;
                o_found := 'stale'; RETURN;
            END IF;
        END IF;
        o_found := 'new'; RETURN;
    END LOOP;
END $$;

-- Whether a client has no room for one more sequenced call.
CREATE OR REPLACE FUNCTION @schema@.is_full_1(p_client bigint, p_seq bigint, p_first bigint, p_window bigint)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    top bigint;
BEGIN
    -- All that is known lies in first incomplete .. top: most clients are done here.
    SELECT max(seq) INTO top FROM @schema@.calls WHERE client_id = p_client AND seq > 0;
    IF greatest(coalesce(top, 0), p_seq) - p_first < p_window THEN RETURN false; END IF;
    RETURN (SELECT count(*) FROM (
        SELECT FROM @schema@.calls WHERE client_id = p_client AND seq > 0 LIMIT p_window
    ) AS counted) >= p_window;
END $$;

-- Lock a running call, which a handler's transaction may hold that has recorded it and
-- not committed. To take it over, that transaction is ended, and rolls back: nothing of
-- an attempt that is replaced may commit, and its replica may stay silent for ever.
CREATE OR REPLACE FUNCTION @schema@.held_1(
    p_client bigint, p_seq bigint, p_key bytea, p_token text, p_take boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    -- Like advisory locks in pg_locks: an unsigned half each.
    hash bigint := hashtextextended(p_token, 0);
BEGIN
    PERFORM set_config('lock_timeout', '300ms', true);
    FOR round IN 1..2 LOOP
        BEGIN
            PERFORM FROM @schema@.calls
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
