#include "table.h"

#include <stdio.h>

/* The nccl-tests release whose output this is, and the version of the "library": this program. */
#define FORMAT_VERSION "2.17.9"
#define LIBRARY_CODE 100 /* 0.1.0 in NCCL's numbering */

void table_banner(const struct world *w, const struct options *o, const char *program) {
    printf("# nccl-tests version %s nccl-headers=%d nccl-library=%d\n", FORMAT_VERSION, LIBRARY_CODE,
           LIBRARY_CODE);
    printf("# simulated: CPU program in place of nccl-tests\n");
    printf("# Collective test starting: %s\n", program);
    printf("# nThread 1 nGpus %d minBytes %ld maxBytes %ld step: %ld(%s) warmup iters: %d iters: %d "
           "agg iters: 1 validation: %d graph: 0\n",
           o->gpus, (long)o->min_bytes, (long)o->max_bytes,
           (long)(o->step_factor > 1 ? o->step_factor : o->step_bytes),
           o->step_factor > 1 ? "factor" : "bytes", o->warmup, o->iterations, o->check);
    printf("#\n# Using devices\n");
    for (int rank = 0; rank < w->ranks; rank++) {
        const struct member *m = &w->members[rank];
        printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%04x:%02x:%02x] %s\n", rank, 0, m->pid,
               m->host, m->local_rank, 0, m->local_rank, 0, "busbar-lab CPU");
    }
}

void table_reduced_to(size_t max_bytes) {
    printf("#\n# Reducing maxBytes to %ld due to memory limitation\n", (long)max_bytes);
}

void table_header(void) {
    printf("#\n");
    printf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n",
           "", "", "", "", "");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s \n", "size", "count",
           "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s \n", "(B)", "(elements)", "",
           "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
}

void table_row_begins(size_t bytes, size_t count, const char *op, int root) {
    printf("%12li  %12li  %8s  %6s  %6i", (long)bytes, (long)count, "float", op, root);
}

/* `width` characters wide: decimals give way to digits, and at last to an exponent. */
static void fit(char *into, size_t room, double value, int width) {
    int digits = 0;
    for (double power = 1; value >= power; power *= 10) digits++;
    if (digits < width - 2) snprintf(into, room, "%*.2f", width, value);
    else if (digits < width - 1) snprintf(into, room, "%*.1f", width, value);
    else if (digits < width + 1) snprintf(into, room, "%*.0f", width, value);
    else snprintf(into, room, "%*.*e", width, width >= 7 ? 1 : 0, value);
}

void table_half(double seconds, double algbw, double busbw, int64_t wrong, int checked) {
    char time_text[32], algbw_text[32], busbw_text[32];
    fit(time_text, sizeof time_text, seconds * 1e6, 7);
    fit(algbw_text, sizeof algbw_text, algbw, 6);
    fit(busbw_text, sizeof busbw_text, busbw, 6);
    if (checked) printf("  %7s  %6s  %6s  %6g", time_text, algbw_text, busbw_text, (double)wrong);
    else printf("  %7s  %6s  %6s    N/A", time_text, algbw_text, busbw_text);
}

void table_row_ends(void) { printf("\n"); }

void table_footer(int out_of_bounds, double average, const char *program) {
    printf("# %-20s : %d %s\n", "Out of bounds values", out_of_bounds, out_of_bounds ? "FAILED" : "OK");
    printf("# %-20s : %g \n", "Avg bus bandwidth", average);
    printf("#\n# Collective test concluded: %s\n#\n\n", program);
}
