-- A client whose lease ended while it ran calls goes with the last one. A session's row
-- stays: it is what its calls are refused by.
CREATE OR REPLACE FUNCTION @schema@.end_1(p_client bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ended text;
BEGIN
    PERFORM FROM @schema@.clients WHERE client_id = p_client AND state IN ('over', 'closed');
    IF NOT FOUND THEN RETURN; END IF;
    -- If a sweep holds it, that sweep or the next one drops it: no waiting, no deadlock.
    SELECT state INTO ended FROM @schema@.clients WHERE client_id = p_client
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR EXISTS (
        SELECT FROM @schema@.calls WHERE client_id = p_client AND record IS NULL
    ) THEN
        RETURN;
    END IF;
    IF ended = 'over' THEN
        PERFORM @schema@.drop_1(p_client);
    ELSE
        DELETE FROM @schema@.calls WHERE client_id = p_client;
        DELETE FROM @schema@.key_counts WHERE client_id = p_client;
    END IF;
END $$;

-- End an attempt: record the answer, or ('abandon') make the call new again, or ('look')
-- only read what stands. Conditional on the attempt token. All three wait for a
-- transaction of the handler's that may still commit. 'unknown' records that the outcome is
-- not known, 'left' the same where what the handler began may go on: then, as where a
-- take-over has recorded so, the row keeps its owner, who may run it as long as it lives.
CREATE OR REPLACE FUNCTION @schema@.finish_1(
    p_store text, p_client bigint, p_seq bigint, p_key bytea, p_token text, p_record bytea,
    p_what text, p_fingerprint bytea, OUT ending text, OUT standing bytea
) LANGUAGE plpgsql AS $$
DECLARE
    finishing boolean := p_what IN ('finish', 'unknown', 'left');
    known @schema@.calls;
    client @schema@.clients;
    noted text[];
    -- An expression costs a fraction of a PERFORM.
    ignored text;
BEGIN
    IF finishing THEN
        ignored := @schema@.durable_1();
        UPDATE @schema@.calls
        SET record = p_record, recorded_at = clock_timestamp(),
            expires_at = CASE WHEN p_seq = 0 THEN @schema@.ends_1(retention) END,
            -- That of a request stream is known only now.
            fingerprint = CASE p_fingerprint WHEN '' THEN fingerprint ELSE p_fingerprint END,
            owner = CASE p_what WHEN 'unknown' THEN '' ELSE owner END
        WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token
          AND record IS NULL
          AND EXISTS (SELECT FROM @schema@.meta WHERE name = 'store' AND value = p_store)
        RETURNING waiters INTO noted;
        IF FOUND THEN
            IF p_seq = 0 THEN
                PERFORM @schema@.count_key_1(p_client, p_key, 0, length(p_record));
            END IF;
            IF noted <> '{}' THEN PERFORM @schema@.wake_1(p_token, noted); END IF;
            IF p_what <> 'finish' THEN
                PERFORM @schema@.remember_1(
                    client_id, seq, key, method, claimed_at, NULL) FROM @schema@.calls
                WHERE client_id = p_client AND seq = p_seq AND key = p_key;
            END IF;
            ignored := @schema@.end_1(p_client);
            ending := 'done'; RETURN;
        END IF;
    END IF;
    IF NOT @schema@.same_store_1(p_store) THEN ending := 'backwards'; RETURN; END IF;
    IF p_what = 'abandon' THEN
        -- A claim of this token that has begun and not committed would not show.
        PERFORM pg_advisory_xact_lock(hashtextextended(p_token, 1));
        DELETE FROM @schema@.calls
        WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token
          AND record IS NULL
        RETURNING waiters INTO noted;
        IF FOUND THEN
            IF p_seq = 0 THEN
                PERFORM @schema@.count_key_1(p_client, p_key, -1, -length(p_key));
            END IF;
            IF noted <> '{}' THEN PERFORM @schema@.wake_1(p_token, noted); END IF;
            PERFORM @schema@.end_1(p_client);
            ending := 'done'; RETURN;
        END IF;
    END IF;
    IF p_what = 'look' THEN
        -- Mostly the handler's transaction has committed: nothing to wait for, or to write.
        SELECT * INTO known FROM @schema@.calls
        WHERE client_id = p_client AND seq = p_seq AND key = p_key;
        IF known.record IS NOT NULL THEN
            ending := 'stands'; standing := known.record; RETURN;
        END IF;
        -- The lock that is taken now writes nothing that a crash may not lose.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    SELECT * INTO known FROM @schema@.calls
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
                    UPDATE @schema@.calls SET owner = ''
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
        UPDATE @schema@.unknown SET owner = '', token = ''
        WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token;
    ELSIF p_what <> 'look' THEN
        DELETE FROM @schema@.unknown
        WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token;
    END IF;
    IF NOT finishing THEN ending := 'done'; RETURN; END IF;
    -- A namespace is alive, and its row goes with its last key.
    IF p_client < 0 THEN ending := 'fenced'; RETURN; END IF;
    SELECT * INTO client FROM @schema@.clients WHERE client_id = p_client;
    IF NOT FOUND OR client.state IN ('over', 'closed') THEN ending := 'gone';
    ELSIF p_seq > 0 AND (p_seq < client.first_incomplete OR p_seq <@ client.acknowledged) THEN
        ending := 'acknowledged';
    ELSE ending := 'fenced';
    END IF;
END $$;

-- The record of an atomic call, in the handler's own transaction: the client is known
-- and stays so, nothing is recorded or acknowledged, the attempt is current; all of it
-- locked until the transaction ends. Anything but 'done' has to roll it back.
CREATE OR REPLACE FUNCTION @schema@.record_1(
    p_store text, p_client bigint, p_seq bigint, p_key bytea, p_token text, p_record bytea,
    p_fingerprint bytea, p_durable boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    noted text[];
    ignored text;
BEGIN
    PERFORM FROM @schema@.clients
    WHERE client_id = p_client
      AND EXISTS (SELECT FROM @schema@.meta WHERE name = 'store' AND value = p_store)
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN CASE WHEN @schema@.same_store_1(p_store) THEN 'gone' ELSE 'wrong' END;
    END IF;
    -- By this a take-over finds the transaction; nobody else ever asks for this lock.
    ignored := pg_advisory_xact_lock_shared(hashtextextended(p_token, 0));
    UPDATE @schema@.calls
    SET record = p_record, recorded_at = clock_timestamp(),
        expires_at = CASE WHEN p_seq = 0 THEN @schema@.ends_1(retention) END,
        fingerprint = CASE p_fingerprint WHEN '' THEN fingerprint ELSE p_fingerprint END
    WHERE client_id = p_client AND seq = p_seq AND key = p_key AND token = p_token
      AND record IS NULL
    RETURNING waiters INTO noted;
    IF NOT FOUND THEN RETURN 'fenced'; END IF;
    IF p_seq = 0 THEN
        PERFORM @schema@.count_key_1(p_client, p_key, 0, length(p_record));
    END IF;
    IF noted <> '{}' THEN PERFORM @schema@.wake_1(p_token, noted); END IF;
    IF p_durable AND current_setting('synchronous_commit') = 'off' THEN
        -- Else this commit, and the answer it stands for, could be lost in a crash.
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN 'done';
END $$;

-- The same for one who commits in the same breath: whatever has to roll back is an error,
-- and the server does not carry out the COMMIT that follows it. p_mark: the token of the
-- transaction's mark, empty if it has none. Another transaction is an error, too.
CREATE OR REPLACE FUNCTION @schema@.record_or_fail_2(
    p_store text, p_client bigint, p_seq bigint, p_key bytea, p_token text, p_record bytea,
    p_fingerprint bytea, p_durable boolean, p_mark text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    result text;
BEGIN
    @owned@
    result := @schema@.record_1(
        p_store, p_client, p_seq, p_key, p_token, p_record, p_fingerprint, p_durable);
    IF result <> 'done' THEN RAISE EXCEPTION USING ERRCODE = 'RIFL1', MESSAGE = result; END IF;
END $$;

-- Count a replica's beat, take out those that stand still, and return all. p_known: the
-- beats this replica knows to be durable; a store with fewer has lost something.
-- p_leaving: take it out instead. p_reading: what its own clock shows, in seconds. One
-- replica's clock counts at a time, and what it has moved since its last beat was lived
-- through, two seconds at most.
CREATE OR REPLACE FUNCTION @schema@.beat_1(
    p_store text, p_owner text, p_known bigint, p_leaving boolean, p_dead text[],
    p_dead_beats bigint[], p_reading double precision
) RETURNS TABLE (o_owner text, o_beats bigint) LANGUAGE plpgsql AS $$
DECLARE
    mine bigint;
BEGIN
    IF p_leaving THEN
        DELETE FROM @schema@.replicas AS replicas WHERE replicas.owner = p_owner;
        RETURN;
    END IF;
    PERFORM @schema@.durable_1();
    INSERT INTO @schema@.replicas AS replicas (owner, beats) VALUES (p_owner, p_known + 1)
    ON CONFLICT (owner) DO UPDATE SET beats = replicas.beats + 1, beaten_at = clock_timestamp()
    RETURNING beats INTO mine;
    IF mine <= p_known OR NOT @schema@.same_store_1(p_store) THEN
        RETURN QUERY SELECT '', -1::bigint; RETURN;
    END IF;
    DELETE FROM @schema@.replicas AS replicas
    USING unnest(p_dead, p_dead_beats) AS dead (owner, beats)
    WHERE replicas.owner = dead.owner AND replicas.beats = dead.beats;
    UPDATE @schema@.age
    SET lived = lived + CASE WHEN sweeper = p_owner THEN
            make_interval(secs => greatest(0, least(2, p_reading - reading)))
            ELSE interval '0' END,
        sweeper = p_owner, reading = p_reading
    WHERE sweeper = p_owner
        OR NOT EXISTS (SELECT FROM @schema@.replicas WHERE owner = sweeper);
    RETURN QUERY SELECT owner, beats FROM @schema@.replicas;
END $$;
