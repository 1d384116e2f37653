/* The bare loop: the same requests as the engine's, read with epoll and recv and thrown away.
 *
 * Never: parses more than the stream's end. One JSON line: events, seconds, CPU seconds, reads.
 * Arguments: port, streams, tokens, gap_us, core, events a send.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pf_clock.h"

#define EVENTS 64

static char data[262144];

static int dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) exit(1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void ask(int fd, int stream, int tokens, int gap_us, int per_send) {
    char head[512];
    int length = snprintf(head, sizeof head,
                          "POST /bench?ttft_us=50000&gap_us=%d&tokens=%d&per_send=%d HTTP/1.1\r\n"
                          "Host: bench\r\n"
                          "X-Request-Id: b-%d\r\nContent-Length: 0\r\n\r\n",
                          gap_us, tokens, per_send, stream);
    if (send(fd, head, (size_t)length, 0) != length) exit(1);
}

int main(int argc, char **argv) {
    if (argc < 7) return 2;
    int port = atoi(argv[1]), streams = atoi(argv[2]), tokens = atoi(argv[3]);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(argv[5]), &set);
    sched_setaffinity(0, sizeof set, &set);
    setpriority(PRIO_PROCESS, 0, -20);
    int poller = epoll_create1(0), left = streams;
    for (int i = 0; i < streams; i++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLET};
        event.data.fd = dial(port);
        epoll_ctl(poller, EPOLL_CTL_ADD, event.data.fd, &event);
        ask(event.data.fd, i, tokens, atoi(argv[4]), atoi(argv[6]));
        if (atoi(argv[4]))
            pf_clock_wait(pf_clock_now() + atoi(argv[4]) * 1000LL / streams, 1000000);
    }
    long long reads = 0;
    pf_ns first = 0, idle = 0, cpu = pf_clock_read(CLOCK_THREAD_CPUTIME_ID);
    pf_ns before = pf_clock_now();
    while (left > 0) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(poller, events, EVENTS, 0);
        for (int i = 0; i < count; i++) {
            ssize_t n = recv(events[i].data.fd, data, sizeof data, MSG_DONTWAIT);
            if (n == 0) exit(1); /* dropped by the server: it could not keep up */
            if (n < 0) continue;
            reads++;
            if (!first) first = pf_clock_now();
            if (memmem(data, (size_t)n, "[DONE]", 6)) left--;
        }
        pf_ns now = pf_clock_now();
        if (count == 0) idle += now - before;
        before = now;
    }
    double seconds = (double)(pf_clock_now() - first) / 1e9;
    cpu = pf_clock_read(CLOCK_THREAD_CPUTIME_ID) - cpu;
    printf("{\"events\": %lld, \"seconds\": %.6f, \"cpu_s\": %.6f, \"reads\": %lld}\n",
           (long long)streams * tokens, seconds, (double)(cpu - idle) / 1e9, reads);
    return 0;
}
