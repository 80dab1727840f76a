-- Keys and values of the engine, in the order of the keys. A row is kept small,
-- since rows of such a tree stand in its inner pages too: a long value is in bulk,
-- and the row has its number.
CREATE TABLE kv (
    k    BLOB PRIMARY KEY,
    v    BLOB,
    bulk INTEGER,
    CHECK ((v IS NULL) <> (bulk IS NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE bulk (
    id INTEGER PRIMARY KEY,
    v  BLOB NOT NULL
) STRICT;

CREATE TRIGGER kv_replaced AFTER UPDATE ON kv WHEN old.bulk IS NOT NULL
BEGIN DELETE FROM bulk WHERE id = old.bulk; END;

CREATE TRIGGER kv_deleted AFTER DELETE ON kv WHEN old.bulk IS NOT NULL
BEGIN DELETE FROM bulk WHERE id = old.bulk; END;

-- What NewOutputs keeps: the outputs that some source lists, for other programs'
-- queries. The txid is in display order.
CREATE TABLE overlay_outputs (
    txid           BLOB NOT NULL,
    output_index   INTEGER NOT NULL,
    state          TEXT NOT NULL,
    spender        BLOB,               -- of a spent output; of a pending one who would spend it
    sources        TEXT NOT NULL,      -- JSON array of source numbers
    since_revision INTEGER NOT NULL,   -- accepted revision of the last change
    PRIMARY KEY (txid, output_index)
) STRICT, WITHOUT ROWID;

CREATE INDEX overlay_outputs_state ON overlay_outputs (state, txid, output_index);
