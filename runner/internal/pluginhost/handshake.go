package pluginhost

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/host"
)

// Sizes of what is kept of a plugin's stdout.
const (
	maxFirstLine  = 4096
	maxQuoted     = 200
	readChunkSize = 32 << 10
)

// stdout reads a plugin's stdout for as long as the plugin lives. Its first line is the handshake: where it is one it goes on to go-plugin, where it isn't the plugin
// is refused. Everything after it is thrown away.
type stdout struct {
	mu sync.Mutex
	// first is what came up to the first line end, at most maxFirstLine bytes.
	first []byte
	// whole says that the first line has ended.
	whole bool
}

// pass reads from r until it ends. refuse is called, at most once, with what is wrong with the first line.
func (s *stdout) pass(r io.Reader, handshake io.WriteCloser, refuse func(error)) {
	defer handshake.Close() // its error would be that of a pipe
	buffer := make([]byte, readChunkSize)
	waiting := true
	for {
		n, err := r.Read(buffer)
		if waiting && n > 0 && s.take(buffer[:n]) {
			waiting = false
			if line, bad := parseHandshake(s.first); bad != nil {
				refuse(bad)
			} else {
				_, _ = io.WriteString(handshake, line+"\n") // fails only where go-plugin has given up
			}
		}
		if err != nil {
			return
		}
	}
}

// take adds to the first line, and says whether it has ended.
func (s *stdout) take(p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	line, _, whole := bytes.Cut(p, []byte{'\n'})
	s.first = append(s.first, line[:min(len(line), maxFirstLine-len(s.first))]...)
	s.whole = whole || len(s.first) == maxFirstLine
	return s.whole
}

// silence says what is wrong where the start's time ran out.
func (s *stdout) silence(after time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.whole:
		return nil
	case len(s.first) == 0:
		return fmt.Errorf("it wrote nothing to stdout within %s, where the handshake line belongs", after)
	default:
		return fmt.Errorf("it wrote %s to stdout and no line end within %s; stdout must carry only the handshake line", quote(s.first), after)
	}
}

// parseHandshake checks a plugin's first line and gives the part of it that go-plugin needs. It is stricter than go-plugin, which would resolve any host name, and
// panics at a certificate.
func parseHandshake(first []byte) (string, error) {
	line := strings.TrimSuffix(string(first), "\r")
	switch {
	case strings.HasPrefix(line, "\xef\xbb\xbf"):
		return "", fmt.Errorf("its stdout begins with a byte order mark: %s; stdout must carry only the handshake line, without one", quote(first))
	case line == "":
		return "", fmt.Errorf("its first line on stdout is empty; stdout must carry only the handshake line")
	}
	parts := strings.Split(line, "|")
	if len(parts) < 5 || !digits(parts[0]) || !digits(parts[1]) {
		return "", fmt.Errorf("its first line on stdout is %s; stdout must carry only the handshake line, for example 1|1|unix|/path/of/socket|grpc: logs belong on stderr", quote(first))
	}
	switch {
	case parts[0] != "1":
		return "", fmt.Errorf("its handshake %s has core version %s, and this runner speaks 1", quote(first), parts[0])
	case parts[1] != fmt.Sprint(host.ProtocolVersion):
		return "", fmt.Errorf("its handshake %s has protocol version %s, and this runner speaks %d", quote(first), parts[1], host.ProtocolVersion)
	case parts[4] != "grpc":
		return "", fmt.Errorf("its handshake %s asks for the protocol %q, and this runner speaks grpc", quote(first), parts[4])
	case len(parts) > 5 && parts[5] != "":
		return "", fmt.Errorf("its handshake %s has a TLS certificate, which this runner didn't ask for", quote(first))
	}
	if err := checkAddress(parts[2], parts[3]); err != nil {
		return "", fmt.Errorf("its handshake %s names %w", quote(first), err)
	}
	return strings.Join(parts[:5], "|"), nil
}

// checkAddress allows what plugin.proto does: a Unix socket, or a port of this machine.
func checkAddress(network, address string) error {
	switch network {
	case "unix":
		if !strings.HasPrefix(address, "/") || len(address) > maxSocketPath {
			return fmt.Errorf("a socket whose path isn't absolute, or is over %d bytes", maxSocketPath)
		}
	case "tcp":
		name, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(name); err != nil || ip == nil || !ip.IsLoopback() {
			return fmt.Errorf("an address that isn't 127.0.0.1 and a port")
		}
	default:
		return fmt.Errorf("the network %q, which is neither unix nor tcp", network)
	}
	return nil
}

func digits(s string) bool {
	return s != "" && len(s) < 4 && strings.Trim(s, "0123456789") == ""
}

// quote shows a line safely, cut at 200 bytes.
func quote(line []byte) string {
	if len(line) > maxQuoted {
		return fmt.Sprintf("%q…", line[:maxQuoted])
	}
	return fmt.Sprintf("%q", line)
}
