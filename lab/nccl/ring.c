#include "ring.h"

#include <mpi.h>
#include <string.h>

#include "rails.h"

/* A block is walked in pieces, so that scratch memory does not grow with the message. */
enum { PIECE_BYTES = 1 << 19 };
static unsigned char partial[PIECE_BYTES], incoming[PIECE_BYTES];

/* A buffer cut into one block per rank; the first `count % ranks` blocks have one element more. */
struct blocks {
    size_t count;
    int ranks;
};

static size_t block_length(const struct blocks *b, int block) {
    return b->count / b->ranks + ((size_t)block < b->count % b->ranks);
}

static size_t block_start(const struct blocks *b, int block) {
    size_t longer = b->count % b->ranks;
    return b->count / b->ranks * block + ((size_t)block < longer ? (size_t)block : longer);
}

/* Piece number `piece` of `block`: where it lies and how many elements it has (0 past the end). */
static unsigned char *piece_of(const struct blocks *b, void *buffer, int block, size_t piece, size_t *elements) {
    size_t per_piece = PIECE_BYTES / WIDTH, from = piece * per_piece, length = block_length(b, block);
    size_t left = from < length ? length - from : 0;
    *elements = left < per_piece ? left : per_piece;
    return (unsigned char *)buffer + (block_start(b, block) + (left ? from : 0)) * WIDTH;
}

static size_t pieces_in(const struct blocks *b) {
    size_t per_piece = PIECE_BYTES / WIDTH;
    return (block_length(b, 0) + per_piece - 1) / per_piece;
}

/* The rank that stands `steps` places before this one. */
static int behind(const struct world *w, int steps) {
    return w->ring[((w->position - steps) % w->ranks + w->ranks) % w->ranks];
}

static void pass_on(const struct world *w, const void *out, size_t out_bytes, void *in, size_t in_bytes) {
    double began = MPI_Wtime();
    MPI_Sendrecv(out, (int)out_bytes, MPI_BYTE, w->next, 0, in, (int)in_bytes, MPI_BYTE, w->previous, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    rails_pace(w, began, w->next, out_bytes, w->previous, in_bytes);
}

/* One piece of every block: after n-1 steps this rank's own block is complete, in `result`. */
static void reduce_piece(const struct world *w, const struct call *c, const struct blocks *b, size_t piece,
                         void *result) {
    size_t have, gets;
    unsigned char *source = piece_of(b, c->send, behind(w, 1), piece, &have);
    memcpy(partial, source, have * WIDTH);
    for (int step = 2; step <= w->ranks; step++) {
        source = piece_of(b, c->send, behind(w, step), piece, &gets);
        pass_on(w, partial, have * WIDTH, incoming, gets * WIDTH);
        element_add(incoming, source, gets);
        memcpy(partial, incoming, gets * WIDTH);
        have = gets;
    }
    memcpy(result, partial, have * WIDTH);
}

/* One piece of every block: this rank's own goes round, and the others' come by. */
static void gather_piece(const struct world *w, const struct blocks *b, size_t piece, void *buffer) {
    for (int step = 0; step < w->ranks - 1; step++) {
        size_t gives, gets;
        unsigned char *out = piece_of(b, buffer, behind(w, step), piece, &gives);
        unsigned char *in = piece_of(b, buffer, behind(w, step + 1), piece, &gets);
        pass_on(w, out, gives * WIDTH, in, gets * WIDTH);
    }
}

void ring_all_reduce(const struct world *w, const struct call *c) {
    struct blocks b = {c->count, w->ranks};
    for (size_t piece = 0; piece < pieces_in(&b); piece++) {
        size_t elements;
        unsigned char *own = piece_of(&b, c->receive, w->rank, piece, &elements);
        reduce_piece(w, c, &b, piece, own);
        gather_piece(w, &b, piece, c->receive);
    }
}

void ring_reduce_scatter(const struct world *w, const struct call *c) {
    struct blocks b = {c->count * w->ranks, w->ranks};
    for (size_t piece = 0; piece < pieces_in(&b); piece++)
        reduce_piece(w, c, &b, piece, (unsigned char *)c->receive + piece * (PIECE_BYTES / WIDTH) * WIDTH);
}

void ring_all_gather(const struct world *w, const struct call *c) {
    struct blocks b = {c->count * w->ranks, w->ranks};
    unsigned char *own = (unsigned char *)c->receive + block_start(&b, w->rank) * WIDTH;
    if (own != c->send) memcpy(own, c->send, c->count * WIDTH);
    for (size_t piece = 0; piece < pieces_in(&b); piece++) gather_piece(w, &b, piece, c->receive);
}

/* A chain round the ring that begins at rank 0: while a piece is on its way to the next rank, the one
 * after it is being received. */
void ring_broadcast(const struct world *w, const struct call *c) {
    struct blocks b = {c->count, 1};
    int is_root = w->rank == 0, ends_chain = w->next == 0;
    MPI_Request sending = MPI_REQUEST_NULL;
    for (size_t piece = 0; piece < pieces_in(&b); piece++) {
        size_t elements;
        double began = MPI_Wtime();
        unsigned char *into = piece_of(&b, c->receive, 0, piece, &elements);
        unsigned char *from = is_root ? piece_of(&b, c->send, 0, piece, &elements) : into;
        if (!is_root)
            MPI_Recv(into, (int)(elements * WIDTH), MPI_BYTE, w->previous, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Wait(&sending, MPI_STATUS_IGNORE);
        if (!ends_chain)
            MPI_Isend(from, (int)(elements * WIDTH), MPI_BYTE, w->next, 0, MPI_COMM_WORLD, &sending);
        if (is_root && into != from) memcpy(into, from, elements * WIDTH);
        rails_pace(w, began, ends_chain ? w->rank : w->next, elements * WIDTH, is_root ? w->rank : w->previous,
                   elements * WIDTH);
    }
    MPI_Wait(&sending, MPI_STATUS_IGNORE);
}

/* Through scratch memory, because in place both ends may be the same bytes. */
static void exchange(const struct world *w, int to, const unsigned char *out, int from, unsigned char *in, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        double began = MPI_Wtime();
        MPI_Sendrecv(out + done, (int)part, MPI_BYTE, to, 0, incoming, (int)part, MPI_BYTE, from, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        rails_pace(w, began, to, part, from, part);
        memcpy(in + done, incoming, part);
        done += part;
    }
}

void pairs_sendrecv(const struct world *w, const struct call *c) {
    int to = (w->rank + 1) % w->ranks, from = (w->rank + w->ranks - 1) % w->ranks;
    exchange(w, to, c->send, from, c->receive, c->count * WIDTH);
}

void pairs_alltoall(const struct world *w, const struct call *c) {
    size_t bytes = c->count * WIDTH;
    const unsigned char *send = c->send;
    unsigned char *receive = c->receive;
    if (send != receive) memcpy(receive + w->rank * bytes, send + w->rank * bytes, bytes);
    for (int step = 1; step < w->ranks; step++) {
        int to = (w->rank + step) % w->ranks, from = (w->rank - step + w->ranks) % w->ranks;
        exchange(w, to, send + to * bytes, from, receive + from * bytes, bytes);
    }
}
