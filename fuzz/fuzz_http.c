/* Fuzz target of the HTTP/1.1 response parser (csrc/pf_http.c).
 *
 * Does: feeds one response whole, byte by byte and cut as its control bytes say; all three must end
 *       in the same verdict, count of consumed bytes, facts and body; checks the contract at every
 *       step; checks body and verdict against a naive reading of the framing.
 * Never: judges whether a head or a trailer should have been accepted (tests/test_http_h11.py
 *       does), or knows the parser's private states.
 * Plan: `run` drives as src/percentes_fast/_native.pyx does; REQUIRE aborts, which libFuzzer saves.
 *       Flag bits of the fourth control byte: 1 no replica header, 4 a head that is nearly full.
 */
#include "pieces.h"

#include "pf_http.h"

#define NO_REPLICA 1
#define NEARLY_FULL 4
#define ROOM_LEFT 200 /* bytes to the limit of a head that is nearly full */

struct answer {
    struct pf_http http;
    int result;
    int finish;
    size_t consumed;
    size_t head_end; /* consumed when the head was done; exact only byte by byte */
    size_t body_length;
    uint8_t body[MOST];
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

static void begin(struct answer *answer, const uint8_t *control, enum way way) {
    memset(answer, filling(way), sizeof *answer);
    answer->result = PF_AGAIN;
    answer->consumed = answer->head_end = answer->body_length = 0;
    pf_http_begin(&answer->http, control[3] & NO_REPLICA ? NULL : "x-replica");
    if (control[3] & NEARLY_FULL) answer->http.head_bytes = PF_HTTP_HEAD_LIMIT - ROOM_LEFT;
}

static void check_state(const struct pf_http *http) {
    REQUIRE(http->name_length <= PF_HTTP_NAME + 1); /* one more: too long to keep */
    REQUIRE(http->value_length <= PF_HTTP_VALUE);
    REQUIRE(http->replica_length <= PF_NAME_BYTES);
    REQUIRE(http->replica_length == 0 || http->replica_header);
    REQUIRE(http->remaining >= 0);
    REQUIRE(http->head_bytes <= PF_HTTP_HEAD_LIMIT + 1);
    REQUIRE(http->minor <= 9);
    if (http->head_done) REQUIRE(http->status >= 200 && http->status <= 999);
}

static void check_step(const struct answer *answer, const uint8_t *data, size_t length, size_t used,
                       const struct pf_span *body) {
    REQUIRE(used <= length);
    if (answer->result == PF_AGAIN) REQUIRE(used == length);
    if (answer->result == PF_END) REQUIRE(answer->http.head_done);
    if (answer->result == PF_ITEM) {
        REQUIRE(answer->http.head_done);
        REQUIRE(body->length > 0 && body->length <= used);
        REQUIRE(body->data + body->length == data + used);
    }
    check_state(&answer->http);
}

static void keep_body(struct answer *answer, const struct pf_span *body) {
    REQUIRE(body->length <= MOST - answer->body_length);
    memcpy(answer->body + answer->body_length, body->data, body->length);
    answer->body_length += body->length;
}

static void feed_piece(struct answer *answer, const uint8_t *piece, size_t length) {
    do {
        size_t used = SIZE_MAX;
        struct pf_span body = {NULL, SIZE_MAX};
        answer->result = pf_http_feed(&answer->http, piece, length, &used, &body);
        check_step(answer, piece, length, used, &body);
        if (answer->result == PF_ITEM) keep_body(answer, &body);
        piece += used;
        length -= used;
        answer->consumed += used;
    } while (answer->result == PF_ITEM);
    if (answer->http.head_done && answer->head_end == 0) answer->head_end = answer->consumed;
}

/* What is over stays over: no byte is taken after the end or after a refusal. */
static void check_over(struct answer *answer) {
    static const uint8_t MORE[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    if (answer->result == PF_AGAIN) return;
    for (size_t length = 0; length < sizeof MORE; length += sizeof MORE - 1) {
        size_t used = SIZE_MAX;
        struct pf_span body;
        REQUIRE(pf_http_feed(&answer->http, MORE, length, &used, &body) == answer->result);
        REQUIRE(used == 0);
    }
    REQUIRE(answer->finish == answer->result);
}

static void run(struct answer *answer, const uint8_t *data, size_t length, const uint8_t *control,
                enum way way) {
    struct pieces pieces;
    const uint8_t *piece;
    size_t size;
    begin(answer, control, way);
    pieces_begin(&pieces, data, length, control, way);
    while (answer->result == PF_AGAIN && pieces_next(&pieces, &piece, &size))
        feed_piece(answer, piece, size);
    pieces_end(&pieces);
    answer->finish = pf_http_finish(&answer->http);
    REQUIRE(answer->finish == PF_END || answer->finish == PF_BAD);
    check_over(answer);
}

static void check_same_http(const struct pf_http *a, const struct pf_http *b) {
    REQUIRE(a->state == b->state && a->head_done == b->head_done && a->trailers == b->trailers);
    REQUIRE(a->status == b->status && a->minor == b->minor);
    REQUIRE(a->chunked == b->chunked && a->has_length == b->has_length);
    REQUIRE(a->close == b->close && a->keep_alive == b->keep_alive);
    REQUIRE(a->head_bytes == b->head_bytes && a->remaining == b->remaining);
    REQUIRE(a->replica_length == b->replica_length);
    REQUIRE(same_bytes(a->replica, b->replica, a->replica_length));
}

static void check_same(const struct answer *a, const struct answer *b) {
    REQUIRE(a->result == b->result && a->finish == b->finish);
    REQUIRE(a->consumed == b->consumed);
    REQUIRE(a->body_length == b->body_length);
    REQUIRE(same_bytes(a->body, b->body, a->body_length));
    check_same_http(&a->http, &b->http);
}

/* ---- a naive reading of the body */

struct naive {
    const uint8_t *at, *end;
    size_t body_length;
    int whole;
    int broken;
    int trailers; /* reached: their lines are not judged here */
    uint8_t body[MOST];
};

static void naive_take(struct naive *naive, uint64_t length) {
    size_t left = (size_t)(naive->end - naive->at);
    size_t take = length < left ? (size_t)length : left;
    memcpy(naive->body + naive->body_length, naive->at, take);
    naive->body_length += take;
    naive->at += take;
}

/* Takes the byte if it is the next one. */
static int naive_is(struct naive *naive, char byte) {
    if (naive->at == naive->end || *naive->at != (uint8_t)byte) return 0;
    naive->at++;
    return 1;
}

/* CR LF, or as much of it as there is. 1: it is whole. */
static int naive_crlf(struct naive *naive) {
    if (naive_is(naive, '\r') && naive_is(naive, '\n')) return 1;
    naive->broken |= naive->at < naive->end;
    return 0;
}

/* Sixteen digits are refused, zeros before them do not count. */
static uint64_t naive_digits(struct naive *naive) {
    char digits[17] = "";
    size_t count = 0;
    const uint8_t *from = naive->at;
    while (naive_is(naive, '0'))
        continue;
    while (naive->at < naive->end && *naive->at && strchr("0123456789abcdefABCDEF", *naive->at)) {
        naive->broken |= count == 15;
        if (naive->broken) return 0;
        digits[count++] = (char)*naive->at++;
    }
    naive->broken |= naive->at == from && naive->at < naive->end;
    return strtoull(digits, NULL, 16);
}

/* 1: a whole line with a size. */
static int naive_size(struct naive *naive, uint64_t *size) {
    *size = naive_digits(naive);
    if (naive->broken) return 0;
    while (naive_is(naive, ' ') || naive_is(naive, '\t'))
        continue;
    if (naive_is(naive, ';'))
        while (naive->at < naive->end && *naive->at != '\r' && *naive->at != '\n')
            naive->at++;
    return naive_crlf(naive);
}

/* Up to an empty line. */
static void naive_trailers(struct naive *naive) {
    naive->trailers = 1;
    while (!naive->whole && naive->at < naive->end) {
        const uint8_t *line = naive->at;
        const uint8_t *feed = memchr(line, '\n', (size_t)(naive->end - line));
        if (!feed) return;
        naive->at = feed + 1;
        naive->whole = feed == line || (feed == line + 1 && *line == '\r');
    }
}

static void naive_chunks(struct naive *naive) {
    uint64_t size;
    while (naive_size(naive, &size)) {
        if (size == 0) {
            naive_trailers(naive);
            return;
        }
        naive_take(naive, size);
        if (!naive_crlf(naive)) return;
    }
}

static void naive_body(struct naive *naive, const struct pf_http *http) {
    if (http->status == 204 || http->status == 304) {
        naive->whole = 1;
    } else if (http->chunked) {
        naive_chunks(naive);
    } else {
        naive_take(naive, (uint64_t)(naive->end - naive->at));
        naive->whole = http->has_length && http->remaining == 0;
    }
}

static void check_verdict(const struct answer *answer, const struct naive *naive) {
    if (answer->http.head_bytes > PF_HTTP_HEAD_LIMIT) { /* the naive reading has no limit */
        REQUIRE(answer->result == PF_BAD);
        return;
    }
    REQUIRE(naive->whole == (answer->result == PF_END));
    REQUIRE(!naive->whole || naive->at == naive->end);
    if (answer->result == PF_BAD)
        REQUIRE(naive->broken || naive->trailers);
    else
        REQUIRE(!naive->broken);
}

/* `answer` was fed byte by byte: its head ends at `head_end`, what it took at `consumed`. */
static void check_body(const struct answer *answer, const uint8_t *data) {
    static struct naive naive;
    if (!answer->http.head_done) {
        REQUIRE(answer->body_length == 0);
        return;
    }
    naive.at = data + answer->head_end;
    naive.end = data + answer->consumed;
    naive.body_length = 0;
    naive.whole = naive.broken = naive.trailers = 0;
    naive_body(&naive, &answer->http);
    check_verdict(answer, &naive);
    REQUIRE(naive.body_length == answer->body_length);
    REQUIRE(same_bytes(naive.body, answer->body, answer->body_length));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    static struct answer answers[WAYS];
    if (length < CONTROL || length > MOST) return 0;
    for (enum way way = WHOLE_INPUT; way < WAYS; way++)
        run(&answers[way], data + CONTROL, length - CONTROL, data, way);
    check_same(&answers[WHOLE_INPUT], &answers[BYTES]);
    check_same(&answers[WHOLE_INPUT], &answers[CUTS]);
    check_body(&answers[BYTES], data + CONTROL);
    return 0;
}
