#include "trace.h"

#include <errno.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* The subsystems that a line may belong to; NCCL shows a line when one of its own is asked for. */
enum { INIT = 1, NET = 2, ENV = 4, BOOTSTRAP = 8, GRAPH = 16, SHM = 32, ALL = ~0 };
static const struct { const char *name; int bit; } subsystems[] = {
    {"INIT", INIT}, {"NET", NET}, {"ENV", ENV}, {"BOOTSTRAP", BOOTSTRAP}, {"GRAPH", GRAPH}, {"SHM", SHM},
    {"ALL", ALL},
};
static const char *levels[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
enum { LEVEL_VERSION = 1, LEVEL_INFO = 3 };

enum { START_MICROSECONDS = 500000 };

static int level, mask;

/* The default is that of NCCL from 2.23.4 on. */
static void read_environment(void) {
    const char *wanted = getenv("NCCL_DEBUG"), *subsystem = getenv("NCCL_DEBUG_SUBSYS");
    level = 0;
    for (int i = 0; wanted != NULL && i < 6; i++)
        if (strcasecmp(wanted, levels[i]) == 0) level = i;
    mask = INIT | ENV | BOOTSTRAP;
    if (subsystem == NULL || *subsystem == '\0') return;
    int invert = *subsystem == '^';
    mask = invert ? ALL : 0;
    char list[256];
    snprintf(list, sizeof list, "%s", subsystem + invert);
    for (char *rest = list, *word; (word = strsep(&rest, ",")) != NULL;)
        for (size_t i = 0; i < sizeof subsystems / sizeof *subsystems; i++)
            if (strcasecmp(word, subsystems[i].name) == 0)
                mask = invert ? mask & ~subsystems[i].bit : mask | subsystems[i].bit;
}

__attribute__((format(printf, 3, 4)))
static void info(const struct world *w, int of, const char *format, ...) {
    if (level < LEVEL_INFO || !(mask & of)) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct member *self = &w->members[w->rank];
    printf("%s:%d:%d [%d] NCCL INFO %s\n", self->host, self->pid, (int)gettid(), self->local_rank, text);
}

/* Over the network an edge is reported by both ends, within a node by the sender alone, as NCCL does. */
static void edge(const struct world *w, int from, int to, int connection) {
    const struct member *a = &w->members[from], *b = &w->members[to];
    if (from == to) return;
    if (a->node == b->node && w->shares_memory) {
        if (w->rank == from)
            info(w, INIT | SHM, "Channel 00 : %d[%d] -> %d[%d] via SHM/direct/direct", from, a->local_rank,
                 to, b->local_rank);
        return;
    }
    info(w, INIT | NET, "Channel 00/%d : %d[%d] -> %d[%d] [%s] via NET/Socket/0", connection, from,
         a->local_rank, to, b->local_rank, w->rank == from ? "send" : "receive");
}

static void edges(const struct world *w, const struct collective *collective) {
    if (collective->edges == EDGES_RING) {
        edge(w, w->previous, w->rank, 0);
        edge(w, w->rank, w->next, 0);
        info(w, INIT, "Connected all rings");
        return;
    }
    for (int other = 0; other < w->ranks; other++) {
        edge(w, other, w->rank, 1);
        edge(w, w->rank, other, 1);
    }
}

static void topology_file(const struct world *w) {
    const char *path = getenv("NCCL_TOPO_FILE");
    if (path == NULL) return;
    info(w, ENV, "NCCL_TOPO_FILE set by environment to %s", path);
    FILE *file = fopen(path, "r");
    if (file == NULL) info(w, GRAPH | ENV, "Could not open XML topology file %s : %s", path, strerror(errno));
    else fclose(file);
}

static void ring_order(const struct world *w) {
    char order[800] = "";
    for (int p = 0; p < w->ranks && strlen(order) < sizeof order - 16; p++)
        snprintf(order + strlen(order), 16, " %3d", w->ring[p]);
    info(w, INIT, "Channel 00/01 : %s", order);
}

void trace_start(const struct world *w, const struct collective *collective) {
    read_environment();
    const struct member *self = &w->members[w->rank];
    const char *rule = getenv("NCCL_SOCKET_IFNAME");
    if (w->rank == 0 && level >= LEVEL_VERSION) printf("NCCL version 0.1.0+lab\n");
    if (rule != NULL) info(w, ENV, "NCCL_SOCKET_IFNAME set by environment to %s", rule);
    info(w, INIT | BOOTSTRAP, "Bootstrap : Using %s:%s<0>", w->interface.name, w->interface.address);
    info(w, INIT | NET, "NET/Socket : Using [0]%s:%s<0>", w->interface.name, w->interface.address);
    info(w, INIT | NET, "Using network Socket");
    topology_file(w);
    info(w, INIT, "comm %p rank %d nRanks %d nNodes %d localRanks %d localRank %d MNNVL 0", (const void *)w,
         w->rank, w->ranks, w->nodes, self->local_ranks, self->local_rank);
    if (w->rank == 0 && collective->edges == EDGES_RING) ring_order(w);
    info(w, INIT, "ncclCommInitRank comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %x commId %#llx - "
         "Init COMPLETE", (const void *)w, w->rank, w->ranks, self->local_rank, self->local_rank,
         self->local_rank << 12, (unsigned long long)w->members[0].pid);
    edges(w, collective);
    /* So that no rank's line lands inside the table that rank 0 prints. */
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    /* The lines of each node come through a daemon of Open MPI of its own, a busy one later than rank 0's table.
     * NCCL takes seconds between its last line and the first collective. All ranks sleep, which leaves the
     * cores to the daemons. */
    usleep(START_MICROSECONDS);
}

void trace_end(const struct world *w) {
    const struct member *self = &w->members[w->rank];
    info(w, INIT, "comm %p rank %d nranks %d cudaDev %d busId %x - Destroy COMPLETE", (const void *)w,
         w->rank, w->ranks, self->local_rank, self->local_rank << 12);
}
