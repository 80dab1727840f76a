-- Who hears of commits. To tell of one wakes a server process and the node behind it for every listener, that of the node that commits
-- included, which knows of it already: so a commit is told only if somebody else listens.
--
-- A row is written after the LISTEN. One that a node left behind costs notifications that nobody hears, until another node sees that its
-- server process is gone.
create table feed_listener (
    node  text        primary key,      -- random, of one run of one process
    pid   int         not null,         -- of the server process that listens
    since timestamptz                   -- when that began; null where this may not be seen
);
