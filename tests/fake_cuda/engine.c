// Memory, streams and the order in which queued work is executed.
#include "fake.h"
#include <stdlib.h>
#include <string.h>

pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
void unlock(int *held) { (void)held, pthread_mutex_unlock(&lock); }

long counts[COUNTS];
static const char *const count_names[COUNTS] = {
    "allocations", "live_device", "live_pinned", "live_streams", "live_events", "live_graphs", "live_execs", "copies",
    "sets", "launches", "records", "waits", "syncs", "pageable_refused", "device_bytes", "pinned_bytes",
    "unknown_launches", "graph_launches", "executed_copies", "executed_launches", "pending", "loads", "events_created",
    "streams_created", "host_allocations",
};
static long armed[FAULTS];
static const char *const fault_names[FAULTS] = {
    "allocation", "pinned", "copy", "set", "launch", "record", "wait", "event", "stream", "graph", "execution",
    "context",
};
static uint64_t state;
static unsigned spell;    // for how many steps the scheduler keeps its way of choosing
bool calling;
static CUresult failure;  // of queued work, until the next synchronisation with its stream, or with all
static const struct stream *failed_on;
CUresult ruined;
static bool sticky;       // whether illegal addresses ruin the context
static uint64_t now;      // ns

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
        bool live = !strncmp(count_names[i], "live_", 5) || i == DEVICE_BYTES || i == PINNED_BYTES || i == PENDING;
        if (!live) counts[i] = 0;
    }
}

API void *fake_cuda_backing(uintptr_t address) {
    LOCK;
    struct area *area = area_at(address, 0);
    return area ? area->backing + (address - area->base) : NULL;
}

bool fails(enum fault what) { return armed[what] > 0 && --armed[what] == 0; }

#define GOLDEN 0x9E3779B97F4A7C15u

uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
uint64_t draw(void) { return mix(state += GOLDEN); }
bool chance(unsigned of256) { return (draw() & 255) < of256; }

struct handle *handles;
void *handle_create(enum type type, size_t bytes) {
    struct handle *handle = calloc(1, bytes);
    *handle = (struct handle){type, true, handles};
    return handles = handle;
}
bool is(const void *handle, enum type type) {
    const struct handle *it = handle;
    return it && it->type == type && it->live;
}

// --- the kernels

struct builtin {
    const char *name;
    int words;
    bool (*run)(const uint64_t *words);
};

static bool run_checksum(const uint64_t *words) {  // x, bytes, digest, salt
    const unsigned char *x = (void *)reach(words[0], words[1]);
    uint64_t *digest = (void *)reach(words[2], 8), salt = mix(words[3]), sum = 0;
    if ((!x && words[1]) || !digest) return false;
    for (uint64_t i = 0; i < words[1]; i++) sum += (x[i] + 1u) * (mix(salt + (i + 1) * GOLDEN) | 1);
    *digest += sum;
    return true;
}

static bool run_fill(const uint64_t *words) {  // digest, out, bytes, salt
    unsigned char *out = (void *)reach(words[1], words[2]);
    const uint64_t *digest = (void *)reach(words[0], 8), salt = mix(words[3]);
    if ((!out && words[2]) || !digest) return false;
    const uint64_t start = mix(*digest ^ salt);
    for (uint64_t i = 0; i < words[2]; i++) out[i] = mix(start + (i + 1) * GOLDEN) >> 56;
    return true;
}

static bool run_clear(const uint64_t *words) {  // digest
    uint64_t *digest = (void *)reach(words[0], 8);
    if (digest) *digest = 0;
    return digest;
}

static bool run_advance(const uint64_t *words) {  // counter
    uint64_t *counter = (void *)reach(words[0], 8);
    if (counter) *counter += 1;
    return counter;
}

static const struct builtin builtins[] = {
    {"checksum", 4, run_checksum}, {"fill", 4, run_fill},       {"clear", 1, run_clear},
    {"advance", 1, run_advance},   {NULL, 0, NULL},
};
const struct builtin *builtin_find(const char *name) {
    const struct builtin *b = builtins;
    while (b->name && strcmp(b->name, name)) b++;
    return b->name ? b : NULL;
}
int builtin_words(const struct builtin *builtin) { return builtin ? builtin->words : 0; }

// --- streams

struct stream legacy = {.handle = {STREAM, true}, .tail = &legacy.head, .next = &per_thread};
struct stream per_thread = {.handle = {STREAM, true}, .tail = &per_thread.head};
struct stream *streams = &legacy;

struct stream *stream_of(void *handle) {
    if ((uintptr_t)handle <= 1) return &legacy;
    if ((uintptr_t)handle == 2) return &per_thread;
    return is(handle, STREAM) ? handle : NULL;
}

struct record *record_create(struct stream *stream) {
    struct record *record = calloc(1, sizeof *record);
    record->references = 1, record->stream = stream;
    return record;
}
struct record *record_share(struct record *record) {
    if (record) record->references++;
    return record;
}
void record_release(struct record *record) {
    if (record && !--record->references) free(record);
}

void push(struct stream *stream, const struct op *op) {
    struct op *entry = malloc(sizeof *entry);
    *entry = *op, entry->next = NULL;
    *stream->tail = entry, stream->tail = &entry->next;
    counts[PENDING]++;
}

static void memory_set(char *to, const struct op *op) {
    for (size_t i = 0; i < op->bytes; i += op->width) memcpy(to + i, &op->value, op->width);
}

static void perform(struct op *op) {
    bool done = true;
    if (op->kind <= LAUNCH && fails(FAIL_CONTEXT)) {
        ruined = LAUNCH_FAILED;
        return;
    }
    if (op->kind <= LAUNCH && fails(FAIL_EXECUTION)) {
        failure = LAUNCH_FAILED;
        return;
    }
    if (op->kind == COPY) {
        char *to = reach(op->to, op->bytes), *from = reach(op->from, op->bytes);
        if (op->pageable && !to) to = (char *)op->to;
        if (op->pageable && !from) from = (char *)op->from;
        if ((done = to && from)) memmove(to, from, op->bytes);
        now += 500 + op->bytes / 16, counts[EXECUTED_COPIES]++;
    } else if (op->kind == SET) {
        char *to = reach(op->to, op->bytes);
        if ((done = to)) memory_set(to, op);
        now += 500 + op->bytes / 16;
    } else if (op->kind == LAUNCH) {
        if (op->function->builtin) done = op->function->builtin->run(op->words);
        now += 1000, counts[EXECUTED_LAUNCHES]++;
    } else if (op->kind == CALL) {
        calling = true;
        op->call(op->data);
        calling = false;
    } else if (op->kind == RECORD) {
        op->record->done = true, op->record->time = now += 10;
    } else if (op->kind == FREE) {
        struct area *area = area_at(op->to, 0);
        if ((done = area)) area_destroy(area);
    }
    if (!done) *(sticky ? &ruined : &failure) = ILLEGAL_ADDRESS;
}

static const struct record *blocker(const struct stream *stream) {  // what the head of the stream still waits for
    const struct record *record = NULL;
    if (stream->head->kind == WAIT) record = stream->head->record;
    if (stream->head->kind == RUN) record = stream->head->run->previous;
    return record && !record->done ? record : NULL;
}

static void execute_head(struct stream *stream) {
    struct op *op = stream->head;
    if (op->kind == RUN && !run_step(op->run, perform)) return;
    perform(op);
    if (failure && !failed_on) failed_on = stream;
    stream->head = op->next;
    if (!stream->head) stream->tail = &stream->head;
    record_release(op->record);
    free(op);
    counts[PENDING]--;
}

static void forget_streams(void) {  // the destroyed ones that have run dry
    for (struct stream **link = &streams; *link;)
        if (!(*link)->handle.live && !(*link)->head && !(*link)->capture) *link = (*link)->next;
        else link = &(*link)->next;
}

static void drop(struct stream *stream) {  // what is queued, because it can never be executed; memory is freed all the same
    for (struct op *op; (op = stream->head); free(op)) {
        struct area *area = op->kind == FREE ? area_at(op->to, 0) : NULL;
        if (area) area_destroy(area);
        if (op->kind == RUN) run_drop(op->run);
        record_release(op->record);
        stream->head = op->next;
        counts[PENDING]--;
    }
    stream->tail = &stream->head;
}

static void clean_up(void) {  // after work has been executed
    for (struct stream *s = ruined ? streams : NULL; s; s = s->next) drop(s);
    forget_streams();
}

// For a while, prefer streams in one random order, which starves the last of them; or choose evenly each time.
static bool random_step(void) {
    static bool even;
    if (!spell) {
        spell = 1 + draw() % (1u << draw() % 11), even = chance(96);
        for (struct stream *s = streams; s; s = s->next) s->urgency = draw();
    }
    spell--;
    struct stream *best = NULL;
    uint64_t most = 0;
    for (struct stream *s = streams; s; s = s->next) {
        if (!s->head || blocker(s)) continue;
        uint64_t urgency = even ? draw() : s->urgency;
        if (!best || urgency > most) best = s, most = urgency;
    }
    if (best) execute_head(best);
    return best;
}

static void needed_step(struct stream *stream) {
    for (const struct record *record; (record = blocker(stream));) stream = record->stream;
    execute_head(stream);
}

void finish(struct stream *stream, const struct record *record) {
    static const unsigned shares[] = {0, 8, 128, 240, 255};
    unsigned share = shares[draw() % 5];
    while (!ruined && (record ? !record->done : !!stream->head))
        if (!chance(share) || !random_step()) needed_step(stream);
    while (!ruined && chance(share) && random_step());
    clean_up();
}

void finish_all(void) {
    while (!ruined && random_step());
    clean_up();
}

void poke(void) {
    while (!ruined && chance(128) && random_step());
    clean_up();
}

CUresult settle(const struct stream *stream) {
    counts[SYNCS]++;
    TRY(ruined);
    CUresult result = stream && failed_on != stream ? SUCCESS : failure;
    if (result) failure = SUCCESS, failed_on = NULL;
    return result;
}

API void fake_cuda_revive(void) {
    LOCK;
    for (struct stream *s = streams; s; s = s->next) {
        if (s->capture) capture_drop(s->capture);
        drop(s);
    }
    for (struct handle *h = handles; h; h = h->older) {
        if (is(h, STREAM)) cuStreamDestroy_v2(h);
        if (is(h, EVENT)) cuEventDestroy_v2((struct event *)h);
        if (is(h, EXEC)) cuGraphExecDestroy((struct graph *)h);
    }
    area_destroy_all(), forget_streams();
    ruined = failure = SUCCESS, failed_on = NULL;
}

API void fake_cuda_seed(uint64_t seed) {
    LOCK;
    state = mix(seed + 1), spell = 0;
}

__attribute__((constructor)) static void start(void) {
    const char *given = getenv("FAKE_CUDA_STICKY");
    sticky = given && *given && strcmp(given, "0");
    const char *seed = getenv("FAKE_CUDA_SEED");
    fake_cuda_seed(seed ? strtoull(seed, NULL, 0) : 0);
}
