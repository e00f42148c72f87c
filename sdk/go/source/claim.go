package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
)

// Known says whether the claim is a rule. The zero Claim is unknown: partitions are claimed as they are declared.
func (c Claim) Known() bool {
	return c.Set != nil || c.Prefix != nil || c.Range != nil || c.Slot != nil
}

// Has says whether the partition with this canonical form belongs to the claim. An unknown claim has everything.
// It looks through the whole of Set: who asks often keeps a map of the set.
func (c Claim) Has(canonical []byte) bool {
	switch {
	case c.Set != nil:
		return c.setHas(canonical)
	case c.Prefix != nil:
		return bytes.HasPrefix(canonical, c.Prefix)
	case c.Range != nil:
		return bytes.Compare(canonical, c.Range.From) >= 0 &&
			(len(c.Range.Until) == 0 || bytes.Compare(canonical, c.Range.Until) < 0)
	case c.Slot != nil:
		return c.Slot.Has(canonical)
	}
	return true
}

func (c Claim) setHas(canonical []byte) bool {
	for _, p := range c.Set {
		if bytes.Equal(p, canonical) {
			return true
		}
	}
	for _, p := range c.Set {
		if other, err := Canonical(p); err == nil && bytes.Equal(other, canonical) {
			return true
		}
	}
	return false
}

// Has says whether the partition with this canonical form falls into the slot.
func (s Slot) Has(canonical []byte) bool {
	return s.Of > 0 && Hash(canonical)%uint64(s.Of) == uint64(s.Slot)
}

// Hash is the hash that slots go by: the first eight bytes, big endian, of the SHA-256 of the canonical form.
func Hash(canonical []byte) uint64 {
	sum := sha256.Sum256(canonical)
	return binary.BigEndian.Uint64(sum[:8])
}
