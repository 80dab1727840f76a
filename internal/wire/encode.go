package wire

import (
	"strconv"

	"github.com/overlayd/overlayd/internal/canon"
)

// The encoders below write RFC 8785 directly: the literal member names are in
// UTF-16 order already, so nothing is sorted and no tree is built.

// AppendCanonical appends the RFC 8785 form of c to dst.
func (c Chain) AppendCanonical(dst []byte) []byte {
	dst = append(dst, `{"genesisHash":`...)
	dst = canon.AppendString(dst, c.GenesisHash)
	dst = append(dst, `,"network":`...)
	dst = canon.AppendString(dst, c.Network)
	return append(dst, '}')
}

// AppendCanonical appends the RFC 8785 form of s to dst.
func (s Scope) AppendCanonical(dst []byte) []byte {
	dst = append(dst, `{"access":`...)
	dst = canon.AppendString(dst, s.Access)
	dst = append(dst, `,"chain":`...)
	dst = s.Chain.AppendCanonical(dst)
	dst = append(dst, `,"epoch":`...)
	dst = canon.AppendString(dst, s.Epoch)
	dst = append(dst, `,"provider":`...)
	dst = canon.AppendString(dst, s.Provider)
	dst = append(dst, `,"queryDigest":`...)
	dst = canon.AppendString(dst, s.QueryDigest)
	dst = append(dst, `,"rulesDigest":`...)
	dst = canon.AppendString(dst, s.RulesDigest)
	dst = append(dst, `,"service":`...)
	dst = canon.AppendString(dst, s.Service)
	return append(dst, '}')
}

// AppendCanonical appends the RFC 8785 form of o to dst.
func (o Outpoint) AppendCanonical(dst []byte) []byte {
	dst = append(dst, `{"chain":`...)
	dst = o.Chain.AppendCanonical(dst)
	dst = append(dst, `,"outputIndex":`...)
	dst = strconv.AppendUint(dst, uint64(o.OutputIndex), 10)
	dst = append(dst, `,"txid":`...)
	dst = canon.AppendString(dst, o.TxID)
	return append(dst, '}')
}

// AppendCanonical appends the RFC 8785 form of l to dst.
func (l Limits) AppendCanonical(dst []byte) []byte {
	dst = append(dst, `{"maxBytes":`...)
	dst = strconv.AppendUint(dst, uint64(l.MaxBytes), 10)
	dst = append(dst, `,"maxObservations":`...)
	dst = strconv.AppendUint(dst, uint64(l.MaxObservations), 10)
	dst = append(dst, `,"waitMs":`...)
	dst = strconv.AppendUint(dst, uint64(l.WaitMs), 10)
	return append(dst, '}')
}

// AppendCanonical appends the RFC 8785 form of o to dst, built from its fields
// and not from o.Canonical. The payload is the one that is set.
func (o *Observation) AppendCanonical(dst []byte) []byte {
	dst = append(dst, '{')
	dst = appendCritical(dst, o.Critical)
	dst = appendExtensions(dst, o.Extensions)
	dst = append(dst, `"id":`...)
	dst = canon.AppendString(dst, o.ID)
	dst = append(dst, `,"kind":`...)
	dst = canon.AppendString(dst, o.Kind)
	dst = append(dst, `,"payload":`...)
	switch {
	case o.Output != nil:
		dst = o.Output.appendCanonical(dst)
	case o.Spend != nil:
		dst = append(dst, `{"beef":`...)
		dst = appendBase64(dst, o.Spend.BEEF)
		dst = append(dst, `,"previous":`...)
		dst = o.Spend.Previous.AppendCanonical(dst)
		dst = append(dst, `,"spendingTxid":`...)
		dst = canon.AppendString(dst, o.Spend.SpendingTxID)
		dst = append(dst, '}')
	case o.Withdraw != nil:
		dst = append(dst, `{"outpoint":`...)
		dst = o.Withdraw.Outpoint.AppendCanonical(dst)
		dst = append(dst, `,"reason":`...)
		dst = canon.AppendString(dst, o.Withdraw.Reason)
		dst = append(dst, '}')
	case o.Invalidated != nil:
		dst = append(dst, `{"contextId":`...)
		dst = canon.AppendString(dst, o.Invalidated.ContextID)
		dst = append(dst, `,"reason":`...)
		dst = canon.AppendString(dst, o.Invalidated.Reason)
		dst = append(dst, '}')
	default:
		dst = append(dst, "{}"...)
	}
	dst = append(dst, `,"scope":`...)
	dst = o.Scope.AppendCanonical(dst)
	return append(dst, '}')
}

func (o *Output) appendCanonical(dst []byte) []byte {
	dst = append(dst, '{')
	if o.Context != nil {
		dst = append(dst, `"context":{"bytes":`...)
		dst = appendBase64(dst, o.Context.Bytes)
		dst = append(dst, `,"schema":`...)
		dst = canon.AppendString(dst, o.Context.Schema)
		dst = append(dst, `},`...)
	}
	dst = append(dst, `"evidence":{"beef":`...)
	dst = appendBase64(dst, o.Evidence.BEEF)
	dst = append(dst, `,"outputIndex":`...)
	dst = strconv.AppendUint(dst, uint64(o.Evidence.OutputIndex), 10)
	dst = append(dst, `,"txid":`...)
	dst = canon.AppendString(dst, o.Evidence.TxID)
	return append(dst, `}}`...)
}

// AppendCanonical appends the RFC 8785 form of g to dst. An observation whose
// Canonical is set is copied from it, any other is built from its fields.
func (g *Group) AppendCanonical(dst []byte) []byte {
	dst = append(dst, `{"id":`...)
	dst = canon.AppendString(dst, g.ID)
	dst = append(dst, `,"observations":[`...)
	for i := range g.Observations {
		if i > 0 {
			dst = append(dst, ',')
		}
		if o := &g.Observations[i]; o.Canonical != nil {
			dst = append(dst, o.Canonical...)
		} else {
			dst = o.AppendCanonical(dst)
		}
	}
	dst = append(dst, `],"sequence":`...)
	dst = appendU64(dst, g.Sequence)
	return append(dst, '}')
}

// AppendCanonical appends the RFC 8785 form of b to dst. Groups are written as
// [Group.AppendCanonical] writes them.
func (b *Batch) AppendCanonical(dst []byte) []byte {
	dst = append(dst, '{')
	dst = appendCritical(dst, b.Critical)
	dst = append(dst, `"cursor":`...)
	dst = canon.AppendString(dst, b.Cursor)
	dst = append(dst, `,"expiresAt":`...)
	dst = appendU64(dst, b.ExpiresAt)
	dst = append(dst, ',')
	dst = appendExtensions(dst, b.Extensions)
	dst = append(dst, `"groups":[`...)
	for i := range b.Groups {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = b.Groups[i].AppendCanonical(dst)
	}
	dst = append(dst, `],"highWater":`...)
	dst = appendU64(dst, b.HighWater)
	dst = append(dst, `,"limits":`...)
	dst = b.Limits.AppendCanonical(dst)
	dst = append(dst, `,"phase":`...)
	dst = canon.AppendString(dst, b.Phase)
	dst = append(dst, `,"replayUntil":`...)
	dst = appendU64(dst, b.ReplayUntil)
	dst = append(dst, `,"scope":`...)
	dst = b.Scope.AppendCanonical(dst)
	dst = append(dst, `,"session":`...)
	dst = canon.AppendString(dst, b.Session)
	dst = append(dst, `,"snapshotComplete":`...)
	dst = strconv.AppendBool(dst, b.SnapshotComplete)
	dst = append(dst, `,"through":`...)
	dst = appendU64(dst, b.Through)
	return append(dst, `,"version":1}`...)
}

// appendCritical appends the member and a comma, or nothing when it is absent.
func appendCritical(dst []byte, critical []string) []byte {
	if critical == nil {
		return dst
	}
	dst = append(dst, `"critical":[`...)
	for i, c := range critical {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = canon.AppendString(dst, c)
	}
	return append(dst, `],`...)
}

// appendExtensions appends the member and a comma, or nothing when it is
// absent.
func appendExtensions(dst []byte, ext []canon.Member) []byte {
	if ext == nil {
		return dst
	}
	dst = append(dst, `"extensions":`...)
	dst = canon.Obj(ext...).AppendCanonical(dst)
	return append(dst, ',')
}
