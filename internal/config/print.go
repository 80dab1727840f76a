package config

import (
	"fmt"
	"io"
	"math"
	"net/url"
	"reflect"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// WriteYAML writes what is in force, in the shape of the file and ready to be
// one, each value with its origin as a comment and passwords masked (G3).
func (l *Loaded) WriteYAML(w io.Writer) error {
	root := l.object("", reflect.ValueOf(l.Config))
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	return enc.Close()
}

func (l *Loaded) object(prefix string, v reflect.Value) *yaml.Node {
	node := &yaml.Node{Kind: yaml.MappingNode}
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("koanf")
		key := prefix + name
		if key == identityKey && v.Field(i).IsZero() {
			continue // no file may hold it
		}
		value := l.node(key, v.Field(i))
		head := &yaml.Node{Kind: yaml.ScalarNode, Value: name}
		// A list in block form has no line of its own for a comment: it goes to the key.
		if value.Kind == yaml.SequenceNode && value.Style != yaml.FlowStyle {
			head.LineComment = string(l.Origin(key))
		}
		node.Content = append(node.Content, head, value)
	}
	return node
}

func (l *Loaded) node(key string, v reflect.Value) *yaml.Node {
	switch v.Kind() {
	case reflect.Struct:
		return l.object(key+delim, v)
	case reflect.Slice:
		return l.list(key, v)
	case reflect.Map:
		n := open(v.Interface())
		n.LineComment = string(l.Origin(key))
		return n
	}
	n := scalar(v)
	switch key {
	case databaseURL:
		n.Value = redact(n.Value)
	case identityKey:
		n.Value = mask
	}
	n.LineComment = string(l.Origin(key))
	return n
}

func (l *Loaded) list(key string, v reflect.Value) *yaml.Node {
	node := &yaml.Node{Kind: yaml.SequenceNode}
	if v.Len() == 0 || v.Type().Elem().Kind() == reflect.String {
		node.Style = yaml.FlowStyle
		node.LineComment = string(l.Origin(key))
	}
	for i := range v.Len() {
		if v.Index(i).Kind() == reflect.String {
			node.Content = append(node.Content, scalar(v.Index(i)))
			continue
		}
		// An entry of services or feeds: what the list's layer did not say is a default.
		entry := &Loaded{Config: l.Config, origins: map[string]Origin{}}
		if given, ok := l.entry(key, i); ok {
			entry.mark("", given, l.Origin(key))
		}
		node.Content = append(node.Content, entry.object("", v.Index(i)))
	}
	return node
}

// entry is what the deciding layer wrote for one entry of a list of objects.
func (l *Loaded) entry(key string, i int) (map[string]any, bool) {
	if l.raw == nil {
		return nil, false
	}
	list, ok := l.raw.Get(key).([]any)
	if !ok || i >= len(list) {
		return nil, false
	}
	m, ok := list[i].(map[string]any)
	return m, ok
}

func (l *Loaded) mark(prefix string, given map[string]any, origin Origin) {
	for name, v := range given {
		l.origins[prefix+name] = origin
		if m, ok := v.(map[string]any); ok {
			l.mark(prefix+name+delim, m, origin)
		}
	}
}

func scalar(v reflect.Value) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch v.Kind() {
	case reflect.Bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(v.Bool())
	case reflect.Uint32, reflect.Uint64:
		n.Tag, n.Value = "!!int", strconv.FormatUint(v.Uint(), 10)
	case reflect.Float64:
		n.Tag, n.Value = "!!float", decimal(v.Float())
		if v.Float() == math.Trunc(v.Float()) {
			n.Tag = "!!int"
		}
	default:
		n.Tag, n.Value = "!!str", v.String()
	}
	return n
}

// open renders data of no fixed shape on one line.
func open(v any) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(v); err != nil {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "(" + err.Error() + ")"}
	}
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		n.Style = yaml.FlowStyle
	}
	return n
}

// The keys whose values are secret, or hold a secret.
const (
	databaseURL = "database.url"
	identityKey = "identity.key"
)

// mask stands for what is not printed.
const mask = "xxxxx"

// keywordPassword finds the password of a keyword string (host=... password=...).
var keywordPassword = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)`)

// redact masks the passwords of a database URL or keyword string.
func redact(text string) string {
	if u, err := url.Parse(text); err == nil && u.Scheme != "" {
		if _, has := u.User.Password(); has {
			u.User = url.UserPassword(u.User.Username(), mask)
		}
		text = u.String()
	}
	return keywordPassword.ReplaceAllString(text, "${1}"+mask)
}

// Redacted is a database URL that may be logged.
func Redacted(databaseURL string) string { return redact(databaseURL) }
