package lookup

import (
	"encoding/json"

	"github.com/overlayd/overlayd/livefeed"
)

// Rules is one installed, immutable rules contract: the meaning behind a rules IRI (BRC-194 s6). What an IRI selects, how
// it orders and whom it shows a row to never changes; another meaning needs another IRI.
//
// Rows are ordered by their feed's order key and shown to their readers by the provider; rules decide which rows a query
// selects and name the postings that find them. JSON handed to rules is canonical (RFC 8785) and within the protocol's
// bounds, its objects free of duplicate names.
type Rules interface {
	// ID is the absolute IRI under which services name these rules.
	ID() string
	// Contract checks a service's parameters, once when the provider starts and once for every stored session it reads. An
	// error means that the parameters are not this contract's; its text goes to the operator.
	Contract(parameters json.RawMessage) (Contract, error)
}

// Contract is a rules contract with its parameters fixed. It must be safe for concurrent use.
type Contract interface {
	// Query checks a client's query. Any error refuses the Open as invalid; its text goes to the log, not to the client.
	Query(query json.RawMessage) (Query, error)
}

// Query is one checked query. It must be safe for concurrent use, and a pure function of the state it is shown: snapshot
// pages, live groups and replays all ask it again and must get the same answer.
type Query interface {
	// Selectors are postings that every matching row carries, at most 16. Empty means that any row may match.
	Selectors() []livefeed.Selector
	// Match reports whether a row in this state belongs to the result.
	Match(state *livefeed.State) bool
}
