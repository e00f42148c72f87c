package session_test

import (
	"testing"
	"time"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// known makes Welcome of a cluster with the coordinators that it knows.
func known(cluster string, coordinators ...string) *runnerv1.SessionResponse {
	for i, c := range coordinators {
		coordinators[i] = "passthrough:///" + c
	}
	return &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Welcome{Welcome: &runnerv1.Welcome{
		Cluster: cluster, LeaseTtlMs: uint64(ttl.Milliseconds()), HeartbeatMs: uint64(heartbeat.Milliseconds()), Level: 1, Coordinators: coordinators,
	}}}
}

// TestARunnerThatWasGivenOneAddressSurvivesThatHost: it knows the others from Welcome, from ClusterChanged and from Redirect.
func TestARunnerThatWasGivenOneAddressSurvivesThatHost(t *testing.T) {
	for name, tell := range map[string]func(*peer){
		"welcome": func(p *peer) { p.send(known("test", "one", "two")) },
		"changed": func(p *peer) {
			p.send(known("test", "one"))
			p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_ClusterChanged{ClusterChanged: &runnerv1.ClusterChanged{Level: 1, Coordinators: []string{"passthrough:///one", "passthrough:///two"}}}})
		},
		"redirect": func(p *peer) {
			p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Redirect{Redirect: &runnerv1.Redirect{Coordinators: []string{"passthrough:///one", "passthrough:///two"}}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, []string{"one", "two"}, func(b *bed) {
				p, _ := b.accept("one")
				tell(p)
				wait(10 * time.Millisecond)
				b.listen("one", nil) // the host is gone
				p.end <- nil
				b.accept("two")
			}, "one")
		})
	}
}

// TestARunnerJoinsNoOtherCluster: its tasks and their ids belong to one. Which one, the first Welcome says where nobody else did, and every Hello after it.
func TestARunnerJoinsNoOtherCluster(t *testing.T) {
	run(t, []string{"one", "two"}, func(b *bed) {
		p, hello := b.accept("one")
		if hello.GetCluster() != "" {
			t.Errorf("it knows cluster %q", hello.GetCluster())
		}
		p.send(known("test"))
		b.event()
		p.end <- nil
		p, hello = b.accept("two")
		if hello.GetCluster() != "test" {
			t.Errorf("it says cluster %q", hello.GetCluster())
		}
		p.send(known("another"))
		p, hello = b.accept("one") // it goes on asking, and doesn't stay there
		if hello.GetCluster() != "test" {
			t.Errorf("it says cluster %q", hello.GetCluster())
		}
		p.send(known("test"))
		b.event()
	})
}
