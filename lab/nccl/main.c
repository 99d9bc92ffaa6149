/* all_reduce_perf and the other programs on CPUs: the command line and the output of nccl-tests, and a real
 * measurement over MPI. The name under which it is called chooses the collective. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "rails.h"
#include "table.h"
#include "trace.h"

/* nccl-tests v2.17.7 and later [src/common.h]. */
enum { STATUS_INTERNAL = 1, STATUS_NCCL = 3, STATUS_NOT_IMPLEMENTED = 5, STATUS_INVALID = 6, STATUS_WRONG = 7 };

static int stop(int status) {
    MPI_Finalize();
    return status;
}

/* What this machine cannot do is refused here, by every rank alike, before anything is printed. */
static int refuse(const struct options *o, const struct world *w) {
    int devices = world_devices(), needed = w->members[w->rank].local_rank + 1, most = needed;
    if (o->gpus != 1) {
        if (w->rank == 0)
            fprintf(stderr, "busbar-lab: -g %d: the CPU simulator has one device per process; "
                    "start one process per device with -g 1\n", o->gpus);
        return STATUS_NOT_IMPLEMENTED;
    }
    int short_of = devices > 0 && needed > devices, anywhere = 0;
    if (short_of)
        fprintf(stderr, "Invalid number of GPUs: %d requested but only %d were found.\n"
                "Please check the number of processes and GPUs per process.\n", most, devices);
    MPI_Allreduce(&short_of, &anywhere, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return anywhere ? STATUS_NOT_IMPLEMENTED : 0;
}

static void fit_memory(struct options *o, const struct world *w) {
    size_t limit = world_buffer_limit(w, 2);
    if (o->max_bytes <= limit) return;
    o->max_bytes = limit;
    if (o->min_bytes > limit) o->min_bytes = limit;
    if (w->rank == 0) table_reduced_to(limit);
}

/* Pages that were never touched would be mapped during the first measurement. */
static void *buffer(size_t bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        fprintf(stderr, "out of memory for a buffer of %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, STATUS_INTERNAL);
    }
    memset(memory, 0, bytes);
    return memory;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct collective *collective = collective_named(argv[0]);
    if (collective == NULL) {
        fprintf(stderr, "%s: call this program under one of the names", argv[0]);
        for (int i = 0; i < collective_count; i++) fprintf(stderr, " %s", collectives[i].program);
        fprintf(stderr, "\n");
        return STATUS_INVALID;
    }
    struct options options;
    struct parsed parsed = options_parse(&options, argc, argv);
    if (parsed.ends) return parsed.status;

    struct interface interface;
    if (!world_prepare(&interface)) return STATUS_NCCL;
    struct world world;
    MPI_Init(&argc, &argv);
    world_join(&world, &interface);
    rails_find(&world);
    int status = refuse(&options, &world);
    if (status != 0) return stop(status);

    if (world.rank == 0) table_banner(&world, &options, collective->program);
    fit_memory(&options, &world);
    void *send = buffer(options.max_bytes), *receive = buffer(options.max_bytes);
    trace_start(&world, collective);
    if (world.rank == 0) table_header();
    struct outcome outcome = bench(&world, collective, &options, send, receive);
    trace_end(&world);

    if (world.rank == 0) table_footer(outcome.out_of_bounds, outcome.average, collective->program);
    status = outcome.out_of_bounds > 0 ? STATUS_WRONG : 0;
    if (status != 0)
        printf(" .. %s pid %d: Test failure main.c:%d\n", world.members[world.rank].host,
               world.members[world.rank].pid, __LINE__);
    free(send);
    free(receive);
    world_leave(&world);
    return stop(status);
}
