package pluginhost

import "os"

// pipe is a pipe between the runner and a plugin.
type pipe struct{ ours, theirs *os.File }

// pipes are a plugin's stdin, stdout and stderr.
type pipes struct{ stdin, stdout, stderr pipe }

func newPipes() (*pipes, error) {
	var p pipes
	var err error
	if p.stdin.theirs, p.stdin.ours, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stdout.ours, p.stdout.theirs, err = os.Pipe(); err != nil {
		p.closeAll()
		return nil, err
	}
	if p.stderr.ours, p.stderr.theirs, err = os.Pipe(); err != nil {
		p.closeAll()
		return nil, err
	}
	return &p, nil
}

// closeTheirs closes the plugin's ends, which the plugin has inherited.
func (p *pipes) closeTheirs() {
	for _, f := range []*os.File{p.stdin.theirs, p.stdout.theirs, p.stderr.theirs} {
		_ = f.Close() // nil where a pipe was never made: that is an error and no panic
	}
}

func (p *pipes) closeAll() {
	p.closeTheirs()
	for _, f := range []*os.File{p.stdin.ours, p.stdout.ours, p.stderr.ours} {
		_ = f.Close()
	}
}
