package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/bsv-blockchain/go-bsv-middleware/pkg/middleware"
	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/bsv-blockchain/go-sdk/wallet"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/brc104/echoauth"
)

// The servers that are compared.
const (
	ours     = "brc104"
	official = "go-bsv-middleware"
)

// smallAnswer is about the size of a live batch without anything new in it.
var smallAnswer = append(append([]byte(`{"version":1,"answer":"`), bytes.Repeat([]byte("x"), 300)...), `"}`...)

// serverKey is the same for every server, so that requests differ in nothing.
func serverKey() *secp256k1.PrivateKey {
	sum := sha256.Sum256([]byte("a server"))
	return secp256k1.PrivKeyFromBytes(sum[:])
}

// routes adds the routes that are asked.
func routes(e *echo.Echo, big []byte) {
	e.HideBanner, e.HidePort = true, true
	e.POST("/small", func(c echo.Context) error { return c.JSONBlob(http.StatusOK, smallAnswer) })
	e.POST("/big", func(c echo.Context) error { return echoauth.Blob(c, http.StatusOK, echo.MIMEApplicationJSON, big) })
}

// handler makes one of the servers. guard may be nil.
func handler(kind string, big []byte, guard brc104.ReplayGuard) (http.Handler, error) {
	quiet := slog.New(slog.DiscardHandler)
	e := echo.New()
	if kind == official {
		key, _ := ec.PrivateKeyFromBytes(serverKey().Serialize())
		w, err := wallet.NewCompletedProtoWallet(key)
		if err != nil {
			return nil, err
		}
		routes(e, big)
		return middleware.NewAuth(w, middleware.WithAuthLogger(quiet)).HTTPHandler(e), nil
	}
	secret := sha256.Sum256([]byte("a secret"))
	s, err := brc104.New(brc104.Config{
		Key: serverKey(), Sessions: &brc104.Ring{Secrets: [][]byte{secret[:]}}, Log: quiet, Replay: guard,
	})
	if err != nil {
		return nil, err
	}
	m, err := echoauth.New(echoauth.Options{Server: s, MaxResponse: 8 << 20, Log: quiet})
	if err != nil {
		return nil, err
	}
	e.Use(m.Signed())
	routes(e, big)
	return e, nil
}

// usage is what a server's process has used so far.
type usage struct {
	CPU  time.Duration
	Heap int64 // in use after a collection, when it was asked for
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// serve runs a server until its standard input ends, which it does with the process that started it. It prints the addresses of
// the server and of what tells its usage.
func serve(kind string) error {
	h, err := handler(kind, smallAnswer, nil)
	if err != nil {
		return err
	}
	server := httptest.NewServer(h)
	defer server.Close()
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := usage{CPU: cpuTime()}
		if r.URL.Path == "/heap" {
			u.Heap = heap()
		}
		_ = json.NewEncoder(w).Encode(u)
	}))
	defer control.Close()
	fmt.Println(server.URL, control.URL)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
