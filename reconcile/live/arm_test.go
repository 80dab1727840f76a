//go:build !failpoint

package live_test

// arm does nothing: nothing can be armed without the tag.
func arm() {}
