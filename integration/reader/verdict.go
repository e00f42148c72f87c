package reader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Place is where a record stands in its source: the source partition's canonical form, and the record's number there.
type Place struct {
	Partition string
	Number    uint64
}

// Source knows how a connector numbers its records.
type Source interface {
	// Place reads a record's place out of it.
	Place(r *kgo.Record) (Place, error)
	// Covered reads a stored partition and offset: the place of the last record that it covers.
	Covered(partition, offset json.RawMessage) (Place, error)
}

// Expect is what should have arrived.
type Expect struct {
	Topic        string
	OffsetsTopic string
	Connector    string
	// Last has the number of the last record of each source partition; the first one's is First.
	Last  map[string]uint64
	First uint64
}

// Exact reads a topic and a connector's stored offsets, and returns everything that is not exact about them.
func Exact(ctx context.Context, bootstrap string, source Source, want Expect) error {
	seen := map[string]*sequence{}
	err := Topic(ctx, bootstrap, want.Topic, func(r *kgo.Record) error {
		place, err := source.Place(r)
		if err != nil {
			return fmt.Errorf("%s/%d offset %d: %w", r.Topic, r.Partition, r.Offset, err)
		}
		s := seen[place.Partition]
		if s == nil {
			s = &sequence{at: map[uint64]string{}, last: map[int32]uint64{}}
			seen[place.Partition] = s
		}
		s.take(r, place.Number)
		return nil
	})
	if err != nil {
		return err
	}
	stored, err := Stored(ctx, bootstrap, want.OffsetsTopic, want.Connector)
	if err != nil {
		return err
	}
	covered := map[string]uint64{}
	for _, o := range stored {
		place, err := source.Covered(o.Partition, o.Offset)
		if err != nil {
			return fmt.Errorf("stored offset of %s: %w", o.Partition, err)
		}
		covered[place.Partition] = place.Number
	}
	var wrong []error
	for _, partition := range slices.Sorted(maps.Keys(want.Last)) {
		wrong = append(wrong, judge(partition, seen[partition], covered, want.First, want.Last[partition]))
	}
	for partition := range seen {
		if _, ok := want.Last[partition]; !ok {
			wrong = append(wrong, fmt.Errorf("source partition %s: not expected at all", partition))
		}
	}
	return errors.Join(wrong...)
}

// sequence is what was seen of one source partition.
type sequence struct {
	at    map[uint64]string // number → where it was seen
	last  map[int32]uint64  // Kafka partition → the last number seen there
	wrong []error
}

// maxWrong bounds how much is said about one source partition.
const maxWrong = 5

func (s *sequence) take(r *kgo.Record, n uint64) {
	here := fmt.Sprintf("%d/%d", r.Partition, r.Offset)
	if there, ok := s.at[n]; ok {
		s.complain("number %d twice: at %s and at %s", n, there, here)
		return
	}
	if last, ok := s.last[r.Partition]; ok && n < last {
		s.complain("number %d at %s comes after %d", n, here, last)
	}
	s.at[n], s.last[r.Partition] = here, n
}

func (s *sequence) complain(format string, args ...any) {
	if len(s.wrong) < maxWrong {
		s.wrong = append(s.wrong, fmt.Errorf(format, args...))
	}
}

func judge(partition string, s *sequence, covered map[string]uint64, first, last uint64) error {
	if s == nil {
		return fmt.Errorf("source partition %s: nothing arrived", partition)
	}
	for n := first; n <= last; n++ {
		if _, ok := s.at[n]; !ok {
			s.complain("number %d is missing", n)
		}
	}
	for n := range s.at {
		if n < first || n > last {
			s.complain("number %d was never there", n)
		}
	}
	if got, ok := covered[partition]; !ok {
		s.complain("no offset is stored")
	} else if got != last {
		s.complain("the stored offset is that of %d, the last record's is that of %d", got, last)
	}
	if len(s.wrong) == 0 {
		return nil
	}
	return fmt.Errorf("source partition %s: %w", partition, errors.Join(s.wrong...))
}

// StoredOffset is one stored source offset.
type StoredOffset struct{ Partition, Offset json.RawMessage }

// Stored reads a connector's stored offsets in Kafka Connect's form: key ["connector",{partition}], value {offset}. The last record of a key counts, and a null value is none.
func Stored(ctx context.Context, bootstrap, topic, connector string) ([]StoredOffset, error) {
	latest := map[string]StoredOffset{}
	err := Topic(ctx, bootstrap, topic, func(r *kgo.Record) error {
		var key []json.RawMessage
		if err := json.Unmarshal(r.Key, &key); err != nil || len(key) != 2 {
			return fmt.Errorf("%s/%d offset %d: key %q is not [connector, partition]", r.Topic, r.Partition, r.Offset, r.Key)
		}
		var name string
		if err := json.Unmarshal(key[0], &name); err != nil {
			return fmt.Errorf("%s/%d offset %d: key %q: %w", r.Topic, r.Partition, r.Offset, r.Key, err)
		}
		if name != connector {
			return nil
		}
		if r.Value == nil || bytes.Equal(r.Value, []byte("null")) {
			delete(latest, string(key[1]))
			return nil
		}
		latest[string(key[1])] = StoredOffset{Partition: key[1], Offset: r.Value}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var stored []StoredOffset
	for _, key := range slices.Sorted(maps.Keys(latest)) {
		stored = append(stored, latest[key])
	}
	return stored, nil
}
