//go:build !failpoint

package failpoint

// Hit does nothing.
func Hit(point string) {}
