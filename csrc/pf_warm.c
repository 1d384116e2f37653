/* Rehearsed sends. See pf_warm.h.
 *
 * Plan: the same calls as a real send (pf_sock_send, stamps from the error queue), then a recv that
 * throws the bytes away. A look at the real connection's TCP_INFO pulls its state into the caches.
 */
#include "pf_warm.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pf_sock.h"

#define ROOM (1 << 20)      /* discarded a call; a rehearsal sends no more than the socket takes */
#define LONGEST (64 * 1024) /* bytes of a rehearsal: 8 us */
#define ACCEPT_WAIT_MS 100  /* loopback answers at once, or is filtered */

static int listen_here(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && bind(fd, (struct sockaddr *)address, length) == 0 && listen(fd, 1) == 0 &&
        getsockname(fd, (struct sockaddr *)address, &length) == 0)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* The other end of `from`, or -1: nobody came, or somebody else did. */
static int accept_own(int listener, int from) {
    struct pollfd awaited = {.fd = listener, .events = POLLIN};
    struct sockaddr_in own, peer;
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    if (poll(&awaited, 1, ACCEPT_WAIT_MS) != 1) return -1;
    int fd =
        accept4(listener, (struct sockaddr *)&peer, &peer_length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 && getsockname(from, (struct sockaddr *)&own, &own_length) == 0 &&
        own.sin_port == peer.sin_port)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

int pf_warm_open(struct pf_warm *warm, int stamps) {
    struct sockaddr_in address;
    int listener = listen_here(&address), dialed = PF_SOCK_FAILED;
    warm->from = warm->to = -1;
    if (listener >= 0) {
        dialed = pf_sock_dial((struct sockaddr *)&address, sizeof address, &warm->from);
        if (dialed != PF_SOCK_FAILED) warm->to = accept_own(listener, warm->from);
    }
    int error = errno;
    if (listener >= 0) close(listener);
    if (warm->to < 0) {
        pf_warm_close(warm);
        return error ? -error : -ECONNREFUSED;
    }
    if (stamps) pf_sock_stamp(warm->from);
    return 0;
}

/* The beginning of a long request: more of it would make the send late instead of early. */
static void clip(struct iovec parts[2]) {
    if (parts[0].iov_len > LONGEST) parts[0].iov_len = LONGEST;
    size_t left = LONGEST - parts[0].iov_len;
    if (parts[1].iov_len > left) parts[1].iov_len = left;
}

void pf_warm_rehearse(const struct pf_warm *warm, const struct iovec parts[2], int fd) {
    struct iovec short_parts[2] = {parts[0], parts[1]};
    struct pf_sock_stamp stamp;
    struct tcp_info info;
    socklen_t length = sizeof info;
    size_t sent;
    if (warm->from < 0) return;
    if (fd >= 0) getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    clip(short_parts);
    pf_sock_send(warm->from, short_parts, 2, &sent);
    recv(warm->to, NULL, ROOM, MSG_TRUNC | MSG_DONTWAIT);
    while (pf_sock_sent_stamp(warm->from, &stamp) == PF_SOCK_OK) {
    }
}

void pf_warm_close(struct pf_warm *warm) {
    if (warm->from >= 0) pf_sock_close(warm->from);
    if (warm->to >= 0) pf_sock_close(warm->to);
    warm->from = warm->to = -1;
}
