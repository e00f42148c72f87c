package app

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
)

// What can't be had is known before anything runs, and named by its key.
func TestAMetricsAddressThatCannotBeHadIsNamed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct{ address, text string }{
		{taken.Addr().String(), "address already in use"}, {"nowhere", "missing port"}, {"127.0.0.1:99999", "invalid port"},
	} {
		for _, args := range [][]string{
			{"coordinator", "--bootstrap-servers", "127.0.0.1:1", "--listen", "127.0.0.1:0"}, {"runner", "--bootstrap-servers", "127.0.0.1:1", "--plugin-path", t.TempDir()}, {"dev"},
		} {
			code, _, stderr := run(append(args, "--metrics-listen", test.address)...)
			if code != exitUsage || !strings.Contains(stderr, "--metrics-listen: ") || !strings.Contains(stderr, test.text) {
				t.Errorf("%s --metrics-listen %s: exit code %d, %q", args[0], test.address, code, stderr)
			}
		}
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestTheEndpointServesForAsLongAsTheProcessRuns(t *testing.T) {
	e, err := (&metricsFlag{listen: "127.0.0.1:0"}).open()
	if err != nil {
		t.Fatal(err)
	}
	ours := prometheus.NewGauge(prometheus.GaugeOpts{Name: "fencepost_test", Help: "A test."})
	e.registerer().MustRegister(ours)
	why, base := errors.New("done"), "http://"+e.listener.Addr().String()
	err = e.beside(t.Context(), hclog.NewNullLogger(), func(context.Context) error {
		if code, text := get(t, base+"/metrics"); code != http.StatusOK || !strings.Contains(text, "fencepost_test 0") || !strings.Contains(text, "go_goroutines") || !strings.Contains(text, "process_cpu_seconds_total") {
			t.Error(code, text)
		}
		if code, text := get(t, base+"/healthz"); code != http.StatusOK || text != "ok\n" {
			t.Error(code, text)
		}
		if code, _ := get(t, base+"/other"); code != http.StatusNotFound {
			t.Error(code)
		}
		return why
	})
	if !errors.Is(err, why) {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", e.listener.Addr().String()); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
}

func TestWithoutAnAddressThereIsNoEndpoint(t *testing.T) {
	e, err := (&metricsFlag{}).open()
	if e != nil || err != nil || e.registerer() != nil {
		t.Error(e, err)
	}
	ran := false
	if err := e.beside(t.Context(), hclog.NewNullLogger(), func(context.Context) error { ran = true; return nil }); err != nil || !ran {
		t.Error(err, ran)
	}
	e.close()
}
