#include "rails.h"

#include <glob.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A folder per HCA, which the device plugin mounts. A file `limit` in it has MB/s of each direction. */
static const char folders[] = "/usr/local/lib/busbar-lab/rails/*";

static double bytes_per_second; /* of all rails; 0: no limit */

static double limit_of(const char *folder) {
    char path[512];
    double megabytes = 0;
    snprintf(path, sizeof path, "%s/limit", folder);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    if (fscanf(file, "%lf", &megabytes) != 1 || megabytes <= 0) {
        fprintf(stderr, "busbar-lab: %s: expected a number of MB/s\n", path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    fclose(file);
    return megabytes * 1e6;
}

/* NCCL spreads all data evenly over the HCAs, so the slowest one decides. */
void rails_find(void) {
    const char *rule = getenv("NCCL_IB_HCA");
    double slowest = 0;
    int rails = 0;
    glob_t found;
    if (glob(folders, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) {
            if (rule != NULL && *rule != '\0' && !name_matches(rule, strrchr(found.gl_pathv[i], '/') + 1)) continue;
            double limit = limit_of(found.gl_pathv[i]);
            if (limit > 0 && (slowest == 0 || limit < slowest)) slowest = limit;
            rails++;
        }
    globfree(&found);
    bytes_per_second = rails * slowest;
}

void rails_pace(const struct world *w, double began, int to, size_t out, int from, size_t in) {
    int here = w->members[w->rank].node;
    if (bytes_per_second == 0) return;
    if (w->members[to].node == here) out = 0;
    if (w->members[from].node == here) in = 0;
    double left = began + (double)(out > in ? out : in) / bytes_per_second - MPI_Wtime();
    if (left > 0) usleep((useconds_t)(left * 1e6));
}
