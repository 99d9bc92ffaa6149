/* Rails: an HCA of this host may have a limit, which slows what goes over it, or a bandwidth that is reported. */
#ifndef BUSBAR_RAILS_H
#define BUSBAR_RAILS_H

#include "world.h"

/* Looks up the HCAs of this container that NCCL_IB_HCA chooses, and their limits. All ranks call it. */
void rails_find(const struct world *world);

/* GB/s of bus bandwidth that this run reports in place of its own; 0: its own. */
double rails_busbw(void);

/* After `out` bytes to one rank and `in` bytes from another one, of which the transfer began at `began`
 * (MPI_Wtime): lets pass what is left of the time that the rails need for what crosses the network. */
void rails_pace(const struct world *world, double began, int to, size_t out, int from, size_t in);

#endif
