package kafkaclient

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const transactionCoordinator = 1

// Direct sends one request to the broker that must answer it, once. The client itself repeats a request whose connection died, which hides an attempt that the broker may have carried out. Safe
// for concurrent use.
type Direct struct {
	client *kgo.Client

	mu           sync.Mutex
	coordinators map[string]int32 // by transactional id; at most one entry for each id that was asked for
}

// NewDirect sends through cl, which stays the caller's to close.
func NewDirect(cl *kgo.Client) *Direct {
	return &Direct{client: cl, coordinators: map[string]int32{}}
}

// Client is the client that requests go through.
func (d *Direct) Client() *kgo.Client { return d.client }

// Locate finds the transaction coordinators of all ids in one request, where they aren't known yet. An error of one id shows when something is sent to it.
func (d *Direct) Locate(ctx context.Context, ids ...string) error {
	_, err := d.find(ctx, ids)
	return err
}

// ToCoordinator sends req to the transaction coordinator of id.
func (d *Direct) ToCoordinator(ctx context.Context, id string, req kmsg.Request) (kmsg.Response, error) {
	codes, err := d.find(ctx, []string{id})
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(codes[id]); err != nil {
		return nil, fmt.Errorf("find the transaction coordinator of %q: %w", id, err)
	}
	d.mu.Lock()
	node, ok := d.coordinators[id]
	d.mu.Unlock()
	if !ok { // Forgotten meanwhile by another request for the same id.
		return nil, fmt.Errorf("find the transaction coordinator of %q: %w", id, kerr.CoordinatorNotAvailable)
	}
	resp, err := d.client.Broker(int(node)).Request(ctx, req)
	if err != nil {
		d.Forget(id)
	}
	return resp, err
}

// Forget drops what is known of id's coordinator: the next request asks where it is now.
func (d *Direct) Forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.coordinators, id)
}

// find asks for the coordinators that aren't known yet and returns the error codes of those that the broker couldn't name. Asking changes nothing, so the client may repeat it.
func (d *Direct) find(ctx context.Context, ids []string) (map[string]int16, error) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType = transactionCoordinator
	d.mu.Lock()
	for _, id := range ids {
		if _, ok := d.coordinators[id]; !ok {
			req.CoordinatorKeys = append(req.CoordinatorKeys, id)
		}
	}
	d.mu.Unlock()
	if len(req.CoordinatorKeys) == 0 {
		return nil, nil
	}
	codes := map[string]int16{}
	for _, shard := range d.client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, fmt.Errorf("find transaction coordinators: %w", shard.Err)
		}
		resp, ok := shard.Resp.(*kmsg.FindCoordinatorResponse)
		if !ok {
			return nil, fmt.Errorf("find transaction coordinators: the broker answered with %T", shard.Resp)
		}
		d.keep(resp, codes)
	}
	return codes, nil
}

func (d *Direct) keep(resp *kmsg.FindCoordinatorResponse, codes map[string]int16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range resp.Coordinators {
		if c.ErrorCode == 0 {
			d.coordinators[c.Key] = c.NodeID
		} else {
			codes[c.Key] = c.ErrorCode
		}
	}
}

// ToBroker sends req to one broker.
func (d *Direct) ToBroker(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	return d.client.Broker(int(node)).Request(ctx, req)
}
