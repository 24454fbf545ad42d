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

-- Append as the next of all such transactions. The log's row is locked from here on, so this is
-- their last statement. p_name: of join_1. p_keys, p_values: what the log's rules ask of it
-- (its incarnation, a fence). p_key: has the highest seq, which each body gets as its last
-- field. p_checksums: of the bodies without it. p_hang_ms: a session whose client says nothing
-- for so long meanwhile is ended; 0 if the commit follows in the same message.
CREATE OR REPLACE FUNCTION @schema@.append_in_1(
    p_incarnation text, p_history text, p_seen int8, p_name text, p_hang_ms int8,
    p_keys bytea[], p_values bytea[], p_key bytea, p_content bytea, p_at_us int8,
    p_tags bytea[], p_checksums int8[], p_bodies bytea[], p_tagged bytea[], p_numbers int8[],
    p_channel text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log;
    why text;
    seq int8;
    rest int8;
    field bytea := '\x30';
    crc int8;
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
    SELECT coalesce(max(('x' || encode(substr(k.value, 1, 8), 'hex'))::bit(64)::int8), 0) + 1
    INTO seq FROM @schema@.key k WHERE k.log_id = head.log_id AND k.key = p_key;
    rest := seq;
    WHILE rest > 127 LOOP
        field := field || set_byte('\x00', 0, ((rest & 127) | 128)::int);
        rest := rest >> 7;
    END LOOP;
    field := field || set_byte('\x00', 0, rest::int);
    FOR n IN 1 .. cardinality(p_bodies) LOOP
        p_bodies[n] := p_bodies[n] || field;
        -- The CRC-32 goes on over the field.
        crc := p_checksums[n] # 4294967295;
        FOR at IN 0 .. length(field) - 1 LOOP
            crc := crc # get_byte(field, at);
            FOR bit IN 1 .. 8 LOOP
                crc := CASE WHEN crc & 1 = 1 THEN (crc >> 1) # 3988292384 ELSE crc >> 1 END;
            END LOOP;
        END LOOP;
        p_checksums[n] := crc # 4294967295;
    END LOOP;
    SELECT done.found INTO held FROM @schema@.commit_1(
        p_incarnation, p_seen, p_keys, p_values, ARRAY[p_key], ARRAY[int8send(seq) || p_content],
        'l', p_at_us, p_tags, p_checksums, p_bodies, p_tagged, p_numbers, p_channel) AS done;
    IF held IS NOT NULL THEN
        -- Its writer is undone, as all of this.
        PERFORM @schema@.refuse_1('found', head, array_to_string(
            ARRAY(SELECT encode(each, 'hex') FROM unnest(held) AS each), ',', '-'));
    END IF;
END $$;
