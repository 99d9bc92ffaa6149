/* Ring algorithms, as NCCL's RING: n-1 steps round the ring for a reduction, n-1 for a gather. */
#ifndef BUSBAR_RING_H
#define BUSBAR_RING_H

#include "collective.h"

void ring_all_reduce(const struct world *world, const struct call *call);
void ring_all_gather(const struct world *world, const struct call *call);
void ring_reduce_scatter(const struct world *world, const struct call *call);
void ring_broadcast(const struct world *world, const struct call *call);

/* Point to point: every rank to its successor; every rank to every rank. */
void pairs_sendrecv(const struct world *world, const struct call *call);
void pairs_alltoall(const struct world *world, const struct call *call);

#endif
