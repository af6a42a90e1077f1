// What the parts of the fake driver share: engine.c runs queued work, graph.c captures it, the others answer the calls.
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))

typedef enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, NOT_READY = 600, INVALID_PTX = 218, ILLEGAL_ADDRESS = 700,
    LAUNCH_TIMEOUT = 702, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719, NOT_PERMITTED = 800, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905, CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, UNKNOWN = 999,
} CUresult;

// Every call holds one lock; LOCK gives it back when the calling function returns.
extern pthread_mutex_t lock;
void unlock(int *held);
int take(void);
bool nap(long *ms);  // give the lock away for a millisecond, if some are left
#define LOCK int held __attribute__((cleanup(unlock), unused)) = take()
#define TRY(call) do { CUresult result_ = (call); if (result_) return result_; } while (0)

CUresult started(void);   // whether any call is allowed here: initialised, no host callback
CUresult inside(void);    // and whether there is a context
extern CUresult ruined;   // SUCCESS, or the failure of queued work that ruined the context: from then on all calls return it
#define ENTER LOCK; TRY(inside()); TRY(ruined)
#define ROOM_IN(handle) \
    STREAM_OF(handle); \
    TRY(room(stream))
#define STREAM_OF(handle) \
    struct stream *stream = stream_of(handle); \
    if (!stream) return INVALID_HANDLE
extern struct context { int retained; unsigned flags; } primary;  // of the only device

enum count { ALLOCATIONS, LIVE_DEVICE, LIVE_PINNED, LIVE_STREAMS, LIVE_EVENTS, LIVE_GRAPHS, LIVE_EXECS, COPIES, SETS,
             LAUNCHES, RECORDS, WAITS, SYNCS, PAGEABLE_REFUSED, DEVICE_BYTES, PINNED_BYTES, UNKNOWN_LAUNCHES,
             GRAPH_LAUNCHES, EXECUTED_COPIES, EXECUTED_LAUNCHES, PENDING, LOADS, EVENTS_CREATED, STREAMS_CREATED,
             HOST_ALLOCATIONS, LIVE_MANAGED, MANAGED_BYTES, RESERVED_BYTES, PREFETCHES, SPINNING_SYNCS, TRANSLATIONS,
             LATE_LOADS, MAPS, UNMAPS, CREATES, LIVE_HANDLES, RESERVED_ADDRESSES, MAPPED_BYTES, COUNTS };
extern long counts[COUNTS];
enum fault { FAIL_ALLOCATION, FAIL_PINNED, FAIL_COPY, FAIL_SET, FAIL_LAUNCH, FAIL_RECORD, FAIL_WAIT, FAIL_EVENT,
             FAIL_STREAM, FAIL_GRAPH, FAIL_EXECUTION, FAIL_CONTEXT, FAIL_RESERVE, FAIL_CREATE, FAIL_MAP, FAIL_ACCESS,
             FAULTS };
bool fails(enum fault what);  // whether this is the call that was told to fail

extern bool sticky;                // illegal addresses ruin the context
extern bool pageable;              // asynchronous copies take memory that is not pinned
extern long host_ns;               // how long the host takes for a call that enqueues, while the device runs at once; 0: it does not
extern long patience;              // ms for which a stream that waits for a value in memory is waited for
extern long queue_length;          // how many entries a stream can hold; 0: any number

#define GOLDEN 0x9E3779B97F4A7C15u
uint64_t mix(uint64_t z);
uint64_t draw(void);
bool chance(unsigned of256);

// Memory. Device memory is only reached through `backing`: the addresses handed out cannot be read by the host.
struct area {
    uintptr_t base;
    size_t bytes;
    char *backing;
    bool device, managed, owned, dying;  // dying: a free of it is queued
    struct pool *pool;
    struct record *made;  // done when its memory can be used; NULL: at once
    struct reserved *range;      // of a mapping (mapping.c): where it lies, and what is mapped
    struct physical *physical;
    bool denied;                 // a mapping that nobody may access
    uint64_t id;
    struct area *next;
};
uint64_t memory_total(void);
uint64_t memory_free(void);
uint64_t pool_spare(const struct pool *pool);  // bytes that are reserved and not used
uint64_t pools_spare(void);
void pool_use(struct pool *pool, long bytes);
void pools_trim(bool all);  // give back what nobody uses, or only what is above the pools' thresholds
struct area *area_at(uintptr_t address, size_t bytes);
struct area *areas_between(uintptr_t address, size_t bytes);  // any of those that have some of these bytes
char *reach(uintptr_t address, size_t bytes);  // where queued work finds the bytes; NULL where it must not
CUresult area_create(struct area area, uintptr_t *address);
void area_add(struct area area);
void area_make(const struct record *made, uintptr_t address);
CUresult area_register(void *host, size_t bytes);
void area_destroy(struct area *area);
void area_destroy_all(void);
bool mapping_supported(void);
void mapping_end(struct area *area);
void mapping_reset(void);
void range_of(const struct area *area, uintptr_t *base, size_t *bytes);  // the addresses that a mapping lies in

// Handles are never freed, so that one that was destroyed is always recognised.
enum type { STREAM = 0x51, EVENT, GRAPH, EXEC, FUNCTION, LIBRARY, POOL, OBJECT, MEMORY };
struct handle {
    enum type type;
    bool live, gone;             // gone: with its context, not by a call that destroys it
    struct handle *older;
};
extern struct handle *handles;  // all but the default streams and pools, the newest first
void *handle_create(enum type type, size_t bytes);
bool lives(const void *handle, enum type type);
bool given(const void *handle, enum type type, const char *call);  // as `lives`; ends the process where it was destroyed
#define is(handle, type) given(handle, type, __func__)

// One record of an event, or one end of a graph launch. Waits and events refer to it.
struct record {
    int references;
    bool done;
    uint64_t time;
    struct stream *stream;
};
struct record *record_create(struct stream *stream);
struct record *record_share(struct record *record);
void record_release(struct record *record);

enum { MAX_WORDS = 4 };
struct function {
    struct handle handle;
    const struct builtin *builtin;
    const struct module *module;  // of a kernel from PTX (modules.c), or NULL
    const struct kernel *kernel;
    struct function *next;       // of the same library
    bool loaded;
    char name[];
};
const struct builtin *builtin_find(const char *name);
struct library {
    struct handle handle;
    const struct module *module;
    struct function *functions;
};
CUresult module_load(const char *code, const struct module **module);  // NULL where the code is not PTX
const char *module_refusal(void);  // why the last PTX was refused
const struct kernel *module_kernel(const struct module *module, const char *name);
unsigned function_parameters(const struct function *function);
CUresult function_attribute(const struct function *function, int attribute, int *value);
CUresult function_parameter(const struct function *function, size_t index, size_t *offset, size_t *size);

// One launch of a kernel from PTX: its parameters as they were then (modules.c), and how it is run (blocks.c).
struct launched *launched_create(const struct function *function, const unsigned *grid, const unsigned *block,
                                 unsigned shared, void **parameters);
struct launched *launched_share(struct launched *launched);
void launched_release(struct launched *launched);
CUresult launched_run(struct launched *launched);
void report_once(const char *text);  // keep the first report, until somebody asks for it
int builtin_words(const struct builtin *builtin);

enum kind { COPY, SET, LAUNCH, CALL, RECORD, WAIT, FREE, RUN, GATE, STORE, MAKE, PREFETCH };
struct op {
    enum kind kind;
    uintptr_t to, from;          // COPY, SET, FREE, GATE, STORE, MAKE, PREFETCH
    size_t bytes;
    bool pageable;               // COPY: host memory that is not pinned is accepted, as the caller waits
    unsigned value, width;       // SET; GATE, STORE: the flags, and the bytes of the value
    const struct function *function;
    uint64_t words[MAX_WORDS];   // LAUNCH; the value of GATE, STORE
    struct launched *launched;   // LAUNCH of a kernel from PTX
    void (*call)(void *);        // CALL
    void *data;
    struct record *record;       // RECORD, WAIT, MAKE
    struct event *event;         // RECORD in a graph
    struct run *run;             // RUN
    struct op *next;
};

struct node {
    struct op op;
    int index, waits;            // nodes are numbered in an order that follows the dependencies
    struct node **after;
};
struct set {
    struct node **items;
    int size;
};

struct stream {
    struct handle handle;
    unsigned flags;
    int priority;
    uint64_t urgency;            // the scheduler's, random
    struct op *head, **tail;
    long queued;                 // entries
    struct capture *capture;
    struct set frontier;         // what the next captured node depends on
    struct stream *next;
};
struct event {
    struct handle handle;
    unsigned flags;
    struct record *record;       // the latest one
    struct capture *capture;     // set when the latest record was captured
    struct set nodes;
};
struct graph {                   // a CUgraph, or the copy of one that a CUgraphExec launches
    struct handle handle;
    struct node **nodes;
    int size;
    struct owned { struct object *object; struct owned *next; unsigned count; } *owned;
    struct record *latest;       // CUgraphExec: the end of its latest launch
    int running;
};
struct run {                     // one launch of a graph
    struct graph *exec;
    struct record *previous, *end, **records;
    uint64_t *urgency;
    bool *done;
    int left;
};
struct capture {
    struct graph *graph;
    struct stream *origin;
    int mode;
    uint64_t id;
    bool invalid, over;
};

extern struct stream *streams, legacy, per_thread;
struct stream *stream_at(void *handle, const char *call);  // NULL where it is none
#define stream_of(handle) stream_at(handle, __func__)
CUresult room(struct stream *stream);    // have room for one more entry; LAUNCH_TIMEOUT where the head never goes
void push(struct stream *stream, const struct op *op);
CUresult finish(struct stream *stream, struct record *record);  // until the stream is empty, or the record is made
CUresult open_gates(void);               // wait until no stream has, or comes to, a wait for a value that nobody writes
CUresult finish_all(void);               // all streams
void execute_all(void);                  // what can be executed
void poke(void);                         // execute a few entries, or none
extern unsigned spell;
extern bool calling;                     // a host callback is running: it must not use the driver
void spins(bool blocking);               // a host synchronisation begins; blocking: the thread sleeps until it ends
CUresult settle(const struct stream *stream);  // a host synchronisation ends: an asynchronous failure comes out here

CUresult enqueue(struct stream *stream, const struct op *op);  // push, or add to the graph being captured
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);
CUresult capture_forbids(struct stream *stream);  // synchronising or asking this stream (NULL: any)
CUresult capture_forbids_unsafe(bool implicit);   // calls that a capture in mode "global" forbids
bool run_step(struct run *run, void (*perform)(struct op *));  // execute one node; true when the last one is done
void run_drop(struct run *run);                   // forget a launch that never ends
void capture_drop(struct capture *capture);       // nobody will end it
void set_assign(struct set *set, const struct set *other);
void graph_let_go(struct graph *graph);

// Calls that other calls make.
API void fake_cuda_revive(void);
API CUresult cuStreamDestroy_v2(void *handle);
API CUresult cuStreamEndCapture(void *handle, struct graph **graph);
API CUresult cuEventDestroy_v2(struct event *event);
API CUresult cuGraphDestroy(struct graph *graph);
API CUresult cuGraphExecDestroy(struct graph *exec);
