package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
)

const (
	delim     = "."
	envPrefix = "OVERLAYD_"
)

// Input is where settings come from. The zero value gives the defaults.
type Input struct {
	// Command names the command whose own defaults Defaults are, for the printed
	// origin. Defaults are keyed as the file, with dots ("operator.listen"); their
	// values have the types a YAML file would give.
	Command  string
	Defaults map[string]any
	// File is the path of the YAML file; empty means none.
	File string
	// Environ is the environment in os.Environ form.
	Environ []string
	// Foreign are OVERLAYD_ variables that mean something to the command but are
	// no settings of the provider, without the prefix ("CONFIG").
	Foreign []string
	// Flags are the flags that were given, by key.
	Flags map[string]Flag
}

// Flag is a flag somebody gave on the command line.
type Flag struct{ Name, Value string }

// Origin says which layer a value came from, in words: "default", "file
// overlayd.yaml", "environment OVERLAYD_LISTEN", "flag --listen".
type Origin string

// Loaded is a configuration with the origin of every value.
type Loaded struct {
	Config
	origins map[string]Origin
	// set are, per service and per feed, the keys the file gave.
	raw *koanf.Koanf
}

// Origin of a key such as "database.url".
func (l *Loaded) Origin(key string) Origin {
	if o, ok := l.origins[key]; ok {
		return o
	}
	return "default"
}

// Load puts the layers on top of each other. It checks names and types (G1);
// whether the values make sense is Validate's question.
func Load(in Input) (*Loaded, error) {
	k := koanf.New(delim)
	l := &Loaded{origins: map[string]Origin{}, raw: koanf.New(delim)}
	var faults []error

	layer := func(from *koanf.Koanf, origin func(key string) Origin) {
		for _, key := range from.Keys() {
			l.origins[key] = origin(key)
		}
		if err := k.Merge(from); err != nil {
			faults = append(faults, err)
		}
	}

	if err := k.Load(confmap.Provider(defaults(), delim), nil); err != nil {
		return nil, fmt.Errorf("reading the defaults: %w", err)
	}

	own := koanf.New(delim)
	if err := own.Load(confmap.Provider(in.Defaults, delim), nil); err != nil {
		return nil, fmt.Errorf("reading the defaults of %s: %w", in.Command, err)
	}
	layer(own, func(string) Origin { return Origin("default of " + in.Command) })

	if in.File != "" {
		if err := l.raw.Load(file.Provider(in.File), yaml.Parser()); err != nil {
			return nil, fileError(in.File, err)
		}
		if errs := check(in.File, l.raw.Raw()); len(errs) > 0 {
			return nil, errors.Join(errs...)
		}
		layer(l.raw, func(string) Origin { return Origin("file " + in.File) })
	}

	vars, names, errs := environment(in)
	faults = append(faults, errs...)
	layer(vars, func(key string) Origin { return Origin("environment " + names[key]) })

	flags := koanf.New(delim)
	for _, key := range sortedKeys(in.Flags) {
		f := in.Flags[key]
		v, err := parseText(key, f.Value)
		if err != nil {
			faults = append(faults, fmt.Errorf("--%s %w", f.Name, err))
			continue
		}
		if err := flags.Set(key, v); err != nil {
			faults = append(faults, err)
		}
	}
	layer(flags, func(key string) Origin { return Origin("flag --" + in.Flags[key].Name) })

	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if err := fillServices(k); err != nil {
		return nil, err
	}
	if err := k.Unmarshal("", &l.Config); err != nil {
		return nil, fmt.Errorf("the configuration cannot be read: %w", err)
	}
	return l, nil
}

// environment turns OVERLAYD_* into a layer; names gives the variable of a key.
func environment(in Input) (layer *koanf.Koanf, names map[string]string, faults []error) {
	names = map[string]string{}
	keys := map[string]string{} // variable without prefix -> key
	for key := range leaves() {
		keys[variable(key)] = key
	}
	layer = koanf.New(delim)
	provider := env.Provider(delim, env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return in.Environ },
		TransformFunc: func(name, value string) (string, any) {
			short := strings.TrimPrefix(name, envPrefix)
			if value == "" || foreign(short) || slices.Contains(in.Foreign, short) {
				return "", nil
			}
			key, ok := keys[short]
			if !ok {
				faults = append(faults, fmt.Errorf("the environment variable %s is not a setting; remove it or correct its name (`overlayd config` lists them)", name))
				return "", nil
			}
			v, err := parseText(key, value)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s %w", name, err))
				return "", nil
			}
			names[key] = name
			return key, v
		},
	})
	if err := layer.Load(provider, nil); err != nil {
		faults = append(faults, fmt.Errorf("reading the environment: %w", err))
	}
	return layer, names, faults
}

// variable is the name of a key's variable without the prefix.
func variable(key string) string {
	return strings.ToUpper(strings.ReplaceAll(key, delim, "_"))
}

// foreign are variables under our prefix that are set by orchestrators for a
// service named overlayd, or belong to the tests.
func foreign(short string) bool {
	return strings.HasPrefix(short, "TEST_") || strings.HasPrefix(short, "SERVICE_") ||
		short == "PORT" || strings.HasPrefix(short, "PORT_")
}

// fillServices gives every service its defaults: at map level, so that a zero
// somebody wrote stays a zero and is refused.
func fillServices(k *koanf.Koanf) error {
	list, ok := k.Get("services").([]any)
	if !ok {
		return nil
	}
	filled := make([]any, 0, len(list))
	for _, entry := range list {
		given, _ := entry.(map[string]any)
		service := serviceDefaults()
		if name, ok := given["name"]; ok {
			service["feed"] = name
		}
		for key, v := range given {
			service[key] = v
		}
		filled = append(filled, service)
	}
	if err := k.Set("services", filled); err != nil {
		return fmt.Errorf("reading services: %w", err)
	}
	return nil
}

func fileError(path string, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the configuration file %s does not exist; give the right path with --config", path)
	}
	return fmt.Errorf("the configuration file %s cannot be read: %w", path, err)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
