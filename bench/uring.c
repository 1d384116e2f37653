/* The bare loop of bare.c over several read back ends: epoll or io_uring, with stamps or without.
 *
 * Never: parses more than the stream's end; sleeps while it measures; leaves 127.0.0.1; runs for
 * more than LONGEST. Where io_uring is not permitted it says so and exits with NOT_HERE.
 * Plan: dial all, arm the reads, time polls that find nothing, ask all, then `turn` until the last
 * stream has ended; a turn polls once and takes what is there. One JSON line.
 * Arguments: port, streams, tokens, gap_us, core, mode (MODES), then for io_uring: setup (SETUPS),
 * bytes of a buffer, buffers (a power of two), sends a submission.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <linux/net_tstamp.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pf_clock.h"

#define EVENTS 64
#define NOT_HERE 3
#define LONGEST (60 * PF_SECOND)
#define SUBMISSIONS 1024
#define COMPLETIONS 8192
#define HEAD_BYTES 256
#define CONTROL_BYTES 128
#define EMPTY_POLLS 100000
#define MOST_LAGS (1 << 20)
#define GROUP 0
#define MOST_FDS 16384
#define END "[DONE]"
#define TAIL (sizeof END - 2)

enum mode { EPOLL_RECV, EPOLL_RECVMSG, URING_RECV, URING_RECVMSG, URING_POLL, MODE_COUNT };
static const char *const MODES[MODE_COUNT] = {"epoll-recv", "epoll-recvmsg", "uring-recv",
                                              "uring-recvmsg", "uring-poll"};

/* `enters`: every poll is an io_uring_enter; else the rings' memory says when one is needed. */
struct setup {
    const char *name;
    unsigned flags;
    int enters;
};

static const struct setup SETUPS[] = {
    {"plain", 0, 0},
    {"coop", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0},
    {"defer", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
     0},
    {"defer-enter", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 1},
};
#define SETUP_COUNT ((int)(sizeof SETUPS / sizeof SETUPS[0]))

struct ring {
    int fd; /* the registered ring's number, not a descriptor, once `enter_flags` says so */
    unsigned enter_flags;
    unsigned *sq_tail, *sq_flags, *cq_head, *cq_tail;
    unsigned sq_mask, cq_mask, filled; /* filled: submissions the kernel has not been told of */
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

struct buffers {
    struct io_uring_buf_ring *ring;
    char *base;
    unsigned bytes, count;
    uint16_t tail;
};

struct client {
    enum mode mode;
    const struct setup *setup;
    int streams, left, poller;
    struct ring ring;
    struct buffers buffers;
    unsigned batch; /* sends a submission */
    long long reads, turns, rearms;
    pf_ns first, *lags;
    int lag_count;
};

static char data[65536];
static char tails[MOST_FDS][TAIL]; /* the last bytes read of each descriptor */
static struct msghdr multishot = {.msg_controllen = CONTROL_BYTES};

static void fail(const char *what, int error) {
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(1);
}

static int ring_register(int fd, unsigned what, void *arg, unsigned count) {
    return (int)syscall(__NR_io_uring_register, fd, what, arg, count);
}

/* Submits what is filled and runs what the kernel has put off for this task. */
static void ring_enter(struct ring *ring) {
    __atomic_store_n(ring->sq_tail, *ring->sq_tail + ring->filled, __ATOMIC_RELEASE);
    long sent = syscall(__NR_io_uring_enter, ring->fd, ring->filled, 0,
                        IORING_ENTER_GETEVENTS | ring->enter_flags, NULL, 0);
    if (sent != (long)ring->filled) fail("io_uring_enter", sent < 0 ? errno : EIO);
    ring->filled = 0;
}

static struct io_uring_sqe *ring_next(struct ring *ring) {
    if (ring->filled > ring->sq_mask) ring_enter(ring);
    struct io_uring_sqe *sqe = &ring->sqes[(*ring->sq_tail + ring->filled++) & ring->sq_mask];
    memset(sqe, 0, sizeof *sqe);
    return sqe;
}

static void *shared(int fd, size_t size, off_t offset) {
    int flags = MAP_SHARED | MAP_POPULATE;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, offset);
    if (at == MAP_FAILED) fail("mmap", errno);
    return at;
}

/* Spares each enter the look-up of the descriptor. */
static void ring_register_self(struct ring *ring) {
    struct io_uring_rsrc_update self = {.offset = (unsigned)-1, .data = (unsigned)ring->fd};
    if (ring_register(ring->fd, IORING_REGISTER_RING_FDS, &self, 1) != 1) return;
    ring->fd = (int)self.offset;
    ring->enter_flags = IORING_ENTER_REGISTERED_RING;
}

static void ring_map(struct ring *ring, const struct io_uring_params *p) {
    size_t sq = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    size_t cq = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    char *at = shared(ring->fd, sq > cq ? sq : cq, IORING_OFF_SQ_RING);
    ring->sqes = shared(ring->fd, p->sq_entries * sizeof *ring->sqes, IORING_OFF_SQES);
    ring->sq_tail = (unsigned *)(void *)(at + p->sq_off.tail);
    ring->sq_flags = (unsigned *)(void *)(at + p->sq_off.flags);
    ring->cq_head = (unsigned *)(void *)(at + p->cq_off.head);
    ring->cq_tail = (unsigned *)(void *)(at + p->cq_off.tail);
    ring->cqes = (struct io_uring_cqe *)(void *)(at + p->cq_off.cqes);
    ring->sq_mask = p->sq_entries - 1;
    ring->cq_mask = p->cq_entries - 1;
    unsigned *order = (unsigned *)(void *)(at + p->sq_off.array);
    for (unsigned i = 0; i < p->sq_entries; i++)
        order[i] = i;
}

static void buffer_give(struct buffers *buffers, unsigned id) {
    struct io_uring_buf *slot = &buffers->ring->bufs[buffers->tail++ & (buffers->count - 1)];
    slot->addr = (uint64_t)(uintptr_t)(buffers->base + (size_t)id * buffers->bytes);
    slot->len = buffers->bytes;
    slot->bid = (uint16_t)id;
}

static void buffers_publish(struct buffers *buffers) {
    __atomic_store_n(&buffers->ring->tail, buffers->tail, __ATOMIC_RELEASE);
}

static void *anonymous(size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) fail("mmap", errno);
    return at;
}

static void buffers_open(struct buffers *buffers, int ring_fd) {
    buffers->ring = anonymous(buffers->count * sizeof(struct io_uring_buf));
    buffers->base = anonymous((size_t)buffers->count * buffers->bytes);
    struct io_uring_buf_reg reg = {.ring_addr = (uint64_t)(uintptr_t)buffers->ring,
                                   .ring_entries = buffers->count,
                                   .bgid = GROUP};
    if (ring_register(ring_fd, IORING_REGISTER_PBUF_RING, &reg, 1) != 0) {
        printf("io_uring has no provided buffer rings here: %s\n", strerror(errno));
        exit(NOT_HERE);
    }
    for (unsigned i = 0; i < buffers->count; i++)
        buffer_give(buffers, i);
    buffers_publish(buffers);
}

static void ring_open(struct client *client) {
    struct ring *ring = &client->ring;
    struct io_uring_params params = {.flags = client->setup->flags | IORING_SETUP_CQSIZE,
                                     .cq_entries = COMPLETIONS};
    ring->fd = (int)syscall(__NR_io_uring_setup, SUBMISSIONS, &params);
    if (ring->fd < 0) {
        printf("io_uring (%s) is not permitted here: %s\n", client->setup->name, strerror(errno));
        exit(NOT_HERE);
    }
    ring_map(ring, &params);
    buffers_open(&client->buffers, ring->fd);
    ring_register_self(ring);
}

/* The requests */

static int dial(int port, int stamped) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int flags = SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) fail("connect", errno);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (stamped && setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags) != 0)
        fail("SO_TIMESTAMPING", errno);
    if (fd >= MOST_FDS) fail("descriptor", EMFILE);
    return fd;
}

static void arm(struct client *client, int fd) {
    if (client->mode <= EPOLL_RECVMSG) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
        if (epoll_ctl(client->poller, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl", errno);
        return;
    }
    struct io_uring_sqe *sqe = ring_next(&client->ring);
    sqe->fd = fd;
    sqe->user_data = (unsigned)fd;
    if (client->mode == URING_POLL) {
        sqe->opcode = IORING_OP_POLL_ADD;
        sqe->len = IORING_POLL_ADD_MULTI;
        sqe->poll32_events = EPOLLIN;
        return;
    }
    sqe->opcode = client->mode == URING_RECV ? IORING_OP_RECV : IORING_OP_RECVMSG;
    if (client->mode == URING_RECVMSG) sqe->addr = (uint64_t)(uintptr_t)&multishot;
    sqe->ioprio = IORING_RECV_MULTISHOT | IORING_RECVSEND_POLL_FIRST;
    sqe->flags = IOSQE_BUFFER_SELECT;
    sqe->buf_group = GROUP;
}

static int head(char *to, int stream, int tokens, int gap_us) {
    return snprintf(to, HEAD_BYTES,
                    "POST /bench?ttft_us=50000&gap_us=%d&tokens=%d HTTP/1.1\r\nHost: bench\r\n"
                    "X-Request-Id: b-%d\r\nContent-Length: 0\r\n\r\n",
                    gap_us, tokens, stream);
}

/* One request: a send, or a submission that completes silently, `batch` of them to an enter. */
static void ask(struct client *client, int fd, const char *text, size_t length) {
    if (client->mode <= EPOLL_RECVMSG) {
        if (send(fd, text, length, 0) != (ssize_t)length) fail("send", errno);
        return;
    }
    struct io_uring_sqe *sqe = ring_next(&client->ring);
    sqe->opcode = IORING_OP_SEND;
    sqe->fd = fd;
    sqe->addr = (uint64_t)(uintptr_t)text;
    sqe->len = (unsigned)length;
    sqe->flags = IOSQE_CQE_SKIP_SUCCESS;
    sqe->user_data = (unsigned)fd;
    if (client->ring.filled >= client->batch) ring_enter(&client->ring);
}

/* Microseconds a request. */
static double ask_all(struct client *client, const int *fds, int tokens, int gap_us) {
    char *heads = anonymous((size_t)client->streams * HEAD_BYTES);
    for (int i = 0; i < client->streams; i++)
        head(heads + (size_t)i * HEAD_BYTES, i, tokens, gap_us);
    pf_ns before = pf_clock_now();
    for (int i = 0; i < client->streams; i++) {
        const char *text = heads + (size_t)i * HEAD_BYTES;
        ask(client, fds[i], text, strlen(text));
    }
    if (client->ring.filled > 0) ring_enter(&client->ring);
    return (double)(pf_clock_now() - before) / 1e3 / client->streams;
}

/* Reading */

/* The kernel's stamp against now. */
static void take_stamp(struct client *client, struct msghdr *message) {
    pf_ns now = pf_clock_read(CLOCK_REALTIME);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPING) continue;
        struct timespec stamps[3];
        memcpy(stamps, CMSG_DATA(c), sizeof stamps);
        if (client->lag_count < MOST_LAGS)
            client->lags[client->lag_count++] = now - pf_clock_of(&stamps[0]);
    }
}

/* Looks for the stream's end, also across two reads. */
static int ends(int fd, const char *bytes, size_t count) {
    char *kept = tails[fd], join[2 * TAIL];
    size_t some = count < TAIL ? count : TAIL;
    memcpy(join, kept, TAIL);
    memcpy(join + TAIL, bytes, some);
    if (count < TAIL)
        memcpy(kept, join + some, TAIL);
    else
        memcpy(kept, bytes + count - TAIL, TAIL);
    return memmem(bytes, count, END, TAIL + 1) || memmem(join, TAIL + some, END, TAIL + 1);
}

static void take_bytes(struct client *client, int fd, const char *bytes, size_t count) {
    client->reads++;
    if (!client->first) client->first = pf_clock_now();
    if (ends(fd, bytes, count)) client->left--;
}

static ssize_t receive_stamped(struct client *client, int fd) {
    union {
        struct cmsghdr align;
        char bytes[CONTROL_BYTES];
    } control;
    struct iovec part = {.iov_base = data, .iov_len = sizeof data};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
    if (n > 0) take_stamp(client, &message);
    return n;
}

/* A full buffer is followed by another read: the edge does not come twice. */
static void read_socket(struct client *client, int fd) {
    ssize_t n;
    do {
        n = client->mode == EPOLL_RECV ? recv(fd, data, sizeof data, MSG_DONTWAIT)
                                       : receive_stamped(client, fd);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) fail("read", n < 0 ? errno : EPIPE);
        take_bytes(client, fd, data, (size_t)n);
    } while (n == sizeof data);
}

static int turn_epoll(struct client *client) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(client->poller, events, EVENTS, 0);
    for (int i = 0; i < count; i++)
        read_socket(client, events[i].data.fd);
    return count;
}

static unsigned ring_ready(const struct ring *ring) {
    return __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE) - *ring->cq_head;
}

/* The buffer: a header, room for the control messages, the bytes. */
static void take_message(struct client *client, int fd, char *buffer) {
    struct io_uring_recvmsg_out out;
    memcpy(&out, buffer, sizeof out);
    struct msghdr message = {.msg_control = buffer + sizeof out, .msg_controllen = out.controllen};
    take_stamp(client, &message);
    take_bytes(client, fd, buffer + sizeof out + CONTROL_BYTES, out.payloadlen);
}

static void take_completion(struct client *client, const struct io_uring_cqe *cqe) {
    struct buffers *buffers = &client->buffers;
    int fd = (int)cqe->user_data;
    if (cqe->res == -EINVAL) {
        printf("io_uring does not know this request here\n");
        exit(NOT_HERE);
    }
    if (cqe->res <= 0 && cqe->res != -ENOBUFS) fail("completion", cqe->res ? -cqe->res : EPIPE);
    if (client->mode == URING_POLL) {
        read_socket(client, fd);
    } else if (cqe->flags & IORING_CQE_F_BUFFER) {
        unsigned id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
        char *buffer = buffers->base + (size_t)id * buffers->bytes;
        if (client->mode == URING_RECVMSG)
            take_message(client, fd, buffer);
        else
            take_bytes(client, fd, buffer, (size_t)cqe->res);
        buffer_give(buffers, id);
    }
    if (cqe->flags & IORING_CQE_F_MORE) return;
    client->rearms++;
    arm(client, fd);
}

static int turn_uring(struct client *client) {
    struct ring *ring = &client->ring;
    unsigned ready = ring_ready(ring);
    if (ready == 0) {
        unsigned told = __atomic_load_n(ring->sq_flags, __ATOMIC_RELAXED);
        int needed = (told & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) || ring->filled > 0;
        if (needed || client->setup->enters) ring_enter(ring);
        ready = ring_ready(ring);
        if (ready == 0) return 0;
    }
    if (ready > EVENTS) ready = EVENTS;
    unsigned at = *ring->cq_head;
    for (unsigned i = 0; i < ready; i++)
        take_completion(client, &ring->cqes[(at + i) & ring->cq_mask]);
    __atomic_store_n(ring->cq_head, at + ready, __ATOMIC_RELEASE);
    buffers_publish(&client->buffers);
    return (int)ready;
}

static int turn(struct client *client) {
    return client->mode <= EPOLL_RECVMSG ? turn_epoll(client) : turn_uring(client);
}

/* Nanoseconds of a poll that finds nothing. */
static double empty_poll(struct client *client) {
    pf_ns before = pf_clock_now();
    for (int i = 0; i < EMPTY_POLLS; i++)
        turn(client);
    return (double)(pf_clock_now() - before) / EMPTY_POLLS;
}

/* Reads until the last stream has ended; nanoseconds spent on turns that found nothing. A
 * completion that is there after the clock was read came by an interrupt: that turn was work. */
static pf_ns read_all(struct client *client) {
    pf_ns start = pf_clock_now(), before = start, idle = 0;
    while (client->left > 0) {
        if (turn(client) > 0) {
            client->turns++;
            before = pf_clock_now();
            continue;
        }
        pf_ns now = pf_clock_now();
        if (client->mode <= EPOLL_RECVMSG || ring_ready(&client->ring) == 0) idle += now - before;
        if (now - start > LONGEST) fail("streams", ETIMEDOUT);
        before = now;
    }
    return idle;
}

static int by_size(const void *a, const void *b) {
    pf_ns x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static double lag_us(const struct client *client, int percent) {
    if (client->lag_count == 0) return -1;
    return (double)client->lags[(long long)(client->lag_count - 1) * percent / 100] / 1e3;
}

static void tell(const struct client *client, long long events, double seconds, double cpu_s,
                 double total_cpu_s, double lost) {
    qsort(client->lags, (size_t)client->lag_count, sizeof *client->lags, by_size);
    printf("{\"events\": %lld, \"seconds\": %.6f, \"cpu_s\": %.6f, \"reads\": %lld, "
           "\"total_cpu_s\": %.6f, \"turns\": %lld, \"rearms\": %lld, \"lag_p50_us\": %.2f, "
           "\"lag_p99_us\": %.2f, \"lost\": %.4f, ",
           events, seconds, cpu_s, client->reads, total_cpu_s, client->turns, client->rearms,
           lag_us(client, 50), lag_us(client, 99), lost);
}

static void favour(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)core, &set);
    sched_setaffinity(0, sizeof set, &set);
    setpriority(PRIO_PROCESS, 0, -20);
}

static unsigned number(int argc, char **argv, int at, unsigned otherwise) {
    return argc > at ? (unsigned)atoi(argv[at]) : otherwise;
}

static void client_open(struct client *client, int argc, char **argv) {
    client->mode = MODE_COUNT;
    for (int i = 0; i < MODE_COUNT; i++)
        if (strcmp(argv[6], MODES[i]) == 0) client->mode = (enum mode)i;
    for (int i = 0; i < SETUP_COUNT; i++)
        if (strcmp(argc > 7 ? argv[7] : "defer", SETUPS[i].name) == 0) client->setup = &SETUPS[i];
    if (client->mode == MODE_COUNT || !client->setup) fail("mode or setup", EINVAL);
    client->buffers.bytes = number(argc, argv, 8, 4096);
    client->buffers.count = number(argc, argv, 9, 1024);
    client->batch = number(argc, argv, 10, EVENTS);
    client->streams = client->left = atoi(argv[2]);
    client->lags = anonymous(MOST_LAGS * sizeof *client->lags);
    client->poller = epoll_create1(0);
    if (client->mode > EPOLL_RECVMSG) ring_open(client);
}

int main(int argc, char **argv) {
    static struct client client;
    if (argc < 7) return 2;
    int port = atoi(argv[1]), tokens = atoi(argv[3]);
    favour(atoi(argv[5]));
    client_open(&client, argc, argv);
    int stamped = client.mode != EPOLL_RECV && client.mode != URING_RECV;
    int *fds = anonymous((size_t)client.streams * sizeof *fds);
    for (int i = 0; i < client.streams; i++)
        arm(&client, fds[i] = dial(port, stamped));
    double empty_ns = empty_poll(&client);
    double send_us = ask_all(&client, fds, tokens, atoi(argv[4]));
    pf_ns cpu = pf_clock_read(CLOCK_THREAD_CPUTIME_ID);
    pf_ns start = pf_clock_now(), idle = read_all(&client), end = pf_clock_now();
    cpu = pf_clock_read(CLOCK_THREAD_CPUTIME_ID) - cpu;
    tell(&client, (long long)client.streams * tokens, (double)(end - client.first) / 1e9,
         (double)(cpu - idle) / 1e9, (double)cpu / 1e9, 1 - (double)cpu / (double)(end - start));
    printf("\"empty_ns\": %.1f, \"send_us\": %.2f}\n", empty_ns, send_us);
    return 0;
}
