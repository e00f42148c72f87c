package numbers

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// maxKeys is as many as eight digits can tell apart.
const maxKeys = 100_000_000

// reader makes the records of one task.
type reader struct {
	topic      string
	rate       float64 // records a second; 0 is as fast as possible
	burst      time.Duration
	batch      int64
	timestamps bool
	keys       int64
	headers    []source.Header
	partitions []*partition
	turn       int // the next partition

	start time.Time // of the rate's schedule
	made  int64     // since start
}

// partition is one source partition.
type partition struct {
	source *source.Partition
	next   int64 // number of the next record
	last   int64 // number of the last record that there will be
	value  value
}

// share divides count records of the task among its partitions; 0 is no end.
func (r *reader) share(count int64) {
	for i, p := range r.partitions {
		p.last = math.MaxInt64
		if count > 0 {
			n := int64(len(r.partitions))
			p.last = count / n
			if int64(i) < count%n {
				p.last++
			}
		}
	}
}

// Read implements source.Reader: it makes a batch of one partition.
func (r *reader) Read(ctx context.Context, out *source.Records) error {
	p := r.pick()
	if p == nil {
		if err := out.Idle(); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	n := min(r.batch, p.last-p.next+1)
	if r.rate > 0 {
		due, err := r.await(ctx, out)
		if err != nil || due == 0 {
			return err
		}
		n = min(n, due)
	}
	if err := r.add(p, n, out); err != nil {
		return err
	}
	r.made += n
	return out.Reach(p.source, source.Fields{"n": p.next - 1})
}

// pick takes the partitions in turn, and returns nil when all are done.
func (r *reader) pick() *partition {
	for range r.partitions {
		p := r.partitions[r.turn]
		r.turn = (r.turn + 1) % len(r.partitions)
		if p.next <= p.last {
			return p
		}
	}
	return nil
}

// await waits until a record is due, and returns how many are; 0 where ctx is done. A task that was held up catches up.
func (r *reader) await(ctx context.Context, out *source.Records) (int64, error) {
	if r.start.IsZero() {
		r.start = time.Now()
	}
	for {
		next := r.start.Add(r.due(r.made))
		if now := time.Now(); !now.Before(next) {
			elapsed := now.Sub(r.start)
			if r.burst > 0 {
				elapsed = elapsed.Truncate(r.burst)
			}
			// The schedule of the next record decides; how many more are due may be off by one in floating point.
			return max(1, int64(elapsed.Seconds()*r.rate)+1-r.made), nil
		}
		// What was made before is committed now, and doesn't wait for the next record.
		if err := out.Idle(); err != nil {
			return 0, err
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, nil
		}
	}
}

// due is when the record after n others is sent: when it falls due, or with the burst after that.
func (r *reader) due(n int64) time.Duration {
	due := time.Duration(float64(n) / r.rate * float64(time.Second))
	if r.burst > 0 {
		due = (due + r.burst - 1).Truncate(r.burst)
	}
	return due
}

// add adds n records of p. It allocates nothing per record: this is the source of the benchmarks.
func (r *reader) add(p *partition, n int64, out *source.Records) error {
	rec := source.Record{Partition: p.source, Topic: r.topic, Headers: r.headers}
	if r.timestamps {
		rec.Timestamp = time.Now()
	}
	var key [8]byte
	for range n {
		rec.Value = p.value.with(p.next)
		if r.keys > 0 {
			putDigits(&key, p.next%r.keys)
			rec.Key = key[:]
		}
		if err := out.Add(rec); err != nil {
			return err
		}
		p.next++
	}
	return nil
}

// Close implements source.Reader.
func (*reader) Close() error { return nil }

// value is the value of a partition's records: a prefix, a number that grows, and dots.
type value struct {
	bytes  []byte
	prefix int
	size   int
	// more is how many bytes a value may have beyond size.
	more uint64
}

func newValue(partition, size, largest int) value {
	v := value{bytes: strconv.AppendInt(nil, int64(partition), 10), size: size}
	if largest > size {
		v.more = uint64(largest - size)
	}
	v.bytes = append(v.bytes, ':')
	v.prefix = len(v.bytes)
	for len(v.bytes) < max(size, largest) {
		v.bytes = append(v.bytes, '.')
	}
	return v
}

// with returns the value with a number, in memory that the next call uses again. Numbers must not get shorter: then no dot has to be put back.
func (v *value) with(n int64) []byte {
	end := len(strconv.AppendInt(v.bytes[:v.prefix], n, 10))
	if end > len(v.bytes) {
		v.bytes = strconv.AppendInt(v.bytes[:v.prefix], n, 10)
	}
	size := v.size
	if v.more > 0 {
		size += int(scatter(uint64(n)) % (v.more + 1))
	}
	return v.bytes[:max(end, size)]
}

// scatter gives numbers that follow one another values that have nothing to do with one another (the finalizer of splitmix64).
func scatter(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

// putDigits writes n, which is below maxKeys, with leading zeros.
func putDigits(key *[8]byte, n int64) {
	for i := len(key) - 1; i >= 0; i-- {
		key[i] = byte('0' + n%10)
		n /= 10
	}
}
