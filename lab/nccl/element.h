/* Floats, their sum, and the test patterns that make a wrong element visible. */
#ifndef BUSBAR_ELEMENT_H
#define BUSBAR_ELEMENT_H

#include <stddef.h>
#include <stdint.h>

enum { WIDTH = sizeof(float) };

/* into[i] += other[i] */
void element_add(void *into, const void *other, size_t count);

/* A test pattern repeats after a prime number of elements, so that a block in the wrong place, or
 * shifted by any power of two, does not look right. Values are small whole numbers: every order of
 * reduction gives the same bits. */
enum { PATTERN_LENGTH = 1021 };
struct pattern {
    float values[PATTERN_LENGTH];
};

/* What one rank puts in, and what the sum over `ranks` of them must give. */
void pattern_of_rank(struct pattern *pattern, int rank, int seed);
void pattern_reduced(struct pattern *pattern, int ranks, int seed);

/* `offset`: index of buffer[0] within the pattern, in elements. */
void pattern_fill(const struct pattern *pattern, void *buffer, size_t count, size_t offset);
int64_t pattern_wrong(const struct pattern *pattern, const void *buffer, size_t count, size_t offset);

#endif
