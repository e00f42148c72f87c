package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Keys of a connector configuration that problems found here belong to. What their values may be, the core and the runner say.
const (
	keyName      = "name"
	keyClass     = "connector.class"
	keyVersion   = "plugin.version"
	keySHA256    = "plugin.sha256"
	keyPlacement = "placement.labels"
	keySupport   = "exactly.once.support"
)

// ValidateConnector checks a configuration and stores nothing.
func (s *Server) ValidateConnector(ctx context.Context, req *controlv1.ValidateConnectorRequest) (*controlv1.ValidateConnectorResponse, error) {
	problems, err := s.validate(ctx, req.GetName(), req.GetConfig())
	if err != nil {
		return nil, err
	}
	return &controlv1.ValidateConnectorResponse{Problems: problems}, nil
}

// valid is validate where only a configuration without mistakes will do: the error has all of them.
func (s *Server) valid(ctx context.Context, name string, config map[string]string) (warnings []*pluginv1.Problem, err error) {
	problems, err := s.validate(ctx, name, config)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(problems, func(p *pluginv1.Problem) bool { return !p.GetWarning() }) {
		return nil, invalid(problems)
	}
	return problems, nil
}

// validate finds every problem that can be found: those of the name and of the keys that the core reads, those that a runner finds, with its plugin, in all the others, and missing rights.
func (s *Server) validate(ctx context.Context, name string, config map[string]string) ([]*pluginv1.Problem, error) {
	problems := checkName(name, config)
	session, found, err := s.choose(ctx, config)
	if err != nil {
		return nil, err
	}
	problems = append(problems, found...)
	if session != 0 {
		answered, err := s.askPlugins(ctx, session, name, config)
		if err != nil {
			return nil, err
		}
		problems = merge(problems, answered)
	}
	if names.CheckConnector(name) == "" {
		problems = append(problems, s.rights(ctx, name)...)
	}
	return problems, nil
}

func checkName(name string, config map[string]string) []*pluginv1.Problem {
	var problems []*pluginv1.Problem
	if wrong := names.CheckConnector(name); wrong != "" {
		problems = append(problems, &pluginv1.Problem{Key: keyName, Message: wrong})
	}
	if inside, set := config[keyName]; set && inside != name {
		problems = append(problems, &pluginv1.Problem{Key: keyName, Message: fmt.Sprintf("is %q in the configuration, and the connector is called %q", inside, name), Hint: "make them equal, or remove the key"})
	}
	return problems
}

// mostAsked bounds the runners that are asked the same in turn.
const mostAsked = 5

// askPlugins asks a runner, and another one where that one's host can't run the plugin. Where no other fits, what the last one said is the answer.
func (s *Server) askPlugins(ctx context.Context, session state.SessionID, name string, config map[string]string) ([]*pluginv1.Problem, error) {
	for asked := []state.SessionID(nil); ; {
		answer, err := s.askPlugin(ctx, session, name, config)
		if err != nil {
			return nil, err
		}
		asked = append(asked, session)
		if !answer.GetHost() || len(asked) == mostAsked {
			return answer.GetProblems(), nil
		}
		if session, _, err = s.choose(ctx, config, asked...); err != nil {
			return nil, err
		}
		if session == 0 || slices.Contains(asked, session) {
			return answer.GetProblems(), nil
		}
	}
}

// choose finds a runner to ask and the problems of the keys that choosing reads. Where those keys are wrong, a runner is chosen without them, so that it can find the other problems at the same time. One that has failed to answer
// is chosen only where no other fits.
func (s *Server) choose(ctx context.Context, config map[string]string, failed ...state.SessionID) (session state.SessionID, problems []*pluginv1.Problem, err error) {
	if err := s.awaitRunners(ctx); err != nil {
		return 0, nil, err
	}
	connected := false
	err = s.view(ctx, func(st *state.State) {
		for _, r := range st.Runners(time.Now()) {
			connected = connected || r.Session != 0
		}
		var refused *state.Error
		_, session, refused = st.Choose(config, failed...)
		if refused != nil && len(refused.Problems) > 0 {
			problems = refused.Problems
			config = without(config, problems)
			if config[keyClass] == "" {
				return // Nothing says which plugin to ask.
			}
			_, session, refused = st.Choose(config, failed...)
		}
		if refused != nil && len(refused.Problems) == 0 {
			problems = append(problems, unfit(config, refused.Text, st.Plugins()))
		}
	})
	if err == nil && !connected {
		err = noRunner("no runner is connected, so nobody can check the configuration with its plugin")
	}
	return session, problems, err
}

// without is a configuration without the keys of problems.
func without(config map[string]string, problems []*pluginv1.Problem) map[string]string {
	rest := maps.Clone(config)
	for _, p := range problems {
		delete(rest, p.GetKey())
	}
	return rest
}

// unfit is the problem of a configuration that no connected runner can run, with the key that keeps it from being run.
func unfit(config map[string]string, text string, plugins []state.PluginView) *pluginv1.Problem {
	var offering []state.PluginView
	types := map[string]bool{}
	for _, p := range plugins {
		for _, t := range p.Types {
			types[t] = true
		}
		if p.Error == "" && slices.Contains(p.Types, config[keyClass]) {
			offering = append(offering, p)
		}
	}
	fits := func(match func(state.PluginView) bool) bool { return slices.ContainsFunc(offering, match) }
	switch {
	case len(offering) == 0:
		return &pluginv1.Problem{Key: keyClass, Message: text, Hint: nearest(config[keyClass], slices.Sorted(maps.Keys(types)))}
	case config[keySHA256] != "" && !fits(func(p state.PluginView) bool { return strings.EqualFold(p.SHA256, config[keySHA256]) }):
		return &pluginv1.Problem{Key: keySHA256, Message: text}
	case config[keyVersion] != "" && !fits(func(p state.PluginView) bool { return p.Version == config[keyVersion] }):
		return &pluginv1.Problem{Key: keyVersion, Message: text}
	}
	return &pluginv1.Problem{Key: keyPlacement, Message: text}
}

// nearest names the type that was probably meant.
func nearest(class string, types []string) string {
	best, distance := "", len(class)/2+1
	for _, t := range types {
		if d := levenshtein.ComputeDistance(strings.ToLower(class), strings.ToLower(t)); d < distance {
			best, distance = t, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("did you mean %q?", best)
	case len(types) > 0:
		return "runners offer " + strings.Join(types, ", ")
	}
	return "no runner offers any connector type: check the runners' plugin-path"
}

func (s *Server) askPlugin(ctx context.Context, session state.SessionID, name string, config map[string]string) (*runnerv1.ValidateAnswer, error) {
	message, err := s.ask(ctx, session, func(id uint64) *runnerv1.SessionResponse {
		return &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Validate{Validate: &runnerv1.Validate{RequestId: id, Connector: name, Config: config}}}
	})
	if err != nil {
		return nil, err
	}
	answer := message.GetValidateAnswer()
	if answer == nil {
		return nil, wrongAnswer(message)
	}
	if answer.GetError() != "" {
		return nil, notValidated(answer.GetError())
	}
	return answer, nil
}

// merge adds problems of keys that have none yet: the runner checks again what the core has checked.
func merge(problems, more []*pluginv1.Problem) []*pluginv1.Problem {
	has := map[string]bool{}
	for _, p := range problems {
		has[p.GetKey()] = p.GetKey() != ""
	}
	for _, p := range more {
		if !has[p.GetKey()] {
			problems = append(problems, p)
		}
	}
	return problems
}

// rights asks whether the coordinator may fence the connector's ids. Only a clear no is a problem.
func (s *Server) rights(ctx context.Context, name string) []*pluginv1.Problem {
	l := s.leading.Load()
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var refused *fence.Refused
	if errors.As(l.Rights.Probe(ctx, names.TransactionalID(s.config.Cluster, name, 0)), &refused) {
		return []*pluginv1.Problem{{Key: keySupport, Message: refused.Reason}}
	}
	return nil
}
