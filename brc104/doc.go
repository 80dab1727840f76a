// Package brc104 signs HTTP.
package brc104
