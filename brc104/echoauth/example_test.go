package echoauth_test

import (
	"fmt"
	"net/http"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/brc104/echoauth"
)

func Example() {
	key, _ := secp256k1.GeneratePrivateKey()                                                                        // in earnest read from where it is kept
	server, err := brc104.New(brc104.Config{Key: key, Sessions: &brc104.Ring{Secrets: [][]byte{make([]byte, 32)}}}) // 32 random bytes
	if err != nil {
		panic(err)
	}
	auth, err := echoauth.New(echoauth.Options{Server: server})
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.Use(auth.Signed())
	e.POST("/whoami", func(c echo.Context) error {
		peer, _ := echoauth.PeerFrom(c.Request().Context())
		return c.JSON(http.StatusOK, fmt.Sprintf("%x", peer.Identity))
	})
	fmt.Println("ready to serve")
	// Output: ready to serve
}
