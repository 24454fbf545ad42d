-- Every function that writes locks the log's row first and judges in later statements: at
-- READ COMMITTED each of these sees what the one before it in the queue has committed. A
-- refusal is an error, so that nothing of it is written; its caller judges the facts.

CREATE OR REPLACE FUNCTION @schema@.newest_1(p_log int8) RETURNS int8 LANGUAGE sql AS $$
    SELECT lsn FROM @schema@.snapshot WHERE log_id = p_log AND chunks IS NOT NULL
    ORDER BY snapshot_id DESC LIMIT 1
$$;

CREATE OR REPLACE FUNCTION @schema@.refuse_1(
    p_why text, p_log @schema@.log, p_text text DEFAULT '', p_value bytea DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused: %', p_why USING ERRCODE = 'CURP1', DETAIL = json_build_object(
        'why', p_why, 'tail', p_log.tail, 'trimmed', p_log.trimmed,
        'configuration', p_log.configuration, 'text', p_text,
        'snapshot', @schema@.newest_1(p_log.log_id), 'value', encode(p_value, 'hex'));
END $$;

-- Lock the log, and see that it may be written: it is the one that its caller knows, does
-- not end before what its caller saw (p_seen), and this server keeps what it acknowledges.
CREATE OR REPLACE FUNCTION @schema@.lock_1(p_incarnation text, p_seen int8)
RETURNS @schema@.log LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log;
    warn boolean := current_setting('rifl.durability', true) IS NOT DISTINCT FROM 'warn';
BEGIN
    IF NOT warn THEN
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        IF current_setting('fsync') <> 'on' OR current_setting('full_page_writes') <> 'on' THEN
            PERFORM @schema@.refuse_1('weak', NULL);
        END IF;
    END IF;
    SELECT * INTO head FROM @schema@.log WHERE incarnation = p_incarnation FOR UPDATE;
    IF NOT FOUND THEN PERFORM @schema@.refuse_1('other', NULL); END IF;
    IF head.stopped <> '' THEN
        PERFORM @schema@.refuse_1('stopped', head, head.stopped);
    END IF;
    IF head.tail < p_seen THEN PERFORM @schema@.refuse_1('back', head); END IF;
    IF head.history <> '' AND split_part(head.history, '/', 2)
        <> ltrim(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), '0') THEN
        PERFORM @schema@.refuse_1('history', head);
    END IF;
    RETURN head;
END $$;

-- The same, and that this is the current number, which is above 0.
CREATE OR REPLACE FUNCTION @schema@.lead_lock_1(p_incarnation text, p_seen int8, p_number int8)
RETURNS @schema@.log LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lock_1(p_incarnation, p_seen);
BEGIN
    IF p_number <> head.configuration OR p_number < 1 THEN
        PERFORM @schema@.refuse_1('facts', head);
    END IF;
    RETURN head;
END $$;

CREATE OR REPLACE FUNCTION @schema@.write_metadata_1(
    p_log int8, p_keys bytea[], p_values bytea[]
) RETURNS void LANGUAGE sql AS $$
    DELETE FROM @schema@.metadata WHERE log_id = p_log AND key = ANY (p_keys);
    INSERT INTO @schema@.metadata
    SELECT p_log, each.key, each.value FROM unnest(p_keys, p_values) AS each (key, value)
    WHERE each.value IS NOT NULL;
$$;

-- p_condition: none, absent, or equal to p_value.
CREATE OR REPLACE FUNCTION @schema@.require_1(
    p_log @schema@.log, p_condition text, p_key bytea, p_value bytea
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    there bytea;
BEGIN
    IF p_condition = 'none' THEN RETURN; END IF;
    SELECT value INTO there FROM @schema@.metadata WHERE log_id = p_log.log_id AND key = p_key;
    IF p_condition = 'absent' AND there IS NULL THEN RETURN; END IF;
    IF p_condition = 'equal' AND there = p_value THEN RETURN; END IF;
    PERFORM @schema@.refuse_1('facts', p_log, '', there);
END $$;

-- p_before: the append id of the entry at the expected tail, null if its caller does not
-- know it. Returns the last LSN of this append, the tail, and whether a standby has it.
CREATE OR REPLACE FUNCTION @schema@.append_1(
    p_incarnation text, p_seen int8, p_number int8, p_expected int8, p_append_id bytea,
    p_before bytea, p_condition text, p_key bytea, p_value bytea, p_keys bytea[],
    p_values bytea[], p_tags text[], p_checksums int8[], p_bodies bytea[], p_tagged bytea[],
    p_lsns int8[], p_channel text
) RETURNS TABLE (last int8, tail int8, copied boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head @schema@.log := @schema@.lock_1(p_incarnation, p_seen);
    done int8;
BEGIN
    IF p_expected >= head.trimmed AND p_expected < head.tail AND EXISTS (
        SELECT FROM @schema@.entry e WHERE e.log_id = head.log_id
        AND e.lsn = p_expected + 1 AND e.append_id = p_append_id
    ) THEN
        -- A write of its own: its commit waits for what the one before may not have waited for.
        UPDATE @schema@.log l SET touched = l.touched + 1 WHERE l.log_id = head.log_id;
        SELECT e.lsn - 1 INTO done FROM @schema@.entry e WHERE e.log_id = head.log_id
        AND e.lsn > p_expected AND e.append_id <> p_append_id ORDER BY e.lsn LIMIT 1;
        RETURN QUERY SELECT coalesce(done, head.tail), head.tail, @schema@.copied_1();
        RETURN;
    END IF;
    IF p_number <> head.configuration OR p_number < 1 OR p_expected <> head.tail THEN
        PERFORM @schema@.refuse_1('facts', head);
    END IF;
    IF p_before IS NOT NULL AND head.tail > head.trimmed AND NOT EXISTS (
        SELECT FROM @schema@.entry e WHERE e.log_id = head.log_id
        AND e.lsn = head.tail AND e.append_id = p_before
    ) THEN
        PERFORM @schema@.refuse_1('changed', head, head.tail::text);
    END IF;
    PERFORM @schema@.require_1(head, p_condition, p_key, p_value);
    PERFORM @schema@.write_metadata_1(head.log_id, p_keys, p_values);
    INSERT INTO @schema@.entry
    SELECT head.log_id, head.tail + each.n, p_append_id, each.tags, each.checksum, each.body
    FROM unnest(p_tags, p_checksums, p_bodies) WITH ORDINALITY AS each (tags, checksum, body, n);
    INSERT INTO @schema@.tag
    SELECT head.log_id, each.tag, each.lsn FROM unnest(p_tagged, p_lsns) AS each (tag, lsn);
    UPDATE @schema@.log l SET tail = l.tail + cardinality(p_bodies), copied = @schema@.copied_1()
    WHERE l.log_id = head.log_id RETURNING l.tail, l.tail, l.copied INTO last, tail, copied;
    PERFORM pg_notify(p_channel, '');
    RETURN NEXT;
END $$;

-- p_action: take, renew, end, next. Leases end by this server's clock. Returns the number,
-- and who holds it for how long where it is held.
CREATE OR REPLACE FUNCTION @schema@.lead_1(
    p_incarnation text, p_seen int8, p_action text, p_number int8, p_replica bytea,
    p_address bytea, p_term_s float8, p_keys bytea[], p_values bytea[]
) RETURNS TABLE (number int8, holder bytea, left_s float8) LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lock_1(p_incarnation, p_seen);
    now_s float8 := extract(epoch FROM clock_timestamp());
BEGIN
    IF p_action = 'take' THEN
        IF head.configuration > 0 AND head.replica <> p_replica
            AND head.expires_at > now_s THEN
            RETURN QUERY SELECT head.configuration, head.replica, head.expires_at - now_s;
            RETURN;
        END IF;
    ELSIF p_action = 'end' THEN
        IF p_number = head.configuration AND head.expires_at > now_s THEN
            UPDATE @schema@.log SET expires_at = now_s, term_s = 0,
                copied = @schema@.copied_1() WHERE log_id = head.log_id;
        END IF;
        RETURN QUERY SELECT head.configuration, NULL::bytea, 0::float8;
        RETURN;
    ELSIF p_number <> head.configuration OR p_number < 1 THEN
        PERFORM @schema@.refuse_1('facts', head);
    END IF;
    PERFORM @schema@.write_metadata_1(head.log_id, p_keys, p_values);
    UPDATE @schema@.log SET
        configuration = head.configuration + CASE WHEN p_action = 'renew' THEN 0 ELSE 1 END,
        replica = CASE WHEN p_action = 'take' THEN p_replica ELSE head.replica END,
        address = CASE WHEN p_action = 'take' THEN p_address ELSE head.address END,
        expires_at = now_s + p_term_s, term_s = p_term_s, copied = @schema@.copied_1()
    WHERE log_id = head.log_id RETURNING configuration INTO number;
    RETURN NEXT;
END $$;

CREATE OR REPLACE FUNCTION @schema@.put_1(
    p_incarnation text, p_seen int8, p_number int8, p_condition text, p_key bytea,
    p_value bytea, p_keys bytea[], p_values bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    PERFORM @schema@.require_1(head, p_condition, p_key, p_value);
    PERFORM @schema@.write_metadata_1(head.log_id, p_keys, p_values);
    UPDATE @schema@.log SET copied = @schema@.copied_1() WHERE log_id = head.log_id;
END $$;

-- In force at once; entries are removed by remove_1.
CREATE OR REPLACE FUNCTION @schema@.trim_1(
    p_incarnation text, p_seen int8, p_number int8, p_through int8
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    IF p_through < 0 OR p_through > coalesce(@schema@.newest_1(head.log_id), 0) THEN
        PERFORM @schema@.refuse_1('facts', head);
    END IF;
    UPDATE @schema@.log SET trimmed = greatest(trimmed, p_through), copied = @schema@.copied_1()
    WHERE log_id = head.log_id;
END $$;

-- Remove trimmed entries up to one, with their tags.
CREATE OR REPLACE FUNCTION @schema@.remove_1(
    p_incarnation text, p_seen int8, p_number int8, p_through int8, p_tagged bytea[], p_lsns int8[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    DELETE FROM @schema@.tag t USING unnest(p_tagged, p_lsns) AS gone (tag, lsn)
    WHERE t.log_id = head.log_id AND t.tag = gone.tag AND t.lsn = gone.lsn;
    DELETE FROM @schema@.entry
    WHERE log_id = head.log_id AND lsn <= least(p_through, head.trimmed);
END $$;

CREATE OR REPLACE FUNCTION @schema@.drop_snapshots_1(p_log int8, p_keep int8, p_whole boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    gone int8[] := ARRAY(
        SELECT snapshot_id FROM @schema@.snapshot WHERE log_id = p_log
        AND snapshot_id <> p_keep AND (p_whole OR chunks IS NULL));
BEGIN
    DELETE FROM @schema@.chunk WHERE snapshot_id = ANY (gone);
    DELETE FROM @schema@.snapshot WHERE snapshot_id = ANY (gone);
END $$;

-- Begin to write a snapshot beside the older one; its id. What a save that broke off has
-- left is removed.
CREATE OR REPLACE FUNCTION @schema@.begin_snapshot_1(
    p_incarnation text, p_seen int8, p_number int8, p_lsn int8
) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lead_lock_1(p_incarnation, p_seen, p_number);
    made int8;
BEGIN
    IF p_lsn < coalesce(@schema@.newest_1(head.log_id), 0) OR p_lsn > head.tail THEN
        PERFORM @schema@.refuse_1('facts', head);
    END IF;
    PERFORM @schema@.drop_snapshots_1(head.log_id, 0, false);
    INSERT INTO @schema@.snapshot (log_id, lsn) VALUES (head.log_id, p_lsn)
    RETURNING snapshot_id INTO made;
    RETURN made;
END $$;

CREATE OR REPLACE FUNCTION @schema@.save_chunk_1(
    p_incarnation text, p_seen int8, p_number int8, p_snapshot int8, p_at int8, p_checksum int8,
    p_body bytea
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    IF NOT EXISTS (SELECT FROM @schema@.snapshot WHERE snapshot_id = p_snapshot) THEN
        PERFORM @schema@.refuse_1('superseded', head);
    END IF;
    INSERT INTO @schema@.chunk VALUES (p_snapshot, p_at, p_checksum, p_body);
END $$;

-- Put it in the place of the older one.
CREATE OR REPLACE FUNCTION @schema@.finish_snapshot_1(
    p_incarnation text, p_seen int8, p_number int8, p_snapshot int8, p_lsn int8, p_chunks int8
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    IF NOT EXISTS (SELECT FROM @schema@.snapshot WHERE snapshot_id = p_snapshot) THEN
        PERFORM @schema@.refuse_1('superseded', head);
    END IF;
    IF p_lsn < coalesce(@schema@.newest_1(head.log_id), 0) OR p_lsn > head.tail THEN
        PERFORM @schema@.refuse_1('facts', head);
    END IF;
    PERFORM @schema@.drop_snapshots_1(head.log_id, p_snapshot, true);
    UPDATE @schema@.snapshot SET chunks = p_chunks WHERE snapshot_id = p_snapshot;
    UPDATE @schema@.log SET copied = @schema@.copied_1() WHERE log_id = head.log_id;
END $$;

-- Go on from what is there, under numbers that were never given, as another incarnation:
-- processes that know more stay away.
CREATE OR REPLACE FUNCTION @schema@.accept_loss_1(p_name bytea, p_who text, p_why text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log;
BEGIN
    SELECT * INTO head FROM @schema@.log WHERE name = p_name FOR UPDATE;
    IF NOT FOUND OR head.stopped = '' THEN RETURN ''; END IF;
    INSERT INTO @schema@.loss (log_id, who, why, stopped, history_before, history)
    VALUES (head.log_id, p_who, p_why, head.stopped, head.history, @schema@.history_1());
    UPDATE @schema@.log SET stopped = '', history = @schema@.history_1(),
        copied = @schema@.copied_1(), incarnation = gen_random_uuid()::text,
        configuration = head.configuration + (1::int8 << 32), expires_at = 0, term_s = 0
    WHERE log_id = head.log_id;
    RETURN head.stopped;
END $$;
