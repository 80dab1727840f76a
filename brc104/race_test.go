//go:build race

package brc104

// raceEnabled: the race detector makes arithmetic ten times slower.
const raceEnabled = true
