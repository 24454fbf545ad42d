-- Count leases of one caller; nothing where a lease counts for none.
CREATE OR REPLACE FUNCTION @schema@.count_lease_1(
    p_client bigint, p_holder bytea, p_leases bigint
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO @schema@.lease_counts AS counts
    SELECT p_holder, p_client % 16, p_leases WHERE p_holder <> ''
    ON CONFLICT (holder, shard) DO UPDATE SET leases = counts.leases + p_leases;
    DELETE FROM @schema@.lease_counts
    WHERE p_leases < 0 AND holder = p_holder AND shard = p_client % 16 AND leases <= 0
$$;

-- Grant a lease: 'free', 'full' where there are p_most clients already, or 'taken' where its
-- holder has p_most_of_one leases. Up to p_counted clients are counted; above, the planner's
-- estimate does.
CREATE OR REPLACE FUNCTION @schema@.grant_1(
    p_client bigint, p_term_s double precision, p_most bigint, p_counted bigint,
    p_holder bytea, p_most_of_one bigint
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    -- A request that is repeated, since its reply was lost.
    IF EXISTS (SELECT FROM @schema@.clients WHERE client_id = p_client) THEN
        RETURN 'free';
    END IF;
    IF p_most <= (SELECT CASE WHEN p_most <= p_counted
                              THEN (SELECT count(*) FROM @schema@.clients)
                              ELSE (SELECT reltuples FROM pg_class
                                    WHERE oid = '@schema@.clients'::regclass) END) THEN
        RETURN 'full';
    END IF;
    IF p_holder <> '' AND p_most_of_one > 0 AND p_most_of_one <= (
        SELECT sum(leases) FROM @schema@.lease_counts WHERE holder = p_holder
    ) THEN
        RETURN 'taken';
    END IF;
    INSERT INTO @schema@.clients (client_id, state, term, due, holder)
    VALUES (p_client, 'open', make_interval(secs => p_term_s),
            clock_timestamp() + 1.25 * make_interval(secs => p_term_s), p_holder)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN 'free'; END IF;
    PERFORM @schema@.count_lease_1(p_client, p_holder, 1);
    RETURN 'free';
END $$;

-- Give a lease, or a session's retention, its full length again; how the id stands. What a client
-- acknowledges is applied in this one transaction, unless a call of it does so just now: the next
-- renewal, or call, says it again.
CREATE OR REPLACE FUNCTION @schema@.renew_1(
    p_client bigint, p_first bigint, p_acks int8multirange
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    client @schema@.clients;
BEGIN
    PERFORM @schema@.soon_1();
    SELECT * INTO client FROM @schema@.clients WHERE client_id = p_client FOR KEY SHARE;
    IF NOT FOUND OR client.state = 'over' THEN RETURN 'unknown'; END IF;
    IF client.state = 'closed' THEN RETURN 'closed'; END IF;
    IF client.state = 'open'
       AND (p_first > client.first_incomplete OR NOT p_acks <@ client.acknowledged)
       AND @schema@.acknowledge_1(p_client, p_first, p_acks, false) THEN
        RETURN 'alive';
    END IF;
    IF client.due < clock_timestamp() + client.term THEN
        UPDATE @schema@.clients SET due = clock_timestamp() + 1.25 * term
        WHERE client_id = p_client;
    END IF;
    RETURN CASE client.state WHEN 'session' THEN 'session' ELSE 'alive' END;
END $$;

-- Have a session take a writer's calls alone, if it takes those of p_follows; whose it takes
-- then, NULL if it has ended.
CREATE OR REPLACE FUNCTION @schema@.write_session_1(
    p_client bigint, p_writer bytea, p_follows bytea
) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    client @schema@.clients;
BEGIN
    PERFORM @schema@.durable_1();
    SELECT * INTO client FROM @schema@.clients WHERE client_id = p_client FOR NO KEY UPDATE;
    IF NOT FOUND OR client.state <> 'session' THEN RETURN NULL; END IF;
    IF client.writer <> p_follows THEN RETURN client.writer; END IF;
    UPDATE @schema@.clients SET writer = p_writer WHERE client_id = p_client;
    RETURN p_writer;
END $$;

-- Remove a client's row, records and counts, in this one transaction.
CREATE OR REPLACE FUNCTION @schema@.drop_1(p_client bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    woken bigint;
    counted bytea;
BEGIN
    PERFORM FROM @schema@.clients WHERE client_id = p_client FOR UPDATE;
    -- Whoever began these is gone.
    PERFORM @schema@.remember_1(client_id, seq, key, method, claimed_at, NULL)
    FROM @schema@.calls WHERE client_id = p_client AND record IS NULL AND kind = 'plain';
    WITH gone AS (
        DELETE FROM @schema@.calls WHERE client_id = p_client RETURNING token, waiters
    )
    SELECT count(@schema@.wake_1(token, waiters)) INTO woken FROM gone WHERE waiters <> '{}';
    DELETE FROM @schema@.key_counts WHERE client_id = p_client;
    DELETE FROM @schema@.clients WHERE client_id = p_client RETURNING holder INTO counted;
    IF counted <> '' THEN PERFORM @schema@.count_lease_1(p_client, counted, -1); END IF;
END $$;

-- Retire a client that is due: refuse new calls, and drop all of it as soon as no living
-- replica runs a call of it. A session leaves its row, to be refused by.
CREATE OR REPLACE FUNCTION @schema@.retire_1(p_client bigint, p_unix_s double precision)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    client @schema@.clients;
    running bigint;
    locked bigint;
BEGIN
    SELECT * INTO client FROM @schema@.clients WHERE client_id = p_client
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN 'busy'; END IF;
    IF client.due IS NULL OR client.due > clock_timestamp() THEN RETURN 'alive'; END IF;
    SELECT count(*) INTO running FROM @schema@.calls
    WHERE client_id = p_client AND record IS NULL
      AND owner IN (SELECT owner FROM @schema@.replicas);
    IF running > 0 THEN
        UPDATE @schema@.clients
        SET state = CASE client.state WHEN 'open' THEN 'over' WHEN 'session' THEN 'closed'
                    ELSE client.state END,
            due = clock_timestamp() + interval '1 second'
        WHERE client_id = p_client;
        RETURN 'busy';
    END IF;
    PERFORM @schema@.drop_1(p_client);
    IF client.state IN ('open', 'over') THEN RETURN 'dropped'; END IF;
    IF client.full_term IS NOT NULL THEN
        -- No call was made in it: its name goes, too.
        DELETE FROM @schema@.sessions WHERE client_id = p_client AND state = 'open';
        RETURN 'dropped';
    END IF;
    UPDATE @schema@.sessions SET state = 'expired', changed_at_unix_s = p_unix_s
    WHERE client_id = p_client AND state = 'open';
    INSERT INTO @schema@.clients (client_id, state, term)
    SELECT p_client, 'closed', client.term
    WHERE EXISTS (SELECT FROM @schema@.sessions WHERE client_id = p_client);
    RETURN 'dropped';
END $$;

-- Whether a secret, or the lack of one, opens a name and the series that it is in: closing a
-- number closes others, so all sessions of a series have the same: p_secret from now on, if one
-- of p_older opens them. A name that was never seen is anybody's.
CREATE OR REPLACE FUNCTION @schema@.opens_1(
    p_peer bytea, p_name text, p_secret bytea, p_older bytea[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    owners bytea[] := ARRAY(
        (SELECT secret FROM @schema@.sessions WHERE peer = p_peer AND name = p_name)
        UNION ALL
        (SELECT secret FROM @schema@.sessions
         WHERE peer = p_peer AND @schema@.series_1(name) = @schema@.series_1(p_name)
         LIMIT 1)
    );
BEGIN
    IF NOT owners <@ (p_older || p_secret) THEN RETURN false; END IF;
    IF NOT owners <@ ARRAY[p_secret] THEN
        UPDATE @schema@.sessions SET secret = p_secret
        WHERE peer = p_peer
          AND (name = p_name OR @schema@.series_1(name) = @schema@.series_1(p_name));
    END IF;
    RETURN true;
END $$;

-- Close a session for ever, a numbered one with all below it; the ids that were open.
-- One null where the secret does not open it.
CREATE OR REPLACE FUNCTION @schema@.close_session_1(
    p_peer bytea, p_name text, p_unix_s double precision, p_secret bytea, p_older bytea[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    -- Against openers of lower numbers, and of other secrets.
    LOCK TABLE @schema@.sessions IN SHARE ROW EXCLUSIVE MODE;
    IF NOT @schema@.opens_1(p_peer, p_name, p_secret, p_older) THEN
        RETURN NEXT NULL::bigint; RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM @schema@.sessions WHERE peer = p_peer AND name = p_name) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH closed AS (
        UPDATE @schema@.sessions AS sessions SET state = 'closed', changed_at_unix_s = p_unix_s
        WHERE sessions.peer = p_peer AND sessions.state = 'open' AND (
            sessions.name = p_name
            OR @schema@.series_1(sessions.name) = @schema@.series_1(p_name)
               AND @schema@.number_1(sessions.name) < @schema@.number_1(p_name))
        RETURNING sessions.client_id
    ), refused AS (
        UPDATE @schema@.clients SET state = 'closed', due = '-infinity', full_term = NULL
        WHERE client_id IN (SELECT client_id FROM closed)
    )
    SELECT client_id FROM closed;
END $$;

-- Sessions that ended and need no row any more: refused for long enough, and not the end
-- of a series that is in use; or below the end of theirs, for p_superseded_s.
CREATE OR REPLACE FUNCTION @schema@.forgettable_1(
    p_unix_s double precision, p_refuse_for_s double precision,
    p_superseded_s double precision, p_limit bigint
) RETURNS SETOF bigint LANGUAGE sql AS $$
    SELECT client_id FROM @schema@.sessions AS sessions
    WHERE state <> 'open' AND (
        changed_at_unix_s + p_refuse_for_s <= p_unix_s AND NOT EXISTS (
            SELECT FROM @schema@.sessions AS higher
            WHERE higher.peer = sessions.peer
              AND @schema@.series_1(higher.name) = @schema@.series_1(sessions.name)
              AND @schema@.number_1(higher.name) > @schema@.number_1(sessions.name))
        OR changed_at_unix_s + p_superseded_s <= p_unix_s AND EXISTS (
            SELECT FROM @schema@.sessions AS higher
            WHERE higher.peer = sessions.peer AND higher.state <> 'open'
              AND @schema@.series_1(higher.name) = @schema@.series_1(sessions.name)
              AND @schema@.number_1(higher.name) > @schema@.number_1(sessions.name)))
    LIMIT p_limit
$$;

-- Insert or update a session; its id, 'full' where there is no room for it, and 'not-yours'
-- where the secret does not open it. p_opening: an opening, which also makes the client row.
CREATE OR REPLACE FUNCTION @schema@.put_session_1(
    p_client bigint, p_peer bytea, p_name text, p_state text, p_retention_s double precision,
    p_changed double precision, p_opening boolean, p_max_names bigint, p_max_open bigint,
    p_max_open_of_all bigint, p_max_names_of_peer bigint, p_secret bytea,
    p_unused_s double precision, p_source text, p_max_open_from bigint,
    p_max_names_from bigint, p_older bytea[], OUT result text, OUT standing bigint
) LANGUAGE plpgsql AS $$
DECLARE
    known @schema@.sessions;
    held record;
BEGIN
    -- One at a time: names are unique, and bounded in number.
    LOCK TABLE @schema@.sessions IN SHARE ROW EXCLUSIVE MODE;
    IF p_opening AND NOT @schema@.opens_1(p_peer, p_name, p_secret, p_older) THEN
        result := 'not-yours'; RETURN;
    END IF;
    SELECT * INTO known FROM @schema@.sessions WHERE peer = p_peer AND name = p_name;
    IF NOT FOUND THEN
        SELECT * INTO known FROM @schema@.sessions WHERE client_id = p_client;
    END IF;
    result := 'row';
    standing := coalesce(known.client_id, p_client);
    IF known.client_id IS NULL AND p_opening THEN
        SELECT client_id INTO standing FROM @schema@.sessions
        WHERE peer = p_peer AND state <> 'open'
          AND @schema@.series_1(name) = @schema@.series_1(p_name)
          AND @schema@.number_1(name) > @schema@.number_1(p_name)
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
            INTO held FROM @schema@.sessions;
            IF held.names >= p_max_names OR held.open >= p_max_open_of_all
               OR held.peers_names >= p_max_names_of_peer OR held.peers_open >= p_max_open
               OR p_source <> '' AND (held.names_from >= p_max_names_from
                                      OR held.open_from >= p_max_open_from) THEN
                result := 'full'; RETURN;
            END IF;
        END IF;
        INSERT INTO @schema@.sessions
            (client_id, peer, name, state, retention_s, changed_at_unix_s, secret, source)
        VALUES (p_client, p_peer, p_name, p_state, p_retention_s, p_changed, p_secret,
                p_source);
        IF p_opening THEN
            INSERT INTO @schema@.clients (client_id, state, term, due, full_term)
            VALUES (p_client, 'session',
                    make_interval(secs => least(p_unused_s, p_retention_s)),
                    clock_timestamp()
                    + 1.25 * make_interval(secs => least(p_unused_s, p_retention_s)),
                    make_interval(secs => p_retention_s));
        END IF;
    ELSIF p_opening THEN
        IF known.state = 'open' AND p_retention_s > known.retention_s THEN
            UPDATE @schema@.sessions SET retention_s = p_retention_s
            WHERE client_id = known.client_id;
            UPDATE @schema@.clients
            SET full_term = make_interval(secs => p_retention_s)
            WHERE client_id = known.client_id AND clients.state = 'session'
              AND full_term IS NOT NULL;
            UPDATE @schema@.clients
            SET term = make_interval(secs => p_retention_s),
                due = clock_timestamp() + 1.25 * make_interval(secs => p_retention_s)
            WHERE client_id = known.client_id AND clients.state = 'session'
              AND full_term IS NULL;
        END IF;
        IF known.state = 'open' AND @schema@.renew_1(known.client_id, 1, '{}') <> 'session' THEN
            -- Its retention ended, and a call of it still runs.
            result := 'over';
        END IF;
    ELSIF known.client_id = p_client AND known.state = 'open' THEN
        UPDATE @schema@.sessions
        SET state = p_state, retention_s = p_retention_s, changed_at_unix_s = p_changed
        WHERE client_id = p_client;
    END IF;
END $$;

-- The secrets, newest first; the first call ever makes one, p_rotate adds one.
CREATE OR REPLACE FUNCTION @schema@.secrets_1(p_fresh bytea, p_rotate boolean)
RETURNS TABLE (o_key_id integer, o_value bytea) LANGUAGE plpgsql AS $$
DECLARE
    newest integer;
BEGIN
    SELECT key_id INTO newest FROM @schema@.secrets ORDER BY position DESC LIMIT 1;
    IF newest IS NULL OR p_rotate THEN
        LOCK TABLE @schema@.secrets IN SHARE ROW EXCLUSIVE MODE;
        SELECT key_id INTO newest FROM @schema@.secrets ORDER BY position DESC LIMIT 1;
        -- Once: a request that is repeated since its reply was lost must not push out
        -- the other one.
        IF newest IS NULL OR p_rotate AND NOT EXISTS (
            SELECT FROM @schema@.secrets WHERE value = p_fresh
        ) THEN
            INSERT INTO @schema@.secrets (key_id, value)
            VALUES (CASE WHEN newest IS NULL THEN 0 ELSE (newest + 1) % 65536 END, p_fresh);
            DELETE FROM @schema@.secrets WHERE position NOT IN
                (SELECT position FROM @schema@.secrets ORDER BY position DESC LIMIT 2);
        END IF;
    END IF;
    RETURN QUERY SELECT key_id, value FROM @schema@.secrets ORDER BY position DESC LIMIT 2;
END $$;

-- Let go of keyed calls whose retention is over, at most so many: record, identity and
-- counts in this one transaction. p_lost: the record of a plain call in a namespace whose
-- replica is gone, which no end of a lease would ever take away.
CREATE OR REPLACE FUNCTION @schema@.expire_1(p_store text, p_lost bytea, p_limit bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    call @schema@.calls;
    namespace bigint;
    expired bigint := 0;
BEGIN
    IF NOT @schema@.same_store_1(p_store) THEN RETURN -1; END IF;
    PERFORM @schema@.durable_1();
    -- One replica at a time: they would only wait for each other.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('@schema@ expire', 0)) THEN
        RETURN 0;
    END IF;
    FOR call IN
        DELETE FROM @schema@.calls WHERE (client_id, seq, key) IN (
            SELECT client_id, seq, key FROM @schema@.calls
            WHERE expires_at <= (SELECT lived FROM @schema@.age) AND expires_at < 'infinity'
            LIMIT p_limit FOR UPDATE SKIP LOCKED
        ) RETURNING *
    LOOP
        PERFORM @schema@.count_key_1(
            call.client_id, call.key, -1, -length(call.key) - length(call.record));
        expired := expired + 1;
    END LOOP;
    -- Those of clients end with the lease.
    FOR call IN
        SELECT * FROM @schema@.calls
        WHERE client_id < 0 AND seq = 0 AND record IS NULL AND expires_at IS NULL
          AND claimed_at < clock_timestamp() - interval '60 s'
          AND owner NOT IN (SELECT owner FROM @schema@.replicas)
        LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        IF call.kind = 'plain' THEN
            UPDATE @schema@.calls
            SET record = p_lost, recorded_at = clock_timestamp(),
                expires_at = @schema@.ends_1(retention)
            WHERE client_id = call.client_id AND seq = call.seq AND key = call.key;
            PERFORM @schema@.count_key_1(call.client_id, call.key, 0, length(p_lost));
            PERFORM @schema@.remember_1(
                call.client_id, call.seq, call.key, call.method, call.claimed_at, NULL);
        ELSE
            DELETE FROM @schema@.calls
            WHERE client_id = call.client_id AND seq = call.seq AND key = call.key;
            PERFORM @schema@.count_key_1(call.client_id, call.key, -1, -length(call.key));
        END IF;
        IF call.waiters <> '{}' THEN PERFORM @schema@.wake_1(call.token, call.waiters); END IF;
    END LOOP;
    FOR namespace IN
        SELECT client_id FROM @schema@.clients AS clients
        WHERE client_id < 0
          AND NOT EXISTS (SELECT FROM @schema@.calls WHERE calls.client_id = clients.client_id)
        LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        -- Looked at anew, now that nobody can claim there.
        IF NOT EXISTS (SELECT FROM @schema@.calls WHERE client_id = namespace) THEN
            PERFORM @schema@.drop_1(namespace);
        END IF;
    END LOOP;
    PERFORM @schema@.forget_unknown_1(interval '@kept_s@ s', @most_kept@);
    RETURN expired;
END $$;

-- Calls whose outcome is unknown and that no operator settled: how many, and the oldest's age in
-- seconds. Also those whose replica is gone, and that no client asked for since.
CREATE OR REPLACE FUNCTION @schema@.unresolved_1(OUT o_calls bigint, OUT o_oldest_s double precision)
LANGUAGE sql STABLE AS $$
    SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0)
    FROM (
        SELECT since FROM @schema@.unknown
        WHERE note IS NULL AND owner NOT IN (SELECT owner FROM @schema@.replicas)
        UNION ALL
        SELECT claimed_at FROM @schema@.calls
        WHERE record IS NULL AND kind = 'plain' AND expires_at IS NULL
          AND owner NOT IN (SELECT owner FROM @schema@.replicas)
    ) AS those
$$;

-- Whom a client's lease counts for, and what it has acknowledged; ranges end before o_ends.
CREATE OR REPLACE FUNCTION @schema@.look_at_client_1(
    p_store text, p_client bigint, OUT o_found text, OUT o_holder bytea, OUT o_first bigint,
    OUT o_lows bigint[], OUT o_ends bigint[]
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT @schema@.same_store_1(p_store) THEN o_found := 'backwards'; RETURN; END IF;
    SELECT 'there', holder, first_incomplete,
        ARRAY(SELECT lower(acks) FROM unnest(acknowledged) AS acks ORDER BY 1),
        ARRAY(SELECT upper(acks) FROM unnest(acknowledged) AS acks ORDER BY lower(acks))
    INTO o_found, o_holder, o_first, o_lows, o_ends
    FROM @schema@.clients WHERE client_id = p_client;
    IF NOT FOUND THEN o_found := 'gone'; END IF;
END $$;
