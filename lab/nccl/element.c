#include "element.h"

#include <string.h>

typedef struct { uint16_t bits; } bfloat16;

static float widen(bfloat16 value) {
    uint32_t bits = (uint32_t)value.bits << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Round to nearest even; infinities and NaN do not occur in the patterns. */
static bfloat16 narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bfloat16){(uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

static const struct { const char *name; size_t size; } types[TYPE_COUNT] = {
    {"int8", 1}, {"uint8", 1}, {"int32", 4}, {"uint32", 4}, {"int64", 8}, {"uint64", 8},
    {"half", 2}, {"float", 4}, {"double", 8}, {"bfloat16", 2},
};
static const char *ops[OP_COUNT] = {"sum", "prod", "max", "min", "avg"};

const char *type_name(int type) { return types[type].name; }
const char *op_name(int op) { return ops[op]; }
size_t type_size(int type) { return types[type].size; }

/* For each type: its C type, and how to get to and from the type in which it is added. Integers wrap:
 * they are added without a sign, where C defines that. */
#define EACH_TYPE(X)                             \
    X(TYPE_INT8, int8_t, int, PLAIN, CAST)       \
    X(TYPE_UINT8, uint8_t, unsigned, PLAIN, CAST) \
    X(TYPE_INT32, int32_t, int64_t, PLAIN, CAST) \
    X(TYPE_UINT32, uint32_t, uint64_t, PLAIN, CAST) \
    X(TYPE_INT64, int64_t, int64_t, PLAIN, CAST) \
    X(TYPE_UINT64, uint64_t, uint64_t, PLAIN, CAST) \
    X(TYPE_HALF, _Float16, float, PLAIN, CAST)   \
    X(TYPE_FLOAT, float, float, PLAIN, CAST)     \
    X(TYPE_DOUBLE, double, double, PLAIN, CAST)  \
    X(TYPE_BFLOAT16, bfloat16, float, widen, NARROW)
#define PLAIN(x) (x)
#define CAST(T, x) ((T)(x))
#define NARROW(T, x) narrow(x)

#define LOOP(T, WIDE, OPEN, CLOSE, RESULT)                     \
    for (size_t i = 0; i < count; i++) {                       \
        WIDE left = OPEN(a[i]), right = OPEN(b[i]);            \
        a[i] = CLOSE(T, RESULT);                               \
    }

#define REDUCE_CASE(ID, T, WIDE, OPEN, CLOSE)                                              \
    case ID: {                                                                             \
        T *a = into;                                                                       \
        const T *b = other;                                                                \
        switch (op) {                                                                      \
            case OP_PROD: LOOP(T, WIDE, OPEN, CLOSE, left * right) break;                  \
            case OP_MAX: LOOP(T, WIDE, OPEN, CLOSE, left > right ? left : right) break;    \
            case OP_MIN: LOOP(T, WIDE, OPEN, CLOSE, left < right ? left : right) break;    \
            default: LOOP(T, WIDE, OPEN, CLOSE, left + right) break;                       \
        }                                                                                  \
        break;                                                                             \
    }

void element_reduce(int type, int op, void *into, const void *other, size_t count) {
    switch (type) { EACH_TYPE(REDUCE_CASE) }
}

#define DIVIDE_CASE(ID, T, WIDE, OPEN, CLOSE)                                                 \
    case ID: {                                                                                \
        T *a = into;                                                                          \
        for (size_t i = 0; i < count; i++) a[i] = CLOSE(T, OPEN(a[i]) / (WIDE)by);            \
        break;                                                                                \
    }

void element_divide(int type, void *into, int by, size_t count) {
    switch (type) { EACH_TYPE(DIVIDE_CASE) }
}

#define STORE_CASE(ID, T, WIDE, OPEN, CLOSE) \
    case ID: ((T *)into)[index] = CLOSE(T, (WIDE)value); break;

static void store(int type, void *into, size_t index, int64_t value) {
    switch (type) { EACH_TYPE(STORE_CASE) }
}

/* A product of many ranks must stay small, so it is mostly of ones. */
static int64_t value_at(int op, int rank, int seed, int index) {
    uint32_t mixed = ((uint32_t)index * 2654435761u) ^ ((uint32_t)rank * 40503u) ^ ((uint32_t)seed * 9973u);
    mixed ^= mixed >> 15;
    mixed *= 2246822519u;
    mixed ^= mixed >> 13;
    return op == OP_PROD ? 1 + (mixed % 16 == 0) : (int64_t)(mixed % 4);
}

void pattern_of_rank(struct pattern *pattern, int type, int op, int rank, int seed) {
    pattern->width = type_size(type);
    for (int i = 0; i < PATTERN_LENGTH; i++) store(type, pattern->bytes, i, value_at(op, rank, seed, i));
}

void pattern_reduced(struct pattern *pattern, int type, int op, int ranks, int seed) {
    struct pattern other;
    pattern_of_rank(pattern, type, op, 0, seed);
    for (int rank = 1; rank < ranks; rank++) {
        pattern_of_rank(&other, type, op, rank, seed);
        element_reduce(type, op, pattern->bytes, other.bytes, PATTERN_LENGTH);
    }
    if (op == OP_AVG) element_divide(type, pattern->bytes, ranks, PATTERN_LENGTH);
}

void pattern_fill(const struct pattern *pattern, void *buffer, size_t count, size_t offset) {
    unsigned char *at = buffer;
    while (count > 0) {
        size_t from = offset % PATTERN_LENGTH;
        size_t run = PATTERN_LENGTH - from < count ? PATTERN_LENGTH - from : count;
        memcpy(at, pattern->bytes + from * pattern->width, run * pattern->width);
        at += run * pattern->width;
        offset += run;
        count -= run;
    }
}

int64_t pattern_wrong(const struct pattern *pattern, const void *buffer, size_t count, size_t offset) {
    const unsigned char *at = buffer;
    size_t width = pattern->width;
    int64_t wrong = 0;
    while (count > 0) {
        size_t from = offset % PATTERN_LENGTH;
        size_t run = PATTERN_LENGTH - from < count ? PATTERN_LENGTH - from : count;
        const unsigned char *want = pattern->bytes + from * width;
        if (memcmp(at, want, run * width) != 0)
            for (size_t i = 0; i < run; i++) wrong += memcmp(at + i * width, want + i * width, width) != 0;
        at += run * width;
        offset += run;
        count -= run;
    }
    return wrong;
}
