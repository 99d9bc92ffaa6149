#include "table.h"

#include <stdio.h>
#include <time.h>

/* The nccl-tests release whose output this is, and the version of the "library": this program. */
#define FORMAT_VERSION "2.17.9"
#define LIBRARY_CODE 100 /* 0.1.0 in NCCL's numbering */

void table_banner(const struct world *w, const struct options *o, const char *program) {
    printf("# nccl-tests version %s nccl-headers=%d nccl-library=%d\n", FORMAT_VERSION, LIBRARY_CODE,
           LIBRARY_CODE);
    printf("# simulated: CPU program in place of nccl-tests\n");
    printf("# Collective test starting: %s\n", program);
    printf("# nThread %d nGpus %d minBytes %ld maxBytes %ld step: %ld(%s) warmup iters: %d iters: %d "
           "agg iters: %d validation: %d graph: %d\n",
           o->threads, o->gpus, (long)o->min_bytes, (long)o->max_bytes,
           (long)(o->step_factor > 1 ? o->step_factor : o->step_bytes),
           o->step_factor > 1 ? "factor" : "bytes", o->warmup, o->iterations, o->aggregate, o->check,
           o->graph_launches);
    if (o->blocking) printf("# Blocking Enabled: wait for completion and barrier after each collective \n");
    if (o->parallel_init) printf("# Parallel Init Enabled: threads call into NcclInitRank concurrently \n");
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

void table_header(const struct options *o) {
    const char *time = o->report_cputime ? "cputime" : "time";
    int pad = o->report_timestamps ? 19 : 0;
    printf("#\n");
    printf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n",
           "", "", "", "", "");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s %*s\n", "size", "count",
           "type", "redop", "root", time, "algbw", "busbw", "#wrong", time, "algbw", "busbw", "#wrong", pad,
           pad ? "timestamp" : "");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s %*s\n", "(B)",
           "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", pad,
           pad ? "%Y-%m-%d %H:%M:%S" : "");
}

void table_row_begins(size_t bytes, size_t count, const char *type, const char *op, int root) {
    printf("%12li  %12li  %8s  %6s  %6i", (long)bytes, (long)count, type, op, root);
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

void table_half(const struct options *o, double seconds, double algbw, double busbw, int64_t wrong,
                int checked, int in_place) {
    char time_text[32], algbw_text[32], busbw_text[32];
    fit(time_text, sizeof time_text, seconds * 1e6, 7);
    fit(algbw_text, sizeof algbw_text, algbw, 6);
    fit(busbw_text, sizeof busbw_text, busbw, 6);
    if (checked) printf("  %7s  %6s  %6s  %6g", time_text, algbw_text, busbw_text, (double)wrong);
    else printf("  %7s  %6s  %6s    N/A", time_text, algbw_text, busbw_text);
    if (in_place && o->report_timestamps) {
        char stamp[64];
        time_t now = time(NULL);
        strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime(&now));
        printf("%21s", stamp);
    }
}

void table_row_ends(void) { printf("\n"); }

void table_footer(int out_of_bounds, double average, double minimum, const char *program) {
    printf("# %-20s : %d %s\n", "Out of bounds values", out_of_bounds, out_of_bounds ? "FAILED" : "OK");
    printf("# %-20s : %g %s\n", "Avg bus bandwidth", average,
           minimum < 0 ? "" : average < minimum * 0.9 ? "FAILED" : "OK");
    printf("#\n# Collective test concluded: %s\n#\n\n", program);
}
