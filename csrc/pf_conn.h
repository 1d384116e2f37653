/* Connections of one worker: the table, the keep-alive pool, the deadline queues.
 *
 * Does: hands out and takes back connection states; most recently used idle connection first; one
 *       queue of open requests per kind, in the order of dispatch, so the oldest deadline is first.
 * Never: makes a system call, or allocates after pf_conns_init.
 */
#ifndef PF_CONN_H
#define PF_CONN_H

#include <stdlib.h>
#include <sys/uio.h>

#include "pf_clock.h"
#include "pf_http.h"
#include "pf_sse.h"

enum pf_conn_state {
    PF_CONN_FREE,
    PF_CONN_DIALING,
    PF_CONN_SENDING,
    PF_CONN_WAITING,  /* request sent, answer not ended */
    PF_CONN_DRAINING, /* the row has ended, the body has not */
    PF_CONN_IDLE
};

struct pf_conn {
    int32_t fd;
    int32_t row; /* of the request it carries */
    int32_t id;  /* running number of the connection */
    int16_t target;
    uint8_t kind;
    uint8_t state;
    uint8_t usage_seen;  /* an event before this one carried usage: it runs */
    uint8_t finish_seen; /* a finish reason came */
    uint8_t queued;      /* stands in a deadline queue */
    uint8_t stamped;     /* kernel stamps are on */
    int32_t last_completion_tokens;
    int32_t next, previous; /* in a queue, the idle stack or the free list; -1 ends it */
    pf_ns deadline_ns;      /* absolute */
    pf_ns dial_ns;          /* absolute, when the dial began */
    pf_ns idle_since_ns;    /* absolute */
    uint32_t stream_bytes;  /* sent on this connection, modulo 2^32 as the kernel's ids are */
    uint32_t last_byte;     /* id of the request's last byte */
    uint32_t anomalies;     /* of TCP, on this connection, until the last request ended */
    struct iovec parts[2];  /* what is left to send */
    struct pf_http http;
    struct pf_sse sse;
};

struct pf_queue {
    int32_t first, last;
};

struct pf_conns {
    struct pf_conn *table;
    int32_t capacity;
    int32_t used; /* table entries ever handed out */
    int32_t free_first;
    struct pf_queue open[PF_KINDS];
    struct pf_queue *idle; /* one a target; `last` is the most recently used */
    int32_t targets;
};

int pf_conns_init(struct pf_conns *conns, int32_t capacity, int32_t targets);
void pf_conns_destroy(struct pf_conns *conns);

/* A fresh entry, or NULL when the table is full. */
struct pf_conn *pf_conns_take(struct pf_conns *conns);
void pf_conns_release(struct pf_conns *conns, struct pf_conn *conn);

void pf_conns_park(struct pf_conns *conns, struct pf_conn *conn, pf_ns now);

/* The most recently used idle connection of a target, or NULL. */
struct pf_conn *pf_conns_unpark(struct pf_conns *conns, int16_t target);

/* The longest idle one, left in place, or NULL. */
struct pf_conn *pf_conns_oldest_idle(struct pf_conns *conns, int32_t target);
void pf_conns_drop_idle(struct pf_conns *conns, struct pf_conn *conn);

void pf_conns_enqueue(struct pf_conns *conns, struct pf_conn *conn);
void pf_conns_dequeue(struct pf_conns *conns, struct pf_conn *conn);

/* The open request of a kind with the earliest deadline, or NULL. */
struct pf_conn *pf_conns_oldest(struct pf_conns *conns, int kind);

#endif
