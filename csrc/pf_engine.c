/* One worker's loop. See pf_engine.h.
 *
 * Plan: a turn sends what is due, ends what is over its deadline, closes the second, then polls:
 * for nothing (spinning) when a send is near, else until the next thing is due. After every event
 * served the schedule is looked at again, so a send never waits behind more than one read.
 */
#include "pf_engine.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "pf_exchange.h"
#include "pf_sock.h"

#define EVENTS 64
#define LONGEST_SLEEP (PF_SECOND / 10) /* the stop word is looked at this often at least */
/* At a stop, a row not sent for longer than gate G2's longest skew is lost, not "not due". */
#define LATE_AT_STOP (PF_SECOND / 20)
#define SEND_GUARD 10000 /* about two reads */
/* Rehearsals of the next send begin so long before it is due, and none later than the last: a cold
 * one takes 60 us (docs/PERFORMANCE.md). */
#define REHEARSALS 2
static const pf_ns REHEARSE_BEFORE[REHEARSALS] = {300000, 120000};
#define REHEARSE_LAST 70000

/* Does every row name a kind, a target and bytes that are there? */
static int rows_are_sound(const struct pf_engine *engine) {
    const struct pf_slab *slab = &engine->slab;
    const struct pf_engine_setup *setup = &engine->setup;
    for (int64_t row = 0; row < engine->rows; row++) {
        int64_t offset = slab->head_offset[row], length = slab->head_length[row];
        int16_t kind = slab->kind[row], target = slab->target[row];
        int32_t tail = slab->tail[row];
        if (kind < 0 || kind >= PF_KINDS || target < 0 || target >= setup->target_count ||
            tail < 0 || tail >= setup->tail_count || offset < 0 || length < 0 ||
            offset > (int64_t)setup->heads_bytes - length)
            return 0;
    }
    return 1;
}

int pf_engine_init(struct pf_engine *engine, const struct pf_engine_setup *setup, void *base,
                   size_t bytes) {
    memset(engine, 0, sizeof *engine);
    engine->setup = *setup;
    engine->poller = engine->warm.from = engine->warm.to = -1;
    if (pf_slab_open(&engine->slab, base, bytes) != 0) return -EINVAL;
    engine->rows = engine->slab.words[PF_WORD_rows];
    if (!rows_are_sound(engine)) return -EINVAL;
    engine->buffer = malloc(PF_READ_BYTES);
    engine->poller = epoll_create1(EPOLL_CLOEXEC);
    if (!engine->buffer || engine->poller < 0 ||
        pf_conns_init(&engine->conns, setup->max_connections, setup->target_count) != 0) {
        int error = errno ? errno : ENOMEM;
        pf_engine_destroy(engine);
        return -error;
    }
    memset(engine->buffer, 0, PF_READ_BYTES); /* touched before the run, not at the first read */
    if (setup->rehearse) engine->rehearses = pf_warm_open(&engine->warm, setup->stamps) == 0;
    return 0;
}

void pf_engine_destroy(struct pf_engine *engine) {
    if (engine->setup.target_count == 0) return; /* never begun: its poller is no descriptor */
    if (engine->conns.table) {
        for (int32_t i = 0; i < engine->conns.used; i++)
            if (engine->conns.table[i].fd >= 0) pf_sock_close(engine->conns.table[i].fd);
        pf_conns_destroy(&engine->conns);
    }
    if (engine->poller >= 0) close(engine->poller);
    pf_warm_close(&engine->warm);
    free(engine->buffer);
    engine->buffer = NULL;
    engine->poller = -1;
}

static pf_ns next_due(const struct pf_engine *engine) {
    if (engine->next >= engine->rows) return INT64_MAX;
    return engine->slab.intended_ns[engine->next] + engine->epoch;
}

/* A send that is due within the guard is waited for: one read more would make it late. */
static void send_due(struct pf_engine *engine, pf_ns now) {
    pf_ns due;
    while ((due = next_due(engine)) <= now + SEND_GUARD) {
        if (due > now) now = pf_clock_wait(due, SEND_GUARD);
        int64_t row = engine->next++;
        pf_slab_store(&engine->slab, PF_WORD_next_row, engine->next);
        pf_exchange_start(engine, row);
    }
}

static void expire(struct pf_engine *engine, pf_ns now) {
    for (int kind = 0; kind < PF_KINDS; kind++) {
        struct pf_conn *conn;
        while ((conn = pf_conns_oldest(&engine->conns, kind)) && conn->deadline_ns <= now)
            pf_exchange_abandon(engine, conn, PF_CAUSE_DEADLINE);
    }
}

static pf_ns next_deadline(const struct pf_engine *engine) {
    pf_ns first = INT64_MAX;
    for (int kind = 0; kind < PF_KINDS; kind++) {
        struct pf_conn *conn = pf_conns_oldest((struct pf_conns *)(uintptr_t)&engine->conns, kind);
        if (conn && conn->deadline_ns < first) first = conn->deadline_ns;
    }
    return first;
}

static void retire_old_idle(struct pf_engine *engine, pf_ns now) {
    for (int32_t target = 0; target < engine->conns.targets; target++) {
        struct pf_conn *conn;
        while ((conn = pf_conns_oldest_idle(&engine->conns, target)) &&
               now - conn->idle_since_ns > engine->setup.idle_reuse_ns)
            pf_exchange_retire(engine, conn);
    }
}

static void write_second(struct pf_engine *engine, pf_ns at) {
    struct pf_slab *slab = &engine->slab;
    pf_ns cpu = pf_clock_read(CLOCK_THREAD_CPUTIME_ID);
    int64_t i = slab->words[PF_WORD_seconds_used];
    if (i >= slab->words[PF_WORD_seconds_capacity]) {
        pf_slab_add(slab, PF_WORD_seconds_lost, 1);
    } else {
        slab->second_end_ns[i] = at;
        slab->second_cpu_ns[i] = cpu - engine->cpu_before;
        slab->second_idle_poll_ns[i] = engine->idle_poll_ns;
        slab->second_sent[i] = engine->second_sent;
        slab->second_skew_max_ns[i] = engine->second_sent ? engine->second_skew_max : PF_NULL64;
        slab->second_reads[i] = engine->second_reads;
        slab->second_polls[i] = engine->second_polls;
        pf_slab_store(slab, PF_WORD_seconds_used, i + 1);
    }
    engine->cpu_before = cpu;
    engine->idle_poll_ns = 0;
    engine->second_sent = engine->second_reads = engine->second_polls = 0;
    engine->second_skew_max = INT64_MIN;
}

/* Once a second: own figures, old idle connections, is the parent still there? */
static void close_second(struct pf_engine *engine, pf_ns now) {
    pf_ns at = now - engine->epoch;
    if (at < engine->next_second) return;
    write_second(engine, at);
    retire_old_idle(engine, now);
    pf_slab_store(&engine->slab, PF_WORD_heartbeat_ns, at);
    if (engine->setup.parent_pid && getppid() != engine->setup.parent_pid)
        pf_slab_store(&engine->slab, PF_WORD_stop, 1);
    engine->next_second = (at / PF_SECOND + 1) * PF_SECOND;
}

/* How long the poll may sleep; 0 when a send is near. */
static pf_ns sleep_time(const struct pf_engine *engine, pf_ns now) {
    pf_ns due = next_due(engine);
    if (engine->setup.busy || due - engine->setup.spin_ns <= now) return 0;
    pf_ns until = now + LONGEST_SLEEP;
    if (due != INT64_MAX && due - engine->setup.spin_ns < until)
        until = due - engine->setup.spin_ns;
    pf_ns other = engine->next_second + engine->epoch;
    pf_ns deadline = next_deadline(engine);
    if (deadline < other) other = deadline;
    if (other < until) until = other;
    return until > now ? until - now : 0;
}

/* Returns whether it did something. */
static int rehearse(struct pf_engine *engine, pf_ns now) {
    int64_t row = engine->next;
    if (!engine->rehearses || row >= engine->rows) return 0;
    if (engine->rehearsed_row != row) engine->rehearsals = 0;
    engine->rehearsed_row = row;
    pf_ns left = next_due(engine) - now;
    if (engine->rehearsals == REHEARSALS || left < REHEARSE_LAST ||
        left > REHEARSE_BEFORE[engine->rehearsals])
        return 0;
    struct pf_slab *slab = &engine->slab;
    const uint8_t *head = engine->setup.heads + slab->head_offset[row];
    struct iovec parts[2] = {{(void *)(uintptr_t)head, (size_t)slab->head_length[row]},
                             engine->setup.tails[slab->tail[row]]};
    int32_t idle = engine->conns.idle[slab->target[row]].last;
    pf_warm_rehearse(&engine->warm, parts, idle < 0 ? -1 : engine->conns.table[idle].fd);
    engine->rehearsals++;
    pf_slab_add(slab, PF_WORD_rehearsals, 1);
    return 1;
}

static void serve(struct pf_engine *engine, const struct epoll_event *events, int count) {
    for (int i = 0; i < count; i++) {
        struct pf_conn *conn = &engine->conns.table[(uint32_t)events[i].data.u64];
        if (conn->id == (int32_t)(events[i].data.u64 >> 32))
            pf_exchange_ready(engine, conn, events[i].events);
        send_due(engine, pf_clock_now());
    }
}

/* One turn, begun at the clock reading that ended the one before (so that no time between two of
 * them is lost to the accounts); returns the reading that ends it. */
static pf_ns turn(struct pf_engine *engine, pf_ns before) {
    struct epoll_event events[EVENTS];
    int64_t row = engine->next;
    send_due(engine, before);
    expire(engine, before);
    close_second(engine, before);
    int worked = rehearse(engine, before) || engine->next != row;
    pf_ns sleep = sleep_time(engine, worked ? pf_clock_now() : before);
    int count = pf_sock_poll(engine->poller, events, EVENTS, sleep);
    engine->second_polls++;
    if (count > 0) serve(engine, events, count);
    pf_ns now = pf_clock_now();
    if (count <= 0 && sleep == 0 && !worked) engine->idle_poll_ns += now - before;
    return now;
}

/* What is open is ended, what is not yet due is cut; both are told apart from what was served. */
static void interrupt(struct pf_engine *engine) {
    struct pf_slab *slab = &engine->slab;
    pf_ns at = pf_clock_now() - engine->epoch;
    for (int kind = 0; kind < PF_KINDS; kind++) {
        struct pf_conn *conn;
        while ((conn = pf_conns_oldest(&engine->conns, kind)))
            pf_exchange_abandon(engine, conn, PF_CAUSE_STOPPED);
    }
    for (int64_t row = engine->next; row < engine->rows; row++)
        if (slab->intended_ns[row] > at - LATE_AT_STOP) slab->cause[row] = PF_CAUSE_NOT_DUE;
    pf_slab_store(slab, PF_WORD_stopped_ns, at);
}

int pf_engine_run(struct pf_engine *engine) {
    int interrupted = 0;
    engine->epoch = pf_slab_load(&engine->slab, PF_WORD_epoch_ns);
    engine->cpu_before = pf_clock_read(CLOCK_THREAD_CPUTIME_ID);
    engine->next_second = PF_SECOND;
    engine->second_skew_max = INT64_MIN;
    pf_slab_store(&engine->slab, PF_WORD_state, PF_SLAB_RUNNING);
    pf_ns now = pf_clock_now();
    while (engine->next < engine->rows || engine->in_flight > 0) {
        if (pf_slab_load(&engine->slab, PF_WORD_stop)) {
            interrupt(engine);
            interrupted = 1;
            break;
        }
        now = turn(engine, now);
    }
    write_second(engine, now - engine->epoch);
    pf_slab_store(&engine->slab, PF_WORD_heartbeat_ns, now - engine->epoch);
    pf_slab_store(&engine->slab, PF_WORD_state, PF_SLAB_ENDED);
    return interrupted;
}
