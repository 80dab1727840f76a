package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// leaves are the keys that hold one value or a list of texts, with their type:
// what a variable or a flag can set.
func leaves() map[string]reflect.Type {
	out := map[string]reflect.Type{}
	var walk func(prefix string, t reflect.Type)
	walk = func(prefix string, t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			key := prefix + f.Tag.Get("koanf")
			switch {
			case f.Type.Kind() == reflect.Struct:
				walk(key+delim, f.Type)
			case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			default:
				out[key] = f.Type
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
	return out
}

// parseText reads the value of a variable or a flag by the type of its key.
func parseText(key, text string) (any, error) {
	t, ok := leaves()[key]
	if !ok {
		return nil, fmt.Errorf("sets %s, which is not a setting", key)
	}
	switch t.Kind() {
	case reflect.Bool:
		switch text {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
		return nil, fmt.Errorf("is %q: write true or false", text)
	case reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, t.Bits())
		if err != nil {
			return nil, fmt.Errorf("is %q: write a whole number from 0 to %s", text, largest(t))
		}
		return n, nil
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return nil, fmt.Errorf("is %q: write a number", text)
		}
		return n, nil
	case reflect.Slice:
		var list []any
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		return list, nil
	default:
		return text, nil
	}
}

// check compares what a file holds with the tree: names and types, all faults.
func check(path string, raw map[string]any) []error {
	c := checker{file: path}
	c.object("", raw, reflect.TypeFor[Config]())
	return c.faults
}

type checker struct {
	file   string
	faults []error
}

func (c *checker) fault(key, format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf("%s: %s %s", c.file, key, fmt.Sprintf(format, args...)))
}

func (c *checker) object(prefix string, m map[string]any, t reflect.Type) {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		fields[t.Field(i).Tag.Get("koanf")] = t.Field(i).Type
	}
	for _, name := range sortedKeys(m) {
		if prefix+name == identityKey {
			c.fault(identityKey, "does not belong in a file that others may read; set OVERLAYD_IDENTITY_KEY, or name a file of its own in identity.keyFile")
			continue
		}
		ft, ok := fields[name]
		if !ok {
			hint := "remove it or correct its name"
			for known := range fields {
				if strings.EqualFold(known, name) {
					hint = "write " + known
				}
			}
			c.fault(prefix+name, "is not a setting; %s", hint)
			continue
		}
		c.value(prefix+name, m[name], ft)
	}
}

func (c *checker) value(key string, v any, t reflect.Type) {
	if v == nil {
		c.fault(key, "has no value; give it one or remove the line")
		return
	}
	switch t.Kind() {
	case reflect.String:
		if _, ok := v.(string); !ok {
			c.fault(key, "must be text; put it in quotes")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			c.fault(key, "must be true or false")
		}
	case reflect.Uint32, reflect.Uint64:
		if !wholeNumber(v, t) {
			c.fault(key, "must be a whole number from 0 to %s", largest(t))
		}
	case reflect.Float64:
		switch n := v.(type) {
		case int, int64, uint64:
			return
		case float64:
			if !math.IsNaN(n) && !math.IsInf(n, 0) {
				return
			}
		}
		c.fault(key, "must be a number")
	case reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			c.fault(key, "must hold settings of its own, indented below it")
			return
		}
		c.object(key+delim, m, t)
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			c.fault(key, "must be a list")
			return
		}
		for i, e := range list {
			c.value(fmt.Sprintf("%s[%d]", key, i), e, t.Elem())
		}
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			c.fault(key, "must be an object with text keys")
			return
		}
		for _, name := range sortedKeys(m) {
			c.jsonValue(key+delim+name, m[name])
		}
	}
}

// jsonValue checks open data: what JSON can say, and no more.
func (c *checker) jsonValue(key string, v any) {
	switch v := v.(type) {
	case nil, bool, string, int, int64, uint64:
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			c.fault(key, "is not a finite number")
		}
	case []any:
		for i, e := range v {
			c.jsonValue(fmt.Sprintf("%s[%d]", key, i), e)
		}
	case map[string]any:
		for _, name := range sortedKeys(v) {
			c.jsonValue(key+delim+name, v[name])
		}
	default:
		c.fault(key, "is nothing JSON can say; put it in quotes")
	}
}

// wholeNumber reports whether a YAML value is an integer that fits t.
func wholeNumber(v any, t reflect.Type) bool {
	var n uint64
	switch v := v.(type) {
	case int:
		if v < 0 {
			return false
		}
		n = uint64(v)
	case int64:
		if v < 0 {
			return false
		}
		n = uint64(v)
	case uint64:
		n = v
	default:
		return false
	}
	return t.Bits() == 64 || n <= math.MaxUint32
}

// largest is the biggest number of an unsigned type, in digits.
func largest(t reflect.Type) string {
	if t.Bits() == 64 {
		return strconv.FormatUint(math.MaxUint64, 10)
	}
	return strconv.FormatUint(math.MaxUint32, 10)
}

// decimal is a number as people write it.
func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
