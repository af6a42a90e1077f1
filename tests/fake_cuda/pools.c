// Memory pools: the order of a stream says from when on memory is there, and until when. What is freed stays with the pool.
#include "fake.h"

enum { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH };
struct pool {
    struct handle handle;
    bool host;
    uint64_t attributes[USED_HIGH + 1];
    struct pool *next;
} host_pool = {.handle = {POOL, true}, .host = true}, device_pool = {.handle = {POOL, true}, .next = &host_pool};
static struct pool *pools = &device_pool, *current = &device_pool;
struct location { int type, id; };

static void reserve(struct pool *pool, uint64_t bytes) {
    uint64_t *a = pool->attributes;
    if (!pool->host) counts[RESERVED_BYTES] += (long)bytes - (long)a[RESERVED];
    a[RESERVED] = bytes;
    if (a[RESERVED_HIGH] < bytes) a[RESERVED_HIGH] = bytes;
}
static void trim(struct pool *pool, uint64_t keep) {
    uint64_t *a = pool->attributes, least = keep > a[USED] ? keep : a[USED];
    if (a[RESERVED] > least) reserve(pool, least);
}

uint64_t pool_spare(const struct pool *pool) { return pool->attributes[RESERVED] - pool->attributes[USED]; }
uint64_t pools_spare(void) {
    uint64_t sum = 0;
    for (struct pool *p = pools; p; p = p->next) sum += p->host ? 0 : pool_spare(p);
    return sum;
}
void pools_trim(bool all) {
    for (struct pool *p = pools; p; p = p->next) trim(p, all ? 0 : p->attributes[THRESHOLD]);
}
void pool_use(struct pool *pool, long bytes) {
    if (!pool) return;
    uint64_t *a = pool->attributes;
    a[USED] += (uint64_t)bytes;
    if (a[USED_HIGH] < a[USED]) a[USED_HIGH] = a[USED];
    if (a[RESERVED] < a[USED]) reserve(pool, a[USED]);
    if (!pool->handle.live) trim(pool, 0);
}

API CUresult cuDeviceGetDefaultMemPool(struct pool **pool, int device) {
    return *pool = &device_pool, device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceGetMemPool(struct pool **pool, int device) {
    return *pool = current, device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceSetMemPool(int device, struct pool *pool) {
    LOCK;
    if (device || !is(pool, POOL) || pool->host) return device ? INVALID_DEVICE : INVALID_VALUE;
    return current = pool, SUCCESS;
}
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
    TRY(ruined);
    *pool = handle_create(POOL, sizeof **pool);
    (*pool)->host = given->location.type != 1;
    (*pool)->next = pools, pools = *pool;
    return SUCCESS;
}
API CUresult cuMemPoolDestroy(struct pool *pool) {
    LOCK;
    if (!is(pool, POOL) || pool == &device_pool || pool == &host_pool) return INVALID_VALUE;
    pool->handle.live = false, trim(pool, 0);
    if (current == pool) current = &device_pool;
    return ruined;
}
API CUresult cuMemPoolTrimTo(struct pool *pool, size_t keep) {
    ENTER;
    return is(pool, POOL) ? (trim(pool, keep), SUCCESS) : INVALID_VALUE;
}
API CUresult cuMemPoolSetAccess(struct pool *pool, const void *access UNUSED, size_t size UNUSED) {
    return is(pool, POOL) ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemPoolGetAccess(int *flags, struct pool *pool, void *location UNUSED) {
    return *flags = 3, is(pool, POOL) ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemPoolSetAttribute(struct pool *pool, int attribute, void *value) {
    LOCK;
    if (!is(pool, POOL) || attribute < 1 || attribute > USED_HIGH) return INVALID_VALUE;
    uint64_t *a = pool->attributes, wanted = attribute < THRESHOLD ? *(unsigned *)value : *(uint64_t *)value;
    if (attribute > THRESHOLD && (wanted || attribute == RESERVED || attribute == USED)) return INVALID_VALUE;
    a[attribute] = attribute > THRESHOLD ? a[attribute - 1] : wanted;  // a high-water mark starts again
    return SUCCESS;
}
API CUresult cuMemPoolGetAttribute(struct pool *pool, int attribute, void *value) {
    LOCK;
    if (!is(pool, POOL) || attribute < 1 || attribute > USED_HIGH) return INVALID_VALUE;
    if (attribute < THRESHOLD) *(unsigned *)value = (unsigned)pool->attributes[attribute];
    else *(uint64_t *)value = pool->attributes[attribute];
    return SUCCESS;
}
API CUresult cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, struct pool *pool, void *handle) {
    ENTER;
    ROOM_IN(handle);
    if (!is(pool, POOL)) return INVALID_VALUE;
    if (stream->capture) return NOT_SUPPORTED;
    if (!pool->host && bytes > memory_total() - (uint64_t)counts[DEVICE_BYTES]) execute_all();  // frees may be queued
    struct record *made = record_create(stream);
    CUresult result = area_create((struct area){.device = !pool->host, .bytes = bytes, .pool = pool, .made = made}, address);
    if (result) return record_release(made), result;
    return push(stream, &(struct op){.kind = MAKE, .to = *address, .record = record_share(made)}), SUCCESS;
}
API CUresult cuMemAllocAsync(uint64_t *address, size_t bytes, void *handle) {
    return cuMemAllocFromPoolAsync(address, bytes, current, handle);
}
API CUresult cuMemFreeAsync(uint64_t address, void *handle) {
    LOCK;
    STREAM_OF(handle);
    if (!ruined) TRY(room(stream));
    struct area *area = area_at(address, 0);
    if (!area || area->base != address || !area->owned || area->dying) return INVALID_VALUE;
    if (stream->capture) return NOT_SUPPORTED;
    area->dying = true;
    if (ruined) return area_destroy(area), ruined;
    return enqueue(stream, &(struct op){.kind = FREE, .to = address});
}
