/* The machine's own limits, one JSON line: what clock, send, recv and epoll cost here and now.
 *
 * Never: touches anything but 127.0.0.1 and its own child. Run by bench_limits.py, pinned by it.
 * Plan: a child on another core is the peer; it sleeps in recv, or spins on it, as told.
 */
#include <arpa/inet.h>
#include <linux/net_tstamp.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pf_clock.h"

#define ROUNDS 4000
#define REQUEST 3000
#define EVENT 200

static int compare(const void *a, const void *b) {
    pf_ns x = *(const pf_ns *)a, y = *(const pf_ns *)b;
    return (x > y) - (x < y);
}

static void print_costs(const char *name, pf_ns *costs, int count) {
    qsort(costs, (size_t)count, sizeof *costs, compare);
    printf("\"%s\": [%lld, %lld, %lld], ", name, (long long)costs[count / 2],
           (long long)costs[count * 99 / 100], (long long)costs[count - 1]);
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void pair(int *here, int *there) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener, (struct sockaddr *)&address, sizeof address);
    listen(listener, 1);
    getsockname(listener, (struct sockaddr *)&address, &length);
    *here = socket(AF_INET, SOCK_STREAM, 0);
    connect(*here, (struct sockaddr *)&address, sizeof address);
    *there = accept(listener, NULL, NULL);
    close(listener);
    setsockopt(*here, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(*there, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* The peer: takes whole requests and answers each with one event; spinning or asleep in between. */
static void peer(int fd, int spin) {
    static char data[65536];
    size_t have = 0;
    for (;;) {
        ssize_t n = recv(fd, data, sizeof data, spin ? MSG_DONTWAIT : 0);
        if (n == 0) _exit(0);
        if (n > 0) have += (size_t)n;
        for (; have >= REQUEST; have -= REQUEST)
            if (send(fd, data, EVENT, MSG_NOSIGNAL) < 0) _exit(0);
    }
}

/* The engine's own read: epoll says so, then one recvmsg with the kernel's stamp. */
static ssize_t read_stamped(int poller, int fd, char *data, size_t room) {
    char control[128];
    struct epoll_event event;
    struct iovec part = {.iov_base = data, .iov_len = room};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    while (poller >= 0 && epoll_wait(poller, &event, 1, 0) != 1) {
    }
    return recvmsg(fd, &message, MSG_DONTWAIT);
}

static int watched(int fd) {
    int flags = SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int poller = epoll_create1(0);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags);
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    return poller;
}

static void exchange(int spin, int stamped, int core, pf_ns *sends, pf_ns *recvs) {
    static char data[65536];
    int here, there;
    pair(&here, &there);
    int poller = stamped ? watched(here) : -1;
    pid_t child = fork();
    if (child == 0) {
        close(here);
        pin(core);
        peer(there, spin);
    }
    close(there);
    for (int i = 0; i < ROUNDS; i++) {
        pf_clock_wait(pf_clock_now() + 200000, 200000);
        pf_ns before = pf_clock_now();
        if (send(here, data, REQUEST, MSG_NOSIGNAL) != REQUEST) exit(1);
        sends[i] = pf_clock_now() - before;
        pf_clock_wait(pf_clock_now() + 100000, 100000); /* the answer lies in the buffer then */
        before = pf_clock_now();
        ssize_t n = stamped ? read_stamped(poller, here, data, sizeof data)
                            : recv(here, data, sizeof data, 0);
        recvs[i] = pf_clock_now() - before;
        if (n != EVENT) exit(1);
    }
    close(here);
    if (stamped) close(poller);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void idle_polls(pf_ns *costs) {
    struct epoll_event event;
    int poller = epoll_create1(0), here, there;
    pair(&here, &there);
    event.events = EPOLLIN;
    epoll_ctl(poller, EPOLL_CTL_ADD, here, &event);
    for (int i = 0; i < ROUNDS; i++) {
        pf_ns before = pf_clock_now();
        epoll_wait(poller, &event, 1, 0);
        costs[i] = pf_clock_now() - before;
    }
    close(here);
    close(there);
    close(poller);
}

/* A peer that is heard from once a millisecond. */
static void tick(int fd) {
    static char data[EVENT];
    for (;;) {
        pf_clock_wait(pf_clock_now() + 1000000, 0);
        if (send(fd, data, sizeof data, MSG_NOSIGNAL) < 0) _exit(0);
    }
}

/* CPU of one read that had to be woken for: blocked in epoll, then one recvmsg with its stamp. */
static void woken(int core, pf_ns *costs, int count) {
    static char data[65536];
    struct timespec wait = {.tv_nsec = 100000000};
    struct epoll_event event;
    int here, there;
    pair(&here, &there);
    int poller = watched(here);
    pid_t child = fork();
    if (child == 0) {
        pin(core);
        tick(there);
    }
    for (int i = 0; i < count; i++) {
        pf_ns before = pf_clock_read(CLOCK_THREAD_CPUTIME_ID);
        epoll_pwait2(poller, &event, 1, &wait, NULL);
        read_stamped(-1, here, data, sizeof data);
        costs[i] = pf_clock_read(CLOCK_THREAD_CPUTIME_ID) - before;
    }
    close(here);
    close(there);
    close(poller);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    static pf_ns costs[ROUNDS], more[ROUNDS];
    int mine = argc > 1 ? atoi(argv[1]) : 1, other = argc > 2 ? atoi(argv[2]) : 0;
    pin(mine);
    printf("{");
    for (int i = 0; i < ROUNDS; i++) {
        costs[i] = pf_clock_now();
        costs[i] = pf_clock_now() - costs[i];
    }
    print_costs("clock", costs, ROUNDS);
    for (int i = 0; i < ROUNDS / 4; i++) {
        pf_ns due = pf_clock_now() + 1000000;
        costs[i] = pf_clock_wait(due, 500000) - due;
    }
    print_costs("overshoot", costs, ROUNDS / 4);
    idle_polls(costs);
    print_costs("epoll_empty", costs, ROUNDS);
    exchange(1, 0, other, costs, more);
    print_costs("send_to_spinning", costs, ROUNDS);
    exchange(1, 1, other, costs, more);
    print_costs("recv_stamped", more, ROUNDS);
    exchange(0, 0, other, costs, more);
    print_costs("send_to_sleeping", costs, ROUNDS);
    print_costs("recv_ready", more, ROUNDS);
    woken(other, costs, ROUNDS / 4);
    print_costs("read_woken_cpu", costs, ROUNDS / 4);
    printf("\"rounds\": %d}\n", ROUNDS);
    return 0;
}
