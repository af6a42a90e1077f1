// What the C made of PTX counts on (ptx.py), and what the driver knows of it (kernels.c).
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct span {                    // where an access was last: part of the memory that is allocated
    uint64_t base, bytes;
    char *backing;
};
struct thread {
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    const char *parameters;
    char *shared, *local;
    int resume;                  // the barrier it stands at
    unsigned line;               // of the barrier, or of what went wrong
    uint64_t address;
    bool (*find)(uint64_t address, unsigned bytes, struct span *span);
};
enum { ENDED = 0, OUTSIDE = -1, MISALIGNED = -2 };  // or the barrier it has come to
struct parameter { unsigned offset, bytes; };
struct code {
    const char *name;
    int (*run)(struct thread *, void *registers);
    size_t register_bytes, shared_bytes, local_bytes, parameter_bytes, parameter_count;
    const struct parameter *parameters;
    struct span *spans;
    size_t span_bytes;
    int barriers;
};

#define SAVE(name) saved->name = name;
#define LOAD(name) name = saved->name;
#define SHARED_BASE (1ull << 40)
#define LOCAL_BASE (1ull << 41)

// --- memory: `at` is where the host finds the bytes

#define FAULT(why, a, l) return t->address = (a), t->line = (l), (why)
#define REACH(space, site, a, n, l) \
    const uint64_t address = (a); \
    char *at; \
    if (address % (n)) FAULT(MISALIGNED, address, l); \
    space(site, n, l)
#define SHARED(site, n, l) \
    const uint64_t off = address - SHARED_BASE; \
    if (off >= SHARED_BYTES || off + (n) > SHARED_BYTES) FAULT(OUTSIDE, address, l); \
    at = t->shared + off;
#define LOCAL(site, n, l) \
    const uint64_t off = address - LOCAL_BASE; \
    if (off >= LOCAL_BYTES || off + (n) > LOCAL_BYTES) FAULT(OUTSIDE, address, l); \
    at = t->local + off;
#define GLOBAL(site, n, l) \
    struct span *span = &spans[site]; \
    if (address < span->base || address - span->base + (n) > span->bytes) \
        if (!t->find(address, n, span)) FAULT(OUTSIDE, address, l); \
    at = span->backing + (address - span->base);
#define GENERIC(site, n, l) \
    if (address - SHARED_BASE < SHARED_BYTES) { SHARED(site, n, l) } \
    else if (address - LOCAL_BASE < LOCAL_BYTES) { LOCAL(site, n, l) } \
    else { GLOBAL(site, n, l) }

// --- bits

static inline uint32_t f2u(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float u2f(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline uint64_t d2u(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double u2d(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

// --- integers: shifts are clamped; what divides by nothing, or overflows, is one of the results that hardware may have

#define INTEGERS(bits) \
    static inline uint##bits##_t shl_u##bits(uint##bits##_t x, uint32_t n) { \
        return n < bits ? (uint##bits##_t)(x << n) : 0; \
    } \
    static inline uint##bits##_t shr_u##bits(uint##bits##_t x, uint32_t n) { \
        return n < bits ? (uint##bits##_t)(x >> n) : 0; \
    } \
    static inline int##bits##_t shr_s##bits(int##bits##_t x, uint32_t n) { \
        return (int##bits##_t)(x >> (n < bits ? n : bits - 1)); \
    } \
    static inline int##bits##_t shl_s##bits(int##bits##_t x, uint32_t n) { \
        return (int##bits##_t)shl_u##bits((uint##bits##_t)x, n); \
    } \
    static inline uint##bits##_t div_u##bits(uint##bits##_t a, uint##bits##_t b) { \
        return b ? a / b : (uint##bits##_t)-1; \
    } \
    static inline uint##bits##_t rem_u##bits(uint##bits##_t a, uint##bits##_t b) { return b ? a % b : a; } \
    static inline int##bits##_t div_s##bits(int##bits##_t a, int##bits##_t b) { \
        return b == -1 ? (int##bits##_t)(0 - (uint##bits##_t)a) : b ? a / b : -1; \
    } \
    static inline int##bits##_t rem_s##bits(int##bits##_t a, int##bits##_t b) { \
        return b == -1 ? 0 : b ? a % b : a; \
    } \
    static inline int##bits##_t abs_s##bits(int##bits##_t a) { \
        return a < 0 ? (int##bits##_t)(0 - (uint##bits##_t)a) : a; \
    } \
    static inline int##bits##_t min_s##bits(int##bits##_t a, int##bits##_t b) { return a < b ? a : b; } \
    static inline int##bits##_t max_s##bits(int##bits##_t a, int##bits##_t b) { return a > b ? a : b; } \
    static inline uint##bits##_t min_u##bits(uint##bits##_t a, uint##bits##_t b) { return a < b ? a : b; } \
    static inline uint##bits##_t max_u##bits(uint##bits##_t a, uint##bits##_t b) { return a > b ? a : b; }
INTEGERS(16)
INTEGERS(32)
INTEGERS(64)
static inline uint32_t hi_u32(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline int32_t hi_s32(int32_t a, int32_t b) { return (int32_t)((int64_t)a * b >> 32); }
static inline uint64_t hi_u64(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
static inline int64_t hi_s64(int64_t a, int64_t b) { return (int64_t)((__int128)a * b >> 64); }

// --- floats: NaN loses against a number in min and max

#define FLOATS(t, f, suffix) \
    static inline f abs_##t(f x) { return fabs##suffix(x); } \
    static inline f min_##t(f a, f b) { return fmin##suffix(a, b); } \
    static inline f max_##t(f a, f b) { return fmax##suffix(a, b); } \
    static inline f div_##t(f a, f b) { return a / b; } \
    static inline f copysign_##t(f x, f sign) { return copysign##suffix(x, sign); } \
    static inline f sqrt_##t(f x) { return sqrt##suffix(x); }
FLOATS(f32, float, f)
FLOATS(f64, double, )
#define round_rn(x) __builtin_choose_expr(__builtin_types_compatible_p(__typeof__(x), float), rintf(x), rint(x))
#define round_rz(x) __builtin_choose_expr(__builtin_types_compatible_p(__typeof__(x), float), truncf(x), trunc(x))
#define round_rm(x) __builtin_choose_expr(__builtin_types_compatible_p(__typeof__(x), float), floorf(x), floor(x))
#define round_rp(x) __builtin_choose_expr(__builtin_types_compatible_p(__typeof__(x), float), ceilf(x), ceil(x))
static inline float saturate(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }  // NaN becomes 0
#define TO_INTEGER(t, c, least, most) \
    static inline c f_to_##t(double x) { return x != x ? 0 : x <= (double)least ? least : x >= (double)most ? most : (c)x; }
TO_INTEGER(s16, int16_t, INT16_MIN, INT16_MAX)
TO_INTEGER(s32, int32_t, INT32_MIN, INT32_MAX)
TO_INTEGER(s64, int64_t, INT64_MIN, INT64_MAX)
TO_INTEGER(u16, uint16_t, 0, UINT16_MAX)
TO_INTEGER(u32, uint32_t, 0, UINT32_MAX)
TO_INTEGER(u64, uint64_t, 0, UINT64_MAX)

// Rounded down, and so on: the rounded product and sum, and a step back where it is on the wrong side of the exact one.
// Of 24-bit numbers the product is exact in a double; the sum there errs by less than a float can show but for ties.
static inline float fma_rm_f32(float a, float b, float c) {
    float x = fmaf(a, b, c);
    double rest = fma((double)a, (double)b, (double)c - (double)x);
    return rest < 0 ? nextafterf(x, -INFINITY) : x;
}
static inline float fma_rp_f32(float a, float b, float c) { return -fma_rm_f32(-a, b, -c); }
static inline float fma_rz_f32(float a, float b, float c) {
    return fmaf(a, b, c) > 0 ? fma_rm_f32(a, b, c) : fma_rp_f32(a, b, c);
}
