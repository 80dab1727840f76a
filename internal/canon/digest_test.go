package canon

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func encodeBase64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func TestJ5_Preimage(t *testing.T) {
	t.Parallel()
	got := Preimage("capabilities", []byte(`{}`))
	if want := "BRC-OUTPUT/1/capabilities\x00{}"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	sum := sha256.Sum256(got)
	if d := Digest("capabilities", []byte(`{}`)); d != hex.EncodeToString(sum[:]) {
		t.Errorf("Digest is not the hash of Preimage: %s", d)
	}
	if Digest("lookup-query", []byte(`{}`)) == Digest("service-rules", []byte(`{}`)) {
		t.Error("domains do not separate")
	}
}

// The values were computed by testvectors/check.mjs, which shares no code with
// this package.
func TestJ5_OwnDigestVectors(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../testvectors/digests/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors found: %v", err)
	}
	total := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Vectors []struct{ Name, Domain, Text, Canonical, SHA256 string }
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, v := range doc.Vectors {
			total++
			got, err := Canonicalize([]byte(v.Text))
			if err != nil {
				t.Errorf("%s: %s: %v", file, v.Name, err)
				continue
			}
			if string(got) != v.Canonical {
				t.Errorf("%s: %s:\n got %s\nwant %s", file, v.Name, got, v.Canonical)
			}
			if d := Digest(v.Domain, got); d != v.SHA256 {
				t.Errorf("%s: %s: digest %s, want %s", file, v.Name, d, v.SHA256)
			}
		}
	}
	if total < 20 {
		t.Errorf("only %d vectors", total)
	}
}

// The published probe is not part of this repository. Give its folder by the
// variable to run it.
func TestJ5_PublishedDigestVectors(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("OVERLAYD_BRC_PACKET")
	if dir == "" {
		t.Log("the published BRC packet was left out: set OVERLAYD_BRC_PACKET to the absolute path of its folder to check digest-vectors.json")
		return
	}
	data, err := os.ReadFile(filepath.Join(dir, "digest-vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	root := mustParse(t, string(data))
	body, _ := root.Get("body")
	want, _ := root.Get("canonical")
	got := body.AppendCanonical(nil)
	if string(got) != want.Str() {
		t.Fatalf("canonical:\n got %s\nwant %s", got, want.Str())
	}
	vectors, _ := root.Get("vectors")
	if len(vectors.Elements()) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors.Elements() {
		domain, _ := v.Get("domain")
		preimage, _ := v.Get("preimage")
		sum, _ := v.Get("sha256")
		if p := hex.EncodeToString(Preimage(domain.Str(), got)); p != preimage.Str() {
			t.Errorf("%s: preimage %s", domain.Str(), p)
		}
		if d := Digest(domain.Str(), got); d != sum.Str() {
			t.Errorf("%s: digest %s, want %s", domain.Str(), d, sum.Str())
		}
	}
	t.Logf("%d published digests agree", len(vectors.Elements()))
}
