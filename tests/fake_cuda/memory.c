// Memory: what is allocated, copied and set.
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct area *areas;

uint64_t memory_total(void) {
    static uint64_t total;
    const char *given = getenv("FAKE_CUDA_MEMORY");
    if (!total) total = given ? strtoull(given, NULL, 0) : 1u << 30;
    return total;
}

struct area *area_at(uintptr_t address, size_t bytes) {
    for (struct area *a = areas; a; a = a->next)
        if (address >= a->base && address - a->base < a->bytes && bytes <= a->bytes - (address - a->base)) return a;
    return NULL;
}

static void area_add(struct area area) {
    static uint64_t id;
    struct area *a = malloc(sizeof *a);
    *a = area;
    a->id = ++id, a->next = areas, areas = a;
    counts[ALLOCATIONS]++, counts[HOST_ALLOCATIONS] += !a->device;
    counts[a->device ? LIVE_DEVICE : LIVE_PINNED]++;
    counts[a->device ? DEVICE_BYTES : PINNED_BYTES] += (long)a->bytes;
}

CUresult area_create(bool device, size_t bytes, uintptr_t *address) {
    TRY(ruined);
    if (!bytes) return INVALID_VALUE;
    if (fails(device ? FAIL_ALLOCATION : FAIL_PINNED)) return OUT_OF_MEMORY;
    if (device && bytes > memory_total() - (uint64_t)counts[DEVICE_BYTES]) return OUT_OF_MEMORY;
    enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, POISONED = 64 << 20 };
    char *backing = mmap(NULL, bytes, PROT_READ | PROT_WRITE, FLAGS, -1, 0), *base = backing;
    if (backing == MAP_FAILED) return OUT_OF_MEMORY;
    memset(backing, 0xA5, bytes < POISONED ? bytes : POISONED);
    if (device) base = mmap(NULL, bytes, PROT_NONE, FLAGS, -1, 0);
    if (base == MAP_FAILED) return munmap(backing, bytes), OUT_OF_MEMORY;
    *address = (uintptr_t)base;
    area_add((struct area){.base = *address, .bytes = bytes, .backing = backing, .device = device, .owned = true});
    return SUCCESS;
}

CUresult area_register(void *host, size_t bytes) {
    if (!host || !bytes || area_at((uintptr_t)host, 0)) return INVALID_VALUE;
    area_add((struct area){.base = (uintptr_t)host, .bytes = bytes, .backing = host});
    return SUCCESS;
}

void area_destroy(struct area *area) {
    struct area **link = &areas;
    while (*link != area) link = &(*link)->next;
    *link = area->next;
    counts[area->device ? LIVE_DEVICE : LIVE_PINNED]--;
    counts[area->device ? DEVICE_BYTES : PINNED_BYTES] -= (long)area->bytes;
    if (area->owned) munmap(area->backing, area->bytes);
    if (area->device) munmap((void *)area->base, area->bytes);
    free(area);
}

void area_destroy_all(void) {
    while (areas) area_destroy(areas);
}

char *reach(uintptr_t address, size_t bytes) {
    struct area *area = area_at(address, bytes);
    return area ? area->backing + (address - area->base) : NULL;
}

// --- allocating and freeing

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER;
    *total = memory_total(), *free_bytes = *total - (size_t)counts[DEVICE_BYTES];
    return SUCCESS;
}

static CUresult release(uintptr_t address, bool device) {
    if (calling) return NOT_PERMITTED;
    struct area *area = area_at(address, 0);
    if (!area || area->base != address || area->device != device || !area->owned || area->dying) return INVALID_VALUE;
    if (!ruined) TRY(capture_forbids_unsafe(false));
    TRY(finish_all());  // a failure of queued work is left to the next synchronisation proper
    area_destroy(area_at(address, 0));
    return ruined;
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
    TRY(finish_all());
    area_destroy(area);
    return ruined;
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
    ROOM_IN(handle);
    if (fails(FAIL_COPY)) return LAUNCH_FAILED;
    if (!bytes) return SUCCESS;
    TRY(end_of_copy(to, bytes, to_device, waits));
    TRY(end_of_copy(from, bytes, from_device, waits));
    if (waits) TRY(capture_forbids_unsafe(true));
    for (struct stream *s = waits ? streams : NULL; s; s = s->next)
        if (!(s->flags & 1)) TRY(finish(s, NULL));  // as CUDA: not those with CU_STREAM_NON_BLOCKING
    TRY(enqueue(stream, &(struct op){.kind = COPY, .to = to, .from = from, .bytes = bytes, .pageable = waits}));
    counts[COPIES]++;
    if (!waits) return SUCCESS;
    TRY(finish(stream, NULL));
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
    ROOM_IN(handle);
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
