package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/session"
)

const (
	// questionsAtOnce bounds the plugins that are started for questions, and maxQuestions those that wait.
	questionsAtOnce = 8
	maxQuestions    = 10_000
	// questionTimeout bounds an answer.
	questionTimeout = time.Minute
)

// questionOver says that a question was answered.
type questionOver struct{}

var errTooManyQuestions = errors.New("too many questions wait on this runner: try again later")

// question answers one of the coordinator's questions, in a goroutine of its own.
func (s *Supervisor) question(work context.Context, e any) {
	if s.stopping || s.waiting >= maxQuestions {
		s.answer(e, func() error { return errTooManyQuestions })
		return
	}
	s.waiting++
	s.running.Go(func() {
		defer s.queue.pushOwn(questionOver{})
		ctx, cancel := context.WithTimeout(work, questionTimeout)
		defer cancel()
		select {
		case s.questions <- struct{}{}:
			defer func() { <-s.questions }()
			s.answerInTime(ctx, e)
		case <-ctx.Done():
			s.answer(e, func() error { return errTooManyQuestions })
		}
	})
}

// answer answers with an error.
func (s *Supervisor) answer(e any, err func() error) {
	switch e := e.(type) {
	case *session.Validate:
		s.session.AnswerValidate(e.ID, nil, false, err())
	case *session.ReadOffsets:
		s.session.AnswerReadOffsets(e.ID, nil, err())
	case *session.AlterOffsets:
		s.session.AnswerAlterOffsets(e.ID, err())
	case *session.WarmUp:
		s.session.AnswerWarmUp(e.ID, err())
	}
}

// answerInTime finds an answer.
func (s *Supervisor) answerInTime(ctx context.Context, e any) {
	switch e := e.(type) {
	case *session.Validate:
		problems, host, err := s.cfg.Validator.Validate(ctx, e.Connector, e.Config)
		s.session.AnswerValidate(e.ID, problems, host, err)
	case *session.ReadOffsets:
		stored, err := s.cfg.LoadOffsets(ctx, e.Connector, e.OffsetsTopic)
		if err != nil {
			s.session.AnswerReadOffsets(e.ID, nil, fmt.Errorf("read offsets of %q: %w", e.Connector, err))
			return
		}
		s.session.AnswerReadOffsets(e.ID, stored.All(), nil)
	case *session.AlterOffsets:
		s.session.AnswerAlterOffsets(e.ID, errors.New("this version can't change stored offsets"))
	case *session.WarmUp:
		s.session.AnswerWarmUp(e.ID, s.cfg.Validator.warmUp(ctx, e))
	}
}
