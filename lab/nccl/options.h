/* The options of nccl-tests that busbar gives, and the defaults of its v2.17. */
#ifndef BUSBAR_OPTIONS_H
#define BUSBAR_OPTIONS_H

#include <stddef.h>

struct options {
    int gpus;
    size_t min_bytes, max_bytes, step_bytes, step_factor; /* step_bytes: while the factor is 1 */
    int iterations, warmup;
    int check; /* how often each half is verified; 0 prints N/A */
};

/* What the caller does next: go on, or end the process with `status`. */
struct parsed {
    int ends, status;
};

struct parsed options_parse(struct options *options, int argc, char **argv);

#endif
