-- Calls that nobody claimed: the commit of the handler's transaction decides (DESIGN §4, step 6).

-- Whether such a transaction may be recording a call just now. If not, none does before this
-- transaction has ended: for each call that lock is a claim's, or one such transaction's.
CREATE OR REPLACE FUNCTION @schema@.is_committing_1(p_client bigint, p_seq bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN NOT pg_try_advisory_xact_lock_shared(hashint8extended(p_seq, p_client));
END $$;

-- Who records a call that nobody claimed: a token that stands for it, and its replica, empty for
-- one that is gone, and for a transaction that was prepared (PREPARE TRANSACTION): that is no
-- session's, nothing here can end it, and it may last. NULL where nobody does any more. p_take_over: a token whose transaction is
-- to be ended, as in ``held_1``.
CREATE OR REPLACE FUNCTION @schema@.who_commits_1(
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
    FROM held LEFT JOIN @schema@.replicas ON EXISTS (
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
CREATE OR REPLACE FUNCTION @schema@.has_committed_1(p_client bigint, p_seq bigint)
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
CREATE OR REPLACE FUNCTION @schema@.record_unclaimed_or_fail_2(
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
    @owned@
    <<judging>>
    BEGIN
        result := 'isolation';
        -- Else no later statement would see what was committed meanwhile.
        EXIT judging WHEN current_setting('transaction_isolation') <> 'read committed';
        -- Against its removal, and the end of its lease, until this transaction has ended. Also
        -- against other calls' acknowledgements, unless one of them applies its own just now.
        IF p_at_once THEN
            SELECT state, first_incomplete, acknowledged, due < clock_timestamp() + term,
                (SELECT max(seq) FROM @schema@.calls WHERE client_id = p_client AND seq > 0)
            INTO client_state, old_first, old_acks, is_due, top
            FROM @schema@.clients
            WHERE client_id = p_client
              AND EXISTS (SELECT FROM @schema@.meta WHERE name = 'store' AND value = p_store)
            FOR NO KEY UPDATE SKIP LOCKED;
            is_mine := FOUND;
        END IF;
        IF NOT is_mine THEN
            SELECT state, (SELECT max(seq) FROM @schema@.calls
                           WHERE client_id = p_client AND seq > 0)
            INTO client_state, top
            FROM @schema@.clients
            WHERE client_id = p_client
              AND EXISTS (SELECT FROM @schema@.meta WHERE name = 'store' AND value = p_store)
            FOR KEY SHARE SKIP LOCKED;
        END IF;
        IF client_state IS NULL THEN
            -- Where it is there, it is being removed just now, or a foreign session holds it: a
            -- claim waits for that, and not for long.
            result := CASE WHEN NOT @schema@.same_store_1(p_store) THEN 'wrong'
                WHEN EXISTS (SELECT FROM @schema@.clients WHERE client_id = p_client) THEN 'fenced'
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
                SELECT FROM @schema@.calls
                WHERE client_id = p_client AND seq >= p_first AND NOT seq <@ p_acks LIMIT p_window
            ) AS counted) >= p_window;
        END IF;
        INSERT INTO @schema@.calls
            (client_id, seq, key, fingerprint, method, kind, token, owner, record, recorded_at)
        VALUES (p_client, p_seq, '', p_fingerprint, convert_from(p_method, 'UTF8'), 'atomic',
                p_token, p_owner, p_record, clock_timestamp())
        ON CONFLICT DO NOTHING;
        EXIT judging WHEN NOT FOUND;
        IF NOT is_mine THEN
            -- Only now: a record that stood when this began may have been acknowledged, and be
            -- gone. From here on none can come, and so none can go.
            SELECT first_incomplete, acknowledged INTO old_first, old_acks
            FROM @schema@.clients WHERE client_id = p_client;
        END IF;
        EXIT judging WHEN p_seq < old_first OR p_seq <@ old_acks;
        -- Where another call applies its own just now, these are left to the next.
        IF is_mine AND (p_first > old_first OR NOT p_acks <@ old_acks OR is_due) THEN
            ignored := @schema@.apply_1(p_client, old_first, old_acks, p_first, p_acks);
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

CREATE OR REPLACE FUNCTION @schema@.record_unclaimed_1(
    p_store text, p_client bigint, p_seq bigint, p_token text, p_owner text, p_record bytea,
    p_fingerprint bytea, p_method bytea, p_first bigint, p_acks int8multirange, p_window bigint,
    p_durable boolean
) RETURNS text LANGUAGE sql AS $$
    SELECT @schema@.record_unclaimed_or_fail_2(
        p_store, p_client, p_seq, p_token, p_owner, p_record, p_fingerprint, p_method, p_first,
        p_acks, p_window, p_durable, '', false)
$$;

-- Record a call of an idempotent method that nobody claimed, where no record stands: what ends
-- its run. The transaction is its own.
CREATE OR REPLACE FUNCTION @schema@.finish_unclaimed_1(
    p_store text, p_client bigint, p_seq bigint, p_token text, p_owner text, p_record bytea,
    p_fingerprint bytea, p_method text, p_first bigint, p_acks int8multirange, p_window bigint,
    p_unknown boolean, OUT ending text, OUT standing bytea
) LANGUAGE plpgsql AS $$
DECLARE
    known @schema@.calls;
    client @schema@.clients;
    ignored text;
BEGIN
    ignored := @schema@.durable_1();
    ignored := @schema@.soon_1();
    IF NOT @schema@.same_store_1(p_store) THEN ending := 'backwards'; RETURN; END IF;
    LOOP
        SELECT * INTO known FROM @schema@.calls
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
        SELECT * INTO client FROM @schema@.clients WHERE client_id = p_client FOR KEY SHARE;
        IF NOT FOUND OR client.state <> 'open' THEN ending := 'gone'; RETURN; END IF;
        IF p_seq < client.first_incomplete OR p_seq <@ client.acknowledged THEN
            ending := 'acknowledged'; RETURN;
        END IF;
        IF p_first > client.first_incomplete OR NOT p_acks <@ client.acknowledged
           OR client.due < clock_timestamp() + client.term THEN
            PERFORM @schema@.acknowledge_1(p_client, p_first, p_acks, false);
        END IF;
        IF @schema@.is_full_1(p_client, p_seq, p_first, p_window) THEN
            ending := 'fenced'; RETURN;
        END IF;
        INSERT INTO @schema@.calls
            (client_id, seq, key, fingerprint, method, kind, token, owner, record, recorded_at)
        VALUES (p_client, p_seq, '', p_fingerprint, p_method, 'idempotent', p_token,
                CASE WHEN p_unknown THEN '' ELSE p_owner END, p_record, clock_timestamp())
        ON CONFLICT DO NOTHING;
        -- Another copy's, or a claim, was first, and has committed.
        CONTINUE WHEN NOT FOUND;
        -- An acknowledgement may have freed the record that stood here since we looked.
        PERFORM FROM @schema@.clients WHERE client_id = p_client
            AND (p_seq < first_incomplete OR p_seq <@ acknowledged);
        IF FOUND THEN
            DELETE FROM @schema@.calls WHERE client_id = p_client AND seq = p_seq AND key = '';
            ending := 'acknowledged'; RETURN;
        END IF;
        IF p_unknown THEN
            PERFORM @schema@.remember_1(
                p_client, p_seq, '', p_method, clock_timestamp(), NULL);
        END IF;
        ending := 'done'; RETURN;
    END LOOP;
END $$;
