/* Element types, reductions, and the test patterns that make a wrong element visible. */
#ifndef BUSBAR_ELEMENT_H
#define BUSBAR_ELEMENT_H

#include <stddef.h>
#include <stdint.h>

/* In the order in which nccl-tests walks them for "-d all" and "-o all". */
enum type {
    TYPE_INT8, TYPE_UINT8, TYPE_INT32, TYPE_UINT32, TYPE_INT64, TYPE_UINT64, TYPE_HALF, TYPE_FLOAT,
    TYPE_DOUBLE, TYPE_BFLOAT16, TYPE_COUNT
};
enum op { OP_SUM, OP_PROD, OP_MAX, OP_MIN, OP_AVG, OP_COUNT };

const char *type_name(int type);
const char *op_name(int op);
size_t type_size(int type);

/* into[i] = into[i] (op) other[i]; OP_AVG adds, the division is a step of its own. */
void element_reduce(int type, int op, void *into, const void *other, size_t count);
void element_divide(int type, void *into, int by, size_t count);

/* A test pattern repeats after a prime number of elements, so that a block in the wrong place, or
 * shifted by any power of two, does not look right. Values are small whole numbers: every order of
 * reduction gives the same bits in every type. */
enum { PATTERN_LENGTH = 1021 };
struct pattern {
    size_t width;
    unsigned char bytes[PATTERN_LENGTH * 8];
};

/* What one rank puts in, and what the reduction over `ranks` of them must give. */
void pattern_of_rank(struct pattern *pattern, int type, int op, int rank, int seed);
void pattern_reduced(struct pattern *pattern, int type, int op, int ranks, int seed);

/* `offset`: index of buffer[0] within the pattern, in elements. */
void pattern_fill(const struct pattern *pattern, void *buffer, size_t count, size_t offset);
int64_t pattern_wrong(const struct pattern *pattern, const void *buffer, size_t count, size_t offset);

#endif
