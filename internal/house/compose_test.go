package house_test

import (
	"path/filepath"
	"testing"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/house"
)

// The configuration that docker-compose.yml mounts is one that serve takes.
func TestComposeConfigurationIsAccepted(t *testing.T) {
	t.Parallel()
	root, err := house.Root()
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(config.Input{
		Command: "serve",
		File:    filepath.Join(root, "deploy", "compose", "overlayd.yaml"),
		Environ: []string{"OVERLAYD_DATABASE_URL=postgres://overlayd:secret@postgres:5432/overlayd?sslmode=disable"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Validate(); err != nil {
		t.Error(err)
	}
}
