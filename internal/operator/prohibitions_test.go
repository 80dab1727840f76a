package operator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/wire"
)

// outpointOf is where the row of a generated group stands.
func outpointOf(t *testing.T, line string) string {
	t.Helper()
	var g struct {
		Edits []struct {
			Output struct {
				TxID        string
				OutputIndex uint32
			}
		}
	}
	if err := json.Unmarshal([]byte(line), &g); err != nil || len(g.Edits) != 1 {
		t.Fatalf("%v in %s", err, line)
	}
	return fmt.Sprintf("%s.%d", g.Edits[0].Output.TxID, g.Edits[0].Output.OutputIndex)
}

// kinds are the observations of a batch as "kind outpoint-or-nothing".
func kinds(b *wire.Batch) (all []string, text string) {
	for _, g := range b.Groups {
		for _, o := range g.Observations {
			all = append(all, o.Kind)
		}
	}
	return all, string(b.AppendCanonical(nil))
}

func TestA5_OperatorProhibitsAndAllows(t *testing.T) {
	t.Parallel()
	s := start(t)
	lines := groups(t, 41, 4)
	for _, line := range lines {
		if status, body, _ := s.ask(http.MethodPost, feedPath+"/groups", line); status != 200 {
			t.Fatal(body)
		}
	}
	at := outpointOf(t, lines[2])
	txid, index, _ := strings.Cut(at, ".")
	path := feedPath + "/prohibitions/" + at
	anybody := e2e.NewCaller(t, s.base)
	watcher := anybody.Open(everybody).Batch(t)
	if all, text := kinds(watcher); len(all) != 4 || !strings.Contains(text, txid) {
		t.Fatalf("snapshot %v", all)
	}

	want := `{"changed":true,"feed":"catalogue","outpoint":{"txid":"` + txid + `","outputIndex":` + index + `},"prohibited":true}` + "\n"
	if got := s.changed(http.MethodPut, path, `{"reason":"a court said so"}`, true); got != want {
		t.Errorf("answer %s, want %s", got, want)
	}
	s.changed(http.MethodPut, path, `{"reason":"another"}`, false)
	// The session that was served it must be reset before it is served again; a new one does not show it.
	again := anybody.Open(everybody).Batch(t)
	if all, text := kinds(again); len(all) != 3 || strings.Contains(text, txid) {
		t.Errorf("snapshot %v shows a prohibited row", all)
	}
	next := anybody.Read(watcher, 0).Batch(t)
	if all, text := kinds(next); !slices.Equal(all, []string{"withdraw"}) || !strings.Contains(text, txid) || !strings.Contains(text, `"prohibited"`) ||
		strings.Contains(text, "court") {
		t.Errorf("live %v %s", all, text)
	}

	s.changed(http.MethodDelete, path, `{"reason":"the court was overruled"}`, true)
	s.changed(http.MethodDelete, path, "", false)
	if all, text := kinds(anybody.Read(next, 0).Batch(t)); !slices.Equal(all, []string{"output"}) || !strings.Contains(text, txid) {
		t.Errorf("after lifting: %v", all)
	}
	// A row that is not there yet can be prohibited.
	absent := feedPath + "/prohibitions/" + strings.Repeat("00", 32) + ".4294967295"
	s.changed(http.MethodPut, absent, `{"reason":"`+strings.Repeat("r", 1024)+`"}`, true)
	s.changed(http.MethodPut, absent, `{"reason":"null \u0000 byte"}`, false)
	s.changed(http.MethodDelete, absent, "{}", true)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if log := s.log.String(); strings.Count(log, "an operator changed a prohibition") != 4 || strings.Contains(log, "court") {
		t.Errorf("log\n%s", log)
	}
}

func TestA5_AProhibitionOfAStoppedFeedIsAnErrorToRepeat(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.halt()
	status, body, _ := s.ask(http.MethodPut, feedPath+"/prohibitions/"+strings.Repeat("00", 32)+".0", `{"reason":"r"}`)
	if e := s.refused(status, body, 503, wire.Unavailable); !e.Retryable {
		t.Errorf("not retryable: %s", body)
	}
}
