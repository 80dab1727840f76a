-- What ended of a service, and whose access to it, counted up in the transaction that does it, whoever does it and how. While it stands
-- still, each session of the service that was open is open still, and so is the grant that it was opened under: the gate asks for this
-- one number.
alter table lookup_ledger add column endings bigint not null default 0;

-- The ledger's rows are the last that a transaction here touches; whoever ends sessions has them locked already.
create function lookup_session_ended() returns trigger language plpgsql as $$
begin
  update lookup_ledger l set endings = l.endings + 1
  from (select distinct e.feed_id, e.service from ended e where e.state = 1) e
  where l.feed_id = e.feed_id and l.service = e.service;
  return null;
end $$;
create trigger lookup_session_ended after update on lookup_session
  referencing old table as ended for each statement execute function lookup_session_ended();
create trigger lookup_session_removed after delete on lookup_session
  referencing old table as ended for each statement execute function lookup_session_ended();

-- At the commit: sessions are locked before the ledger, and whoever takes a grant away ends sessions after that.
create function service_grant_ended() returns trigger language plpgsql as $$
begin
  update lookup_ledger l set endings = l.endings + 1
  from (select l.feed_id, l.service from lookup_ledger l where l.service = old.service order by l.feed_id for update) k
  where l.feed_id = k.feed_id and l.service = k.service;
  return null;
end $$;
create constraint trigger service_grant_ended after update or delete on service_grant
  deferrable initially deferred for each row execute function service_grant_ended();
