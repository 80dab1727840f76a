-- A feed may have a database of its own. Sessions, fences, grants and prohibitions of a feed live where its rows do; manifests are
-- issued, and the secrets of authenticated sessions drawn, in the provider's main database.

-- The main database of the provider that this one belongs to: its own database_id, or another's; null until a provider used it.
alter table deployment add column main_id bytea check (octet_length(main_id) = 4);

-- In the main database: where each feed, and each service with every fence of its Opens, lives for its life.
create table home (
    kind        text  not null check (kind in ('feed', 'service')),
    name        text  not null,
    database_id bytea not null check (octet_length(database_id) = 4),
    primary key (kind, name)
);
insert into home (kind, name, database_id)
select 'feed', f.name, d.database_id from feed f cross join deployment d;
insert into home (kind, name, database_id)
select distinct 'service', l.service, d.database_id from lookup_ledger l cross join deployment d;
