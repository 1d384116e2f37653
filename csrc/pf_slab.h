/* The slab: one worker's mapped file of columns and words shared with the parent.
 *
 * Does: lays the columns out (64-byte aligned, as Arrow wants its buffers) and finds them again.
 * Never: maps or allocates memory, and never moves a column of a formatted slab.
 */
#ifndef PF_SLAB_H
#define PF_SLAB_H

#include <stddef.h>

#include "pf_record.h"

#define PF_SLAB_MAGIC INT64_C(0x31424C5346504650) /* "PFPFSLB1" */
#define PF_SLAB_VERSION 1
#define PF_SLAB_HEADER_BYTES 4096

#define PF_WORDS(X)                                                                                \
    X(magic)                                                                                       \
    X(version)                                                                                     \
    X(bytes)                                                                                       \
    X(worker)                                                                                      \
    X(rows)                                                                                        \
    X(tokens_capacity)                                                                             \
    X(seconds_capacity)                                                                            \
    X(messages_capacity)                                                                           \
    X(epoch_ns) /* parent -> worker: CLOCK_MONOTONIC, 0 until known */                             \
    X(stop)     /* parent -> worker: 1 ends the schedule */                                        \
    X(state)    /* worker: enum pf_slab_state */                                                   \
    X(pid)                                                                                         \
    X(heartbeat_ns) /* run time of the last turn of the loop that was looked at */                 \
    X(stopped_ns)   /* run time at which an interrupted schedule ended, or PF_NULL64 */            \
    X(next_row)                                                                                    \
    X(in_flight)                                                                                   \
    X(in_flight_max)                                                                               \
    X(tokens_used)                                                                                 \
    X(tokens_lost)                                                                                 \
    X(seconds_used)                                                                                \
    X(seconds_lost)                                                                                \
    X(messages_used)                                                                               \
    X(messages_lost)                                                                               \
    X(finish_names_used)                                                                           \
    X(replica_names_used)                                                                          \
    X(names_lost)                                                                                  \
    X(dials)                                                                                       \
    X(reuses)                                                                                      \
    X(closed_while_idle)                                                                           \
    X(stamps_refused)                                                                              \
    X(stamps_unmatched)                                                                            \
    X(rehearsals)

enum pf_word {
#define X(name) PF_WORD_##name,
    PF_WORDS(X)
#undef X
        PF_WORD_COUNT
};

enum pf_slab_state { PF_SLAB_NEW = 0, PF_SLAB_READY = 1, PF_SLAB_RUNNING = 2, PF_SLAB_ENDED = 3 };

struct pf_slab {
    int64_t *words;
#define X(name, type, null) type *name;
    PF_COLUMNS(X)
#undef X
#define X(name, type) type *name;
    PF_TOKEN_COLUMNS(X)
    PF_SECOND_COLUMNS(X)
#undef X
    char *messages;      /* messages_capacity x PF_MESSAGE_BYTES, zero padded */
    char *finish_names;  /* PF_NAMES x PF_NAME_BYTES, zero padded */
    char *replica_names; /* the same */
};

struct pf_slab_size {
    int64_t rows, tokens, seconds, messages;
};

/* Bytes a slab of that size takes. */
size_t pf_slab_bytes(const struct pf_slab_size *size);

/* Points the members of `slab` into a mapping of that size. */
void pf_slab_bind(struct pf_slab *slab, void *base, const struct pf_slab_size *size);

/* Writes header and sentinels into a fresh mapping. */
void pf_slab_format(void *base, const struct pf_slab_size *size, int64_t worker);

/* Binds a formatted mapping of `bytes`; 0, or -1 when it is not one of this version. */
int pf_slab_open(struct pf_slab *slab, void *base, size_t bytes);

static inline int64_t pf_slab_load(const struct pf_slab *slab, enum pf_word word) {
    return __atomic_load_n(&slab->words[word], __ATOMIC_ACQUIRE);
}

static inline void pf_slab_store(struct pf_slab *slab, enum pf_word word, int64_t value) {
    __atomic_store_n(&slab->words[word], value, __ATOMIC_RELEASE);
}

/* For words that only this worker writes. */
static inline int64_t pf_slab_add(struct pf_slab *slab, enum pf_word word, int64_t more) {
    int64_t before = slab->words[word];
    pf_slab_store(slab, word, before + more);
    return before;
}

#endif
