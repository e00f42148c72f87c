package kafkaclient_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAllMistakesAtOnceEachWithItsKey(t *testing.T) {
	_, err := kafkaclient.Parse("a:1,b:99999", kafkaclient.Map{
		"security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI", "sasl.username": "u", "linger.ms": "5", "queue.buffering.max.messages": "1",
		"ssl.ca.location": "/does/not/exist", "ssl.endpoint.identification.algorithm": "dns", "enable.ssl.certificate.verification": "maybe", "ssl.key.location": "/k",
	})
	var problems kafkaclient.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("error %v", err)
	}
	var keys []string
	for _, p := range problems {
		keys = append(keys, p.Key)
	}
	want := []string{
		"bootstrap-servers", "linger.ms", "queue.buffering.max.messages", "ssl.ca.location", "ssl.certificate.location", "ssl.endpoint.identification.algorithm",
		"enable.ssl.certificate.verification", "sasl.password", "sasl.mechanism",
	}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Fatalf("keys (-want +got):\n%s\n%v", diff, err)
	}
	for _, text := range []string{"the coordinator uses its own client: linger.ms isn't one of", "put it in the runner's file", "SCRAM-SHA-256"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is missing in\n%v", text, err)
		}
	}
}

func TestKeysWithoutEffectAreRefused(t *testing.T) {
	for key, protocol := range map[string]string{"sasl.password": "ssl", "ssl.ca.pem": "sasl_plaintext", "ssl.key.password": "plaintext"} {
		_, err := kafkaclient.Parse("a:1", kafkaclient.Map{
			"security.protocol": protocol, key: "geheim", "sasl.username": "u", "sasl.mechanism": "PLAIN",
		})
		if err == nil || !strings.Contains(err.Error(), key+": has no effect") {
			t.Errorf("%s with %s: %v", key, protocol, err)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("a secret is shown: %v", err)
		}
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	m := kafkaclient.Map{"sasl.password": "geheim", "ssl.key.password": "geheim", "sasl.oauthbearer.client.secret": "geheim", "sasl.username": "alice"}
	shown, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(m), fmt.Sprintf("%#v", m), fmt.Sprintf("%+v", m), fmt.Sprintf("%q %x", m, m), string(shown), fmt.Sprintf("%+v", struct{ M kafkaclient.Map }{m})} {
		if strings.Contains(text, "geheim") || strings.Contains(text, fmt.Sprintf("%x", "geheim")) || !strings.Contains(text, "alice") {
			t.Errorf("printed %s", text)
		}
	}
}

// reach makes a client and asks the cluster for its metadata.
func reach(t *testing.T, bootstrap string, keys kafkaclient.Map) (*kafkaclient.Settings, error) {
	t.Helper()
	settings, err := kafkaclient.Parse(bootstrap, keys)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := settings.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = kmsg.NewPtrMetadataRequest().RequestWith(ctx, cl)
	return settings, err
}

func TestLogins(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser(mechanism, "alice", "right"))
			if err != nil {
				t.Fatal(err)
			}
			defer cluster.Close()
			keys := kafkaclient.Map{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": mechanism, "sasl.username": "alice", "sasl.password": "right"}
			if _, err := reach(t, cluster.ListenAddrs()[0], keys); err != nil {
				t.Fatalf("with the right password: %v", err)
			}
			keys["sasl.password"] = "wrong"
			settings, err := reach(t, cluster.ListenAddrs()[0], keys) // kfake closes the connection without an answer.
			if err == nil || !strings.Contains(settings.Explain(err), "during the login: check security.protocol, sasl.mechanism, sasl.username and sasl.password") {
				t.Fatalf("with a wrong password: %v", err)
			}
			cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				resp, ok := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
				if ok {
					resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
				}
				return resp, nil, ok
			})
			settings, err = reach(t, cluster.ListenAddrs()[0], keys)
			if !errors.Is(err, kerr.SaslAuthenticationFailed) {
				t.Fatalf("refused with an answer: %v", err)
			}
			if text := settings.Explain(err); !strings.Contains(text, "refused the user name or the password") || strings.Contains(text, "wrong") {
				t.Errorf("explained as %q", text)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	ca := newAuthority(t)
	server := ca.issue(t, "localhost")
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool()}))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	_, port, err := net.SplitHostPort(cluster.ListenAddrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	caFile := write(t, dir, "ca.pem", ca.certificatePEM())
	cert, key := ca.issuePEM(t, "client")
	certFile, keyFile := write(t, dir, "client.pem", cert), write(t, dir, "client.key", key)
	with := func(extra kafkaclient.Map) kafkaclient.Map {
		m := kafkaclient.Map{"security.protocol": "ssl", "ssl.ca.location": caFile, "ssl.certificate.location": certFile, "ssl.key.location": keyFile}
		for k, v := range extra {
			m[k] = v
		}
		return m
	}
	ip := net.JoinHostPort("127.0.0.1", port) // kfake advertises this, the certificate is for localhost.
	for name, c := range map[string]struct {
		keys kafkaclient.Map
		says string
	}{
		"wrong host":        {with(nil), "is for another host"},
		"host not checked":  {with(kafkaclient.Map{"ssl.endpoint.identification.algorithm": "none"}), ""},
		"nothing checked":   {with(kafkaclient.Map{"enable.ssl.certificate.verification": "false"}), ""},
		"authority as text": {with(kafkaclient.Map{"ssl.endpoint.identification.algorithm": "none", "ssl.ca.location": "", "ssl.ca.pem": string(ca.certificatePEM())}), ""},
		"authority unknown": {with(kafkaclient.Map{"ssl.endpoint.identification.algorithm": "none", "ssl.ca.location": write(t, dir, "other.pem", newAuthority(t).certificatePEM())}), "isn't known here"},
		"no TLS":            {kafkaclient.Map{}, "closed the connection at once"},
	} {
		t.Run(name, func(t *testing.T) {
			settings, err := reach(t, ip, c.keys)
			if (err == nil) != (c.says == "") {
				t.Fatalf("error %v", err)
			}
			if err != nil && !strings.Contains(settings.Explain(err), c.says) {
				t.Errorf("explained as %q", settings.Explain(err))
			}
		})
	}
}

func TestEncryptedKeysAreOpened(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	cert, key := ca.issuePEM(t, "client")
	certFile := write(t, dir, "client.pem", cert)
	for name, encrypted := range encryptedForms(t, key, "pass") {
		keyFile := write(t, dir, name, encrypted)
		keys := kafkaclient.Map{"security.protocol": "ssl", "ssl.certificate.location": certFile, "ssl.key.location": keyFile, "ssl.key.password": "pass"}
		if _, err := kafkaclient.Parse("a:1", keys); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, password := range []string{"geheim", ""} {
			keys["ssl.key.password"] = password
			_, err := kafkaclient.Parse("a:1", keys)
			if err == nil || !strings.Contains(err.Error(), "ssl.key.password") || strings.Contains(err.Error(), "geheim") {
				t.Errorf("%s with password %q: %v", name, password, err)
			}
		}
	}
}

func TestNoBrokerIsSaidWithItsAddress(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	settings, err := reach(t, address, nil)
	if err == nil || !strings.Contains(settings.Explain(err), "no broker answers at "+address) {
		t.Fatalf("%v explained as %q", err, settings.Explain(err))
	}
}

func write(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
