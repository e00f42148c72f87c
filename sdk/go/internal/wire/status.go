package wire

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// EncodeError makes the Error message of a stream. An error that isn't a *source.Error is Retriable.
func EncodeError(err error) *pluginv1.Error {
	var e *source.Error
	if !errors.As(err, &e) {
		return &pluginv1.Error{Kind: pluginv1.ErrorKind_ERROR_KIND_RETRIABLE, Message: ValidText(err.Error())}
	}
	message := e.Message
	if text := err.Error(); text != e.Error() {
		// Whoever wrapped the error said where it happened. Key and hint are fields of their own, so they aren't repeated in the text.
		message = strings.Replace(text, e.Error(), e.Message, 1)
	}
	return &pluginv1.Error{
		Kind: pluginv1.ErrorKind(e.Kind), Message: ValidText(message), Key: ValidText(e.Key), Hint: ValidText(e.Hint), Partition: e.Partition,
	}
}

// DecodeError reads the Error message of a stream. A kind that isn't known is Fatal.
func DecodeError(e *pluginv1.Error) *source.Error {
	kind := source.Fatal
	switch e.GetKind() {
	case pluginv1.ErrorKind_ERROR_KIND_RETRIABLE:
		kind = source.Retriable
	case pluginv1.ErrorKind_ERROR_KIND_CONFIGURATION:
		kind = source.Configuration
	}
	message := e.GetMessage()
	if message == "" {
		message = "the plugin reported an error without a message"
	}
	return &source.Error{Kind: kind, Message: message, Key: e.GetKey(), Hint: e.GetHint(), Partition: e.GetPartition()}
}

// EncodeStatus makes the gRPC status with which a call fails, or nil for nil. The Error message travels in the status' details, so that key and hint aren't lost
// between SDKs that know it; the code alone says enough for all others.
func EncodeStatus(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return status.Error(codes.Canceled, ValidText(err.Error()))
	}
	e := EncodeError(err)
	code := codes.Internal
	switch e.Kind {
	case pluginv1.ErrorKind_ERROR_KIND_RETRIABLE:
		code = codes.Unavailable
	case pluginv1.ErrorKind_ERROR_KIND_CONFIGURATION:
		code = codes.InvalidArgument
	}
	st := status.New(code, e.Message)
	if detailed, err := st.WithDetails(e); err == nil {
		st = detailed
	}
	return st.Err()
}

// ErrUnimplemented says that the plugin has no such ability.
var ErrUnimplemented = errors.New("the plugin has no such ability")

// DecodeStatus turns the error of a gRPC call into what plugin.proto says it means, and nil into nil. ErrUnimplemented and the context's errors can be asked for with errors.Is.
func DecodeStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return &source.Error{Kind: source.Retriable, Message: err.Error(), Err: err}
	}
	for _, d := range st.Details() {
		if e, ok := d.(*pluginv1.Error); ok {
			out := DecodeError(e)
			out.Err = err
			return out
		}
	}
	e := &source.Error{Kind: source.Fatal, Message: st.Message(), Err: err}
	switch st.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition:
		e.Kind = source.Configuration
	case codes.Unavailable, codes.Aborted, codes.ResourceExhausted:
		e.Kind = source.Retriable
	case codes.DeadlineExceeded:
		e.Kind, e.Err = source.Retriable, context.DeadlineExceeded
	case codes.Canceled:
		e.Kind, e.Err = source.Retriable, context.Canceled
	case codes.Unimplemented:
		e.Err = ErrUnimplemented
	}
	if e.Message == "" {
		e.Message = "the plugin failed with " + st.Code().String() + " and no message"
	}
	return e
}

// ValidText keeps a text field from breaking the stream: gRPC refuses strings that aren't UTF-8.
func ValidText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
