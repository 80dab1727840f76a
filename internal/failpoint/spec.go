package failpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a spec.
const (
	maxSpec  = 4096
	maxHits  = 1_000_000
	maxPause = time.Minute
)

// Rule says what happens at one point.
type Rule struct {
	Point string
	Kill  uint64        // 1..1000000: the hit that ends the process; 0: none does
	Pause time.Duration // 1 ns..1 min: how long a hit waits; 0 with Kill
	Share int           // 1..100: of a hundred hits, how many pause; 0 with Kill
}

// String is the rule as Parse reads it.
func (r Rule) String() string {
	switch {
	case r.Kill == 1:
		return r.Point + "=kill"
	case r.Kill > 1:
		return r.Point + "=kill@" + strconv.FormatUint(r.Kill, 10)
	case r.Share == 100:
		return r.Point + "=pause:" + r.Pause.String()
	}
	return r.Point + "=pause:" + r.Pause.String() + "%" + strconv.Itoa(r.Share)
}

// Parse reads a spec. Points must be known, each named once; an empty spec has no rules.
func Parse(spec string) ([]Rule, error) {
	if spec == "" {
		return nil, nil
	}
	if len(spec) > maxSpec {
		return nil, fmt.Errorf("a failpoint spec has at most %d bytes", maxSpec)
	}
	var rules []Rule
	for part := range strings.SplitSeq(spec, ";") {
		point, action, ok := strings.Cut(part, "=")
		if !ok || !slices.Contains(Points(), point) {
			return nil, fmt.Errorf("%q is not point=action with a known point", part)
		}
		if slices.ContainsFunc(rules, func(r Rule) bool { return r.Point == point }) {
			return nil, fmt.Errorf("the failpoint %s is armed twice", point)
		}
		r, err := parseAction(action)
		if err != nil {
			return nil, fmt.Errorf("the failpoint %s: %w", point, err)
		}
		r.Point = point
		rules = append(rules, r)
	}
	return rules, nil
}

func parseAction(action string) (Rule, error) {
	if action == "kill" {
		return Rule{Kill: 1}, nil
	}
	if text, ok := strings.CutPrefix(action, "kill@"); ok {
		n, err := number(text, maxHits)
		return Rule{Kill: n}, err
	}
	text, ok := strings.CutPrefix(action, "pause:")
	if !ok {
		return Rule{}, fmt.Errorf("the action %q is none of kill, kill@N, pause:DURATION, pause:DURATION%%SHARE", action)
	}
	r := Rule{Share: 100}
	if length, share, ok := strings.Cut(text, "%"); ok {
		n, err := number(share, 100)
		if err != nil {
			return Rule{}, err
		}
		text, r.Share = length, int(n)
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxPause {
		return Rule{}, fmt.Errorf("a pause is above 0 and at most %s, not %q", maxPause, text)
	}
	r.Pause = d
	return r, nil
}

// number reads 1..most without a sign or a leading zero.
func number(text string, most uint64) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < 1 || n > most || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("%q is not a number of 1 to %d", text, most)
	}
	return n, nil
}
