package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

const (
	// defaultCoordinator is where a coordinator listens unless told otherwise.
	defaultCoordinator = "127.0.0.1:8780"
	// maxMessageBytes is the documented limit of a message on every hop.
	maxMessageBytes = 20 << 20
)

// client asks a coordinator. Any address will do: one that doesn't lead names the leader.
type client struct {
	addresses []string
	timeout   time.Duration
	tls       tlsFiles
	impatient bool             // no election is waited for
	stderr    func() io.Writer // for progress; nil where nobody looks
}

func (c *client) register(cmd *cobra.Command) {
	def := defaultCoordinator
	if env := os.Getenv("FENCEPOST_COORDINATOR"); env != "" {
		def = env
	}
	cmd.Flags().StringSliceVar(&c.addresses, "coordinator", strings.Split(def, ","), "coordinator addresses HOST:PORT, separated by commas (environment FENCEPOST_COORDINATOR)")
	c.timeout = 60 * time.Second
	cmd.Flags().Var((*positive)(&c.timeout), "timeout", "how long to wait for an answer")
	c.stderr = cmd.ErrOrStderr // asked when it is needed: the root's is set last
	c.tls.register(cmd)
}

// positive is a flag for a duration that makes sense only above zero.
type positive time.Duration

func (p *positive) String() string { return time.Duration(*p).String() }
func (p *positive) Type() string   { return "duration" }

// Set implements pflag.Value.
func (p *positive) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	if d <= 0 {
		return errors.New("it must be more than 0, for example 30s")
	}
	*p = positive(d)
	return nil
}

// detailOf finds the ErrorDetail of a gRPC error; nil where there is none.
func detailOf(err error) *controlv1.ErrorDetail {
	for _, d := range status.Convert(err).Details() {
		if detail, ok := d.(*controlv1.ErrorDetail); ok {
			return detail
		}
	}
	return nil
}

// explain makes an error for people of a gRPC error, with its exit code. connected says that somebody is at one of the addresses.
func explain(err error, addresses []string, connected bool) error {
	if err == nil {
		return nil
	}
	var coded *exitError
	if errors.As(err, &coded) {
		return err
	}
	detail, s := detailOf(err), status.Convert(err)
	msg := s.Message()
	if problems := detail.GetProblems(); len(problems) > 0 {
		msg = describeProblems("the configuration", problems)
	}
	if hint := detail.GetHint(); hint != "" {
		msg += "\n" + hint
	}
	switch s.Code() {
	case codes.NotFound:
		return fail(exitNotFound, "%s", msg)
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		return fail(exitConflict, "%s", msg)
	case codes.Unavailable, codes.DeadlineExceeded:
		if connected {
			return fail(exitUnreachable, "%s\nAsked %s.", msg, strings.Join(addresses, ", "))
		}
		return fail(exitUnreachable, "%s\nAsked %s. Is a coordinator running there? Another address: --coordinator or FENCEPOST_COORDINATOR.", msg, strings.Join(addresses, ", "))
	default:
		return fail(exitFailed, "%s", msg)
	}
}

// describeProblems is one line a problem, aligned by key.
func describeProblems(what string, problems []*pluginv1.Problem) string {
	var b strings.Builder
	errs := 0
	for _, p := range problems {
		if !p.GetWarning() {
			errs++
		}
	}
	fmt.Fprintf(&b, "%s has %s:\n", what, count(errs, "problem", "problems"))
	t := newTable(&b)
	for _, p := range problems {
		t.row("  "+keyOf(p), problemText(p))
	}
	_ = t.flush()
	return strings.TrimRight(b.String(), "\n")
}

func keyOf(p *pluginv1.Problem) string {
	if p.GetKey() == "" {
		return "(no key)"
	}
	return p.GetKey()
}

func problemText(p *pluginv1.Problem) string {
	text := p.GetMessage()
	if p.GetHint() != "" {
		text += "; " + p.GetHint()
	}
	if p.GetWarning() {
		text = "warning: " + text
	}
	return strings.ReplaceAll(text, "\n", " ")
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// tlsFiles are the flags for mutual TLS between the parts of Fencepost.
type tlsFiles struct{ cert, key, ca string }

func (t *tlsFiles) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.cert, "tls-cert", "", "PEM file with this side's certificate")
	cmd.Flags().StringVar(&t.key, "tls-key", "", "PEM file with its key")
	cmd.Flags().StringVar(&t.ca, "tls-ca", "", "PEM file with the authority that signed the other side's certificate")
}

// config is nil where no TLS file is named.
func (t *tlsFiles) config() (*tls.Config, error) {
	if t.cert == "" && t.key == "" && t.ca == "" {
		return nil, nil
	}
	if t.cert == "" || t.key == "" || t.ca == "" {
		return nil, fail(exitUsage, "--tls-cert, --tls-key and --tls-ca go together: both sides show a certificate")
	}
	pair, err := tls.LoadX509KeyPair(t.cert, t.key)
	if err != nil {
		return nil, fail(exitUsage, "--tls-cert, --tls-key: %w", err)
	}
	pem, err := os.ReadFile(t.ca)
	if err != nil {
		return nil, fail(exitUsage, "--tls-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fail(exitUsage, "--tls-ca: %s has no PEM certificate", t.ca)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	}, nil
}

func (t *tlsFiles) credentials() (credentials.TransportCredentials, error) {
	config, err := t.config()
	if err != nil {
		return nil, err
	}
	if config == nil {
		return insecure.NewCredentials(), nil
	}
	return credentials.NewTLS(config), nil
}
