// Package storetest is the suite that every store of knowledge must pass: help
// for tests, which no program imports.
//
// [RunBackend] holds a store of keys to the contract of reconcile.Backend alone.
package storetest
