// Kernels made from PTX are executed: blocks one after another, the threads of a block as coroutines that change at
// barriers. The orders are drawn, memory is checked at every access, and the first fault is kept with words.
#include "blocks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1024, STACK = 16 << 10 };

// --- coroutines: `change(&mine, theirs)` goes on where `theirs` was left, and comes back when somebody changes to `mine`

typedef void *place;
#if defined(__x86_64__)
void fake_cuda_change(place *mine, place theirs);
__asm__(".text\n.hidden fake_cuda_change\n.globl fake_cuda_change\n.type fake_cuda_change, @function\n"
        "fake_cuda_change:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
        "pop %rcx\njmp *%rcx\n"  // a `ret` would be predicted to go to where this was called
        ".size fake_cuda_change, . - fake_cuda_change\n");
#define change fake_cuda_change
static place place_create(char *stack, void (*run)(void)) {
    void **top = (void **)(stack + STACK);
    top[-2] = (void *)run;  // where the first change returns to, with the stack as after a call
    return top - 8;
}
#else
#include <ucontext.h>
static void change(place *mine, place theirs) {
    ucontext_t here;
    *mine = &here;
    swapcontext(&here, theirs);
}
static place place_create(char *stack, void (*run)(void)) {
    ucontext_t *context = (ucontext_t *)stack;  // at the far end of it
    getcontext(context);
    context->uc_stack.ss_sp = stack + sizeof *context, context->uc_stack.ss_size = STACK - sizeof *context;
    makecontext(context, run, 0);
    return context;
}
#endif

static struct thread threads[MOST];
static struct phase {  // the threads between two barriers, in the order in which they have their turns
    u32 order[MOST], size, next;
} phase;

struct worker {  // runs fresh threads one after another, until one waits at a barrier
    place at;
    struct thread *thread;
};
static struct worker workers[MOST];
static _Alignas(64) char stacks[MOST][STACK];  // close together, so that few pages hold the tables of their pages
static struct worker *current;
static place scheduler;

static void work(void) {
    for (;;) {
        running->kernel->run(current->thread);
        current->thread->state = GONE;
        struct thread *next = phase.next < phase.size ? &threads[phase.order[phase.next]] : NULL;
        if (next && next->state == FRESH) current->thread = next, phase.next++;
        else change(&current->at, scheduler);
    }
}

static void resume(struct worker *worker) {
    if (!worker->at) worker->at = place_create(stacks[worker - workers], work);
    current = worker;
    change(&scheduler, worker->at);
}

// --- faults

struct launched *running;
static CUresult fault;

static const char *readable(const char *name) {  // _ZN1a2bcE... is a.bc
    static char made[256];
    size_t size = 0;
    char *rest;
    if (strncmp(name, "_ZN", 3)) return name;
    for (name += 3; *name >= '0' && *name <= '9'; name = rest) {
        size_t part = strtoul(name, &rest, 10);
        if (part > strlen(rest) || size + part + 2 > sizeof made) break;
        if (size) made[size++] = '.';
        memcpy(made + size, rest, part);
        size += part, rest += part;
    }
    made[size] = 0;
    return made;
}

static void found(CUresult result, const char *what, const struct thread *thread, int site) {
    const struct site *at = &running->kernel_of->site[site];
    const u32 *t = thread->tid, *b = thread->block->at;
    char text[1024];
    snprintf(text, sizeof text, "%s: %s: `%s` (line %u of the PTX), thread (%u, %u, %u) of block (%u, %u, %u)",
             readable(running->kernel->name), what, at->text, at->line, t[0], t[1], t[2], b[0], b[1], b[2]);
    report_once(text);
    fault = result;
}

static void fail(struct thread *thread, CUresult result, const char *what, int site) {  // does not return
    found(result, what, thread, site);
    thread->state = FAULTY;
    change(&current->at, scheduler);
}

// --- what kernels call

static char *shared;  // of the block

static bool find_shared(u64 address, u32 bytes, struct span *span) {
    const struct kernel *kernel = running->kernel;
    for (unsigned i = 0; i <= kernel->arrays; i++) {
        struct range range = {kernel->dynamic, running->shared};
        if (i < kernel->arrays) range = kernel->array[i];
        else if (!kernel->dynamic) break;
        if (address < range.offset || address - range.offset + bytes > range.bytes) continue;
        *span = (struct span){range.offset, range.bytes - bytes + 1, (u64)shared};
        return true;
    }
    return false;
}

static bool find_global(u64 address, u32 bytes, struct span *span) {
    const struct module *module = running->kernel_of;
    for (unsigned i = 0; i < module->places; i++) {
        struct place place = module->place[i];
        if (address < place.address || address - place.address + bytes > place.bytes) continue;
        *span = (struct span){place.address, place.bytes - bytes + 1, 0};
        return true;
    }
    struct area *area = reach(address, bytes) ? area_at(address, bytes) : NULL;
    if (area) *span = (struct span){area->base, area->bytes - bytes + 1, (u64)area->backing - area->base};
    return area;
}

static char *find(struct thread *thread, u64 address, u32 bytes, enum space space, int site) {
    struct span *span = &running->kernel_of->span[site];
    bool there = false;
    char what[128];
    if (space == GENERIC && address >> 48 == WINDOW >> 48) {
        there = find_shared(address - WINDOW, bytes, span);
        span->base += WINDOW, span->shift -= WINDOW;
    } else if (space == SHARED) {
        there = find_shared(address, bytes, span);
    } else if (space != GLOBAL && address - thread->local < thread->local_bytes) {
        there = address - thread->local + bytes <= thread->local_bytes;
        *span = (struct span){0};
        if (there && !(address & (bytes - 1))) return (char *)address;
    } else if (space != LOCAL) {
        there = find_global(address, bytes, span);
    }
    snprintf(what, sizeof what, "%u bytes at %#llx are not in %s", bytes, (unsigned long long)address,
             space == SHARED ? "an array in shared memory" : space == LOCAL ? "local memory" : "memory that is allocated");
    if (!there) *span = (struct span){0}, fail(thread, ILLEGAL_ADDRESS, what, site);
    snprintf(what, sizeof what, "%u bytes at %#llx are not aligned", bytes, (unsigned long long)address);
    if (address & (bytes - 1)) fail(thread, MISALIGNED_ADDRESS, what, site);
    return (char *)(address + span->shift);
}

static void barrier(struct thread *thread, int site) {
    thread->met = site, thread->state = WAITING;
    change(&current->at, scheduler);
}

static void trap(struct thread *thread, int site) { fail(thread, LAUNCH_FAILED, "trap", site); }
static void tire(struct thread *thread, int site) { fail(thread, LAUNCH_TIMEOUT, "the kernel does not end", site); }

// --- blocks

static uint64_t random_state;
static uint64_t drawn(void) { return mix(random_state += GOLDEN); }

static void shuffle(u32 *order, u32 size) {  // forward, backward, or in any order
    uint64_t how = drawn() % 3;
    for (u32 i = 0; i < size; i++) order[i] = how == 1 ? size - 1 - i : i;
    for (u32 i = size; how == 2 && i > 1; i--) {
        u32 k = (u32)(drawn() % i), last = order[i - 1];
        order[i - 1] = order[k], order[k] = last;
    }
}

static struct worker *idle(void) {
    struct worker *worker = workers;
    while (worker->thread) worker++;
    return worker;
}

// Run every thread to its next barrier, or to its end. Returns how many wait.
static u32 run_phase(void) {
    u32 waiting = 0;
    shuffle(phase.order, phase.size);
    for (phase.next = 0; phase.next < phase.size && !fault;) {
        struct thread *thread = &threads[phase.order[phase.next++]];
        if (thread->state == GONE) continue;
        struct worker *worker = thread->state == FRESH ? idle() : thread->worker;
        worker->thread = thread;
        resume(worker);
        if (worker->thread->state == WAITING) worker->thread->worker = worker, waiting++;
        else worker->thread = NULL;
    }
    return waiting;
}

static void meet(u32 waiting) {  // all threads, and at the same barrier
    const struct thread *first = threads, *other = NULL;
    while (first->state != WAITING) first++;
    for (u32 i = 0; i < phase.size; i++)
        if (threads[i].state == WAITING && threads[i].met != first->met) other = &threads[i];
    if (other) found(LAUNCH_FAILED, "threads of a block wait at different barriers", other, other->met);
    else if (waiting < phase.size) found(LAUNCH_FAILED, "not all threads of the block come to a barrier", first, first->met);
}

static void run_block(void) {
    memset(shared, 0xA5, running->kernel->shared_bytes + running->shared);
    for (u32 i = 0; i < phase.size; i++) threads[i].state = FRESH;
    for (u32 waiting; (waiting = run_phase()) && !fault;) meet(waiting);
}

static void set_threads(struct block *block, char *local) {
    const u32 *n = block->size, bytes = running->kernel->local_bytes;
    phase.size = n[0] * n[1] * n[2];
    for (u32 i = 0; i < phase.size; i++)
        threads[i] = (struct thread){.tid = {i % n[0], i / n[0] % n[1], i / n[0] / n[1]}, .index = i, .block = block,
                                     .local = (u64)local + (u64)i * bytes, .local_bytes = bytes};
}

CUresult launched_run(struct launched *launched) {
    const u32 *g = launched->grid, *n = launched->block, blocks = g[0] * g[1] * g[2];
    struct block block = {{g[0], g[1], g[2]}, {n[0], n[1], n[2]}, {0}, launched->parameters, find, barrier, trap,
                          tire, (u64)1 << 32};
    u32 *order = malloc(blocks * sizeof *order);
    running = launched, fault = SUCCESS, random_state = draw();
    memset(launched->kernel_of->span, 0, launched->kernel_of->sites * sizeof(struct span));
    shared = malloc(launched->kernel->shared_bytes + launched->shared + 1);
    shuffle(order, blocks);
    char *local = aligned_alloc(16, (u64)launched->kernel->local_bytes * n[0] * n[1] * n[2] + 16);
    set_threads(&block, local);
    for (u32 i = 0; i < blocks && !fault; i++) {
        block.at[0] = order[i] % g[0], block.at[1] = order[i] / g[0] % g[1], block.at[2] = order[i] / g[0] / g[1];
        run_block();
    }
    if (fault)
        for (int i = 0; i < MOST; i++) workers[i].thread = NULL, workers[i].at = NULL;
    free(order), free(shared), free(local);
    running = NULL;
    return fault;
}

struct launched *launched_share(struct launched *launched) {
    if (launched) launched->references++;
    return launched;
}
void launched_release(struct launched *launched) {
    if (launched && !--launched->references) free(launched);
}
