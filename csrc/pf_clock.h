/* Clocks: the monotonic clock every record is kept on, its type, and waiting on it.
 *
 * Never: reads CLOCK_REALTIME for anything but pairing it with the monotonic clock.
 * Plan: pf_ns is nanoseconds; the wall clock is another function, so that the two cannot be mixed
 * up silently.
 */
#ifndef PF_CLOCK_H
#define PF_CLOCK_H

#include <stdint.h>
#include <time.h>

typedef int64_t pf_ns;

#define PF_SECOND ((pf_ns)1000000000)

static inline pf_ns pf_clock_of(const struct timespec *ts) {
    return (pf_ns)ts->tv_sec * PF_SECOND + (pf_ns)ts->tv_nsec;
}

static inline pf_ns pf_clock_read(clockid_t clock) {
    struct timespec ts;
    clock_gettime(clock, &ts);
    return pf_clock_of(&ts);
}

static inline pf_ns pf_clock_now(void) {
    return pf_clock_read(CLOCK_MONOTONIC);
}

static inline struct timespec pf_clock_timespec(pf_ns ns) {
    struct timespec ts;
    ts.tv_sec = (time_t)(ns / PF_SECOND);
    ts.tv_nsec = (long)(ns % PF_SECOND);
    return ts;
}

/* Sleeps to `spin_ns` before `due`, then reads the clock until it is due; returns that reading. */
static inline pf_ns pf_clock_wait(pf_ns due, pf_ns spin_ns) {
    struct timespec until = pf_clock_timespec(due > spin_ns ? due - spin_ns : 0);
    while (pf_clock_now() < due - spin_ns)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
    pf_ns now;
    do
        now = pf_clock_now();
    while (now < due);
    return now;
}

#endif
