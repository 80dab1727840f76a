-- Every opening this database has ever answered, for ever (BRC-193 s8). Rows are inserted and never changed: whether the
-- session behind a fence is open, closed or expired is told by the session itself, and a fence whose session is gone is expired.

-- One secret per database, never replaced: a second key would make old fences unfindable.
create table fence_key (
    id     smallint primary key,
    secret bytea not null check (octet_length(secret) = 32)
);

create table open_fence (
    key       bytea not null,    -- 16 bytes: keyed digest of (service, principal or anonymous, requestId)
    params    bytea not null,    -- 16 bytes: keyed digest of the canonical Open as it was requested
    selection bytea not null,    -- 8 bytes: keyed digest of the capability digest it was requested under
    key_id    smallint not null,
    primary key (key)
);
