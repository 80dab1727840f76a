package beef

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bsv-blockchain/go-sdk/chainhash"
)

// vector is one BEEF of the test data.
type vector struct {
	name string
	data []byte
}

// vectors reads the 14 BEEFs of testdata and of the sample.
func vectors(t testing.TB) []vector {
	t.Helper()
	var out []vector
	for _, pattern := range []string{"testdata/*.hex", "../sample/data/*.hex"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			out = append(out, vector{filepath.Base(file), readHex(t, file)})
		}
	}
	if len(out) != 14 {
		t.Fatalf("%d vectors, 14 expected", len(out))
	}
	return out
}

func readHex(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return unhex(t, strings.TrimSpace(string(text)))
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func txid(t testing.TB, s string) (id [32]byte) {
	t.Helper()
	if copy(id[:], unhex(t, s)) != len(id) {
		t.Fatalf("%q is not a txid", s)
	}
	return id
}

// roots is a chain tracker that knows exactly these height and root pairs.
type roots map[uint32]string

func (r roots) IsValidRootForHeight(_ context.Context, root *chainhash.Hash, height uint32) (bool, error) {
	return r[height] == root.String(), nil
}

func (r roots) CurrentHeight(context.Context) (uint32, error) { return 1 << 21, nil }

// chainRoots are the Merkle roots of the blocks that the vectors prove things in.
func chainRoots() roots {
	return roots{
		1000:    "d1a1ec40903d7f37702f64ab37b3a1f8d7d229c14abbedd3eb0cbf0e582a28f6",
		814435:  "bb6f640cc4ee56bf38eb5a1969ac0c16caa2d3d202b22bf3735d10eec0ca6e00",
		853649:  "f231dfab36078c116a6a1e9359a175bf408d841f3306949162c7caffdffc0492",
		873969:  "d1c50216e25e67fdace63eb7a8e081deeec149066f9a75e485111fa78101a436",
		874975:  "1023eba96a957999c475863b8a0f36700efbd78e6e3b68149e02fb508b0b37d4",
		874987:  "91a5666aa15925b25ffb21075e03c0f79ffa4d74d39b64955d3e3b79d8d860c5",
		885007:  "c1a1c8cdb8654f0804438a25e496e3499f04a9d3b309aa7e1fc7838077e7ccad",
		885388:  "356f0e59519157f25a37cf73073fce878b3755e7208959960fd7346c1af13c88",
		885399:  "bee4730c2e3d7be46bad2f9ef70d8be4b57101b89f488b895bacafa5c64f1c47",
		885570:  "06e9c9a65efd3e35d703dbaa7a00a78f0e4b1943de23046030e9d438e8503e88",
		897738:  "d6e0eb41db7c951084be8cddf6a4edd644fff3efd2d6d9bd1a8c56df368cdf63",
		905506:  "cf7868803802a7c1e36e5944a3c0c7f027df9bb51c244d749c4c0409dd3c9d4e",
		905906:  "bac79367a36779aa137c009a10b275a531d3a01fbd074e03619197e441324b63",
		1663598: "3bb99cd4ddda8dfd99caf6cb497b59066102bb1fd387d096317dd5fc2fce40ef",
		1663799: "783faac0ae0f91a64a106b8bb75b8a42594db106691aafb73abbc748d497c46c",
		1663801: "4aa0c08d2fff333a798b0bf87d497ce77b331b264a87ed78c91739f3f994e169",
		1663804: "b06df08378cd35dc91ed09d02d4bef9e8de1715de0a42fc207f261e48b0e96d5",
		1663811: "eca96d989788c178ad617df064d26b1a597d18debb996da68025a51d2682fcba",
		1678980: "fbbbd6d5f37e8d7e461d5909f7930a78f6df2f54cd04af49a1960b8bf8879e6c",
	}
}
