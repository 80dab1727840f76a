package client_test

import (
	"testing"

	"github.com/overlayd/overlayd/client"
)

// BenchmarkFollow_Snapshot measures one row from the wire to the durable state.
func BenchmarkFollow_Snapshot(b *testing.B) {
	const size = 5000
	f := newFake(b).seed(size)
	base := f.serve()
	b.ReportAllocs()
	for b.Loop() {
		o := client.Options{BaseURL: base, Service: service, State: openState(b, b.TempDir()), UntilLive: true}
		if err := client.Follow(b.Context(), o); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/row")
}
