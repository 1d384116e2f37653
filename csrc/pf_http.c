/* Sans-IO HTTP/1.1 response parser. See pf_http.h.
 *
 * Plan: a state per kind of byte expected; a name and a value are kept only as far as a header that
 * matters is long; trailers are read as a head whose headers do not matter; line ends are CRLF or a
 * lone LF in head and trailers, CRLF in chunk framing (RFC 9112 2.2 lets a recipient take a lone LF
 * in the head; chunk framing has no such licence).
 */
#include "pf_http.h"

#include <string.h>

enum state {
    STATUS,
    REASON,
    LINE_START, /* of a header line, or the empty line */
    NAME,
    VALUE_SPACE,
    VALUE,
    FOLD_OR_NEXT, /* after a header line: white space continues it */
    HEAD_END_LF,
    BODY_LENGTH,
    BODY_CLOSE,
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    WHOLE,
    REFUSED
};

#define SIZE_TOP (INT64_C(1) << 56) /* below it one more digit of any base stays inside int64 */

void pf_http_begin(struct pf_http *http, const char *replica_header) {
    memset(http, 0, offsetof(struct pf_http, name));
    http->replica_header = replica_header;
    http->state = STATUS;
}

static int lower(int byte) {
    return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte;
}

static int value_is(const struct pf_http *http, const char *word) {
    size_t length = strlen(word);
    if (http->value_length != length) return 0;
    for (size_t i = 0; i < length; i++)
        if (lower((unsigned char)http->value[i]) != word[i]) return 0;
    return 1;
}

/* Is `word` one of the comma-separated tokens of the value? */
static int value_has(const struct pf_http *http, const char *word) {
    size_t length = strlen(word), at = 0;
    while (at < http->value_length) {
        size_t end = at;
        while (end < http->value_length && http->value[end] != ',')
            end++;
        size_t from = at, to = end;
        while (from < to && (http->value[from] == ' ' || http->value[from] == '\t'))
            from++;
        while (to > from && (http->value[to - 1] == ' ' || http->value[to - 1] == '\t'))
            to--;
        size_t same = 0;
        while (same < to - from && same < length &&
               lower((unsigned char)http->value[from + same]) == word[same])
            same++;
        if (same == length && to - from == length) return 1;
        at = end + 1;
    }
    return 0;
}

static int name_is(const struct pf_http *http, const char *word) {
    size_t length = strlen(word);
    return http->name_length == length && memcmp(http->name, word, length) == 0;
}

static size_t past_space(const struct pf_http *http, size_t at) {
    while (at < http->value_length && (http->value[at] == ' ' || http->value[at] == '\t'))
        at++;
    return at;
}

static int64_t decimal_at(const struct pf_http *http, size_t *at) {
    size_t from = *at;
    int64_t number = 0;
    for (; *at < http->value_length; ++*at) {
        int digit = http->value[*at] - '0';
        if (digit < 0 || digit > 9) break;
        if (number >= SIZE_TOP) return -1;
        number = number * 10 + digit;
    }
    return *at > from ? number : -1;
}

/* A decimal length, or the same one several times between commas (RFC 9112 6.3); else -1. */
static int64_t length_of_value(const struct pf_http *http) {
    int64_t length = -1;
    for (size_t at = 0;;) {
        at = past_space(http, at);
        int64_t next = decimal_at(http, &at);
        at = past_space(http, at);
        if (next < 0 || (length >= 0 && next != length)) return -1;
        length = next;
        if (at == http->value_length) return length;
        if (http->value[at++] != ',') return -1;
    }
}

static void take_length(struct pf_http *http) {
    int64_t length = http->value_cut ? -1 : length_of_value(http);
    if (length < 0 || (http->has_length && http->remaining != length)) {
        http->state = REFUSED;
        return;
    }
    http->has_length = 1;
    http->remaining = length;
}

/* Empty elements of a list do not count (RFC 9110 5.6.1.2). */
static void drop_empty_elements(struct pf_http *http) {
    size_t from = 0;
    while (from < http->value_length && strchr(" \t,", http->value[from]))
        from++;
    while (http->value_length > from && strchr(" \t,", http->value[http->value_length - 1]))
        http->value_length--;
    http->value_length = (uint8_t)(http->value_length - from);
    memmove(http->value, http->value + from, http->value_length);
}

static void take_coding(struct pf_http *http) {
    drop_empty_elements(http);
    if (http->value_cut || http->chunked || !value_is(http, "chunked")) {
        http->state = REFUSED;
        return;
    }
    http->chunked = 1;
    if (http->minor == 0) http->close = 1; /* RFC 9112 6.1: faulty framing, then close */
}

static void take_connection(struct pf_http *http) {
    if (http->value_cut || value_has(http, "close")) http->close = 1;
    if (value_has(http, "keep-alive")) http->keep_alive = 1;
}

static void take_header(struct pf_http *http) {
    if (http->trailers) return;
    while (http->value_length > 0 && (http->value[http->value_length - 1] == ' ' ||
                                      http->value[http->value_length - 1] == '\t'))
        http->value_length--;
    if (name_is(http, "content-length")) {
        take_length(http);
    } else if (name_is(http, "transfer-encoding")) {
        take_coding(http);
    } else if (name_is(http, "connection")) {
        take_connection(http);
    } else if (name_is(http, "content-encoding")) {
        drop_empty_elements(http);
        if (http->value_cut || (http->value_length > 0 && !value_is(http, "identity")))
            http->coded = 1;
    } else if (http->replica_header && name_is(http, http->replica_header)) {
        size_t kept = http->value_length < PF_NAME_BYTES ? http->value_length : PF_NAME_BYTES;
        memcpy(http->replica, http->value, kept);
        http->replica_length = (uint8_t)kept;
    }
}

/* 100 Continue and the like: the answer is still to come. */
static void begin_again(struct pf_http *http) {
    uint32_t head_bytes = http->head_bytes;
    pf_http_begin(http, http->replica_header);
    http->head_bytes = head_bytes;
}

static void head_ended(struct pf_http *http) {
    http->head_done = 1;
    if (http->minor == 0 && !http->keep_alive) http->close = 1;
    if (http->status == 204 || http->status == 304) {
        http->state = WHOLE;
    } else if (http->chunked) {
        if (http->has_length) http->close = 1; /* RFC 9112 6.3: chunked wins, then close */
        http->remaining = 0;
        http->line_at = 0;
        http->state = CHUNK_SIZE;
    } else if (http->has_length) {
        http->state = http->remaining > 0 ? BODY_LENGTH : WHOLE;
    } else {
        http->close = 1;
        http->state = BODY_CLOSE;
    }
}

static void lines_ended(struct pf_http *http) {
    if (http->trailers)
        http->state = WHOLE;
    else if (http->status == 101)
        http->state = REFUSED; /* nobody asked to leave HTTP (RFC 9110 15.2.2) */
    else if (http->status < 200)
        begin_again(http);
    else
        head_ended(http);
}

static void take_status(struct pf_http *http, uint8_t byte) {
    static const char FORM[] = "HTTP/1.d ddd";
    char want = FORM[http->line_at];
    int digit = byte >= '0' && byte <= '9';
    if (want == 'd' ? !digit : byte != (uint8_t)want) {
        http->state = REFUSED;
        return;
    }
    if (http->line_at == 7) http->minor = (uint8_t)(byte - '0');
    if (http->line_at > 8) http->status = (int16_t)(http->status * 10 + (byte - '0'));
    if (FORM[++http->line_at]) return;
    http->state = http->status >= 100 ? REASON : REFUSED;
}

static void take_reason(struct pf_http *http, uint8_t byte) {
    if (byte == '\n')
        http->state = LINE_START;
    else if (http->line_at == 12 && byte != ' ' && byte != '\r')
        http->state = REFUSED; /* a fourth digit */
    http->line_at = 13;
}

static int is_token(uint8_t byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || (byte && strchr("!#$%&'*+-.^_`|~", byte));
}

static void take_name(struct pf_http *http, uint8_t byte) {
    if (byte == ':' && http->name_length > 0) {
        http->value_length = 0;
        http->value_cut = 0;
        http->state = VALUE_SPACE;
    } else if (!is_token(byte)) {
        http->state = REFUSED;
    } else {
        if (http->name_length < PF_HTTP_NAME) http->name[http->name_length] = (char)lower(byte);
        if (http->name_length <= PF_HTTP_NAME) http->name_length++;
    }
}

/* A CR inside a line counts as a space (RFC 9112 2.2), the one before LF is then trimmed. */
static void take_value(struct pf_http *http, uint8_t byte) {
    if (byte == '\r') byte = ' ';
    int space = byte == ' ' || byte == '\t';
    if (byte == '\n') {
        http->state = FOLD_OR_NEXT;
    } else if (byte == 0) {
        http->state = REFUSED;
    } else if (http->value_length == PF_HTTP_VALUE) {
        if (!space) http->value_cut = 1;
    } else if (!space || http->value_length > 0) {
        http->value[http->value_length++] = (char)byte;
    }
}

static void take_line_start(struct pf_http *http, uint8_t byte) {
    if (byte == '\n') {
        lines_ended(http);
    } else if (byte == '\r') {
        http->state = HEAD_END_LF;
    } else {
        http->name_length = 0;
        http->state = NAME;
        take_name(http, byte);
    }
}

static void take_fold_or_next(struct pf_http *http, uint8_t byte) {
    if (byte == ' ' || byte == '\t') { /* obs-fold: one space in the value */
        http->state = VALUE;
        take_value(http, ' ');
        return;
    }
    http->state = LINE_START;
    take_header(http);
    if (http->state == LINE_START) take_line_start(http, byte);
}

static int hex_digit(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    byte = (uint8_t)lower(byte);
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

static void chunk_size_ended(struct pf_http *http) {
    http->trailers = http->remaining == 0;
    http->state = http->trailers ? LINE_START : CHUNK_DATA;
}

static void take_chunk_size(struct pf_http *http, uint8_t byte) {
    int digit = hex_digit(byte);
    if (digit >= 0 && http->line_at < 2 && http->remaining < SIZE_TOP) {
        http->remaining = http->remaining * 16 + digit;
        http->line_at = 1;
    } else if (digit >= 0 || http->line_at == 0) {
        http->state = REFUSED;
    } else if (byte == '\r') {
        http->state = CHUNK_SIZE_LF;
    } else if (byte == ';') {
        http->state = CHUNK_EXTENSION;
    } else if (byte == ' ' || byte == '\t') {
        http->line_at = 2;
    } else {
        http->state = REFUSED;
    }
}

static void take_framing(struct pf_http *http, uint8_t byte) {
    if (++http->head_bytes > PF_HTTP_HEAD_LIMIT) {
        http->state = REFUSED;
        return;
    }
    switch (http->state) {
    case CHUNK_SIZE:
        take_chunk_size(http, byte);
        return;
    case CHUNK_EXTENSION:
        if (byte == '\n') http->state = REFUSED;
        if (byte == '\r') http->state = CHUNK_SIZE_LF;
        return;
    case CHUNK_SIZE_LF:
        if (byte == '\n')
            chunk_size_ended(http);
        else
            http->state = REFUSED;
        return;
    case CHUNK_DATA_CR:
        http->state = byte == '\r' ? CHUNK_DATA_LF : REFUSED;
        return;
    default: /* CHUNK_DATA_LF */
        http->remaining = 0;
        http->line_at = 0;
        http->head_bytes = 0; /* a long stream may carry an extension on every chunk */
        http->state = byte == '\n' ? CHUNK_SIZE : REFUSED;
    }
}

static void take_head(struct pf_http *http, uint8_t byte) {
    if (++http->head_bytes > PF_HTTP_HEAD_LIMIT) {
        http->state = REFUSED;
        return;
    }
    switch (http->state) {
    case STATUS:
        take_status(http, byte);
        return;
    case REASON:
        take_reason(http, byte);
        return;
    case LINE_START:
        take_line_start(http, byte);
        return;
    case NAME:
        take_name(http, byte);
        return;
    case VALUE_SPACE:
        if (byte == ' ' || byte == '\t') return;
        http->state = VALUE;
        take_value(http, byte);
        return;
    case VALUE:
        take_value(http, byte);
        return;
    case FOLD_OR_NEXT:
        take_fold_or_next(http, byte);
        return;
    default: /* HEAD_END_LF */
        if (byte == '\n')
            lines_ended(http);
        else
            http->state = REFUSED;
    }
}

static int take_body(struct pf_http *http, const uint8_t *data, size_t length, size_t *used,
                     struct pf_span *body) {
    size_t take = length;
    if (http->state != BODY_CLOSE) {
        if ((uint64_t)http->remaining < take) take = (size_t)http->remaining;
        http->remaining -= (int64_t)take;
        if (http->remaining == 0) http->state = http->state == CHUNK_DATA ? CHUNK_DATA_CR : WHOLE;
    }
    body->data = data;
    body->length = take;
    *used += take;
    return PF_ITEM;
}

int pf_http_feed(struct pf_http *http, const uint8_t *data, size_t length, size_t *used,
                 struct pf_span *body) {
    *used = 0;
    for (;;) {
        if (http->state == WHOLE) return PF_END;
        if (http->state == REFUSED) return PF_BAD;
        if (*used == length) return PF_AGAIN;
        if (http->state == BODY_LENGTH || http->state == BODY_CLOSE || http->state == CHUNK_DATA)
            return take_body(http, data + *used, length - *used, used, body);
        uint8_t byte = data[(*used)++];
        if (http->state < BODY_LENGTH)
            take_head(http, byte);
        else
            take_framing(http, byte);
    }
}

int pf_http_finish(const struct pf_http *http) {
    return http->state == BODY_CLOSE || http->state == WHOLE ? PF_END : PF_BAD;
}
