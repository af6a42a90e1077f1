// Memory, streams and the order in which queued work is executed.
#include "fake.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned spell;           // for how many steps the scheduler keeps its way of choosing
bool calling;
CUresult ruined;
static CUresult failure;  // of queued work, until the next synchronisation with its stream, or with all
static const struct stream *failed_on;
static uint64_t now, host_now;  // ns: when the device is done with what it has executed, when the host makes its call

struct handle *handles;
void *handle_create(enum type type, size_t bytes) {
    struct handle *handle = calloc(1, bytes);
    *handle = (struct handle){type, true, false, handles};
    return handles = handle;
}
bool lives(const void *handle, enum type type) {
    const struct handle *it = handle;
    return it && it->type == type && it->live;
}
bool given(const void *handle, enum type type, const char *call) {
    const struct handle *it = handle;
    if (it && it->type == type && !it->live && !it->gone && (type == STREAM || type == EVENT)) {
        fprintf(stderr, "fake cuda: %s was given %s that was destroyed\n", call, type == STREAM ? "a stream" : "an event");
        abort();
    }
    return lives(handle, type);
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

struct stream *stream_at(void *handle, const char *call) {
    if ((uintptr_t)handle <= 1) return &legacy;
    if ((uintptr_t)handle == 2) return &per_thread;
    return given(handle, STREAM, call) ? handle : NULL;
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
    stream->queued++, counts[PENDING]++;
    if (host_ns) host_now += (uint64_t)host_ns, execute_all();
}

static void memory_set(char *to, const struct op *op) {
    for (size_t i = 0; i < op->bytes; i += op->width) memcpy(to + i, &op->value, op->width);
}

static void perform(struct op *op) {
    bool done = true;
    if (now < host_now) now = host_now;
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
        CUresult result = op->launched ? launched_run(op->launched) : SUCCESS;
        if (result) *(sticky ? &ruined : &failure) = result;
        now += 1000, counts[EXECUTED_LAUNCHES]++;
    } else if (op->kind == CALL) {
        calling = true;
        op->call(op->data);
        calling = false;
    } else if (op->kind == RECORD) {
        op->record->done = true, op->record->time = now += 10;
    } else if (op->kind == FREE) {
        struct area *area = area_at(op->to, 0);
        done = reach(op->to, 0);
        if (area) area_destroy(area);
    } else if (op->kind == STORE) {
        char *to = reach(op->to, op->width);
        if ((done = to)) memcpy(to, op->words, op->width);
        now += 10;
    } else if (op->kind == MAKE) {
        op->record->done = true;
        area_make(op->record, op->to);
    } else if (op->kind == PREFETCH) {
        done = reach(op->to, op->bytes);
        now += 500 + op->bytes / 16;
    } else if (op->kind == GATE) {
        done = reach(op->to, op->width);
    }
    if (!done) *(sticky ? &ruined : &failure) = ILLEGAL_ADDRESS;
}

static const struct record *blocker(const struct stream *stream) {  // what the head of the stream still waits for
    const struct record *record = NULL;
    if (stream->head->kind == WAIT) record = stream->head->record;
    if (stream->head->kind == RUN) record = stream->head->run->previous;
    return record && !record->done ? record : NULL;
}

static bool shut(const struct op *op) {  // a gate whose value in memory is not the one that opens it
    const void *at = op->kind == GATE ? reach(op->to, op->width) : NULL;
    uint64_t found = 0, wanted = op->words[0];
    if (!at) return false;
    memcpy(&found, at, op->width);
    int64_t ahead = op->width == 8 ? (int64_t)(found - wanted) : (int32_t)((uint32_t)found - (uint32_t)wanted);
    uint64_t neither = op->width == 8 ? ~(found | wanted) : (uint32_t)~(found | wanted);
    const bool open[] = {ahead >= 0, found == wanted, found & wanted, neither};
    return !open[op->value & 3];
}

static void execute_head(struct stream *stream) {
    struct op *op = stream->head;
    if (op->kind == RUN && !run_step(op->run, perform)) return;
    perform(op);
    if (failure && !failed_on) failed_on = stream;
    stream->head = op->next;
    if (!stream->head) stream->tail = &stream->head;
    record_release(op->record);
    launched_release(op->launched), free(op);
    stream->queued--, counts[PENDING]--;
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
        stream->queued--, counts[PENDING]--;
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
        if (!s->head || blocker(s) || shut(s->head)) continue;
        uint64_t urgency = even ? draw() : s->urgency;
        if (!best || urgency > most) best = s, most = urgency;
    }
    if (best) execute_head(best);
    return best;
}

static CUresult stuck(const struct stream *stream) {
    fprintf(stderr, "fake cuda: stream %p waits for a value that nobody writes\n", (const void *)stream);
    return LAUNCH_TIMEOUT;
}

static CUresult needed_step(struct stream *stream, long *ms) {
    for (const struct record *record; (record = blocker(stream));) stream = record->stream;
    if (!shut(stream->head)) return execute_head(stream), SUCCESS;
    return random_step() || nap(ms) ? SUCCESS : stuck(stream);  // others may write what it waits for
}

CUresult room(struct stream *stream) {
    CUresult result = ruined;
    long ms = patience;
    while (queue_length && !stream->capture && stream->queued >= queue_length && !result) {
        result = needed_step(stream, &ms);
        if (ruined) result = ruined;
    }
    return clean_up(), result;
}

CUresult finish(struct stream *stream, struct record *record) {
    static const unsigned shares[] = {0, 8, 128, 240, 255};
    unsigned share = shares[draw() % 5];
    CUresult result = SUCCESS;
    long ms = patience;
    record_share(record);  // while this thread waits for others, they may record the event again
    while (!ruined && !result && (record ? !record->done : !!stream->head))
        if (!chance(share) || !random_step()) result = needed_step(stream, &ms);
    while (!ruined && chance(share) && random_step());
    return record_release(record), clean_up(), result;
}

static bool written(uintptr_t address) {  // whether anything that is queued writes this value
    for (struct stream *s = streams; s; s = s->next)
        for (const struct op *op = s->head; op; op = op->next)
            if (op->kind == STORE && op->to == address) return true;
    return false;
}

CUresult open_gates(void) {
    long ms = patience;
    for (struct stream *s = streams; s;) {
        const struct op *op = s->head;
        while (op && (!shut(op) || written(op->to))) op = op->next;
        if (op && !nap(&ms)) return stuck(s);
        s = op ? streams : s->next;
    }
    return SUCCESS;
}

void execute_all(void) {
    while (!ruined && random_step());
    clean_up();
}

CUresult finish_all(void) {
    long ms = patience;
    for (struct stream *s;;) {
        execute_all();
        for (s = streams; s && !s->head;) s = s->next;
        if (!s) return SUCCESS;
        if (!nap(&ms)) return stuck(s);
    }
}

void poke(void) {
    while (!ruined && chance(128) && random_step());
    clean_up();
}

void spins(bool blocking) { counts[SPINNING_SYNCS] += !blocking && !(primary.flags & 4); }

CUresult settle(const struct stream *stream) {
    counts[SYNCS]++;
    if (host_now < now) host_now = now;
    pools_trim(false);
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
        h->gone |= h->live;
        if (lives(h, STREAM)) cuStreamDestroy_v2(h);
        if (lives(h, EVENT)) cuEventDestroy_v2((struct event *)h);
        if (lives(h, EXEC)) cuGraphExecDestroy((struct graph *)h);
        if (lives(h, FUNCTION)) ((struct function *)h)->loaded = false;
    }
    area_destroy_all(), mapping_reset(), pools_trim(true), forget_streams();
    ruined = failure = SUCCESS, failed_on = NULL;
}
