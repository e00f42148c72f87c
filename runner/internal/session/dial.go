package session

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	maxMessageBytes = 20 << 20 // The limit of the protocol, for both directions.
	// The coordinator's server allows pings this often, also without a stream.
	keepaliveTime = 10 * time.Second
	// maxLearned bounds the addresses that a coordinator may add.
	maxLearned = 100
	// connectTimeout is how long a host that doesn't answer at all, because it is gone, may hold up the next address.
	connectTimeout = 2 * time.Second
)

// dialOptions are those of every connection.
func (s *Session) dialOptions() []grpc.DialOption {
	creds := insecure.NewCredentials()
	if s.cfg.TLS != nil {
		creds = credentials.NewTLS(s.cfg.TLS)
	}
	return append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTime, PermitWithoutStream: true}),
	}, s.cfg.DialOptions...)
}

// redirect is how a stream ends whose coordinator doesn't lead.
type redirect struct {
	leader, reason string
	coordinators   []string
}

// Error says where to go.
func (r *redirect) Error() string {
	if r.leader == "" {
		return fmt.Sprintf("no coordinator leads yet: %s", r.reason)
	}
	return fmt.Sprintf("the coordinator doesn't lead, %s does: %s", r.leader, r.reason)
}

// route decides which address is next. It belongs to Run's goroutine, apart from welcomed and learn, which the receiver calls while Run's goroutine waits for its stream.
type route struct {
	configured, learned []string
	index               int
	leader              string // Where the last redirect pointed to, until it has been tried.
	followed            bool   // The last dial followed a redirect: another redirect waits, so that two coordinators that point at each other don't make a loop.
	wasWelcome          bool
}

// next is the address to dial.
func (r *route) next() string {
	if r.leader != "" {
		address := r.leader
		r.leader, r.followed = "", true
		return address
	}
	r.followed = false
	all := r.all()
	address := all[r.index%len(all)]
	r.index++
	return address
}

// all has the configured addresses, and those that a coordinator told last.
func (r *route) all() []string {
	all := slices.Clone(r.configured)
	for _, a := range r.learned {
		if a != "" && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// redirected notes where the leader is said to be, and the addresses that the coordinator knows beside it.
func (r *route) redirected(leader string, others []string) {
	r.leader, r.wasWelcome = leader, false
	if len(others) > 0 {
		r.learn(others)
	}
}

// learn replaces what is known beside the configured addresses.
func (r *route) learn(others []string) {
	r.learned = slices.Clone(others[:min(len(others), maxLearned)])
}

// atOnce says whether the next dial needs no pause.
func (r *route) atOnce() bool { return r.leader != "" && !r.followed }

// welcomed notes that a leader answered, and the addresses that it knows.
func (r *route) welcomed(others []string) {
	r.wasWelcome, r.followed = true, false
	if len(others) > 0 { // A coordinator of a version before this one may know of none.
		r.learn(others)
	}
}

// lost says whether the stream that ended was a good one, once.
func (r *route) lost() bool {
	was := r.wasWelcome
	r.wasWelcome = false
	return was
}
