package doctor

import "time"

// limits are the thresholds of the verdicts (D5). Tests move them where the world cannot be moved.
type limits struct {
	// oldest is the first Postgres version that has all that is used here, tested the first that the tests run on; as
	// server_version_num, 150000 for 15.
	oldest, tested int

	// roundTrip is from where one round trip to the database is a warning: every body costs at least three, two of them its gate.
	roundTrip time.Duration

	// clockWarning is from where log lines of this machine and times of the database do not go together; clockFailure is a
	// client's own tolerance for a manifest from the future, beyond which one of the two clocks is wrong enough to be refused.
	clockWarning, clockFailure time.Duration

	// wake is from where a notification's round trip is a warning.
	wake time.Duration

	// transactionWarning and transactionFailure are ages of the oldest transaction that keeps dead rows from being removed.
	transactionWarning, transactionFailure time.Duration

	// statement is the statement_timeout below which ordinary work is cut off: compaction works for seconds.
	statement time.Duration
	// idle is how long the listening connection may say nothing: it asks that often whether it still lives.
	idle time.Duration

	// certificateWarning is how long a certificate should still be valid: longer than a weekend and a holiday.
	certificateWarning time.Duration

	// freeWarning and freeFailure are room on a disk, in bytes; the shares are of the whole disk.
	freeWarning, freeFailure           uint64
	freeWarningShare, freeFailureShare float64

	// pinnedWarning is the share of the free room that what sessions pin may take.
	pinnedWarning float64
	// editBytes and selectorBytes are what an edit keeps besides its evidence: row version and log, and postings and index of the log
	// for each attribute value of the row. Measured: docs/scaling.md.
	editBytes, selectorBytes float64
	// clientRate is what a slow client reads, in bytes a second, and scanTimes how often a scan should fit into a session.
	clientRate float64
	scanTimes  float64

	// answerCopies is how many times maxResponseBytes an answer under construction may take.
	answerCopies uint64
	// memoryWarning and memoryFailure are the shares of the memory that all of them together may take.
	memoryWarning, memoryFailure float64
	// requestsPerConnection is from where requests wait for a connection longer than they should.
	requestsPerConnection uint64
}

func defaultLimits() *limits {
	return &limits{
		oldest: 130000, tested: 150000,
		roundTrip:    5 * time.Millisecond,
		clockWarning: 2 * time.Second, clockFailure: 2 * time.Minute,
		wake:               50 * time.Millisecond,
		transactionWarning: 5 * time.Minute, transactionFailure: 6 * time.Hour,
		statement: 30 * time.Second, idle: 15 * time.Second,
		certificateWarning: 14 * 24 * time.Hour,
		freeWarning:        2 << 30, freeFailure: 256 << 20, freeWarningShare: 0.1, freeFailureShare: 0.01,
		pinnedWarning: 0.5, editBytes: 1200, selectorBytes: 500, clientRate: 1e6, scanTimes: 4,
		answerCopies: 3, memoryWarning: 0.5, memoryFailure: 1, requestsPerConnection: 16,
	}
}
