-- From schema 1 to 2: a source also is whose requests it answers. SQLite cannot
-- change a UNIQUE constraint, so the table is made anew; foreign keys are off
-- meanwhile, and checked before the commit.
CREATE TABLE sources_2 (
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
INSERT INTO sources_2 SELECT source, base, service, query_digest, query, '', identity, published FROM sources;
DROP TABLE sources;
ALTER TABLE sources_2 RENAME TO sources;
