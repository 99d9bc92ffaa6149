/* The measurement: warm up, time, check, row by row. */
#ifndef BUSBAR_BENCH_H
#define BUSBAR_BENCH_H

#include "collective.h"
#include "options.h"

struct outcome {
    int out_of_bounds;  /* halves of rows with a wrong element, counted once per rank */
    double average;     /* of busbw over all rows and halves, GB/s */
};

/* Prints the rows. `send` and `receive` hold options->max_bytes each. */
struct outcome bench(const struct world *world, const struct collective *collective,
                     const struct options *options, void *send, void *receive);

#endif
