package session_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
	"github.com/fencepost-io/fencepost/runner/internal/session"
)

func TestHelloNamesEverythingHeld(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		t.session.Offer(session.Offer{Broken: []session.Broken{{Path: "/p/\xff", Error: "bad"}}})
		p, hello := t.welcome("c1")
		if hello.GetName() != "runner-1" || hello.GetProcessId() != "p1" || len(hello.GetHeld()) != 0 || hello.GetOffer().GetBroken()[0].GetPath() != "/p/\uFFFD" {
			t.Fatal(hello)
		}
		other := orders
		other.Task = 2
		t.grant(p, orders)
		t.grant(p, other)
		t.plan(p, session.PlanRef{Connector: "orders", Incarnation: "i1", Epoch: 3})
		t.session.Ended(other, true, "over")
		p.end <- status.Error(codes.Unavailable, "going")
		_, hello = t.welcome("c1")
		if len(hello.GetHeld()) != 1 || hello.GetHeld()[0].GetEpoch() != 7 || len(hello.GetPlans()) != 1 || hello.GetPlans()[0].GetPlanEpoch() != 3 {
			t.Fatal(hello)
		}
	})
}

func TestALeaseLastsFromWhenItsHeartbeatWasSent(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		first := until(p, false, (*runnerv1.SessionRequest).GetHeartbeat) // At once, before the grant: it renews nothing of it.
		t.grant(p, orders)
		p.renew(first)
		second := until(p, false, (*runnerv1.SessionRequest).GetHeartbeat) // Sent at 1 s.
		if len(second.GetLeases()) != 1 || t.at() != heartbeat {
			t.Fatal(second, t.at())
		}
		wait(1500 * time.Millisecond)
		p.renew(second) // A slow answer.
		synctest.Wait()
		wait(heartbeat + ttl - t.at() - time.Millisecond)
		if !t.session.Valid(orders) {
			t.Fatalf("lost before its time, at %s", t.at())
		}
		wait(time.Millisecond)
		if t.session.Valid(orders) {
			t.Fatalf("stretched by a slow answer, at %s", t.at())
		}
	})
}

// TestTrustSaysWhenTheLeaderWasHeardOfLast: who isn't renewed any more has no leader, whether the stream is gone or only silent.
func TestTrustSaysWhenTheLeaderWasHeardOfLast(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		if until, _ := t.session.Trust(orders); !until.IsZero() {
			t.Fatal("trusted before it was granted")
		}
		t.grant(p, orders)
		began := time.Now().Add(-t.at())
		renewed := until(p, false, (*runnerv1.SessionRequest).GetHeartbeat)
		for len(renewed.GetLeases()) == 0 {
			renewed = until(p, false, (*runnerv1.SessionRequest).GetHeartbeat)
		}
		sent := t.at()
		p.renew(renewed)
		synctest.Wait()
		wait(ttl)
		trusted, lasts := t.session.Trust(orders)
		if lasts != ttl || !trusted.Equal(began.Add(sent+ttl)) {
			t.Errorf("trusted until %s for %s, want until %s for %s", trusted.Sub(began), lasts, sent+ttl, ttl)
		}
	})
}

func TestAGrantLastsALittleLessThanItSays(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		t.grant(p, orders)
		wait(ttl - heartbeat - time.Millisecond)
		if !t.session.Valid(orders) {
			t.Fatal("lost before its time")
		}
		wait(time.Millisecond)
		if t.session.Valid(orders) {
			t.Fatal("held after its time")
		}
	})
}

func TestAnAnswerRenewsOnlyWhatItsHeartbeatNamed(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		t.grant(p, orders)
		until(p, false, (*runnerv1.SessionRequest).GetHeartbeat)
		h := until(p, false, (*runnerv1.SessionRequest).GetHeartbeat)
		if h.GetSeq() != 2 {
			t.Fatal(h)
		}
		p.renew(h)
		p.renew(h)                             // Twice is once.
		p.renew(&runnerv1.Heartbeat{Seq: 99})  // Never sent.
		p.renew(&runnerv1.Heartbeat{Seq: 0})   // Never sent.
		p.renew(&runnerv1.Heartbeat{Seq: 1e9}) // Never sent.
		wait(ttl)
		if t.session.Valid(orders) {
			t.Fatal("renewed by an answer to nothing")
		}
	})
}

func TestThreeSilentHeartbeatsEndTheStream(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		_, _ = t.welcome("c1")
		_, _ = t.welcome("c1") // It answers nothing either.
		if t.at() < 3*heartbeat || t.at() > 4*heartbeat {
			t.Fatalf("redialled at %s", t.at())
		}
	})
}

func TestNoWelcomeIsNotWaitedForLong(t *testing.T) {
	run(t, []string{"c1", "c2"}, func(t *bed) {
		t.accept("c1") // Says nothing.
		t.welcome("c2")
		if t.at() > 6*time.Second {
			t.Fatalf("at %s", t.at())
		}
	})
}

func TestARedirectIsFollowedAtOnce(t *testing.T) {
	run(t, []string{"c1", "c2", "c3"}, func(t *bed) {
		p, _ := t.accept("c1")
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Redirect{Redirect: &runnerv1.Redirect{Leader: "passthrough:///c3", Reason: "waiting"}}})
		t.welcome("c3")
		if t.at() != 0 {
			t.Fatalf("after %s", t.at())
		}
	})
}

func TestTwoThatPointAtEachOtherMakeNoStorm(t *testing.T) {
	run(t, []string{"c1", "c2"}, func(t *bed) {
		for _, name := range []string{"c1", "c2"} {
			to := map[string]string{"c1": "passthrough:///c2", "c2": "passthrough:///c1"}[name]
			go func() {
				for p := range t.streams[name] {
					p.end <- p.rpc.Send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Redirect{Redirect: &runnerv1.Redirect{Leader: to}}})
				}
			}()
		}
		wait(10 * time.Second)
		if n, _ := t.listen("c3", nil); n > 45 {
			t.Errorf("%d dials in 10 s", n)
		}
		t.stop()
		synctest.Wait()
		close(t.streams["c1"])
		close(t.streams["c2"])
	})
}

func TestStreamsThatEndAtOnceMakeNoStorm(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		for n := 0; t.at() < 2*time.Second; n++ {
			p, _ := t.welcome("c1")
			p.end <- status.Error(codes.Internal, "confused")
			if n > 10 {
				t.Fatalf("%d streams in %s", n, t.at())
			}
		}
	})
}

func TestALostStreamIsRedialledAtOnce(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		until(p, true, (*runnerv1.SessionRequest).GetHeartbeat)
		until(p, true, (*runnerv1.SessionRequest).GetHeartbeat)
		p.end <- status.Error(codes.Unavailable, "going")
		before := t.at()
		t.accept("c1")
		if t.at() != before {
			t.Fatalf("after %s", t.at()-before)
		}
	})
}

func TestAnUnreachableCoordinatorIsDialledFourTimesASecond(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		_, l := t.listen("c1", nil)
		p.end <- status.Error(codes.Unavailable, "gone")
		wait(2 * time.Second)
		if n, _ := t.listen("c1", l); n < 7 || n > 10 {
			t.Errorf("%d dials in 2 s", n)
		}
		before := t.at()
		t.welcome("c1")
		if t.at()-before > 250*time.Millisecond {
			t.Errorf("back after %s", t.at()-before)
		}
	})
}

func TestALowerTermIsRefused(t *testing.T) {
	run(t, []string{"c1", "c2"}, func(t *bed) {
		p, _ := t.accept("c1")
		p.term = 5
		p.welcome()
		t.event()
		p.send(&runnerv1.SessionResponse{Term: 4, Message: &runnerv1.SessionResponse_Grant{Grant: &runnerv1.Grant{Lease: toWire(orders), TtlMs: 10_000}}})
		old, _ := t.accept("c2")
		old.term = 4
		old.welcome() // An old leader that doesn't know yet.
		p, _ = t.accept("c1")
		p.term = 6
		p.welcome()
		if _, ok := t.event().(*session.Welcomed); !ok {
			t.Fatal("something was taken from an older term")
		}
		if m := p.next(); m.GetTerm() != 6 {
			t.Fatalf("the highest term isn't sent: %v", m)
		}
	})
}

func TestALostLeaseIsToldOnceAndNotRenewed(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		t.grant(p, orders)
		until(p, false, (*runnerv1.SessionRequest).GetHeartbeat)
		h := until(p, false, (*runnerv1.SessionRequest).GetHeartbeat)
		p.renew(h, toWire(orders))
		if l, ok := t.event().(*session.Lost); !ok || l.Lease != orders {
			t.Fatal("not told")
		}
		if t.session.Valid(orders) {
			t.Fatal("still trusted")
		}
		h = until(p, false, (*runnerv1.SessionRequest).GetHeartbeat)
		if len(h.GetLeases()) != 0 {
			t.Fatal("still renewed")
		}
		p.renew(h, toWire(orders))
		synctest.Wait()
		if len(t.events) != 0 {
			t.Fatal("told twice")
		}
	})
}

func TestStatusesAreCoalesced(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		t.grant(p, orders)
		t.session.Status(session.Status{Lease: orders, State: session.Starting})
		if st := until(p, true, (*runnerv1.SessionRequest).GetTaskStatus); st.GetSeq() != 1 || st.GetState() != runnerv1.TaskState_TASK_STATE_STARTING {
			t.Fatal(st)
		}
		start := t.at()
		t.session.Status(session.Status{Lease: orders, State: session.Running})
		if st := until(p, true, (*runnerv1.SessionRequest).GetTaskStatus); st.GetSeq() != 2 || t.at() != start {
			t.Fatal("a change of state waits", st)
		}
		for i := range uint64(1000) {
			t.session.Status(session.Status{Lease: orders, State: session.Running, Records: i})
		}
		if st := until(p, true, (*runnerv1.SessionRequest).GetTaskStatus); st.GetSeq() != 3 || st.GetRecords() != 999 {
			t.Fatal("more than the latest was sent", st)
		}
		// A new stream gets the last one again.
		p.end <- status.Error(codes.Unavailable, "going")
		p, _ = t.welcome("c1")
		if st := until(p, true, (*runnerv1.SessionRequest).GetTaskStatus); st.GetSeq() != 4 || st.GetRecords() != 999 {
			t.Fatal(st)
		}
		// A task that isn't ours has none.
		t.session.Ended(orders, true, "over")
		t.session.Status(session.Status{Lease: orders, State: session.Failed})
		if e := until(p, true, (*runnerv1.SessionRequest).GetTaskEnded); !e.GetClean() || e.GetReason() != "over" {
			t.Fatal(e)
		}
		synctest.Wait()
		for len(p.in) > 0 {
			if m := p.next(); m.GetTaskStatus() != nil {
				t.Fatal("a status after the end")
			}
		}
	})
}

func TestAPlansResultIsSentAgainWhileThePlanIsHeld(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		plan := session.PlanRef{Connector: "orders", Epoch: 1}
		t.session.PlanResult(session.PlanResult{Plan: plan, Error: "not held: nothing"})
		p, _ := t.welcome("c1")
		t.plan(p, plan)
		t.session.PlanResult(session.PlanResult{Plan: plan, Error: "first"})
		if r := until(p, true, (*runnerv1.SessionRequest).GetPlanResult); r.GetError() != "first" || r.GetTaskSet() != nil {
			t.Fatal(r)
		}
		p.end <- status.Error(codes.Unavailable, "going")
		p, _ = t.welcome("c1")
		if r := until(p, true, (*runnerv1.SessionRequest).GetPlanResult); r.GetError() != "first" {
			t.Fatal(r)
		}
		t.session.DropPlan(plan)
		p.end <- status.Error(codes.Unavailable, "going")
		p, hello := t.welcome("c1")
		p.serve()
		if len(hello.GetPlans()) != 0 {
			t.Fatal(hello)
		}
	})
}

func TestAnAnswerBelongsToItsStream(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		ask := &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Validate{Validate: &runnerv1.Validate{RequestId: 1, Connector: "orders"}}}
		p.send(ask)
		old, _ := t.event().(*session.Validate)
		p.end <- status.Error(codes.Unavailable, "going")
		p, _ = t.welcome("c1")
		ask.Term = 0
		p.send(ask) // The new leader counts from 1 as well.
		now, _ := t.event().(*session.Validate)
		t.session.AnswerValidate(old.ID, nil, false, errors.New("old"))
		t.session.AnswerValidate(now.ID, nil, false, errors.New("new"))
		if a := until(p, true, (*runnerv1.SessionRequest).GetValidateAnswer); a.GetError() != "new" || a.GetRequestId() != 1 {
			t.Fatal(a)
		}
	})
}

func TestAFullQueueEndsTheStreamAndNotTheSession(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		t.full.Store(true)
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Revoke{Revoke: &runnerv1.Revoke{Lease: toWire(orders)}}})
		p, _ = t.accept("c1")
		t.full.Store(false)
		p.welcome()
		t.event()
	})
}

func TestTheLastMessagesLeaveBeforeTheEnd(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		t.grant(p, orders)
		t.session.Draining()
		t.session.Ended(orders, true, "shutdown")
		t.stop()
		if d := until(p, false, (*runnerv1.SessionRequest).GetDraining); d == nil {
			t.Fatal("no Draining")
		}
		if e := until(p, false, (*runnerv1.SessionRequest).GetTaskEnded); !e.GetClean() {
			t.Fatal(e)
		}
	})
}

// What a leader said of a drain is told to the next one, in Hello and, for leaders of an older version, by a message; a runner that stops says that instead.
func TestADrainOutlivesItsLeader(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, hello := t.welcome("c1")
		if !hello.GetWarmsUp() || hello.GetDraining() != nil {
			t.Fatal(hello)
		}
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Drain{Drain: &runnerv1.Drain{}}})
		if d, ok := t.event().(*session.Drain); !ok || d.Undo {
			t.Fatal(d)
		}
		p.end <- status.Error(codes.Unavailable, "going")
		p, hello = t.welcome("c1")
		if !hello.GetDraining().GetAsked() {
			t.Fatal(hello)
		}
		if d := until(p, true, (*runnerv1.SessionRequest).GetDraining); !d.GetAsked() {
			t.Fatal(d)
		}
		t.session.Draining()
		if d := until(p, true, (*runnerv1.SessionRequest).GetDraining); d.GetAsked() {
			t.Fatal(d)
		}
		p.end <- status.Error(codes.Unavailable, "going")
		p, hello = t.welcome("c1")
		if hello.GetDraining() == nil || hello.GetDraining().GetAsked() {
			t.Fatal(hello)
		}
		p.serve()
	})
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.welcome("c1")
		for _, undo := range []bool{false, true} {
			p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Drain{Drain: &runnerv1.Drain{Undo: undo}}})
			t.event()
		}
		p.end <- status.Error(codes.Unavailable, "going")
		if _, hello := t.welcome("c1"); hello.GetDraining() != nil {
			t.Fatal(hello)
		}
	})
}

func TestTheEndIsNotHeldUpByASilentCoordinator(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		t.welcome("c1")
		t.stop()
		if err := <-t.ended; err != nil || t.at() > 3*time.Second {
			t.Fatal(err, t.at())
		}
		t.ended <- nil
	})
}

func TestProtocolErrorsEndTheStream(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		p, _ := t.accept("c1")
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_StopPlan{StopPlan: &runnerv1.StopPlan{}}}) // Before Welcome.
		p, _ = t.accept("c1")
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Welcome{Welcome: &runnerv1.Welcome{LeaseTtlMs: 10}}}) // No heartbeat.
		p, _ = t.welcome("c1")
		p.welcome() // Twice.
		p, _ = t.welcome("c1")
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_StartPlan{StartPlan: &runnerv1.StartPlan{}}}) // Of no tasks.
		t.welcome("c1")
	})
}

// TestAnIdleSessionKeepsItsConnection: with long leases a session has nothing to say for minutes, and pings. A server that permits pings every second, as the coordinator does (coordinator.TestIdleClientsKeepTheirConnection), never ends it for
// that; one that permits none does, so that this test can fail.
func TestAnIdleSessionKeepsItsConnection(t *testing.T) {
	for _, permits := range []bool{true, false} {
		t.Run(fmt.Sprintf("permitted %t", permits), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opts []grpc.ServerOption
				if permits {
					opts = append(opts, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
				}
				b := newBed(t, []string{"c1"}, nil, opts...)
				defer b.close()
				p, _ := b.accept("c1")
				p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Welcome{Welcome: &runnerv1.Welcome{Cluster: "test", LeaseTtlMs: 3_600_000, HeartbeatMs: 1_200_000, Level: 1}}})
				b.event()
				if !permits {
					b.accept("c1") // within a minute
					return
				}
				wait(12 * time.Minute)
				if dials, _ := b.listen("c1", b.nets["c1"]); dials != 1 {
					t.Errorf("dialled %d times", dials)
				}
			})
		})
	}
}
