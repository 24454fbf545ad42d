CREATE SCHEMA IF NOT EXISTS curp_compat;
CREATE TABLE curp_compat.meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO curp_compat.meta VALUES ('format', '1');

-- One row a log, which every write locks first. `incarnation` is this copy of the log: who
-- knows another one writes and reads nothing. `steps`: how many writes there were. `history`:
-- the server and timeline it is written on; `copied`: the last commit waited until a standby
-- had it, and so had all before it; `stopped`: why nobody may go on.
CREATE TABLE curp_compat.log (
    log_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    incarnation text NOT NULL UNIQUE,
    tail int8 NOT NULL DEFAULT 0,
    removed int8 NOT NULL DEFAULT 0,
    at_us int8 NOT NULL DEFAULT 0,
    steps int8 NOT NULL DEFAULT 0,
    history text NOT NULL,
    copied boolean NOT NULL,
    stopped text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- `tags`: a line each. Bytes, since text holds no zero.
CREATE TABLE curp_compat.entry (
    log_id int8 NOT NULL,
    lsn int8 NOT NULL,
    at_us int8 NOT NULL,
    tags bytea NOT NULL,
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

-- `value` begins with a checksum, see checksums.py. `ends`: when a key's term is over, seconds since 1970 by this server's clock; null without one.
CREATE TABLE curp_compat.key (
    log_id int8 NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    ends float8,
    term_s float8,
    PRIMARY KEY (log_id, key)
) WITH (fillfactor = 70);
-- Of a log's row: incarnation, history, copied, stopped.

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
-- READ COMMITTED each of these sees what the one before it in the queue has committed
-- (DESIGN-LOG §12, L4). What is wrong with the log is an error; its caller judges the facts.

CREATE OR REPLACE FUNCTION curp_compat.refuse_1(
    p_why text, p_log curp_compat.log, p_text text DEFAULT ''
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused: %', p_why USING ERRCODE = 'CURP1', DETAIL = json_build_object(
        'why', p_why, 'tail', p_log.steps, 'text', p_text);
END $$;

-- Lock the log, and see that it may be written: it is the one that its caller knows, has all
-- that its caller saw (p_seen, of its steps), and this server keeps what it acknowledges.
CREATE OR REPLACE FUNCTION curp_compat.lock_1(p_incarnation text, p_seen int8)
RETURNS curp_compat.log LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log;
    warn boolean := current_setting('rifl.durability', true) IS NOT DISTINCT FROM 'warn';
    weak text;
BEGIN
    IF NOT warn THEN
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        weak := concat_ws(', ', CASE WHEN current_setting('fsync', true) <> 'on' THEN 'fsync is ' || current_setting('fsync') END, CASE WHEN current_setting('full_page_writes', true) <> 'on' THEN 'full_page_writes is ' || current_setting('full_page_writes') END, CASE WHEN current_setting('data_sync_retry', true) <> 'off' THEN 'data_sync_retry is ' || current_setting('data_sync_retry') END, CASE WHEN current_setting('zero_damaged_pages', true) <> 'off' THEN 'zero_damaged_pages is ' || current_setting('zero_damaged_pages') END, CASE WHEN current_setting('ignore_checksum_failure', true) <> 'off' THEN 'ignore_checksum_failure is ' || current_setting('ignore_checksum_failure') END, CASE WHEN current_setting('ignore_invalid_pages', true) <> 'off' THEN 'ignore_invalid_pages is ' || current_setting('ignore_invalid_pages') END);
        IF weak <> '' THEN PERFORM curp_compat.refuse_1('weak', NULL, weak); END IF;
    END IF;
    SELECT * INTO head FROM curp_compat.log WHERE incarnation = p_incarnation FOR UPDATE;
    IF NOT FOUND THEN PERFORM curp_compat.refuse_1('other', NULL); END IF;
    IF head.stopped <> '' THEN
        PERFORM curp_compat.refuse_1('stopped', head, head.stopped);
    END IF;
    IF head.steps < p_seen THEN PERFORM curp_compat.refuse_1('back', head); END IF;
    IF head.history <> '' AND split_part(head.history, '/', 2)
        <> ltrim(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), '0') THEN
        PERFORM curp_compat.refuse_1('history', head);
    END IF;
    RETURN head;
END $$;

-- Seconds since 1970, now: not when the transaction began.
CREATE OR REPLACE FUNCTION curp_compat.now_1() RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT extract(epoch FROM clock_timestamp())::float8
$$;

CREATE OR REPLACE FUNCTION curp_compat.int8_1(p_bytes bytea) RETURNS int8
LANGUAGE sql IMMUTABLE AS $$ SELECT ('x' || encode(p_bytes, 'hex'))::bit(64)::int8 $$;

-- Put an LSN behind a value, and add it to the checksum in front.
CREATE OR REPLACE FUNCTION curp_compat.stamp_1(p_value bytea, p_lsn int8) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT int8send(curp_compat.int8_1(substr(p_value, 1, 8)) + p_lsn) || substr(p_value, 9)
        || int8send(p_lsn)
$$;

-- Put keys: a null deletes one, and a stamp adds the first or last LSN ('f', 'l', or '-').
-- p_values: with their checksums. p_terms: seconds, null or nothing for keys that stay.
CREATE OR REPLACE FUNCTION curp_compat.put_1(
    p_log int8, p_keys bytea[], p_values bytea[], p_stamps text, p_first int8, p_last int8,
    p_terms float8[] DEFAULT '{}'
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_s float8 := curp_compat.now_1();
BEGIN
    DELETE FROM curp_compat.key k USING unnest(p_keys, p_values) AS each (key, value)
    WHERE k.log_id = p_log AND k.key = each.key AND each.value IS NULL;
    INSERT INTO curp_compat.key AS k
    SELECT p_log, each.key, CASE substr(p_stamps, each.n::int, 1)
        WHEN 'f' THEN curp_compat.stamp_1(each.value, p_first)
        WHEN 'l' THEN curp_compat.stamp_1(each.value, p_last) ELSE each.value END,
        now_s + each.term_s, each.term_s
    FROM unnest(p_keys, p_values, p_terms) WITH ORDINALITY AS each (key, value, term_s, n)
    WHERE each.value IS NOT NULL
    ON CONFLICT (log_id, key) DO UPDATE
    SET value = excluded.value, ends = excluded.ends, term_s = excluded.term_s;
END $$;

-- One step. `found`: what the conditions' keys hold, where one of them refused it, else null.
-- p_numbers: of which entry, from 1 on, each of p_tagged is a tag.
CREATE OR REPLACE FUNCTION curp_compat.commit_1(
    p_incarnation text, p_seen int8, p_asked bytea[], p_expected bytea[], p_keys bytea[],
    p_values bytea[], p_stamps text, p_at_us int8, p_tags bytea[], p_checksums int8[],
    p_bodies bytea[], p_tagged bytea[], p_numbers int8[], p_channel text,
    p_terms float8[] DEFAULT '{}'
) RETURNS TABLE (first int8, last int8, steps int8, copied boolean, found bytea[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head curp_compat.log := curp_compat.lock_1(p_incarnation, p_seen);
    held bytea[];
    count int8 := cardinality(p_bodies);
    low int8 := head.tail + 1;
    high int8 := head.tail + cardinality(p_bodies);
BEGIN
    IF cardinality(p_asked) > 0 THEN
        SELECT array_agg(k.value ORDER BY each.n) INTO held
        FROM unnest(p_asked) WITH ORDINALITY AS each (key, n)
        LEFT JOIN curp_compat.key k ON k.log_id = head.log_id AND k.key = each.key
            AND (k.ends IS NULL OR k.ends > curp_compat.now_1());
        IF held IS DISTINCT FROM p_expected THEN
            -- A write of its own: its commit waits for what the one before may not have
            -- waited for, since the refused one is told what that wrote.
            UPDATE curp_compat.log l SET steps = l.steps + 1 WHERE l.log_id = head.log_id;
            RETURN QUERY SELECT 0::int8, 0::int8, head.steps + 1, curp_compat.copied_1(), held;
            RETURN;
        END IF;
    END IF;
    IF count = 0 THEN low := head.tail; END IF;
    IF cardinality(p_keys) > 0 THEN
        PERFORM curp_compat.put_1(head.log_id, p_keys, p_values, p_stamps, low, high, p_terms);
    END IF;
    IF count > 0 THEN
        head.at_us := greatest(head.at_us, p_at_us);
        INSERT INTO curp_compat.entry
        SELECT head.log_id, head.tail + each.n, head.at_us, each.tags, each.checksum, each.body
        FROM unnest(p_tags, p_checksums, p_bodies) WITH ORDINALITY
            AS each (tags, checksum, body, n);
        INSERT INTO curp_compat.tag
        SELECT head.log_id, each.tag, head.tail + each.n
        FROM unnest(p_tagged, p_numbers) AS each (tag, n);
        PERFORM pg_notify(p_channel, '');
    END IF;
    UPDATE curp_compat.log l SET tail = high, at_us = head.at_us, steps = l.steps + 1,
        copied = curp_compat.copied_1()
    WHERE l.log_id = head.log_id;
    RETURN QUERY SELECT low, high, head.steps + 1, curp_compat.copied_1(), NULL::bytea[];
END $$;

-- Remove the rows up to an LSN, with the tags that its caller found there.
CREATE OR REPLACE FUNCTION curp_compat.remove_1(
    p_incarnation text, p_seen int8, p_through int8, p_tagged bytea[], p_lsns int8[]
) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log := curp_compat.lock_1(p_incarnation, p_seen);
BEGIN
    DELETE FROM curp_compat.tag t USING unnest(p_tagged, p_lsns) AS each (tag, lsn)
    WHERE t.log_id = head.log_id AND t.tag = each.tag AND t.lsn = each.lsn;
    DELETE FROM curp_compat.entry e WHERE e.log_id = head.log_id AND e.lsn <= p_through;
    UPDATE curp_compat.log l SET removed = greatest(l.removed, p_through), steps = l.steps + 1,
        copied = curp_compat.copied_1()
    WHERE l.log_id = head.log_id;
    RETURN head.steps + 1;
END $$;

-- Go on from what is there, as another incarnation: processes that know more stay away.
CREATE OR REPLACE FUNCTION curp_compat.accept_loss_1(
    p_name text, p_incarnation text, p_keys bytea[], p_values bytea[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log;
BEGIN
    SELECT * INTO head FROM curp_compat.log WHERE name = p_name FOR UPDATE;
    IF NOT FOUND OR head.stopped = '' THEN RETURN ''; END IF;
    PERFORM curp_compat.put_1(head.log_id, p_keys, p_values, '', 0, 0);
    UPDATE curp_compat.log SET stopped = '', history = curp_compat.history_1(),
        copied = curp_compat.copied_1(), incarnation = p_incarnation, steps = head.steps + 1
    WHERE log_id = head.log_id;
    RETURN head.stopped;
END $$;
-- Appends in transactions of applications, in the log's own database (DESIGN-LOG §12).

-- Whether an append may travel with this transaction: '' if so, else why not. p_name: what
-- append_in_1 is told at the transaction's end; a rollback to a savepoint forgets it.
CREATE OR REPLACE FUNCTION curp_compat.join_1(p_incarnation text, p_history text, p_name text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    here text := split_part(curp_compat.history_1(), '/', 1);
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN RETURN 'isolation'; END IF;
    IF current_setting('transaction_read_only') = 'on' THEN RETURN 'read only'; END IF;
    IF NOT EXISTS (SELECT FROM curp_compat.log WHERE incarnation = p_incarnation)
        OR (here <> '' AND p_history <> '' AND here <> split_part(p_history, '/', 1)) THEN
        RETURN 'other';
    END IF;
    PERFORM set_config('sharedlog.joined',
        coalesce(current_setting('sharedlog.joined', true), '') || p_name || ',', true);
    RETURN '';
END $$;

-- Go on with a CRC-32 over bytes.
CREATE OR REPLACE FUNCTION curp_compat.crc_1(p_crc int8, p_bytes bytea) RETURNS int8
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    -- Of half a byte each.
    steps CONSTANT int8[] := '{0, 498536548, 997073096, 651767980, 1994146192, 1802195444,
        1303535960, 1342533948, 3988292384, 4027552580, 3604390888, 3412177804, 2607071920,
        2262029012, 2685067896, 3183342108}';
    crc int8 := p_crc # 4294967295;
BEGIN
    FOR at IN 0 .. length(p_bytes) - 1 LOOP
        crc := crc # get_byte(p_bytes, at);
        crc := (crc >> 4) # steps[(crc & 15) + 1];
        crc := (crc >> 4) # steps[(crc & 15) + 1];
    END LOOP;
    RETURN crc # 4294967295;
END $$;

-- Append as the next of all such transactions. The log's row is locked from here on, so this is
-- their last statement. p_name: of join_1. p_keys, p_values: what the log's rules ask of it
-- (its incarnation, a fence). p_key: has the highest seq, which each body gets as its last
-- field; p_key_crc: by which the checksum of that key begins. p_checksums: of the bodies without
-- the seq. p_hang_ms: a session whose client says nothing for so long meanwhile is ended; 0 if the
-- commit follows in the same message.
CREATE OR REPLACE FUNCTION curp_compat.append_in_1(
    p_incarnation text, p_history text, p_seen int8, p_name text, p_hang_ms int8,
    p_keys bytea[], p_values bytea[], p_key bytea, p_key_crc int8, p_content bytea, p_at_us int8,
    p_tags bytea[], p_checksums int8[], p_bodies bytea[], p_tagged bytea[], p_numbers int8[],
    p_channel text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head curp_compat.log;
    why text;
    seq int8;
    rest int8;
    field bytea := '\x30';
    kept bytea;
    held bytea[];
    hang interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
    IF p_name <> '' AND position(
        p_name || ',' IN coalesce(current_setting('sharedlog.joined', true), '')) = 0 THEN
        RETURN;
    END IF;
    IF p_name = '' THEN
        why := curp_compat.join_1(p_incarnation, p_history, '');
        IF why <> '' THEN PERFORM curp_compat.refuse_1(why, NULL); END IF;
    END IF;
    IF p_hang_ms > 0 AND (hang = interval '0' OR hang > p_hang_ms * interval '1 ms') THEN
        PERFORM set_config('idle_in_transaction_session_timeout', p_hang_ms::text, true);
    END IF;
    head := curp_compat.lock_1(p_incarnation, p_seen);
    IF p_hang_ms > 0 THEN
        -- Who raises a fence finds by it who hangs.
        PERFORM pg_advisory_xact_lock_shared(hashtext('sharedlog curp_compat'), head.log_id::int);
    END IF;
    -- Its checksum, the seq, a content, an LSN.
    SELECT k.value INTO kept FROM curp_compat.key k WHERE k.log_id = head.log_id AND k.key = p_key;
    IF length(kept) <> 40 OR curp_compat.int8_1(substr(kept, 1, 8))::numeric
        <> curp_compat.crc_1(p_key_crc, substr(kept, 9, 24)) + curp_compat.int8_1(substr(kept, 33))::numeric
    THEN
        PERFORM curp_compat.refuse_1('damaged', head, convert_from(p_key, 'UTF8'));
    END IF;
    seq := coalesce(curp_compat.int8_1(substr(kept, 9, 8)), 0) + 1;
    rest := seq;
    WHILE rest > 127 LOOP
        field := field || set_byte('\x00', 0, ((rest & 127) | 128)::int);
        rest := rest >> 7;
    END LOOP;
    field := field || set_byte('\x00', 0, rest::int);
    FOR n IN 1 .. cardinality(p_bodies) LOOP
        p_bodies[n] := p_bodies[n] || field;
        p_checksums[n] := curp_compat.crc_1(p_checksums[n], field);
    END LOOP;
    kept := int8send(seq) || p_content;
    kept := int8send(curp_compat.crc_1(p_key_crc, kept)) || kept;
    SELECT done.found INTO held FROM curp_compat.commit_1(
        p_incarnation, p_seen, p_keys, p_values, ARRAY[p_key], ARRAY[kept], 'l', p_at_us,
        p_tags, p_checksums, p_bodies, p_tagged, p_numbers, p_channel) AS done;
    IF held IS NOT NULL THEN
        -- Its writer is undone, as all of this.
        PERFORM curp_compat.refuse_1('found', head, array_to_string(
            ARRAY(SELECT encode(each, 'hex') FROM unnest(held) AS each), ',', '-'));
    END IF;
END $$;

DELETE FROM curp_compat.entry;
INSERT INTO curp_compat.entry (log_id, lsn, at_us, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '3', '0', E'\\x74', '1353762105', E'\\x000102030405060708090a0b0c0d0e0f00020000000033');
INSERT INTO curp_compat.entry (log_id, lsn, at_us, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '4', '0', E'\\x74', '1212162612', E'\\x000102030405060708090a0b0c0d0e0f00010000000034');
INSERT INTO curp_compat.entry (log_id, lsn, at_us, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '5', '0', E'\\x74', '4095459591', E'\\x000102030405060708090a0b0c0d0e0f00000000000035');
INSERT INTO curp_compat.entry (log_id, lsn, at_us, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '6', '0', E'\\xc3bc0a74', '894942783', E'\\x101112131415161718191a1b1c1d1e1f000100000000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff');
INSERT INTO curp_compat.entry (log_id, lsn, at_us, tags, checksum, body) OVERRIDING SYSTEM VALUE
VALUES ('1', '7', '0', E'\\x', '1994846237', E'\\x101112131415161718191a1b1c1d1e1f000000000000');
DELETE FROM curp_compat.key;
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x6d657461646174612f637572702d73746f7265', E'\\x4bb1cca62ca7d9bb4bb1cca5b3d2a0f1', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x636f6e66696775726174696f6e', E'\\x00000000b30ff53d0000000000000001', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x6c6561646572', E'\\x2e302e31a57ffbd67b227265706c696361223a20227231222c202261646472657373223a20223132372e302e302e313a31227d', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x6d657461646174612f6b', E'\\x00000000606eede37600', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x7461696c', E'\\x00000000aac8e0fd101112131415161718191a1b1c1d1e1f0000000000000007', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x7069656365732f31336337373764656561633934656664323962346231306134623236666230612f3030303030303030', E'\\x0000000047d1f262016f6e65', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x7069656365732f31336337373764656561633934656664323962346231306134623236666230612f3030303030303031', E'\\x00000000c803c79e01', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x7069656365732f31336337373764656561633934656664323962346231306134623236666230612f3030303030303032', E'\\x776f7477891d70a10174776f74776f74776f74776f74776f74776f74776f74776f74776f74776f', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x736e617073686f74', E'\\x63657322d71fe4707b226964223a20223133633737376465656163393465666432396234623130613462323666623061222c20226c736e223a20332c2022706965636573223a20337d', NULL, NULL);
INSERT INTO curp_compat.key (log_id, key, value, ends, term_s) OVERRIDING SYSTEM VALUE
VALUES ('1', E'\\x7472696d6d6564', E'\\x000000009b6f14f40000000000000002', NULL, NULL);
DELETE FROM curp_compat.log;
INSERT INTO curp_compat.log (log_id, name, incarnation, tail, removed, at_us, steps, history, copied, stopped) OVERRIDING SYSTEM VALUE
VALUES ('1', 'bank', '0998c130d6cb4e4aae63f76595086906', '7', '2', '0', '11', '7713363891595679689/1', 'false', '');
DELETE FROM curp_compat.meta;
INSERT INTO curp_compat.meta (name, value) OVERRIDING SYSTEM VALUE
VALUES ('format', '1');
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
