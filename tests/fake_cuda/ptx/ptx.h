// What C made from PTX (module.py) and blocks.c, which runs it, share. The types have their names in PTX.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef uint8_t u8, b8;
typedef uint16_t u16, b16;
typedef uint32_t u32, b32;
typedef uint64_t u64, b64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef float f32;
typedef double f64;
typedef bool pred;

enum space { GENERIC, GLOBAL, SHARED, LOCAL };
static const u64 WINDOW = 0x5AA5ull << 48;  // where shared memory lies among generic addresses

struct site {  // an instruction that may fail
    unsigned line;
    const char *text;
};
struct span {  // where a site last found memory: addresses from `base` on, `limit` of them, lie `shift` away on the host
    u64 base, limit, shift;
};
struct range { u32 offset, bytes; };
struct thread;
struct kernel {
    const char *name;
    void (*run)(struct thread *);
    unsigned parameters, arrays;
    const struct range *parameter, *array;  // array: of shared memory
    u32 parameter_bytes, local_bytes, shared_bytes, dynamic;  // dynamic: where shared memory of the launch's size starts, or 0
};
struct place { u64 address, bytes; };  // of a variable
struct module {
    unsigned kernels, sites, places;
    const struct kernel *kernel;
    const struct site *site;
    const struct place *place;
    struct span *span;
};

struct thread {
    u32 tid[3], index;
    struct block *block;
    u64 local, local_bytes;   // its own memory
    int met;                  // the barrier it waits at, by site
    struct worker *worker;    // that waits there with it
    enum { FRESH, WAITING, GONE, FAULTY } state;
};
struct block {                // the one that runs
    u32 grid[3], size[3], at[3];
    const char *parameters;
    char *(*find)(struct thread *, u64 address, u32 bytes, enum space, int site);  // does not return where there is none
    void (*barrier)(struct thread *, int site);
    void (*trap)(struct thread *, int site), (*tire)(struct thread *, int site);
    u64 patience;             // how often threads may jump back, all together
};
