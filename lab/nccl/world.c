#include "world.h"

#include <arpa/inet.h>
#include <glob.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int name_matches(const char *rule, const char *name) {
    int exclude = *rule == '^', exact = 0, hit = 0;
    if (exclude) rule++;
    if (*rule == '=') exact = 1, rule++;
    char list[256];
    snprintf(list, sizeof list, "%s", rule);
    for (char *rest = list, *word; (word = strsep(&rest, ",")) != NULL;) {
        size_t length = strlen(word);
        if (length > 0 && (exact ? strcmp(word, name) == 0 : strncmp(word, name, length) == 0)) hit = 1;
    }
    return exclude ? !hit : hit;
}

static int find_interface(struct interface *found, const char *rule, int loopback_too) {
    struct ifaddrs *all, *each;
    int ok = 0;
    if (getifaddrs(&all) != 0) return 0;
    for (each = all; each != NULL && !ok; each = each->ifa_next) {
        if (each->ifa_addr == NULL || each->ifa_addr->sa_family != AF_INET) continue;
        if (!(each->ifa_flags & IFF_UP)) continue;
        if (rule != NULL ? !name_matches(rule, each->ifa_name)
                         : (each->ifa_flags & IFF_LOOPBACK) && !loopback_too) continue;
        snprintf(found->name, sizeof found->name, "%s", each->ifa_name);
        inet_ntop(AF_INET, &((struct sockaddr_in *)each->ifa_addr)->sin_addr, found->address,
                  sizeof found->address);
        ok = 1;
    }
    freeifaddrs(all);
    return ok;
}

int world_prepare(struct interface *interface) {
    /* Ranks outnumber the cores of a lab machine; one that waits must let the others run. */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    const char *rule = getenv("NCCL_SOCKET_IFNAME");
    if (rule != NULL && *rule != '\0') {
        if (find_interface(interface, rule, 1)) {
            setenv("OMPI_MCA_btl_tcp_if_include", interface->name, 1);
            return 1;
        }
        fprintf(stderr, "Bootstrap : no socket interface found for NCCL_SOCKET_IFNAME=%s\n", rule);
        return 0;
    }
    const char *chosen = getenv("OMPI_MCA_btl_tcp_if_include");
    char exact[64];
    if (chosen != NULL && snprintf(exact, sizeof exact, "=%s", chosen) > 0 && find_interface(interface, exact, 1))
        return 1;
    if (find_interface(interface, NULL, 0) || find_interface(interface, NULL, 1)) {
        setenv("OMPI_MCA_btl_tcp_if_include", interface->name, 0);
        return 1;
    }
    fprintf(stderr, "Bootstrap : no interface with an IPv4 address is up\n");
    return 0;
}

/* Open MPI's setting of its transports ("btl"), from its file, mpirun or the environment. */
static int shared_memory_allowed(void) {
    int level, index, count, allowed = 1;
    MPI_T_cvar_handle handle;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return 0;
    if (MPI_T_cvar_get_index("btl", &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
        char *list = calloc(1, (size_t)count + 1);
        if (list != NULL && MPI_T_cvar_read(handle, list) == MPI_SUCCESS && *list != '\0') {
            int named = strstr(list, "vader") != NULL || strstr(list, "sm") != NULL;
            allowed = *list == '^' ? !named : named;
        }
        free(list);
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return allowed;
}

static void place_members(struct world *world) {
    world->nodes = 0;
    for (int r = 0; r < world->ranks; r++) {
        struct member *member = &world->members[r];
        member->node = -1;
        member->local_rank = 0;
        for (int before = 0; before < r; before++) {
            if (strcmp(world->members[before].host, member->host) != 0) continue;
            member->node = world->members[before].node;
            member->local_rank++;
        }
        if (member->node < 0) member->node = world->nodes++;
    }
    for (int r = 0; r < world->ranks; r++) {
        struct member *member = &world->members[r];
        member->local_ranks = 0;
        for (int other = 0; other < world->ranks; other++)
            member->local_ranks += world->members[other].node == member->node;
    }
}

static void form_ring(struct world *world) {
    int position = 0;
    for (int node = 0; node < world->nodes; node++)
        for (int r = 0; r < world->ranks; r++)
            if (world->members[r].node == node) world->ring[position++] = r;
    for (int p = 0; p < world->ranks; p++)
        if (world->ring[p] == world->rank) world->position = p;
    world->next = world->ring[(world->position + 1) % world->ranks];
    world->previous = world->ring[(world->position + world->ranks - 1) % world->ranks];
}

void world_join(struct world *world, const struct interface *interface) {
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->ranks);
    world->members = calloc((size_t)world->ranks, sizeof *world->members);
    world->ring = calloc((size_t)world->ranks, sizeof *world->ring);
    if (world->members == NULL || world->ring == NULL) {
        fprintf(stderr, "out of memory for the table of %d ranks\n", world->ranks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    struct member *self = &world->members[world->rank];
    gethostname(self->host, sizeof self->host - 1);
    self->host[strcspn(self->host, ".")] = '\0';
    self->pid = (int)getpid();
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, world->members, sizeof *world->members, MPI_BYTE,
                  MPI_COMM_WORLD);
    place_members(world);
    form_ring(world);
    world->interface = *interface;
    world->shares_memory = shared_memory_allowed();
}

void world_leave(struct world *world) {
    free(world->members);
    free(world->ring);
}

int world_devices(void) {
    glob_t found;
    int count = 0;
    if (glob("/dev/nvidia[0-9]*", 0, NULL, &found) == 0) count = (int)found.gl_pathc;
    globfree(&found);
    return count;
}

/* The first number in a file, times `unit`; 0 where there is none ("max" included). */
static size_t number_in(const char *path, const char *format, size_t unit) {
    size_t number = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    char line[256];
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, format, &number) == 1) break;
    fclose(file);
    return number * unit;
}

size_t world_buffer_limit(const struct world *world, int buffers) {
    /* Half of what is free: the lab's other hosts run on the same machine. */
    size_t memory = number_in("/proc/meminfo", "MemAvailable: %zu kB", 1024) / 2;
    size_t limits[] = {number_in("/sys/fs/cgroup/memory.max", "%zu", 1),
                       number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "%zu", 1)};
    for (int i = 0; i < 2; i++)
        if (limits[i] > 0 && limits[i] / 4 * 3 < memory) memory = limits[i] / 4 * 3;
    unsigned long long here =
        memory / (size_t)(world->members[world->rank].local_ranks * buffers) >> 20 << 20;
    unsigned long long everywhere;
    MPI_Allreduce(&here, &everywhere, 1, MPI_UNSIGNED_LONG_LONG, MPI_MIN, MPI_COMM_WORLD);
    return (size_t)everywhere;
}
