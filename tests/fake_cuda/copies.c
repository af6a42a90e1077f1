// What moves bytes: copies, sets, and prefetches of managed memory.
#include "fake.h"

// --- copies: `device` says what each end must be (1 device, 0 host, -1 either)

static CUresult end_of_copy(uintptr_t address, size_t bytes, int device, bool waits) {
    struct area *area = area_at(address, bytes);
    if (area && !area->dying)
        return device >= 0 && area->device != device && !area->managed ? INVALID_VALUE : SUCCESS;
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
    bool staged = pageable && !waits && !stream->capture && !(area_at(to, 0) && area_at(from, 0));
    TRY(end_of_copy(to, bytes, to_device, waits || staged));
    TRY(end_of_copy(from, bytes, from_device, waits || staged));
    if (waits) TRY(capture_forbids_unsafe(true));
    for (struct stream *s = waits ? streams : NULL; s; s = s->next)
        if (!(s->flags & 1)) TRY(finish(s, NULL));  // as CUDA: not those with CU_STREAM_NON_BLOCKING
    TRY(enqueue(stream, &(struct op){.kind = COPY, .to = to, .from = from, .bytes = bytes,
                                     .pageable = waits || staged}));
    counts[COPIES]++;
    if (!waits && !staged) return SUCCESS;
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

// --- managed memory: hints

struct location { int type, id; };

static CUresult hint(uint64_t address, size_t bytes) {
    struct area *area = area_at(address, bytes);
    return bytes && area && area->managed && !area->dying ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemPrefetchAsync_v2(uint64_t address, size_t bytes, struct location location, unsigned flags, void *handle) {
    ENTER;
    ROOM_IN(handle);
    if (flags || (location.type == 1 && location.id)) return INVALID_VALUE;
    TRY(hint(address, bytes));
    if (stream->capture) return NOT_SUPPORTED;
    push(stream, &(struct op){.kind = PREFETCH, .to = address, .bytes = bytes});
    return counts[PREFETCHES]++, SUCCESS;
}
API CUresult cuMemPrefetchAsync(uint64_t address, size_t bytes, int device, void *stream) {  // -1: to the host
    return cuMemPrefetchAsync_v2(address, bytes, (struct location){device < 0 ? 2 : 1, device < 0 ? 0 : device}, 0, stream);
}
API CUresult cuMemAdvise_v2(uint64_t address, size_t bytes, int advice, struct location location UNUSED) {
    ENTER;
    return advice < 1 || advice > 6 ? INVALID_VALUE : hint(address, bytes);
}
API CUresult cuMemAdvise(uint64_t address, size_t bytes, int advice, int device UNUSED) {
    return cuMemAdvise_v2(address, bytes, advice, (struct location){1, 0});
}
