package task

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Class says what the end of an attempt means for its task.
type Class uint8

// The classes.
const (
	// Again: it may go away. The next attempt goes through the whole order of a start.
	Again Class = iota + 1
	// Stop: the task isn't this runner's any more, or it was told to leave everything.
	Stop
	// Fail: it can't work until somebody changes something.
	Fail
)

// String names the class.
func (c Class) String() string {
	return [...]string{"none", "again", "stop", "fail"}[c]
}

// Causes, one word each for statuses and metrics, beside those of publish that are found out here, too. The others of publish are used as they are.
const (
	// CauseCoordinator: the coordinator didn't answer, or refused.
	CauseCoordinator = "coordinator"
	// CausePlugin: the plugin crashed, or broke the protocol.
	CausePlugin = "plugin"
	// CauseSource: the plugin reported an error.
	CauseSource = "source"
	// CauseConfig: the configuration is wrong.
	CauseConfig = publish.CauseConfig
	// CauseRecord: a record can't be converted or published.
	CauseRecord = publish.CauseRecord
	// CauseTopic: a topic doesn't exist or isn't allowed.
	CauseTopic = publish.CauseTopic
	// CauseFenced: another producer has the id, or the transaction expired; Kafka says the same of both.
	CauseFenced = publish.CauseFenced
	// CauseExpired: a transaction was open for too long. The next attempt takes smaller ones.
	CauseExpired = publish.CauseExpired
	// CauseTimestamp: Kafka refuses a record's time. CauseClock: it is this host's time, since no record of the transaction has one of its own.
	CauseTimestamp = publish.CauseTimestamp
	CauseClock     = "clock"
	// CauseHost: this host can't run the plugin, or has no room; another one may.
	CauseHost = "host"
	// CauseUnproven: there is no leader, and no transaction succeeds.
	CauseUnproven = "unproven"
	// CauseAbandoned: the context ended.
	CauseAbandoned = "abandoned"
	// CauseBug: something here is broken.
	CauseBug = "bug"
)

// Failure is the end of an attempt that wasn't asked for by a drain.
type Failure struct {
	Class Class
	// Cause is one word.
	Cause string
	// Progress says that the attempt committed something: whoever counts attempts may start again.
	Progress bool
	// PluginLeft says that the plugin didn't end its stream, and may still hold on to the source: its process has to go.
	PluginLeft bool
	// Err says what happened and what to do about it, for users.
	Err error
}

// Error is the text for users.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

func failure(class Class, cause, format string, args ...any) *Failure {
	return &Failure{Class: class, Cause: cause, Err: fmt.Errorf(format, args...)}
}

// broken is a rule of the protocol that the plugin broke. Trying again can't help.
func broken(format string, args ...any) *Failure {
	return &Failure{Class: Fail, Cause: CausePlugin, Err: fmt.Errorf("the plugin broke the protocol: "+format, args...)}
}

// fromCoordinator maps an error of the coordinator.
func fromCoordinator(err error) *Failure {
	var permanent *lease.PermanentError
	switch {
	case errors.Is(err, lease.ErrRefused):
		return &Failure{Class: Stop, Cause: CauseCoordinator, Err: err}
	case errors.As(err, &permanent):
		return &Failure{Class: Fail, Cause: CauseCoordinator, Err: permanent}
	}
	return &Failure{Class: Again, Cause: CauseCoordinator, Err: err}
}

// saidByKafka keeps the cause of a verdict beside its text.
type saidByKafka struct {
	text string
	err  error
}

func (s *saidByKafka) Error() string { return s.text }
func (s *saidByKafka) Unwrap() error { return s.err }

// fromKafka maps an error of the publisher or the offsets. What errors mean is decided in publish alone.
func fromKafka(err error) *Failure {
	v := publish.Classify(err)
	f := &Failure{Class: Again, Cause: v.Cause, Err: err}
	if v.Text != "" {
		f.Err = &saidByKafka{text: v.Text, err: err}
	}
	switch v.Class {
	case publish.Stop:
		f.Class = Stop
	case publish.Fail:
		f.Class = Fail
	}
	// I4: RetryCall, Again and Ask all go back to the coordinator, and on from what is stored. Nothing is tried again from memory.
	return f
}

// fromPlugin maps the error with which a plugin's Run ended. One that isn't a *source.Error is a crash, or a connection that broke.
func fromPlugin(err error) *Failure {
	if err == nil {
		return failure(Again, CausePlugin, "the plugin ended its stream without being asked to")
	}
	var own *Failure
	if errors.As(err, &own) {
		return own
	}
	var said *source.Error
	if !errors.As(err, &said) {
		return &Failure{Class: Again, Cause: CausePlugin, Err: fmt.Errorf("plugin: %w", err)}
	}
	f := &Failure{Class: Again, Cause: CauseSource, Err: err}
	switch said.Kind {
	case source.Configuration:
		f.Class, f.Cause = Fail, CauseConfig
	case source.Fatal:
		f.Class = Fail
	}
	return f
}

// expired says that a transaction was open for too long.
func expired(records int, bytes int64, open, timeout time.Duration, why string) *Failure {
	return failure(Again, CauseExpired, "a transaction of %d records (%d bytes) was open for %s, and transaction.timeout.ms is %s%s",
		records, bytes, open.Round(time.Millisecond), timeout, why)
}

// becauseOf gives, where another stage ended the context, that stage's reason: what the writer met was its consequence.
func becauseOf(ctx context.Context, err error) error {
	var own *Failure
	if err != nil && errors.As(context.Cause(ctx), &own) {
		return own
	}
	return err
}

// abandoned says that the context ended; where a stage here ended it, that is why.
func abandoned(ctx context.Context) *Failure {
	var own *Failure
	if errors.As(context.Cause(ctx), &own) {
		return own
	}
	return &Failure{Class: Stop, Cause: CauseAbandoned, Err: context.Cause(ctx)}
}
