package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/internal/wire"
)

// operatorTimeout bounds the wait for the header of an answer. A prohibition waits for
// groups that were submitted before it.
const operatorTimeout = 60 * time.Second

// operatorOptions find the operator API, for the commands that use it.
type operatorOptions struct{ operator, token, tokenFile, data string }

// register adds the flags; to a command of commands, for all of them.
func (o *operatorOptions) register(c *cobra.Command, persistent bool) {
	flags := c.Flags()
	if persistent {
		flags = c.PersistentFlags()
	}
	flags.StringVar(&o.operator, "operator", "", "`URL` of the operator API (OVERLAYD_OPERATOR_URL)")
	flags.StringVar(&o.token, "token", "", "operator `token` (OVERLAYD_OPERATOR_TOKEN)")
	flags.StringVar(&o.tokenFile, "token-file", "", "`file` that holds the operator token (OVERLAYD_OPERATOR_TOKENFILE)")
	flags.StringVar(&o.data, "data", ".overlayd", "`folder` of the `overlayd dev` to use when no operator is named")
}

// resolve finds the operator API: flags, then the environment, then dev's folder.
func (o *operatorOptions) resolve(e *env) error {
	if o.operator == "" {
		o.operator = e.lookup("OVERLAYD_OPERATOR_URL")
	}
	if o.operator == "" {
		state, err := readState(o.data)
		if err != nil {
			return err
		}
		if state.OperatorURL == "" {
			return usagef("no operator API is named and no overlayd dev was started in %s; give --operator URL", o.data)
		}
		o.operator = state.OperatorURL
		if o.token == "" && o.tokenFile == "" {
			o.tokenFile = filepath.Join(o.data, "operator.token")
		}
	}
	if u, err := url.Parse(o.operator); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return usagef("--operator %q is no URL; write http://127.0.0.1:8081", o.operator)
	}
	if o.token == "" && o.tokenFile == "" {
		o.token, o.tokenFile = e.lookup("OVERLAYD_OPERATOR_TOKEN"), e.lookup("OVERLAYD_OPERATOR_TOKENFILE")
	}
	if o.token != "" {
		return nil
	}
	if o.tokenFile == "" {
		return usagef("no operator token is given; use --token-file FILE")
	}
	token, err := loadToken(o.tokenFile)
	o.token = token
	return err
}

// call sends one request and hands the body of a good answer to read. path is
// below /operator/v1/, escaped; body, when not nil, is sent as JSON.
func (o *operatorOptions) call(ctx context.Context, method, path string, body any, read func(io.Reader) error) error {
	var sent io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("writing the request: %w", err)
		}
		sent = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, o.operator+"/operator/v1/"+path, sent)
	if err != nil {
		return fmt.Errorf("the operator API's URL: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+o.token)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: operatorTimeout}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("the operator API cannot be reached: %w; check that the provider runs, and --operator", err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end or given up
	if response.StatusCode == http.StatusOK {
		return read(response.Body)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, wire.MaxErrorBytes+1))
	if err != nil {
		return fmt.Errorf("the operator API answered %s: %w", response.Status, err)
	}
	if refusal, err := wire.ParseError(data, response.StatusCode); err == nil {
		return fmt.Errorf("the operator API refused: %s", refusal.Message)
	}
	return fmt.Errorf("the operator API answered %s; check the URL of --operator", response.Status)
}
