-- Who may read what: grants of listed services, prohibited rows, and the secrets behind BRC-104 sessions.

-- A grant is a new row each time it is given: sessions remember which one they were opened under, so that revoking and granting
-- again revives nothing.
create table service_grant (
    id         bigint generated always as identity primary key,
    service    text   not null,
    identity   bytea  not null check (octet_length(identity) = 33),
    granted_at bigint not null,
    unique (service, identity)
);

-- Rows that are never newly served, from the moment this row is committed. What it does to the feed (a hidden version, a
-- group in the log) is in the same transaction; feed.prohibition_rev counts both ways.
create table prohibition (
    feed_id  int    not null references feed,
    outpoint bytea  not null check (octet_length(outpoint) = 36),
    reason   bytea  not null,
    since    bigint not null,
    primary key (feed_id, outpoint)
);

-- The secrets that seal BRC-104 session nonces, shared by all nodes. A new one is accepted by every node before any seals with it.
create table session_secret (
    id         bigint generated always as identity primary key,
    secret     bytea  not null check (octet_length(secret) = 32),
    created_at bigint not null
);

alter table lookup_session
    add column grant_id  bigint,           -- service_grant.id; null where no grant was needed
    add column disclosed bytea not null default ''; -- the outpoints, 36 bytes each, that first_batch serialises
alter table lookup_session alter column disclosed set storage external;
create index lookup_session_principal on lookup_session (service, principal) where principal is not null;
