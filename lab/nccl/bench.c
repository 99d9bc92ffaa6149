#include "bench.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "rails.h"
#include "table.h"

struct run {
    const struct world *world;
    const struct collective *collective;
    const struct options *options;
    unsigned char *send, *receive;
    int seed, corrupts;
    int out_of_bounds, halves;
    double busbw_sum;
};

/* With BUSBAR_LAB_CORRUPT=<rank> that rank spoils one element of each result before it is checked: the
 * proof that the check can fail. */
static int corrupting(const struct world *world) {
    const char *rank = getenv("BUSBAR_LAB_CORRUPT");
    return rank != NULL && atoi(rank) == world->rank;
}

static struct call call_for(const struct run *run, const struct sizes *sizes, int in_place) {
    return (struct call){
        .count = sizes->parameter,
        .send = in_place ? run->receive + run->world->rank * sizes->send_in_place * WIDTH : run->send,
        .receive = in_place ? run->receive + run->world->rank * sizes->receive_in_place * WIDTH : run->receive,
    };
}

/* Seconds a collective: as in nccl-tests each rank's own time for the whole batch, then the mean over the ranks. */
static double time_calls(const struct run *run, const struct call *call) {
    int batch = run->options->iterations;
    run->collective->run(run->world, call);
    MPI_Barrier(MPI_COMM_WORLD);
    double from = MPI_Wtime();
    for (int i = 0; i < batch; i++) run->collective->run(run->world, call);
    double own = (MPI_Wtime() - from) / batch, all;
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all / run->world->ranks;
}

/* Wrong elements over all ranks; fresh data each time. */
static long long check(struct run *run, const struct call *call, const struct sizes *sizes, int in_place) {
    const struct collective *c = run->collective;
    long long wrong = 0;
    for (int round = 0; round < run->options->check && wrong == 0; round++) {
        run->seed++;
        /* The inputs are laid out over the whole buffers, where `call` points at this rank's part. */
        struct call whole = *call;
        whole.send = run->send;
        whole.receive = run->receive;
        memset(run->receive, 0, sizes->receive * WIDTH);
        c->fill(run->world, &whole, sizes, run->seed, in_place);
        MPI_Barrier(MPI_COMM_WORLD);
        c->run(run->world, call);
        unsigned char *result = call->receive;
        if (run->corrupts && sizes->receive > 0) result[0] ^= 1;
        long long here = in_place && !c->checks_in_place
                             ? 0
                             : c->wrong(run->world, sizes, run->seed, result);
        run->out_of_bounds += here > 0;
        MPI_Allreduce(&here, &wrong, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    }
    return wrong;
}

static void half(struct run *run, const struct sizes *sizes, int in_place) {
    const struct collective *c = run->collective;
    int ranks = run->world->ranks;
    struct call call = call_for(run, sizes, in_place);
    double seconds = time_calls(run, &call);
    double bytes = (double)sizes->parameter * WIDTH * c->bytes_per_count(ranks);
    if (rails_busbw() > 0) seconds = bytes * c->bus_factor(ranks) / 1e9 / rails_busbw();
    double algbw = bytes / 1e9 / seconds, busbw = algbw * c->bus_factor(ranks);
    long long wrong = check(run, &call, sizes, in_place);
    int checked = run->options->check > 0 && (c->checks_in_place || !in_place);
    if (run->world->rank == 0) table_half(seconds, algbw, busbw, wrong, checked);
    run->busbw_sum += busbw;
    run->halves++;
}

static size_t next_size(const struct options *o, size_t size) {
    return o->step_factor > 1 ? size * o->step_factor : size + o->step_bytes;
}

static void warm_up(const struct run *run) {
    for (size_t size = run->options->min_bytes; size <= run->options->max_bytes && size > 0; size *= 2) {
        struct sizes sizes = run->collective->sizes(size / WIDTH, run->world->ranks);
        struct call call = call_for(run, &sizes, 0);
        for (int i = 0; i < run->options->warmup; i++) run->collective->run(run->world, &call);
    }
}

static void ladder(struct run *run) {
    const struct options *o = run->options;
    const struct collective *c = run->collective;
    warm_up(run);
    for (size_t size = o->min_bytes; size <= o->max_bytes; size = next_size(o, size)) {
        struct sizes sizes = c->sizes(size / WIDTH, run->world->ranks);
        size_t moved = sizes.send > sizes.receive ? sizes.send : sizes.receive;
        if (run->world->rank == 0)
            table_row_begins(moved * WIDTH, sizes.parameter, c->has_ops ? "sum" : "none", c->has_roots ? 0 : -1);
        half(run, &sizes, 0);
        half(run, &sizes, 1);
        if (run->world->rank == 0) table_row_ends();
        if (next_size(o, size) <= size) break; /* a size of 0 would never end */
    }
}

struct outcome bench(const struct world *world, const struct collective *c, const struct options *o,
                     void *send, void *receive) {
    struct run run = {.world = world, .collective = c, .options = o, .send = send, .receive = receive,
                      .corrupts = corrupting(world)};
    ladder(&run);
    struct outcome outcome = {0, run.halves > 0 ? run.busbw_sum / run.halves : 0};
    MPI_Allreduce(&run.out_of_bounds, &outcome.out_of_bounds, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return outcome;
}
