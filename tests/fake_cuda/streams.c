// Streams and events.
#include "fake.h"
#include <stdlib.h>

API CUresult cuStreamCreateWithPriority(struct stream **result, unsigned flags, int priority) {
    ENTER;
    if (fails(FAIL_STREAM)) return UNKNOWN;
    struct stream *stream = *result = handle_create(STREAM, sizeof *stream);
    stream->flags = flags, stream->priority = priority, stream->tail = &stream->head, stream->urgency = draw();
    stream->next = streams, streams = stream;
    counts[LIVE_STREAMS]++, counts[STREAMS_CREATED]++;
    return SUCCESS;
}
API CUresult cuStreamCreate(struct stream **result, unsigned flags) {
    return cuStreamCreateWithPriority(result, flags, 0);
}
API CUresult cuStreamDestroy_v2(void *handle) {  // what is queued still runs
    LOCK;
    STREAM_OF(handle);
    if (stream == &legacy || stream == &per_thread) return INVALID_HANDLE;
    struct graph *graph = NULL;
    if (stream->capture && stream->capture->origin == stream) cuStreamEndCapture(stream, &graph);
    cuGraphDestroy(graph);  // of a capture that nobody ended
    stream->handle.live = false;
    counts[LIVE_STREAMS]--;
    return ruined;
}
API CUresult cuStreamSynchronize(void *handle) {
    ENTER;
    STREAM_OF(handle);
    TRY(capture_forbids(stream));
    spins(false);
    TRY(finish(stream, NULL));
    return settle(stream);
}
API CUresult cuStreamQuery(void *handle) {
    ENTER;
    STREAM_OF(handle);
    TRY(capture_forbids(stream));
    poke();
    return ruined ? ruined : stream->head ? NOT_READY : SUCCESS;
}
API CUresult cuStreamWaitEvent(void *handle, struct event *event, unsigned flags) {
    ENTER;
    ROOM_IN(handle);
    if (!is(event, EVENT)) return INVALID_HANDLE;
    if (flags) return NOT_SUPPORTED;
    if (fails(FAIL_WAIT)) return UNKNOWN;
    if (stream->capture || event->capture) TRY(capture_wait(stream, event));
    else if (event->record) push(stream, &(struct op){.kind = WAIT, .record = record_share(event->record)});
    return counts[WAITS]++, SUCCESS;
}

// Waiting for a value in memory, and writing one.
static CUresult value(enum kind kind, void *handle, uint64_t to, uint64_t number, unsigned width, unsigned flags) {
    ENTER;
    ROOM_IN(handle);
    struct area *area = area_at(to, width);
    if (!area || area->dying || to % width) return INVALID_VALUE;
    if (stream->capture) return NOT_SUPPORTED;
    push(stream, &(struct op){.kind = kind, .to = to, .words = {number}, .value = flags, .width = width});
    return SUCCESS;
}
API CUresult cuStreamWaitValue32_v2(void *stream, uint64_t at, uint32_t number, unsigned flags) {
    return value(GATE, stream, at, number, 4, flags);
}
API CUresult cuStreamWaitValue64_v2(void *stream, uint64_t at, uint64_t number, unsigned flags) {
    return value(GATE, stream, at, number, 8, flags);
}
API CUresult cuStreamWriteValue32_v2(void *stream, uint64_t to, uint32_t number, unsigned flags) {
    return value(STORE, stream, to, number, 4, flags);
}
API CUresult cuStreamWriteValue64_v2(void *stream, uint64_t to, uint64_t number, unsigned flags) {
    return value(STORE, stream, to, number, 8, flags);
}

API CUresult cuLaunchHostFunc(void *handle, void (*call)(void *), void *data) {
    ENTER;
    ROOM_IN(handle);
    return enqueue(stream, &(struct op){.kind = CALL, .call = call, .data = data});
}
API CUresult cuStreamGetFlags(void *handle, unsigned *flags) {
    LOCK;
    STREAM_OF(handle);
    return *flags = stream->flags, SUCCESS;
}
API CUresult cuStreamGetPriority(void *handle, int *priority) {
    LOCK;
    STREAM_OF(handle);
    return *priority = stream->priority, SUCCESS;
}
API CUresult cuStreamGetId(void *handle, uint64_t *id) {
    LOCK;
    STREAM_OF(handle);
    return *id = (uintptr_t)stream, SUCCESS;
}
API CUresult cuStreamGetDevice(void *handle, int *device) {
    LOCK;
    STREAM_OF(handle);
    return *device = 0, SUCCESS;
}
API CUresult cuStreamGetCtx(void *handle, void **context) {
    LOCK;
    STREAM_OF(handle);
    return *context = &primary, SUCCESS;
}
API CUresult cuStreamGetCtx_v2(void *handle, void **context, void **green) {
    if (green) *green = NULL;
    return cuStreamGetCtx(handle, context);
}

API CUresult cuEventCreate(struct event **result, unsigned flags) {
    ENTER;
    if (fails(FAIL_EVENT)) return UNKNOWN;
    *result = handle_create(EVENT, sizeof **result);
    (*result)->flags = flags;
    counts[LIVE_EVENTS]++, counts[EVENTS_CREATED]++;
    return SUCCESS;
}
API CUresult cuEventDestroy_v2(struct event *event) {
    LOCK;
    if (!is(event, EVENT)) return INVALID_HANDLE;
    event->handle.live = false;
    record_release(event->record);
    free(event->nodes.items);
    counts[LIVE_EVENTS]--;
    return ruined;
}
API CUresult cuEventRecordWithFlags(struct event *event, void *handle, unsigned flags) {  // 1: external to a capture
    ENTER;
    ROOM_IN(handle);
    if (!is(event, EVENT)) return INVALID_HANDLE;
    if (fails(FAIL_RECORD)) return UNKNOWN;
    if (stream->capture && flags) {
        TRY(enqueue(stream, &(struct op){.kind = RECORD, .event = event}));
    } else if (stream->capture) {
        TRY(capture_record(stream, event));
    } else {
        record_release(event->record);
        event->record = record_create(stream), event->capture = NULL;
        push(stream, &(struct op){.kind = RECORD, .record = record_share(event->record)});
    }
    return counts[RECORDS]++, SUCCESS;
}
API CUresult cuEventRecord(struct event *event, void *stream) { return cuEventRecordWithFlags(event, stream, 0); }

static CUresult captured(struct event *event) {
    if (!event->capture) return SUCCESS;
    event->capture->invalid = true;
    return CAPTURED_EVENT;
}
API CUresult cuEventSynchronize(struct event *event) {
    ENTER;
    if (!is(event, EVENT)) return INVALID_HANDLE;
    TRY(captured(event));
    spins(event->flags & 1);
    if (event->record && !event->record->done) TRY(finish(event->record->stream, event->record));
    return settle(event->record ? event->record->stream : NULL);
}
API CUresult cuEventQuery(struct event *event) {
    ENTER;
    if (!is(event, EVENT)) return INVALID_HANDLE;
    TRY(captured(event));
    poke();
    return ruined ? ruined : event->record && !event->record->done ? NOT_READY : SUCCESS;
}
API CUresult cuEventElapsedTime_v2(float *ms, struct event *start, struct event *end) {
    ENTER;
    if (!is(start, EVENT) || !is(end, EVENT) || (start->flags | end->flags) & 2) return INVALID_HANDLE;
    if (start->capture || end->capture || !start->record || !end->record) return INVALID_HANDLE;
    if (!start->record->done || !end->record->done) return NOT_READY;
    *ms = (float)((double)(int64_t)(end->record->time - start->record->time) / 1e6);
    return SUCCESS;
}
API CUresult cuEventElapsedTime(float *ms, struct event *start, struct event *end) {
    return cuEventElapsedTime_v2(ms, start, end);
}
