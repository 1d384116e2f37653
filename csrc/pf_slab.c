/* Slab layout. See pf_slab.h.
 *
 * Plan: one walk over the lists of columns, done by `place`, serves size and binding alike, so that
 * the two cannot disagree.
 */
#include "pf_slab.h"

#include <string.h>

static void *place(char *base, size_t *at, size_t bytes) {
    void *here = base + *at;
    *at = (*at + bytes + 63) & ~(size_t)63;
    return here;
}

static size_t walk(struct pf_slab *slab, char *base, const struct pf_slab_size *size) {
    size_t at = PF_SLAB_HEADER_BYTES;
    slab->words = (int64_t *)(void *)base;
#define X(name, type, null) slab->name = place(base, &at, (size_t)size->rows * sizeof(type));
    PF_COLUMNS(X)
#undef X
#define X(name, type) slab->name = place(base, &at, (size_t)size->tokens * sizeof(type));
    PF_TOKEN_COLUMNS(X)
#undef X
#define X(name, type) slab->name = place(base, &at, (size_t)size->seconds * sizeof(type));
    PF_SECOND_COLUMNS(X)
#undef X
    slab->messages = place(base, &at, (size_t)size->messages * PF_MESSAGE_BYTES);
    slab->finish_names = place(base, &at, (size_t)PF_NAMES * PF_NAME_BYTES);
    slab->replica_names = place(base, &at, (size_t)PF_NAMES * PF_NAME_BYTES);
    return at;
}

size_t pf_slab_bytes(const struct pf_slab_size *size) {
    static char origin[1]; /* addresses are computed, never followed */
    struct pf_slab unused;
    return walk(&unused, origin, size);
}

void pf_slab_bind(struct pf_slab *slab, void *base, const struct pf_slab_size *size) {
    walk(slab, base, size);
}

void pf_slab_format(void *base, const struct pf_slab_size *size, int64_t worker) {
    struct pf_slab slab;
    size_t bytes = walk(&slab, base, size);
    memset(base, 0, bytes); /* every page is touched: none is missing later */
#define X(name, type, null)                                                                        \
    for (int64_t i = 0; i < size->rows; i++)                                                       \
        slab.name[i] = (type)(null);
    PF_COLUMNS(X)
#undef X
    slab.words[PF_WORD_version] = PF_SLAB_VERSION;
    slab.words[PF_WORD_bytes] = (int64_t)bytes;
    slab.words[PF_WORD_worker] = worker;
    slab.words[PF_WORD_rows] = size->rows;
    slab.words[PF_WORD_tokens_capacity] = size->tokens;
    slab.words[PF_WORD_seconds_capacity] = size->seconds;
    slab.words[PF_WORD_messages_capacity] = size->messages;
    slab.words[PF_WORD_stopped_ns] = PF_NULL64;
    pf_slab_store(&slab, PF_WORD_magic, PF_SLAB_MAGIC);
}

int pf_slab_open(struct pf_slab *slab, void *base, size_t bytes) {
    const int64_t *words = base;
    if (bytes < PF_SLAB_HEADER_BYTES || words[PF_WORD_magic] != PF_SLAB_MAGIC ||
        words[PF_WORD_version] != PF_SLAB_VERSION)
        return -1;
    struct pf_slab_size size = {words[PF_WORD_rows], words[PF_WORD_tokens_capacity],
                                words[PF_WORD_seconds_capacity], words[PF_WORD_messages_capacity]};
    int64_t limit = (int64_t)bytes;
    if (size.rows < 0 || size.tokens < 0 || size.seconds < 0 || size.messages < 0 ||
        size.rows > limit || size.tokens > limit || size.seconds > limit || size.messages > limit ||
        pf_slab_bytes(&size) != bytes)
        return -1;
    pf_slab_bind(slab, base, &size);
    return 0;
}
