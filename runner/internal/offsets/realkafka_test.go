package offsets

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	broker "github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
)

// TestRealKafka has what only a real broker decides. FENCEPOST_KAFKA_LIBS names the folder with Kafka's jars; make test sets it.
func TestRealKafka(t *testing.T) {
	broker.Need(t)
	const user, password = "weak", "weak-secret"
	kafka, err := broker.Start(t.Context(), broker.Options{Dir: t.TempDir(), Fast: true, Users: []broker.User{{Name: user, Password: password}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Kill)
	b := newBed(t, kafka.AdminAddr)

	id, err := Ensure(b.limited(), b.config())
	if err != nil {
		t.Fatal(err)
	}
	known := b.config()
	known.KnownID = id
	if again, err := Ensure(b.limited(), known); err != nil || again != id {
		t.Errorf("the second Ensure returned %s and %v, want %s", again, err, id)
	}
	t.Run("load waits for a sibling's open transaction", func(t *testing.T) { checkSibling(t, newBed(t, kafka.AdminAddr)) })
	wantShown(t, b.load(), `{"src":"own"} → {"n":7}`)

	weak := known
	weak.Client = map[string]string{"bootstrap.servers": kafka.Addr, "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password,
		"linger.ms": "3"}
	if _, err := Load(b.limited(), weak); publish.Classify(err).Cause != "rights" {
		t.Errorf("Load without rights returned %v", err)
	}
	acls := kadm.NewACLs().Topics(topic).Operations(kadm.OpRead, kadm.OpDescribe).Allow("User:" + user).AllowHosts().ResourcePatternType(kadm.ACLPatternLiteral)
	if _, err := b.admin.CreateACLs(t.Context(), acls); err != nil {
		t.Fatal(err)
	}
	// Ensure is for those who write. To load, Read on the topic is enough: no right on any group is needed.
	if _, err := Ensure(b.limited(), weak); publish.Classify(err).Cause != "rights" || !strings.Contains(err.Error(), "write") {
		t.Errorf("Ensure without the right to write returned %v", err)
	}
	s, err := Load(b.limited(), weak)
	if err != nil {
		t.Fatal(err)
	}
	wantShown(t, s, `{"src":"own"} → {"n":7}`)

	if _, err := b.admin.DeleteTopic(b.limited(), topic); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(b.limited(), known); publish.Classify(err).Cause != "offsets" {
		t.Errorf("Ensure of a deleted topic returned %v", err)
	}
	b.create(1)
	if _, err := Ensure(b.limited(), known); publish.Classify(err).Cause != "offsets" {
		t.Errorf("Ensure of a replaced topic returned %v", err)
	}
}
