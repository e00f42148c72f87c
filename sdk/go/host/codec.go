package host

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one is built on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/runtime/protoiface"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// codec decodes RunResponse so that byte fields, the arena above all, point into the received message instead of being copied out of it: one copy of every
// record less on the hot path. The message's memory is the garbage collector's then, never a pool's. Everything else is the ordinary codec's work.
type codec struct{}

var _ encoding.CodecV2 = codec{}

// maxUnmarshalDepth is what proto.Unmarshal allows by default.
const maxUnmarshalDepth = 10_000

func (codec) Marshal(v any) (mem.BufferSlice, error) { return encoding.GetCodecV2("proto").Marshal(v) }

func (codec) Name() string { return "proto" }

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*pluginv1.RunResponse)
	if !ok {
		return encoding.GetCodecV2("proto").Unmarshal(data, v)
	}
	methods := m.ProtoReflect().ProtoMethods()
	if methods == nil || methods.Unmarshal == nil {
		return encoding.GetCodecV2("proto").Unmarshal(data, v)
	}
	_, err := methods.Unmarshal(protoiface.UnmarshalInput{
		Message:  m.ProtoReflect(),
		Buf:      data.Materialize(),
		Flags:    protoiface.UnmarshalAliasBuffer,
		Resolver: protoregistry.GlobalTypes,
		Depth:    maxUnmarshalDepth,
	})
	if err != nil {
		return fmt.Errorf("decode RunResponse: %w", err)
	}
	return nil
}
