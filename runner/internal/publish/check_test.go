package publish

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func keysOf(problems []source.Problem) []string {
	var keys []string
	for _, p := range problems {
		keys = append(keys, p.Key)
	}
	return keys
}

func TestClientConfigIsCheckedKeyByKey(t *testing.T) {
	cases := []struct {
		name   string
		keys   map[string]string
		want   []string // keys of the problems
		saying []string
	}{
		{"good", map[string]string{"linger.ms": "20", "compression.type": "zstd", "security.protocol": "plaintext", "transaction.timeout.ms": "30000", "client.id": "x"}, nil, nil},
		{"login", map[string]string{"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "u", "sasl.password": "p"}, nil, nil},
		{"unknown", map[string]string{"linger.msec": "5"}, []string{"linger.msec"}, []string{"did you mean linger.ms?"}},
		{"nothing near", map[string]string{"zzzzzzzzzzzzzz": "5"}, []string{"zzzzzzzzzzzzzz"}, []string{"list of settings"}},
		{"owned", map[string]string{"acks": "1", "transactional.id": "x", "enable.idempotence": "false", "isolation.level": "read_uncommitted", "group.id": "g", "go.delivery.reports": "false", "bootstrap.servers": "x:1"},
			[]string{"acks", "bootstrap.servers", "enable.idempotence", "go.delivery.reports", "group.id", "isolation.level", "transactional.id"}, nil},
		{"code is never loaded", map[string]string{"plugin.library.paths": "/tmp/x.so"}, []string{"plugin.library.paths"}, nil},
		{"value", map[string]string{"compression.type": "rar", "batch.size": "many", "linger.ms": "-1"}, []string{"batch.size", "compression.type", "linger.ms"}, nil},
		{"twice by an alias", map[string]string{"linger.ms": "1", "queue.buffering.max.ms": "2"}, []string{"queue.buffering.max.ms"}, []string{"linger.ms"}},
		{"time-outs", map[string]string{"transaction.timeout.ms": "5000", "message.timeout.ms": "60000"}, []string{"message.timeout.ms"}, []string{"transaction.timeout.ms"}},
		{"time-outs by an alias", map[string]string{"delivery.timeout.ms": "60000"}, []string{"delivery.timeout.ms"}, nil},
		{"no end", map[string]string{"message.timeout.ms": "0"}, []string{"message.timeout.ms"}, nil},
		{"together", map[string]string{"max.in.flight": "9"}, []string{"max.in.flight"}, nil},
		{"file", map[string]string{"security.protocol": "ssl", "ssl.ca.location": "/nowhere/ca.pem"}, []string{"ssl.ca.location"}, nil},
		{"mechanism", map[string]string{"security.protocol": "sasl_plaintext", "sasl.mechanism": "NONE"}, []string{"sasl.mechanism"}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			problems := CheckClientConfig(c.keys)
			if diff := cmp.Diff(c.want, keysOf(problems)); diff != "" {
				t.Errorf("problems %+v:\n%s", problems, diff)
			}
			for i, want := range c.saying {
				if text := problems[i].Message + " " + problems[i].Hint; !strings.Contains(text, want) {
					t.Errorf("%q doesn't say %q", text, want)
				}
			}
		})
	}
}

func TestOverridesMayNotChangeTheCluster(t *testing.T) {
	problems := CheckOverrides(nil, map[string]string{
		"security.protocol": "plaintext", "sasl.username": "u", "ssl.ca.location": "/x", "bootstrap.servers": "x:1", "enable.ssl.certificate.verification": "false", "linger.ms": "1",
	})
	want := []string{"bootstrap.servers", "enable.ssl.certificate.verification", "sasl.username", "security.protocol", "ssl.ca.location"}
	if diff := cmp.Diff(want, keysOf(problems)); diff != "" {
		t.Errorf("problems %+v:\n%s", problems, diff)
	}
}

func TestNewRefusesOverridesThatAreNotTheConnectors(t *testing.T) {
	for _, key := range []string{"bootstrap.servers", "sasl.username", "acks", "transactional.id", "go.events.channel.size"} {
		_, err := New(Config{TransactionalID: "id", Client: map[string]string{keyBootstrap: "127.0.0.1:1"}, Overrides: map[string]string{key: "1"}})
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("New with %s returned %v", key, err)
		}
	}
}

func TestOverridesAreCheckedOnTopOfTheRunnersKeys(t *testing.T) {
	client := map[string]string{"message.timeout.ms": "20000", "bootstrap.servers": "x:1"}
	if problems := CheckOverrides(client, map[string]string{"linger.ms": "1"}); len(problems) != 0 {
		t.Errorf("problems: %+v", problems)
	}
	if problems := CheckOverrides(client, map[string]string{"transaction.timeout.ms": "10000"}); len(problems) != 1 {
		t.Errorf("problems: %+v, want one", problems)
	}
}

func TestSecretsAreNotInProblems(t *testing.T) {
	const secret = "hunter2"
	for key := range aliases {
		_ = CheckClientConfig(map[string]string{key: secret})
	}
	for _, key := range append(knownKeys(), "sasl.pasword", "ssl.key.pasword") {
		for _, p := range CheckClientConfig(map[string]string{key: secret, "security.protocol": "sasl_ssl"}) {
			if secretKey := strings.Contains(key, "pas") || strings.Contains(key, "secret"); secretKey && strings.Contains(p.Message+p.Hint, secret) {
				t.Errorf("%s: %+v", key, p)
			}
		}
	}
}

func TestSettingsWinInOrder(t *testing.T) {
	base := Config{TransactionalID: "id", Client: map[string]string{keyBootstrap: "x:1", "queue.buffering.max.ms": "7", "batch.size": "1000"},
		Overrides: map[string]string{"batch.size": "2000"}}
	settings, timeout, err := clientSettings(base)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"linger.ms": "7", "batch.size": "2000", "client.id": "id", "transactional.id": "id", "acks": "all", keyTransactionTimeout: "60000", keyMessageTimeout: "30000"}
	for key, value := range want {
		if settings[key] != value {
			t.Errorf("%s is %v, want %v", key, settings[key], value)
		}
	}
	if _, both := settings["queue.buffering.max.ms"]; both {
		t.Error("both names of linger.ms are set")
	}
	if timeout != time.Minute {
		t.Errorf("time-out is %v", timeout)
	}
}

func TestMessageTimeoutIsBelowTheTransactions(t *testing.T) {
	cfg := Config{TransactionalID: "id", Client: map[string]string{keyBootstrap: "x:1"}, Overrides: map[string]string{keyTransactionTimeout: "8000"}, TransactionTimeout: time.Hour}
	settings, timeout, err := clientSettings(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if timeout != 8*time.Second || settings[keyMessageTimeout] != "4000" {
		t.Errorf("time-out %v, message time-out %v", timeout, settings[keyMessageTimeout])
	}
}
