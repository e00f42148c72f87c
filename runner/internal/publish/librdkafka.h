// The part of librdkafka's C interface that this package calls, declared here rather than included.
//
// confluent-kafka-go links librdkafka statically from an archive in its own module folder, and its header lies there too, where another package's
// #include can't reach it by a fixed path. So the few prototypes are declared by hand. librdkafka keeps its C interface compatible within a major version, and New
// refuses to run with a version below the one that these were checked against.
//
// Linking: nothing here names a library. cgo's trial link of this package alone can't resolve these symbols; the go command allows that and has the final link done by
// the system's linker, which it does for confluent-kafka-go in any case. There the binding's own flags bring in the archive, and these symbols with it.
#ifndef FENCEPOST_LIBRDKAFKA_H
#define FENCEPOST_LIBRDKAFKA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_op_s rd_kafka_event_t;

typedef struct { // rd_kafka_message_t
	int err;
	rd_kafka_topic_t *rkt;
	int32_t partition;
	void *payload;
	size_t len;
	void *key;
	size_t key_len;
	int64_t offset;
	void *_private;
} rd_kafka_message_t;

enum { // rd_kafka_vtype_t
	RD_KAFKA_VTYPE_END = 0,
	RD_KAFKA_VTYPE_RKT = 2,
	RD_KAFKA_VTYPE_PARTITION = 3,
	RD_KAFKA_VTYPE_VALUE = 4,
	RD_KAFKA_VTYPE_KEY = 5,
	RD_KAFKA_VTYPE_MSGFLAGS = 7,
	RD_KAFKA_VTYPE_TIMESTAMP = 8,
	RD_KAFKA_VTYPE_HEADERS = 10
};

enum { RD_KAFKA_MSG_F_COPY = 2 };

enum { // rd_kafka_event_type_t
	RD_KAFKA_EVENT_DR = 0x1,
	RD_KAFKA_EVENT_LOG = 0x4,
	RD_KAFKA_EVENT_ERROR = 0x8
};

enum { // rd_kafka_conf_res_t
	RD_KAFKA_CONF_UNKNOWN = -2,
	RD_KAFKA_CONF_INVALID = -1,
	RD_KAFKA_CONF_OK = 0
};

const char *rd_kafka_name(const rd_kafka_t *rk);
int rd_kafka_flush(rd_kafka_t *rk, int timeout_ms);
int rd_kafka_last_error(void);

rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *rk, const char *topic, rd_kafka_topic_conf_t *conf);
void rd_kafka_topic_destroy(rd_kafka_topic_t *rkt);
const char *rd_kafka_topic_name(const rd_kafka_topic_t *rkt);

rd_kafka_queue_t *rd_kafka_queue_get_main(rd_kafka_t *rk);
void rd_kafka_queue_destroy(rd_kafka_queue_t *rkqu);
rd_kafka_event_t *rd_kafka_queue_poll(rd_kafka_queue_t *rkqu, int timeout_ms);
void rd_kafka_queue_yield(rd_kafka_queue_t *rkqu);
int rd_kafka_set_log_queue(rd_kafka_t *rk, rd_kafka_queue_t *rkqu);

int rd_kafka_event_type(const rd_kafka_event_t *rkev);
void rd_kafka_event_destroy(rd_kafka_event_t *rkev);
const rd_kafka_message_t *rd_kafka_event_message_next(rd_kafka_event_t *rkev);
int rd_kafka_event_error(rd_kafka_event_t *rkev);
const char *rd_kafka_event_error_string(rd_kafka_event_t *rkev);
int rd_kafka_event_error_is_fatal(rd_kafka_event_t *rkev);
int rd_kafka_event_log(rd_kafka_event_t *rkev, const char **fac, const char **str, int *level);

int rd_kafka_producev(rd_kafka_t *rk, ...);

rd_kafka_headers_t *rd_kafka_headers_new(size_t initial_count);
void rd_kafka_headers_destroy(rd_kafka_headers_t *hdrs);
int rd_kafka_header_add(rd_kafka_headers_t *hdrs, const char *name, ssize_t name_size, const void *value, ssize_t value_size);

rd_kafka_conf_t *rd_kafka_conf_new(void);
void rd_kafka_conf_destroy(rd_kafka_conf_t *conf);
int rd_kafka_conf_set(rd_kafka_conf_t *conf, const char *name, const char *value, char *errstr, size_t errstr_size);
const char **rd_kafka_conf_dump(rd_kafka_conf_t *conf, size_t *cnt);
rd_kafka_topic_conf_t *rd_kafka_topic_conf_new(void);
void rd_kafka_topic_conf_destroy(rd_kafka_topic_conf_t *conf);
const char **rd_kafka_topic_conf_dump(rd_kafka_topic_conf_t *conf, size_t *cnt);
void rd_kafka_conf_dump_free(const char **arr, size_t cnt);

#endif
