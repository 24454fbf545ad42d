-- Of a log's row: incarnation, history, copied, stopped.

-- The server that is written, and on which of its histories: a promotion and a recovery to
-- a point in time begin a new one. Empty where the server does not tell.
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
        AND current_setting('synchronous_commit') IN ('on', 'remote_apply')
$$;

-- Why a log that was written on one history may have lost on another what it acknowledged; ''
-- where it has not. p_copied: whether a standby had the last commit.
CREATE OR REPLACE FUNCTION @schema@.breaks_1(p_history text, p_now text, p_copied boolean)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN why = '' THEN ''
        ELSE why || ' (it was ' || p_history || ', and is ' || p_now || ')' END
    FROM (SELECT CASE
        WHEN p_history = '' OR p_now = '' OR p_history = p_now THEN ''
        WHEN split_part(p_history, '/', 1) <> split_part(p_now, '/', 1)
            THEN 'the database server is another one'
        WHEN p_copied THEN ''
        ELSE 'the server was restored, or a standby was promoted that commits did not wait for'
    END AS why) AS judged
$$;

-- Judge the server that is written now: '' to go on, else why the log may have lost what it
-- acknowledged, which stops it for everyone. p_copied: whether a standby had the last that
-- the caller wrote, null if it wrote nothing. p_warn: it goes on in any case.
CREATE OR REPLACE FUNCTION @schema@.continue_1(
    p_incarnation text, p_copied boolean, p_warn boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    head @schema@.log;
    now_on text := @schema@.history_1();
    why text;
BEGIN
    SELECT * INTO head FROM @schema@.log WHERE incarnation = p_incarnation FOR UPDATE;
    IF NOT FOUND OR head.stopped <> '' THEN RETURN coalesce(head.stopped, ''); END IF;
    IF head.history = '' OR now_on = '' OR head.history = now_on THEN RETURN ''; END IF;
    why := @schema@.breaks_1(head.history, now_on, head.copied AND coalesce(p_copied, true));
    IF why <> '' AND NOT p_warn THEN
        UPDATE @schema@.log SET stopped = why WHERE log_id = head.log_id;
    ELSE
        UPDATE @schema@.log SET history = now_on, copied = @schema@.copied_1()
        WHERE log_id = head.log_id;
    END IF;
    RETURN why;
END $$;
