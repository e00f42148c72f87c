package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/assign"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Limits of Hello, as the runner protocol gives them.
const (
	mostNameBytes = 100
	mostLabels    = 1000
	mostPlugins   = 1000
	mostHeld      = 10_000
)

// runner is a runner that has a session, or had one a moment ago.
type runner struct {
	name, process string
	// session is 0 where it isn't connected; grace is then when its tasks move.
	session SessionID
	grace   time.Time
	since   time.Time
	// draining says that its tasks are moved away and that it gets none; leaving, that it stops by itself then. stuck has the tasks that fit on no other.
	draining, leaving bool
	stuck             []Lease
	drainSeen         uint64 // State.shifts when its drain was last looked at
	// warmsUp says that it answers WarmUp.
	warmsUp bool

	version, host string
	offer         *runnerv1.Offer
	// fits is what placement reads: labels and plugins.
	fits assign.Runner

	levelMin, levelMax uint32
}

// open takes a runner in, or sends it away.
func (s *State) open(e SessionOpened) {
	hello := e.Hello
	if e.Term > s.term {
		s.overtaken(e.Session, e.Term)
		return
	}
	if wrong := s.checkHello(hello); wrong != "" {
		s.emit(CloseSession{Session: e.Session, Why: CloseInvalid, Text: wrong})
		return
	}
	r := s.runners[hello.GetName()]
	switch {
	case r == nil:
		r = &runner{name: hello.GetName()}
		s.runners[r.name] = r
	case r.process == hello.GetProcessId():
		if r.session != 0 {
			delete(s.sessions, r.session)
			s.emit(CloseSession{Session: r.session, Why: CloseReplaced, Text: "the runner has opened a newer session"})
		}
	case r.session != 0:
		s.emit(CloseSession{Session: e.Session, Why: CloseExists, Text: fmt.Sprintf("a runner named %q is connected already, from host %s; names are unique in a cluster", r.name, r.host)})
		return
	default:
		// This leader held the connection of the old process, and it closed. A runner that this leader hasn't seen (the case above where r is nil) keeps its leases until they run out.
		s.lose(r.name, r.process, "another process of this runner took its place")
	}
	if r.process != hello.GetProcessId() {
		r.draining, r.leaving, r.stuck = false, false, nil // a new process isn't drained
	}
	r.warmsUp = hello.GetWarmsUp()
	r.process, r.session, r.grace, r.since = hello.GetProcessId(), e.Session, time.Time{}, s.now
	r.version, r.host = hello.GetVersion(), hello.GetHost()
	r.levelMin, r.levelMax = hello.GetLevelMin(), hello.GetLevelMax()
	r.fits = assign.Runner{Name: r.name, Labels: hello.GetLabels()}
	r.setOffer(hello.GetOffer())
	s.sessions[e.Session] = r
	s.welcome(r)
	s.adopt(r, hello)
	if hello.GetDraining() != nil {
		s.wantsToGo(r, hello.GetDraining())
	} else if r.draining {
		s.sendDrain(r, false) // it may not have heard of it
	}
	s.shift()
	s.touchRunning()
}

func (s *State) checkHello(hello *runnerv1.Hello) string {
	switch {
	case hello.GetCluster() != "" && hello.GetCluster() != s.options.Cluster:
		return fmt.Sprintf("this is cluster %q, and the runner belongs to cluster %q: give it the address of one of that cluster's coordinators, or this cluster's name as --cluster", s.options.Cluster, hello.GetCluster())
	case hello.GetName() == "" || len(hello.GetName()) > mostNameBytes:
		return fmt.Sprintf("a runner's name has 1 to %d bytes, this one has %d", mostNameBytes, len(hello.GetName()))
	case hello.GetProcessId() == "" || len(hello.GetProcessId()) > mostNameBytes:
		return "the runner gave no process id, or one of more than 100 bytes"
	case len(hello.GetLabels()) > mostLabels:
		return fmt.Sprintf("the runner has %d labels, the limit is %d", len(hello.GetLabels()), mostLabels)
	case len(hello.GetHeld()) > mostHeld:
		return fmt.Sprintf("the runner holds %d leases, the limit is %d", len(hello.GetHeld()), mostHeld)
	case hello.GetLevelMin() > s.level || hello.GetLevelMax() < s.level:
		return fmt.Sprintf("the cluster works at level %d, and the runner (version %s) can work at levels %d to %d: run a version that fits", s.level, hello.GetVersion(), hello.GetLevelMin(), hello.GetLevelMax())
	}
	return checkOffer(hello.GetOffer())
}

func checkOffer(offer *runnerv1.Offer) string {
	if n := len(offer.GetPlugins()) + len(offer.GetBroken()); n > mostPlugins {
		return fmt.Sprintf("the runner offers %d plugins, the limit is %d", n, mostPlugins)
	}
	return ""
}

func (r *runner) setOffer(offer *runnerv1.Offer) {
	r.offer = offer
	r.fits.Plugins = nil
	for _, p := range offer.GetPlugins() {
		plugin := assign.Plugin{Name: p.GetDescription().GetName(), Version: p.GetDescription().GetVersion(), SHA256: p.GetSha256()}
		for _, t := range p.GetDescription().GetTypes() {
			plugin.Types = append(plugin.Types, t.GetName())
		}
		r.fits.Plugins = append(r.fits.Plugins, plugin)
	}
}

func (s *State) welcome(r *runner) {
	s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Welcome{Welcome: &runnerv1.Welcome{
		Cluster: s.options.Cluster, LeaseTtlMs: uint64(s.options.LeaseTTL.Milliseconds()), HeartbeatMs: uint64(s.options.Heartbeat.Milliseconds()),
		Level: s.level, Coordinators: s.addresses(),
	}}})
}

// mostTermsLost bounds how far a term may jump: a runner that says more is wrong, and not the log.
const mostTermsLost = 1 << 32

// overtaken deals with a runner that has seen a higher term than this leader's. Mostly another leads by now: then the transaction of this step is refused, and this leader falls silent in it (I7). Where it is committed, this one does
// lead, and the log has lost its end, that term with it: terms go on above what was seen (I6), and every session begins anew in the new one.
func (s *State) overtaken(session SessionID, seen uint64) {
	if seen-s.term > mostTermsLost {
		s.emit(CloseSession{Session: session, Why: CloseInvalid, Text: fmt.Sprintf("the runner says that it has seen term %d, which can't be: the cluster is at term %d", seen, s.term)})
		return
	}
	text := fmt.Sprintf("the runner has seen term %d, this coordinator led in term %d", seen, s.term)
	s.term = seen + 1
	s.putCluster()
	s.emit(CloseSession{Session: session, Why: CloseStale, Text: text})
	for _, other := range sorted(s.sessions) {
		if other != session {
			s.emit(CloseSession{Session: other, Why: CloseStale, Text: fmt.Sprintf("the term was raised to %d: %s", s.term, text)})
		}
	}
}

// adopt compares what a runner says that it holds with what the log says.
func (s *State) adopt(r *runner, hello *runnerv1.Hello) {
	holds := map[Lease]bool{}
	for _, m := range hello.GetHeld() {
		l := LeaseOf(m)
		holds[l] = true
		if _, refused := s.holds(r, l); refused != "" {
			s.sendRevoke(r.session, l, false, refused)
		}
	}
	for _, l := range s.leasesOf(r.name, r.process) {
		switch {
		case !holds[l.Lease]:
			// The grant never reached it, or the end of the task never reached us: either way nothing runs, and fencing makes sure of it.
			s.forfeit(l, "the runner came back without it")
		case l.State == leaseRevoked:
			s.sendRevoke(r.session, l.Lease, true, l.Reason)
		}
	}
	s.adoptPlans(r, hello.GetPlans())
}

// closed begins the wait for a runner's next session.
func (s *State) closed(e SessionClosed) {
	r := s.sessions[e.Session]
	if r == nil {
		return
	}
	delete(s.sessions, e.Session)
	r.session = 0
	s.shift()
	r.grace = s.now.Add(s.options.Reconnect)
	s.wakeAt(r.grace)
	for _, name := range s.connectorsOf(r) {
		s.happen(s.connectors[name], "runner %s disconnected: %s", r.name, e.Reason)
	}
}

// connectorsOf names the connectors that a runner holds leases of, in order.
func (s *State) connectorsOf(r *runner) []string {
	var of []string
	for _, l := range s.leasesOf(r.name, r.process) {
		of = append(of, l.Connector)
	}
	return slices.Compact(of)
}

// touchRunning touches every connector that may want something of a runner.
func (s *State) touchRunning() {
	for _, c := range s.connectors {
		if c.runs() {
			s.touch(c)
		}
	}
}

func (s *State) offered(r *runner, offer *runnerv1.Offer) {
	if wrong := checkOffer(offer); wrong != "" {
		s.emit(CloseSession{Session: r.session, Why: CloseInvalid, Text: wrong})
		return
	}
	r.setOffer(offer)
	s.shift()
	s.touchRunning()
}
