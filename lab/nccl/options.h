/* The command line of nccl-tests, and the defaults of its v2.17. */
#ifndef BUSBAR_OPTIONS_H
#define BUSBAR_OPTIONS_H

#include <stddef.h>

enum { OPTION_ALL = -1 };

struct options {
    int threads, gpus;
    size_t min_bytes, max_bytes, step_bytes, step_factor;
    int iterations, aggregate, warmup, cycles; /* cycles 0: endless */
    int check;                                 /* how often each half is verified; 0 prints N/A */
    int type, op, root;                        /* OPTION_ALL: every one of them */
    int blocking, parallel_init, graph_launches;
    int timeout_seconds;                       /* per batch of collectives; 0: none */
    int report_cputime, report_timestamps;
    int average;                               /* 0 rank 0, 1 mean, 2 smallest, 3 largest */
    const char *not_written;                   /* an output file that was asked for with -J */
    int memory_report;
};

/* What the caller does next: go on, or end the process with `status`. */
struct parsed {
    int ends, status;
};

struct parsed options_parse(struct options *options, int argc, char **argv);

#endif
