/* One request's life on a connection. See pf_exchange.h.
 *
 * Plan: `settle_row` is the only place that ends a row, and writes its cause last, so that a record
 * is whole or open whatever kills the process. A function that may close the connection returns
 * whether it is still there.
 */
#include "pf_exchange.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "pf_answer.h"
#include "pf_sock.h"

#define READS_PER_WAKE 8 /* 512 KiB; then others have their turn */

static pf_ns run_time(const struct pf_engine *engine) {
    return pf_clock_now() - engine->epoch;
}

static void settle_row(struct pf_engine *engine, int64_t row, enum pf_cause cause, int error,
                       pf_ns at) {
    pf_answer_redact(engine, row);
    engine->slab.errno_code[row] = error;
    engine->slab.ended_ns[row] = at;
    __atomic_store_n(&engine->slab.cause[row], (int16_t)cause, __ATOMIC_RELEASE);
    engine->in_flight--;
    pf_slab_store(&engine->slab, PF_WORD_in_flight, engine->in_flight);
}

/* What TCP had to mend while the connection carried this row: read once, at its end. */
static void note_anomalies(struct pf_engine *engine, struct pf_conn *conn) {
    uint32_t count;
    if (conn->state == PF_CONN_DIALING) return;
    if (pf_sock_anomalies(conn->fd, &count) != PF_SOCK_OK) return;
    engine->slab.tcp_anomalies[conn->row] = (int32_t)(count - conn->anomalies);
    conn->anomalies = count;
}

static void settle(struct pf_engine *engine, struct pf_conn *conn, enum pf_cause cause, int error,
                   pf_ns at) {
    note_anomalies(engine, conn);
    settle_row(engine, conn->row, cause, error, at);
}

static void close_conn(struct pf_engine *engine, struct pf_conn *conn) {
    pf_conns_dequeue(&engine->conns, conn);
    pf_sock_close(conn->fd);
    pf_conns_release(&engine->conns, conn);
}

static void settle_and_close(struct pf_engine *engine, struct pf_conn *conn, enum pf_cause cause,
                             int error, pf_ns at) {
    if (conn->state != PF_CONN_DRAINING) settle(engine, conn, cause, error, at);
    close_conn(engine, conn);
}

void pf_exchange_abandon(struct pf_engine *engine, struct pf_conn *conn, enum pf_cause cause) {
    settle_and_close(engine, conn, cause, 0, run_time(engine));
}

void pf_exchange_retire(struct pf_engine *engine, struct pf_conn *conn) {
    pf_conns_drop_idle(&engine->conns, conn);
    close_conn(engine, conn);
}

static void dial_ended(struct pf_engine *engine, struct pf_conn *conn, pf_ns now) {
    engine->slab.connect_ns[conn->row] = now - conn->dial_ns;
    conn->state = PF_CONN_SENDING;
    if (!engine->setup.stamps) return;
    conn->stamped = pf_sock_stamp(conn->fd) == PF_SOCK_OK;
    if (!conn->stamped) pf_slab_add(&engine->slab, PF_WORD_stamps_refused, 1);
}

/* The event carries the connection's number too: an entry may be given to another connection
 * between two events of one batch. */
static int watch(struct pf_engine *engine, struct pf_conn *conn, int operation) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    event.data.u64 = (uint64_t)(uint32_t)conn->id << 32 | (uint32_t)(conn - engine->conns.table);
    return epoll_ctl(engine->poller, operation, conn->fd, &event);
}

/* A new connection for a row; NULL when the row ended at once. */
static struct pf_conn *dial(struct pf_engine *engine, int64_t row, pf_ns now) {
    const struct pf_target *target = &engine->setup.targets[engine->slab.target[row]];
    struct pf_conn *conn = pf_conns_take(&engine->conns);
    if (!conn) {
        settle_row(engine, row, PF_CAUSE_NO_DESCRIPTOR, EMFILE, now - engine->epoch);
        return NULL;
    }
    conn->dial_ns = now;
    conn->row = (int32_t)row;
    conn->id = (int32_t)pf_slab_add(&engine->slab, PF_WORD_dials, 1);
    int dialed = pf_sock_dial((const struct sockaddr *)&target->address, target->length, &conn->fd);
    if (dialed == PF_SOCK_FAILED) {
        int error = errno;
        settle_row(engine, row, pf_sock_cause(error, PF_PHASE_DIAL), error, run_time(engine));
        pf_conns_release(&engine->conns, conn);
        return NULL;
    }
    conn->state = PF_CONN_DIALING;
    if (dialed == PF_SOCK_OK) dial_ended(engine, conn, pf_clock_now());
    if (watch(engine, conn, EPOLL_CTL_ADD) != 0) { /* unseen, it would end as the server's fault */
        int error = errno;
        settle_and_close(engine, conn, PF_CAUSE_NO_MEMORY, error, run_time(engine));
        return NULL;
    }
    return conn;
}

/* The most recently used idle connection, if it is young enough. */
static struct pf_conn *reuse(struct pf_engine *engine, int64_t row, pf_ns now) {
    struct pf_conn *conn = pf_conns_unpark(&engine->conns, engine->slab.target[row]);
    if (!conn) return NULL;
    if (now - conn->idle_since_ns > engine->setup.idle_reuse_ns) {
        close_conn(engine, conn);
        return NULL; /* the others have been idle for longer still */
    }
    engine->slab.conn_idle_ns[row] = now - conn->idle_since_ns;
    conn->row = (int32_t)row;
    conn->state = PF_CONN_SENDING;
    pf_slab_add(&engine->slab, PF_WORD_reuses, 1);
    return conn;
}

static void load_request(struct pf_engine *engine, struct pf_conn *conn, int64_t row, pf_ns now) {
    struct pf_slab *slab = &engine->slab;
    conn->kind = (uint8_t)slab->kind[row];
    conn->target = slab->target[row];
    conn->deadline_ns = now + engine->setup.timeout_ns[conn->kind];
    conn->usage_seen = conn->finish_seen = 0;
    conn->last_completion_tokens = 0;
    conn->parts[0].iov_base = (void *)(uintptr_t)(engine->setup.heads + slab->head_offset[row]);
    conn->parts[0].iov_len = (size_t)slab->head_length[row];
    conn->parts[1] = engine->setup.tails[slab->tail[row]];
    const char *replica = engine->setup.replica_header;
    pf_http_begin(&conn->http, replica[0] ? replica : NULL);
    pf_sse_begin(&conn->sse);
    slab->conn_id[row] = conn->id;
    pf_conns_enqueue(&engine->conns, conn);
}

static void advance(struct iovec *parts, size_t sent) {
    for (int i = 0; i < 2; i++) {
        size_t step = sent < parts[i].iov_len ? sent : parts[i].iov_len;
        parts[i].iov_base = (uint8_t *)parts[i].iov_base + step;
        parts[i].iov_len -= step;
        sent -= step;
    }
}

static int send_request(struct pf_engine *engine, struct pf_conn *conn) {
    size_t sent;
    int skip = conn->parts[0].iov_len == 0;
    int result = pf_sock_send(conn->fd, conn->parts + skip, (size_t)(2 - skip), &sent);
    if (result == PF_SOCK_FAILED) {
        int error = errno;
        settle_and_close(engine, conn, pf_sock_cause(error, PF_PHASE_TALK), error,
                         run_time(engine));
        return 0;
    }
    conn->stream_bytes += (uint32_t)sent;
    advance(conn->parts, sent);
    if (result == PF_SOCK_OK) {
        engine->slab.sent_ns[conn->row] = run_time(engine);
        conn->last_byte = conn->stream_bytes - 1;
        conn->state = PF_CONN_WAITING;
    }
    return 1;
}

static void note_dispatch(struct pf_engine *engine, int64_t row, pf_ns now) {
    struct pf_slab *slab = &engine->slab;
    pf_ns skew = now - engine->epoch - slab->intended_ns[row];
    if (skew > engine->second_skew_max) engine->second_skew_max = skew;
    engine->second_sent++;
    slab->dispatch_ns[row] = now - engine->epoch;
    __atomic_store_n(&slab->cause[row], (int16_t)PF_CAUSE_OPEN, __ATOMIC_RELEASE);
    engine->in_flight++;
    pf_slab_store(slab, PF_WORD_in_flight, engine->in_flight);
    if (engine->in_flight > slab->words[PF_WORD_in_flight_max])
        pf_slab_store(slab, PF_WORD_in_flight_max, engine->in_flight);
}

void pf_exchange_start(struct pf_engine *engine, int64_t row) {
    pf_ns now = pf_clock_now();
    note_dispatch(engine, row, now);
    struct pf_conn *conn = reuse(engine, row, now);
    engine->slab.conn_reused[row] = conn != NULL;
    if (!conn) conn = dial(engine, row, now);
    if (!conn) return;
    load_request(engine, conn, row, now);
    if (conn->state == PF_CONN_SENDING) send_request(engine, conn);
}

struct pf_conn *pf_exchange_adopt(struct pf_engine *engine, int64_t row, int fd) {
    pf_ns now = pf_clock_now();
    struct pf_conn *conn = pf_conns_take(&engine->conns);
    if (!conn) return NULL;
    note_dispatch(engine, row, now);
    conn->fd = fd;
    conn->row = (int32_t)row;
    conn->id = (int32_t)pf_slab_add(&engine->slab, PF_WORD_dials, 1);
    conn->state = PF_CONN_WAITING;
    load_request(engine, conn, row, now);
    memset(conn->parts, 0, sizeof conn->parts);
    return conn;
}

static void take_stamps(struct pf_engine *engine, struct pf_conn *conn) {
    struct pf_sock_stamp stamp;
    while (conn->stamped && pf_sock_sent_stamp(conn->fd, &stamp) == PF_SOCK_OK) {
        if (conn->row < 0 || conn->state < PF_CONN_WAITING || stamp.last_byte != conn->last_byte)
            pf_slab_add(&engine->slab, PF_WORD_stamps_unmatched, 1);
        else if (stamp.is_ack)
            engine->slab.acked_kernel_wall_ns[conn->row] = stamp.wall_ns;
        else
            engine->slab.sent_kernel_wall_ns[conn->row] = stamp.wall_ns;
    }
}

/* The answer is whole: the connection goes back to the pool, or ends. */
static int body_ended(struct pf_engine *engine, struct pf_conn *conn, size_t left_over) {
    int whole_request = conn->parts[0].iov_len == 0 && conn->parts[1].iov_len == 0;
    if (conn->state != PF_CONN_DRAINING) {
        enum pf_cause cause = pf_answer_cause_at_end(engine, conn);
        settle(engine, conn, cause, 0, engine->read_ns);
    }
    if (left_over > 0 || conn->http.close || !whole_request) {
        close_conn(engine, conn);
        return 0;
    }
    pf_conns_dequeue(&engine->conns, conn);
    pf_conns_park(&engine->conns, conn, engine->read_ns + engine->epoch);
    return 1;
}

/* The answer cannot be read to its end: an answer that is not 200 is that before all else. */
static enum pf_cause cause_of_refusal(struct pf_engine *engine, struct pf_conn *conn,
                                      enum pf_cause otherwise) {
    if (!conn->http.head_done || conn->http.status == 200) return otherwise;
    pf_answer_keep_message(engine, conn);
    return PF_CAUSE_HTTP_STATUS;
}

static int take_body(struct pf_engine *engine, struct pf_conn *conn, struct pf_span body) {
    if (conn->state == PF_CONN_DRAINING) return 1;
    enum pf_cause cause = pf_answer_body(engine, conn, body);
    if (cause == PF_CAUSE_OPEN) return 1;
    if (cause == PF_CAUSE_STREAM_END) {
        settle(engine, conn, cause, 0, engine->read_ns);
        conn->state = PF_CONN_DRAINING;
        return 1;
    }
    settle_and_close(engine, conn, cause, 0, engine->read_ns);
    return 0;
}

/* The bytes of one read; returns whether the connection is still there. */
static int take_bytes(struct pf_engine *engine, struct pf_conn *conn, const uint8_t *data,
                      size_t length) {
    for (;;) {
        size_t used;
        struct pf_span body;
        int result = pf_http_feed(&conn->http, data, length, &used, &body);
        data += used;
        length -= used;
        pf_answer_head(engine, conn);
        if (result == PF_AGAIN) return 1;
        if (result == PF_END) return body_ended(engine, conn, length);
        if (result == PF_BAD) {
            enum pf_cause cause = cause_of_refusal(engine, conn, PF_CAUSE_BAD_HTTP);
            settle_and_close(engine, conn, cause, 0, engine->read_ns);
            return 0;
        }
        if (!take_body(engine, conn, body)) return 0;
    }
}

static void peer_closed(struct pf_engine *engine, struct pf_conn *conn) {
    if (conn->state == PF_CONN_DRAINING) {
        close_conn(engine, conn);
    } else if (engine->slab.bytes_received[conn->row] == 0) {
        settle_and_close(engine, conn, PF_CAUSE_NO_RESPONSE, 0, engine->read_ns);
    } else if (pf_http_finish(&conn->http) == PF_END) {
        conn->http.close = 1;
        body_ended(engine, conn, 0);
    } else {
        enum pf_cause cause = cause_of_refusal(engine, conn, PF_CAUSE_BODY_CUT);
        settle_and_close(engine, conn, cause, 0, engine->read_ns);
    }
}

static void begin_read(struct pf_engine *engine, pf_ns stamp_wall) {
    engine->read_ns = run_time(engine);
    engine->read_stamp_wall = stamp_wall;
    engine->read_tokens = 0;
    engine->first_token_row = -1;
    engine->read_token_line = -1;
    engine->second_reads++;
}

int pf_exchange_take(struct pf_engine *engine, struct pf_conn *conn, int result, int error,
                     const uint8_t *data, size_t length, pf_ns stamp_wall) {
    begin_read(engine, stamp_wall);
    if (conn->state == PF_CONN_IDLE) { /* bytes or an end that nobody asked for */
        pf_slab_add(&engine->slab, PF_WORD_closed_while_idle, 1);
        pf_exchange_retire(engine, conn);
        return 0;
    }
    if (result == PF_SOCK_EOF) {
        peer_closed(engine, conn);
        return 0;
    }
    if (result == PF_SOCK_FAILED) {
        settle_and_close(engine, conn, pf_sock_cause(error, PF_PHASE_TALK), error, engine->read_ns);
        return 0;
    }
    if (conn->state != PF_CONN_DRAINING) engine->slab.bytes_received[conn->row] += (int64_t)length;
    return take_bytes(engine, conn, data, length);
}

/* One read; returns whether another may follow on this connection. */
static int read_once(struct pf_engine *engine, struct pf_conn *conn, int closing) {
    size_t got;
    pf_ns stamp;
    int result = pf_sock_read(conn->fd, engine->buffer, PF_READ_BYTES, &got, &stamp);
    if (result == PF_SOCK_WAIT) return 0;
    return pf_exchange_take(engine, conn, result, errno, engine->buffer, got, stamp) &&
           (closing || got == PF_READ_BYTES);
}

static void read_answer(struct pf_engine *engine, struct pf_conn *conn, int closing) {
    for (int i = 0; i < READS_PER_WAKE; i++)
        if (!read_once(engine, conn, closing)) return;
    watch(engine, conn, EPOLL_CTL_MOD); /* edge-triggered: ask to be told again */
}

void pf_exchange_ready(struct pf_engine *engine, struct pf_conn *conn, uint32_t events) {
    if (conn->state == PF_CONN_FREE) return; /* closed earlier in this batch */
    if (conn->state == PF_CONN_DIALING) {
        if (pf_sock_dialed(conn->fd) != PF_SOCK_OK) {
            int error = errno;
            settle_and_close(engine, conn, pf_sock_cause(error, PF_PHASE_DIAL), error,
                             run_time(engine));
            return;
        }
        if (!(events & EPOLLOUT)) return;
        dial_ended(engine, conn, pf_clock_now());
    }
    if (events & EPOLLERR) take_stamps(engine, conn);
    /* reading comes first: a server that refuses a request half sent answers, then resets */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP))
        read_answer(engine, conn, (events & (EPOLLRDHUP | EPOLLHUP)) != 0);
    if (conn->state == PF_CONN_SENDING && (events & EPOLLOUT)) send_request(engine, conn);
}
