#ifndef FENCEPOST_QUEUE_H
#define FENCEPOST_QUEUE_H

#include "librdkafka.h"

// An event that somebody has to hear of. The strings live until event is destroyed, which is the caller's to do; it is NULL where nothing came.
typedef struct {
	rd_kafka_event_t *event;
	int type;
	int error, fatal; // of an error, or of a failed delivery
	const char *text; // of an error, or of a line of the log
	const char *tag;  // of a line of the log
	int level;
	const char *topic; // of a failed delivery
	int32_t partition;
	const void *key;
	size_t key_size;
} fp_event;

// fp_next_event waits for an event. Delivery reports end here, apart from the first failed one of an event where failures is set.
void fp_next_event(rd_kafka_queue_t *queue, int timeout_ms, int failures, fp_event *out);

#endif
