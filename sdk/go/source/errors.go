package source

import "fmt"

// shownPartition is how much of a source partition an error shows.
const shownPartition = 300

// ErrorKind says what an error means for a task or a plan; the numbers are those of the protocol.
type ErrorKind int32

// The kinds.
const (
	// Retriable errors may go away: the task is opened again with back-off, within a budget.
	Retriable ErrorKind = 1
	// Configuration errors fail the task until the configuration changes.
	Configuration ErrorKind = 2
	// Fatal errors fail the task until somebody restarts it.
	Fatal ErrorKind = 3
)

// Error is an error that users see. An error of another type is Retriable.
type Error struct {
	Kind ErrorKind
	// Message says what is wrong. It doesn't repeat the key, the hint and the partition.
	Message string
	// Key is the configuration key, where there is one.
	Key string
	// Hint says what to do about it.
	Hint string
	// Partition is the source partition, where there is one.
	Partition JSON
	// Err is the cause, for errors.Is; it isn't shown and doesn't cross a process boundary.
	Err error
}

// Error is the message with its source partition, key and hint.
func (e *Error) Error() string {
	s := e.Message
	if len(e.Partition) > 0 {
		s = fmt.Sprintf("source partition %.*s: %s", shownPartition, e.Partition, s)
	}
	if e.Key != "" {
		s = e.Key + ": " + s
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fatalf makes a Fatal error.
func Fatalf(format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: Fatal, Message: err.Error(), Err: err}
}

// Retryf makes a Retriable error.
func Retryf(format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: Retriable, Message: err.Error(), Err: err}
}

// Configf makes a Configuration error of a key.
func Configf(key, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: Configuration, Key: key, Message: err.Error(), Err: err}
}
