-- livefeed: feeds, their one ordered log each, and the versioned rows the log builds.
--
-- Words: a sequence is a bigint >= 1 without gaps inside a feed. 9223372036854775807 in valid_to means "live". Bytes that come
-- from clients are bytea, never text: U+0000 is a legal character to them and not to Postgres.
--
-- Lock order of everything that writes here: feed_head rows in ascending feed_id, each in a statement of its own, before any
-- other row of that feed. feed_clock is only ever taken last or with SKIP LOCKED.

create table feed (
    id              int         generated always as identity primary key,
    name            text        not null unique,
    network         text        not null,
    genesis         bytea       not null check (length(genesis) = 32),
    epoch           text        not null,
    prohibition_rev bigint      not null default 0,
    created_at      timestamptz not null default clock_timestamp()
);

-- The head row is the feed's order: whoever holds its lock appends. It is rewritten by every commit, so the page is
-- left almost empty and every update stays on it (HOT), without touching an index.
create table feed_head (
    feed_id  int    primary key references feed,
    head     bigint not null default 0,
    tag      bytea  not null check (length(tag) = 8),
    live     bigint not null default 0,     -- rows present
    versions bigint not null default 0      -- row versions written so far
) with (fillfactor = 10);

-- Every timer with a deadline <= evaluated has been logged. Whole Unix seconds, written when the second advances.
create table feed_clock (
    feed_id   int    primary key references feed,
    evaluated bigint not null default 0
) with (fillfactor = 10);

-- Groups with seq <= floor are gone, and so are row versions that ended at or before it. tag is the tag of group `floor`
-- (of a new feed: a random one that its head carries too).
create table feed_floor (
    feed_id int    primary key references feed,
    floor   bigint not null default 0,
    tag     bytea  not null check (length(tag) = 8),
    removed bigint not null default 0       -- row versions compacted away so far
);

-- The smallest maxima under which the feed must stay deliverable. One row per service and pair of maxima.
create table feed_limits (
    feed_id           int    not null references feed,
    service           text   not null,
    max_bytes         bigint not null,
    max_observations  bigint not null,
    envelope_bytes    bigint not null,
    observation_bytes bigint not null,
    until             bigint,               -- Unix second from which it no longer binds; null = while configured
    primary key (feed_id, service, max_bytes, max_observations, envelope_bytes, observation_bytes)
);

-- The tables below grow with every group, so they carry no foreign key to feed: a look-up per row would be paid for nothing,
-- as feeds are never removed.

-- Evidence bytes, once per content. Already dense: neither compressed nor worth trying to.
create table blob (
    sha   bytea primary key check (length(sha) = 32),
    bytes bytea not null
);
alter table blob alter column bytes set storage external;

-- One version of one row. Immutable but for valid_to. A version that begins and ends in one group is only in the log.
--
-- Its indexes begin with different columns where they serve look-ups by key: a statement planned while the table is empty finds
-- all indexes with a matching first column equally cheap, and may take the wrong one for good.
create table row_version (
    ver            bigint   generated always as identity primary key,
    feed_id        int      not null,
    outpoint       bytea    not null,       -- txid in display order, big-endian index: 36 bytes
    order_key      bytea    not null,       -- escaped order bytes, terminator, outpoint: unique among rows, sorts as rules promise
    valid_from     bigint   not null,
    valid_to       bigint   not null default 9223372036854775807,
    expires_at     bigint,                  -- Unix second, null = never
    attributes     bytea    not null,
    selectors      bytea[]  not null,       -- 16 bytes each, for the AND of a query over several values
    context_schema bytea,
    context        bytea,
    evidence       bytea    not null,       -- blob.sha; no foreign key: the compactor owns the order in which both go
    evidence_size  int      not null,
    readers        bytea[],                 -- null = everyone
    hidden         boolean  not null default false,
    check (valid_from < valid_to)
);
create unique index row_version_live on row_version (outpoint, feed_id) where valid_to = 9223372036854775807;
-- All four are key columns and the time predicate has no NULL and no OR: dead versions are then rejected inside the index.
create index row_version_order on row_version (feed_id, order_key, valid_from, valid_to);
create index row_version_due on row_version (feed_id, expires_at, order_key)
    where valid_to = 9223372036854775807 and expires_at is not null;
create index row_version_ended on row_version (feed_id, valid_to) where valid_to < 9223372036854775807;

-- One entry per row version and selector. The whole table is its index.
create table posting (
    feed_id    int    not null,
    selector   bytea  not null,
    order_key  bytea  not null,
    valid_from bigint not null,
    valid_to   bigint not null default 9223372036854775807,
    ver        bigint not null
);
create unique index posting_order on posting (feed_id, selector, order_key, valid_from, valid_to) include (ver);

-- The log. A record is self-contained but for evidence bytes. Encoding: livefeed/record.go.
create table feed_group (
    feed_id      int    not null,
    seq          bigint not null,
    tag          bytea  not null check (length(tag) = 8),
    committed_at bigint not null,
    changes      bytea  not null,
    primary key (feed_id, seq)
);
alter table feed_group alter column changes set storage external;

-- Which groups concern which selector: those of the rows before and after each of the group's edits.
create table group_selector (
    feed_id  int    not null,
    selector bytea  not null,
    seq      bigint not null,
    primary key (feed_id, selector, seq)
);

-- Group keys outlive the log: a group is the same group for ever. 16-byte digests of the key and of the canonical body.
create table group_key (
    feed_id int    not null,
    key     bytea  not null check (length(key) = 16),
    body    bytea  not null check (length(body) = 16),
    seq     bigint not null,
    primary key (feed_id, key)
);
