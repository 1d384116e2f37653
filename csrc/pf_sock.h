/* Every socket call of the engine; errno -> cause; kernel send and receive stamps.
 *
 * Never: blocks, retries a request, or decides what a failure means for the run.
 */
#ifndef PF_SOCK_H
#define PF_SOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "pf_clock.h"
#include "pf_record.h"

enum pf_sock_result { PF_SOCK_OK = 1, PF_SOCK_WAIT = 0, PF_SOCK_FAILED = -1, PF_SOCK_EOF = -2 };

enum pf_sock_phase { PF_PHASE_DIAL, PF_PHASE_TALK };

/* What an errno means in a phase. */
enum pf_cause pf_sock_cause(int error, enum pf_sock_phase phase);

/* New non-blocking TCP socket and its connect. OK: connected; WAIT: under way; FAILED: errno. */
int pf_sock_dial(const struct sockaddr *address, socklen_t length, int *fd);

/* Outcome of a connect that was under way; FAILED sets errno. */
int pf_sock_dialed(int fd);

/* Kernel stamps for sends (device, ACK) and reads of this socket. Call after connect. OK, FAILED.
 */
int pf_sock_stamp(int fd);

/* Kernel receive stamps alone; on a listening socket its connections inherit them. OK, FAILED. */
int pf_sock_stamp_reads(int fd);

/* Sends what it can; *sent bytes. OK: all of it, WAIT: the peer's window is full. */
int pf_sock_send(int fd, const struct iovec *parts, size_t count, size_t *sent);

/* One read; *got bytes, *stamp_wall the kernel's receive stamp or PF_NULL64. */
int pf_sock_read(int fd, uint8_t *buffer, size_t capacity, size_t *got, pf_ns *stamp_wall);

struct pf_sock_stamp {
    uint32_t last_byte; /* offset in the connection's stream of sent bytes */
    int is_ack;         /* 0: handed to the device */
    pf_ns wall_ns;
};

/* Next send stamp from the error queue. OK, or WAIT when there is none. */
int pf_sock_sent_stamp(int fd, struct pf_sock_stamp *stamp);

/* Segments retransmitted, and received or acknowledged out of order, since the connection began
 * (TCP_INFO). PF_SOCK_OK, or PF_SOCK_FAILED where the socket is no TCP. */
int pf_sock_anomalies(int fd, uint32_t *count);

void pf_sock_close(int fd);

/* Waits for events, `sleep` at most; how many, or -1 and errno. */
int pf_sock_poll(int poller, struct epoll_event *events, int capacity, pf_ns sleep);

#endif
