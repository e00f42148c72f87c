package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// TestEveryCodeOfLibrdkafkaHasARule goes over all codes that the linked library has a name for.
func TestEveryCodeOfLibrdkafkaHasARule(t *testing.T) {
	known := 0
	for code := kafka.ErrorCode(-200); code < 500; code++ {
		if name := code.String(); code == kafka.ErrNoError || strings.HasPrefix(name, "Err-") || name == "(null)" {
			continue
		}
		known++
		r, ok := rules[code]
		if !ok {
			t.Errorf("no rule for %d (%v)", code, code)
			continue
		}
		if r.class == None || r.cause == "" || r.advice == "" {
			t.Errorf("the rule for %d (%v) is not complete: %+v", code, code, r)
		}
	}
	if known < 150 || known < len(rules) {
		t.Errorf("%d codes have a name, %d a rule", known, len(rules))
	}
}

// TestEveryCodeAndFlagHasAVerdict goes over code × fatal, for errors of each call. The binding gives no way to make an error with the other two flags; tests against a broker have those.
func TestEveryCodeAndFlagHasAVerdict(t *testing.T) {
	for code := range rules {
		for _, fatal := range []bool{false, true} {
			for _, op := range []op{"", opConnect, opInit, opBegin, opProduce, opCommit, opAbort} {
				var err error = kafka.NewError(code, "", fatal)
				if op != "" {
					err = &Error{Op: op, ID: "id", Bootstrap: "x:1", Err: err}
				}
				v := Classify(fmt.Errorf("task: %w", err))
				if v.Class == None || v.Cause == "" || !strings.Contains(v.Text, ": ") {
					t.Errorf("%v of %q: %+v", code, op, v)
				}
				if fatal && v.Class == RetryCall {
					t.Errorf("fatal %v of %q is to be repeated", code, op)
				}
			}
		}
	}
}

func TestClassify(t *testing.T) {
	code := func(code kafka.ErrorCode) error { return kafka.NewError(code, "", false) }
	fatal := func(code kafka.ErrorCode) error { return kafka.NewError(code, "", true) }
	cases := []struct {
		name  string
		err   error
		class Class
		cause string
		says  string
	}{
		{"nothing", nil, None, "", ""},
		{"broker away", code(kafka.ErrTransport), RetryCall, "broker", "asked again"},
		{"connecting", &Error{Op: opConnect, Bootstrap: "x:1", Err: code(kafka.ErrTransport)}, RetryCall, "broker", "x:1"},
		{"wrong password", &Error{Op: opConnect, Bootstrap: "x:1", Err: code(kafka.ErrTimedOut), Report: code(kafka.ErrAuthentication)}, Again, "login", "sasl"},
		{"message timed out", code(kafka.ErrMsgTimedOut), Again, "broker", "stored offsets"},
		{"fenced", &Error{Op: opCommit, Err: fatal(kafka.ErrFenced)}, Ask, "fenced", "still its own"},
		{"fenced by code of the broker", &Error{Op: opCommit, Err: fatal(kafka.ErrProducerFenced)}, Ask, "fenced", ""},
		{"expired", &Error{Op: opCommit, Err: fatal(kafka.ErrFenced), Expired: true, Open: 61 * time.Second}, Ask, "expired", "1m1s"},
		{"open long, but something else", &Error{Op: opCommit, Err: code(kafka.ErrMsgSizeTooLarge), Expired: true}, Fail, "record", "max.message.bytes"},
		{"produce after a fence", &Error{Op: opProduce, Topic: "t", Err: code(kafka.ErrFatal)}, Ask, "fenced", ""},
		{"commit without an answer", &Error{Op: opCommit, Err: code(kafka.ErrTimedOut), Unknown: true}, Ask, "unknown", "isn't known"},
		{"too large", &Error{Op: opProduce, Topic: "orders", Record: 7, Err: code(kafka.ErrMsgSizeTooLarge)}, Fail, "record", `"orders"`},
		{"not authorised", &Error{Op: opDescribe, Topic: "orders", Err: code(kafka.ErrTopicAuthorizationFailed)}, Fail, "rights", `"orders"`},
		{"id not authorised", &Error{Op: opInit, ID: "fencepost.x.y.0", Err: fatal(kafka.ErrTransactionalIDAuthorizationFailed)}, Fail, "rights", `(prefix "fencepost.x.", for all`},
		{"deliveries failed", &Error{Op: opCommit, Err: code(kafka.ErrInconsistent)}, Again, "delivery", "names the first"},
		{"deliveries failed, and which", &Error{Op: opCommit, Err: code(kafka.ErrInconsistent), Failure: &Failure{Topic: "orders", Key: `"k"`, Err: code(kafka.ErrTopicAuthorizationFailed)}}, Fail, "rights", `key "k"`},
		{"deliveries failed by time", &Error{Op: opCommit, Err: code(kafka.ErrInconsistent), Failure: &Failure{Err: code(kafka.ErrMsgTimedOut)}}, Again, "broker", ""},
		{"unknown topic", code(kafka.ErrUnknownTopic), Again, "topic", "create it"},
		{"compression", code(kafka.ErrUnsupportedCompressionType), Fail, "config", "compression.type"},
		{"time-out too long", fatal(kafka.ErrInvalidTransactionTimeout), Fail, "config", "transaction.max.timeout.ms"},
		{"a code of a later version", code(499), Again, "client", ""},
		{"a batch that doesn't fit", &Error{Op: opProduce, Topic: "t", Err: errors.New("columns")}, Fail, "record", "plugin"},
		{"stopped", &Error{Op: opProduce, Topic: "t", Err: context.Canceled}, Stop, "stopped", ""},
		{"too slow", &Error{Op: opProduce, Topic: "t", Err: context.DeadlineExceeded}, Again, "broker", ""},
		{"not closing", fmt.Errorf("close: %w", ErrMustExit), Fail, "exit", "restarted"},
		{"anything else", errors.New("what"), Again, "client", "what"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := Classify(c.err)
			if v.Class != c.class || v.Cause != c.cause || !strings.Contains(v.Text, c.says) {
				t.Errorf("verdict %+v, want %v, %s and a text with %q", v, c.class, c.cause, c.says)
			}
		})
	}
}
