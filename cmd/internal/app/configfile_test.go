package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// daemon is a command with the kinds of flags that coordinators and runners have.
func daemon(file *daemonFile) (*cobra.Command, *[]string, *time.Duration) {
	cmd := &cobra.Command{Use: "daemon"}
	var servers []string
	var ttl time.Duration
	cmd.Flags().StringSliceVar(&servers, "bootstrap-servers", nil, "")
	cmd.Flags().DurationVar(&ttl, "lease-ttl", 10*time.Second, "")
	file.register(cmd)
	return cmd, &servers, &ttl
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigFileSetsFlagsAndTheCommandLineWins(t *testing.T) {
	path := writeConfig(t, "bootstrap-servers: [a:1, b:2]\nlease-ttl: 3s\nkafka:\n  security.protocol: SASL_SSL\n  sasl.password: 1234\n")
	var file daemonFile
	cmd, servers, ttl := daemon(&file)
	if err := cmd.ParseFlags([]string{"--config", path, "--lease-ttl", "5s", "--kafka", "client.id=x"}); err != nil {
		t.Fatal(err)
	}
	if err := file.load(cmd); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a:1", "b:2"}, *servers); diff != "" || *ttl != 5*time.Second {
		t.Errorf("servers %v, ttl %v", *servers, *ttl)
	}
	want := map[string]string{"security.protocol": "SASL_SSL", "sasl.password": "1234", "client.id": "x"}
	if diff := cmp.Diff(want, file.kafka); diff != "" {
		t.Errorf("kafka (-want +got):\n%s", diff)
	}
}

func TestConfigFileTellsEveryProblemWithItsLine(t *testing.T) {
	path := writeConfig(t, "bootstrap-server: a:1\nlease-ttl: soon\nkafka: {a: [1]}\nconfig: x\n")
	var file daemonFile
	cmd, _, _ := daemon(&file)
	if err := cmd.ParseFlags([]string{"--config", path}); err != nil {
		t.Fatal(err)
	}
	err := file.load(cmd)
	if codeOf(err) != exitUsage {
		t.Fatalf("the error is %v", err)
	}
	for _, want := range []string{"4 problems", "line 1: bootstrap-server: unknown key; did you mean bootstrap-servers?", "line 2: lease-ttl:", "line 3: kafka: a must be a text", "line 4: config: unknown key"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
}
