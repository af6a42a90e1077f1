// What a test asks for: counts, faults, random numbers, and settings.
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int depth;  // how often the thread that has the lock has taken it
int take(void) { return pthread_mutex_lock(&lock), depth++; }
void unlock(int *held) { (void)held, depth--, pthread_mutex_unlock(&lock); }

bool nap(long *ms) {
    if ((*ms)-- <= 0 || depth != 1) return false;
    depth = 0, pthread_mutex_unlock(&lock);
    usleep(1000);
    pthread_mutex_lock(&lock), depth = 1;
    return true;
}

long counts[COUNTS];
static const char *const count_names[COUNTS] = {
    "allocations", "live_device", "live_pinned", "live_streams", "live_events", "live_graphs", "live_execs", "copies",
    "sets", "launches", "records", "waits", "syncs", "pageable_refused", "device_bytes", "pinned_bytes",
    "unknown_launches", "graph_launches", "executed_copies", "executed_launches", "pending", "loads", "events_created",
    "streams_created", "host_allocations", "live_managed", "managed_bytes", "reserved_bytes", "prefetches",
    "spinning_syncs", "translations", "late_loads", "maps", "unmaps", "creates", "live_handles", "reserved_addresses",
    "mapped_bytes",
};
static long armed[FAULTS];
static const char *const fault_names[FAULTS] = {
    "allocation", "pinned", "copy", "set", "launch", "record", "wait", "event", "stream", "graph", "execution",
    "context", "reserve", "create", "map", "access",
};
static uint64_t state;
bool sticky, pageable;
long host_ns, queue_length, patience = 2000;

static int named(const char *what, const char *const *names, int size) {
    for (int i = 0; i < size; i++)
        if (!strcmp(what, names[i])) return i;
    return -1;
}

API long fake_cuda_count(const char *what) {
    LOCK;
    int i = named(what, count_names, COUNTS);
    return i < 0 ? -1 : counts[i];
}

API int fake_cuda_fail(const char *what, long n) {
    LOCK;
    int i = named(what, fault_names, FAULTS);
    if (i >= 0) armed[i] = n;
    return i < 0 ? -1 : 0;
}

API void fake_cuda_reset_counts(void) {  // what counts live things stays
    LOCK;
    for (int i = 0; i < COUNTS; i++) {
        bool live = !strncmp(count_names[i], "live_", 5) || strstr(count_names[i], "_bytes") || i == PENDING || i == RESERVED_ADDRESSES;
        if (!live) counts[i] = 0;
    }
}

API void *fake_cuda_backing(uintptr_t address) {
    LOCK;
    struct area *area = area_at(address, 0);
    return area ? area->backing + (address - area->base) : NULL;
}

bool fails(enum fault what) { return armed[what] > 0 && --armed[what] == 0; }

uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
uint64_t draw(void) { return mix(state += GOLDEN); }
bool chance(unsigned of256) { return (draw() & 255) < of256; }

API void fake_cuda_eager(long ns) {
    LOCK;
    host_ns = ns;
}

API void fake_cuda_patience(long ms) {
    LOCK;
    patience = ms;
}

API void fake_cuda_queue(long length) {
    LOCK;
    queue_length = length;
}

API void fake_cuda_seed(uint64_t seed) {
    LOCK;
    state = mix(seed + 1), spell = 0;
}

static uint64_t setting(const char *name) {
    const char *given = getenv(name);
    return given ? strtoull(given, NULL, 0) : 0;
}

__attribute__((constructor)) static void start(void) {
    sticky = setting("FAKE_CUDA_STICKY"), pageable = setting("FAKE_CUDA_PAGEABLE"), queue_length = (long)setting("FAKE_CUDA_QUEUE");
    fake_cuda_seed(setting("FAKE_CUDA_SEED"));
}
