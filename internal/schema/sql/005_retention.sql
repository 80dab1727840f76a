-- What lets a provider forget what it may and never what it must: epochs that turn, a floor that rises, a ledger of what is retained.

-- Rotations of a feed's epoch. turn counts them; broken is the turn of the last break: whatever was promised at an earlier turn is
-- void. A retired epoch leaves broken where it is, so its sessions live on.
alter table feed
    add column turn   bigint not null default 0,
    add column broken bigint not null default 0;

create table feed_turn (
    feed_id int      not null references feed,
    turn    bigint   not null,
    mode    smallint not null check (mode in (1, 2)),   -- 1 retire, 2 break
    key     bytea    check (length(key) = 16),          -- digest of the operator's key; null: the provider found a rewritten history
    epoch   text     not null,                          -- the one that began
    reason  bytea    not null,
    at      bigint   not null,
    primary key (feed_id, turn),
    unique (feed_id, key)
);

-- Evidence is stored once and collected when nothing refers to it: no row version, and no group of the log. Row versions name theirs;
-- what only the log refers to (a spending transaction, a version that began and ended in one group) is listed here.
create table group_evidence (
    feed_id int    not null,
    seq     bigint not null,
    sha     bytea  not null,
    primary key (feed_id, seq, sha)
);
create index group_evidence_sha on group_evidence (sha);
create index row_version_evidence on row_version (evidence);

-- Evidence that lost a reference, to be looked at by the compactor.
create table blob_idle (sha bytea primary key);

-- Groups up to `untracked` were logged before group_evidence was: while one of them is retained no evidence is collected.
alter table feed_floor add column untracked bigint not null default 0;
update feed_floor fl set untracked = h.head from feed_head h where h.feed_id = fl.feed_id;

-- A hash index costs a look-up the same at any number of fences, which no tree does. A bucket is split before it holds twice its fill:
-- filled to 40 in 100, none outgrows its page.
alter table open_fence drop constraint open_fence_pkey;
alter table open_fence add constraint open_fence_key exclude using hash (key with =) with (fillfactor = 40);

alter table lookup_session
    add column turn     bigint  not null default 0,     -- feed.turn at open
    add column client   bytea   not null default '',    -- 16 bytes: keyed digest of the principal, or of an anonymous caller's address
    add column retained integer not null default 0;     -- bytes that the session keeps: first body, disclosed, request
update lookup_session set retained = octet_length(first_batch) + octet_length(disclosed) + octet_length(request);
create index lookup_session_client on lookup_session (client, service, replay_until) where state = 1;

-- What a service retains, changed by the last statement of every transaction that opens or ends sessions of it, or changes who may
-- read. changes only ever grows: a database in which it is smaller than a node has seen is not the one that node wrote to.
create table lookup_ledger (
    feed_id  int    not null references feed,
    service  text   not null,
    changes  bigint not null default 0,
    sessions bigint not null default 0,     -- stored and open: not closed, reset, revoked or removed
    bytes    bigint not null default 0,     -- what those retain
    primary key (feed_id, service)
) with (fillfactor = 10);
insert into lookup_ledger (feed_id, service, sessions, bytes)
select feed_id, service, count(*), sum(retained) from lookup_session where state = 1 group by feed_id, service;

-- The smallest watermark that is still promised is one step, and so is the session whose records may go next.
drop index lookup_session_horizon;
create index lookup_session_horizon on lookup_session (feed_id, w) where state = 1;
drop index lookup_session_retention;
create index lookup_session_retention on lookup_session (feed_id, replay_until);

-- Manifests are removed when they are long expired and no session names them.
create index lookup_session_capability on lookup_session (capability);
create index manifest_expired on manifest (expires_at);

-- Whom a row's last narrowing left as its readers, kept until no promised session can hold an older version: what such a session would
-- serve again is asked here. seq is the group since which these are its readers.
create table row_audience (
    feed_id  int     not null,
    outpoint bytea   not null check (octet_length(outpoint) = 36),
    seq      bigint  not null,
    readers  bytea[] not null,
    primary key (outpoint, feed_id)
);
create index row_audience_seq on row_audience (feed_id, seq);
