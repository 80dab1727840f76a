//go:build !unix

package storetest

// settle does nothing: there is no one call for it here.
func settle() {}
