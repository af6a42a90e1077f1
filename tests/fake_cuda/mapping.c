// Virtual memory management: ranges of addresses, physical memory, and what of it is mapped where.
//
// All physical memory lies in one file in memory. A range has its addresses, which the host cannot touch, and as many
// bytes at `backing`, where the parts of the file are mapped side by side: what crosses two mappings is one piece there.
#include "fake.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct reserved {
    uintptr_t base;
    size_t bytes, mapped, taken;  // taken: with what lies unused around it, so that no two ranges touch
    char *backing, *start;
    struct reserved *next;
};
static struct reserved *ranges;
struct physical {
    struct handle handle;
    size_t bytes;
    off_t at;              // in the file
    long references, maps;  // the memory is there as long as either is
};
enum { NOTHING = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, POISONED = 64 << 20 };

bool mapping_supported(void) {
    const char *given = getenv("FAKE_CUDA_NO_MAPPING");
    return !given || !strcmp(given, "0");
}
static size_t granule(void) {  // whole pages of the host
    static size_t bytes;
    const char *given = getenv("FAKE_CUDA_GRANULE");
    size_t page = (size_t)sysconf(_SC_PAGESIZE), wanted = given ? strtoull(given, NULL, 0) : 2u << 20;
    if (!bytes)
        for (bytes = page; bytes < wanted;) bytes *= 2;
    return bytes;
}
static bool whole(uint64_t n) { return n % granule() == 0; }
static int file(void) {
    static int fd = -1;
    if (fd < 0) fd = memfd_create("fake_cuda", MFD_CLOEXEC);
    return fd;
}
#define MAPPING \
    LOCK; \
    TRY(started()); \
    if (!mapping_supported()) return NOT_SUPPORTED

struct location { int type, id; };
struct properties {
    int type, handles;
    struct location location;
    void *windows;
    unsigned char compression, remote;
    unsigned short usage;
    unsigned char unused[4];
};
struct access { struct location location; int flags; };

static CUresult here(const struct location *location) {  // on the device
    return location->type != 1 ? INVALID_VALUE : location->id ? INVALID_DEVICE : SUCCESS;
}
static CUresult ordinary(const struct properties *properties) {
    if (properties->type != 1 || properties->compression || properties->usage) return INVALID_VALUE;
    return here(&properties->location);
}
API CUresult cuMemGetAllocationGranularity(size_t *bytes, const struct properties *properties, int which) {
    MAPPING;
    TRY(ordinary(properties));
    return *bytes = granule(), which < 0 || which > 1 ? INVALID_VALUE : SUCCESS;
}

// --- addresses

static struct reserved *range_at(uintptr_t address, size_t bytes) {
    struct reserved *r = ranges;
    while (r && (address < r->base || address - r->base > r->bytes || bytes > r->bytes - (address - r->base))) r = r->next;
    return r;
}
static void range_drop(struct reserved *range) {
    struct reserved **link = &ranges;
    while (*link != range) link = &(*link)->next;
    *link = range->next;
    counts[RESERVED_ADDRESSES] -= (long)range->bytes;
    munmap(range->start, range->taken), munmap(range->backing, range->bytes);
    free(range);
}
API CUresult cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint UNUSED, uint64_t flags) {
    MAPPING;
    TRY(ruined);
    if (!bytes || bytes % (size_t)sysconf(_SC_PAGESIZE) || alignment & (alignment - 1) || flags) return INVALID_VALUE;
    if (fails(FAIL_RESERVE)) return OUT_OF_MEMORY;
    size_t unit = alignment > granule() ? alignment : granule(), taken = bytes + 2 * unit;
    char *start = mmap(NULL, taken, PROT_NONE, NOTHING, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    char *backing = mmap(NULL, bytes, PROT_NONE, NOTHING, -1, 0);
    if (backing == MAP_FAILED) return munmap(start, taken), OUT_OF_MEMORY;
    struct reserved *range = malloc(sizeof *range);
    *address = ((uintptr_t)start + unit) & ~(unit - 1);
    *range = (struct reserved){*address, bytes, 0, taken, backing, start, ranges};
    ranges = range, counts[RESERVED_ADDRESSES] += (long)bytes;
    return SUCCESS;
}
API CUresult cuMemAddressFree(uint64_t address, size_t bytes) {
    MAPPING;
    struct reserved *range = range_at(address, bytes);
    if (!range || range->base != address || range->bytes != bytes || range->mapped) return INVALID_VALUE;
    return range_drop(range), ruined;
}
void range_of(const struct area *area, uintptr_t *base, size_t *bytes) {
    *base = area->range->base, *bytes = area->range->bytes;
}

// --- physical memory

static void physical_go(struct physical *memory) {  // if nothing holds it
    if (!memory->references) memory->handle.live = false;
    if (memory->references || memory->maps) return;
    fallocate(file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory->at, (off_t)memory->bytes);
    counts[LIVE_HANDLES]--, counts[DEVICE_BYTES] -= (long)memory->bytes;
}
API CUresult cuMemCreate(struct physical **result, size_t bytes, const struct properties *properties, uint64_t flags) {
    static off_t end;
    MAPPING;
    TRY(ruined);
    TRY(ordinary(properties));
    if (!bytes || !whole(bytes) || flags) return INVALID_VALUE;
    if (fails(FAIL_CREATE)) return OUT_OF_MEMORY;
    if (bytes > memory_free()) pools_trim(true);
    if (bytes > memory_free() || ftruncate(file(), end + (off_t)bytes)) return OUT_OF_MEMORY;
    size_t poisoned = bytes < POISONED ? bytes : POISONED;
    void *at = mmap(NULL, poisoned, PROT_WRITE, MAP_SHARED, file(), end);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    memset(at, 0xA5, poisoned), munmap(at, poisoned);
    struct physical *memory = *result = handle_create(MEMORY, sizeof *memory);
    memory->bytes = bytes, memory->at = end, memory->references = 1;
    end += (off_t)bytes;
    counts[CREATES]++, counts[LIVE_HANDLES]++, counts[DEVICE_BYTES] += (long)bytes;
    return SUCCESS;
}
API CUresult cuMemRelease(struct physical *memory) {
    MAPPING;
    if (!is(memory, MEMORY)) return INVALID_VALUE;
    memory->references--, physical_go(memory);
    return ruined;
}
API CUresult cuMemRetainAllocationHandle(struct physical **memory, void *address) {
    MAPPING;
    struct area *area = area_at((uintptr_t)address, 0);
    if (!area || !area->physical) return INVALID_VALUE;
    *memory = area->physical, (*memory)->references++, (*memory)->handle.live = true;
    return SUCCESS;
}
API CUresult cuMemGetAllocationPropertiesFromHandle(struct properties *properties, struct physical *memory) {
    MAPPING;
    if (!is(memory, MEMORY)) return INVALID_VALUE;
    return *properties = (struct properties){.type = 1, .location = {1, 0}}, SUCCESS;
}

// --- mapping: at once, and not in the order of any stream

API CUresult cuMemMap(uint64_t address, size_t bytes, size_t offset, struct physical *memory, uint64_t flags) {
    MAPPING;
    TRY(ruined);
    struct reserved *range = range_at(address, bytes);
    if (!range || !bytes || !whole(address) || !whole(bytes) || offset || flags) return INVALID_VALUE;
    if (!is(memory, MEMORY) || bytes > memory->bytes || areas_between(address, bytes)) return INVALID_VALUE;
    if (fails(FAIL_MAP)) return OUT_OF_MEMORY;
    char *at = range->backing + (address - range->base);
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file(), memory->at) == MAP_FAILED)
        return OUT_OF_MEMORY;
    memory->maps++, range->mapped += bytes;
    area_add((struct area){.base = address, .bytes = bytes, .backing = at, .device = true, .denied = true,
                           .range = range, .physical = memory});
    return SUCCESS;
}
void mapping_end(struct area *area) {  // of one that goes
    mmap(area->backing, area->bytes, PROT_NONE, NOTHING | MAP_FIXED, -1, 0);
    area->range->mapped -= area->bytes;
    area->physical->maps--, physical_go(area->physical);
}
static bool mapped(uintptr_t address, size_t bytes) {  // from end to end, by mappings that are whole
    struct reserved *range = range_at(address, bytes);
    if (!range || !bytes) return false;
    for (uintptr_t at = address, end = address + bytes; at < end;) {
        struct area *area = area_at(at, 0);
        if (!area || area->range != range || area->base != at || area->bytes > end - at) return false;
        at += area->bytes;
    }
    return true;
}
API CUresult cuMemUnmap(uint64_t address, size_t bytes) {
    MAPPING;
    if (!mapped(address, bytes)) return INVALID_VALUE;
    for (struct area *area; (area = areas_between(address, bytes)); counts[UNMAPS]++) area_destroy(area);
    return ruined;
}
API CUresult cuMemSetAccess(uint64_t address, size_t bytes, const struct access *access, size_t count) {
    MAPPING;
    TRY(ruined);
    if (!count || !mapped(address, bytes)) return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        TRY(here(&access[i].location));
        if (access[i].flags != 0 && access[i].flags != 3) return NOT_SUPPORTED;
    }
    if (fails(FAIL_ACCESS)) return OUT_OF_MEMORY;
    for (uintptr_t at = address; at < address + bytes;) {
        struct area *area = area_at(at, 0);
        area->denied = !access[count - 1].flags, at += area->bytes;
    }
    return SUCCESS;
}
API CUresult cuMemGetAccess(uint64_t *flags, const struct location *location, uint64_t address) {
    MAPPING;
    TRY(here(location));
    struct area *area = area_at(address, 0);
    if (!area || !area->physical) return INVALID_VALUE;
    return *flags = area->denied ? 0 : 3, SUCCESS;
}

void mapping_reset(void) {  // after all mappings have gone
    for (struct handle *h = handles; h; h = h->older)
        if (is(h, MEMORY)) ((struct physical *)h)->references = 0, physical_go((struct physical *)h);
    while (ranges) range_drop(ranges);
}
