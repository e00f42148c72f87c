package offsets

import (
	"testing"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// BenchmarkSee is what each further commit of a task adds to the work of reading its topic.
func BenchmarkSee(b *testing.B) {
	topic := "t"
	seen := newest{}
	b.ReportAllocs()
	for b.Loop() {
		seen.see(&kafka.Message{Key: []byte(`["numbers",{"generator":"0"}]`), Value: []byte(`{"n":12345}`), TopicPartition: kafka.TopicPartition{Topic: &topic}}, "numbers")
	}
}
