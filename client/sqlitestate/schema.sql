-- One follower's durable record. Sequences, watermarks and times are the bit
-- pattern of a U64: values above 2^63-1 are legal on the wire and show here as
-- negative numbers. Nothing below compares them in SQL.

CREATE TABLE pin (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    network      TEXT NOT NULL,
    genesis_hash TEXT NOT NULL
) STRICT;

CREATE TABLE sources (
    source               INTEGER PRIMARY KEY,
    base                 TEXT NOT NULL,
    service              TEXT NOT NULL,
    query_digest         TEXT NOT NULL,
    query                BLOB NOT NULL,
    principal            TEXT NOT NULL,              -- public key that signs the requests, hex; '' = anonymous
    identity             TEXT NOT NULL DEFAULT '',
    published            INTEGER NOT NULL DEFAULT 0, -- generation whose memberships are the answer; 0 = none yet
    UNIQUE (base, service, query_digest, principal)
) STRICT;

CREATE TABLE manifests (
    digest TEXT PRIMARY KEY,
    packet BLOB NOT NULL
) STRICT;

-- Where ids are unique: one space for each generation's snapshot, one for the
-- live log of each scope.
CREATE TABLE spaces (
    space  INTEGER PRIMARY KEY,
    source INTEGER NOT NULL REFERENCES sources,
    name   TEXT NOT NULL,
    UNIQUE (source, name)
) STRICT;

CREATE TABLE generations (
    source          INTEGER NOT NULL REFERENCES sources,
    generation      INTEGER NOT NULL,
    begun_at        INTEGER NOT NULL,
    request_id      TEXT NOT NULL,
    open            BLOB NOT NULL,
    manifest        TEXT NOT NULL REFERENCES manifests,
    -- the checkpoint; session is NULL until the first batch is recorded
    session         TEXT,
    cursor          TEXT,
    scope           BLOB,
    scope_digest    TEXT,
    phase           TEXT CHECK (phase IN ('snapshot', 'complete', 'live')),
    w               INTEGER,
    through         INTEGER,
    high_water      INTEGER,
    expires_at      INTEGER,
    replay_until    INTEGER,
    pages           INTEGER NOT NULL DEFAULT 0,
    delivered       INTEGER NOT NULL DEFAULT 0,  -- pages the caller has taken
    -- the ending; end_code is NULL while the generation can be continued
    end_code        TEXT,
    end_reason      TEXT,
    ended_at        INTEGER,
    end_delivered   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, generation)
) STRICT, WITHOUT ROWID;

CREATE TABLE pages (
    source     INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    page       INTEGER NOT NULL,          -- 1, 2, ...
    snapshot   INTEGER NOT NULL,
    complete   INTEGER NOT NULL,
    first_live INTEGER NOT NULL,
    through    INTEGER NOT NULL,
    high_water INTEGER NOT NULL,
    replaces   INTEGER NOT NULL DEFAULT 0,
    unseen     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, generation, page),
    FOREIGN KEY (source, generation) REFERENCES generations
) STRICT, WITHOUT ROWID;

-- The retained order of receipt is (generation, page, idx) and then the
-- observation's own idx.
CREATE TABLE receipts (
    receipt    INTEGER PRIMARY KEY,
    source     INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    page       INTEGER NOT NULL,
    idx        INTEGER NOT NULL,
    space      INTEGER NOT NULL REFERENCES spaces,
    id         TEXT NOT NULL,
    sequence   INTEGER NOT NULL,
    UNIQUE (space, id),
    UNIQUE (source, generation, page, idx)
) STRICT;

-- BEEF, once for each content.
CREATE TABLE evidence (
    evidence INTEGER PRIMARY KEY,
    sha256   BLOB NOT NULL UNIQUE,
    beef     BLOB NOT NULL
) STRICT;

-- The canonical bytes of an observation are head || base64(beef) || tail.
CREATE TABLE observations (
    observation INTEGER PRIMARY KEY,
    receipt     INTEGER NOT NULL REFERENCES receipts,
    idx         INTEGER NOT NULL,
    space       INTEGER NOT NULL REFERENCES spaces,
    id          TEXT NOT NULL,
    kind        TEXT NOT NULL,
    head        BLOB NOT NULL,
    evidence    INTEGER REFERENCES evidence,
    tail        BLOB NOT NULL,
    UNIQUE (space, id),
    UNIQUE (receipt, idx)
) STRICT;

-- What the last applicable observation says of an outpoint; absent rows stay
-- until their generation is retired.
CREATE TABLE memberships (
    source       INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    txid         BLOB NOT NULL,
    output_index INTEGER NOT NULL,
    present      INTEGER NOT NULL,
    sequence     INTEGER NOT NULL,
    observation  INTEGER NOT NULL REFERENCES observations,
    PRIMARY KEY (source, generation, txid, output_index)
) STRICT, WITHOUT ROWID;

-- Refused claims, newest kept, bounded for each source.
CREATE TABLE quarantine (
    claim      INTEGER PRIMARY KEY,
    source     INTEGER NOT NULL REFERENCES sources,
    generation INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    code       TEXT NOT NULL,
    reason     TEXT NOT NULL,
    id         TEXT NOT NULL,
    bytes      BLOB NOT NULL
) STRICT;
