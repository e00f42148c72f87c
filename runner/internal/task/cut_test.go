package task

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAHostIsToBlameOnlyWhereTheLeaderReachesKafkaAndItDoesNotForHalfALease(t *testing.T) {
	const ttl = 10 * time.Second
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	type moment struct {
		now, leader   float64
		answers, want bool
	}
	for name, story := range map[string][]moment{
		"cut off":                               {{5, 4, false, false}, {8, 7, false, false}, {11, 8, false, true}, {14, 8, false, true}},
		"a broker answers":                      {{5, 4, false, false}, {8, 7, false, false}, {11, 8, true, false}, {14, 13, false, false}},
		"away for everybody":                    {{5, -1, false, false}, {30, -1, false, false}, {60, -1, false, false}},
		"back for everybody, a moment ago":      {{5, -1, false, false}, {60, -1, false, false}, {63, 62, false, false}, {66, 65, true, false}},
		"the leader was the last to reach it":   {{5, 4, false, false}, {11, 4, false, false}, {60, 4, false, false}},
		"back for the leader, not for the host": {{60, 59, false, false}, {63, 62, false, false}, {66, 65, false, true}},
	} {
		var r reach
		for _, m := range story {
			if got := r.judge(at(m.now), m.answers, at(0), at(m.leader), ttl); got != m.want {
				t.Errorf("%s: after %v s: %v", name, m.now, got)
			}
		}
	}
}

// stuck makes commits hang, and no broker answer, from now on.
func (k *kafkaModel) stuck(away bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.away = away
	k.slow["commit"] = 0
	if away {
		k.slow["commit"] = 5 * leaseTTL
	}
}

func TestATaskSaysThatItsHostIsCutOffAndGoesOnTrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 1, 1)))
		b.k.stuck(true)
		ctx, cancel := context.WithCancel(t.Context())
		end := b.start(ctx)
		passes(leaseTTL / 2)
		if s := b.status(); s.Host {
			t.Errorf("after half a lease: %+v", s)
		}
		passes(leaseTTL + 2*probeTimeout)
		if s := b.status(); !s.Host || s.Waiting != noBroker {
			t.Errorf("after a lease and a half: %+v", s)
		}
		passes(4 * leaseTTL)
		if s := b.status(); s.Host || s.Waiting != "" || s.Commits != 1 {
			t.Errorf("after the commit: %+v", s)
		}
		cancel()
		<-end
	})
}

func TestATaskBlamesNoHostWhereTheBrokersAreAwayForTheLeaderToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 1, 1)))
		b.k.stuck(true)
		b.coord.lose()
		ctx, cancel := context.WithCancel(t.Context())
		end := b.start(ctx)
		for range 7 {
			passes(leaseTTL / 4)
			if s := b.status(); s.Host {
				t.Errorf("%+v", s)
			}
		}
		cancel()
		<-end
	})
}
