/* Guard-page test of the sans-IO parsers: a read past the input's end stops the program.
 *
 * Does: feeds each file named on the command line to each of the three parsers, whole, byte by byte
 *       and split at every point; every piece lies right before a page without access. All ways
 *       must give the same digest of everything a caller can see.
 * Never: judges a result: the Python tests do; here only sameness and the reach of reads count.
 * Plan: a digest over codes, facts and spans; the parser's memory is filled with another byte for
 *       each way, so a field that is read before it is set shows as a difference.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pf_http.h"
#include "pf_json.h"
#include "pf_sse.h"

#define ROOM (64 * 1024) /* the longest input */

static uint8_t *guard; /* the first byte that must not be read */

struct input {
    const uint8_t *data;
    size_t length;
    size_t at[ROOM + 1]; /* ends of the pieces */
    size_t pieces;
    uint8_t fill;
};

static void make_guard(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *map = mmap(NULL, ROOM + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) exit(2);
    guard = (uint8_t *)map + ROOM;
    if (mprotect(guard, page, PROT_NONE) != 0) exit(2);
}

static const uint8_t *piece(const struct input *input, size_t i, size_t *length) {
    size_t from = i ? input->at[i - 1] : 0;
    *length = input->at[i] - from;
    memset(guard - input->length, 0xDB, input->length); /* earlier pieces are gone */
    if (*length) memcpy(guard - *length, input->data + from, *length);
    return guard - *length;
}

/* FNV-1a, 64 bits. */
static void mix(uint64_t *digest, const void *bytes, size_t length) {
    const uint8_t *byte = bytes;
    for (size_t i = 0; i < length; i++)
        *digest = (*digest ^ byte[i]) * UINT64_C(0x100000001b3);
}

static void mix_number(uint64_t *digest, int64_t number) {
    mix(digest, &number, sizeof number);
}

static void mix_facts(uint64_t *digest, const struct pf_json_facts *facts) {
    const uint8_t flags[] = {facts->visible, facts->reasoning, facts->tool, facts->token_ids,
                             facts->choices, facts->usage,     facts->error};
    mix(digest, flags, sizeof flags);
    mix_number(digest, facts->prompt_tokens);
    mix_number(digest, facts->completion_tokens);
    mix_number(digest, facts->finish_length);
    mix(digest, facts->finish, facts->finish_length);
    mix_number(digest, facts->message_length);
    mix(digest, facts->message, facts->message_length);
}

static uint64_t by_json(const struct input *input) {
    struct pf_json json;
    uint64_t digest = 1;
    size_t length;
    int result = PF_AGAIN;
    memset(&json, input->fill, sizeof json);
    pf_json_begin(&json);
    for (size_t i = 0; i < input->pieces; i++) {
        const uint8_t *data = piece(input, i, &length);
        result = pf_json_feed(&json, data, length);
    }
    mix_number(&digest, result);
    mix_number(&digest, pf_json_finish(&json));
    mix_facts(&digest, &json.facts);
    return digest;
}

static void mix_event(uint64_t *digest, int result, const struct pf_sse *sse) {
    mix_number(digest, result);
    if (result != PF_ITEM) return;
    mix_number(digest, sse->payload);
    mix_number(digest, sse->is_error);
    if (sse->payload == PF_SSE_JSON) mix_facts(digest, &sse->json.facts);
}

static uint64_t by_sse(const struct input *input) {
    struct pf_sse sse;
    uint64_t digest = 2;
    size_t length, used;
    memset(&sse, input->fill, sizeof sse);
    pf_sse_begin(&sse);
    for (size_t i = 0; i < input->pieces; i++) {
        const uint8_t *data = piece(input, i, &length);
        for (;;) {
            int result = pf_sse_feed(&sse, data, length, &used);
            if (used > length) abort();
            data += used;
            length -= used;
            if (result != PF_AGAIN) mix_event(&digest, result, &sse);
            if (result == PF_BAD) return digest;
            if (result == PF_AGAIN) break;
        }
        if (length) abort(); /* PF_AGAIN says all was taken */
    }
    mix_event(&digest, pf_sse_finish(&sse), &sse);
    return digest;
}

static void mix_answer(uint64_t *digest, int result, const struct pf_http *http) {
    mix_number(digest, result);
    mix_number(digest, http->status);
    mix_number(digest, http->head_done);
    mix_number(digest, http->close);
    mix(digest, http->replica, http->replica_length);
    mix_number(digest, pf_http_finish(http));
}

static uint64_t by_http(const struct input *input) {
    struct pf_http http;
    struct pf_span body;
    uint64_t digest = 3;
    size_t length, used, consumed = 0;
    int result = PF_AGAIN;
    memset(&http, input->fill, sizeof http);
    pf_http_begin(&http, "x-replica");
    for (size_t i = 0; i < input->pieces && result == PF_AGAIN; i++) {
        const uint8_t *data = piece(input, i, &length);
        do {
            result = pf_http_feed(&http, data, length, &used, &body);
            if (used > length) abort();
            if (result == PF_ITEM && body.data + body.length != data + used) abort();
            if (result == PF_ITEM) mix(&digest, body.data, body.length);
            data += used;
            length -= used;
            consumed += used;
        } while (result == PF_ITEM);
        if (result == PF_AGAIN && length) abort();
    }
    mix_number(&digest, (int64_t)consumed);
    mix_answer(&digest, result, &http);
    return digest;
}

static uint64_t by(int parser, const struct input *input) {
    return parser == 0 ? by_json(input) : parser == 1 ? by_sse(input) : by_http(input);
}

static void one_piece(struct input *input) {
    input->pieces = 1;
    input->at[0] = input->length;
    input->fill = 0x00;
}

static void bytes_apart(struct input *input) {
    input->pieces = input->length;
    for (size_t i = 0; i < input->length; i++)
        input->at[i] = i + 1;
    input->fill = 0xFF;
}

static void split_at(struct input *input, size_t at) {
    input->pieces = 2;
    input->at[0] = at;
    input->at[1] = input->length;
    input->fill = (uint8_t)at;
}

static int same_every_way(struct input *input, int parser, const char *name) {
    one_piece(input);
    uint64_t whole = by(parser, input);
    if (input->length) bytes_apart(input);
    int same = by(parser, input) == whole;
    for (size_t at = 0; same && at <= input->length; at++) {
        split_at(input, at);
        same = by(parser, input) == whole;
    }
    if (!same)
        fprintf(stderr, "%s: parser %d differs, %zu pieces, first of %zu bytes\n", name, parser,
                input->pieces, input->at[0]);
    return same;
}

static size_t load(const char *name, uint8_t *into) {
    FILE *file = fopen(name, "rb");
    if (!file) exit(2);
    size_t length = fread(into, 1, ROOM, file);
    fclose(file);
    return length;
}

int main(int argc, char **argv) {
    static uint8_t bytes[ROOM];
    static struct input input;
    int failed = 0, runs = 0;
    make_guard();
    for (int i = 1; i < argc; i++) {
        input.data = bytes;
        input.length = load(argv[i], bytes);
        for (int parser = 0; parser < 3; parser++) {
            failed += !same_every_way(&input, parser, argv[i]);
            runs += (int)input.length + 3;
        }
    }
    printf("%d inputs, %d runs, %d differ\n", argc - 1, runs, failed);
    return failed ? 1 : 0;
}
