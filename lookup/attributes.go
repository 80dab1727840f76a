package lookup

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/livefeed"
)

// AttributesRulesID names the rules that select rows by equality of declared attributes.
const AttributesRulesID = "urn:overlayd:rules:attributes:1"

const (
	maxDeclaredAttributes = 16
	maxMatchedAttributes  = 8
	maxAttributeBytes     = 256
)

// AttributesRules is the contract behind AttributesRulesID.
//
// Parameters are exactly {"attributes":[name, ...]}: 1 to 16 distinct names. A query is exactly {} (every row) or
// {"match":{name:value, ...}} with 1 to 8 of the declared names, all of which must hold; a name holds when any of the row's
// values for it equals the asked one, byte for byte.
type AttributesRules struct{}

// ID implements Rules.
func (AttributesRules) ID() string { return AttributesRulesID }

// Contract implements Rules.
func (AttributesRules) Contract(parameters json.RawMessage) (Contract, error) {
	v, err := canon.Parse(parameters, canon.Limits{})
	if err != nil {
		return nil, fmt.Errorf("parameters of %s: %w", AttributesRulesID, err)
	}
	names, ok := v.Get("attributes")
	if v.Kind() != canon.Object || !ok || len(v.Members()) != 1 || names.Kind() != canon.Array {
		return nil, fmt.Errorf(`parameters of %s must be exactly {"attributes": [names]}`, AttributesRulesID)
	}
	list := names.Elements()
	if len(list) < 1 || len(list) > maxDeclaredAttributes {
		return nil, fmt.Errorf("%s takes 1 to %d attribute names, not %d", AttributesRulesID, maxDeclaredAttributes, len(list))
	}
	declared := make(map[string]bool, len(list))
	for _, name := range list {
		if name.Kind() != canon.String || canon.CheckString(name.Str(), maxAttributeBytes) != nil {
			return nil, fmt.Errorf("%s: an attribute name is a string of 1 to %d bytes", AttributesRulesID, maxAttributeBytes)
		}
		if declared[name.Str()] {
			return nil, fmt.Errorf("%s: attribute %q is named twice", AttributesRulesID, name.Str())
		}
		declared[name.Str()] = true
	}
	return attributesContract{declared}, nil
}

type attributesContract struct{ declared map[string]bool }

// Query implements Contract.
func (c attributesContract) Query(query json.RawMessage) (Query, error) {
	v, err := canon.Parse(query, canon.Limits{})
	if err != nil {
		return nil, err
	}
	if v.Kind() != canon.Object {
		return nil, errors.New("a query is an object")
	}
	if len(v.Members()) == 0 {
		return attributesQuery{}, nil
	}
	match, ok := v.Get("match")
	if !ok || len(v.Members()) != 1 || match.Kind() != canon.Object {
		return nil, errors.New(`a query is exactly {} or {"match": {name: value}}`)
	}
	members := match.Members()
	if len(members) < 1 || len(members) > maxMatchedAttributes {
		return nil, fmt.Errorf("a query matches 1 to %d attributes, not %d", maxMatchedAttributes, len(members))
	}
	wanted := make(map[string]string, len(members))
	for _, m := range members {
		if !c.declared[m.Name] {
			return nil, errors.New("a query may match only the attributes that the service declares")
		}
		if m.Value.Kind() != canon.String || canon.CheckString(m.Value.Str(), maxAttributeBytes) != nil {
			return nil, fmt.Errorf("a matched value is a string of 1 to %d bytes", maxAttributeBytes)
		}
		wanted[m.Name] = m.Value.Str()
	}
	return newAttributesQuery(wanted), nil
}

type attributesQuery struct {
	wanted    map[string]string
	selectors []livefeed.Selector
}

func newAttributesQuery(wanted map[string]string) attributesQuery {
	q := attributesQuery{wanted: wanted}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		q.selectors = append(q.selectors, livefeed.AttributeSelector(name, wanted[name]))
	}
	return q
}

// Selectors implements Query.
func (q attributesQuery) Selectors() []livefeed.Selector { return q.selectors }

// Match implements Query.
func (q attributesQuery) Match(state *livefeed.State) bool {
	held := 0
	for i := range state.Attributes {
		want, asked := q.wanted[state.Attributes[i].Name]
		if asked && slices.Contains(state.Attributes[i].Values, want) {
			held++
		}
	}
	return held == len(q.wanted)
}
