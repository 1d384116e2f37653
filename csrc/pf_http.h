/* Sans-IO HTTP/1.1 response parser: bytes -> status, the headers that matter, body spans.
 *
 * Does: one response per pf_http_begin; informational responses are skipped; length, chunked and
 *       until-close bodies. A body span points into the caller's bytes.
 * Never: allocates, keeps body bytes, follows redirects, decodes content codings.
 */
#ifndef PF_HTTP_H
#define PF_HTTP_H

#include "pf_record.h"
#include "pf_result.h"

#define PF_HTTP_HEAD_LIMIT (64 * 1024) /* bytes of a head, or of a chunk's framing, at most */
#define PF_HTTP_NAME 40
#define PF_HTTP_VALUE 96

struct pf_http {
    uint8_t state;
    uint8_t chunked;
    uint8_t has_length;
    uint8_t close;      /* the connection ends with this response */
    uint8_t keep_alive; /* said so: only HTTP/1.0 needs it */
    uint8_t trailers;   /* the header lines under way follow the last chunk */
    uint8_t value_cut;  /* more of the value than there is room for */
    uint8_t minor;      /* HTTP/1.minor */
    uint8_t name_length;
    uint8_t value_length;
    uint8_t replica_length;
    uint8_t line_at; /* place in the status line; of a chunk size: 1 in, 2 past its digits */
    int16_t status;  /* 0 until the status line is whole */
    uint8_t head_done;
    uint8_t coded;              /* the body has a content coding: nobody here can read it */
    uint32_t head_bytes;        /* of the head, or of one chunk's framing and the trailers */
    int64_t remaining;          /* of the body or of the chunk */
    const char *replica_header; /* lower case, or NULL */
    char name[PF_HTTP_NAME];
    char value[PF_HTTP_VALUE];
    char replica[PF_NAME_BYTES];
};

/* `replica_header`: lower-case name of the header that names the replica, or NULL. */
void pf_http_begin(struct pf_http *http, const char *replica_header);

/* Consumes from data; *used says how far. PF_ITEM: *body holds a span, call again with the rest;
 * PF_END: the response is whole, the rest of data belongs to nobody; PF_AGAIN: all consumed;
 * PF_BAD: against the protocol. */
int pf_http_feed(struct pf_http *http, const uint8_t *data, size_t length, size_t *used,
                 struct pf_span *body);

/* The peer closed: PF_END where the body lasts until close, else PF_BAD (cut). */
int pf_http_finish(const struct pf_http *http);

#endif
