/* Sans-IO server-sent events: body spans -> events (token, usage, finish, error, done).
 *
 * Does: splits on LF, CR and CRLF bytes only, takes `data` with or without the space, joins several
 *       data lines, skips comments and other fields, a byte-order mark too.
 * Never: allocates or keeps an event's bytes: the JSON scanner reads them as they come.
 */
#ifndef PF_SSE_H
#define PF_SSE_H

#include "pf_json.h"

enum pf_sse_payload { PF_SSE_NONE, PF_SSE_JSON, PF_SSE_DONE, PF_SSE_OTHER };

struct pf_sse {
    uint8_t line;     /* where in a line */
    uint8_t after_cr; /* a LF now belongs to the CR before */
    uint8_t mark_at;  /* bytes of the byte-order mark seen; 3 once past the start */
    uint8_t field_at; /* bytes of the field name matched */
    uint8_t payload;  /* enum pf_sse_payload of the event under way */
    uint8_t done_at;  /* bytes of [DONE] matched */
    uint8_t has_data; /* a data line was seen */
    uint8_t is_error; /* the event's name is "error" */
    struct pf_json json;
};

void pf_sse_begin(struct pf_sse *sse);

/* Consumes from data; *used says how far. PF_ITEM: an event ended: its payload is sse->payload and,
 * for PF_SSE_JSON, sse->json.facts; call again with the rest. PF_AGAIN: all consumed.
 * PF_BAD: an event that is neither one balanced JSON object nor [DONE]. */
int pf_sse_feed(struct pf_sse *sse, const uint8_t *data, size_t length, size_t *used);

/* The body ended: PF_ITEM when a last event without its blank line is whole, else PF_AGAIN
 * (nothing pending) or PF_BAD (an event cut inside). */
int pf_sse_finish(struct pf_sse *sse);

#endif
