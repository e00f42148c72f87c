package task

// Spread counts values by size, as a Prometheus histogram does. It is a value: a copy stays as it is.
type Spread struct {
	// Counts has how many values there were up to each bound and above the one before; the last is above all of them.
	Counts [spreadBounds + 1]uint64
	Sum    float64
}

const spreadBounds = 6

// What belongs to Status.CommitTime, in seconds, and to Status.Sizes, in records.
var (
	CommitBounds = [spreadBounds]float64{0.005, 0.02, 0.1, 0.5, 2, 10}
	SizeBounds   = [spreadBounds]float64{1, 10, 100, 1_000, 10_000, 100_000}
)

// add counts a value.
func (s *Spread) add(value float64, bounds *[spreadBounds]float64) {
	i := 0
	for i < spreadBounds && value > bounds[i] {
		i++
	}
	s.Counts[i]++
	s.Sum += value
}
