#ifndef FENCEPOST_PRODUCE_H
#define FENCEPOST_PRODUCE_H

#include "librdkafka.h"

// Where a batch is: everything before it was taken by librdkafka. fp_produce moves it on only after a record was taken, so that a call with the same cursor goes on with the record
// that was refused.
typedef struct {
	uint32_t record;
	uint32_t header;
	uint64_t arena;
	uint32_t topic; // declared number of the current record's topic
} fp_cursor;

// Answers of fp_produce beside librdkafka's own error codes.
enum {
	FP_NO_TOPIC = 100001,      // cursor.topic has no handle yet
	FP_BAD_LAYOUT = 100002,    // a length points out of the arena, or out of a column
	FP_BAD_TIMESTAMP = 100003, // 0 would be stored as the current time
	FP_BAD_PARTITION = 100004  // below -1
};

// A batch's columns as they come over the wire: little-endian, NULL where left out. The caller has checked that each has one element a record; header columns are checked here.
int fp_produce(rd_kafka_t *rk, rd_kafka_topic_t **topics, uint32_t topic_count, uint32_t default_topic, uint32_t count,
	const uint8_t *arena, uint64_t arena_len, const uint8_t *key_len, const uint8_t *value_len, const uint8_t *topic,
	const uint8_t *partition, const uint8_t *timestamp, const uint8_t *header_count, const uint8_t *header_name_len,
	const uint8_t *header_value_len, uint32_t header_total, fp_cursor *cur);

#endif
