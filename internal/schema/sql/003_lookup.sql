-- What the lookup provider keeps beside the feeds: its deployment secrets, the manifests it issued and the sessions it promised.

create table deployment (
    one           boolean primary key default true check (one),
    database_id   bytea not null check (octet_length(database_id) = 4),    -- the clear prefix of every session id born here
    cursor_secret bytea not null check (octet_length(cursor_secret) = 32)  -- authenticates cursors on every node
);

-- Signed capability manifests. One node issues, every node serves the same; old ones stay while a session or an Open may name them.
create table manifest (
    digest     bytea primary key,      -- 32 bytes: digest("capabilities", body)
    content    bytea not null,         -- 32 bytes: SHA-256 of the body without its two times
    issued_at  bigint not null,
    expires_at bigint not null,
    packet     bytea not null          -- canonical {body, signature}
);
alter table manifest alter column packet set storage external;
create index manifest_newest on manifest (content, issued_at desc);

-- One row a session. Everything but state is frozen at open (BRC-193 s8).
create table lookup_session (
    id                 bytea primary key,       -- SHA-256 of the session id; the id itself is a bearer secret
    fence              bytea not null unique,   -- open_fence.key
    ref                uuid not null unique,    -- safe handle for operators
    feed_id            integer not null references feed (id),
    state              smallint not null default 1,   -- 1 open, 2 closed, 3 reset, 4 revoked
    service            text not null,
    principal          bytea,                   -- 33-byte identity key; null for anonymous
    epoch              text not null,
    capability         bytea not null,          -- manifest.digest
    w                  bigint not null,         -- the watermark of the snapshot
    w_tag              bytea not null,          -- the tag of group w
    t                  bigint not null,         -- evaluation time, Unix seconds
    expires_at         bigint not null,
    replay_until       bigint not null,
    max_request_bytes  integer not null,
    max_response_bytes integer not null,
    max_observations   integer not null,
    max_wait_ms        integer not null,
    rules_id           text not null,
    rules_parameters   bytea not null,          -- canonical JSON
    query              bytea not null,          -- canonical JSON
    scope              bytea not null,          -- canonical JSON of the batch scope
    request            bytea not null,          -- canonical JSON of the Open
    first_batch        bytea not null           -- the exact first response body
);
alter table lookup_session alter column first_batch set storage external;
create index lookup_session_horizon on lookup_session (feed_id, w);
create index lookup_session_retention on lookup_session (replay_until);
