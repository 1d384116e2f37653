/* Known-timing server: answers every request with a stream whose event times are given in its
 * query.
 *
 * Does: `POST /anything?ttft_us=20000&gap_us=10000&tokens=32&per_send=1` -> chat-completion events
 *       at exactly ttft, ttft + gap, ... after the request's last byte was read, `per_send` of them
 *       (at most 64) in one send; GET -> 200, empty.
 * Never: is a simulation of a server (servers/mock.py is): it exists to be on time.
 */
#ifndef PF_RESPONDER_H
#define PF_RESPONDER_H

#include "pf_clock.h"

struct pf_responder_stats {
    int64_t requests, events;
    int64_t late_max_ns; /* event sent after its due time, at most */
    int64_t late_sum_ns;
};

/* What the server saw, for comparing with the client's records; NULL arrays keep nothing. */
struct pf_responder_log {
    int64_t (*requests)[3]; /* index (end of X-Request-Id), kernel arrival (wall), user arrival */
    int64_t (*events)[3];   /* index, event, time right before its send */
    int64_t requests_capacity, events_capacity;
};

/* Serves `listener` (bound, listening, non-blocking) until *stop is not 0 or the parent process is
 * no longer `parent_pid` (0: do not look). 0 or -errno. */
int pf_responder_run(int listener, int parent_pid, pf_ns spin_ns, const volatile int *stop,
                     const struct pf_responder_log *log, struct pf_responder_stats *stats);

#endif
