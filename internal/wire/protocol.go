package wire

// Names of the profile, its headers, and the manifest's epoch extension.
const (
	// Profile is the lookup-live profile (BRC-193 s1).
	Profile = "https://bsv.brc.dev/overlays/0193#lookup-live-v1"
	// EpochExtension names, in a manifest, the current epoch of each service.
	EpochExtension = "urn:bsv:output-knowledge:lookup-storage-epoch:1"
	// HeaderCapability carries the capability digest (BRC-194 s1).
	HeaderCapability = "x-bsv-overlay-capability"
	// HeaderProfile carries the selected profile (BRC-194 s1).
	HeaderProfile = "x-bsv-overlay-profile"
)

// Bounds of the profile (BRC-193 s2, s8) and of discovery (BRC-194 s1).
const (
	MaxRequestBytes  = 1 << 20   // bytes of a request body
	MaxResponseBytes = 4 << 20   // bytes of a successful response body
	MinResponseBytes = 65536     // the least maxResponseBytes a provider may offer
	MaxObservations  = 1024      // observations of one batch
	MaxWaitMs        = 25000     // milliseconds of a long poll
	MaxErrorBytes    = 4096      // bytes of an error body
	MaxHeaderBytes   = 16384     // bytes of all header names and values
	MaxManifestBytes = 256 << 10 // bytes of a signed manifest
	MaxServices      = 256       // services of a manifest
	MaxProfiles      = 32        // profiles of a service
	MaxExtensions    = 32        // extensions, and critical entries, of an object
	MaxString        = 1024      // bytes of a string without another bound
	MaxBaseBytes     = 2048      // bytes of a base URL
)

// Limits are the three budgets of a request or a session.
type Limits struct {
	MaxBytes        uint32 // bytes of the complete response body, positive
	MaxObservations uint32 // observations of the response, positive
	WaitMs          uint32 // milliseconds a live read may wait, may be 0
}

// MaxLimits returns the profile's own maxima.
func MaxLimits() Limits {
	return Limits{MaxBytes: MaxResponseBytes, MaxObservations: MaxObservations, WaitMs: MaxWaitMs}
}

// Min returns the componentwise minimum (BRC-193 s2).
func (l Limits) Min(o Limits) Limits {
	return Limits{
		MaxBytes:        min(l.MaxBytes, o.MaxBytes),
		MaxObservations: min(l.MaxObservations, o.MaxObservations),
		WaitMs:          min(l.WaitMs, o.WaitMs),
	}
}
