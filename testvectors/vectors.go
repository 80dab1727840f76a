package testvectors

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
)

// FS holds the vectors as files.
//
//go:embed digests/*.json reconcile/*.json
var FS embed.FS

// Case is one file of reconcile.
type Case struct {
	Name  string   `json:"name"`  // of the file, without .json
	About string   `json:"about"` // one sentence
	Rows  []string `json:"rows"`  // of the table of conformance

	// NonFinal is the parameter of the profile.
	NonFinal bool `json:"nonFinal"`
	// ExpectFailure is what the last step must come to: "" when nothing refuses it, or one of invalid, unresolved, limited,
	// equivocation, context-changed.
	ExpectFailure string `json:"expectFailure"`
	// MaxTransactions is the most transactions that evidence may lead to; 0 is the implementation's own bound.
	MaxTransactions int `json:"maxTransactions,omitempty"`

	// Headers are block headers of 80 bytes in hex, each after the one it follows; branches are allowed.
	Headers []string `json:"headers"`
	// Views are tips, by the hash of a header. The case starts in the view base.
	Views map[string]string `json:"views"`
	// Transactions by name.
	Transactions map[string]Transaction `json:"transactions"`
	// Roots are the names of transactions that are trusted by configuration.
	Roots []string `json:"roots"`
	// Evidence by name.
	Evidence map[string]Evidence `json:"evidence"`
	// Watch are the outpoints ("name:index") that current and spent speak of.
	Watch []string `json:"watch,omitempty"`
	Steps []Step   `json:"steps"`
}

// Transaction is one transaction of a case.
type Transaction struct {
	TxID  string `json:"txid"` // display order
	Raw   string `json:"raw"`  // hex
	Valid bool   `json:"valid"`
	Fault string `json:"fault,omitempty"` // why it is not valid: script, values, inputs
}

// Evidence is one BEEF.
type Evidence struct {
	Bytes      string `json:"bytes"` // base64
	WellFormed bool   `json:"wellFormed"`
	// Of what is well formed: whose raw bytes it has, in its order, which it only names, whose Merkle paths lead where.
	Holds    []string `json:"holds,omitempty"`
	TxIDOnly []string `json:"txidOnly,omitempty"`
	Proofs   []Proof  `json:"proofs,omitempty"`
	Subject  string   `json:"subject,omitempty"` // of an Atomic BEEF
}

// Proof is a Merkle path of a transaction.
type Proof struct {
	Transaction string `json:"transaction"`
	Height      uint32 `json:"height"`
	Root        string `json:"root"` // display order; of a header of the case, unless the proof is forged
}

// Step is one event, or a look at the state. Which fields it has follows from Op:
//
//	receive             one group with a spend by each of Names (of a coinbase: with its output 0), from a source of its own;
//	                    the evidence is that of Evidence at the same place, or a BEEF V2 with the one transaction alone
//	verify              the evidence of Names may be checked from now on, and is as soon as it can be; under another view
//	                    (Context), what comes of it must be dropped
//	evidence            one group with one observation: output Index of Target, or that Target spends Spends; checked at once
//	view                the view ID is selected
//	membership          one group of Source, of that Generation, Sequence and ID; a change that is Present has evidence
//	membershipVerified  that group, received with Verified false, may be checked
//	restart             everything is read again from what is durable: nothing may differ
//	expect              the fields of Value, each as it is (README.md)
type Step struct {
	Op         string         `json:"op"`
	Names      []string       `json:"names,omitempty"`
	BEEFs      []string       `json:"beefs,omitempty"`
	Context    string         `json:"context,omitempty"`
	BEEF       string         `json:"beef,omitempty"`
	Target     string         `json:"target,omitempty"`
	Index      *uint32        `json:"index,omitempty"`
	Spends     string         `json:"spends,omitempty"`
	ID         string         `json:"id,omitempty"`
	Source     string         `json:"source,omitempty"`
	Generation uint64         `json:"generation,omitempty"`
	Sequence   uint64         `json:"sequence,omitempty"`
	Phase      string         `json:"phase,omitempty"` // snapshot; live when absent
	Complete   bool           `json:"complete,omitempty"`
	Verified   *bool          `json:"verified,omitempty"`
	Changes    []Change       `json:"changes,omitempty"`
	Value      map[string]any `json:"value,omitempty"`
	// Outcome is what a step other than the last must come to; the last one's is ExpectFailure.
	Outcome string `json:"outcome,omitempty"`
}

// Change is one observation of a membership step.
type Change struct {
	Outpoint string `json:"outpoint"` // "name:index"
	Present  bool   `json:"present"`
	BEEF     string `json:"beef,omitempty"`
}

// Reconcile reads the cases of reconcile, by the names of their files. The first error ends it.
func Reconcile() iter.Seq2[Case, error] {
	return func(yield func(Case, error) bool) {
		files, err := fs.Glob(FS, "reconcile/*.json")
		if err != nil {
			yield(Case{}, err)
			return
		}
		slices.Sort(files)
		for _, file := range files {
			c, err := read(file)
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

func read(file string) (Case, error) {
	data, err := FS.ReadFile(file)
	if err != nil {
		return Case{}, err
	}
	var c Case
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&c); err != nil {
		return Case{}, fmt.Errorf("%s: %w", file, err)
	}
	if c.Name+".json" != path.Base(file) {
		return Case{}, fmt.Errorf("%s holds the case %q", file, c.Name)
	}
	return c, nil
}
