package house

import (
	"fmt"
	"regexp"
	"strings"
)

// CheckVersions reports versions that are not exact: replaced modules, image
// tags that float, and a container image built with another Go than go.mod
// names.
func CheckVersions(t *Tree) []string {
	mod := string(t.Text("go.mod"))
	var wrong []string
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)(\.\d+)?$`).FindStringSubmatch(mod)
	if goVersion == nil || goVersion[2] == "" {
		wrong = append(wrong, "go.mod: the go line must name a full version, such as 1.26.0")
	}
	if regexp.MustCompile(`(?m)^\s*replace\b`).MatchString(mod) {
		wrong = append(wrong, "go.mod: a replaced module: whoever imports this one would build something else")
	}
	exact := regexp.MustCompile(`^v\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?$`)
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+([\w./-]+\.[\w./-]+) (\S+)( // indirect)?$`).FindAllStringSubmatch(mod, -1) {
		if !exact.MatchString(m[2]) {
			wrong = append(wrong, fmt.Sprintf("go.mod: %s %s is not an exact version", m[1], m[2]))
		}
	}
	for _, text := range t.Texts {
		switch text.Path {
		case "Dockerfile":
			stages := map[string]bool{}
			for _, m := range regexp.MustCompile(`(?mi)^FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?`).FindAllStringSubmatch(string(text.Data), -1) {
				if !stages[m[1]] {
					wrong = append(wrong, floating(text.Path, m[1])...)
				}
				stages[m[2]] = true
				if tag, ok := strings.CutPrefix(m[1], "golang:"); ok && goVersion != nil && !strings.HasPrefix(tag, goVersion[1]) {
					wrong = append(wrong, fmt.Sprintf("%s: %s, but go.mod says go %s", text.Path, m[1], goVersion[1]))
				}
			}
		case "docker-compose.yml":
			for _, m := range regexp.MustCompile(`(?m)^\s+image:\s*(\S+)`).FindAllStringSubmatch(string(text.Data), -1) {
				if !strings.HasPrefix(m[1], "overlayd:") {
					wrong = append(wrong, floating(text.Path, m[1])...)
				}
			}
		}
	}
	return wrong
}

// floating reports an image that has no tag or one that names no version.
func floating(file, image string) []string {
	_, tag, ok := strings.Cut(image, ":")
	if ok && regexp.MustCompile(`\d`).MatchString(tag) {
		return nil
	}
	return []string{fmt.Sprintf("%s: image %s names no version", file, image)}
}
