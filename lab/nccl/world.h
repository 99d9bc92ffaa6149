/* Who takes part, on which hosts, in which ring, and over which interface. */
#ifndef BUSBAR_WORLD_H
#define BUSBAR_WORLD_H

#include <stddef.h>

struct member {
    char host[256]; /* up to the first dot, as nccl-tests prints it */
    int pid, node, local_rank, local_ranks;
};

struct interface {
    char name[32], address[64];
};

struct world {
    int rank, ranks, nodes;
    struct member *members; /* one per rank */
    int *ring;              /* ring[position] = rank: each node's ranks stand together, so that a ring
                               crosses the network once per node and direction */
    int position, next, previous;
    struct interface interface; /* that TCP between the nodes uses */
    int shares_memory;          /* 1: Open MPI moves data between ranks of a node through shared memory */
};

/* NCCL's rule of NCCL_SOCKET_IFNAME and NCCL_IB_HCA [NCCL user guide]: comma-separated prefixes; "=eth0" matches
 * exactly, a leading "^" turns the whole list into an exclusion. */
int name_matches(const char *rule, const char *name);

/* Before MPI_Init: pick the interface (NCCL_SOCKET_IFNAME counts, with NCCL's syntax) and have Open MPI
 * use it. Returns 0, with the reason on stderr, if none fits. */
int world_prepare(struct interface *interface);

/* After MPI_Init. */
void world_join(struct world *world, const struct interface *interface);
void world_leave(struct world *world);

/* Devices given to this container (/dev/nvidia0, ...); 0 if there is no such file. */
int world_devices(void);

/* How large one buffer of one rank may be, so that `buffers` of them per rank fit on every host. */
size_t world_buffer_limit(const struct world *world, int buffers);

#endif
