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

static struct area *around(uintptr_t address) {
    struct area *a = areas;
    while (a && (address < a->base || address - a->base >= a->bytes)) a = a->next;
    return a;
}

// Whether the bytes are all there: within one area, or through mappings of one range side by side.
static bool reaches(const struct area *area, uintptr_t address, size_t bytes, bool access) {
    const struct reserved *range = area->range;
    for (size_t here;; address += here, bytes -= here) {
        if (access && area->denied) return false;
        if (bytes <= (here = area->bytes - (address - area->base))) return true;
        area = around(address + here);
        if (!range || !area || area->range != range) return false;
    }
}

struct area *area_at(uintptr_t address, size_t bytes) {
    struct area *area = around(address);
    return area && reaches(area, address, bytes, false) ? area : NULL;
}

struct area *areas_between(uintptr_t address, size_t bytes) {
    struct area *a = areas;
    while (a && (a->base >= address + bytes || address >= a->base + a->bytes)) a = a->next;
    return a;
}

static void area_count(const struct area *area, long sign) {
    if (area->physical) {  // what it maps is counted where it is created
        counts[MAPPED_BYTES] += sign * (long)area->bytes;
        return;
    }
    counts[area->managed ? LIVE_MANAGED : area->device ? LIVE_DEVICE : LIVE_PINNED] += sign;
    counts[area->managed ? MANAGED_BYTES : area->device ? DEVICE_BYTES : PINNED_BYTES] += sign * (long)area->bytes;
}

void area_add(struct area area) {
    static uint64_t id;
    struct area *a = malloc(sizeof *a);
    *a = area;
    a->id = ++id, a->next = areas, areas = a;
    counts[a->physical ? MAPS : ALLOCATIONS]++, counts[HOST_ALLOCATIONS] += !a->device;
    area_count(a, 1);
}

uint64_t memory_free(void) { return memory_total() - (uint64_t)counts[DEVICE_BYTES] - pools_spare(); }

static bool fits(const struct area *area) {
    if (!area->device || area->managed) return true;
    uint64_t spare = area->pool ? pool_spare(area->pool) : 0;
    return area->bytes <= spare + memory_free();
}

CUresult area_create(struct area area, uintptr_t *address) {
    TRY(ruined);
    if (!area.bytes) return INVALID_VALUE;
    if (fails(area.device ? FAIL_ALLOCATION : FAIL_PINNED)) return OUT_OF_MEMORY;
    if (!fits(&area)) pools_trim(true);
    if (!fits(&area)) return OUT_OF_MEMORY;
    enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, POISONED = 64 << 20 };
    char *base = area.backing = mmap(NULL, area.bytes, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
    if (base == MAP_FAILED) return OUT_OF_MEMORY;
    memset(base, 0xA5, area.bytes < POISONED ? area.bytes : POISONED);
    if (area.device && !area.managed) base = mmap(NULL, area.bytes, PROT_NONE, FLAGS, -1, 0);
    if (base == MAP_FAILED) return munmap(area.backing, area.bytes), OUT_OF_MEMORY;
    *address = area.base = (uintptr_t)base, area.owned = true;
    if (area.made && !area.device) mprotect(base, area.bytes, PROT_NONE);  // the host cannot touch it before it is made
    pool_use(area.pool, (long)area.bytes);
    area_add(area);
    return SUCCESS;
}

void area_make(const struct record *made, uintptr_t address) {
    struct area *area = area_at(address, 0);
    if (area && area->made == made && !area->device) mprotect(area->backing, area->bytes, PROT_READ | PROT_WRITE);
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
    area_count(area, -1);
    pool_use(area->pool, -(long)area->bytes);
    record_release(area->made);
    if (area->owned) munmap(area->backing, area->bytes);
    if (area->physical) mapping_end(area);
    else if (area->device && !area->managed) munmap((void *)area->base, area->bytes);
    free(area);
}

void area_destroy_all(void) {
    while (areas) area_destroy(areas);
}

char *reach(uintptr_t address, size_t bytes) {
    struct area *area = area_at(address, bytes);
    if (!area || (area->made && !area->made->done) || !reaches(area, address, bytes, true)) return NULL;
    return area->backing + (address - area->base);
}

// --- allocating and freeing

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER;
    *total = memory_total(), *free_bytes = memory_free();
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
    return area_create((struct area){.device = true, .bytes = bytes}, address);
}
API CUresult cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned unit UNUSED) {
    *pitch = (width + 511) / 512 * 512;
    ENTER;
    return area_create((struct area){.device = true, .bytes = *pitch * height}, address);
}
API CUresult cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags) {  // 1: global, 2: host
    ENTER;
    TRY(capture_forbids_unsafe(false));
    if (flags != 1 && flags != 2) return INVALID_VALUE;
    return area_create((struct area){.device = true, .managed = true, .bytes = bytes}, address);
}
API CUresult cuMemFree_v2(uint64_t address) {
    LOCK;
    return address ? release(address, true) : SUCCESS;
}
API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags UNUSED) {
    ENTER;
    TRY(capture_forbids_unsafe(false));
    return area_create((struct area){.bytes = bytes}, (uintptr_t *)address);
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
    if (!area || area->owned || area->device || area->base != (uintptr_t)address) return INVALID_VALUE;
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
    uintptr_t base = a->base;
    size_t bytes = a->bytes;
    if (a->range && attribute < 13) range_of(a, &base, &bytes);
    switch (attribute) {
        case 1: value = area ? (uintptr_t)&primary : 0; break;
        case 2: value = area ? 1 + a->device : 0; break;  // host, device
        case 3: value = area ? address : 0; break;
        case 4: value = a->device && !a->managed ? 0 : area ? address : 0; break;
        case 8: value = a->managed; break;
        case 6: case 10: case 15: case 14: case 17: case 21: break;
        case 7: case 20: value = a->id; break;
        case 9: value = area ? 0 : (uint64_t)-2; break;
        case 11: case 19: value = base; break;
        case 12: case 18: value = bytes; break;
        case 13: value = !!area; break;
        case 16: value = a->denied ? 0 : 3; break;
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
    struct area *area = area_at(address, 0);
    if (attribute == 4 && area->device && !area->managed) return INVALID_VALUE;
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

// --- other processes: refused

API CUresult cuIpcGetMemHandle(void *handle UNUSED, uint64_t address UNUSED) { return NOT_SUPPORTED; }
API CUresult cuIpcCloseMemHandle(uint64_t address UNUSED) { return NOT_SUPPORTED; }
