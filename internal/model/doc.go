// Package model holds no code that ships. Its test drives the provider with random operations and says, before each one,
// what the answer must be.
//
// The model is a list of groups with the rows before and after each edit, a list of sessions, and a clock that only the
// test moves. It knows neither SQL nor cursors nor compaction: the rows at W are the groups up to W, folded; a page is
// what fits of them; a live read is what the groups after a position mean to the session's query, one edit after
// another. Nothing is ever forgotten in it, so a compactor that forgets too much is told apart from one that does not.
//
// Every answer is compared byte for byte with the one that the model writes through package wire, whose encoder is not the
// provider's. What the model cannot know (session ids, cursors, observation ids, epochs) is learned when it is first seen
// and must be the same ever after, and different where it stands for something else.
//
// A run is a number of cases. A case has a seed, a feed of its own and two nodes on one database; its operations are drawn
// from the seed alone. One that fails is run again with fewer and fewer operations, and the shortest is printed.
package model
