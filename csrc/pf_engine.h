/* One worker's engine: the schedule's rows go out on time, answers become column values.
 *
 * Does: waits for the next due row (sleep, then spin with reads served in between), sends it, reads
 *       whatever arrives, ends rows at their deadlines, keeps per-second figures of itself.
 * Never: allocates after pf_engine_init, logs, looks at the server's state to decide when to send,
 *        or retries a row.
 */
#ifndef PF_ENGINE_H
#define PF_ENGINE_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "pf_conn.h"
#include "pf_slab.h"
#include "pf_warm.h"

#define PF_READ_BYTES (64 * 1024)
#define PF_TARGETS 64

struct pf_target {
    struct sockaddr_storage address;
    socklen_t length;
};

struct pf_engine_setup {
    const uint8_t *heads; /* every request's own first bytes; columns head_offset, head_length */
    size_t heads_bytes;
    const struct iovec *tails; /* shared last bytes; column tail */
    int32_t tail_count;
    struct pf_target targets[PF_TARGETS];
    int32_t target_count;
    pf_ns timeout_ns[PF_KINDS];
    uint8_t plain[PF_KINDS]; /* not a stream: status 200 and a whole body are all it wants */
    pf_ns spin_ns;           /* how long before a due send sleeping ends */
    pf_ns idle_reuse_ns;     /* an idle connection older than this is not used again */
    int32_t max_connections;
    int32_t parent_pid;    /* the run stops when this is no longer the parent; 0: do not look */
    uint8_t end_by_finish; /* the finish reason is the stream's end (servers without [DONE]) */
    uint8_t stamps;        /* kernel send and receive stamps */
    uint8_t busy;          /* never sleep: poll for nothing all the time */
    uint8_t rehearse;      /* keep the send's path warm (pf_warm.h) */
    const struct iovec *secrets; /* sent, and never to be kept: servers echo them in errors */
    int32_t secret_count;
    char replica_header[PF_HTTP_NAME + 1]; /* lower case, or empty */
};

struct pf_engine {
    struct pf_engine_setup setup;
    struct pf_slab slab;
    struct pf_conns conns;
    int poller;
    pf_ns epoch;  /* absolute */
    int64_t rows; /* of the slab */
    int64_t next; /* first row not yet sent */
    int64_t in_flight;
    uint8_t *buffer;
    struct pf_warm warm;
    int64_t rehearsed_row; /* the row that `rehearsals` have been made for */
    int rehearsals;
    int rehearses; /* asked for, and loopback is there */

    /* the read under way */
    pf_ns read_ns; /* relative to the epoch */
    pf_ns read_stamp_wall;
    int32_t read_tokens;     /* content events it has shown so far */
    int32_t first_token_row; /* whose first token it carried, or -1 */
    int64_t read_token_line; /* the last token's line, while nothing came after it; or -1 */

    /* the second under way */
    pf_ns next_second; /* relative */
    pf_ns cpu_before;
    pf_ns idle_poll_ns;
    int64_t second_sent, second_reads, second_polls;
    pf_ns second_skew_max;
};

/* Binds engine and slab; 0 or -errno. `base` is a formatted slab of `bytes`. */
int pf_engine_init(struct pf_engine *engine, const struct pf_engine_setup *setup, void *base,
                   size_t bytes);

/* Runs the whole schedule from the epoch in the slab; 0, or 1 when it was interrupted. */
int pf_engine_run(struct pf_engine *engine);

void pf_engine_destroy(struct pf_engine *engine);

#endif
