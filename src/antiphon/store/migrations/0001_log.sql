PRAGMA application_id = 1097757808;
PRAGMA user_version = 1;

CREATE TABLE log (
    pos     INTEGER PRIMARY KEY,
    tenant  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    id      TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    body    BLOB    NOT NULL,
    hash    BLOB    NOT NULL,
    at      TEXT    NOT NULL
);
CREATE UNIQUE INDEX log_seq ON log (tenant, channel, seq);
-- Ids come first because new ones sort last: every channel's next entry lands on the same page.
CREATE UNIQUE INDEX log_id ON log (id, channel, tenant);

CREATE TABLE channel (
    tenant       TEXT NOT NULL,
    channel      TEXT NOT NULL,
    type         TEXT NOT NULL,
    status       TEXT NOT NULL,
    close_reason TEXT NOT NULL,
    creator      TEXT NOT NULL,
    participants TEXT NOT NULL,
    due          TEXT NOT NULL,
    held         TEXT NOT NULL,
    PRIMARY KEY (tenant, channel)
) WITHOUT ROWID;
CREATE INDEX channel_status ON channel (tenant, status, channel);
CREATE INDEX channel_due ON channel (tenant, due, channel) WHERE due <> '';
CREATE INDEX channel_held ON channel (tenant, held) WHERE held <> '';

CREATE TABLE member (
    tenant      TEXT    NOT NULL,
    participant TEXT    NOT NULL,
    channel     TEXT    NOT NULL,
    acked       INTEGER NOT NULL,
    done        INTEGER NOT NULL,
    PRIMARY KEY (tenant, participant, channel)
) WITHOUT ROWID;
CREATE INDEX member_open ON member (tenant, participant, channel, acked) WHERE done = 0;

CREATE TABLE snapshot (
    tenant  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    version TEXT    NOT NULL,
    blob    BLOB    NOT NULL,
    PRIMARY KEY (tenant, channel)
);

CREATE TABLE lease (
    tenant TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    epoch  INTEGER NOT NULL,
    until  TEXT    NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
