#include "rails.h"

#include <float.h>
#include <glob.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* A folder per HCA, which the device plugin mounts. A file `limit` in it has MB/s of each direction. A file
 * `busbw` has the GB/s that a run between hosts reports, and the relative spread of runs. */
static const char folders[] = "/usr/local/lib/busbar-lab/rails/*";

static double bytes_per_second; /* of all rails; 0: no limit */
static double busbw;            /* GB/s of all rails, injected; 0: none */

/* Reads `count` numbers from a file of an HCA's folder into `found`. Returns 0 if there is no such file. */
static int read_numbers(const char *folder, const char *name, int count, double found[2]) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    if (fscanf(file, "%lf %lf", &found[0], &found[1]) != count || found[0] <= 0) {
        fprintf(stderr, "busbar-lab: %s: expected %s\n", path,
                count == 1 ? "a number of MB/s" : "GB/s of bus bandwidth and the relative spread of runs");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    fclose(file);
    return 1;
}

/* About normal, with a mean of 0 and a deviation of 1: the sum of twelve even draws, less 6. */
static double draw(void) {
    unsigned short even[12];
    double sum = -6;
    if (getrandom(even, sizeof even, 0) != sizeof even) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < 12; i++) sum += even[i] / 65536.0;
    return sum;
}

/* NCCL spreads all data evenly over the HCAs, so the slowest one decides. */
void rails_find(const struct world *w) {
    const char *rule = getenv("NCCL_IB_HCA");
    double slowest = 0, found[2], injected = DBL_MAX, spread = 0;
    int rails = 0;
    glob_t folder;
    if (glob(folders, 0, NULL, &folder) == 0)
        for (size_t i = 0; i < folder.gl_pathc; i++) {
            const char *path = folder.gl_pathv[i];
            if (rule != NULL && *rule != '\0' && !name_matches(rule, strrchr(path, '/') + 1)) continue;
            if (read_numbers(path, "limit", 1, found) && (slowest == 0 || found[0] * 1e6 < slowest))
                slowest = found[0] * 1e6;
            if (read_numbers(path, "busbw", 2, found) && found[0] < injected) {
                injected = found[0];
                spread = found[1];
            }
            rails++;
        }
    globfree(&folder);
    bytes_per_second = rails * slowest;
    /* The lowest of all hosts counts, with one draw for all ranks. */
    double here[] = {injected < DBL_MAX ? rails * injected : DBL_MAX, -spread}, all[2], drawn = draw();
    MPI_Allreduce(here, all, 2, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Bcast(&drawn, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    busbw = w->nodes > 1 && all[0] < DBL_MAX ? all[0] * (1 - all[1] * drawn) : 0;
}

double rails_busbw(void) { return busbw; }

void rails_pace(const struct world *w, double began, int to, size_t out, int from, size_t in) {
    int here = w->members[w->rank].node;
    if (bytes_per_second == 0) return;
    if (w->members[to].node == here) out = 0;
    if (w->members[from].node == here) in = 0;
    double left = began + (double)(out > in ? out : in) / bytes_per_second - MPI_Wtime();
    if (left > 0) usleep((useconds_t)(left * 1e6));
}
