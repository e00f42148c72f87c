package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/exposition"
	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// metrics is what a process shows Prometheus: values by name and labels, as in its text.
type metrics exposition.Values

func scrape(ctx context.Context, address string) (metrics, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s, %w", answer.Status, body, err)
	}
	values, err := exposition.Parse(string(body))
	return metrics(values), err
}

// awaitMetrics scrapes until the values are as wanted; an empty answer says that they are.
func awaitMetrics(t *testing.T, address, what string, missing func(m metrics) string) metrics {
	t.Helper()
	var m metrics
	harness.Wait(t, time.Minute, what, func(ctx context.Context) (err error) {
		if m, err = scrape(ctx, address); err != nil {
			return err
		}
		if why := missing(m); why != "" {
			return fmt.Errorf("%s", why)
		}
		return nil
	})
	return m
}

// above says which of the values isn't above a limit.
func (m metrics) above(limit float64, names ...string) string {
	for _, name := range names {
		if v, there := m[name]; v <= limit {
			return fmt.Sprintf("%s is %v (there: %t)", name, v, there)
		}
	}
	return ""
}

const ofTask = `connector="numbers",task="0"}`

// TestMetrics: what Prometheus is shown is what happened, through a crash of the plugin, a restart of the task and another leader; and what happened lately outlives the leader.
func TestMetrics(t *testing.T) {
	bed := harness.New(t, "metrics", harness.Kfake(t))
	load := numbers{topic: "metrics-numbers", partitions: 1, tasks: 1, transaction: 100_000, rate: 1000}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 2)
	ofLeader, ofRunner := harness.FreeAddress(t), harness.FreeAddress(t)
	leader := bed.StartCoordinator("--metrics-listen", ofLeader)
	bed.StartRunner("runner", nil, "--metrics-listen", ofRunner)
	config := load.config()
	config["transaction.boundary"], config["transaction.boundary.interval.ms"] = "interval", "1000" // a transaction is open nearly always
	bed.Create("numbers", config)
	const (
		committed = "fencepost_task_committed_records_total{" + ofTask
		rewinds   = `fencepost_task_rewinds_total{cause="plugin",` + ofTask
		aborts    = `fencepost_task_aborts_total{by="rewind",` + ofTask
	)
	m := awaitMetrics(t, ofRunner, "a commit, and a transaction that is open", func(m metrics) string {
		return m.above(0, committed, "fencepost_task_commits_total{"+ofTask, "fencepost_task_commit_duration_seconds_count{"+ofTask, "fencepost_task_transaction_records_sum{"+ofTask,
			"fencepost_task_open_transaction_records{"+ofTask, "fencepost_task_open_transaction_age_seconds{"+ofTask, "fencepost_task_open_transaction_bytes{"+ofTask,
			"fencepost_task_polled_records_total{"+ofTask, "fencepost_task_lease_left_seconds{"+ofTask, `fencepost_task_state{connector="numbers",state="RUNNING",task="0"}`, "fencepost_plugin_processes")
	})
	if m[rewinds]+m[aborts] != 0 {
		t.Errorf("rewinds %v, aborts %v", m[rewinds], m[aborts])
	}
	killPlugins(t, bed)
	m = awaitMetrics(t, ofRunner, "the crash is counted", func(m metrics) string {
		return m.above(0, rewinds, `fencepost_plugin_exits_total{kind="memory"}`, "fencepost_task_last_error_timestamp_seconds{"+ofTask)
	})
	before := m[committed]
	m = awaitMetrics(t, ofRunner, "data flows again", func(m metrics) string {
		return m.above(before, committed) + m.above(0, "fencepost_task_open_transaction_records{"+ofTask)
	})
	if m[aborts] != 0 {
		t.Errorf("%v transactions were dropped, though what a plugin sent before its crash is committed", m[aborts])
	}

	// Somebody else takes the id in the middle of a transaction.
	fence(t, bed.Bootstrap, "fencepost."+bed.Cluster+".numbers.0")
	m = awaitMetrics(t, ofRunner, "the fence is counted", func(m metrics) string {
		// The client may see the fence only as a state in which nothing can be sent any more.
		if why := m.above(0, `fencepost_task_rewinds_total{cause="client",`+ofTask); why != "" {
			return m.above(0, aborts, `fencepost_task_rewinds_total{cause="fenced",`+ofTask)
		}
		return m.above(0, aborts)
	})
	before = m[committed]
	awaitMetrics(t, ofRunner, "data flows again", func(m metrics) string { return m.above(before, committed) })

	// A restart is a new grant, from which the status counts anew. The metrics don't.
	m, err := scrape(t.Context(), ofRunner)
	if err != nil {
		t.Fatal(err)
	}
	before = m[committed]
	bed.MustCLI("restart", "numbers")
	attempts := m["fencepost_task_attempts_total{"+ofTask]
	awaitMetrics(t, ofRunner, "another attempt", func(m metrics) string { return m.above(attempts, "fencepost_task_attempts_total{"+ofTask) })
	m = awaitMetrics(t, ofRunner, "data flows after the restart", func(m metrics) string { return m.above(before, committed) })
	before = m[committed]

	lm := awaitMetrics(t, ofLeader, "the leader shows the cluster", func(m metrics) string {
		return m.above(0, "fencepost_coordinator_leader", "fencepost_coordinator_term", `fencepost_runners{state="CONNECTED"}`, `fencepost_connector_tasks{connector="numbers",state="RUNNING"}`, `fencepost_runner_leases{runner="runner"}`,
			`fencepost_config_log_transactions_total{outcome="committed"}`, "fencepost_config_log_transaction_duration_seconds_count", `fencepost_fencing_ids_total{for="start"}`, `fencepost_looks_total{outcome="clean"}`,
			`fencepost_connector_grants_total{connector="numbers"}`, `fencepost_status_records_total{outcome="written"}`)
	})
	documented(t, m, lm)

	// The next leader tells what the one before it saw.
	leader.Kill()
	again := []string{"coordinator", "--cluster", bed.Cluster, "--bootstrap-servers", bed.Bootstrap, "--listen", bed.Coordinator, "--metrics-listen", ofLeader}
	bed.Start("coordinator", nil, again...)
	harness.Wait(t, time.Minute, "the next leader knows of the crash", func(ctx context.Context) error {
		c, err := bed.Connector(ctx, "numbers")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(c.GetEvents(), func(e *controlv1.Happening) bool { return strings.Contains(e.GetText(), "is RETRYING") }) || len(c.GetTasks()) != 1 || c.GetTasks()[0].GetLastError() == "" {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
	awaitMetrics(t, ofRunner, "the runner has joined the next leader", func(m metrics) string {
		return m.above(1, "fencepost_runner_sessions_total") + m.above(0, "fencepost_runner_session_connected")
	})

	bed.MustCLI("stop", "numbers")
	lm = awaitMetrics(t, ofLeader, "the connector is stopped", func(m metrics) string {
		return m.above(0, `fencepost_connector_state{connector="numbers",state="STOPPED"}`, `fencepost_fencing_rounds_total{outcome="done"}`, "fencepost_fencing_round_duration_seconds_count")
	})
	if m, err = scrape(t.Context(), ofRunner); err != nil {
		t.Fatal(err)
	}
	// What is counted is what a reader sees, no more and no less.
	if seen := readableOf(t, bed.Bootstrap, load.topic); m[committed] != float64(seen) || m[committed] < before {
		t.Errorf("%v records are counted as committed, %v before; a reader sees %d", m[committed], before, seen)
	}
	documented(t, m, lm)
	answer, err := http.Get("http://" + ofRunner + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Error(answer.Status)
	}
	bed.StopAll()
}

// fence takes a transactional id from whoever has it.
func fence(t *testing.T, bootstrap, id string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(id), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, _, err := client.ProducerID(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// killPlugins is kill -9 of every plugin process of a bed.
func killPlugins(t *testing.T, bed *harness.Bed) {
	t.Helper()
	pids, err := process.Below(bed.Plugins)
	if err != nil || len(pids) == 0 {
		t.Fatal(pids, err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

// documented checks that docs/metrics.md has every metric of ours that was scraped.
func documented(t *testing.T, scraped ...metrics) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	suffix := regexp.MustCompile(`_(bucket|sum|count)$`)
	for _, m := range scraped {
		for series := range m {
			name, _, _ := strings.Cut(series, "{")
			if strings.HasPrefix(name, "fencepost_") && !strings.Contains(string(docs), "`"+suffix.ReplaceAllString(name, "")+"`") {
				t.Errorf("docs/metrics.md has no %s", name)
			}
		}
	}
}

// BenchmarkIdleRunner is the CPU time of a runner whose one task has nothing to do: without metrics, with them, and with a scrape each second, fifteen times as often as Prometheus asks.
func BenchmarkIdleRunner(b *testing.B) {
	const over = 20 * time.Second
	for _, scraped := range []string{"off", "on", "scraped"} {
		b.Run(scraped, func(b *testing.B) {
			bed := harness.New(b, "idle", harness.Kfake(b))
			harness.CreateTopic(b, bed.Bootstrap, "idle-numbers", 1)
			bed.StartCoordinator()
			address := harness.FreeAddress(b)
			var args []string
			if scraped != "off" {
				args = []string{"--metrics-listen", address}
			}
			runner := bed.StartRunner("runner", nil, args...)
			bed.Create("numbers", numbers{topic: "idle-numbers", count: 10, partitions: 1, tasks: 1, transaction: 10}.config())
			bed.AwaitCaughtUp(time.Minute, "numbers")
			settled := time.After(6 * time.Second) // What an attempt does in its first seconds is over.
			<-settled
			var spent time.Duration
			for b.Loop() {
				before, err := process.CPU(runner.PID())
				if err != nil {
					b.Fatal(err)
				}
				end, tick := time.After(over), time.NewTicker(time.Second)
				for wait := true; wait; {
					select {
					case <-tick.C:
						if scraped != "scraped" {
							continue
						}
						if _, err := scrape(b.Context(), address); err != nil {
							b.Fatal(err)
						}
					case <-end:
						wait = false
					}
				}
				tick.Stop()
				after, err := process.CPU(runner.PID())
				if err != nil {
					b.Fatal(err)
				}
				spent += after - before
			}
			b.ReportMetric(float64(spent.Milliseconds())/(over.Seconds()*float64(b.N)), "cpu-ms/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
