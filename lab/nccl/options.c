#include "options.h"

#include <getopt.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "element.h"

static const struct parsed go_on = {0, 0};
static const struct parsed shown_usage = {1, 0}; /* nccl-tests ends with 0 here, a bad option included */
static const struct parsed refused = {1, 255};

static const struct option long_names[] = {
    {"nthreads", required_argument, 0, 't'},
    {"ngpus", required_argument, 0, 'g'},
    {"minbytes", required_argument, 0, 'b'},
    {"maxbytes", required_argument, 0, 'e'},
    {"stepbytes", required_argument, 0, 'i'},
    {"stepfactor", required_argument, 0, 'f'},
    {"iters", required_argument, 0, 'n'},
    {"agg_iters", required_argument, 0, 'm'},
    {"warmup_iters", required_argument, 0, 'w'},
    {"run_cycles", required_argument, 0, 'N'},
    {"parallel_init", required_argument, 0, 'p'},
    {"check", required_argument, 0, 'c'},
    {"op", required_argument, 0, 'o'},
    {"datatype", required_argument, 0, 'd'},
    {"root", required_argument, 0, 'r'},
    {"blocking", required_argument, 0, 'z'},
    {"stream_null", required_argument, 0, 'y'},
    {"timeout", required_argument, 0, 'T'},
    {"cudagraph", required_argument, 0, 'G'},
    {"report_cputime", required_argument, 0, 'C'},
    {"report_timestamps", required_argument, 0, 'S'},
    {"output_file", required_argument, 0, 'J'},
    {"average", required_argument, 0, 'a'},
    {"local_register", required_argument, 0, 'R'},
    {"cta_policy", required_argument, 0, 'x'},
    {"device_implementation", required_argument, 0, 'D'},
    {"device_cta_count", required_argument, 0, 'V'},
    {"memory", required_argument, 0, 'M'},
    {"help", no_argument, 0, 'h'},
    {0, 0, 0, 0},
};

/* "8", "64K", "1.5M", "2G" in bytes, binary units; negative when it is none of these. */
static double parse_size(const char *text) {
    double number;
    char unit;
    int fields = sscanf(text, "%lf %1c", &number, &unit);
    if (fields < 1) return -1;
    if (fields == 1) return number;
    switch (unit) {
        case 'K': case 'k': return number * 1024;
        case 'M': case 'm': return number * 1024 * 1024;
        case 'G': case 'g': return number * 1024 * 1024 * 1024;
        default: return -1;
    }
}

static int set_size(size_t *into, const char *text, const char *name) {
    double bytes = parse_size(text);
    if (bytes < 0) {
        fprintf(stderr, "invalid size specified for '%s'\n", name);
        return 0;
    }
    *into = (size_t)bytes;
    return 1;
}

static int whole(const char *text) { return (int)strtol(text, NULL, 0); }

/* An unknown name falls back to the default with a message, as in nccl-tests. */
static int choose(const char *kind, const char *text, const char *(*name)(int), int count, int otherwise) {
    if (strcmp(text, "all") == 0) return OPTION_ALL;
    for (int i = 0; i < count; i++)
        if (strcmp(text, name(i)) == 0) return i;
    printf("invalid %s %s, defaulting to %s .. \n", kind, text, name(otherwise));
    return otherwise;
}

static void print_usage(char *program) {
    printf("USAGE: %s \n\t"
           "[-t,--nthreads <1>] [-g,--ngpus <1>] \n\t"
           "[-b,--minbytes <size>] [-e,--maxbytes <size>] [-i,--stepbytes <size>] [-f,--stepfactor <factor>] \n\t"
           "[-n,--iters <count>] [-m,--agg_iters <count>] [-w,--warmup_iters <count>] \n\t"
           "[-N,--run_cycles <count, 0=infinite>] [-c,--check <count>] \n\t"
           "[-o,--op <sum/prod/max/min/avg/all>] [-d,--datatype <type/all>] [-r,--root <rank, -1=all>] \n\t"
           "[-T,--timeout <seconds>] [-G,--cudagraph <launches>] [-a,--average <0/1/2/3>] \n\t"
           "[-C,--report_cputime <0/1>] [-S,--report_timestamps <0/1>] \n\t"
           "accepted, without effect on a CPU: [-p] [-z] [-y] [-R] [-x] [-D] [-V] [-J] [-M] \n\t"
           "[-h,--help]\n",
           basename(program));
}

struct parsed options_parse(struct options *o, int argc, char **argv) {
    *o = (struct options){
        .threads = 1, .gpus = 1, .min_bytes = 32 << 20, .max_bytes = 32 << 20, .step_bytes = 1 << 20,
        .step_factor = 1, .iterations = 20, .aggregate = 1, .warmup = 1, .cycles = 1, .check = 1,
        .type = TYPE_FLOAT, .op = OP_SUM, .root = 0, .average = 1,
    };
    const char *letters = "t:g:b:e:i:f:n:m:w:N:p:c:o:d:r:z:y:T:hG:C:a:R:x:D:V:J:S:M:";
    int letter;
    while ((letter = getopt_long(argc, argv, letters, long_names, NULL)) != -1) {
        switch (letter) {
            case 't': o->threads = whole(optarg); break;
            case 'g': o->gpus = whole(optarg); break;
            case 'b': if (!set_size(&o->min_bytes, optarg, "minbytes")) return refused; break;
            case 'e': if (!set_size(&o->max_bytes, optarg, "maxbytes")) return refused; break;
            case 'i': if (!set_size(&o->step_bytes, optarg, "stepBytes")) return refused; break;
            case 'f': o->step_factor = strtoul(optarg, NULL, 0); break;
            case 'n': o->iterations = whole(optarg); break;
            case 'm': o->aggregate = whole(optarg); break;
            case 'w': o->warmup = whole(optarg); break;
            case 'N': o->cycles = whole(optarg); break;
            case 'p': o->parallel_init = whole(optarg); break;
            case 'c': o->check = whole(optarg); break;
            case 'o': o->op = choose("op", optarg, op_name, OP_COUNT, OP_SUM); break;
            case 'd': o->type = choose("type", optarg, type_name, TYPE_COUNT, TYPE_FLOAT); break;
            case 'r': o->root = whole(optarg); break;
            case 'z': o->blocking = whole(optarg); break;
            case 'T': o->timeout_seconds = whole(optarg); break;
            case 'G': o->graph_launches = whole(optarg); break;
            case 'C': o->report_cputime = whole(optarg); break;
            case 'S': o->report_timestamps = whole(optarg); break;
            case 'a': o->average = whole(optarg); break;
            case 'J': o->not_written = optarg; break;
            case 'M': o->memory_report = whole(optarg); break;
            case 'y': case 'R': case 'x': case 'D': case 'V': break; /* no such thing on a CPU */
            default:
                if (letter != 'h') printf("invalid option '%c'\n", letter);
                print_usage(argv[0]);
                return shown_usage;
        }
    }
    if (o->min_bytes > o->max_bytes) {
        fprintf(stderr, "invalid sizes for 'minbytes' and 'maxbytes': %zu > %zu\n", o->min_bytes, o->max_bytes);
        return refused;
    }
    return go_on;
}
