/* Keeps the path of a send warm: a TCP connection of the worker to itself, on loopback.
 *
 * Does: sends the bytes of the next request to itself and takes them in again, shortly before the
 *       request is due, so that the real send finds its code and its bytes in the caches. After a
 *       pause a cold send is tens of microseconds late (docs/PERFORMANCE.md).
 * Never: touches a connection to a target except to look at it, or fails a run: without loopback
 *        there is no rehearsal, and pf_warm_open says so.
 */
#ifndef PF_WARM_H
#define PF_WARM_H

#include <sys/uio.h>

struct pf_warm {
    int from, to; /* the two ends, or -1 */
};

/* 0, or -errno; then both ends are -1. */
int pf_warm_open(struct pf_warm *warm, int stamps);

/* One rehearsal with the bytes of a request; `fd` is the connection it will take, or -1. */
void pf_warm_rehearse(const struct pf_warm *warm, const struct iovec parts[2], int fd);

void pf_warm_close(struct pf_warm *warm);

#endif
