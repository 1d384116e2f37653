/* Socket calls of the engine. See pf_sock.h.
 *
 * Plan: one function a call. Stamps use SO_TIMESTAMPING's software stamps with byte-counted ids
 * (SOF_TIMESTAMPING_OPT_ID_TCP), so that a stamp is matched to the byte it speaks of.
 */
#include "pf_sock.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#ifndef SOF_TIMESTAMPING_OPT_ID_TCP /* Linux 6.2 */
#define SOF_TIMESTAMPING_OPT_ID_TCP (1 << 16)
#endif

enum pf_cause pf_sock_cause(int error, enum pf_sock_phase phase) {
    switch (error) {
    case EMFILE:
    case ENFILE:
        return PF_CAUSE_NO_DESCRIPTOR;
    case EADDRNOTAVAIL:
        return PF_CAUSE_NO_PORT;
    case ENOBUFS:
    case ENOMEM:
        return PF_CAUSE_NO_MEMORY;
    case EACCES:
    case EPERM:
        return PF_CAUSE_REFUSED_HERE;
    case ECONNRESET: /* also while dialing: accepted, then reset before it was looked at */
    case EPIPE:
        return PF_CAUSE_RESET;
    default:
        return phase == PF_PHASE_DIAL ? PF_CAUSE_CONNECT : PF_CAUSE_RESET;
    }
}

int pf_sock_dial(const struct sockaddr *address, socklen_t length, int *fd) {
    int one = 1;
    *fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0) return PF_SOCK_FAILED;
    setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(*fd, address, length) == 0) return PF_SOCK_OK;
    if (errno == EINPROGRESS) return PF_SOCK_WAIT;
    int kept = errno;
    close(*fd);
    *fd = -1;
    errno = kept;
    return PF_SOCK_FAILED;
}

/* TCP joins a socket to itself where the dial is given the port of a dead server on this machine.
 */
static int joined_to_itself(int fd) {
    struct sockaddr_storage own, peer;
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    memset(&own, 0, sizeof own);
    memset(&peer, 0, sizeof peer);
    return getsockname(fd, (struct sockaddr *)&own, &own_length) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_length) == 0 &&
           own_length == peer_length && memcmp(&own, &peer, own_length) == 0;
}

int pf_sock_dialed(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return PF_SOCK_FAILED;
    if (error == 0 && joined_to_itself(fd)) error = ECONNREFUSED;
    errno = error;
    return error == 0 ? PF_SOCK_OK : PF_SOCK_FAILED;
}

int pf_sock_stamp(int fd) {
    int flags = SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE |
                SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_ACK | SOF_TIMESTAMPING_OPT_ID |
                SOF_TIMESTAMPING_OPT_TSONLY;
    int counted = flags | SOF_TIMESTAMPING_OPT_ID_TCP;
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &counted, sizeof counted) == 0)
        return PF_SOCK_OK;
    /* before Linux 6.2 the ids count from what the peer has acknowledged: the same, as nothing has
     * been sent yet */
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags) == 0) return PF_SOCK_OK;
    return PF_SOCK_FAILED;
}

int pf_sock_stamp_reads(int fd) {
    int flags = SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE;
    return setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags) == 0 ? PF_SOCK_OK
                                                                                  : PF_SOCK_FAILED;
}

int pf_sock_send(int fd, const struct iovec *parts, size_t count, size_t *sent) {
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = count};
    size_t whole = 0;
    for (size_t i = 0; i < count; i++)
        whole += parts[i].iov_len;
    ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    *sent = n > 0 ? (size_t)n : 0;
    if (n >= 0) return *sent == whole ? PF_SOCK_OK : PF_SOCK_WAIT;
    return errno == EAGAIN || errno == EINTR ? PF_SOCK_WAIT : PF_SOCK_FAILED;
}

static pf_ns software_stamp(struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPING) continue;
        struct timespec stamps[3];
        memcpy(stamps, CMSG_DATA(c), sizeof stamps);
        if (stamps[0].tv_sec != 0) return pf_clock_of(&stamps[0]);
    }
    return PF_NULL64;
}

int pf_sock_read(int fd, uint8_t *buffer, size_t capacity, size_t *got, pf_ns *stamp_wall) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(3 * sizeof(struct timespec)) + 64];
    } control;
    struct iovec part = {.iov_base = buffer, .iov_len = capacity};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
    *got = n > 0 ? (size_t)n : 0;
    *stamp_wall = PF_NULL64;
    if (n == 0) return PF_SOCK_EOF;
    if (n < 0) return errno == EAGAIN || errno == EINTR ? PF_SOCK_WAIT : PF_SOCK_FAILED;
    *stamp_wall = software_stamp(&message);
    return PF_SOCK_OK;
}

static int read_error_entry(struct msghdr *message, struct pf_sock_stamp *stamp) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        int is_error = (c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
                       (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR);
        if (!is_error) continue;
        struct sock_extended_err entry;
        memcpy(&entry, CMSG_DATA(c), sizeof entry);
        if (entry.ee_origin != SO_EE_ORIGIN_TIMESTAMPING) continue;
        stamp->last_byte = entry.ee_data;
        stamp->is_ack = entry.ee_info == SCM_TSTAMP_ACK;
        return 1;
    }
    return 0;
}

int pf_sock_sent_stamp(int fd, struct pf_sock_stamp *stamp) {
    union {
        struct cmsghdr align;
        char bytes[512];
    } control;
    for (;;) {
        struct msghdr message = {.msg_control = &control, .msg_controllen = sizeof control};
        if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return PF_SOCK_WAIT;
        if (!read_error_entry(&message, stamp)) continue;
        stamp->wall_ns = software_stamp(&message);
        if (stamp->wall_ns != PF_NULL64) return PF_SOCK_OK;
    }
}

/* Places in struct tcp_info of linux/tcp.h (5.4), in words of 4 bytes: libc's copy is older. */
enum { INFO_TOTAL_RETRANS = 25, INFO_REORD_SEEN = 55, INFO_RCV_OOOPACK = 56, INFO_WORDS = 57 };

int pf_sock_anomalies(int fd, uint32_t *count) {
    uint32_t info[INFO_WORDS];
    socklen_t length = sizeof info;
    memset(info, 0, sizeof info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) != 0) return PF_SOCK_FAILED;
    *count = info[INFO_TOTAL_RETRANS] + info[INFO_REORD_SEEN] + info[INFO_RCV_OOOPACK];
    return PF_SOCK_OK;
}

void pf_sock_close(int fd) {
    close(fd);
}

/* epoll_wait rounds to 1 ms; kernels before 5.11 have no other, and some container runtimes refuse
 * it (EPERM): there the spin covers the rest. */
int pf_sock_poll(int poller, struct epoll_event *events, int capacity, pf_ns sleep) {
    struct timespec wait = pf_clock_timespec(sleep);
    int count = epoll_pwait2(poller, events, capacity, &wait, NULL);
    if (count >= 0 || errno == EINTR) return count;
    return epoll_wait(poller, events, capacity, (int)(sleep / (PF_SECOND / 1000)));
}
