// A linker for the fake driver: the PTX that it is given is its "cubin". A library of its own. Code that
// is yet to be optimised (LTO, what numba.cuda uses on its own) goes through the real linker, which makes PTX of it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID_INPUT = 3, PTX = 2, LTO = 3 };

struct linker {
    char *ptx;  // ends in a NUL, which counts, as the driver is told no size
    size_t bytes;
    char *error;
    uint32_t count;
    const char **options;
    void *real;
};

static int refuse(struct linker *linker, const char *why) {
    free(linker->error);
    return linker->error = strdup(why), INVALID_INPUT;
}

static void *real(const char *name) {
    static void *library;
    const char *path = getenv("FAKE_CUDA_NVJITLINK");
    if (!library && path) library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    return library ? dlsym(library, name) : NULL;
}

API int nvJitLinkVersion(unsigned *major, unsigned *minor) {
    return *major = 13, *minor = 0, SUCCESS;
}
API int nvJitLinkCreate(struct linker **linker, uint32_t count, const char **options) {
    *linker = calloc(1, sizeof **linker);
    (*linker)->options = calloc(count + 1, sizeof *options);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(options[i], "-ptx")) (*linker)->options[(*linker)->count++] = strdup(options[i]);
    (*linker)->options[(*linker)->count++] = strdup("-ptx");
    return SUCCESS;
}
API int nvJitLinkDestroy(struct linker **linker) {
    struct linker *it = *linker;
    int (*destroy)(void **) = it->real ? real("nvJitLinkDestroy") : NULL;
    if (destroy) destroy(&it->real);
    for (uint32_t i = 0; i < it->count; i++) free((char *)it->options[i]);
    free(it->options), free(it->ptx), free(it->error), free(it);
    return *linker = NULL, SUCCESS;
}

static int said(struct linker *linker, int result) {  // by the real linker
    int (*size_of)(void *, size_t *) = real("nvJitLinkGetErrorLogSize"), (*log)(void *, char *) = real("nvJitLinkGetErrorLog");
    size_t bytes = 0;
    if (!result || size_of(linker->real, &bytes) || !bytes) return result;
    char *text = calloc(1, bytes + 1);
    log(linker->real, text), refuse(linker, text), free(text);
    return result;
}

static int add_real(struct linker *linker, int type, const void *data, size_t bytes, const char *name) {
    int (*create)(void **, uint32_t, const char **) = real("nvJitLinkCreate");
    int (*add)(void *, int, const void *, size_t, const char *) = real("nvJitLinkAddData");
    if (linker->ptx || type != LTO) return refuse(linker, "the fake linker takes one PTX, or LTO code");
    if (!create) return refuse(linker, "LTO code is for the real nvJitLink: FAKE_CUDA_NVJITLINK does not say where it is");
    int result = linker->real ? SUCCESS : create(&linker->real, linker->count, linker->options);
    if (!linker->real) return result;
    return said(linker, result ? result : add(linker->real, type, data, bytes, name));
}

static void keep(struct linker *linker, size_t bytes) {
    linker->ptx = calloc(1, bytes + 1), linker->bytes = bytes + 1;
}

API int nvJitLinkAddData(struct linker *linker, int type, const void *data, size_t bytes, const char *name) {
    if (type != PTX || linker->ptx || linker->real) return add_real(linker, type, data, bytes, name);
    keep(linker, strnlen(data, bytes));
    memcpy(linker->ptx, data, linker->bytes - 1);
    return SUCCESS;
}
API int nvJitLinkAddFile(struct linker *linker, int type, const char *name) {
    (void)type, (void)name;
    return refuse(linker, "the fake linker takes no files");
}
API int nvJitLinkComplete(struct linker *linker) {
    if (!linker->real) return linker->ptx ? SUCCESS : refuse(linker, "there is nothing to link");
    int (*complete)(void *) = real("nvJitLinkComplete"), (*size_of)(void *, size_t *) = real("nvJitLinkGetLinkedPtxSize");
    int (*get)(void *, char *) = real("nvJitLinkGetLinkedPtx");
    size_t bytes = 0;
    int result = complete(linker->real);
    if (!result) result = size_of(linker->real, &bytes);
    if (result) return said(linker, result);
    keep(linker, bytes);
    return said(linker, get(linker->real, linker->ptx));
}
static int get(struct linker *linker, void *to, size_t *bytes) {
    if (!linker->ptx) return INVALID_INPUT;
    if (bytes) *bytes = linker->bytes;
    if (to) memcpy(to, linker->ptx, linker->bytes);
    return SUCCESS;
}
API int nvJitLinkGetLinkedCubinSize(struct linker *linker, size_t *bytes) { return get(linker, NULL, bytes); }
API int nvJitLinkGetLinkedCubin(struct linker *linker, void *cubin) { return get(linker, cubin, NULL); }
API int nvJitLinkGetLinkedPtxSize(struct linker *linker, size_t *bytes) { return get(linker, NULL, bytes); }
API int nvJitLinkGetLinkedPtx(struct linker *linker, char *ptx) { return get(linker, ptx, NULL); }
API int nvJitLinkGetErrorLogSize(struct linker *linker, size_t *bytes) {
    return *bytes = (linker->error ? strlen(linker->error) : 0) + 1, SUCCESS;
}
API int nvJitLinkGetErrorLog(struct linker *linker, char *log) {
    return strcpy(log, linker->error ? linker->error : ""), SUCCESS;
}
API int nvJitLinkGetInfoLogSize(struct linker *linker, size_t *bytes) { return (void)linker, *bytes = 1, SUCCESS; }
API int nvJitLinkGetInfoLog(struct linker *linker, char *log) { return (void)linker, *log = 0, SUCCESS; }
