//go:build !race

package brc104

const raceEnabled = false
