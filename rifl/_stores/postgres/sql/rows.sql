-- Read rows; those that are not there are left out.
CREATE OR REPLACE FUNCTION @schema@.rows_1(
    p_store text, p_keys text[], OUT status text, OUT o_keys text[], OUT o_values bytea[]
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT @schema@.same_store_1(p_store) THEN status := 'backwards'; RETURN; END IF;
    SELECT 'rows', array_agg(key), array_agg(value) INTO status, o_keys, o_values
    FROM @schema@.rows WHERE key = ANY (p_keys);
END $$;

-- Move one row, if it is as expected (empty: not there).
CREATE OR REPLACE FUNCTION @schema@.put_row_1(p_key text, p_expected bytea, p_value bytea)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_expected = '' THEN
        INSERT INTO @schema@.rows VALUES (p_key, p_value) ON CONFLICT DO NOTHING;
    ELSE
        UPDATE @schema@.rows SET value = p_value WHERE key = p_key AND value = p_expected;
    END IF;
    RETURN FOUND;
END $$;

-- Move rows, all or none. Their order is that of their keys, so that nobody waits in a ring.
CREATE OR REPLACE FUNCTION @schema@.move_rows_1(
    p_store text, p_keys text[], p_expected bytea[], p_values bytea[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    ignored text;
BEGIN
    IF NOT @schema@.same_store_1(p_store) THEN RETURN 'backwards'; END IF;
    ignored := @schema@.durable_1();
    IF cardinality(p_keys) = 1 THEN
        RETURN CASE WHEN @schema@.put_row_1(p_keys[1], p_expected[1], p_values[1])
            THEN 'moved' ELSE 'stale' END;
    END IF;
    BEGIN
        FOR i IN 1 .. cardinality(p_keys) LOOP
            IF NOT @schema@.put_row_1(p_keys[i], p_expected[i], p_values[i]) THEN
                RAISE EXCEPTION USING ERRCODE = 'RIFL2';
            END IF;
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'RIFL2' THEN
        RETURN 'stale';
    END;
    RETURN 'moved';
END $$;

-- Move one in a handler's own transaction, in the place of a call's record. Anything but 'done'
-- has to roll it back. The key is in UTF-8.
CREATE OR REPLACE FUNCTION @schema@.move_1(
    p_store text, p_key bytea, p_expected bytea, p_value bytea, p_durable boolean
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF NOT @schema@.same_store_1(p_store) THEN RETURN 'wrong'; END IF;
    IF NOT @schema@.put_row_1(convert_from(p_key, 'UTF8'), p_expected, p_value) THEN
        RETURN 'fenced';
    END IF;
    IF p_durable AND current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN 'done';
END $$;

-- The same for one who commits in the same breath, as ``record_or_fail_2``.
CREATE OR REPLACE FUNCTION @schema@.move_or_fail_2(
    p_store text, p_key bytea, p_expected bytea, p_value bytea, p_durable boolean, p_mark text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    result text;
BEGIN
    @owned@
    result := @schema@.move_1(p_store, p_key, p_expected, p_value, p_durable);
    IF result <> 'done' THEN RAISE EXCEPTION USING ERRCODE = 'RIFL1', MESSAGE = result; END IF;
END $$;
