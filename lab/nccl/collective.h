/* The collectives, on MPI point-to-point messages: the edges in the log are true, because the
 * rings are implemented here and not by MPI. */
#ifndef BUSBAR_COLLECTIVE_H
#define BUSBAR_COLLECTIVE_H

#include <stddef.h>

#include "element.h"
#include "world.h"

struct sizes {
    size_t send, receive, parameter;          /* elements; `parameter` is the count column */
    size_t send_in_place, receive_in_place;   /* where a rank's part begins, elements x rank */
};

struct call {
    size_t count; /* sizes.parameter */
    void *send, *receive;
};

enum edges { EDGES_RING, EDGES_ALL_PAIRS };

struct collective {
    const char *program;  /* argv[0] */
    int has_ops, has_roots; /* of the columns: the op is sum, the root rank 0 */
    int checks_in_place;  /* 0: nccl-tests prints N/A for that half */
    enum edges edges;
    struct sizes (*sizes)(size_t count, int ranks);
    double (*bytes_per_count)(int ranks); /* algbw counts this many elements for each of `parameter` */
    double (*bus_factor)(int ranks);      /* busbw / algbw */
    void (*run)(const struct world *world, const struct call *call);
    void (*fill)(const struct world *world, const struct call *call, const struct sizes *sizes, int seed,
                 int in_place);
    long long (*wrong)(const struct world *world, const struct sizes *sizes, int seed, const void *result);
};

/* The collective of this name (a path in front does not matter); NULL where there is none. */
const struct collective *collective_named(const char *program);
extern const struct collective collectives[];
extern const int collective_count;

#endif
