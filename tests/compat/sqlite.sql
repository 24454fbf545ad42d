BEGIN TRANSACTION;
CREATE TABLE rifl_call (
    client_id INTEGER NOT NULL,
    identity NOT NULL,
    fingerprint BLOB,
    method TEXT NOT NULL,
    until_s REAL,
    record BLOB,
    changed_at_unix_s INTEGER NOT NULL,
    commit_number INTEGER NOT NULL,
    PRIMARY KEY (client_id, identity)
) WITHOUT ROWID;
INSERT INTO "rifl_call" VALUES(1,4,X'2670F0C1755474445B10181ED9965951','/bank.Bank/Deposit',NULL,NULL,1795971385,15);
INSERT INTO "rifl_call" VALUES(1,6,X'2670F0C1755474445B10181ED9965951','/bank.Bank/Deposit',NULL,X'1A070A0568656C6C6F220C0A07782D66697273741201312A100A0A782D6C6173742D62696E120200FF30014001',1795971385,17);
INSERT INTO "rifl_call" VALUES(1,7,X'2670F0C1755474445B10181ED9965951','/bank.Bank/Deposit',NULL,X'080912106E6F7420656E6F756768206D6F6E65793001',1795971385,18);
INSERT INTO "rifl_call" VALUES(1025,X'6F726465722D3137',X'2670F0C1755474445B10181ED9965951','/bank.Bank/Deposit',NULL,X'1A070A0568656C6C6F220C0A07782D66697273741201312A100A0A782D6C6173742D62696E120200FF30014001',1795971385,20);
CREATE TABLE rifl_client (
    client_id INTEGER PRIMARY KEY,
    first_incomplete INTEGER NOT NULL,
    completed BLOB NOT NULL,
    registered_at_unix_s INTEGER NOT NULL
);
INSERT INTO "rifl_client" VALUES(1,4,X'05000000000000000500000000000000',1795971385);
INSERT INTO "rifl_client" VALUES(1025,1,X'',1795971385);
CREATE TABLE rifl_file (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, number INTEGER NOT NULL);
INSERT INTO "rifl_file" VALUES(1,'7680b7beeddaad74238ba8c1202ade1d',2);
CREATE TABLE rifl_keys (
    client_id INTEGER PRIMARY KEY,
    keys INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    commit_number INTEGER NOT NULL
);
INSERT INTO "rifl_keys" VALUES(1025,1,53,20);
CREATE TABLE rifl_lease (client_id INTEGER PRIMARY KEY, holder BLOB NOT NULL);
INSERT INTO "rifl_lease" VALUES(1,X'31302E302E302E37');
CREATE TABLE rifl_meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
INSERT INTO "rifl_meta" VALUES('closed',1);
INSERT INTO "rifl_meta" VALUES('commits',22);
INSERT INTO "rifl_meta" VALUES('incarnation',1);
INSERT INTO "rifl_meta" VALUES('lived_s',1795971384);
INSERT INTO "rifl_meta" VALUES('next_client_id',1026);
INSERT INTO "rifl_meta" VALUES('opening',425296988216925512);
INSERT INTO "rifl_meta" VALUES('probes',0);
INSERT INTO "rifl_meta" VALUES('schema_version',1);
INSERT INTO "rifl_meta" VALUES('store_id','f4a396174827d21f115a2a23a3dab77d');
CREATE TABLE rifl_row (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    commit_number INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE rifl_secret (key_id INTEGER PRIMARY KEY, value BLOB NOT NULL);
INSERT INTO "rifl_secret" VALUES(0,X'57B3B7AF4039D4FC153997E1F396B68B14E6543029289F1CCA86C6E5F4B4399F');
CREATE TABLE rifl_session (
    client_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    peer BLOB NOT NULL,
    state TEXT NOT NULL,
    retention_s REAL NOT NULL,
    changed_at_unix_s REAL NOT NULL,
    secret BLOB NOT NULL,
    source TEXT NOT NULL,
    writer BLOB NOT NULL,
    UNIQUE (peer, name)
);
INSERT INTO "rifl_session" VALUES(1025,'orders',X'','open',3153600000.0,1700000000.0,X'','',X'');
CREATE TABLE rifl_unknown (
    client_id INTEGER NOT NULL,
    identity NOT NULL,
    method TEXT NOT NULL,
    since_unix_s INTEGER NOT NULL,
    note TEXT,
    PRIMARY KEY (client_id, identity)
) WITHOUT ROWID;
CREATE INDEX rifl_until ON rifl_call (until_s) WHERE until_s IS NOT NULL;
CREATE TRIGGER rifl_key_added AFTER INSERT ON rifl_call
WHEN typeof(NEW.identity)='blob' AND NEW.record IS NOT NULL
BEGIN
    INSERT INTO rifl_keys
    VALUES (NEW.client_id, 1, length(NEW.identity) + length(NEW.record), NEW.commit_number)
    ON CONFLICT DO UPDATE SET
        keys=keys + 1,
        bytes=bytes + excluded.bytes,
        commit_number=max(commit_number, excluded.commit_number);
END;
CREATE TRIGGER rifl_key_recorded AFTER UPDATE OF record ON rifl_call
WHEN typeof(NEW.identity)='blob'
BEGIN
    INSERT INTO rifl_keys VALUES (
        NEW.client_id,
        OLD.record IS NULL,
        CASE WHEN OLD.record IS NULL THEN length(NEW.identity) ELSE -length(OLD.record) END
            + length(NEW.record),
        NEW.commit_number
    ) ON CONFLICT DO UPDATE SET
        keys=keys + excluded.keys,
        bytes=bytes + excluded.bytes,
        commit_number=max(commit_number, excluded.commit_number);
END;
CREATE TRIGGER rifl_key_deleted AFTER DELETE ON rifl_call
WHEN typeof(OLD.identity)='blob' AND OLD.record IS NOT NULL
BEGIN
    UPDATE rifl_keys SET keys=keys - 1, bytes=bytes - length(OLD.identity) - length(OLD.record)
    WHERE client_id=OLD.client_id;
    DELETE FROM rifl_keys WHERE client_id=OLD.client_id AND keys < 1;
END;
COMMIT;
