// Memory pools: allocated at once, freed in the order of the stream.
#include "fake.h"

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
    TRY(ruined);
    *pool = handle_create(POOL, sizeof **pool);
    (*pool)->host = given->location.type != 1;
    return SUCCESS;
}
API CUresult cuMemPoolDestroy(struct pool *pool) {
    LOCK;
    if (!is(pool, POOL)) return INVALID_VALUE;
    pool->handle.live = pool == &device_pool || pool == &host_pool;
    return ruined;
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
    if (!pool->host && bytes > memory_total() - (uint64_t)counts[DEVICE_BYTES]) execute_all();  // frees may be queued
    return area_create(!pool->host, bytes, address);
}
API CUresult cuMemAllocAsync(uint64_t *address, size_t bytes, void *handle) {
    return cuMemAllocFromPoolAsync(address, bytes, &device_pool, handle);
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
