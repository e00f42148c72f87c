package kafkaclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Explain says why the cluster can't be used, in words that name what to change where the cause is known.
func (s *Settings) Explain(err error) string {
	var (
		firstRead *kgo.ErrFirstReadEOF
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		expired   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		dial      *net.OpError
		dns       *net.DNSError
	)
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return fmt.Sprintf("the broker at %s refused the user name or the password: check %s and %s", s, keyUsername, keyPassword)
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return fmt.Sprintf("the broker at %s doesn't offer this %s", s, keyMechanism)
	case errors.Is(err, kerr.IllegalSaslState):
		return fmt.Sprintf("the broker at %s doesn't expect a login: check %s", s, keyProtocol)
	case errors.As(err, &authority):
		return fmt.Sprintf("the certificate of the broker at %s is signed by an authority that isn't known here: check %s (%v)", s, keyCALocation, authority)
	case errors.As(err, &host):
		return fmt.Sprintf("the certificate of the broker at %s is for another host: use a name that it is for, or set %s to none (%v)", s, keyIdentification, host)
	case errors.As(err, &expired):
		return fmt.Sprintf("the certificate of the broker at %s is not valid: %v", s, expired)
	case errors.As(err, &record):
		return fmt.Sprintf("the broker at %s doesn't answer with TLS: check %s and the port", s, keyProtocol)
	case errors.As(err, &alert):
		return fmt.Sprintf("the broker at %s refused our certificate: check %s (%v)", s, keyCertificate, alert)
	case s.login && (errors.Is(err, io.EOF) || errors.As(err, &firstRead)):
		return fmt.Sprintf("the broker at %s closed the connection during the login: check %s, %s, %s and %s", s, keyProtocol, keyMechanism, keyUsername, keyPassword)
	case errors.As(err, &firstRead):
		return fmt.Sprintf("the broker at %s closed the connection at once: check %s (it may expect TLS or a login) and the port", s, keyProtocol)
	case errors.As(err, &dns):
		return fmt.Sprintf("the name of the broker at %s is not known: %v", s, dns)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Sprintf("no broker answers at %s: %v", s, dial)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the broker at %s doesn't answer in time: %v", s, err)
	}
	return fmt.Sprintf("broker at %s: %v", s, err)
}

// Unreachable says that an error is the lack of an answer: no connection, or none in time.
func Unreachable(err error) bool {
	var (
		firstRead *kgo.ErrFirstReadEOF
		network   net.Error
	)
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.As(err, &firstRead) || errors.As(err, &network)
}
