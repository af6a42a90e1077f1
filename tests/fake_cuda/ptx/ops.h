// What C made from PTX is made of: memory, and arithmetic that is not C's.
#pragma once
#include "ptx.h"
#include <math.h>
#include <string.h>

typedef __int128 s128;
typedef unsigned __int128 u128;

// --- memory

#define PARAMETER(T, offset) (*(const T *)(t->block->parameters + (offset)))
#define AT(T, n, space, address, site) ((T *)reach(t, address, n * sizeof(T), space, site))
#define reach(t, address, bytes, space, site) reach_(t, address, bytes, space, site, &spans[site])

static inline char *reach_(struct thread *t, u64 address, u32 bytes, enum space space, int site, struct span *span) {
    u64 own = address - t->local;
    if (space == LOCAL && own < t->local_bytes && own + bytes <= t->local_bytes && !(address & (bytes - 1)))
        return (char *)address;
    if (__builtin_expect(address - span->base < span->limit && !(address & (bytes - 1)), 1))
        return (char *)(address + span->shift);
    return t->block->find(t, address, bytes, space, site);
}

#define AGAIN(site) do if (!--t->block->patience) t->block->tire(t, site); while (0)  // a jump back

// --- arithmetic that is not C's

static inline f32 as_f32(u32 x) { f32 y; return memcpy(&y, &x, 4), y; }
static inline f64 as_f64(u64 x) { f64 y; return memcpy(&y, &x, 8), y; }
static inline u32 bits_f32(f32 x) { u32 y; return memcpy(&y, &x, 4), y; }
static inline u64 bits_f64(f64 x) { u64 y; return memcpy(&y, &x, 8), y; }
static inline f32 ftz_f32(f32 x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static inline f64 ftz_f64(f64 x) { return fabs(x) < 0x1p-1022 ? copysign(0, x) : x; }
#define FMA_f32 __builtin_fmaf
#define FMA_f64 __builtin_fma
#define SATURATED(x) ({ __auto_type x_ = (x); x_ > 0 ? x_ < 1 ? x_ : 1 : 0; })  // NaN: 0

// Division by zero: all ones, and the dividend is left; the quotient that does not fit wraps.
#define DIVISION(T) \
    static inline T div_##T(T a, T b) { return !b ? (T)-1 : (T)-1 < 0 && b == (T)-1 ? (T)-a : a / b; } \
    static inline T rem_##T(T a, T b) { return !b ? a : (T)-1 < 0 && b == (T)-1 ? 0 : a % b; }
DIVISION(u16) DIVISION(u32) DIVISION(u64) DIVISION(s16) DIVISION(s32) DIVISION(s64)

#define SHIFT_LEFT(a, n) ((n) < 8 * sizeof(a) ? (a) << (n) : 0)
#define SHIFT_RIGHT(a, n) ((n) < 8 * sizeof(a) ? (a) >> (n) : (a) < 0 ? -1 : 0)
#define LEADING(a) ((a) ? __builtin_clzll(a) - 64 + 8 * (int)sizeof(a) : 8 * (int)sizeof(a))
static inline u64 reversed(u64 a, int bits) {
    u64 b = 0;
    for (int i = 0; i < bits; i++) b = b << 1 | (a >> i & 1);
    return b;
}
static inline u32 permuted(u32 a, u32 b, u32 how) {
    u32 d = 0;
    for (int i = 0; i < 4; i++) {
        u32 byte = (u32)(((u64)b << 32 | a) >> 8 * (how >> 4 * i & 7) & 255);
        d |= (how >> 4 * i & 8 ? byte & 128 ? 255 : 0 : byte) << 8 * i;
    }
    return d;
}
static inline u64 field(u64 a, u32 from, u32 length, int bits, bool is_signed) {
    from &= 255, length &= 255;
    if (!length) return 0;
    int last = (int)(from + length - 1 < (u32)bits - 1 ? from + length - 1 : (u32)bits - 1);
    u64 d = from < (u32)bits ? a >> from : 0, mask = length < 64 ? ((u64)1 << length) - 1 : ~(u64)0;
    return (d & mask) | (is_signed && a >> last & 1 ? ~(from < (u32)bits ? mask & (~(u64)0 >> (64 - bits + from)) : 0) : 0);
}
static inline u64 inserted(u64 a, u64 b, u32 from, u32 length, int bits) {
    from &= 255, length &= 255;
    u64 mask = (length < 64 ? ((u64)1 << length) - 1 : ~(u64)0);
    return from < (u32)bits ? (b & ~(mask << from)) | ((a & mask) << from) : b;
}

static inline s128 clamped(s128 x, s128 low, s128 high) { return x < low ? low : x > high ? high : x; }
#define TO_INTEGER(T, x, low, high, nan) \
    ({ f64 x_ = (x); (T)(x_ != x_ ? (T)(nan) : x_ <= (f64)(T)(low) ? (T)(low) : x_ >= (f64)(T)(high) ? (T)(high) : (T)x_); })

#define SMALLER(a, b) ({ __auto_type a_ = (a); __auto_type b_ = (b); \
    a_ != a_ ? b_ : b_ != b_ ? a_ : a_ < b_ || (a_ == b_ && signbit(a_)) ? a_ : b_; })  // a number where one is NaN
#define LARGER(a, b) ({ __auto_type a_ = (a); __auto_type b_ = (b); \
    a_ != a_ ? b_ : b_ != b_ ? a_ : a_ > b_ || (a_ == b_ && !signbit(a_)) ? a_ : b_; })

// a * b + c to f32, rounded to 'z'ero, 'm'inus or 'p'lus infinity: the product is exact in f64, and so is the sum with
// what it lacks.
static inline f32 fma_toward(f32 a, f32 b, f32 c, char toward) {
    f64 product = (f64)a * b, sum = product + c, other = sum - product;
    f64 lacks = (product - (sum - other)) + (c - other);
    f32 near = (f32)sum;
    if (sum != sum || isinf(a) || isinf(b) || isinf(c)) return near;
    if (sum == 0 && lacks == 0 && toward == 'm' && signbit(product) != signbit(c)) return -0.0f;
    f64 rest = isinf(near) ? -near : sum - near;  // the exact value less the nearest
    if (rest == 0) rest = lacks;
    bool down = toward == 'm' || (toward == 'z' && sum > 0), up = toward == 'p' || (toward == 'z' && sum < 0);
    if (down && rest < 0) return nextafterf(near, -INFINITY);
    if (up && rest > 0) return nextafterf(near, INFINITY);
    return near;
}
