// Package fleet shows what several overlayd on one database promise together, and what one of them costs. It holds tests only:
// they run the real program as processes, behind a balancer that knows nothing of it.
//
//	writers ---- operator API ----> balancer ----> overlayd 1 --.
//	followers -- BRC-193 ---------> balancer ----> overlayd 2 ---+----> Postgres
//	             of package client  round robin    overlayd 3 --'
//
// The balancer takes connections in turn to the nodes, goes on to the next one when a connection is refused, and remembers
// nothing. Each scenario runs small in the ordinary suite and large by its target:
//
//	make fleet   nodes are killed in turn under writers and followers: what followers hold at the end is judged
//	make herd    the only node is killed under followers and started again: what their return costs
//	make idle    signed long polls that nothing happens to: what each costs to keep, and to renew
//	make memory  sessions that scan a million rows, and readers that take a byte a second: what the node's memory grows by
//
// What they print are figures, and no bounds of the tests: what is wrong on any machine fails, what is slow is read.
//
// # Invariants
//
//	N1  A group that was committed through one node wakes the polls of the others that match it, with notifications and
//	    without. One Open sent to several nodes at once is one session with one body.
//	N2  A session that one node ends, for its client or for the operator, gets nothing more from a poll that sleeps on another,
//	    which ends then, or without notifications at its deadline; and a row that one node prohibits is served by none.
//	N3  A node that is killed costs its followers a retry: no generation ends, and in what they hold every group is there once,
//	    in order, as its writer meant it.
//	N4  Nodes are replaced one by one by nodes with another manifest: sessions and polls live through it, Opens do before,
//	    during and after. One that takes the manifest of one node to another is made again until they agree.
//	N5  A database that goes away and comes back costs a retry as well.
//	N6  The balancer and the judge see what they are for.
//	N7  A poll that waits is kept by its node without asking the database for it.
//	N8  What a node holds in memory grows neither with the rows that sessions scan nor with the answers that peers do not take,
//	    and those who write are not held up by them.
//
// # Ownership and failure
//
// A test owns its nodes, its balancers and what follows through them; all have ended when it has. A failed test shows what its
// nodes logged.
//
// # Non-goals
//
// TLS and HTTP at a proxy (internal/e2e has nginx), a database that lost something (internal/failover), crashes at chosen
// moments (internal/crash).
package fleet
