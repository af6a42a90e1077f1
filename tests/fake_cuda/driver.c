// Finding the calls, the device, its context, kernels.
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool initialised;
struct context primary;
static _Thread_local void *contexts[16];
static _Thread_local int depth;

CUresult started(void) { return !initialised ? NOT_INITIALIZED : calling ? NOT_PERMITTED : SUCCESS; }
CUresult inside(void) {
    TRY(started());
    return depth && contexts[depth - 1] ? SUCCESS : INVALID_CONTEXT;
}

// --- finding the calls

enum { VERSION = 13000 };

API CUresult cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags UNUSED, int *status) {
    static const struct { const char *name; int version; const char *suffix; } signatures[] = {
        {"cuStreamGetCaptureInfo", 12030, "_v3"}, {"cuStreamGetCaptureInfo", 11030, "_v2"},
        {"cuStreamGetCaptureInfo", 0, "_absent"}, {"cuStreamGetCtx", 12050, "_v2"}, {"cuStreamGetCtx", 0, ""},
        {"cuCtxGetDevice", 13000, "_v2"}, {"cuCtxGetDevice", 0, ""}, {"cuCtxSynchronize", 13000, "_v2"},
        {"cuCtxSynchronize", 0, ""}, {"cuMemPrefetchAsync", 12020, "_v2"}, {"cuMemPrefetchAsync", 0, ""}, {"cuMemAdvise", 12020, "_v2"},
        {"cuMemAdvise", 0, ""}, {"cuGraphNodeGetDependencies", 12030, "_v2"},
        {"cuGraphNodeGetDependencies", 0, "_absent"}, {"cuGraphInstantiate", 12000, "WithFlags"},
        {"cuGraphInstantiate", 0, "_absent"},
    };
    LOCK;
    static void *self;
    Dl_info info;
    *call = NULL;
    if (status) *status = version > VERSION ? 2 : 1;
    if (version > VERSION) return NOT_FOUND;
    if (!self && dladdr((void *)&lock, &info)) self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    char full[128];
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++)
        if (!strcmp(signatures[i].name, name) && version >= signatures[i].version) {
            snprintf(full, sizeof full, "%s%s", name, signatures[i].suffix);
            *call = dlsym(self, full);
            goto found;
        }
    snprintf(full, sizeof full, "%s_v2", name);
    *call = dlsym(self, full);
    if (!*call && !strncmp(name, "cu", 2)) *call = dlsym(self, name);
found:
    if (!*call && getenv("FAKE_CUDA_TRACE")) fprintf(stderr, "fake cuda: no %s %d\n", name, version);
    if (status && *call) *status = 0;
    return *call ? SUCCESS : NOT_FOUND;
}
API CUresult cuGetProcAddress(const char *name, void **call, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, call, version, flags, NULL);
}

#define NAMES(X) \
    X(SUCCESS, "CUDA_SUCCESS") X(INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE") \
    X(OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY") X(NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED") \
    X(INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE") X(INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT") \
    X(INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE") X(ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE") \
    X(NOT_FOUND, "CUDA_ERROR_NOT_FOUND") X(NOT_READY, "CUDA_ERROR_NOT_READY") \
    X(ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS") X(LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT") \
    X(LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED") \
    X(INVALID_PTX, "CUDA_ERROR_INVALID_PTX") X(MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS") \
    X(NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED") X(NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED") \
    X(CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED") \
    X(CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED") \
    X(CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE") X(CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED") \
    X(CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED") \
    X(CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION") \
    X(CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT") X(CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT") \
    X(UNKNOWN, "CUDA_ERROR_UNKNOWN")

API CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = NULL;
#define X(code, text) if (error == code) *name = text;
    NAMES(X)
    return *name ? SUCCESS : INVALID_VALUE;
}
API CUresult cuGetErrorString(CUresult error, const char **text) {
    return error == INVALID_PTX ? (*text = module_refusal(), SUCCESS) : cuGetErrorName(error, text);
}

// --- the device and its context

API CUresult cuInit(unsigned flags UNUSED) { return initialised = true, SUCCESS; }
API CUresult cuDriverGetVersion(int *version) { return *version = VERSION, SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { return *count = 1, initialised ? SUCCESS : NOT_INITIALIZED; }
API CUresult cuDeviceGet(int *device, int ordinal) { return *device = 0, ordinal ? INVALID_DEVICE : SUCCESS; }
API CUresult cuDeviceGetName(char *name, int size, int device) {
    return snprintf(name, (size_t)size, "Fake GPU"), device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(char *uuid, int device) {
    return memcpy(uuid, "a fake GPU uuid.", 16), device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) {
    return *bytes = memory_total(), device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceGetPCIBusId(char *id, int size, int device) {
    return snprintf(id, (size_t)size, "0000:01:00.0"), device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceComputeCapability(int *major, int *minor, int device) {
    return *major = 9, *minor = 0, device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    static const int values[160] = {
        [1] = 1024, [2] = 1024, [3] = 1024, [4] = 64, [5] = 0x7fffffff, [6] = 65535, [7] = 65535,  // block and grid
        [8] = 48 << 10, [9] = 64 << 10, [10] = 32, [11] = 0x7fffffff, [12] = 65536, [13] = 1000000, [14] = 512,
        [15] = 1, [16] = 8, [19] = 1, [30] = 512, [31] = 1, [33] = 1, [36] = 1000000, [37] = 4096, [38] = 50 << 20,
        [39] = 2048, [40] = 3, [41] = 1, [51] = 32,  // copy engines, unified addressing
        [75] = 9, [76] = 0, [78] = 1, [79] = 1, [80] = 1, [81] = 228 << 10, [82] = 65536, [90] = 1, [91] = 1,
        [97] = 227 << 10, [99] = 1, [106] = 32, [111] = 1024, [115] = 1,  // memory pools
        [92] = 1, [93] = 1, [94] = 1, [122] = 1, [123] = 1,  // stream memory operations
        [83] = 1, [89] = 1,  // managed memory
        [134] = -1, [130] = 0, [131] = -1,
    };
    *value = attribute > 0 && attribute < 160 ? values[attribute] : 0;
    if (attribute == 102) *value = mapping_supported();
    return device ? INVALID_DEVICE : attribute > 0 && attribute < 160 ? SUCCESS : INVALID_VALUE;
}

API CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    LOCK;
    if (!initialised) return NOT_INITIALIZED;
    if (device) return INVALID_DEVICE;
    primary.retained++, *context = &primary;
    return SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    LOCK;
    if (device) return INVALID_DEVICE;
    return primary.retained-- > 0 ? SUCCESS : (primary.retained = 0, INVALID_CONTEXT);
}
API CUresult cuDevicePrimaryCtxReset_v2(int device) {
    LOCK;
    if (device) return INVALID_DEVICE;
    return fake_cuda_revive(), SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    return *flags = primary.flags, *active = primary.retained > 0, device ? INVALID_DEVICE : SUCCESS;
}
API CUresult cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    return device ? INVALID_DEVICE : (primary.flags = flags, SUCCESS);
}
API CUresult cuCtxGetCurrent(void **context) {
    if (!initialised) return NOT_INITIALIZED;
    return *context = depth ? contexts[depth - 1] : NULL, SUCCESS;
}
API CUresult cuCtxSetCurrent(void *context) {
    if (!initialised) return NOT_INITIALIZED;
    if (context && context != &primary) return INVALID_CONTEXT;
    if (!depth) depth = 1;
    contexts[depth - 1] = context;
    return SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(void *context) {
    if (context != &primary || depth == 16) return INVALID_CONTEXT;
    return contexts[depth++] = context, SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    void *top = contexts[--depth];
    if (context) *context = top;
    return SUCCESS;
}
API CUresult cuCtxGetDevice_v2(int *device, void *context) {
    if (!context && !depth) return INVALID_CONTEXT;
    return *device = 0, SUCCESS;
}
API CUresult cuCtxGetDevice(int *device) {
    LOCK;
    TRY(inside());
    return *device = 0, SUCCESS;
}
API CUresult cuCtxGetId(void *context UNUSED, uint64_t *id) { return *id = 1, SUCCESS; }
API CUresult cuCtxGetFlags(unsigned *flags) { return *flags = primary.flags, SUCCESS; }
API CUresult cuCtxGetApiVersion(void *context UNUSED, unsigned *version) { return *version = 3020, SUCCESS; }
API CUresult cuCtxGetLimit(size_t *value, int limit UNUSED) { return *value = 1 << 20, SUCCESS; }
API CUresult cuCtxSetLimit(int limit UNUSED, size_t value UNUSED) { return SUCCESS; }
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}
API CUresult cuCtxSynchronize(void) {
    ENTER;
    TRY(capture_forbids(NULL));
    spins(false);
    TRY(finish_all());
    return settle(NULL);
}
API CUresult cuCtxSynchronize_v2(void *context UNUSED) { return cuCtxSynchronize(); }

// --- kernels: a library or module is anything, a function is its name

static CUresult load(struct library **library, const void *code) {
    const struct module *module;
    if (!code) return INVALID_VALUE;
    TRY(module_load(code, &module));
    *library = handle_create(LIBRARY, sizeof **library);
    (*library)->module = module, counts[LOADS]++;
    return SUCCESS;
}
API CUresult cuModuleLoadData(struct library **library, const void *code) {
    ENTER;
    return load(library, code);
}
API CUresult cuModuleLoadDataEx(struct library **library, const void *code, unsigned size UNUSED, int *options UNUSED,
                                void **values UNUSED) {
    return cuModuleLoadData(library, code);
}
API CUresult cuLibraryLoadData(struct library **library, const void *code, int *options UNUSED, void **values UNUSED,
                               unsigned size UNUSED, int *more UNUSED, void **more_values UNUSED, unsigned n UNUSED) {
    LOCK;
    TRY(ruined);
    return load(library, code);
}
API CUresult cuLibraryGetModule(struct handle **module, struct handle *library) { return *module = library, SUCCESS; }
API CUresult cuLibraryUnload(struct handle *library) {
    LOCK;
    if (!is(library, LIBRARY)) return INVALID_HANDLE;
    library->live = false;
    return ruined;
}
API CUresult cuModuleUnload(struct handle *module) { return cuLibraryUnload(module); }
API CUresult cuLibraryGetKernel(struct function **result, struct library *library, const char *name) {
    LOCK;
    if (!is(library, LIBRARY)) return INVALID_HANDLE;
    for (*result = library->functions; *result && strcmp((*result)->name, name);) *result = (*result)->next;
    if (*result) return SUCCESS;
    const struct module *module = library->module;
    const struct kernel *kernel = module ? module_kernel(module, name) : NULL;
    if (module && !kernel) return NOT_FOUND;
    struct function *function = *result = handle_create(FUNCTION, sizeof **result + strlen(name) + 1);
    strcpy(function->name, name);
    function->module = module, function->kernel = kernel, function->builtin = module ? NULL : builtin_find(name);
    function->next = library->functions, library->functions = function;
    return SUCCESS;
}
API CUresult cuModuleGetFunction(struct function **result, struct library *module, const char *name) {
    return cuLibraryGetKernel(result, module, name);
}
API CUresult cuKernelGetFunction(struct function **result, struct function *kernel) {
    return *result = kernel, is(kernel, FUNCTION) ? SUCCESS : INVALID_HANDLE;
}
API CUresult cuKernelGetName(const char **name, struct function *kernel) {
    return is(kernel, FUNCTION) ? (*name = kernel->name, SUCCESS) : INVALID_HANDLE;
}
API CUresult cuFuncGetName(const char **name, struct function *kernel) { return cuKernelGetName(name, kernel); }
API CUresult cuFuncGetAttribute(int *value, int attribute, struct function *function) {
    return is(function, FUNCTION) ? function_attribute(function, attribute, value) : INVALID_VALUE;
}
API CUresult cuKernelGetAttribute(int *value, int attribute, struct function *kernel, int device UNUSED) {
    return cuFuncGetAttribute(value, attribute, kernel);
}
API CUresult cuFuncSetAttribute(struct function *function, int attribute UNUSED, int value UNUSED) {
    return is(function, FUNCTION) ? SUCCESS : INVALID_HANDLE;
}
API CUresult cuKernelSetAttribute(int attribute, int value, struct function *kernel, int device UNUSED) {
    return cuFuncSetAttribute(kernel, attribute, value);
}
API CUresult cuKernelGetParamInfo(struct function *kernel, size_t index, size_t *offset, size_t *size) {
    return is(kernel, FUNCTION) ? function_parameter(kernel, index, offset, size) : INVALID_VALUE;
}
API CUresult cuFuncGetParamInfo(struct function *function, size_t index, size_t *offset, size_t *size) {
    return cuKernelGetParamInfo(function, index, offset, size);
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct function *function, int threads,
                                                         size_t shared UNUSED) {
    if (!is(function, FUNCTION) || threads < 1) return INVALID_VALUE;
    return *blocks = threads > 1024 ? 0 : threads < 64 ? 32 : 2048 / threads, SUCCESS;
}

// A kernel is brought onto the device where somebody sees to it, or when it is first launched: that may wait for all of it.
API CUresult cuFuncLoad(struct function *function) {
    ENTER;
    if (!is(function, FUNCTION)) return INVALID_HANDLE;
    return function->loaded = true, SUCCESS;
}
API CUresult cuFuncIsLoaded(int *state, struct function *function) {
    ENTER;
    return is(function, FUNCTION) ? (*state = function->loaded, SUCCESS) : INVALID_HANDLE;
}
static CUresult bring(struct function *function) {
    if (function->loaded) return SUCCESS;
    TRY(open_gates());
    counts[LATE_LOADS]++;
    return function->loaded = true, SUCCESS;
}

struct launch {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned size;
};
API CUresult cuLaunchKernelEx(const struct launch *config, struct function *function, void **parameters, void **extra) {
    ENTER;
    ROOM_IN(config->stream);
    if (!is(function, FUNCTION)) return INVALID_HANDLE;
    const unsigned *g = config->grid, *b = config->block;
    if (!g[0] || !g[1] || !g[2] || !b[0] || !b[1] || !b[2] || b[0] * b[1] * b[2] > 1024) return INVALID_VALUE;
    if ((function_parameters(function) && !parameters) || extra) return INVALID_VALUE;
    TRY(bring(function));
    if (fails(FAIL_LAUNCH)) return LAUNCH_FAILED;
    struct op op = {.kind = LAUNCH, .function = function};
    for (int i = 0; i < builtin_words(function->builtin); i++) memcpy(&op.words[i], parameters[i], 8);
    if (function->kernel) op.launched = launched_create(function, g, b, config->shared, parameters);
    TRY(enqueue(stream, &op));
    counts[LAUNCHES]++, counts[UNKNOWN_LAUNCHES] += !function->builtin && !function->kernel;
    return SUCCESS;
}
API CUresult cuLaunchKernel(struct function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    struct launch config = {{gx, gy, gz}, {bx, by, bz}, shared, stream, NULL, 0};
    return cuLaunchKernelEx(&config, function, parameters, extra);
}
