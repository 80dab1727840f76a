package lookup

// moment is a decisive point in the life of a request: where a crash, a commit or a revocation must do no harm.
type moment uint8

const (
	admitted       moment = iota + 1 // an Open has no fence yet and may be made; its quotas are not yet looked at
	afterClaim                       // it holds its fence and has not yet cut
	afterFirst                       // the first page is laid out, the Open not yet committed
	afterCommit                      // the Open is committed, its answer not yet gated
	arrived                          // a Read is parsed, its session not yet looked up
	beforeBuild                      // its session may be read, and nothing is built yet
	beforeGate                       // a body is built, the gate not yet asked
	gateAsked                        // the questions of the gate are taken, its statement not yet sent
	gateAnswered                     // its statement is answered, nobody told yet
	beforeLastGate                   // a body is signed, the gate not yet asked again
	givesWay                         // a poll is about to look, and lets a commit come first
	beforeSleep                      // a poll has looked, found nothing and is about to sleep
	arrivedAsleep                    // it has slept, and was asked whether its session still stands
)

// at lets a test stop the provider at a moment. In service nothing is installed.
func (p *Provider) at(m moment) {
	if pause := p.pause.Load(); pause != nil {
		(*pause)(m)
	}
}
