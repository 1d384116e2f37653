/* What both fuzz targets share: an input cut into pieces, each in memory that ends where it ends.
 *
 * Does: reads the control bytes, hands out pieces three ways (whole, byte by byte, as the control
 *       bytes say), stops the program where a property does not hold.
 * Never: lets a piece live on after the next one is asked for: its bytes are overwritten, so a
 *       parser that kept a pointer differs.
 * Plan: the first CONTROL bytes of an input are no protocol. Three give the lengths of pieces in
 *       turn (low 6 bits: '@' is 0, 'A' is 1), the fourth holds flags ('\n' and '@' are none).
 *       A piece is copied to the end of an exact malloc, so ASan sees one byte too far.
 */
#ifndef FUZZ_PIECES_H
#define FUZZ_PIECES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTROL 4
#define MOST 4096 /* bytes of an input, the control bytes among them; see -max_len in run.py */

enum way { WHOLE_INPUT, BYTES, CUTS, WAYS };

struct pieces {
    const uint8_t *data; /* what is left of the input */
    size_t left;
    const uint8_t *control;
    enum way way;
    unsigned turn;
    uint8_t *room; /* exactly `size` bytes */
    size_t size;
    size_t last; /* length of the piece that is out */
};

#define REQUIRE(held)                                                                              \
    do {                                                                                           \
        if (!(held)) require_failed(__FILE__, __LINE__, #held);                                    \
    } while (0)

static inline void require_failed(const char *file, int line, const char *text) {
    fprintf(stderr, "%s:%d: property does not hold: %s\n", file, line, text);
    abort();
}

static inline int same_bytes(const void *a, const void *b, size_t length) {
    return length == 0 || memcmp(a, b, length) == 0;
}

/* memory that is not set must not show: each way starts from another filling */
static inline int filling(enum way way) {
    return 0xA5 + 0x11 * (int)way;
}

static inline void pieces_begin(struct pieces *pieces, const uint8_t *data, size_t length,
                                const uint8_t *control, enum way way) {
    *pieces = (struct pieces){.data = data, .left = length, .control = control, .way = way};
    pieces->size = length ? length : 1;
    pieces->room = malloc(pieces->size);
    if (!pieces->room) abort();
}

static inline void pieces_end(struct pieces *pieces) {
    free(pieces->room);
}

/* Length of the next piece; empty ones come only while the turn holds others that are not. */
static inline size_t next_length(struct pieces *pieces) {
    if (pieces->way == WHOLE_INPUT) return pieces->left;
    if (pieces->way == BYTES) return 1;
    int any = (pieces->control[0] | pieces->control[1] | pieces->control[2]) & 63;
    size_t length = any ? pieces->control[pieces->turn++ % 3] & 63u : 1;
    return length < pieces->left ? length : pieces->left;
}

/* The next piece, or 0 at the end of the input. */
static inline int pieces_next(struct pieces *pieces, const uint8_t **piece, size_t *length) {
    if (pieces->left == 0) return 0;
    uint8_t *end = pieces->room + pieces->size;
    *length = next_length(pieces);
    memset(end - pieces->last, 0xEE, pieces->last);
    uint8_t *to = end - *length;
    memcpy(to, pieces->data, *length);
    pieces->data += *length;
    pieces->left -= *length;
    pieces->last = *length;
    *piece = to;
    return 1;
}

#endif
