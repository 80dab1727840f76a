create table overlay_knowledge_schema (
    version integer not null
);

-- Whose knowledge it is. The row's lock is what makes writers take turns.
create table overlay_knowledge_partition (
    id          integer generated always as identity primary key,
    application text not null,
    account     text not null,
    access      text not null,
    unique (application, account, access)
);

-- Keys and values of the engine. They are its own and mean nothing to SQL.
create table overlay_knowledge (
    part integer not null,
    k    bytea not null,
    v    bytea not null,
    primary key (part, k)
);

-- Transactions and BEEF do not compress.
alter table overlay_knowledge alter column v set storage external;
-- Few rows of a large table change often: the share of dead ones that is worth a
-- vacuum is small.
alter table overlay_knowledge set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- What NewOutputs keeps: the outputs that some source lists, for other programs'
-- queries. The txid is in display order.
create table overlay_outputs (
    part           integer not null,
    txid           bytea not null,
    output_index   bigint not null,
    state          text not null,
    spender        bytea,             -- of a spent output; of a pending one who would spend it
    sources        bigint[] not null, -- numbers of the sources that list it
    since_revision bigint not null,   -- accepted revision of the last change
    primary key (part, txid, output_index)
);

create index overlay_outputs_state on overlay_outputs (part, state, txid, output_index);
