package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

const (
	// connectTimeout is how long one address may take to be connected: a process that hangs accepts connections and never speaks.
	connectTimeout = 3 * time.Second
	// A leader that died has a successor within seconds. So long are those that are left asked for it, and so often.
	electionPatience = 15 * time.Second
	electionPoll     = 250 * time.Millisecond
)

type request func(context.Context, controlv1.ControlClient) error

// call is ask for requests that mean the same when they are carried out twice.
func (c *client) call(ctx context.Context, do request) error {
	_, err := c.ask(ctx, do)
	return err
}

// ask runs one request against the leader: it tries every address, follows a coordinator that names another, and asks again where some coordinator answers and none leads just now. unsure says that a try before the last one went to
// a leader that was lost before its answer came: what was asked may have been stored already.
func (c *client) ask(ctx context.Context, do request) (unsure bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var since time.Time // when it was first found that nobody leads
	var before answer   // the last time
	for {
		best := c.askAll(ctx, do)
		first := since.IsZero()
		if !first && status.Code(best.err) == codes.DeadlineExceeded && ctx.Err() != nil && !best.lost { // An answer that was cut short says less than the one before it.
			best = before
		}
		before = best
		if !best.again || first && (!best.connected || c.impatient) || ctx.Err() != nil || !first && time.Since(since) >= electionPatience {
			return unsure, explain(best.err, c.addresses, best.connected)
		}
		unsure = unsure || best.lost
		if first {
			since = time.Now()
			c.say("asking again for up to %v, since nobody that answers leads: %s", min(c.timeout, electionPatience), status.Convert(best.err).Message())
		}
		select {
		case <-ctx.Done():
			return unsure, explain(best.err, c.addresses, best.connected)
		case <-time.After(electionPoll):
		}
	}
}

// answer is what came of asking one address, or of all.
type answer struct {
	err       error
	connected bool // somebody is there
	again     bool // err is that nobody leads, as far as is known here
	lost      bool // it led when it was asked, and doesn't any more: what became of the request isn't known
}

// askAll asks each address, and each coordinator that is named as the leader, until one leads. Where none does, the answer of one that is there says more than an address where nobody is.
func (c *client) askAll(ctx context.Context, do request) answer {
	var best answer
	todo, tried := slices.Clone(c.addresses), map[string]bool{}
	for len(todo) > 0 && ctx.Err() == nil {
		address := todo[0]
		todo = todo[1:]
		if tried[address] {
			continue
		}
		tried[address] = true
		got := c.askOne(ctx, address, do)
		if !got.again || got.lost {
			return got
		}
		if got.connected || !best.connected {
			best = got
		}
		if leader := detailOf(got.err).GetLeader(); leader != "" {
			todo = append([]string{leader}, todo...)
		}
	}
	if best.err == nil { // There was no time for even one.
		best.err = status.FromContextError(ctx.Err()).Err()
	}
	return best
}

// askOne asks one address. A coordinator says UNAVAILABLE where it doesn't lead and also where it leads and lacks a runner, so it is asked which of the two it is; that it led before and doesn't after it is how a lost answer is told from a
// request that was never looked at.
func (c *client) askOne(ctx context.Context, address string, do request) answer {
	creds, err := c.tls.credentials()
	if err != nil {
		return answer{err: err}
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)))
	if err != nil {
		return answer{err: fail(exitUsage, "--coordinator: %q is not an address: %w", address, err)}
	}
	defer conn.Close()
	control := controlv1.NewControlClient(conn)
	if err := connect(ctx, conn, address); err != nil {
		return answer{err: err, again: status.Code(err) == codes.Unavailable}
	}
	before := term(ctx, control)
	err = do(ctx, control)
	if status.Code(err) != codes.Unavailable {
		return answer{err: err, connected: true}
	}
	after := uint64(0)
	if before > 0 {
		after = term(ctx, control)
	}
	return answer{err: err, connected: true, again: before == 0 || after != before, lost: before > 0 && after != before}
}

// connect waits until a connection can be used. Calls have the whole time-out; only whether anybody is there is asked for less long.
func connect(ctx context.Context, conn *grpc.ClientConn, address string) error {
	trying, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure {
			// Only a call says why. It fails at once in this state.
			if _, err := controlv1.NewControlClient(conn).GetCluster(trying, &controlv1.GetClusterRequest{}); status.Code(err) == codes.Unavailable {
				return err
			}
		}
		if !conn.WaitForStateChange(trying, state) {
			if ctx.Err() != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
			return status.Errorf(codes.Unavailable, "the coordinator at %s doesn't answer: no connection within %v", address, connectTimeout)
		}
	}
	return nil
}

// term is the term that a coordinator leads in; 0 where it doesn't, or can't be asked.
func term(ctx context.Context, control controlv1.ControlClient) uint64 {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	cluster, err := control.GetCluster(ctx, &controlv1.GetClusterRequest{})
	if err != nil || !cluster.GetLeading() {
		return 0
	}
	return cluster.GetTerm()
}

// say writes a line on standard error, where there is one.
func (c *client) say(format string, args ...any) {
	if c.stderr != nil {
		writeLine(c.stderr(), printable(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")))
	}
}
