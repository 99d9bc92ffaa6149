#include "options.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct parsed go_on = {0, 0};
static const struct parsed shown_usage = {1, 0}; /* nccl-tests ends with 0 here, a bad option included */
static const struct parsed refused = {1, 255};

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

struct parsed options_parse(struct options *o, int argc, char **argv) {
    *o = (struct options){
        .gpus = 1, .min_bytes = 32 << 20, .max_bytes = 32 << 20, .step_bytes = 1 << 20, .step_factor = 1,
        .iterations = 20, .warmup = 1, .check = 1,
    };
    int letter;
    while ((letter = getopt(argc, argv, "g:b:e:f:n:w:c:")) != -1) {
        switch (letter) {
            case 'g': o->gpus = whole(optarg); break;
            case 'b': if (!set_size(&o->min_bytes, optarg, "minbytes")) return refused; break;
            case 'e': if (!set_size(&o->max_bytes, optarg, "maxbytes")) return refused; break;
            case 'f': o->step_factor = strtoul(optarg, NULL, 0); break;
            case 'n': o->iterations = whole(optarg); break;
            case 'w': o->warmup = whole(optarg); break;
            case 'c': o->check = whole(optarg); break;
            default:
                printf("USAGE: %s \n\t[-g <1>] [-b <size>] [-e <size>] [-f <factor>] [-n <count>] [-w <count>] "
                       "[-c <count>] \n", basename(argv[0]));
                return shown_usage;
        }
    }
    if (o->min_bytes > o->max_bytes) {
        fprintf(stderr, "invalid sizes for 'minbytes' and 'maxbytes': %zu > %zu\n", o->min_bytes, o->max_bytes);
        return refused;
    }
    return go_on;
}
