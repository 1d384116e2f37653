/* Return codes shared by the sans-IO parsers: >= 0 done, PF_AGAIN need more, negative an error. */
#ifndef PF_RESULT_H
#define PF_RESULT_H

#include <stddef.h>
#include <stdint.h>

enum pf_result { PF_BAD = -1, PF_AGAIN = 0, PF_ITEM = 1, PF_END = 2 };

struct pf_span {
    const uint8_t *data;
    size_t length;
};

#endif
