/* Rehearsed sends. See pf_warm.h.
 *
 * Plan: the same calls as a real send (pf_sock_send, stamps from the error queue), then a recv that
 * throws the bytes away. A look at the real connection's TCP_INFO pulls its state into the caches.
 */
#include "pf_warm.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pf_sock.h"

#define ROOM (1 << 20) /* discarded a call; a rehearsal sends no more than the socket takes */

static int listen_here(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && bind(fd, (struct sockaddr *)address, length) == 0 && listen(fd, 1) == 0 &&
        getsockname(fd, (struct sockaddr *)address, &length) == 0)
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
        if (dialed != PF_SOCK_FAILED)
            warm->to = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    }
    int error = errno;
    if (listener >= 0) close(listener);
    if (warm->to < 0) {
        pf_warm_close(warm);
        return -error;
    }
    if (stamps) pf_sock_stamp(warm->from);
    return 0;
}

void pf_warm_rehearse(const struct pf_warm *warm, const struct iovec parts[2], int fd) {
    struct pf_sock_stamp stamp;
    struct tcp_info info;
    socklen_t length = sizeof info;
    size_t sent;
    if (warm->from < 0) return;
    if (fd >= 0) getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    pf_sock_send(warm->from, parts, 2, &sent);
    recv(warm->to, NULL, ROOM, MSG_TRUNC | MSG_DONTWAIT);
    while (pf_sock_sent_stamp(warm->from, &stamp) == PF_SOCK_OK) {
    }
}

void pf_warm_close(struct pf_warm *warm) {
    if (warm->from >= 0) pf_sock_close(warm->from);
    if (warm->to >= 0) pf_sock_close(warm->to);
    warm->from = warm->to = -1;
}
