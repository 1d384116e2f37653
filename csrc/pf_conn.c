/* Connection table. See pf_conn.h. Plan: entries are linked by index, so the table is one block. */
#include "pf_conn.h"

#include <string.h>

static const struct pf_queue EMPTY = {-1, -1};

int pf_conns_init(struct pf_conns *conns, int32_t capacity, int32_t targets) {
    conns->table = calloc((size_t)capacity, sizeof *conns->table);
    conns->idle = calloc((size_t)targets, sizeof *conns->idle);
    conns->capacity = capacity;
    conns->targets = targets;
    conns->used = 0;
    conns->free_first = -1;
    if (!conns->table || !conns->idle) {
        pf_conns_destroy(conns);
        return -1;
    }
    for (int kind = 0; kind < PF_KINDS; kind++)
        conns->open[kind] = EMPTY;
    for (int32_t target = 0; target < targets; target++)
        conns->idle[target] = EMPTY;
    return 0;
}

void pf_conns_destroy(struct pf_conns *conns) {
    free(conns->table);
    free(conns->idle);
    conns->table = NULL;
    conns->idle = NULL;
}

static int32_t index_of(const struct pf_conns *conns, const struct pf_conn *conn) {
    return (int32_t)(conn - conns->table);
}

static void append(struct pf_conns *conns, struct pf_queue *queue, struct pf_conn *conn) {
    int32_t at = index_of(conns, conn);
    conn->next = -1;
    conn->previous = queue->last;
    if (queue->last >= 0)
        conns->table[queue->last].next = at;
    else
        queue->first = at;
    queue->last = at;
}

static void unlink_from(struct pf_conns *conns, struct pf_queue *queue, struct pf_conn *conn) {
    if (conn->previous >= 0)
        conns->table[conn->previous].next = conn->next;
    else
        queue->first = conn->next;
    if (conn->next >= 0)
        conns->table[conn->next].previous = conn->previous;
    else
        queue->last = conn->previous;
    conn->next = conn->previous = -1;
}

struct pf_conn *pf_conns_take(struct pf_conns *conns) {
    struct pf_conn *conn;
    if (conns->free_first >= 0) {
        conn = &conns->table[conns->free_first];
        conns->free_first = conn->next;
    } else if (conns->used < conns->capacity) {
        conn = &conns->table[conns->used++];
    } else {
        return NULL;
    }
    memset(conn, 0, offsetof(struct pf_conn, http));
    conn->fd = conn->row = -1;
    conn->next = conn->previous = -1;
    return conn;
}

void pf_conns_release(struct pf_conns *conns, struct pf_conn *conn) {
    conn->state = PF_CONN_FREE;
    conn->fd = -1;
    conn->next = conns->free_first;
    conns->free_first = index_of(conns, conn);
}

void pf_conns_park(struct pf_conns *conns, struct pf_conn *conn, pf_ns now) {
    conn->state = PF_CONN_IDLE;
    conn->row = -1;
    conn->idle_since_ns = now;
    append(conns, &conns->idle[conn->target], conn);
}

struct pf_conn *pf_conns_unpark(struct pf_conns *conns, int16_t target) {
    struct pf_queue *idle = &conns->idle[target];
    if (idle->last < 0) return NULL;
    struct pf_conn *conn = &conns->table[idle->last];
    unlink_from(conns, idle, conn);
    return conn;
}

struct pf_conn *pf_conns_oldest_idle(struct pf_conns *conns, int32_t target) {
    int32_t first = conns->idle[target].first;
    return first < 0 ? NULL : &conns->table[first];
}

void pf_conns_drop_idle(struct pf_conns *conns, struct pf_conn *conn) {
    unlink_from(conns, &conns->idle[conn->target], conn);
}

void pf_conns_enqueue(struct pf_conns *conns, struct pf_conn *conn) {
    append(conns, &conns->open[conn->kind], conn);
    conn->queued = 1;
}

void pf_conns_dequeue(struct pf_conns *conns, struct pf_conn *conn) {
    if (!conn->queued) return;
    unlink_from(conns, &conns->open[conn->kind], conn);
    conn->queued = 0;
}

struct pf_conn *pf_conns_oldest(struct pf_conns *conns, int kind) {
    int32_t first = conns->open[kind].first;
    return first < 0 ? NULL : &conns->table[first];
}
