// Package wire converts between the messages of the plugin protocol and the types of sdk/go/source, in both directions.
//
// It owns no state and does no I/O: every function is pure. Encode functions turn source types into messages, Decode functions turn messages into
// source types. Byte slices are shared between the two sides and never copied, so a caller must not change what it has converted.
//
// Decoding checks only what conversion itself needs (a message that has no known content, a schema that is too deep). Whether numbers were declared, columns fit
// or limits are kept is checked where it can be answered: source.Batch.Check and the runner's task.
//
// Where to read next: run.go for the records' way, status.go for errors.
package wire

import (
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Limits of the protocol, see plugin.proto.
const (
	// MaxMessageBytes is the largest gRPC message of any kind; both sides must be set to receive that much.
	MaxMessageBytes = 20 << 20
	// MaxStoredOffsetsBytes bounds one StoredOffsets message, so that a task with many partitions opens with small messages.
	MaxStoredOffsetsBytes = 1 << 20
	// MaxLookupPartitions is the most partitions that one Lookup may name.
	MaxLookupPartitions = 10_000
)

// Names that both sides of a start have to agree on, see plugin.proto.
const (
	// CookieKey and CookieValue tell a plugin that a runner has started it, and not a person.
	CookieKey   = "FENCEPOST_PLUGIN"
	CookieValue = "4d2a6f0e-exactly-once"
	// ProtocolVersion is the version of the protocol in the handshake.
	ProtocolVersion = 1
	// HealthService is the service name that a plugin reports as SERVING.
	HealthService = "plugin"
)

// EncodeDescription makes the answer to Describe.
func EncodeDescription(d *source.Description) *pluginv1.DescribeResponse {
	out := &pluginv1.DescribeResponse{Name: d.Name, Version: d.Version, Abilities: encodeAbilities(d.Abilities)}
	for i := range d.Types {
		out.Types = append(out.Types, encodeType(&d.Types[i]))
	}
	return out
}

// DecodeDescription reads the answer to Describe.
func DecodeDescription(d *pluginv1.DescribeResponse) *source.Description {
	out := &source.Description{Name: d.GetName(), Version: d.GetVersion()}
	for _, t := range d.GetTypes() {
		out.Types = append(out.Types, decodeType(t))
	}
	for _, a := range d.GetAbilities() {
		out.Abilities = append(out.Abilities, source.Ability(a))
	}
	return out
}

func encodeAbilities(abilities []source.Ability) []pluginv1.Ability {
	var out []pluginv1.Ability
	for _, a := range abilities {
		out = append(out, pluginv1.Ability(a))
	}
	return out
}

func encodeType(t *source.Type) *pluginv1.ConnectorType {
	out := &pluginv1.ConnectorType{
		Name: t.Name, Summary: t.Summary, OpenPrefixes: t.OpenPrefixes, Example: t.Example,
	}
	for i := range t.Config {
		out.Config = append(out.Config, encodeKey(&t.Config[i]))
	}
	return out
}

func decodeType(t *pluginv1.ConnectorType) source.Type {
	out := source.Type{
		Name: t.GetName(), Summary: t.GetSummary(), OpenPrefixes: t.GetOpenPrefixes(), Example: t.GetExample(),
	}
	for _, k := range t.GetConfig() {
		out.Config = append(out.Config, decodeKey(k))
	}
	return out
}

func encodeKey(k *source.Key) *pluginv1.ConfigKey {
	return &pluginv1.ConfigKey{
		Name: k.Name, Type: pluginv1.ConfigType(k.Type), Required: k.Required, DefaultValue: k.Default,
		Importance: pluginv1.Importance(k.Importance), Documentation: k.Doc,
		Allowed: k.Allowed, Recommended: k.Recommended, Min: k.Min, Max: k.Max,
	}
}

func decodeKey(k *pluginv1.ConfigKey) source.Key {
	if k == nil {
		return source.Key{}
	}
	return source.Key{
		Name: k.Name, Type: source.ValueType(k.Type), Required: k.Required, Default: k.DefaultValue,
		Importance: source.Importance(k.Importance), Doc: k.Documentation,
		Allowed: k.Allowed, Recommended: k.Recommended, Min: k.Min, Max: k.Max,
	}
}

// EncodeValidateRequest makes a ValidateRequest.
func EncodeValidateRequest(r *source.ValidateRequest) *pluginv1.ValidateRequest {
	return &pluginv1.ValidateRequest{Connector: r.Connector, Type: r.Type, Config: r.Config}
}

// DecodeValidateRequest reads a ValidateRequest.
func DecodeValidateRequest(r *pluginv1.ValidateRequest) *source.ValidateRequest {
	return &source.ValidateRequest{Connector: r.GetConnector(), Type: r.GetType(), Config: r.GetConfig()}
}

// EncodeValidation makes the answer to Validate.
func EncodeValidation(v *source.Validation) *pluginv1.ValidateResponse {
	out := &pluginv1.ValidateResponse{
		ExactlyOnce:         pluginv1.Possible(v.ExactlyOnce),
		ConnectorBoundaries: pluginv1.Possible(v.ConnectorBoundaries),
	}
	for _, p := range v.Problems {
		out.Problems = append(out.Problems, &pluginv1.Problem{Key: p.Key, Message: p.Message, Hint: p.Hint, Warning: p.Warning})
	}
	for i := range v.Refined {
		out.Refined = append(out.Refined, encodeKey(&v.Refined[i]))
	}
	return out
}

// DecodeValidation reads the answer to Validate.
func DecodeValidation(v *pluginv1.ValidateResponse) *source.Validation {
	out := &source.Validation{
		ExactlyOnce:         decodePossible(v.GetExactlyOnce()),
		ConnectorBoundaries: decodePossible(v.GetConnectorBoundaries()),
	}
	for _, p := range v.GetProblems() {
		out.Problems = append(out.Problems, source.Problem{
			Key: p.GetKey(), Message: p.GetMessage(), Hint: p.GetHint(), Warning: p.GetWarning(),
		})
	}
	for _, k := range v.GetRefined() {
		out.Refined = append(out.Refined, decodeKey(k))
	}
	return out
}

// decodePossible takes whatever isn't a clear answer for Unknown.
func decodePossible(p pluginv1.Possible) source.Possible {
	switch p {
	case pluginv1.Possible_POSSIBLE_YES:
		return source.Yes
	case pluginv1.Possible_POSSIBLE_NO:
		return source.No
	default:
		return source.Unknown
	}
}

// EncodeAlterRequest makes an AlterOffsetsRequest.
func EncodeAlterRequest(r *source.AlterRequest) *pluginv1.AlterOffsetsRequest {
	return &pluginv1.AlterOffsetsRequest{
		Connector: r.Connector, Type: r.Type, Config: r.Config, Offsets: EncodeOffsets(r.Offsets),
	}
}

// DecodeAlterRequest reads an AlterOffsetsRequest.
func DecodeAlterRequest(r *pluginv1.AlterOffsetsRequest) *source.AlterRequest {
	return &source.AlterRequest{
		Connector: r.GetConnector(), Type: r.GetType(), Config: r.GetConfig(), Offsets: DecodeOffsets(r.GetOffsets()),
	}
}

// EncodeAlterAnswer makes the answer to AlterOffsets.
func EncodeAlterAnswer(a *source.AlterAnswer) *pluginv1.AlterOffsetsResponse {
	switch {
	case a.Veto != "":
		return &pluginv1.AlterOffsetsResponse{Verdict: pluginv1.AlterOffsetsResponse_VERDICT_VETO, Reason: a.Veto}
	case a.Done:
		return &pluginv1.AlterOffsetsResponse{Verdict: pluginv1.AlterOffsetsResponse_VERDICT_DONE}
	default:
		return &pluginv1.AlterOffsetsResponse{Verdict: pluginv1.AlterOffsetsResponse_VERDICT_NOT_MINE}
	}
}

// DecodeAlterAnswer reads the answer to AlterOffsets. A verdict that isn't known is a veto: storing offsets that a plugin may have refused could lose records.
func DecodeAlterAnswer(a *pluginv1.AlterOffsetsResponse) *source.AlterAnswer {
	switch a.GetVerdict() {
	case pluginv1.AlterOffsetsResponse_VERDICT_DONE:
		return &source.AlterAnswer{Done: true}
	case pluginv1.AlterOffsetsResponse_VERDICT_NOT_MINE, pluginv1.AlterOffsetsResponse_VERDICT_UNSPECIFIED:
		return &source.AlterAnswer{}
	default:
		reason := a.GetReason()
		if reason == "" {
			reason = "the plugin refused the offsets and gave no reason"
		}
		return &source.AlterAnswer{Veto: reason}
	}
}

// EncodeOffsets makes the wire form of stored offsets.
func EncodeOffsets(offsets []source.PartitionOffset) []*pluginv1.PartitionOffset {
	out := make([]*pluginv1.PartitionOffset, len(offsets))
	for i, o := range offsets {
		out[i] = &pluginv1.PartitionOffset{Partition: o.Partition, Offset: o.Offset}
	}
	return out
}

// DecodeOffsets reads stored offsets.
func DecodeOffsets(offsets []*pluginv1.PartitionOffset) []source.PartitionOffset {
	out := make([]source.PartitionOffset, len(offsets))
	for i, o := range offsets {
		out[i] = source.PartitionOffset{Partition: o.GetPartition(), Offset: o.GetOffset()}
	}
	return out
}
