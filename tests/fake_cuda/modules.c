// Modules: PTX is translated to C, compiled and loaded; any other code has the builtin kernels, and unknown ones.
#include "blocks.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static bool is_ptx(const char *code) {
    for (;;) {
        code += strspn(code, " \t\r\n");
        if (!strncmp(code, "//", 2)) code += strcspn(code, "\n");
        else if (!strncmp(code, "/*", 2) && strstr(code, "*/")) code = strstr(code, "*/") + 2;
        else return !strncmp(code, ".version", 8);
    }
}

// Numba numbers its functions as it goes, and lists them in any order: neither makes another kernel. `B2v7` is the 7 of a name.
static const char *past_number(const char *c) {
    char *v;
    size_t length = *c == 'B' ? strtoul(c + 1, &v, 10) : 0;
    return length > 1 && length < 10 && *v == 'v' && strspn(v + 1, "0123456789") >= length - 1 ? v + length : c;
}

static uint64_t line_hash(const char *c, const char *end, uint64_t start) {
    while (c < end) {
        const char *past = past_number(c);
        if (past == c) start = mix(start + (unsigned char)*c++);
        else c = past;
    }
    return start;
}

static uint64_t hash(const char *ptx, uint64_t start) {  // what comes before the first kernel counts in any order
    uint64_t sum = start;
    const char *kernel = strstr(ptx, ".entry");
    for (const char *end; *ptx; ptx = end + (*end == '\n')) {
        end = ptx + strcspn(ptx, "\n");
        if (kernel && end < kernel) sum += strncmp(ptx, ".common", 7) ? line_hash(ptx, end, start) : 0;
        else sum = line_hash(ptx, end, sum);
    }
    return sum;
}

static void library_path(char *path, size_t size, const char *folder, const char *ptx) {  // named after what it is made from
    snprintf(path, size, "%s/%016llx%016llx.so", folder, (unsigned long long)hash(ptx, 1), (unsigned long long)hash(ptx, 2));
}

static bool write_whole(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    bool done = file && fputs(text, file) >= 0;
    return file && !fclose(file) && done;
}

static void read_start(const char *path, char *text, size_t size) {
    FILE *file = fopen(path, "r");
    text[file ? fread(text, 1, size - 1, file) : 0] = 0;
    if (file) fclose(file);
    text[strcspn(text, "\n")] = 0;
}

// Run ptx/compile.py, which says on stderr why it cannot.
static bool make(const char *folder, const char *path, const char *ptx, char *why, size_t size) {
    const char *python = getenv("FAKE_CUDA_PYTHON");
    char source[4096 + 32], log[4096 + 32];
    snprintf(source, sizeof source, "%s.%d.ptx", path, (int)getpid());
    snprintf(log, sizeof log, "%s.%d.log", path, (int)getpid());
    snprintf(why, size, "FAKE_CUDA_PYTHON says which Python translates PTX, and it is not set");
    if (!python) return false;
    snprintf(why, size, "the folder of compiled kernels cannot be written");
    if (!write_whole(source, ptx)) return false;
    static const char script[] =
        "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('ptx.compile', run_name='__main__')";
    char *command[] = {(char *)python, "-ISc", (char *)script, (char *)folder, source, (char *)path, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child;
    int status = posix_spawn(&child, python, &actions, NULL, command, environ);
    posix_spawn_file_actions_destroy(&actions);
    snprintf(why, size, "%s does not start", python);
    if (!status) {
        waitpid(child, &status, 0);
        read_start(log, why, size);
    }
    unlink(source), unlink(log);
    return !access(path, R_OK);
}

static char report[1024];
void report_once(const char *text) {
    if (!*report) snprintf(report, sizeof report, "%s", text);
}
API void fake_cuda_report(char *text, size_t size) {
    LOCK;
    snprintf(text, size, "%s", report);
    *report = 0;
}

static char refusal[1024];
const char *module_refusal(void) { return refusal; }
static CUresult refuse(const char *why) {
    snprintf(refusal, sizeof refusal, "PTX is refused: %.900s", why);
    return report_once(refusal), INVALID_PTX;
}

CUresult module_load(const char *code, const struct module **module) {
    *module = NULL;
    if (!is_ptx(code)) return SUCCESS;
    char path[4096], why[900];
    const char *folder = getenv("FAKE_CUDA_KERNELS");
    if (!folder) return refuse("FAKE_CUDA_KERNELS does not say where compiled kernels are");
    library_path(path, sizeof path, folder, code);
    if (access(path, R_OK)) {
        counts[TRANSLATIONS]++;
        if (!make(folder, path, code, why, sizeof why)) return refuse(why);
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *module = library ? dlsym(library, "ptx_module") : NULL;
    return *module ? SUCCESS : refuse(dlerror());
}

const struct kernel *module_kernel(const struct module *module, const char *name) {
    const struct kernel *found = NULL;
    uint64_t wanted = line_hash(name, name + strlen(name), 0);
    for (unsigned i = 0; i < module->kernels; i++) {
        const char *other = module->kernel[i].name;
        if (!strcmp(other, name)) return &module->kernel[i];
        if (line_hash(other, other + strlen(other), 0) == wanted) found = &module->kernel[i];
    }
    return found;
}

CUresult function_attribute(const struct function *function, int attribute, int *value) {
    static const int values[16] = {[0] = 1024, [4] = 32, [5] = 90, [6] = 90, [8] = 48 << 10};
    if (attribute < 0 || attribute > 15) return INVALID_VALUE;
    *value = values[attribute];
    for (unsigned i = 0; attribute == 1 && function->kernel && i < function->kernel->arrays; i++)
        *value += (int)function->kernel->array[i].bytes;
    return SUCCESS;
}

unsigned function_parameters(const struct function *function) {
    return function->kernel ? function->kernel->parameters : (unsigned)builtin_words(function->builtin);
}

CUresult function_parameter(const struct function *function, size_t index, size_t *offset, size_t *size) {
    const struct kernel *kernel = function->kernel;
    if (index >= function_parameters(function)) return INVALID_VALUE;
    *offset = kernel ? kernel->parameter[index].offset : index * 8;
    if (size) *size = kernel ? kernel->parameter[index].bytes : 8;
    return SUCCESS;
}

struct launched *launched_create(const struct function *function, const unsigned *grid, const unsigned *block,
                                 unsigned shared, void **parameters) {
    const struct kernel *kernel = function->kernel;
    struct launched *launched = calloc(1, sizeof *launched + kernel->parameter_bytes + 1);
    launched->references = 1, launched->kernel_of = function->module, launched->kernel = kernel;
    launched->shared = shared;
    memcpy(launched->grid, grid, sizeof launched->grid), memcpy(launched->block, block, sizeof launched->block);
    for (unsigned i = 0; i < kernel->parameters; i++)
        memcpy(launched->parameters + kernel->parameter[i].offset, parameters[i], kernel->parameter[i].bytes);
    return launched;
}
