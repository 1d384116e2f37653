/* Streaming JSON scanner. See pf_json.h.
 *
 * Plan: a state per kind of byte expected; a path of nodes, one a bracket; a table of edges
 * (node, key) -> node. Only strings and numbers on a leaf node leave a trace in the facts.
 */
#include "pf_json.h"

#include <string.h>

enum state {
    BAD,
    VALUE,        /* a value must follow */
    VALUE_OR_END, /* after '[' */
    KEY_OR_END,   /* after '{' */
    KEY,          /* after ',' in an object */
    COLON,
    NEXT, /* after a value: ',' or a closing bracket */
    STRING,
    ESCAPE,
    HEX,
    NUMBER,
    LITERAL,
    DONE
};

enum node {
    OTHER,
    ROOT,
    CHOICES,
    CHOICE,
    DELTA,
    TOOL_CALLS,
    TOOL_CALL,
    FUNCTION,
    TOKEN_IDS,
    USAGE,
    ERROR,
    VISIBLE,
    REASONING,
    ARGUMENTS,
    FINISH,
    PROMPT_TOKENS,
    COMPLETION_TOKENS,
    MESSAGE,
    OBJECT_NAME
};

struct edge {
    uint8_t from, to, length;
    char key[PF_JSON_KEY];
};

#define EDGE(from, key, to) {from, to, sizeof(key) - 1, key}

static const struct edge EDGES[] = {
    EDGE(ROOT, "choices", CHOICES),
    EDGE(ROOT, "usage", USAGE),
    EDGE(ROOT, "error", ERROR),
    EDGE(ROOT, "object", OBJECT_NAME),
    EDGE(ROOT, "message", MESSAGE),
    EDGE(ROOT, "detail", MESSAGE),
    EDGE(CHOICE, "delta", DELTA),
    EDGE(CHOICE, "text", VISIBLE),
    EDGE(CHOICE, "finish_reason", FINISH),
    EDGE(CHOICE, "token_ids", TOKEN_IDS),
    EDGE(DELTA, "content", VISIBLE),
    EDGE(DELTA, "reasoning", REASONING),
    EDGE(DELTA, "reasoning_content", REASONING),
    EDGE(DELTA, "tool_calls", TOOL_CALLS),
    EDGE(DELTA, "function_call", FUNCTION),
    EDGE(DELTA, "token_ids", TOKEN_IDS),
    EDGE(TOOL_CALL, "function", FUNCTION),
    EDGE(FUNCTION, "arguments", ARGUMENTS),
    EDGE(USAGE, "prompt_tokens", PROMPT_TOKENS),
    EDGE(USAGE, "completion_tokens", COMPLETION_TOKENS),
    EDGE(ERROR, "message", MESSAGE),
};
#define EDGE_COUNT (sizeof EDGES / sizeof EDGES[0])

static const char *const LITERALS[] = {"true", "false", "null"};

void pf_json_begin(struct pf_json *json) {
    memset(json, 0, offsetof(struct pf_json, is_array));
    json->state = VALUE;
    json->node = ROOT;
    memset(&json->facts, 0, offsetof(struct pf_json_facts, finish));
    json->facts.prompt_tokens = PF_NULL32;
    json->facts.completion_tokens = PF_NULL32;
}

static uint8_t node_of_key(const struct pf_json *json) {
    uint8_t from = json->depth <= PF_JSON_PATH ? json->path[json->depth - 1] : OTHER;
    if (from == OTHER || json->key_length > PF_JSON_KEY) return OTHER;
    for (size_t i = 0; i < EDGE_COUNT; i++)
        if (EDGES[i].from == from && EDGES[i].length == json->key_length &&
            memcmp(EDGES[i].key, json->key, json->key_length) == 0)
            return EDGES[i].to;
    return OTHER;
}

static uint8_t node_of_element(uint8_t array) {
    if (array == CHOICES) return CHOICE;
    if (array == TOOL_CALLS) return TOOL_CALL;
    return OTHER;
}

static int in_array(const struct pf_json *json) {
    unsigned at = (unsigned)json->depth - 1;
    return json->depth > 0 && (json->is_array[at / 8] >> (at % 8)) & 1;
}

static uint8_t container(const struct pf_json *json) {
    return json->depth >= 1 && json->depth <= PF_JSON_PATH ? json->path[json->depth - 1] : OTHER;
}

static void open_bracket(struct pf_json *json, int array) {
    if (json->depth >= PF_JSON_DEPTH || (json->depth == 0 && array)) {
        json->state = BAD;
        return;
    }
    if (json->node == CHOICE && !array) json->facts.choices = 1;
    if (json->node == USAGE && !array) json->facts.usage = 1;
    if (json->node == ERROR) json->facts.error = 1;
    if (json->depth < PF_JSON_PATH) json->path[json->depth] = json->node;
    unsigned at = json->depth++;
    uint8_t bit = (uint8_t)(1u << (at % 8));
    json->is_array[at / 8] =
        (uint8_t)(array ? json->is_array[at / 8] | bit : json->is_array[at / 8] & (uint8_t)~bit);
    json->state = array ? VALUE_OR_END : KEY_OR_END;
    json->node = array ? node_of_element(json->node) : OTHER;
}

static void close_bracket(struct pf_json *json, int array) {
    if (json->depth == 0 || in_array(json) != array) {
        json->state = BAD;
        return;
    }
    json->depth--;
    json->state = json->depth == 0 ? DONE : NEXT;
}

static void begin_string(struct pf_json *json, int is_key) {
    json->is_key = (uint8_t)is_key;
    json->started = 0;
    json->key_length = 0;
    json->state = STRING;
    if (!is_key && json->node == ERROR) json->facts.error = 1;
    if (!is_key && (json->node == MESSAGE || json->node == ERROR)) json->facts.message_length = 0;
    if (!is_key && json->node == FINISH) json->facts.finish_length = 0;
}

/* A key that is longer than any we know is as good as the first byte too many. */
static void keep_key(struct pf_json *json, const uint8_t *bytes, size_t count) {
    size_t room = PF_JSON_KEY + 1 - (size_t)json->key_length;
    if (count > room) count = room;
    size_t kept = json->key_length + count > PF_JSON_KEY ? count - 1 : count;
    if (count > 0) memcpy(json->key + json->key_length, bytes, kept);
    json->key_length = (uint8_t)(json->key_length + count);
}

static void keep_bytes(struct pf_json *json, const uint8_t *bytes, size_t count) {
    struct pf_json_facts *facts = &json->facts;
    if (json->is_key || json->node == OBJECT_NAME) {
        keep_key(json, bytes, count);
        return;
    }
    if (json->node != FINISH && json->node != MESSAGE && json->node != ERROR) return;
    for (size_t i = 0; i < count; i++) {
        if (json->node != FINISH && facts->message_length < PF_MESSAGE_BYTES)
            facts->message[facts->message_length++] = (char)(bytes[i] < 0x20 ? ' ' : bytes[i]);
        if (json->node == FINISH && facts->finish_length < PF_JSON_FINISH)
            facts->finish[facts->finish_length++] = (char)bytes[i];
    }
}

static void keep_byte(struct pf_json *json, uint8_t byte) {
    keep_bytes(json, &byte, 1);
}

static void keep_code_point(struct pf_json *json, uint32_t point) {
    if (point < 0x80) {
        keep_byte(json, (uint8_t)point);
        return;
    }
    if (point < 0x800) {
        keep_byte(json, (uint8_t)(0xC0 | (point >> 6)));
    } else if (point < 0x10000) {
        keep_byte(json, (uint8_t)(0xE0 | (point >> 12)));
        keep_byte(json, (uint8_t)(0x80 | ((point >> 6) & 0x3F)));
    } else {
        keep_byte(json, (uint8_t)(0xF0 | (point >> 18)));
        keep_byte(json, (uint8_t)(0x80 | ((point >> 12) & 0x3F)));
        keep_byte(json, (uint8_t)(0x80 | ((point >> 6) & 0x3F)));
    }
    keep_byte(json, (uint8_t)(0x80 | (point & 0x3F)));
}

/* Half of a surrogate pair that stays alone becomes U+FFFD. */
static void end_half(struct pf_json *json) {
    if (json->high) keep_code_point(json, 0xFFFD);
    json->high = 0;
}

static void take_code_unit(struct pf_json *json, uint16_t unit) {
    uint32_t kind = unit & 0xFC00u;
    if (json->high && kind == 0xDC00) {
        uint32_t high = json->high & 0x3FFu;
        json->high = 0;
        keep_code_point(json, 0x10000 + (high << 10) + (unit & 0x3FFu));
        return;
    }
    end_half(json);
    if (kind == 0xD800)
        json->high = unit;
    else
        keep_code_point(json, kind == 0xDC00 ? 0xFFFD : unit);
}

static void end_string(struct pf_json *json) {
    end_half(json);
    if (json->is_key) {
        json->node = node_of_key(json);
        json->state = COLON;
        return;
    }
    /* {"object": "error", "message": ...} is how older servers put an error into a stream */
    if (json->node == OBJECT_NAME && json->key_length == 5 && memcmp(json->key, "error", 5) == 0)
        json->facts.error = 1;
    json->state = NEXT;
}

static void note_text(struct pf_json *json) {
    json->started = 1;
    if (json->node == VISIBLE) json->facts.visible = 1;
    if (json->node == REASONING) json->facts.reasoning = 1;
    if (json->node == ARGUMENTS) json->facts.tool = 1;
}

/* Bytes of a string up to its end, an escape or the end of the input; returns how many. */
static size_t scan_string(struct pf_json *json, const uint8_t *data, size_t length) {
    size_t i = 0;
    while (i < length && data[i] != '"' && data[i] != '\\')
        i++;
    if (i == 0) return 0;
    end_half(json);
    if (!json->started && !json->is_key) note_text(json);
    keep_bytes(json, data, i);
    return i;
}

static void take_escape(struct pf_json *json, uint8_t byte) {
    static const char NAMES[] = "\"\\/bfnrt";
    static const char BYTES[] = "\"\\/\b\f\n\r\t";
    if (byte == 'u') {
        json->hex_left = 4;
        json->code_unit = 0;
        json->state = HEX;
        return;
    }
    const char *found = byte ? strchr(NAMES, byte) : NULL;
    if (!found) {
        json->state = BAD;
        return;
    }
    end_half(json);
    keep_byte(json, (uint8_t)BYTES[found - NAMES]);
    json->state = STRING;
}

static int hex_value(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
    if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
    return -1;
}

static void take_hex(struct pf_json *json, uint8_t byte) {
    int value = hex_value(byte);
    if (value < 0) {
        json->state = BAD;
        return;
    }
    json->code_unit = (uint16_t)((json->code_unit << 4) | value);
    if (--json->hex_left == 0) {
        take_code_unit(json, json->code_unit);
        json->state = STRING;
    }
}

static void begin_scalar(struct pf_json *json, uint8_t byte) {
    if (json->depth == 0) {
        json->state = BAD;
        return;
    }
    if (byte == '-' || (byte >= '0' && byte <= '9')) {
        json->number = byte == '-' ? PF_NULL32 : byte - '0';
        json->state = NUMBER;
        return;
    }
    for (uint8_t i = 0; i < 3; i++) {
        if (byte == (uint8_t)LITERALS[i][0]) {
            json->literal = i;
            json->literal_at = 1;
            json->state = LITERAL;
            return;
        }
    }
    json->state = BAD;
}

static void begin_value(struct pf_json *json, uint8_t byte) {
    if (container(json) == TOKEN_IDS && in_array(json)) json->facts.token_ids = 1;
    if (byte == '{' || byte == '[') {
        open_bracket(json, byte == '[');
    } else if (byte == '"' && json->depth > 0) {
        begin_string(json, 0);
    } else {
        begin_scalar(json, byte);
    }
}

static void end_number(struct pf_json *json) {
    if (json->number >= 0 && json->node == PROMPT_TOKENS) json->facts.prompt_tokens = json->number;
    if (json->number >= 0 && json->node == COMPLETION_TOKENS)
        json->facts.completion_tokens = json->number;
    json->state = NEXT;
}

/* One byte of a number; 0 when the byte ends it and must be looked at again. */
static int take_number(struct pf_json *json, uint8_t byte) {
    if (byte >= '0' && byte <= '9') {
        if (json->number >= 0)
            json->number = json->number < 100000000 ? json->number * 10 + (byte - '0') : PF_NULL32;
        return 1;
    }
    if (byte == '.' || byte == 'e' || byte == 'E' || byte == '+' || byte == '-') {
        json->number = PF_NULL32; /* a token count is a plain integer */
        return 1;
    }
    end_number(json);
    return 0;
}

static void take_literal(struct pf_json *json, uint8_t byte) {
    const char *word = LITERALS[json->literal];
    if (byte != (uint8_t)word[json->literal_at]) {
        json->state = BAD;
        return;
    }
    if (word[++json->literal_at] == 0) json->state = NEXT;
}

static void take_next(struct pf_json *json, uint8_t byte) {
    if (byte == ',') {
        json->state = in_array(json) ? VALUE : KEY;
        if (in_array(json)) json->node = node_of_element(container(json));
    } else if (byte == '}' || byte == ']') {
        close_bracket(json, byte == ']');
    } else {
        json->state = BAD;
    }
}

static void take_structure(struct pf_json *json, uint8_t byte) {
    switch (json->state) {
    case VALUE_OR_END:
        if (byte == ']') {
            close_bracket(json, 1);
            return;
        } /* fall through */
    case VALUE:
        begin_value(json, byte);
        return;
    case KEY_OR_END:
        if (byte == '}') {
            close_bracket(json, 0);
            return;
        } /* fall through */
    case KEY:
        if (byte == '"')
            begin_string(json, 1);
        else
            json->state = BAD;
        return;
    case COLON:
        json->state = byte == ':' ? VALUE : BAD;
        return;
    case NEXT:
        take_next(json, byte);
        return;
    default: /* DONE: only white space may follow */
        json->state = BAD;
    }
}

static int is_space(uint8_t byte) {
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

int pf_json_feed(struct pf_json *json, const uint8_t *data, size_t length) {
    size_t i = 0;
    while (i < length && json->state != BAD) {
        uint8_t byte = data[i];
        if (json->state == STRING) {
            i += scan_string(json, data + i, length - i);
            if (i == length) break;
            if (data[i++] == '"')
                end_string(json);
            else
                json->state = ESCAPE;
            continue;
        }
        if (json->state == NUMBER && !take_number(json, byte)) continue;
        i++;
        if (json->state == NUMBER) continue;
        if (json->state == ESCAPE) {
            if (!json->started && !json->is_key) note_text(json);
            take_escape(json, byte);
        } else if (json->state == HEX) {
            take_hex(json, byte);
        } else if (json->state == LITERAL) {
            take_literal(json, byte);
        } else if (!is_space(byte)) {
            take_structure(json, byte);
        }
    }
    return json->state == BAD ? PF_BAD : PF_AGAIN;
}

int pf_json_finish(const struct pf_json *json) {
    return json->state == DONE ? PF_END : PF_BAD;
}
