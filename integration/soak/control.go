package soak

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/fencepost-io/fencepost/integration/harness"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

const (
	// answerTimeout is how long one coordinator may take to answer.
	answerTimeout = 3 * time.Second
	// askTimeout is how long a request may take altogether, through elections and restarts.
	askTimeout = time.Minute
)

// control asks whichever coordinator leads.
type control struct {
	clients []controlv1.ControlClient
	conns   []*grpc.ClientConn
}

func newControl(addresses []string) (*control, error) {
	c := &control{}
	for _, address := range addresses {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			c.close()
			return nil, err
		}
		c.conns = append(c.conns, conn)
		c.clients = append(c.clients, controlv1.NewControlClient(conn))
	}
	return c, nil
}

func (c *control) close() {
	for _, conn := range c.conns {
		conn.Close()
	}
}

// leader is the number of the coordinator that says it leads with the highest term.
func (c *control) leader(ctx context.Context) (int, error) {
	found, term := -1, uint64(0)
	for i, client := range c.clients {
		asking, cancel := context.WithTimeout(ctx, answerTimeout)
		answer, err := client.GetCluster(asking, &controlv1.GetClusterRequest{})
		cancel()
		if err == nil && answer.GetLeading() && answer.GetTerm() >= term {
			found, term = i, answer.GetTerm()
		}
	}
	if found < 0 {
		return 0, errors.New("nobody leads")
	}
	return found, nil
}

// ask asks until there is an answer. Requests mean the same when they are carried out twice.
func (c *control) ask(ctx context.Context, what string, do func(context.Context, controlv1.ControlClient) error) error {
	err := harness.Poll(ctx, askTimeout, func(ctx context.Context) error {
		leader, err := c.leader(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, askTimeout/2)
		defer cancel()
		err = do(ctx, c.clients[leader])
		switch status.Code(err) {
		case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Unimplemented:
			return harness.Final(err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// connectors lists what users see.
func (c *control) connectors(ctx context.Context) (all []*controlv1.Connector, err error) {
	err = c.ask(ctx, "list", func(ctx context.Context, cc controlv1.ControlClient) error {
		answer, err := cc.ListConnectors(ctx, &controlv1.ListConnectorsRequest{})
		all = answer.GetConnectors()
		return err
	})
	return all, err
}

func (c *control) apply(ctx context.Context, name string, config map[string]string) error {
	return c.ask(ctx, "apply "+name, func(ctx context.Context, cc controlv1.ControlClient) error {
		_, err := cc.ApplyConnector(ctx, &controlv1.ApplyConnectorRequest{Name: name, Config: config})
		return err
	})
}

func (c *control) pause(ctx context.Context, name string) error {
	return c.ask(ctx, "pause "+name, func(ctx context.Context, cc controlv1.ControlClient) error {
		_, err := cc.PauseConnector(ctx, &controlv1.PauseConnectorRequest{Name: name})
		return err
	})
}

func (c *control) stop(ctx context.Context, name string) error {
	return c.ask(ctx, "stop "+name, func(ctx context.Context, cc controlv1.ControlClient) error {
		_, err := cc.StopConnector(ctx, &controlv1.StopConnectorRequest{Name: name})
		return err
	})
}

func (c *control) resume(ctx context.Context, name string) error {
	return c.ask(ctx, "resume "+name, func(ctx context.Context, cc controlv1.ControlClient) error {
		_, err := cc.ResumeConnector(ctx, &controlv1.ResumeConnectorRequest{Name: name})
		return err
	})
}

func (c *control) restart(ctx context.Context, name string) error {
	return c.ask(ctx, "restart "+name, func(ctx context.Context, cc controlv1.ControlClient) error {
		_, err := cc.RestartConnector(ctx, &controlv1.RestartConnectorRequest{Name: name})
		return err
	})
}

func (c *control) drain(ctx context.Context, runner string, end bool) error {
	return c.ask(ctx, "drain "+runner, func(ctx context.Context, cc controlv1.ControlClient) error {
		_, err := cc.DrainRunner(ctx, &controlv1.DrainRunnerRequest{Name: runner, Undo: end})
		return err
	})
}
