// Stream capture and graphs.
#include "fake.h"
#include <stdlib.h>
#include <string.h>

void set_assign(struct set *set, const struct set *other) {
    struct node **items = malloc((size_t)other->size * sizeof *items + 1);
    for (int i = 0; i < other->size; i++) items[i] = other->items[i];
    free(set->items);
    *set = (struct set){items, other->size};
}

static void set_join(struct set *set, const struct set *other) {
    set->items = realloc(set->items, (size_t)(set->size + other->size) * sizeof *set->items + 1);
    for (int i = 0; i < other->size; i++) {
        int k = 0;
        while (k < set->size && set->items[k] != other->items[i]) k++;
        if (k == set->size) set->items[set->size++] = other->items[i];
    }
}

static struct node *node_add(struct graph *graph, const struct op *op, const struct set *after) {
    struct node *node = calloc(1, sizeof *node);
    struct set own = {0};
    set_assign(&own, after);
    *node = (struct node){*op, graph->size, own.size, own.items};
    graph->nodes = realloc(graph->nodes, (size_t)(graph->size + 1) * sizeof node);
    return graph->nodes[graph->size++] = node;
}

// --- capture

static CUresult invalidate(struct capture *capture, CUresult result) {
    capture->invalid = true;
    return result;
}

CUresult enqueue(struct stream *stream, const struct op *op) {
    TRY(ruined);
    struct capture *capture = stream->capture;
    if (!capture) return push(stream, op), SUCCESS;
    if (capture->invalid) return CAPTURE_INVALIDATED;
    struct node *node = node_add(capture->graph, op, &stream->frontier);
    set_assign(&stream->frontier, &(struct set){&node, 1});
    return SUCCESS;
}

CUresult capture_record(struct stream *stream, struct event *event) {
    if (stream->capture->invalid) return CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    set_assign(&event->nodes, &stream->frontier);
    return SUCCESS;
}

// Only called where the stream or the event's latest record is captured.
CUresult capture_wait(struct stream *stream, struct event *event) {
    if (stream->capture && stream->capture->invalid) return CAPTURE_INVALIDATED;
    if (!event->capture) return invalidate(stream->capture, CAPTURE_ISOLATION);
    if (event->capture->over) return CAPTURED_EVENT;
    if (event->capture->invalid) return CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != event->capture)
        return invalidate(event->capture, invalidate(stream->capture, CAPTURE_MERGE));
    if (stream == &legacy) return invalidate(event->capture, CAPTURE_IMPLICIT);
    stream->capture = event->capture;
    set_join(&stream->frontier, &event->nodes);
    return SUCCESS;
}

CUresult capture_forbids(struct stream *stream) {
    for (struct stream *s = streams; s; s = s->next)
        if (s->capture && (!stream || s == stream)) return invalidate(s->capture, CAPTURE_UNSUPPORTED);
    return SUCCESS;
}

static _Thread_local int thread_mode;  // 2: relaxed

CUresult capture_forbids_unsafe(bool implicit) {
    for (struct stream *s = streams; s; s = s->next) {
        if (s->capture && s->capture->mode == 0 && thread_mode != 2) return invalidate(s->capture, CAPTURE_UNSUPPORTED);
        if (s->capture && implicit && !(s->flags & 1)) return invalidate(s->capture, CAPTURE_IMPLICIT);
    }
    return SUCCESS;
}

static struct graph *graph_create(enum type type) {
    struct graph *graph = handle_create(type, sizeof *graph);
    counts[type == GRAPH ? LIVE_GRAPHS : LIVE_EXECS]++;
    return graph;
}

API CUresult cuStreamBeginCapture_v2(void *handle, int mode) {
    LOCK;
    TRY(ruined);
    static uint64_t id;
    struct stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return ILLEGAL_STATE;
    if (stream == &legacy) return CAPTURE_UNSUPPORTED;
    struct capture *capture = calloc(1, sizeof *capture);  // never freed: events refer to it
    *capture = (struct capture){.graph = graph_create(GRAPH), .origin = stream, .mode = mode, .id = ++id};
    stream->capture = capture;
    set_assign(&stream->frontier, &(struct set){NULL, 0});
    return SUCCESS;
}

static bool joined(const struct capture *capture) {  // whether all of it comes before the end of the first stream
    bool *before = calloc((size_t)capture->graph->size + 1, 1), all = true;
    for (int i = 0; i < capture->origin->frontier.size; i++) before[capture->origin->frontier.items[i]->index] = true;
    for (int i = capture->graph->size; i--;)
        for (int k = 0; before[i] && k < capture->graph->nodes[i]->waits; k++)
            before[capture->graph->nodes[i]->after[k]->index] = true;
    for (struct stream *s = streams; s; s = s->next)
        for (int i = 0; s->capture == capture && i < s->frontier.size; i++) all &= before[s->frontier.items[i]->index];
    free(before);
    return all;
}

static void leave(struct capture *capture) {
    capture->over = true;
    for (struct stream *s = streams; s; s = s->next)
        if (s->capture == capture) s->capture = NULL, s->frontier.size = 0;
}
void capture_drop(struct capture *capture) {
    leave(capture);
    cuGraphDestroy(capture->graph);
}

API CUresult cuStreamEndCapture(void *handle, struct graph **graph) {
    LOCK;
    struct stream *stream = stream_of(handle);
    if (graph) *graph = NULL;
    if (!stream) return INVALID_HANDLE;
    struct capture *capture = stream->capture;
    if (!capture) return ILLEGAL_STATE;
    if (capture->origin != stream) return invalidate(capture, CAPTURE_UNMATCHED);
    CUresult result = ruined             ? ruined
                      : capture->invalid ? CAPTURE_INVALIDATED
                      : joined(capture)  ? SUCCESS
                                         : CAPTURE_UNJOINED;
    leave(capture);
    if (result) cuGraphDestroy(capture->graph);
    else if (graph) *graph = capture->graph;
    return result;
}

static CUresult info(void *handle, int *status, uint64_t *id, struct graph **graph, struct node ***after,
                     size_t *size) {
    TRY(ruined);
    struct stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    struct capture *capture = stream->capture;
    if (status) *status = !capture ? 0 : capture->invalid ? 2 : 1;
    if (!capture || capture->invalid) return SUCCESS;
    if (id) *id = capture->id;
    if (graph) *graph = capture->graph;
    if (after) *after = stream->frontier.items;
    if (size) *size = (size_t)stream->frontier.size;
    return SUCCESS;
}

API CUresult cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, struct graph **graph,
                                       struct node ***after, size_t *size) {
    LOCK;
    return info(handle, status, id, graph, after, size);
}
API CUresult cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, struct graph **graph,
                                       struct node ***after, void **edges, size_t *size) {
    LOCK;
    static uint64_t *plain;  // the data of an edge is 8 bytes, zero for an ordinary one
    static size_t room;
    size_t needed = 0;
    TRY(info(handle, status, id, graph, after, &needed));
    if (needed > room) plain = calloc(room = needed, sizeof *plain);
    if (edges) *edges = plain;
    if (size) *size = needed;
    return SUCCESS;
}
API CUresult cuStreamIsCapturing(void *handle, int *status) {
    LOCK;
    return info(handle, status, NULL, NULL, NULL, NULL);
}
API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    int previous = thread_mode;
    thread_mode = *mode, *mode = previous;
    return SUCCESS;
}

// --- objects whose lifetime a graph holds

struct object {
    struct handle handle;
    void *data;
    void (*destroy)(void *);
    unsigned count;
};

static void object_release(struct object *object, unsigned count) {
    object->count -= count < object->count ? count : object->count;
    if (object->count || !object->handle.live) return;
    object->handle.live = false;
    object->destroy(object->data);
}

static void graph_own(struct graph *graph, struct object *object, unsigned count) {
    struct owned *owned = malloc(sizeof *owned);
    *owned = (struct owned){object, graph->owned, count};
    graph->owned = owned;
}

API CUresult cuUserObjectCreate(struct object **object, void *data, void (*destroy)(void *), unsigned count,
                                unsigned flags UNUSED) {
    LOCK;
    *object = handle_create(OBJECT, sizeof **object);
    (*object)->data = data, (*object)->destroy = destroy, (*object)->count = count;
    return SUCCESS;
}
API CUresult cuUserObjectRetain(struct object *object, unsigned count) {
    LOCK;
    if (!is(object, OBJECT)) return INVALID_VALUE;
    object->count += count;
    return SUCCESS;
}
API CUresult cuUserObjectRelease(struct object *object, unsigned count) {
    LOCK;
    if (!is(object, OBJECT)) return INVALID_VALUE;
    object_release(object, count);
    return SUCCESS;
}
API CUresult cuGraphRetainUserObject(struct graph *graph, struct object *object, unsigned count, unsigned flags) {
    LOCK;
    if (!is(graph, GRAPH) || !is(object, OBJECT)) return INVALID_VALUE;
    if (!(flags & 1)) object->count += count;  // 1: the caller's references move to the graph
    graph_own(graph, object, count);
    return SUCCESS;
}
API CUresult cuGraphReleaseUserObject(struct graph *graph, struct object *object, unsigned count) {
    LOCK;
    if (!is(graph, GRAPH) || !is(object, OBJECT)) return INVALID_VALUE;
    for (struct owned *o = graph->owned; o && count; o = o->next) {
        unsigned part = o->object != object ? 0 : o->count < count ? o->count : count;
        o->count -= part, count -= part;
        object_release(object, part);
    }
    return SUCCESS;
}

// --- graphs

void graph_let_go(struct graph *graph) {  // an exec that is still running is let go when it ends
    if (graph->handle.live || graph->running) return;
    for (int i = 0; i < graph->size; i++) {
        launched_release(graph->nodes[i]->op.launched);
        free(graph->nodes[i]->after), free(graph->nodes[i]);
    }
    free(graph->nodes);
    for (struct owned *o = graph->owned, *next; o; o = next) {
        next = o->next;
        object_release(o->object, o->count);
        free(o);
    }
    record_release(graph->latest);
    graph->nodes = NULL, graph->size = 0, graph->owned = NULL, graph->latest = NULL;
}

static CUresult destroy(struct graph *graph, enum type type) {
    if (!is(graph, type)) return INVALID_VALUE;
    graph->handle.live = false;
    counts[type == GRAPH ? LIVE_GRAPHS : LIVE_EXECS]--;
    graph_let_go(graph);
    return ruined;
}
API CUresult cuGraphDestroy(struct graph *graph) {
    LOCK;
    return destroy(graph, GRAPH);
}
API CUresult cuGraphExecDestroy(struct graph *exec) {
    LOCK;
    return destroy(exec, EXEC);
}

API CUresult cuGraphInstantiateWithFlags(struct graph **exec, struct graph *graph, uint64_t flags UNUSED) {
    LOCK;
    TRY(ruined);
    if (!is(graph, GRAPH)) return INVALID_VALUE;
    if (fails(FAIL_GRAPH)) return UNKNOWN;
    *exec = graph_create(EXEC);
    for (int i = 0; i < graph->size; i++) {
        struct node *node = graph->nodes[i];
        launched_share(node->op.launched);
        node = node_add(*exec, &node->op, &(struct set){node->after, node->waits});
        for (int k = 0; k < node->waits; k++) node->after[k] = (*exec)->nodes[node->after[k]->index];
    }
    for (struct owned *o = graph->owned; o; o = o->next)
        if (o->count && o->object->handle.live) o->object->count++, graph_own(*exec, o->object, 1);
    return SUCCESS;
}

struct instantiate {
    uint64_t flags;
    void *stream;
    struct node *failed;
    int result;
};
API CUresult cuGraphInstantiateWithParams(struct graph **exec, struct graph *graph, struct instantiate *parameters) {
    LOCK;
    parameters->failed = NULL, parameters->result = 0;
    return cuGraphInstantiateWithFlags(exec, graph, parameters->flags);
}

API CUresult cuGraphUpload(struct graph *exec, void *handle) {
    LOCK;
    TRY(ruined);
    return is(exec, EXEC) && stream_of(handle) ? SUCCESS : INVALID_HANDLE;
}

API CUresult cuGraphLaunch(struct graph *exec, void *handle) {
    LOCK;
    TRY(ruined);
    ROOM_IN(handle);
    if (!is(exec, EXEC)) return INVALID_HANDLE;
    if (stream->capture) return NOT_SUPPORTED;
    if (fails(FAIL_GRAPH)) return LAUNCH_FAILED;
    struct run *run = calloc(1, sizeof *run);
    size_t size = (size_t)exec->size + 1;
    *run = (struct run){exec, exec->latest, record_create(stream), calloc(size, sizeof *run->records),
                        calloc(size, sizeof *run->urgency), calloc(size, 1), exec->size};
    for (int i = 0; i < exec->size; i++) {
        run->urgency[i] = draw();
        struct event *event = exec->nodes[i]->op.event;
        if (!event || !lives(event, EVENT)) continue;
        record_release(event->record);
        event->record = record_create(stream), event->capture = NULL;
        run->records[i] = record_share(event->record);
    }
    exec->running++, exec->latest = record_share(run->end);
    counts[GRAPH_LAUNCHES]++;
    push(stream, &(struct op){.kind = RUN, .run = run, .record = record_share(run->end)});
    return SUCCESS;
}

static void run_end(struct run *run) {
    struct graph *exec = run->exec;
    record_release(run->end), record_release(run->previous);
    free(run->records), free(run->urgency), free(run->done), free(run);
    exec->running--;
    graph_let_go(exec);
}
void run_drop(struct run *run) {
    for (int i = 0; i < run->exec->size; i++)
        if (!run->done[i]) record_release(run->records[i]);
    run_end(run);
}

bool run_step(struct run *run, void (*perform)(struct op *)) {
    struct graph *exec = run->exec;
    bool even = chance(64);
    int best = -1;
    uint64_t most = 0;
    for (int i = 0; i < exec->size; i++) {
        struct node *node = exec->nodes[i];
        bool ready = !run->done[i];
        for (int k = 0; k < node->waits; k++) ready &= run->done[node->after[k]->index];
        uint64_t urgency = even ? draw() : run->urgency[i];
        if (ready && (best < 0 || urgency > most)) best = i, most = urgency;
    }
    if (best >= 0) {
        struct op op = exec->nodes[best]->op;
        op.record = run->records[best];
        run->done[best] = true, run->left--;
        if (op.kind != RECORD || op.record) perform(&op);
        record_release(op.record);
    }
    if (run->left) return false;
    run->end->done = true;
    run_end(run);
    return true;
}

API CUresult cuGraphGetNodes(struct graph *graph, struct node **nodes, size_t *size) {
    LOCK;
    if (!is(graph, GRAPH)) return INVALID_VALUE;
    for (size_t i = 0; nodes && i < *size; i++) nodes[i] = i < (size_t)graph->size ? graph->nodes[i] : NULL;
    if (!nodes || *size > (size_t)graph->size) *size = (size_t)graph->size;
    return SUCCESS;
}
API CUresult cuGraphNodeGetType(struct node *node, int *type) {
    static const int types[] = {[COPY] = 1, [SET] = 2, [LAUNCH] = 0, [CALL] = 3, [RECORD] = 7};
    *type = types[node->op.kind];
    return SUCCESS;
}
API CUresult cuGraphNodeGetDependencies_v2(struct node *node, struct node **after, uint64_t *edges, size_t *size) {
    LOCK;
    for (size_t i = 0; edges && i < *size; i++) edges[i] = 0;
    for (size_t i = 0; after && i < *size; i++) after[i] = i < (size_t)node->waits ? node->after[i] : NULL;
    if (!after || *size > (size_t)node->waits) *size = (size_t)node->waits;
    return SUCCESS;
}
