/* Streaming JSON scanner: bytes of one event -> the few facts a load client needs.
 *
 * Does: walks the bytes once, in any pieces, keeps which key path it stands on, and notes tokens,
 *       usage, finish reason and error text. Checks that brackets, strings and escapes balance and
 *       that the event is one object.
 * Never: allocates, keeps the event's bytes (but for finish reason and error text, both bounded),
 *        or looks at a key inside a string.
 */
#ifndef PF_JSON_H
#define PF_JSON_H

#include "pf_record.h"
#include "pf_result.h"

#define PF_JSON_DEPTH 256 /* deeper nesting is refused: no server's event nests beyond 10 */
#define PF_JSON_PATH 8 /* the deepest path that carries a fact: choices[].delta.tool_calls[]... */
#define PF_JSON_KEY 24 /* longest key that carries a fact has 17 bytes */
#define PF_JSON_FINISH 32

struct pf_json_facts {
    uint8_t visible;   /* a non-empty content or text */
    uint8_t reasoning; /* a non-empty reasoning or reasoning_content */
    uint8_t tool;      /* non-empty tool-call arguments */
    uint8_t token_ids; /* a non-empty token_ids array */
    uint8_t choices;   /* at least one choice object */
    uint8_t usage;     /* a usage object, not null */
    uint8_t error;     /* an error object or string, not null */
    uint8_t finish_length;
    uint16_t message_length;
    int32_t prompt_tokens;
    int32_t completion_tokens;
    char finish[PF_JSON_FINISH];
    char message[PF_MESSAGE_BYTES];
};

struct pf_json {
    uint8_t state;
    uint8_t node;     /* what the value under way is */
    uint8_t is_key;   /* the string under way is a key */
    uint8_t started;  /* the string under way has a character */
    uint8_t hex_left; /* of a \u escape */
    uint8_t key_length;
    uint8_t literal; /* which literal, and how far */
    uint8_t literal_at;
    uint16_t depth;
    uint16_t code_unit; /* of a \u escape */
    uint16_t high;      /* the first half of a surrogate pair, until its second comes */
    int32_t number;
    uint8_t path[PF_JSON_PATH];
    uint8_t is_array[PF_JSON_DEPTH / 8];
    char key[PF_JSON_KEY];
    struct pf_json_facts facts;
};

void pf_json_begin(struct pf_json *json);

/* Takes the next bytes. PF_AGAIN: go on; PF_BAD: not one balanced object (and stays so). */
int pf_json_feed(struct pf_json *json, const uint8_t *data, size_t length);

/* PF_END when exactly one balanced object has been seen, else PF_BAD. */
int pf_json_finish(const struct pf_json *json);

#endif
