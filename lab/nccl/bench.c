#include "bench.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rails.h"
#include "table.h"

enum { STATUS_TIMEOUT = 4 };

struct run {
    const struct world *world;
    const struct collective *collective;
    const struct options *options;
    unsigned char *send, *receive;
    int seed, corrupts;
    int out_of_bounds, halves;
    double busbw_sum;
};

static char timeout_text[512];

static void on_timeout(int signal_number) {
    (void)signal_number;
    if (write(STDOUT_FILENO, timeout_text, strlen(timeout_text)) < 0) _exit(STATUS_TIMEOUT);
    _exit(STATUS_TIMEOUT);
}

static void deadline(const struct run *run, int armed) {
    if (run->options->timeout_seconds > 0) alarm(armed ? (unsigned)run->options->timeout_seconds : 0);
}

/* With BUSBAR_LAB_CORRUPT=<rank> that rank spoils one element of each result before it is checked: the
 * proof that the check can fail. */
static int corrupting(const struct world *world) {
    const char *rank = getenv("BUSBAR_LAB_CORRUPT");
    return rank != NULL && atoi(rank) == world->rank;
}

static struct call call_for(const struct run *run, int type, int op, int root, const struct sizes *sizes,
                            int in_place) {
    size_t width = type_size(type);
    return (struct call){
        .type = type, .op = op, .root = root, .count = sizes->parameter,
        .send = in_place ? run->receive + run->world->rank * sizes->send_in_place * width : run->send,
        .receive = in_place ? run->receive + run->world->rank * sizes->receive_in_place * width : run->receive,
    };
}

/* As in nccl-tests: each rank's own time for the whole batch, then joined over the ranks. */
static double joined(const struct run *run, double seconds) {
    static const MPI_Op how[] = {MPI_SUM, MPI_SUM, MPI_MIN, MPI_MAX};
    int average = run->options->average;
    double result = seconds;
    if (average == 0) {
        MPI_Bcast(&result, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        return result;
    }
    MPI_Allreduce(&seconds, &result, 1, MPI_DOUBLE, how[average & 3], MPI_COMM_WORLD);
    return average == 1 ? result / run->world->ranks : result;
}

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Seconds a collective, by the clock or (for -C 1) of this rank's processor. */
static double time_calls(const struct run *run, const struct call *call, double *shown) {
    const struct options *o = run->options;
    long batch = (long)o->iterations * (o->aggregate > 1 ? o->aggregate : 1) *
                 (o->graph_launches > 1 ? o->graph_launches : 1);
    deadline(run, 1);
    run->collective->run(run->world, call);
    MPI_Barrier(MPI_COMM_WORLD);
    double from = MPI_Wtime(), cpu_from = cpu_seconds();
    for (long i = 0; i < batch; i++) {
        run->collective->run(run->world, call);
        if (o->blocking) MPI_Barrier(MPI_COMM_WORLD);
    }
    double clock_time = (MPI_Wtime() - from) / (double)batch;
    double cpu_time = (cpu_seconds() - cpu_from) / (double)batch;
    deadline(run, 0);
    double seconds = joined(run, clock_time);
    *shown = o->report_cputime ? cpu_time : seconds;
    return seconds;
}

/* Wrong elements over all ranks; fresh data each time. */
static long long check(struct run *run, const struct call *call, const struct sizes *sizes, int in_place) {
    const struct collective *c = run->collective;
    size_t width = type_size(call->type);
    long long wrong = 0;
    for (int round = 0; round < run->options->check && wrong == 0; round++) {
        run->seed++;
        /* The inputs are laid out over the whole buffers, where `call` points at this rank's part. */
        struct call whole = *call;
        whole.send = run->send;
        whole.receive = run->receive;
        memset(run->receive, 0, sizes->receive * width);
        c->fill(run->world, &whole, sizes, run->seed, in_place);
        MPI_Barrier(MPI_COMM_WORLD);
        c->run(run->world, call);
        unsigned char *result = call->receive;
        if (run->corrupts && sizes->receive > 0) result[0] ^= 1;
        long long here = in_place && !c->checks_in_place
                             ? 0
                             : c->wrong(run->world, call, sizes, run->seed, result);
        run->out_of_bounds += here > 0;
        MPI_Allreduce(&here, &wrong, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    }
    return wrong;
}

static void half(struct run *run, int type, int op, int root, const struct sizes *sizes, int in_place) {
    const struct collective *c = run->collective;
    const struct options *o = run->options;
    int ranks = run->world->ranks;
    struct call call = call_for(run, type, op, root, sizes, in_place);
    double shown, seconds = time_calls(run, &call, &shown);
    double bytes = (double)sizes->parameter * (double)type_size(type) * c->bytes_per_count(ranks);
    if (rails_busbw() > 0) shown = seconds = bytes * c->bus_factor(ranks) / 1e9 / rails_busbw();
    double algbw = bytes / 1e9 / seconds, busbw = algbw * c->bus_factor(ranks);
    long long wrong = check(run, &call, sizes, in_place);
    int checked = o->check > 0 && (c->checks_in_place || !in_place);
    if (run->world->rank == 0) table_half(o, shown, algbw, busbw, wrong, checked, in_place);
    run->busbw_sum += busbw;
    run->halves++;
}

static size_t next_size(const struct options *o, size_t size) {
    return o->step_factor > 1 ? size * o->step_factor : size + o->step_bytes;
}

static void warm_up(const struct run *run, int type, int op, int root) {
    for (size_t size = run->options->min_bytes; size <= run->options->max_bytes && size > 0; size *= 2) {
        struct sizes sizes = run->collective->sizes(size / type_size(type), type_size(type), run->world->ranks);
        struct call call = call_for(run, type, op, root, &sizes, 0);
        deadline(run, 1);
        for (int i = 0; i < run->options->warmup; i++) run->collective->run(run->world, &call);
        deadline(run, 0);
    }
}

static void ladder(struct run *run, int type, int op, const char *op_text, int root, int shown_root) {
    const struct options *o = run->options;
    size_t width = type_size(type);
    warm_up(run, type, op, root);
    for (int cycle = 0; cycle < o->cycles || o->cycles == 0; cycle++) {
        for (size_t size = o->min_bytes; size <= o->max_bytes; size = next_size(o, size)) {
            struct sizes sizes = run->collective->sizes(size / width, width, run->world->ranks);
            size_t moved = sizes.send > sizes.receive ? sizes.send : sizes.receive;
            if (run->world->rank == 0)
                table_row_begins(moved * width, sizes.parameter, type_name(type), op_text, shown_root);
            half(run, type, op, root, &sizes, 0);
            half(run, type, op, root, &sizes, 1);
            if (run->world->rank == 0) table_row_ends();
            if (next_size(o, size) <= size) break; /* a size or a step of 0 would never end */
        }
    }
}

struct outcome bench(const struct world *world, const struct collective *c, const struct options *o,
                     void *send, void *receive) {
    struct run run = {.world = world, .collective = c, .options = o, .send = send, .receive = receive,
                      .corrupts = corrupting(world)};
    if (o->timeout_seconds > 0) {
        snprintf(timeout_text, sizeof timeout_text, "%s: Test timeout (%ds) %s:%d\n",
                 world->members[world->rank].host, o->timeout_seconds, "bench.c", __LINE__);
        signal(SIGALRM, on_timeout);
    }
    int first_type = o->type == OPTION_ALL ? 0 : o->type;
    int last_type = o->type == OPTION_ALL ? TYPE_COUNT - 1 : o->type;
    int first_op = !c->has_ops ? OP_SUM : o->op == OPTION_ALL ? 0 : o->op;
    int last_op = !c->has_ops ? OP_SUM : o->op == OPTION_ALL ? OP_COUNT - 1 : o->op;
    int first_root = !c->has_roots ? 0 : o->root == OPTION_ALL ? 0 : o->root;
    int last_root = !c->has_roots ? 0 : o->root == OPTION_ALL ? world->ranks - 1 : o->root;
    for (int type = first_type; type <= last_type; type++)
        for (int op = first_op; op <= last_op; op++)
            for (int root = first_root; root <= last_root; root++)
                ladder(&run, type, op, c->has_ops ? op_name(op) : "none", root, c->has_roots ? root : -1);
    struct outcome outcome = {0, run.halves > 0 ? run.busbw_sum / run.halves : 0};
    MPI_Allreduce(&run.out_of_bounds, &outcome.out_of_bounds, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return outcome;
}
