#include "element.h"

#include <string.h>

void element_add(void *into, const void *other, size_t count) {
    float *a = into;
    const float *b = other;
    for (size_t i = 0; i < count; i++) a[i] += b[i];
}

void pattern_of_rank(struct pattern *pattern, int rank, int seed) {
    for (int i = 0; i < PATTERN_LENGTH; i++) {
        uint32_t mixed = ((uint32_t)i * 2654435761u) ^ ((uint32_t)rank * 40503u) ^ ((uint32_t)seed * 9973u);
        mixed ^= mixed >> 15;
        mixed *= 2246822519u;
        mixed ^= mixed >> 13;
        pattern->values[i] = (float)(mixed % 4);
    }
}

void pattern_reduced(struct pattern *pattern, int ranks, int seed) {
    struct pattern other;
    pattern_of_rank(pattern, 0, seed);
    for (int rank = 1; rank < ranks; rank++) {
        pattern_of_rank(&other, rank, seed);
        element_add(pattern->values, other.values, PATTERN_LENGTH);
    }
}

void pattern_fill(const struct pattern *pattern, void *buffer, size_t count, size_t offset) {
    float *at = buffer;
    size_t from = offset % PATTERN_LENGTH;
    for (size_t i = 0; i < count; i++, from = from + 1 < PATTERN_LENGTH ? from + 1 : 0)
        at[i] = pattern->values[from];
}

int64_t pattern_wrong(const struct pattern *pattern, const void *buffer, size_t count, size_t offset) {
    const float *at = buffer;
    size_t from = offset % PATTERN_LENGTH;
    int64_t wrong = 0;
    for (size_t i = 0; i < count; i++, from = from + 1 < PATTERN_LENGTH ? from + 1 : 0)
        wrong += memcmp(&at[i], &pattern->values[from], WIDTH) != 0;
    return wrong;
}
