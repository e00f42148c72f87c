// Package kafkaclient makes the coordinator's Kafka clients from the keys that users know from librdkafka: who the cluster is, and how to prove who we are.
//
// The coordinator has its own client (franz-go), so only the keys that say how to connect mean anything to it: security.protocol, sasl.* and ssl.* of the list in Keys. Every other key is
// refused by name instead of being dropped. All mistakes are reported at once. Secrets never appear in an error or a log line (I9).
//
// Direct sends single requests to the broker that must answer them, without the client's own retries: whoever counts attempts (fencing, the config log) needs to see each one.
// Explain says in a user's words why a broker can't be talked to. Next: configlog, which holds leadership over such a client, and fence.
package kafkaclient

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const (
	dialTimeout    = 5 * time.Second
	requestTimeout = 5 * time.Second
	// Longest that one read-only request is repeated inside the client.
	retryTimeout = 10 * time.Second
	maxBackoff   = 250 * time.Millisecond
)

// Map is the `kafka:` map of a configuration file. Its secrets print as *** in every format (I9).
type Map map[string]string

// Format shows the keys, and the values of those that are no secrets, whatever the verb.
func (m Map) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, m.shown()) }

// MarshalJSON hides the secrets.
func (m Map) MarshalJSON() ([]byte, error) { return json.Marshal(m.shown()) }

func (m Map) shown() map[string]string {
	shown := maps.Clone(map[string]string(m))
	for key := range shown {
		// Whatever isn't known may be a secret of another client.
		if !slices.Contains(known, key) || key == keyPassword || key == keyKeyPassword {
			shown[key] = "***"
		}
	}
	return shown
}

// Problem is one mistake in the settings.
type Problem struct {
	// Key is the setting.
	Key string
	// Message says what is wrong, and Hint what would be right.
	Message, Hint string
}

// Problems is all of them; it is never an empty error.
type Problems []Problem

// Error has one line a problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.Key + ": " + problem.Message
		if problem.Hint != "" {
			lines[i] += " (" + problem.Hint + ")"
		}
	}
	return strings.Join(lines, "\n")
}

// Settings is how to reach and convince a Kafka cluster. It is made by Parse and never changes.
type Settings struct {
	seeds []string
	login bool
	opts  []kgo.Opt
}

// Parse reads the bootstrap servers (HOST:PORT, separated by commas) and the `kafka:` map of a configuration file. The error is Problems and has every mistake. Files
// named by ssl.* keys are read now.
func Parse(bootstrap string, keys Map) (*Settings, error) {
	p := &parser{keys: keys}
	seeds := p.seeds(bootstrap)
	p.refuseUnknown()
	useTLS, useSASL := p.protocol()
	tlsConfig := p.tls(useTLS)
	mechanism := p.sasl(useSASL)
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.ClientID("fencepost-coordinator"), kgo.DisableClientMetrics(), kgo.DialTimeout(dialTimeout),
		kgo.RequestTimeoutOverhead(requestTimeout), kgo.RetryTimeout(retryTimeout), kgo.RetryBackoffFn(backoff), kgo.MaxVersions(versions()),
	}
	if tlsConfig != nil {
		opts = append(opts, kgo.DialTLSConfig(tlsConfig))
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return &Settings{seeds: seeds, login: useSASL, opts: opts}, nil
}

// NewClient makes a client. Whoever calls it closes it.
func (s *Settings) NewClient(extra ...kgo.Opt) (*kgo.Client, error) {
	cl, err := kgo.NewClient(append(slices.Clone(s.opts), extra...)...)
	if err != nil {
		return nil, fmt.Errorf("make a Kafka client for %s: %w", s, err)
	}
	return cl, nil
}

// String is the bootstrap servers.
func (s *Settings) String() string { return strings.Join(s.seeds, ",") }

// versions pins the requests that end transactions to the protocol that runners speak too (librdkafka 2.11.1): later versions of AddPartitionsToTxn are for brokers only, and later ones of EndTxn
// and Produce raise the epoch with each transaction.
func versions() *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(0, 11) // Produce
	v.SetMaxKeyVersion(24, 3) // AddPartitionsToTxn
	v.SetMaxKeyVersion(26, 3) // EndTxn
	v.SetMaxKeyVersion(27, 1) // WriteTxnMarkers: later ones tell of that protocol
	return v
}

func backoff(fails int) time.Duration {
	return min(5*time.Millisecond<<min(fails, 10), maxBackoff)
}

// parser collects problems while it reads the keys.
type parser struct {
	keys     Map
	problems Problems
}

func (p *parser) problem(key, hint, format string, args ...any) {
	p.problems = append(p.problems, Problem{Key: key, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// Keys are the keys of the `kafka:` map that the coordinator understands, sorted.
func Keys() []string { return slices.Sorted(slices.Values(known)) }

const (
	keyProtocol        = "security.protocol"
	keyMechanism       = "sasl.mechanism"
	keyMechanisms      = "sasl.mechanisms"
	keyUsername        = "sasl.username"
	keyPassword        = "sasl.password"
	keyCALocation      = "ssl.ca.location"
	keyCAPEM           = "ssl.ca.pem"
	keyCertificate     = "ssl.certificate.location"
	keyKey             = "ssl.key.location"
	keyKeyPassword     = "ssl.key.password"
	keyIdentification  = "ssl.endpoint.identification.algorithm"
	keyVerify          = "enable.ssl.certificate.verification"
	bootstrapKey       = "bootstrap-servers"
	protocolsHint      = "one of plaintext, ssl, sasl_plaintext, sasl_ssl"
	mechanismsHint     = "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"
	needsSSLHint       = "set security.protocol to ssl or sasl_ssl, or remove it"
	needsSASLHint      = "set security.protocol to sasl_ssl or sasl_plaintext, or remove it"
	defaultBrokerPort  = "9092"
	mechanismPlain     = "PLAIN"
	mechanismSCRAM256  = "SCRAM-SHA-256"
	mechanismSCRAM512  = "SCRAM-SHA-512"
	identificationHTTP = "https"
	identificationNone = "none"
)

var known = []string{
	keyProtocol, keyMechanism, keyMechanisms, keyUsername, keyPassword, keyCALocation, keyCAPEM, keyCertificate, keyKey, keyKeyPassword, keyIdentification, keyVerify,
}

func (p *parser) seeds(bootstrap string) []string {
	var seeds []string
	for _, seed := range strings.Split(bootstrap, ",") {
		seed = strings.TrimSpace(seed)
		if seed == "" {
			continue
		}
		if at := strings.Index(seed, "://"); at >= 0 {
			seed = seed[at+3:]
		}
		host, port, err := net.SplitHostPort(seed)
		var missing *net.AddrError
		if errors.As(err, &missing) && missing.Err == "missing port in address" {
			host, port, err = net.SplitHostPort(seed + ":" + defaultBrokerPort)
		}
		if number, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || number == 0 || host == "" {
			p.problem(bootstrapKey, "HOST:PORT, several separated by commas", "%q is not an address", seed)
			continue
		}
		seeds = append(seeds, net.JoinHostPort(host, port))
	}
	if len(seeds) == 0 && len(p.problems) == 0 {
		p.problem(bootstrapKey, "HOST:PORT, several separated by commas", "no broker's address is given")
	}
	return seeds
}

func (p *parser) refuseUnknown() {
	for _, key := range slices.Sorted(maps.Keys(p.keys)) {
		if !slices.Contains(known, key) {
			p.problem(key, "put it in the runner's file", "the coordinator uses its own client: %s isn't one of %s", key, strings.Join(Keys(), ", "))
		}
	}
}

func (p *parser) protocol() (useTLS, useSASL bool) {
	value := p.keys[keyProtocol]
	switch strings.ToLower(value) {
	case "", "plaintext":
	case "ssl":
		return true, false
	case "sasl_plaintext":
		return false, true
	case "sasl_ssl":
		return true, true
	default:
		p.problem(keyProtocol, protocolsHint, "%q is not a protocol", value)
		return true, true // Whatever is meant, don't call the other keys superfluous.
	}
	return false, false
}

func (p *parser) sasl(use bool) sasl.Mechanism {
	if !use {
		p.superfluous(needsSASLHint, keyMechanism, keyMechanisms, keyUsername, keyPassword)
		return nil
	}
	key, name := keyMechanism, p.keys[keyMechanism]
	if other, ok := p.keys[keyMechanisms]; ok {
		if name != "" && !strings.EqualFold(name, other) {
			p.problem(keyMechanisms, "they are two names of one key: keep one", "differs from sasl.mechanism")
		}
		key, name = keyMechanisms, other
	}
	user, password := p.keys[keyUsername], p.keys[keyPassword]
	for _, needed := range []string{keyUsername, keyPassword} {
		if p.keys[needed] == "" {
			p.problem(needed, "", "is needed with security.protocol %s", p.keys[keyProtocol])
		}
	}
	switch strings.ToUpper(name) {
	case mechanismPlain:
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case mechanismSCRAM256:
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	case mechanismSCRAM512:
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	case "":
		p.problem(keyMechanism, mechanismsHint, "is needed with security.protocol %s", p.keys[keyProtocol])
	default:
		p.problem(key, mechanismsHint, "%q is not a mechanism that the coordinator knows", name)
	}
	return nil
}

func (p *parser) superfluous(hint string, keys ...string) {
	for _, key := range keys {
		if _, ok := p.keys[key]; ok {
			p.problem(key, hint, "has no effect with security.protocol %s", cmp.Or(p.keys[keyProtocol], "plaintext"))
		}
	}
}
