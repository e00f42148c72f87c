package publish

/*
#include "librdkafka.h"
*/
import "C"

import (
	"fmt"
	"reflect"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// minLibrdkafka is 2.11.1, the version that librdkafka.h and the measured behaviour that this package relies on were checked against. Versions before 1.7 lose
// records of a commit after a broker was away.
const minLibrdkafka = 0x020b01ff

// handleOf finds the librdkafka handle inside a kafka.Producer, which doesn't give it out: one C call per batch instead of one per record costs half. The field is found
// by name and type, never by offset, and the handle's own name must be the producer's: with another version of the binding this is an error of New, not a crash.
func handleOf(producer *kafka.Producer) (*C.rd_kafka_t, error) {
	if version, text := kafka.LibraryVersion(); version < minLibrdkafka {
		return nil, fmt.Errorf("librdkafka %s is too old: 2.11.1 or newer is needed", text)
	}
	field := reflect.ValueOf(producer).Elem().FieldByName("handle")
	if !field.IsValid() || field.Kind() != reflect.Struct {
		return nil, fmt.Errorf("confluent-kafka-go has changed: kafka.Producer has no struct field handle")
	}
	rk := field.FieldByName("rk")
	if !rk.IsValid() || rk.Kind() != reflect.Pointer || rk.Type().Elem().Name() != "_Ctype_struct_rd_kafka_s" || rk.IsNil() {
		return nil, fmt.Errorf("confluent-kafka-go has changed: kafka.Producer's handle has no field rk that points to an rd_kafka_t")
	}
	handle := (*C.rd_kafka_t)(rk.UnsafePointer())
	if name := C.GoString(C.rd_kafka_name(handle)); name != producer.String() {
		return nil, fmt.Errorf("confluent-kafka-go has changed: the handle is called %q, the producer %q", name, producer.String())
	}
	return handle, nil
}
