/* A signal between two clock reads. See pf_fire.h. */
#include "pf_fire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NS 500000

int pf_fire_open(pid_t pid) {
    long fd = syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : (int)fd;
}

/* PF_FIRE_ENDED where the pidfd's process has ended (a zombie too, which the kernel takes signals
 * for without a word), 0 where it has not, or -errno. */
static int look(int pidfd) {
    struct pollfd held = {.fd = pidfd, .events = POLLIN, .revents = 0};
    int found;
    do
        found = poll(&held, 1, 0);
    while (found < 0 && errno == EINTR);
    if (found < 0) return -errno;
    return found > 0 ? PF_FIRE_ENDED : 0;
}

static int deliver(int pidfd, pid_t group, int signal) {
    long result =
        group > 0 ? kill(-group, signal) : syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
    return result < 0 ? -errno : PF_FIRE_SENT;
}

/* The look that counts comes after the first reading: what is signalled was alive at `before`. The
 * look ahead of it makes it and the signal quick: 0.3 us, not 2.4, and the whole 8 us, not 12. */
int pf_fire_signal(int pidfd, pid_t group, int signal, pf_ns at, struct pf_fire_times *times) {
    pf_clock_wait(at, SPIN_NS);
    (void)look(pidfd);
    times->before = pf_clock_now();
    int result = look(pidfd);
    if (result == 0) result = deliver(pidfd, group, signal);
    times->after = pf_clock_now();
    return result;
}
