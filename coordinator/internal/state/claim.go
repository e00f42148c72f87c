package state

// ClaimKind is the kind of a claim.
type ClaimKind string

// Kinds of claims. The zero value is an unknown claim.
const (
	ClaimUnknown ClaimKind = ""
	ClaimSet     ClaimKind = "set"
	ClaimPrefix  ClaimKind = "prefix"
	ClaimRange   ClaimKind = "range"
	ClaimSlot    ClaimKind = "slot"
)

// Claim is the rule that says which source partitions belong to a task. Partitions are in canonical form.
type Claim struct {
	Kind ClaimKind `json:"kind,omitempty"`
	// Set has the partitions of ClaimSet, sorted.
	Set [][]byte `json:"set,omitempty"`
	// Prefix of ClaimPrefix.
	Prefix []byte `json:"prefix,omitempty"`
	// From and Until of ClaimRange; an empty Until is no end.
	From  []byte `json:"from,omitempty"`
	Until []byte `json:"until,omitempty"`
	// Slot of Of, with ClaimSlot.
	Slot uint32 `json:"slot,omitempty"`
	Of   uint32 `json:"of,omitempty"`
}

// Plugin names the plugin that a connector runs on.
type Plugin struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
	// SHA256 is set where the configuration pins it; empty is any.
	SHA256 string `json:"sha256,omitempty"`
	// Type is the connector type within it.
	Type string `json:"type,omitempty"`
}
