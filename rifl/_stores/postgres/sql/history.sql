-- The server that is written, and on which of its histories: a promotion and a recovery to a
-- point in time begin a new one. Empty where the server does not tell.
CREATE OR REPLACE FUNCTION @schema@.history_1() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system()) || '/'
        || ltrim(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), '0');
EXCEPTION WHEN OTHERS THEN
    RETURN '';
END $$;

-- Whether a commit of ours waits until a standby has it.
CREATE OR REPLACE FUNCTION @schema@.copied_1() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT current_setting('synchronous_standby_names') <> ''
        AND (current_setting('synchronous_commit') IN ('on', 'remote_apply')
             OR current_setting('synchronous_commit') = 'off'
                AND current_setting('rifl.durability', true) IS DISTINCT FROM 'warn')
$$;

-- Have everyone refused from now on: without its id the store is nobody's. Also after every
-- restart, until somebody accepts the loss.
CREATE OR REPLACE FUNCTION @schema@.stop_1(p_store text, p_why text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @schema@.durable_1();
    UPDATE @schema@.meta SET name = 'stopped_store' WHERE name = 'store' AND value = p_store;
    IF FOUND THEN
        INSERT INTO @schema@.meta VALUES ('stopped', p_why)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    END IF;
END $$;

-- Serve again from what is there; the store's new id. Processes that know more stay away,
-- since they know the old one. Clients of before are over: what of theirs is gone would run
-- again. Ids that may have been granted and lost are never granted again.
CREATE OR REPLACE FUNCTION @schema@.accept_loss_1(p_who text, p_why text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    fresh text := gen_random_uuid()::text;
BEGIN
    PERFORM @schema@.durable_1();
    LOCK TABLE @schema@.meta IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO @schema@.losses (who, why, stopped, store_before, history_before, history)
    SELECT p_who, p_why,
        coalesce(max(value) FILTER (WHERE name = 'stopped'), ''),
        coalesce(max(value) FILTER (WHERE name IN ('store', 'stopped_store')), ''),
        coalesce(max(value) FILTER (WHERE name = 'history'), ''),
        @schema@.history_1()
    FROM @schema@.meta;
    DELETE FROM @schema@.meta
    WHERE name IN ('store', 'stopped_store', 'stopped', 'history', 'copied');
    INSERT INTO @schema@.meta VALUES ('store', fresh), ('history', @schema@.history_1()),
        ('copied', @schema@.copied_1()::text);
    UPDATE @schema@.meta SET value = (value::int8 + (1::int8 << 53))::text WHERE name = 'ids';
    -- Not while a transaction is open that has judged its client to live.
    PERFORM FROM @schema@.clients WHERE state = 'open' FOR UPDATE;
    UPDATE @schema@.clients SET state = 'over', due = '-infinity' WHERE state = 'open';
    DELETE FROM @schema@.replicas;
    RETURN fresh;
END $$;
