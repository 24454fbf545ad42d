CREATE SCHEMA IF NOT EXISTS curp_compat;
CREATE TABLE curp_compat.meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO curp_compat.meta VALUES ('format', '1');

-- One row a log, which every write locks first. `incarnation` is this copy of the log: who
-- knows another one writes and reads nothing. `history`: the server and timeline it is
-- written on; `copied`: the last commit waited until a standby had it, and so had all
-- before it; `stopped`: why nobody may go on. Names are bytes: they may hold a zero.
CREATE TABLE curp_compat.log (
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
CREATE TABLE curp_compat.entry (
    log_id int8 NOT NULL,
    lsn int8 NOT NULL,
    append_id bytea NOT NULL,
    tags text NOT NULL,
    checksum int8 NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log_id, lsn)
);
ALTER TABLE curp_compat.entry ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE curp_compat.tag (
    log_id int8 NOT NULL,
    tag bytea NOT NULL,
    lsn int8 NOT NULL,
    PRIMARY KEY (log_id, tag, lsn)
);

CREATE TABLE curp_compat.metadata (
    log_id int8 NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (log_id, key)
);

-- `chunks` is null until the snapshot is whole.
CREATE TABLE curp_compat.snapshot (
    snapshot_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log_id int8 NOT NULL,
    lsn int8 NOT NULL,
    chunks int8
);
CREATE INDEX ON curp_compat.snapshot (log_id);

CREATE TABLE curp_compat.chunk (
    snapshot_id int8 NOT NULL,
    number int8 NOT NULL,
    checksum int8 NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (snapshot_id, number)
);
ALTER TABLE curp_compat.chunk ALTER COLUMN body SET STORAGE EXTERNAL;

-- Who accepted that acknowledged entries are lost, and on which server the log went on.
CREATE TABLE curp_compat.loss (
    log_id int8 NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    who text NOT NULL,
    why text NOT NULL,
    stopped text NOT NULL,
    history_before text NOT NULL,
    history text NOT NULL
);
-- Of a log's row: incarnation, history, copied, stopped. A group's, or ours.

-- The server that is written, and on which of its histories: a promotion and a recovery to
-- a point in time begin a new one. Empty where the server does not tell.
CREATE OR REPLACE FUNCTION curp_compat.history_1() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system()) || '/'
        || ltrim(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), '0');
EXCEPTION WHEN OTHERS THEN
    RETURN '';
END $$;

-- Whether a commit of ours waits until a standby has it.
CREATE OR REPLACE FUNCTION curp_compat.copied_1() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT current_setting('synchronous_standby_names') <> ''
        AND current_setting('synchronous_commit') IN ('on', 'remote_apply')
$$;

-- Judge the server that is written now: '' to go on, else why the log may have lost what it
-- acknowledged, which stops it for everyone. p_copied: whether a standby had the last that
-- the caller wrote, null if it wrote nothing. p_warn: it goes on in any case.
CREATE OR REPLACE FUNCTION curp_compat.continue_1(
    p_incarnation text, p_copied boolean, p_warn boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log;
    now_on text := curp_compat.history_1();
    why text := '';
BEGIN
    SELECT * INTO head FROM curp_compat.log WHERE incarnation = p_incarnation FOR UPDATE;
    IF NOT FOUND OR head.stopped <> '' THEN RETURN coalesce(head.stopped, ''); END IF;
    IF head.history = '' OR now_on = '' OR head.history = now_on THEN RETURN ''; END IF;
    IF split_part(head.history, '/', 1) <> split_part(now_on, '/', 1) THEN
        why := 'the database server is another one';
    ELSIF NOT (head.copied AND coalesce(p_copied, true)) THEN
        why := 'the server was restored, or a standby was promoted that commits did not wait for';
    END IF;
    IF why <> '' THEN why := why || ' (it was ' || head.history || ', and is ' || now_on || ')';
    END IF;
    IF why <> '' AND NOT p_warn THEN
        UPDATE curp_compat.log SET stopped = why WHERE log_id = head.log_id;
    ELSE
        UPDATE curp_compat.log SET history = now_on, copied = curp_compat.copied_1()
        WHERE log_id = head.log_id;
    END IF;
    RETURN why;
END $$;
-- Every function that writes locks the log's row first and judges in later statements: at
-- READ COMMITTED each of these sees what the one before it in the queue has committed. A
-- refusal is an error, so that nothing of it is written; its caller judges the facts.

CREATE OR REPLACE FUNCTION curp_compat.newest_1(p_log int8) RETURNS int8 LANGUAGE sql AS $$
    SELECT lsn FROM curp_compat.snapshot WHERE log_id = p_log AND chunks IS NOT NULL
    ORDER BY snapshot_id DESC LIMIT 1
$$;

CREATE OR REPLACE FUNCTION curp_compat.refuse_1(
    p_why text, p_log curp_compat.log, p_text text DEFAULT '', p_value bytea DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused: %', p_why USING ERRCODE = 'CURP1', DETAIL = json_build_object(
        'why', p_why, 'tail', p_log.tail, 'trimmed', p_log.trimmed,
        'configuration', p_log.configuration, 'text', p_text,
        'snapshot', curp_compat.newest_1(p_log.log_id), 'value', encode(p_value, 'hex'));
END $$;

-- Lock the log, and see that it may be written: it is the one that its caller knows, does
-- not end before what its caller saw (p_seen), and this server keeps what it acknowledges.
CREATE OR REPLACE FUNCTION curp_compat.lock_1(p_incarnation text, p_seen int8)
RETURNS curp_compat.log LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log;
    warn boolean := current_setting('rifl.durability', true) IS NOT DISTINCT FROM 'warn';
BEGIN
    IF NOT warn THEN
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        IF current_setting('fsync') <> 'on' OR current_setting('full_page_writes') <> 'on' THEN
            PERFORM curp_compat.refuse_1('weak', NULL);
        END IF;
    END IF;
    SELECT * INTO head FROM curp_compat.log WHERE incarnation = p_incarnation FOR UPDATE;
    IF NOT FOUND THEN PERFORM curp_compat.refuse_1('other', NULL); END IF;
    IF head.stopped <> '' THEN
        PERFORM curp_compat.refuse_1('stopped', head, head.stopped);
    END IF;
    IF head.tail < p_seen THEN PERFORM curp_compat.refuse_1('back', head); END IF;
    IF head.history <> '' AND split_part(head.history, '/', 2)
        <> ltrim(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), '0') THEN
        PERFORM curp_compat.refuse_1('history', head);
    END IF;
    RETURN head;
END $$;

-- The same, and that this is the current number, which is above 0.
CREATE OR REPLACE FUNCTION curp_compat.lead_lock_1(p_incarnation text, p_seen int8, p_number int8)
RETURNS curp_compat.log LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lock_1(p_incarnation, p_seen);
BEGIN
    IF p_number <> head.configuration OR p_number < 1 THEN
        PERFORM curp_compat.refuse_1('facts', head);
    END IF;
    RETURN head;
END $$;

CREATE OR REPLACE FUNCTION curp_compat.write_metadata_1(
    p_log int8, p_keys bytea[], p_values bytea[]
) RETURNS void LANGUAGE sql AS $$
    DELETE FROM curp_compat.metadata WHERE log_id = p_log AND key = ANY (p_keys);
    INSERT INTO curp_compat.metadata
    SELECT p_log, each.key, each.value FROM unnest(p_keys, p_values) AS each (key, value)
    WHERE each.value IS NOT NULL;
$$;

-- p_condition: none, absent, or equal to p_value.
CREATE OR REPLACE FUNCTION curp_compat.require_1(
    p_log curp_compat.log, p_condition text, p_key bytea, p_value bytea
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    there bytea;
BEGIN
    IF p_condition = 'none' THEN RETURN; END IF;
    SELECT value INTO there FROM curp_compat.metadata WHERE log_id = p_log.log_id AND key = p_key;
    IF p_condition = 'absent' AND there IS NULL THEN RETURN; END IF;
    IF p_condition = 'equal' AND there = p_value THEN RETURN; END IF;
    PERFORM curp_compat.refuse_1('facts', p_log, '', there);
END $$;

-- p_before: the append id of the entry at the expected tail, null if its caller does not
-- know it. Returns the last LSN of this append, the tail, and whether a standby has it.
CREATE OR REPLACE FUNCTION curp_compat.append_1(
    p_incarnation text, p_seen int8, p_number int8, p_expected int8, p_append_id bytea,
    p_before bytea, p_condition text, p_key bytea, p_value bytea, p_keys bytea[],
    p_values bytea[], p_tags text[], p_checksums int8[], p_bodies bytea[], p_tagged bytea[],
    p_lsns int8[], p_channel text
) RETURNS TABLE (last int8, tail int8, copied boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head curp_compat.log := curp_compat.lock_1(p_incarnation, p_seen);
    done int8;
BEGIN
    IF p_expected >= head.trimmed AND p_expected < head.tail AND EXISTS (
        SELECT FROM curp_compat.entry e WHERE e.log_id = head.log_id
        AND e.lsn = p_expected + 1 AND e.append_id = p_append_id
    ) THEN
        -- A write of its own: its commit waits for what the one before may not have waited for.
        UPDATE curp_compat.log l SET touched = l.touched + 1 WHERE l.log_id = head.log_id;
        SELECT e.lsn - 1 INTO done FROM curp_compat.entry e WHERE e.log_id = head.log_id
        AND e.lsn > p_expected AND e.append_id <> p_append_id ORDER BY e.lsn LIMIT 1;
        RETURN QUERY SELECT coalesce(done, head.tail), head.tail, curp_compat.copied_1();
        RETURN;
    END IF;
    IF p_number <> head.configuration OR p_number < 1 OR p_expected <> head.tail THEN
        PERFORM curp_compat.refuse_1('facts', head);
    END IF;
    IF p_before IS NOT NULL AND head.tail > head.trimmed AND NOT EXISTS (
        SELECT FROM curp_compat.entry e WHERE e.log_id = head.log_id
        AND e.lsn = head.tail AND e.append_id = p_before
    ) THEN
        PERFORM curp_compat.refuse_1('changed', head, head.tail::text);
    END IF;
    PERFORM curp_compat.require_1(head, p_condition, p_key, p_value);
    PERFORM curp_compat.write_metadata_1(head.log_id, p_keys, p_values);
    INSERT INTO curp_compat.entry
    SELECT head.log_id, head.tail + each.n, p_append_id, each.tags, each.checksum, each.body
    FROM unnest(p_tags, p_checksums, p_bodies) WITH ORDINALITY AS each (tags, checksum, body, n);
    INSERT INTO curp_compat.tag
    SELECT head.log_id, each.tag, each.lsn FROM unnest(p_tagged, p_lsns) AS each (tag, lsn);
    UPDATE curp_compat.log l SET tail = l.tail + cardinality(p_bodies), copied = curp_compat.copied_1()
    WHERE l.log_id = head.log_id RETURNING l.tail, l.tail, l.copied INTO last, tail, copied;
    PERFORM pg_notify(p_channel, '');
    RETURN NEXT;
END $$;

-- p_action: take, renew, end, next. Leases end by this server's clock. Returns the number,
-- and who holds it for how long where it is held.
CREATE OR REPLACE FUNCTION curp_compat.lead_1(
    p_incarnation text, p_seen int8, p_action text, p_number int8, p_replica bytea,
    p_address bytea, p_term_s float8, p_keys bytea[], p_values bytea[]
) RETURNS TABLE (number int8, holder bytea, left_s float8) LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lock_1(p_incarnation, p_seen);
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
            UPDATE curp_compat.log SET expires_at = now_s, term_s = 0,
                copied = curp_compat.copied_1() WHERE log_id = head.log_id;
        END IF;
        RETURN QUERY SELECT head.configuration, NULL::bytea, 0::float8;
        RETURN;
    ELSIF p_number <> head.configuration OR p_number < 1 THEN
        PERFORM curp_compat.refuse_1('facts', head);
    END IF;
    PERFORM curp_compat.write_metadata_1(head.log_id, p_keys, p_values);
    UPDATE curp_compat.log SET
        configuration = head.configuration + CASE WHEN p_action = 'renew' THEN 0 ELSE 1 END,
        replica = CASE WHEN p_action = 'take' THEN p_replica ELSE head.replica END,
        address = CASE WHEN p_action = 'take' THEN p_address ELSE head.address END,
        expires_at = now_s + p_term_s, term_s = p_term_s, copied = curp_compat.copied_1()
    WHERE log_id = head.log_id RETURNING configuration INTO number;
    RETURN NEXT;
END $$;

CREATE OR REPLACE FUNCTION curp_compat.put_1(
    p_incarnation text, p_seen int8, p_number int8, p_condition text, p_key bytea,
    p_value bytea, p_keys bytea[], p_values bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    PERFORM curp_compat.require_1(head, p_condition, p_key, p_value);
    PERFORM curp_compat.write_metadata_1(head.log_id, p_keys, p_values);
    UPDATE curp_compat.log SET copied = curp_compat.copied_1() WHERE log_id = head.log_id;
END $$;

-- In force at once; entries are removed by remove_1.
CREATE OR REPLACE FUNCTION curp_compat.trim_1(
    p_incarnation text, p_seen int8, p_number int8, p_through int8
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    IF p_through < 0 OR p_through > coalesce(curp_compat.newest_1(head.log_id), 0) THEN
        PERFORM curp_compat.refuse_1('facts', head);
    END IF;
    UPDATE curp_compat.log SET trimmed = greatest(trimmed, p_through), copied = curp_compat.copied_1()
    WHERE log_id = head.log_id;
END $$;

-- Remove trimmed entries up to one, with their tags.
CREATE OR REPLACE FUNCTION curp_compat.remove_1(
    p_incarnation text, p_seen int8, p_number int8, p_through int8, p_tagged bytea[], p_lsns int8[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    DELETE FROM curp_compat.tag t USING unnest(p_tagged, p_lsns) AS gone (tag, lsn)
    WHERE t.log_id = head.log_id AND t.tag = gone.tag AND t.lsn = gone.lsn;
    DELETE FROM curp_compat.entry
    WHERE log_id = head.log_id AND lsn <= least(p_through, head.trimmed);
END $$;

CREATE OR REPLACE FUNCTION curp_compat.drop_snapshots_1(p_log int8, p_keep int8, p_whole boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    gone int8[] := ARRAY(
        SELECT snapshot_id FROM curp_compat.snapshot WHERE log_id = p_log
        AND snapshot_id <> p_keep AND (p_whole OR chunks IS NULL));
BEGIN
    DELETE FROM curp_compat.chunk WHERE snapshot_id = ANY (gone);
    DELETE FROM curp_compat.snapshot WHERE snapshot_id = ANY (gone);
END $$;

-- Begin to write a snapshot beside the older one; its id. What a save that broke off has
-- left is removed.
CREATE OR REPLACE FUNCTION curp_compat.begin_snapshot_1(
    p_incarnation text, p_seen int8, p_number int8, p_lsn int8
) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lead_lock_1(p_incarnation, p_seen, p_number);
    made int8;
BEGIN
    IF p_lsn < coalesce(curp_compat.newest_1(head.log_id), 0) OR p_lsn > head.tail THEN
        PERFORM curp_compat.refuse_1('facts', head);
    END IF;
    PERFORM curp_compat.drop_snapshots_1(head.log_id, 0, false);
    INSERT INTO curp_compat.snapshot (log_id, lsn) VALUES (head.log_id, p_lsn)
    RETURNING snapshot_id INTO made;
    RETURN made;
END $$;

CREATE OR REPLACE FUNCTION curp_compat.save_chunk_1(
    p_incarnation text, p_seen int8, p_number int8, p_snapshot int8, p_at int8, p_checksum int8,
    p_body bytea
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    IF NOT EXISTS (SELECT FROM curp_compat.snapshot WHERE snapshot_id = p_snapshot) THEN
        PERFORM curp_compat.refuse_1('superseded', head);
    END IF;
    INSERT INTO curp_compat.chunk VALUES (p_snapshot, p_at, p_checksum, p_body);
END $$;

-- Put it in the place of the older one.
CREATE OR REPLACE FUNCTION curp_compat.finish_snapshot_1(
    p_incarnation text, p_seen int8, p_number int8, p_snapshot int8, p_lsn int8, p_chunks int8
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lead_lock_1(p_incarnation, p_seen, p_number);
BEGIN
    IF NOT EXISTS (SELECT FROM curp_compat.snapshot WHERE snapshot_id = p_snapshot) THEN
        PERFORM curp_compat.refuse_1('superseded', head);
    END IF;
    IF p_lsn < coalesce(curp_compat.newest_1(head.log_id), 0) OR p_lsn > head.tail THEN
        PERFORM curp_compat.refuse_1('facts', head);
    END IF;
    PERFORM curp_compat.drop_snapshots_1(head.log_id, p_snapshot, true);
    UPDATE curp_compat.snapshot SET chunks = p_chunks WHERE snapshot_id = p_snapshot;
    UPDATE curp_compat.log SET copied = curp_compat.copied_1() WHERE log_id = head.log_id;
END $$;

-- Go on from what is there, under numbers that were never given, as another incarnation:
-- processes that know more stay away.
CREATE OR REPLACE FUNCTION curp_compat.accept_loss_1(p_name bytea, p_who text, p_why text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log;
BEGIN
    SELECT * INTO head FROM curp_compat.log WHERE name = p_name FOR UPDATE;
    IF NOT FOUND OR head.stopped = '' THEN RETURN ''; END IF;
    INSERT INTO curp_compat.loss (log_id, who, why, stopped, history_before, history)
    VALUES (head.log_id, p_who, p_why, head.stopped, head.history, curp_compat.history_1());
    UPDATE curp_compat.log SET stopped = '', history = curp_compat.history_1(),
        copied = curp_compat.copied_1(), incarnation = gen_random_uuid()::text,
        configuration = head.configuration + (1::int8 << 32), expires_at = 0, term_s = 0
    WHERE log_id = head.log_id;
    RETURN head.stopped;
END $$;

DELETE FROM curp_compat.chunk;
INSERT INTO curp_compat.chunk (snapshot_id, number, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '0', '4047326609', E'\\x6f6e65');
INSERT INTO curp_compat.chunk (snapshot_id, number, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '1', '3048607747', E'\\x');
INSERT INTO curp_compat.chunk (snapshot_id, number, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '2', '3840582641', E'\\x74776f74776f74776f74776f74776f74776f74776f74776f74776f74776f');
DELETE FROM curp_compat.entry;
INSERT INTO curp_compat.entry (log_id, lsn, append_id, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '3', E'\\x000102030405060708090a0b0c0d0e0f', '["t"]', '3998032982', E'\\x33');
INSERT INTO curp_compat.entry (log_id, lsn, append_id, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '4', E'\\x000102030405060708090a0b0c0d0e0f', '["t"]', '2734487411', E'\\x34');
INSERT INTO curp_compat.entry (log_id, lsn, append_id, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '5', E'\\x000102030405060708090a0b0c0d0e0f', '["t"]', '3145194660', E'\\x35');
INSERT INTO curp_compat.entry (log_id, lsn, append_id, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '6', E'\\x101112131415161718191a1b1c1d1e1f', '["ü", "t"]', '1901567884', E'\\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff');
INSERT INTO curp_compat.entry (log_id, lsn, append_id, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '7', E'\\x101112131415161718191a1b1c1d1e1f', '[]', '373365614', E'\\x');
DELETE FROM curp_compat.log;
INSERT INTO curp_compat.log (log_id, name, incarnation, tail, trimmed, configuration, replica, address, expires_at, term_s, history, copied, stopped, touched) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x62616e6b', '82c6f947f1d1572f0367160a3e1a6571', '7', '2', '1', E'\\x7231', E'\\x3132372e302e302e313a31', '1795400794.998911', '0', '7711187687617963696/1', 'false', '', '0');
DELETE FROM curp_compat.loss;
DELETE FROM curp_compat.meta;
INSERT INTO curp_compat.meta (name, value) OVERRIDING SYSTEM VALUE
VALUES ('format', '1');
DELETE FROM curp_compat.metadata;
INSERT INTO curp_compat.metadata (log_id, key, value) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x637572702d73746f7265', E'\\x4bb1cca5b3d2a0f1');
INSERT INTO curp_compat.metadata (log_id, key, value) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x6b', E'\\x7600');
DELETE FROM curp_compat.snapshot;
INSERT INTO curp_compat.snapshot (snapshot_id, log_id, lsn, chunks) OVERRIDING SYSTEM VALUE
VALUES ('1', '1', '3', '3');
DELETE FROM curp_compat.tag;
INSERT INTO curp_compat.tag (log_id, tag, lsn) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x74', '3');
INSERT INTO curp_compat.tag (log_id, tag, lsn) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x74', '4');
INSERT INTO curp_compat.tag (log_id, tag, lsn) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x74', '5');
INSERT INTO curp_compat.tag (log_id, tag, lsn) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\xc3bc', '6');
INSERT INTO curp_compat.tag (log_id, tag, lsn) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x74', '6');
UPDATE curp_compat.log SET history = '';
