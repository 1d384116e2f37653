/* The one list of record columns, cause codes and slab words.
 *
 * Does: names what a worker writes, once; schema.py holds the same list and a test compares them.
 * Never: decides what an outcome is. A cause is a fact ("the body was cut"), the judge names
 * states. Plan: columns as an X-macro (name, C type, sentinel); causes and kinds as enums.
 */
#ifndef PF_RECORD_H
#define PF_RECORD_H

#include <stdint.h>

#define PF_NULL64 INT64_MIN
#define PF_NULL32 INT32_MIN
#define PF_NULL16 INT16_MIN
#define PF_NULL8 INT8_MIN

/* Columns set before the run by the parent come first; the worker writes the others.
 * _wall_ns: CLOCK_REALTIME as the kernel stamped it; converted when the record is stored. */
#define PF_COLUMNS(X)                                                                              \
    X(index, int64_t, PF_NULL64)                                                                   \
    X(intended_ns, int64_t, PF_NULL64)                                                             \
    X(head_offset, int64_t, PF_NULL64)                                                             \
    X(head_length, int32_t, PF_NULL32)                                                             \
    X(tail, int32_t, PF_NULL32)                                                                    \
    X(kind, int16_t, PF_NULL16)                                                                    \
    X(target, int16_t, PF_NULL16)                                                                  \
    X(dispatch_ns, int64_t, PF_NULL64)                                                             \
    X(sent_ns, int64_t, PF_NULL64)                                                                 \
    X(connect_ns, int64_t, PF_NULL64)                                                              \
    X(conn_idle_ns, int64_t, PF_NULL64)                                                            \
    X(headers_ns, int64_t, PF_NULL64)                                                              \
    X(first_token_ns, int64_t, PF_NULL64)                                                          \
    X(first_visible_token_ns, int64_t, PF_NULL64)                                                  \
    X(last_token_ns, int64_t, PF_NULL64)                                                           \
    X(ended_ns, int64_t, PF_NULL64)                                                                \
    X(sent_kernel_wall_ns, int64_t, PF_NULL64)                                                     \
    X(acked_kernel_wall_ns, int64_t, PF_NULL64)                                                    \
    X(first_token_kernel_wall_ns, int64_t, PF_NULL64)                                              \
    X(bytes_received, int64_t, 0)                                                                  \
    X(conn_id, int32_t, PF_NULL32)                                                                 \
    X(content_events, int32_t, 0)                                                                  \
    X(prompt_tokens, int32_t, PF_NULL32)                                                           \
    X(completion_tokens, int32_t, PF_NULL32)                                                       \
    X(errno_code, int32_t, 0)                                                                      \
    X(message_slot, int32_t, PF_NULL32)                                                            \
    X(tcp_anomalies, int32_t, PF_NULL32)                                                           \
    X(http_status, int16_t, PF_NULL16)                                                             \
    X(finish_reason, int16_t, PF_NULL16)                                                           \
    X(replica, int16_t, PF_NULL16)                                                                 \
    X(cause, int16_t, 0)                                                                           \
    X(conn_reused, int8_t, PF_NULL8)                                                               \
    X(first_token_shared_read, int8_t, PF_NULL8)

/* One line a content event, in the order of arrival. */
#define PF_TOKEN_COLUMNS(X)                                                                        \
    X(token_time_ns, int64_t)                                                                      \
    X(token_kernel_wall_ns, int64_t)                                                               \
    X(token_row, int32_t)                                                                          \
    X(token_event, int32_t)                                                                        \
    X(token_same_read, int8_t)

/* One line a second of the run. */
#define PF_SECOND_COLUMNS(X)                                                                       \
    X(second_end_ns, int64_t)                                                                      \
    X(second_cpu_ns, int64_t)                                                                      \
    X(second_idle_poll_ns, int64_t)                                                                \
    X(second_sent, int64_t)                                                                        \
    X(second_skew_max_ns, int64_t)                                                                 \
    X(second_reads, int64_t)                                                                       \
    X(second_polls, int64_t)

enum pf_cause {
    PF_CAUSE_NEVER_SENT = 0,
    PF_CAUSE_OPEN = 1,
    PF_CAUSE_STREAM_END = 2,  /* the stream's own end was seen */
    PF_CAUSE_PLAIN_END = 3,   /* status 200 and a whole body (health) */
    PF_CAUSE_CONNECT = 4,     /* refused, unreachable */
    PF_CAUSE_RESET = 5,       /* RST, or a send on a dead connection */
    PF_CAUSE_NO_RESPONSE = 6, /* closed before the first response byte */
    PF_CAUSE_BODY_CUT = 7,    /* EOF inside the response */
    PF_CAUSE_BAD_HTTP = 8,    /* status line, header or framing against the protocol */
    PF_CAUSE_BAD_EVENT = 9,   /* an event that is not one balanced JSON object */
    PF_CAUSE_NO_END = 10,     /* a whole body without the stream's end marker */
    PF_CAUSE_HTTP_STATUS = 11,
    PF_CAUSE_ERROR_EVENT = 12,
    PF_CAUSE_DEADLINE = 13,
    PF_CAUSE_STOPPED = 14, /* open when the run was interrupted */
    PF_CAUSE_NOT_DUE = 15, /* not yet due when the run was interrupted */
    PF_CAUSE_NO_DESCRIPTOR = 16,
    PF_CAUSE_NO_PORT = 17,
    PF_CAUSE_NO_MEMORY = 18,
    PF_CAUSE_REFUSED_HERE = 19, /* EACCES, EPERM: this machine's own rules */
    PF_CAUSE_TLS = 20
};

enum pf_kind { PF_KIND_LOAD = 0, PF_KIND_PROBE = 1, PF_KIND_CANARY = 2, PF_KIND_HEALTH = 3 };
#define PF_KINDS 4

#define PF_MESSAGE_BYTES 256
#define PF_NAME_BYTES 64
#define PF_NAMES 64

#endif
