// Kernels that have code: PTX that ptx.py makes C of, a compiler a library of, and that runs here, thread by thread.
#include "fake.h"
#include "ptx.h"
#include <dlfcn.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char report[1024];

static void tell(const char *format, ...) {  // the first one counts
    va_list values;
    va_start(values, format);
    if (!report[0]) vsnprintf(report, sizeof report, format, values);
    va_end(values);
}

API int fake_cuda_report(char *text, size_t bytes) {
    LOCK;
    snprintf(text, bytes, "%s", report);
    report[0] = 0;
    return 0;
}

// --- from PTX to a library

static uint64_t hash(const char *text, uint64_t start) {
    for (; *text; text++) start = mix(start ^ (unsigned char)*text);
    return start;
}

static bool is_ptx(const char *code) {
    return (*code == '/' || *code == '.' || *code == '\n') && strstr(code, ".version") && strstr(code, ".target");
}

static bool translate(const char *ptx, const char *library) {
    const char *python = getenv("FAKE_CUDA_PYTHON"), *script = getenv("FAKE_CUDA_TRANSLATOR");
    char source[512];
    if (!python || !script) return tell("PTX: FAKE_CUDA_PYTHON and FAKE_CUDA_TRANSLATOR are not set"), false;
    snprintf(source, sizeof source, "%s.%d.ptx", library, getpid());
    FILE *file = fopen(source, "w");
    if (!file || fputs(ptx, file) < 0 || fclose(file)) return tell("PTX: %s cannot be written", source), false;
    char said[600];
    snprintf(said, sizeof said, "%s.said", source);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, said, 01 | 0100 | 01000, 0600);  // O_WRONLY | O_CREAT | O_TRUNC
    char *arguments[] = {(char *)python, "-S", (char *)script, source, (char *)library, NULL};
    pid_t child;
    int status = -1;
    if (!posix_spawn(&child, python, &actions, NULL, arguments, environ))
        while (waitpid(child, &status, 0) < 0);
    posix_spawn_file_actions_destroy(&actions);
    if (status && (file = fopen(said, "r"))) {
        char text[800];
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        tell("%s", text);
    }
    unlink(said), unlink(source);
    counts[TRANSLATIONS]++;
    return !status;
}

CUresult code_load(const char *code, const struct code *const **codes) {
    *codes = NULL;
    if (!is_ptx(code)) return SUCCESS;
    const char *folder = getenv("FAKE_CUDA_CODE");
    char library[400];
    snprintf(library, sizeof library, "%s/%016llx%016llx.so", folder ? folder : "/tmp",
             (unsigned long long)hash(code, 1), (unsigned long long)hash(code, 2));
    if (access(library, R_OK) && !translate(code, library)) return INVALID_PTX;
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!loaded) return tell("PTX: %s", dlerror()), INVALID_PTX;
    *codes = dlsym(loaded, "codes");
    return *codes ? SUCCESS : INVALID_PTX;
}

const struct code *code_find(const struct code *const *codes, const char *name) {
    for (; codes && *codes; codes++)
        if (!strcmp((*codes)->name, name)) return *codes;
    return NULL;
}

int code_parameters(const struct code *code) { return code ? (int)code->parameter_count : 0; }

void code_parameter(const struct code *code, size_t index, size_t *offset, size_t *bytes) {
    *offset = code->parameters[index].offset;
    if (bytes) *bytes = code->parameters[index].bytes;
}

char *code_pack(const struct code *code, void **given) {
    char *packed = calloc(1, code->parameter_bytes + 8);
    for (size_t i = 0; i < code->parameter_count; i++)
        memcpy(packed + code->parameters[i].offset, given[i], code->parameters[i].bytes);
    return packed;
}

// --- running: blocks, and threads between two barriers, take turns in an order that is drawn

struct turns { uint64_t n, first, step; };

static uint64_t divisor(uint64_t a, uint64_t b) { return b ? divisor(b, a % b) : a; }

static struct turns turns_draw(uint64_t n) {
    switch (draw() % 3) {
        case 0: return (struct turns){n, 0, 1};
        case 1: return (struct turns){n, n - 1, n - 1 ? n - 1 : 1};  // backwards
    }
    uint64_t step = 1 + draw() % n;
    while (divisor(step, n) != 1) step = step % n + 1;
    return (struct turns){n, draw() % n, step};
}
static uint64_t turn(const struct turns *turns, uint64_t i) { return (turns->first + i * turns->step) % turns->n; }

static bool find(uint64_t address, unsigned bytes, struct span *span) {
    struct area *area = area_at(address, bytes);
    if (area && reach(address, bytes)) *span = (struct span){area->base, area->bytes, area->backing};
    return area && reach(address, bytes);
}

static CUresult failed(const struct code *code, const struct thread *t, int why) {
    const char *what = why == MISALIGNED ? "misaligned" : "outside of what is allocated";
    tell("kernel %s, line %u of its PTX: an access at %#llx is %s, thread (%u, %u, %u) of block (%u, %u, %u)", code->name,
         t->line, (unsigned long long)t->address, what, t->tid[0], t->tid[1], t->tid[2], t->ctaid[0], t->ctaid[1],
         t->ctaid[2]);
    return why == MISALIGNED ? MISALIGNED_ADDRESS : ILLEGAL_ADDRESS;
}

static CUresult phase(const struct code *code, struct thread *threads, uint64_t n, char *registers, int *at) {
    struct turns order = turns_draw(n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t me = turn(&order, i);
        int came = code->run(&threads[me], registers + me * code->register_bytes);
        if (came < 0) return failed(code, &threads[me], came);
        if (i && came != *at) {
            tell("kernel %s: thread %llu of block (%u, %u, %u) came to %s, line %u of its PTX, and others did not: a barrier in "
                 "a branch", code->name, (unsigned long long)me, threads[me].ctaid[0], threads[me].ctaid[1],
                 threads[me].ctaid[2], came ? "a barrier" : "its end", threads[me].line);
            return LAUNCH_FAILED;
        }
        *at = came;
    }
    return SUCCESS;
}

static void place(uint32_t at[3], uint64_t i, const unsigned size[3]) {
    at[0] = (uint32_t)(i % size[0]), at[1] = (uint32_t)(i / size[0] % size[1]), at[2] = (uint32_t)(i / size[0] / size[1]);
}

CUresult code_run(const struct code *code, char *parameters, const unsigned grid[3], const unsigned block[3]) {
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2], n = (uint64_t)block[0] * block[1] * block[2];
    struct thread *threads = calloc(n, sizeof *threads);
    char *shared = malloc(code->shared_bytes + 1), *local = malloc(n * code->local_bytes + 1);
    char *registers = malloc(n * code->register_bytes);
    struct turns order = turns_draw(blocks);
    CUresult result = SUCCESS;
    memset(code->spans, 0, code->span_bytes);
    for (uint64_t i = 0; i < n; i++) {
        struct thread *t = &threads[i];
        t->parameters = parameters, t->shared = shared, t->local = local + i * code->local_bytes, t->find = find;
        place(t->tid, i, block);
        memcpy(t->ntid, block, sizeof t->ntid), memcpy(t->nctaid, grid, sizeof t->nctaid);
    }
    for (uint64_t b = 0; b < blocks && !result; b++) {
        memset(shared, 0xA5, code->shared_bytes), memset(local, 0xA5, n * code->local_bytes);
        for (uint64_t i = 0; i < n; i++) place(threads[i].ctaid, turn(&order, b), grid), threads[i].resume = 0;
        int at = 1;
        while (at && !result) result = phase(code, threads, n, registers, &at);
    }
    free(threads), free(shared), free(local), free(registers);
    return result;
}
