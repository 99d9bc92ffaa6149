/* Lines in the shape of NCCL's own log (NCCL_DEBUG), each of them true of this program. */
#ifndef BUSBAR_TRACE_H
#define BUSBAR_TRACE_H

#include "collective.h"
#include "world.h"

/* Reads NCCL_DEBUG and NCCL_DEBUG_SUBSYS, and says what is known before the first collective. */
void trace_start(const struct world *world, const struct collective *collective);
void trace_end(const struct world *world);

#endif
