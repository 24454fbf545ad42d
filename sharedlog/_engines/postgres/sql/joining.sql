-- Appends in transactions of applications, in the log's own database (DESIGN-LOG §12).

-- Whether an append may travel with this transaction: '' if so, else why not. p_name: what
-- append_in_1 is told at the transaction's end; a rollback to a savepoint forgets it.
CREATE OR REPLACE FUNCTION @schema@.join_1(p_incarnation text, p_history text, p_name text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    here text := split_part(@schema@.history_1(), '/', 1);
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN RETURN 'isolation'; END IF;
    IF current_setting('transaction_read_only') = 'on' THEN RETURN 'read only'; END IF;
    IF NOT EXISTS (SELECT FROM @schema@.log WHERE incarnation = p_incarnation)
        OR (here <> '' AND p_history <> '' AND here <> split_part(p_history, '/', 1)) THEN
        RETURN 'other';
    END IF;
    PERFORM set_config('sharedlog.joined',
        coalesce(current_setting('sharedlog.joined', true), '') || p_name || ',', true);
    RETURN '';
END $$;

-- Go on with a CRC-32 over bytes.
CREATE OR REPLACE FUNCTION @schema@.crc_1(p_crc int8, p_bytes bytea) RETURNS int8
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
CREATE OR REPLACE FUNCTION @schema@.append_in_1(
    p_incarnation text, p_history text, p_seen int8, p_name text, p_hang_ms int8,
    p_keys bytea[], p_values bytea[], p_key bytea, p_key_crc int8, p_content bytea, p_at_us int8,
    p_tags bytea[], p_checksums int8[], p_bodies bytea[], p_tagged bytea[], p_numbers int8[],
    p_channel text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log;
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
        why := @schema@.join_1(p_incarnation, p_history, '');
        IF why <> '' THEN PERFORM @schema@.refuse_1(why, NULL); END IF;
    END IF;
    IF p_hang_ms > 0 AND (hang = interval '0' OR hang > p_hang_ms * interval '1 ms') THEN
        PERFORM set_config('idle_in_transaction_session_timeout', p_hang_ms::text, true);
    END IF;
    head := @schema@.lock_1(p_incarnation, p_seen);
    IF p_hang_ms > 0 THEN
        -- Who raises a fence finds by it who hangs.
        PERFORM pg_advisory_xact_lock_shared(hashtext('sharedlog @schema@'), head.log_id::int);
    END IF;
    -- Its checksum, the seq, a content, an LSN.
    SELECT k.value INTO kept FROM @schema@.key k WHERE k.log_id = head.log_id AND k.key = p_key;
    IF length(kept) <> 40 OR @schema@.int8_1(substr(kept, 1, 8))::numeric
        <> @schema@.crc_1(p_key_crc, substr(kept, 9, 24)) + @schema@.int8_1(substr(kept, 33))::numeric
    THEN
        PERFORM @schema@.refuse_1('damaged', head, convert_from(p_key, 'UTF8'));
    END IF;
    seq := coalesce(@schema@.int8_1(substr(kept, 9, 8)), 0) + 1;
    rest := seq;
    WHILE rest > 127 LOOP
        field := field || set_byte('\x00', 0, ((rest & 127) | 128)::int);
        rest := rest >> 7;
    END LOOP;
    field := field || set_byte('\x00', 0, rest::int);
    FOR n IN 1 .. cardinality(p_bodies) LOOP
        p_bodies[n] := p_bodies[n] || field;
        p_checksums[n] := @schema@.crc_1(p_checksums[n], field);
    END LOOP;
    kept := int8send(seq) || p_content;
    kept := int8send(@schema@.crc_1(p_key_crc, kept)) || kept;
    SELECT done.found INTO held FROM @schema@.commit_1(
        p_incarnation, p_seen, p_keys, p_values, ARRAY[p_key], ARRAY[kept], 'l', p_at_us,
        p_tags, p_checksums, p_bodies, p_tagged, p_numbers, p_channel) AS done;
    IF held IS NOT NULL THEN
        -- Its writer is undone, as all of this.
        PERFORM @schema@.refuse_1('found', head, array_to_string(
            ARRAY(SELECT encode(each, 'hex') FROM unnest(held) AS each), ',', '-'));
    END IF;
END $$;
