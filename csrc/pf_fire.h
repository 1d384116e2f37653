/* A signal between two clock reads.
 *
 * Never: finds its victim by itself. A single process is named by a pidfd, so that a pid taken over
 * by another process cannot be signalled; a group by the id its maker checked.
 */
#ifndef PF_FIRE_H
#define PF_FIRE_H

#include <sys/types.h>

#include "pf_clock.h"

struct pf_fire_times {
    pf_ns before, after; /* CLOCK_MONOTONIC around the system call */
};

/* pidfd of a living process, or -errno. */
int pf_fire_open(pid_t pid);

/* Waits until `at` (sleep, then spin), then signals the pidfd's process, or the process group where
 * group > 0. 0 or -errno; the times are filled in either case. */
int pf_fire_signal(int pidfd, pid_t group, int signal, pf_ns at, struct pf_fire_times *times);

#endif
