/* A signal between two clock reads.
 *
 * Never: finds its victim by itself, or signals one that has ended. A single process is named by a
 * pidfd, so that a pid taken over by another process cannot be signalled; a group by the id its
 * maker checked, and by a pidfd of the member that was armed.
 */
#ifndef PF_FIRE_H
#define PF_FIRE_H

#include <sys/types.h>

#include "pf_clock.h"

struct pf_fire_times {
    pf_ns before, after; /* CLOCK_MONOTONIC around the last look and the signal */
};

/* ENDED: the pidfd's process had; no signal was sent, not to its group either. */
enum pf_fire_result { PF_FIRE_SENT = 0, PF_FIRE_ENDED = 1 };

/* pidfd of a living process, or -errno. */
int pf_fire_open(pid_t pid);

/* Waits until `at` (sleep, then spin), then signals the pidfd's process, or the process group where
 * group > 0. A pf_fire_result or -errno; the times are filled in either case. */
int pf_fire_signal(int pidfd, pid_t group, int signal, pf_ns at, struct pf_fire_times *times);

#endif
