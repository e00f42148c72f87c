#include "queue.h"

#include <string.h>

// failed looks for the first delivery that failed.
static int failed(rd_kafka_event_t *reports, fp_event *out) {
	const rd_kafka_message_t *m;
	while ((m = rd_kafka_event_message_next(reports))) {
		if (!m->err)
			continue;
		out->error = m->err;
		out->topic = rd_kafka_topic_name(m->rkt);
		out->partition = m->partition;
		out->key = m->key;
		out->key_size = m->key_len;
		return 1;
	}
	return 0;
}

void fp_next_event(rd_kafka_queue_t *queue, int timeout_ms, int failures, fp_event *out) {
	memset(out, 0, sizeof(*out));
	for (rd_kafka_event_t *e; (e = rd_kafka_queue_poll(queue, timeout_ms));) {
		out->type = rd_kafka_event_type(e);
		switch (out->type) {
		case RD_KAFKA_EVENT_DR:
			if (!failures || !failed(e, out))
				break;
			out->event = e;
			return;
		case RD_KAFKA_EVENT_ERROR:
			out->error = rd_kafka_event_error(e);
			out->fatal = rd_kafka_event_error_is_fatal(e);
			out->text = rd_kafka_event_error_string(e);
			out->event = e;
			return;
		case RD_KAFKA_EVENT_LOG:
			rd_kafka_event_log(e, &out->tag, &out->text, &out->level);
			out->event = e;
			return;
		}
		rd_kafka_event_destroy(e);
	}
}
