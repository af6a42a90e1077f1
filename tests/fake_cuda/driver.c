// The calls of the driver API, apart from those on graphs.
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool initialised;
static struct context { int retained; } primary;  // of the only device
static _Thread_local void *contexts[16];
static _Thread_local int depth;

#define ENTER \
    LOCK; \
    if (!initialised) return NOT_INITIALIZED; \
    if (calling) return NOT_PERMITTED; \
    if (!depth || !contexts[depth - 1]) return INVALID_CONTEXT
#define STREAM_OF(handle) \
    struct stream *stream = stream_of(handle); \
    if (!stream) return INVALID_HANDLE

// --- finding the calls

enum { VERSION = 13000 };

API CUresult cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags UNUSED, int *status) {
    static const struct { const char *name; int version; const char *suffix; } signatures[] = {
        {"cuStreamGetCaptureInfo", 12030, "_v3"}, {"cuStreamGetCaptureInfo", 11030, "_v2"},
        {"cuStreamGetCaptureInfo", 0, "_absent"}, {"cuStreamGetCtx", 12050, "_v2"}, {"cuStreamGetCtx", 0, ""},
        {"cuCtxGetDevice", 13000, "_v2"}, {"cuCtxGetDevice", 0, ""}, {"cuCtxSynchronize", 13000, "_v2"},
        {"cuCtxSynchronize", 0, ""}, {"cuGraphNodeGetDependencies", 12030, "_v2"},
        {"cuGraphNodeGetDependencies", 0, "_absent"}, {"cuGraphInstantiate", 12000, "WithFlags"},
        {"cuGraphInstantiate", 0, "_absent"},
    };
    LOCK;
    static void *self;
    Dl_info info;
    *call = NULL;
    if (status) *status = version > VERSION ? 2 : 1;
    if (version > VERSION) return NOT_FOUND;
    if (!self && dladdr((void *)&lock, &info)) self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    char full[128];
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++)
        if (!strcmp(signatures[i].name, name) && version >= signatures[i].version) {
            snprintf(full, sizeof full, "%s%s", name, signatures[i].suffix);
            *call = dlsym(self, full);
            goto found;
        }
    snprintf(full, sizeof full, "%s_v2", name);
    *call = dlsym(self, full);
    if (!*call && !strncmp(name, "cu", 2)) *call = dlsym(self, name);
found:
    if (!*call && getenv("FAKE_CUDA_TRACE")) fprintf(stderr, "fake cuda: no %s %d\n", name, version);
    if (status && *call) *status = 0;
    return *call ? SUCCESS : NOT_FOUND;
}
API CUresult cuGetProcAddress(const char *name, void **call, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, call, version, flags, NULL);
}

#define NAMES(X) \
    X(SUCCESS, "CUDA_SUCCESS") X(INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE") \
    X(OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY") X(NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED") \
    X(INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE") X(INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT") \
    X(INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE") X(ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE") \
    X(NOT_FOUND, "CUDA_ERROR_NOT_FOUND") X(NOT_READY, "CUDA_ERROR_NOT_READY") \
    X(ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS") X(LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED") \
    X(NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED") X(NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED") \
    X(CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED") \
    X(CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED") \
    X(CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE") X(CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED") \
    X(CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED") \
    X(CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION") \
    X(CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT") X(CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT") \
    X(UNKNOWN, "CUDA_ERROR_UNKNOWN")

API CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = NULL;
#define X(code, text) if (error == code) *name = text;
    NAMES(X)
    return *name ? SUCCESS : INVALID_VALUE;
}
API CUresult cuGetErrorString(CUresult error, const char **text) { return cuGetErrorName(error, text); }

// --- the device and its context

API CUresult cuInit(unsigned flags UNUSED) { return initialised = true, SUCCESS; }
API CUresult cuDriverGetVersion(int *version) { return *version = VERSION, SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { return *count = 1, initialised ? SUCCESS : NOT_INITIALIZED; }
API CUresult cuDeviceGet(int *device, int ordinal) { return *device = 0, ordinal ? INVALID_DEVICE : SUCCESS; }
API CUresult cuDeviceGetName(char *name, int size, int device) {
    return snprintf(name, (size_t)size, "Fake GPU"), device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(char *uuid, int device) {
    return memcpy(uuid, "a fake GPU uuid.", 16), device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) {
    return *bytes = memory_total(), device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceGetPCIBusId(char *id, int size, int device) {
    return snprintf(id, (size_t)size, "0000:01:00.0"), device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceComputeCapability(int *major, int *minor, int device) {
    return *major = 9, *minor = 0, device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    static const int values[160] = {
        [1] = 1024, [2] = 1024, [3] = 1024, [4] = 64, [5] = 0x7fffffff, [6] = 65535, [7] = 65535,  // block and grid
        [8] = 48 << 10, [9] = 64 << 10, [10] = 32, [11] = 0x7fffffff, [12] = 65536, [13] = 1000000, [14] = 512,
        [15] = 1, [16] = 8, [19] = 1, [30] = 512, [31] = 1, [33] = 1, [36] = 1000000, [37] = 4096, [38] = 50 << 20,
        [39] = 2048, [40] = 3, [41] = 1, [51] = 32,  // copy engines, unified addressing
        [75] = 9, [76] = 0, [78] = 1, [79] = 1, [80] = 1, [81] = 228 << 10, [82] = 65536, [90] = 1, [91] = 1,
        [97] = 227 << 10, [99] = 1, [106] = 32, [111] = 1024, [115] = 1,  // memory pools
        [134] = -1, [130] = 0, [131] = -1,
    };
    *value = attribute > 0 && attribute < 160 ? values[attribute] : 0;
    return device ? INVALID_DEVICE : attribute > 0 && attribute < 160 ? SUCCESS : INVALID_VALUE;
}

API CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    LOCK;
    if (!initialised) return NOT_INITIALIZED;
    if (device) return INVALID_DEVICE;
    primary.retained++, *context = &primary;
    return SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    LOCK;
    if (device) return INVALID_DEVICE;
    return primary.retained-- > 0 ? SUCCESS : (primary.retained = 0, INVALID_CONTEXT);
}
API CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    return *flags = 0, *active = primary.retained > 0, device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags UNUSED) {
    return device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuCtxGetCurrent(void **context) {
    if (!initialised) return NOT_INITIALIZED;
    return *context = depth ? contexts[depth - 1] : NULL, SUCCESS;
}
API CUresult cuCtxSetCurrent(void *context) {
    if (!initialised) return NOT_INITIALIZED;
    if (context && context != &primary) return INVALID_CONTEXT;
    if (!depth) depth = 1;
    contexts[depth - 1] = context;
    return SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(void *context) {
    if (context != &primary || depth == 16) return INVALID_CONTEXT;
    return contexts[depth++] = context, SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    void *top = contexts[--depth];
    if (context) *context = top;
    return SUCCESS;
}
API CUresult cuCtxGetDevice_v2(int *device, void *context) {
    if (!context && !depth) return INVALID_CONTEXT;
    return *device = 0, SUCCESS;
}
API CUresult cuCtxGetDevice(int *device) {
    ENTER;
    return *device = 0, SUCCESS;
}
API CUresult cuCtxGetId(void *context UNUSED, uint64_t *id) { return *id = 1, SUCCESS; }
API CUresult cuCtxGetFlags(unsigned *flags) { return *flags = 0, SUCCESS; }
API CUresult cuCtxGetApiVersion(void *context UNUSED, unsigned *version) { return *version = 3020, SUCCESS; }
API CUresult cuCtxGetLimit(size_t *value, int limit UNUSED) { return *value = 1 << 20, SUCCESS; }
API CUresult cuCtxSetLimit(int limit UNUSED, size_t value UNUSED) { return SUCCESS; }
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}
API CUresult cuCtxSynchronize(void) {
    ENTER;
    TRY(capture_forbids(NULL));
    finish_all();
    return settle(NULL);
}
API CUresult cuCtxSynchronize_v2(void *context UNUSED) { return cuCtxSynchronize(); }

// --- memory

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER;
    *total = memory_total(), *free_bytes = *total - (size_t)counts[DEVICE_BYTES];
    return SUCCESS;
}

static CUresult release(uintptr_t address, bool device) {
    if (calling) return NOT_PERMITTED;
    struct area *area = area_at(address, 0);
    if (!area || area->base != address || area->device != device || !area->owned || area->dying) return INVALID_VALUE;
    TRY(capture_forbids_unsafe(false));
    finish_all();  // a failure of queued work is left to the next synchronisation proper
    area_destroy(area_at(address, 0));
    return SUCCESS;
}
API CUresult cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    ENTER;
    TRY(capture_forbids_unsafe(false));
    return area_create(true, bytes, address);
}
API CUresult cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned unit UNUSED) {
    *pitch = (width + 511) / 512 * 512;
    ENTER;
    return area_create(true, *pitch * height, address);
}
API CUresult cuMemFree_v2(uint64_t address) {
    LOCK;
    return address ? release(address, true) : SUCCESS;
}
API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags UNUSED) {
    ENTER;
    TRY(capture_forbids_unsafe(false));
    return area_create(false, bytes, (uintptr_t *)address);
}
API CUresult cuMemAllocHost_v2(void **address, size_t bytes) { return cuMemHostAlloc(address, bytes, 0); }
API CUresult cuMemFreeHost(void *address) {
    LOCK;
    return release((uintptr_t)address, false);
}
API CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags UNUSED) {
    ENTER;
    return area_register(address, bytes);
}
API CUresult cuMemHostUnregister(void *address) {
    LOCK;
    struct area *area = area_at((uintptr_t)address, 0);
    if (!area || area->owned || area->base != (uintptr_t)address) return INVALID_VALUE;
    finish_all();
    area_destroy(area);
    return SUCCESS;
}
API CUresult cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned flags UNUSED) {
    LOCK;
    struct area *area = area_at((uintptr_t)host, 0);
    return *device = (uintptr_t)host, area && !area->device ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemHostGetFlags(unsigned *flags, void *host) {
    LOCK;
    return *flags = 0, area_at((uintptr_t)host, 0) ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address) {
    LOCK;
    struct area *area = area_at(address, 0);
    if (!area) return NOT_FOUND;
    if (base) *base = area->base;
    if (bytes) *bytes = area->bytes;
    return SUCCESS;
}

static CUresult pointer(void *data, int attribute, uint64_t address) {  // unknown memory reads as zeros
    struct area *area = area_at(address, 0);
    static const int wide[] = {1, 3, 4, 7, 11, 12, 14, 17, 18, 19, 20};
    static const struct area none;
    uint64_t value = 0;
    const struct area *a = area ? area : &none;
    switch (attribute) {
        case 1: value = area ? (uintptr_t)&primary : 0; break;
        case 2: value = area ? 1 + a->device : 0; break;  // host, device
        case 3: value = area ? address : 0; break;
        case 4: value = a->device ? 0 : area ? address : 0; break;
        case 6: case 8: case 10: case 15: case 14: case 17: case 21: break;
        case 7: case 20: value = a->id; break;
        case 9: value = area ? 0 : (uint64_t)-2; break;
        case 11: case 19: value = a->base; break;
        case 12: case 18: value = a->bytes; break;
        case 13: value = !!area; break;
        case 16: value = 3; break;
        default: return INVALID_VALUE;
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (attribute == wide[i]) return *(uint64_t *)data = value, SUCCESS;
    if (attribute == 8 || attribute == 10 || attribute == 13 || attribute == 15) return *(bool *)data = value, SUCCESS;
    return *(int *)data = (int)value, SUCCESS;
}
API CUresult cuPointerGetAttribute(void *data, int attribute, uint64_t address) {
    ENTER;
    if (!area_at(address, 0)) return INVALID_VALUE;
    if (attribute == 4 && area_at(address, 0)->device) return INVALID_VALUE;
    return pointer(data, attribute, address);
}
API CUresult cuPointerGetAttributes(unsigned size, const int *attributes, void **data, uint64_t address) {
    ENTER;
    for (unsigned i = 0; i < size; i++) TRY(pointer(data[i], attributes[i], address));
    return SUCCESS;
}
API CUresult cuPointerSetAttribute(const void *value UNUSED, int attribute UNUSED, uint64_t address) {
    LOCK;
    return area_at(address, 0) ? SUCCESS : INVALID_VALUE;
}

// Memory pools: allocated at once, freed in the order of the stream.
static struct pool {
    struct handle handle;
    bool host;
    uint64_t attributes[16];
} device_pool = {.handle = {POOL, true}}, host_pool = {.handle = {POOL, true}, .host = true};
struct location { int type, id; };

API CUresult cuDeviceGetDefaultMemPool(struct pool **pool, int device) {
    return *pool = &device_pool, device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceGetMemPool(struct pool **pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
API CUresult cuDeviceSetMemPool(int device, struct pool *pool UNUSED) { return device ? INVALID_DEVICE : SUCCESS; }
API CUresult cuMemGetMemPool(struct pool **pool, struct location *location, int type UNUSED) {
    return *pool = location->type == 1 ? &device_pool : &host_pool, SUCCESS;
}
API CUresult cuMemGetDefaultMemPool(struct pool **pool, struct location *location, int type) {
    return cuMemGetMemPool(pool, location, type);
}
struct pool_properties {
    int type, handles;
    struct location location;
};
API CUresult cuMemPoolCreate(struct pool **pool, const struct pool_properties *given) {
    LOCK;
    *pool = handle_create(POOL, sizeof **pool);
    (*pool)->host = given->location.type != 1;
    return SUCCESS;
}
API CUresult cuMemPoolDestroy(struct pool *pool) {
    LOCK;
    if (!is(pool, POOL)) return INVALID_VALUE;
    pool->handle.live = pool == &device_pool || pool == &host_pool;
    return SUCCESS;
}
API CUresult cuMemPoolTrimTo(struct pool *pool, size_t keep UNUSED) { return is(pool, POOL) ? SUCCESS : INVALID_VALUE; }
API CUresult cuMemPoolSetAccess(struct pool *pool, const void *access UNUSED, size_t size UNUSED) {
    return is(pool, POOL) ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemPoolGetAccess(int *flags, struct pool *pool, void *location UNUSED) {
    return *flags = 3, is(pool, POOL) ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemPoolSetAttribute(struct pool *pool, int attribute, void *value) {
    if (!is(pool, POOL) || attribute < 1 || attribute > 8) return INVALID_VALUE;
    return pool->attributes[attribute] = attribute < 4 ? *(unsigned *)value : *(uint64_t *)value, SUCCESS;
}
API CUresult cuMemPoolGetAttribute(struct pool *pool, int attribute, void *value) {
    if (!is(pool, POOL) || attribute < 1 || attribute > 8) return INVALID_VALUE;
    uint64_t live = (uint64_t)counts[pool->host ? PINNED_BYTES : DEVICE_BYTES];  // of all pools
    if (attribute < 4) *(unsigned *)value = (unsigned)pool->attributes[attribute];
    else *(uint64_t *)value = attribute == 4 ? pool->attributes[4] : live;
    return SUCCESS;
}
API CUresult cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, struct pool *pool, void *handle) {
    ENTER;
    STREAM_OF(handle);
    if (!is(pool, POOL)) return INVALID_VALUE;
    if (stream->capture) return NOT_SUPPORTED;
    if (!pool->host && bytes > memory_total() - (uint64_t)counts[DEVICE_BYTES]) finish_all();  // frees may be queued
    return area_create(!pool->host, bytes, address);
}
API CUresult cuMemAllocAsync(uint64_t *address, size_t bytes, void *handle) {
    return cuMemAllocFromPoolAsync(address, bytes, &device_pool, handle);
}
API CUresult cuMemFreeAsync(uint64_t address, void *handle) {
    LOCK;
    STREAM_OF(handle);
    struct area *area = area_at(address, 0);
    if (!area || area->base != address || !area->owned || area->dying) return INVALID_VALUE;
    if (stream->capture) return NOT_SUPPORTED;
    area->dying = true;
    return enqueue(stream, &(struct op){.kind = FREE, .to = address});
}

// --- copies: `device` says what each end must be (1 device, 0 host, -1 either)

static CUresult end_of_copy(uintptr_t address, size_t bytes, int device, bool waits) {
    struct area *area = area_at(address, bytes);
    if (area && !area->dying) return device >= 0 && area->device != device ? INVALID_VALUE : SUCCESS;
    if (area_at(address, 0) || device > 0) return INVALID_VALUE;  // out of bounds, or freed
    if (waits) return SUCCESS;
    counts[PAGEABLE_REFUSED]++;
    return INVALID_VALUE;
}

static CUresult copy(uintptr_t to, int to_device, uintptr_t from, int from_device, size_t bytes, void *handle,
                     bool waits) {
    ENTER;
    STREAM_OF(handle);
    if (fails(FAIL_COPY)) return LAUNCH_FAILED;
    if (!bytes) return SUCCESS;
    TRY(end_of_copy(to, bytes, to_device, waits));
    TRY(end_of_copy(from, bytes, from_device, waits));
    if (waits) TRY(capture_forbids_unsafe(true));
    for (struct stream *s = waits ? streams : NULL; s; s = s->next)
        if (!(s->flags & 1)) finish(s, NULL);  // as CUDA: not those with CU_STREAM_NON_BLOCKING
    TRY(enqueue(stream, &(struct op){.kind = COPY, .to = to, .from = from, .bytes = bytes, .pageable = waits}));
    counts[COPIES]++;
    if (!waits) return SUCCESS;
    finish(stream, NULL);
    return settle(stream);
}
API CUresult cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    return copy(to, -1, from, -1, bytes, stream, false);
}
API CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    return copy(to, 1, (uintptr_t)from, 0, bytes, stream, false);
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    return copy((uintptr_t)to, 0, from, 1, bytes, stream, false);
}
API CUresult cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    return copy(to, 1, from, 1, bytes, stream, false);
}
API CUresult cuMemcpy(uint64_t to, uint64_t from, size_t bytes) { return copy(to, -1, from, -1, bytes, NULL, true); }
API CUresult cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    return copy(to, 1, (uintptr_t)from, 0, bytes, NULL, true);
}
API CUresult cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    return copy((uintptr_t)to, 0, from, 1, bytes, NULL, true);
}
API CUresult cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) {
    return copy(to, 1, from, 1, bytes, NULL, true);
}

static CUresult set(uint64_t to, unsigned value, unsigned width, size_t count, void *handle) {
    ENTER;
    STREAM_OF(handle);
    if (fails(FAIL_SET)) return LAUNCH_FAILED;
    if (!count) return SUCCESS;
    struct area *area = area_at(to, count * width);
    if (!area || area->dying || to % width) return INVALID_VALUE;
    TRY(enqueue(stream, &(struct op){.kind = SET, .to = to, .bytes = count * width, .value = value, .width = width}));
    return counts[SETS]++, SUCCESS;
}
#define SETTER(bits, type) \
    API CUresult cuMemsetD##bits##Async(uint64_t to, type value, size_t count, void *stream) { \
        return set(to, value, bits / 8, count, stream); \
    } \
    API CUresult cuMemsetD##bits##_v2(uint64_t to, type value, size_t count) { \
        return set(to, value, bits / 8, count, NULL); \
    }
SETTER(8, unsigned char)
SETTER(16, unsigned short)
SETTER(32, unsigned)

// --- streams and events

CUresult cuStreamEndCapture(void *handle, struct graph **graph);
CUresult cuGraphDestroy(struct graph *graph);

API CUresult cuStreamCreateWithPriority(struct stream **result, unsigned flags, int priority) {
    ENTER;
    if (fails(FAIL_STREAM)) return UNKNOWN;
    struct stream *stream = *result = handle_create(STREAM, sizeof *stream);
    stream->flags = flags, stream->priority = priority, stream->tail = &stream->head, stream->urgency = draw();
    stream->next = streams, streams = stream;
    counts[LIVE_STREAMS]++;
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
    return SUCCESS;
}
API CUresult cuStreamSynchronize(void *handle) {
    ENTER;
    STREAM_OF(handle);
    TRY(capture_forbids(stream));
    finish(stream, NULL);
    return settle(stream);
}
API CUresult cuStreamQuery(void *handle) {
    ENTER;
    STREAM_OF(handle);
    TRY(capture_forbids(stream));
    poke();
    return stream->head ? NOT_READY : SUCCESS;
}
API CUresult cuStreamWaitEvent(void *handle, struct event *event, unsigned flags) {
    ENTER;
    STREAM_OF(handle);
    if (!is(event, EVENT)) return INVALID_HANDLE;
    if (flags) return NOT_SUPPORTED;
    if (fails(FAIL_WAIT)) return UNKNOWN;
    if (stream->capture || event->capture) TRY(capture_wait(stream, event));
    else if (event->record) push(stream, &(struct op){.kind = WAIT, .record = record_share(event->record)});
    return counts[WAITS]++, SUCCESS;
}
API CUresult cuLaunchHostFunc(void *handle, void (*call)(void *), void *data) {
    ENTER;
    STREAM_OF(handle);
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
    counts[LIVE_EVENTS]++;
    return SUCCESS;
}
API CUresult cuEventDestroy_v2(struct event *event) {
    LOCK;
    if (!is(event, EVENT)) return INVALID_HANDLE;
    event->handle.live = false;
    record_release(event->record);
    free(event->nodes.items);
    counts[LIVE_EVENTS]--;
    return SUCCESS;
}
API CUresult cuEventRecordWithFlags(struct event *event, void *handle, unsigned flags) {  // 1: external to a capture
    ENTER;
    STREAM_OF(handle);
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
    if (event->record && !event->record->done) finish(event->record->stream, event->record);
    return settle(event->record ? event->record->stream : NULL);
}
API CUresult cuEventQuery(struct event *event) {
    ENTER;
    if (!is(event, EVENT)) return INVALID_HANDLE;
    TRY(captured(event));
    poke();
    return event->record && !event->record->done ? NOT_READY : SUCCESS;
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

// --- kernels: a library or module is anything, a function is its name

API CUresult cuModuleLoadData(struct handle **library, const void *code) {
    ENTER;
    return code ? (*library = handle_create(LIBRARY, sizeof **library), SUCCESS) : INVALID_VALUE;
}
API CUresult cuModuleLoadDataEx(struct handle **library, const void *code, unsigned size UNUSED, int *options UNUSED,
                                void **values UNUSED) {
    return cuModuleLoadData(library, code);
}
API CUresult cuLibraryLoadData(struct handle **library, const void *code, int *options UNUSED, void **values UNUSED,
                               unsigned size UNUSED, int *more UNUSED, void **more_values UNUSED, unsigned n UNUSED) {
    LOCK;
    return code ? (*library = handle_create(LIBRARY, sizeof **library), SUCCESS) : INVALID_VALUE;
}
API CUresult cuLibraryGetModule(struct handle **module, struct handle *library) { return *module = library, SUCCESS; }
API CUresult cuLibraryUnload(struct handle *library) {
    LOCK;
    if (!is(library, LIBRARY)) return INVALID_HANDLE;
    library->live = false;
    return SUCCESS;
}
API CUresult cuModuleUnload(struct handle *module) { return cuLibraryUnload(module); }
API CUresult cuLibraryGetKernel(struct function **result, struct handle *library, const char *name) {
    LOCK;
    if (!is(library, LIBRARY)) return INVALID_HANDLE;
    *result = handle_create(FUNCTION, sizeof **result + strlen(name) + 1);
    strcpy((*result)->name, name);
    (*result)->builtin = builtin_find(name);
    return SUCCESS;
}
API CUresult cuModuleGetFunction(struct function **result, struct handle *module, const char *name) {
    return cuLibraryGetKernel(result, module, name);
}
API CUresult cuKernelGetFunction(struct function **result, struct function *kernel) {
    return *result = kernel, is(kernel, FUNCTION) ? SUCCESS : INVALID_HANDLE;
}
API CUresult cuKernelGetName(const char **name, struct function *kernel) {
    return is(kernel, FUNCTION) ? (*name = kernel->name, SUCCESS) : INVALID_HANDLE;
}
API CUresult cuFuncGetName(const char **name, struct function *kernel) { return cuKernelGetName(name, kernel); }
API CUresult cuFuncGetAttribute(int *value, int attribute, struct function *function) {
    static const int values[16] = {[0] = 1024, [4] = 32, [5] = 90, [6] = 90, [8] = 48 << 10};
    if (!is(function, FUNCTION) || attribute < 0 || attribute > 15) return INVALID_VALUE;
    return *value = values[attribute], SUCCESS;
}
API CUresult cuKernelGetAttribute(int *value, int attribute, struct function *kernel, int device UNUSED) {
    return cuFuncGetAttribute(value, attribute, kernel);
}
API CUresult cuFuncSetAttribute(struct function *function, int attribute UNUSED, int value UNUSED) {
    return is(function, FUNCTION) ? SUCCESS : INVALID_HANDLE;
}
API CUresult cuKernelSetAttribute(int attribute, int value, struct function *kernel, int device UNUSED) {
    return cuFuncSetAttribute(kernel, attribute, value);
}
API CUresult cuKernelGetParamInfo(struct function *kernel, size_t index, size_t *offset, size_t *size) {
    if (!is(kernel, FUNCTION) || index >= (size_t)builtin_words(kernel->builtin)) return INVALID_VALUE;
    *offset = index * 8;
    if (size) *size = 8;
    return SUCCESS;
}
API CUresult cuFuncGetParamInfo(struct function *function, size_t index, size_t *offset, size_t *size) {
    return cuKernelGetParamInfo(function, index, offset, size);
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct function *function, int threads,
                                                         size_t shared UNUSED) {
    if (!is(function, FUNCTION) || threads < 1) return INVALID_VALUE;
    return *blocks = threads > 1024 ? 0 : threads < 64 ? 32 : 2048 / threads, SUCCESS;
}

struct launch {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned size;
};
API CUresult cuLaunchKernelEx(const struct launch *config, struct function *function, void **parameters, void **extra) {
    ENTER;
    STREAM_OF(config->stream);
    if (!is(function, FUNCTION)) return INVALID_HANDLE;
    const unsigned *g = config->grid, *b = config->block;
    int words = builtin_words(function->builtin);
    if (!g[0] || !g[1] || !g[2] || !b[0] || !b[1] || !b[2] || b[0] * b[1] * b[2] > 1024) return INVALID_VALUE;
    if ((words && !parameters) || extra) return INVALID_VALUE;
    if (fails(FAIL_LAUNCH)) return LAUNCH_FAILED;
    struct op op = {.kind = LAUNCH, .function = function};
    for (int i = 0; i < words; i++) memcpy(&op.words[i], parameters[i], 8);
    TRY(enqueue(stream, &op));
    counts[LAUNCHES]++, counts[UNKNOWN_LAUNCHES] += !function->builtin;
    return SUCCESS;
}
API CUresult cuLaunchKernel(struct function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    struct launch config = {{gx, gy, gz}, {bx, by, bz}, shared, stream, NULL, 0};
    return cuLaunchKernelEx(&config, function, parameters, extra);
}
