module github.com/overlayd/overlayd/bench/brc104

go 1.26.0

require (
	github.com/bsv-blockchain/go-bsv-middleware v0.13.0
	github.com/bsv-blockchain/go-sdk v1.3.4
	github.com/decred/dcrd/dcrec/secp256k1/v4 v4.4.1
	github.com/labstack/echo/v4 v4.16.4
	github.com/overlayd/overlayd v0.0.0
)

require (
	github.com/go-softwarelab/common v1.8.0 // indirect
	github.com/labstack/gommon v0.5.0 // indirect
	github.com/mattn/go-colorable v0.1.15 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	github.com/valyala/fasttemplate v1.2.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/overlayd/overlayd => ../..
