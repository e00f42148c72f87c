package reader

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Generated knows the numbers of the generator plugin: the value of a record is "partition:number" and dots, the offset {"n":number}.
type Generated struct{}

// Place implements Source.
func (Generated) Place(r *kgo.Record) (Place, error) {
	partition, number, _ := strings.Cut(strings.TrimRight(string(r.Value), "."), ":")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return Place{}, fmt.Errorf("value %q is not PARTITION:NUMBER", r.Value)
	}
	return Place{Partition: partition, Number: n}, nil
}

// Covered implements Source.
func (Generated) Covered(partition, offset json.RawMessage) (Place, error) {
	var p struct{ Generator string }
	var o struct{ N uint64 }
	if err := json.Unmarshal(partition, &p); err != nil {
		return Place{}, err
	}
	if err := json.Unmarshal(offset, &o); err != nil {
		return Place{}, err
	}
	return Place{Partition: p.Generator, Number: o.N}, nil
}
