package operator

import (
	"net/http"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

func TestADatabaseThatHangsIsUnavailable(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.api.within = 200 * time.Millisecond
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table feed_head, lookup_session in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	for _, one := range [][3]string{
		{http.MethodGet, "/operator/v1/feeds/catalogue", ""},
		{http.MethodPost, "/operator/v1/feeds/catalogue/groups", `{"key":"a-group-that-has-to-wait","edits":[{"op":"invalidate","contextId":"c","reason":"r"}]}`},
		{http.MethodDelete, "/operator/v1/sessions/3d5be1c8-6c2f-4d0e-9d0e-0d9a1c1f2b3a", ""},
	} {
		status, body, _ := s.ask(one[0], one[1], one[2])
		if e := s.refused(status, body, http.StatusServiceUnavailable, wire.Unavailable); !e.Retryable {
			t.Errorf("%s %s: not to be tried again: %s", one[0], one[1], body)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
