// Package demo is a page that shows what the lookup service is for: two independent clients side by side. One sees what is
// newly admitted without a reload; one is cut off, misses a change, and shows exactly that when it comes back.
//
// The page is plain HTML and JavaScript without a library. page/client.js is a whole, small client of the protocol in
// anonymous mode, page/demo.js draws two of them. It makes no changes: those come in by the operator API.
//
//	         connect                last snapshot page
//	offline ---------> opening ---------------------------> catching up --> live
//	   ^                  ^                                      |            |
//	   '-- disconnect: any state; session and cursor are kept ---+------------'
//	                      '-- the provider says that the session is over -----'
//
// # Invariants
//
//	X1  The page speaks to its own origin only, and nothing of it comes from elsewhere.
//	X2  A cursor is neither shown nor put in an address; what is shown of it is the sequence it stands at.
//	X3  A client moves its cursor and its table together, after a whole answer was read and checked.
//
// It owns no goroutine and keeps no state. Non-goals: signed services, the checks that need more than a page (the manifest's
// signature, which package client verifies, and transactions), and production: overlayd serve does not mount it.
package demo
