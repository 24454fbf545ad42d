-- Every function that writes locks the log's row first and judges in later statements: at
-- READ COMMITTED each of these sees what the one before it in the queue has committed
-- (DESIGN-LOG §12, L4). What is wrong with the log is an error; its caller judges the facts.

CREATE OR REPLACE FUNCTION @schema@.refuse_1(
    p_why text, p_log @schema@.log, p_text text DEFAULT ''
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused: %', p_why USING ERRCODE = 'CURP1', DETAIL = json_build_object(
        'why', p_why, 'tail', p_log.steps, 'text', p_text);
END $$;

-- Lock the log, and see that it may be written: it is the one that its caller knows, has all
-- that its caller saw (p_seen, of its steps), and this server keeps what it acknowledges.
CREATE OR REPLACE FUNCTION @schema@.lock_1(p_incarnation text, p_seen int8)
RETURNS @schema@.log LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log;
    warn boolean := current_setting('rifl.durability', true) IS NOT DISTINCT FROM 'warn';
    weak text;
BEGIN
    IF NOT warn THEN
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        weak := @weak@;
        IF weak <> '' THEN PERFORM @schema@.refuse_1('weak', NULL, weak); END IF;
    END IF;
    SELECT * INTO head FROM @schema@.log WHERE incarnation = p_incarnation FOR UPDATE;
    IF NOT FOUND THEN PERFORM @schema@.refuse_1('other', NULL); END IF;
    IF head.stopped <> '' THEN
        PERFORM @schema@.refuse_1('stopped', head, head.stopped);
    END IF;
    IF head.steps < p_seen THEN PERFORM @schema@.refuse_1('back', head); END IF;
    IF head.history <> '' AND split_part(head.history, '/', 2)
        <> ltrim(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), '0') THEN
        PERFORM @schema@.refuse_1('history', head);
    END IF;
    RETURN head;
END $$;

-- Seconds since 1970, now: not when the transaction began.
CREATE OR REPLACE FUNCTION @schema@.now_1() RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT extract(epoch FROM clock_timestamp())::float8
$$;

CREATE OR REPLACE FUNCTION @schema@.int8_1(p_bytes bytea) RETURNS int8
LANGUAGE sql IMMUTABLE AS $$ SELECT ('x' || encode(p_bytes, 'hex'))::bit(64)::int8 $$;

-- Put an LSN behind a value, and add it to the checksum in front.
CREATE OR REPLACE FUNCTION @schema@.stamp_1(p_value bytea, p_lsn int8) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT int8send(@schema@.int8_1(substr(p_value, 1, 8)) + p_lsn) || substr(p_value, 9)
        || int8send(p_lsn)
$$;

-- Put keys: a null deletes one, and a stamp adds the first or last LSN ('f', 'l', or '-').
-- p_values: with their checksums. p_terms: seconds, null or nothing for keys that stay.
CREATE OR REPLACE FUNCTION @schema@.put_1(
    p_log int8, p_keys bytea[], p_values bytea[], p_stamps text, p_first int8, p_last int8,
    p_terms float8[] DEFAULT '{}'
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_s float8 := @schema@.now_1();
BEGIN
    DELETE FROM @schema@.key k USING unnest(p_keys, p_values) AS each (key, value)
    WHERE k.log_id = p_log AND k.key = each.key AND each.value IS NULL;
    INSERT INTO @schema@.key AS k
    SELECT p_log, each.key, CASE substr(p_stamps, each.n::int, 1)
        WHEN 'f' THEN @schema@.stamp_1(each.value, p_first)
        WHEN 'l' THEN @schema@.stamp_1(each.value, p_last) ELSE each.value END,
        now_s + each.term_s, each.term_s
    FROM unnest(p_keys, p_values, p_terms) WITH ORDINALITY AS each (key, value, term_s, n)
    WHERE each.value IS NOT NULL
    ON CONFLICT (log_id, key) DO UPDATE
    SET value = excluded.value, ends = excluded.ends, term_s = excluded.term_s;
END $$;

-- One step. `found`: what the conditions' keys hold, where one of them refused it, else null.
-- p_numbers: of which entry, from 1 on, each of p_tagged is a tag.
CREATE OR REPLACE FUNCTION @schema@.commit_1(
    p_incarnation text, p_seen int8, p_asked bytea[], p_expected bytea[], p_keys bytea[],
    p_values bytea[], p_stamps text, p_at_us int8, p_tags bytea[], p_checksums int8[],
    p_bodies bytea[], p_tagged bytea[], p_numbers int8[], p_channel text,
    p_terms float8[] DEFAULT '{}'
) RETURNS TABLE (first int8, last int8, steps int8, copied boolean, found bytea[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head @schema@.log := @schema@.lock_1(p_incarnation, p_seen);
    held bytea[];
    count int8 := cardinality(p_bodies);
    low int8 := head.tail + 1;
    high int8 := head.tail + cardinality(p_bodies);
BEGIN
    IF cardinality(p_asked) > 0 THEN
        SELECT array_agg(k.value ORDER BY each.n) INTO held
        FROM unnest(p_asked) WITH ORDINALITY AS each (key, n)
        LEFT JOIN @schema@.key k ON k.log_id = head.log_id AND k.key = each.key
            AND (k.ends IS NULL OR k.ends > @schema@.now_1());
        IF held IS DISTINCT FROM p_expected THEN
            -- A write of its own: its commit waits for what the one before may not have
            -- waited for, since the refused one is told what that wrote.
            UPDATE @schema@.log l SET steps = l.steps + 1 WHERE l.log_id = head.log_id;
            RETURN QUERY SELECT 0::int8, 0::int8, head.steps + 1, @schema@.copied_1(), held;
            RETURN;
        END IF;
    END IF;
    IF count = 0 THEN low := head.tail; END IF;
    IF cardinality(p_keys) > 0 THEN
        PERFORM @schema@.put_1(head.log_id, p_keys, p_values, p_stamps, low, high, p_terms);
    END IF;
    IF count > 0 THEN
        head.at_us := greatest(head.at_us, p_at_us);
        INSERT INTO @schema@.entry
        SELECT head.log_id, head.tail + each.n, head.at_us, each.tags, each.checksum, each.body
        FROM unnest(p_tags, p_checksums, p_bodies) WITH ORDINALITY
            AS each (tags, checksum, body, n);
        INSERT INTO @schema@.tag
        SELECT head.log_id, each.tag, head.tail + each.n
        FROM unnest(p_tagged, p_numbers) AS each (tag, n);
        PERFORM pg_notify(p_channel, '');
    END IF;
    UPDATE @schema@.log l SET tail = high, at_us = head.at_us, steps = l.steps + 1,
        copied = @schema@.copied_1()
    WHERE l.log_id = head.log_id;
    RETURN QUERY SELECT low, high, head.steps + 1, @schema@.copied_1(), NULL::bytea[];
END $$;

-- Remove the rows up to an LSN, with the tags that its caller found there.
CREATE OR REPLACE FUNCTION @schema@.remove_1(
    p_incarnation text, p_seen int8, p_through int8, p_tagged bytea[], p_lsns int8[]
) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log := @schema@.lock_1(p_incarnation, p_seen);
BEGIN
    DELETE FROM @schema@.tag t USING unnest(p_tagged, p_lsns) AS each (tag, lsn)
    WHERE t.log_id = head.log_id AND t.tag = each.tag AND t.lsn = each.lsn;
    DELETE FROM @schema@.entry e WHERE e.log_id = head.log_id AND e.lsn <= p_through;
    UPDATE @schema@.log l SET removed = greatest(l.removed, p_through), steps = l.steps + 1,
        copied = @schema@.copied_1()
    WHERE l.log_id = head.log_id;
    RETURN head.steps + 1;
END $$;

-- Go on from what is there, as another incarnation: processes that know more stay away.
CREATE OR REPLACE FUNCTION @schema@.accept_loss_1(
    p_name text, p_incarnation text, p_keys bytea[], p_values bytea[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log;
BEGIN
    SELECT * INTO head FROM @schema@.log WHERE name = p_name FOR UPDATE;
    IF NOT FOUND OR head.stopped = '' THEN RETURN ''; END IF;
    PERFORM @schema@.put_1(head.log_id, p_keys, p_values, '', 0, 0);
    UPDATE @schema@.log SET stopped = '', history = @schema@.history_1(),
        copied = @schema@.copied_1(), incarnation = p_incarnation, steps = head.steps + 1
    WHERE log_id = head.log_id;
    RETURN head.stopped;
END $$;
