#include "collective.h"

#include <string.h>

#include "ring.h"

/* Gather-type collectives round the part of a rank down to 16 bytes [nccl-tests src/all_gather.cu]. */
static size_t part_of_rank(size_t count, int ranks) { return count / ranks & -(16 / (size_t)WIDTH); }

static struct sizes whole_buffer(size_t count, int ranks) {
    (void)ranks;
    return (struct sizes){count, count, count, 0, 0};
}

static struct sizes gathered(size_t count, int ranks) {
    size_t part = part_of_rank(count, ranks);
    return (struct sizes){part, part * ranks, part, part, 0};
}

static struct sizes scattered(size_t count, int ranks) {
    size_t part = part_of_rank(count, ranks);
    return (struct sizes){part * ranks, part, part, 0, part};
}

static struct sizes transposed(size_t count, int ranks) {
    size_t part = part_of_rank(count, ranks);
    return (struct sizes){part * ranks, part * ranks, part, 0, 0};
}

static double one(int ranks) { return (void)ranks, 1; }
static double per_rank(int ranks) { return ranks; }
static double twice_the_others(int ranks) { return 2.0 * (ranks - 1) / ranks; }
static double the_others(int ranks) { return (ranks - 1.0) / ranks; }

/* What a rank sends. The source of gather-type data is drawn like an operand of a sum. */
static void *source(const struct call *c, const struct sizes *s, int rank, int in_place) {
    unsigned char *receive = c->receive;
    return in_place ? receive + rank * s->send_in_place * WIDTH : c->send;
}

static void fill_source(const struct world *w, const struct call *c, const struct sizes *s, int seed,
                        int in_place) {
    struct pattern pattern;
    pattern_of_rank(&pattern, w->rank, seed);
    pattern_fill(&pattern, source(c, s, w->rank, in_place), s->send, 0);
}

static void fill_root(const struct world *w, const struct call *c, const struct sizes *s, int seed,
                      int in_place) {
    if (w->rank == 0) fill_source(w, c, s, seed, in_place);
}

static long long wrong_reduced(const struct world *w, const struct sizes *s, int seed, const void *result) {
    struct pattern pattern;
    size_t offset = s->receive == s->send ? 0 : s->receive * w->rank; /* reduce_scatter: this rank's part */
    pattern_reduced(&pattern, w->ranks, seed);
    return pattern_wrong(&pattern, result, s->receive, offset);
}

static long long wrong_from(int rank, int seed, const void *at, size_t count, size_t offset) {
    struct pattern pattern;
    pattern_of_rank(&pattern, rank, seed);
    return pattern_wrong(&pattern, at, count, offset);
}

static long long wrong_gathered(const struct world *w, const struct sizes *s, int seed, const void *result) {
    size_t part = s->parameter * WIDTH;
    long long wrong = 0;
    for (int rank = 0; rank < w->ranks; rank++)
        wrong += wrong_from(rank, seed, (const unsigned char *)result + rank * part, s->parameter, 0);
    return wrong;
}

static long long wrong_transposed(const struct world *w, const struct sizes *s, int seed, const void *result) {
    size_t part = s->parameter * WIDTH;
    long long wrong = 0;
    for (int rank = 0; rank < w->ranks; rank++)
        wrong += wrong_from(rank, seed, (const unsigned char *)result + rank * part, s->parameter,
                            w->rank * s->parameter);
    return wrong;
}

static long long wrong_from_neighbour(const struct world *w, const struct sizes *s, int seed, const void *result) {
    return wrong_from((w->rank + w->ranks - 1) % w->ranks, seed, result, s->receive, 0);
}

static long long wrong_from_root(const struct world *w, const struct sizes *s, int seed, const void *result) {
    (void)w;
    return wrong_from(0, seed, result, s->receive, 0);
}

const struct collective collectives[] = {
    {"all_reduce_perf", 1, 0, 1, EDGES_RING, whole_buffer, one, twice_the_others, ring_all_reduce,
     fill_source, wrong_reduced},
    {"all_gather_perf", 0, 0, 1, EDGES_RING, gathered, per_rank, the_others, ring_all_gather, fill_source,
     wrong_gathered},
    {"reduce_scatter_perf", 1, 0, 1, EDGES_RING, scattered, per_rank, the_others, ring_reduce_scatter,
     fill_source, wrong_reduced},
    {"broadcast_perf", 0, 1, 1, EDGES_RING, whole_buffer, one, one, ring_broadcast, fill_root,
     wrong_from_root},
    {"alltoall_perf", 0, 0, 0, EDGES_ALL_PAIRS, transposed, per_rank, the_others, pairs_alltoall,
     fill_source, wrong_transposed},
    {"sendrecv_perf", 1, 0, 0, EDGES_RING, whole_buffer, one, one, pairs_sendrecv, fill_source,
     wrong_from_neighbour},
};
const int collective_count = sizeof collectives / sizeof *collectives;

const struct collective *collective_named(const char *program) {
    const char *slash = strrchr(program, '/');
    const char *name = slash != NULL ? slash + 1 : program;
    for (int i = 0; i < collective_count; i++)
        if (strcmp(collectives[i].program, name) == 0) return &collectives[i];
    return NULL;
}
