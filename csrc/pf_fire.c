/* A signal between two clock reads. See pf_fire.h. */
#include "pf_fire.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NS 500000

int pf_fire_open(pid_t pid) {
    long fd = syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : (int)fd;
}

int pf_fire_signal(int pidfd, pid_t group, int signal, pf_ns at, struct pf_fire_times *times) {
    pf_clock_wait(at, SPIN_NS);
    times->before = pf_clock_now();
    long result =
        group > 0 ? kill(-group, signal) : syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
    int error = result < 0 ? errno : 0;
    times->after = pf_clock_now();
    return -error;
}
