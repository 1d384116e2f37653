/* Known-timing server. See pf_responder.h.
 *
 * Plan: one epoll loop; streams with something due stand in a binary heap by due time; the wait is
 * as in the engine (sleep, then spin).
 */
#include "pf_responder.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pf_sock.h"

#define PEERS 16384
#define EVENTS 64
#define MOST_A_SEND 64          /* events */
#define QUEUE_BYTES (32 * 1024) /* not yet taken by the peer: less than any send buffer */
#define HEAD_BYTES 2048

struct peer {
    int fd;      /* -1: free; then `heap_at` is the next free one */
    int heap_at; /* -1: nothing due */
    size_t head_length;
    size_t body_left; /* of the request */
    int in_body;
    int64_t tokens, sent, index, per_send;
    pf_ns gap_ns, due_ns;
    char head[HEAD_BYTES + 1];
    size_t ahead_length; /* of bytes that came while a stream was under way */
    char ahead[HEAD_BYTES];
};

struct responder {
    int poller, listener;
    struct peer *peers;
    int heap[PEERS];
    int due_count;
    int used, first_free; /* entries ever handed out; head of the free list or -1 */
    char token[256];      /* one token's chunk, the same for all but the last */
    size_t token_length;
    pf_ns read_stamp_wall; /* of the read under way */
    const struct pf_responder_log *log;
    struct pf_responder_stats *stats;
};

static void heap_place(struct responder *r, int at, int peer) {
    r->heap[at] = peer;
    r->peers[peer].heap_at = at;
}

static pf_ns due_at(const struct responder *r, int at) {
    return r->peers[r->heap[at]].due_ns;
}

static void heap_swap(struct responder *r, int a, int b) {
    int peer = r->heap[a];
    heap_place(r, a, r->heap[b]);
    heap_place(r, b, peer);
}

static void heap_settle(struct responder *r, int at) {
    while (at > 0 && due_at(r, at) < due_at(r, (at - 1) / 2)) {
        heap_swap(r, at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
    for (;;) {
        int least = at;
        for (int child = 2 * at + 1; child <= 2 * at + 2 && child < r->due_count; child++)
            if (due_at(r, child) < due_at(r, least)) least = child;
        if (least == at) return;
        heap_swap(r, at, least);
        at = least;
    }
}

static void heap_add(struct responder *r, int peer) {
    heap_place(r, r->due_count++, peer);
    heap_settle(r, r->due_count - 1);
}

static void heap_remove(struct responder *r, int peer) {
    int at = r->peers[peer].heap_at;
    if (at < 0) return;
    int last = r->heap[--r->due_count];
    r->peers[peer].heap_at = -1;
    if (last == peer) return;
    heap_place(r, at, last);
    heap_settle(r, at);
}

static void drop(struct responder *r, int peer) {
    heap_remove(r, peer);
    close(r->peers[peer].fd);
    r->peers[peer].fd = -1;
    r->peers[peer].heap_at = r->first_free;
    r->first_free = peer;
}

static int64_t query(const char *head, const char *name, int64_t otherwise) {
    const char *end = strstr(head, "\r\n");
    const char *at = strstr(head, name);
    return at && end && at < end ? strtoll(at + strlen(name), NULL, 10) : otherwise;
}

static size_t content_length(const char *head) {
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, "content-length:", 15) == 0)
            return (size_t)strtoull(line + 17, NULL, 10);
    return 0;
}

static int reply(const struct peer *peer, const char *text, size_t length) {
    return send(peer->fd, text, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}

/* The number at the end of X-Request-Id, or -1. */
static int64_t request_index(const char *head) {
    const char *line = strstr(head, "X-Request-Id: ");
    const char *end = line ? strstr(line, "\r\n") : NULL;
    const char *digit = end;
    while (digit && digit > line && digit[-1] >= '0' && digit[-1] <= '9')
        digit--;
    return digit && digit < end ? strtoll(digit, NULL, 10) : -1;
}

static void log_request(struct responder *r, int64_t index, pf_ns now) {
    int64_t at = r->stats->requests++;
    if (at >= r->log->requests_capacity) return;
    int64_t line[3] = {index, r->read_stamp_wall, now};
    memcpy(r->log->requests[at], line, sizeof line);
}

static void log_event(struct responder *r, const struct peer *peer, int64_t event, pf_ns now) {
    int64_t at = r->stats->events++;
    if (at >= r->log->events_capacity) return;
    int64_t line[3] = {peer->index, event, now};
    memcpy(r->log->events[at], line, sizeof line);
}

/* The request's last byte is here. */
static int begin_answer(struct responder *r, int index) {
    static const char EMPTY[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    struct peer *peer = &r->peers[index];
    pf_ns now = pf_clock_now();
    peer->index = request_index(peer->head);
    log_request(r, peer->index, now);
    peer->in_body = 0;
    peer->head_length = 0;
    if (strncmp(peer->head, "GET ", 4) == 0) return reply(peer, EMPTY, sizeof EMPTY - 1);
    peer->tokens = query(peer->head, "tokens=", 32);
    peer->per_send = query(peer->head, "per_send=", 1);
    if (peer->per_send < 1 || peer->per_send > MOST_A_SEND) return 0;
    peer->gap_ns = query(peer->head, "gap_us=", 10000) * 1000;
    peer->due_ns = now + query(peer->head, "ttft_us=", 20000) * 1000;
    peer->sent = 0;
    heap_add(r, index);
    return 1;
}

static const char STREAM_HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n";

static int chunk(char *to, size_t room, const char *event) {
    return snprintf(to, room, "%zx\r\n%s\r\n", strlen(event), event);
}

static int token_chunk(char *to, size_t room, const char *finish) {
    char event[200];
    snprintf(event, sizeof event,
             "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"tok \"},"
             "\"finish_reason\":%s}]}\n\n",
             finish);
    return chunk(to, room, event);
}

/* The last event, the usage event and the ends of stream and body. */
static size_t last_chunks(char *to, size_t room, int64_t tokens) {
    char event[200];
    int at = token_chunk(to, room, "\"length\"");
    snprintf(
        event, sizeof event,
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":%lld}}\n\n",
        (long long)tokens);
    at += chunk(to + at, room - (size_t)at, event);
    at += chunk(to + at, room - (size_t)at, "data: [DONE]\n\n");
    at += snprintf(to + at, room - (size_t)at, "0\r\n\r\n");
    return (size_t)at;
}

/* The next `count` events in one send, with the head before the first of all. */
static int send_events(const struct responder *r, const struct peer *peer, int64_t count) {
    char text[MOST_A_SEND * sizeof r->token + 1024];
    size_t at = 0;
    if (peer->sent == 0) {
        at = sizeof STREAM_HEAD - 1;
        memcpy(text, STREAM_HEAD, at);
    }
    int ends = peer->sent + count == peer->tokens;
    for (int64_t i = 0; i < count - ends; i++, at += r->token_length)
        memcpy(text + at, r->token, r->token_length);
    if (ends) at += last_chunks(text + at, sizeof text - at, peer->tokens);
    return reply(peer, text, at);
}

static int take(struct responder *r, int index, const char *data, size_t length);

/* A stream has ended: what its client sent meanwhile has its turn. */
static int take_ahead(struct responder *r, int index) {
    char data[HEAD_BYTES];
    size_t length = r->peers[index].ahead_length;
    memcpy(data, r->peers[index].ahead, length);
    r->peers[index].ahead_length = 0;
    return take(r, index, data, length);
}

static int keep_ahead(struct peer *peer, const char *data, size_t length) {
    if (length > HEAD_BYTES - peer->ahead_length) return 0;
    memcpy(peer->ahead + peer->ahead_length, data, length);
    peer->ahead_length += length;
    return 1;
}

/* A stream without gaps goes as fast as its client takes it. */
static int must_wait(const struct peer *peer) {
    int queued = 0;
    return peer->gap_ns == 0 && ioctl(peer->fd, SIOCOUTQ, &queued) == 0 && queued > QUEUE_BYTES;
}

/* What is due on one stream goes out; 1: it goes on, 0: it has ended, -1: the peer is gone. */
static int send_next(struct responder *r, struct peer *peer) {
    pf_ns at = pf_clock_now(), late = at - peer->due_ns;
    if (must_wait(peer)) {
        peer->due_ns = at;
        return 1;
    }
    int64_t left = peer->tokens - peer->sent;
    int64_t count = peer->per_send < left ? peer->per_send : left;
    if (late > r->stats->late_max_ns) r->stats->late_max_ns = late;
    r->stats->late_sum_ns += late;
    for (int64_t i = 0; i < count; i++)
        log_event(r, peer, peer->sent + i, at);
    if (!send_events(r, peer, count)) return -1;
    peer->due_ns = peer->gap_ns ? peer->due_ns + peer->gap_ns : at; /* 0: in turn with others */
    peer->sent += count;
    return peer->sent < peer->tokens;
}

static void send_due(struct responder *r, pf_ns now) {
    while (r->due_count > 0 && due_at(r, 0) <= now) {
        int index = r->heap[0];
        int goes_on = send_next(r, &r->peers[index]);
        if (goes_on > 0) {
            heap_settle(r, 0);
            continue;
        }
        if (goes_on == 0) heap_remove(r, index);
        if (goes_on < 0 || !take_ahead(r, index)) drop(r, index);
    }
}

/* Bytes of a request head (then of its body, which is only counted). */
static int take(struct responder *r, int index, const char *data, size_t length) {
    struct peer *peer = &r->peers[index];
    while (length > 0) {
        if (peer->heap_at >= 0) return keep_ahead(peer, data, length);
        if (peer->in_body) {
            size_t step = length < peer->body_left ? length : peer->body_left;
            peer->body_left -= step;
            data += step;
            length -= step;
        } else {
            if (peer->head_length == HEAD_BYTES) return 0;
            peer->head[peer->head_length++] = *data++;
            peer->head[peer->head_length] = 0;
            length--;
            if (peer->head_length < 4 || memcmp(peer->head + peer->head_length - 4, "\r\n\r\n", 4))
                continue;
            peer->in_body = 1;
            peer->body_left = content_length(peer->head);
        }
        if (peer->body_left == 0 && !begin_answer(r, index)) return 0;
    }
    return 1;
}

static void serve_peer(struct responder *r, int index) {
    uint8_t data[16384];
    for (;;) {
        size_t n;
        int result = pf_sock_read(r->peers[index].fd, data, sizeof data, &n, &r->read_stamp_wall);
        if (result == PF_SOCK_WAIT) return;
        if (result != PF_SOCK_OK || !take(r, index, (const char *)data, n)) {
            drop(r, index);
            return;
        }
        if (n < sizeof data) return;
    }
}

/* A free entry, or -1. */
static int take_peer(struct responder *r) {
    int index = r->first_free;
    if (index < 0) return r->used < PEERS ? r->used++ : -1;
    r->first_free = r->peers[index].heap_at;
    return index;
}

static void accept_peer(struct responder *r) {
    int one = 1, fd = accept4(r->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    int index = take_peer(r);
    if (index < 0) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (r->log->requests_capacity > 0) pf_sock_stamp_reads(fd);
    struct peer *peer = &r->peers[index];
    memset(peer, 0, sizeof *peer);
    peer->fd = fd;
    peer->heap_at = -1;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)index};
    epoll_ctl(r->poller, EPOLL_CTL_ADD, fd, &event);
}

static int turn(struct responder *r, pf_ns spin_ns) {
    struct epoll_event events[EVENTS];
    pf_ns now = pf_clock_now();
    send_due(r, now);
    pf_ns sleep = PF_SECOND / 10;
    if (r->due_count > 0 && due_at(r, 0) - spin_ns - now < sleep)
        sleep = due_at(r, 0) - spin_ns - now;
    int count = pf_sock_poll(r->poller, events, EVENTS, sleep > 0 ? sleep : 0);
    for (int i = 0; i < count; i++) {
        if (events[i].data.u32 == PEERS)
            accept_peer(r);
        else if (r->peers[events[i].data.u32].fd >= 0)
            serve_peer(r, (int)events[i].data.u32);
    }
    return count < 0 && errno != EINTR ? -errno : 0;
}

int pf_responder_run(int listener, int parent_pid, pf_ns spin_ns, const volatile int *stop,
                     const struct pf_responder_log *log, struct pf_responder_stats *stats) {
    struct responder r = {.listener = listener, .first_free = -1, .log = log, .stats = stats};
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = PEERS};
    memset(stats, 0, sizeof *stats);
    if (log->requests_capacity > 0) pf_sock_stamp_reads(listener);
    r.peers = calloc(PEERS, sizeof *r.peers);
    r.poller = epoll_create1(EPOLL_CLOEXEC);
    int result = !r.peers || r.poller < 0 ? -ENOMEM : 0;
    r.token_length = (size_t)token_chunk(r.token, sizeof r.token, "null");
    if (result == 0) epoll_ctl(r.poller, EPOLL_CTL_ADD, listener, &event);
    while (result == 0 && !*stop && (parent_pid == 0 || getppid() == parent_pid))
        result = turn(&r, spin_ns);
    for (int i = 0; i < r.used; i++)
        if (r.peers[i].fd >= 0) close(r.peers[i].fd);
    if (r.poller >= 0) close(r.poller);
    free(r.peers);
    return result;
}
