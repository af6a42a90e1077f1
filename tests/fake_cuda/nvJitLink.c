// NVIDIA's linker, as far as cuda.core and Numba ask it: what it links is the PTX that it was given.
#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
struct link {
    char *text;
    size_t bytes;
};
enum { SUCCESS = 0, NO_FILES = 4 };

API int nvJitLinkVersion(unsigned *major, unsigned *minor) { return *major = 13, *minor = 0, SUCCESS; }
API int nvJitLinkCreate(struct link **link, unsigned count, const char **options) {
    (void)count, (void)options;
    return *link = calloc(1, sizeof **link), SUCCESS;
}
API int nvJitLinkDestroy(struct link **link) {
    free((*link)->text), free(*link);
    return *link = NULL, SUCCESS;
}
API int nvJitLinkAddData(struct link *link, int type, const void *data, size_t bytes, const char *name) {
    (void)type, (void)name;
    const size_t length = strnlen(data, bytes);
    link->text = realloc(link->text, link->bytes + length + 1);
    memcpy(link->text + link->bytes, data, length);
    link->text[link->bytes += length] = 0;
    return SUCCESS;
}
API int nvJitLinkAddFile(struct link *link, int type, const char *name) { return (void)link, (void)type, (void)name, NO_FILES; }
API int nvJitLinkComplete(struct link *link) { return (void)link, SUCCESS; }

static int size_of(struct link *link, size_t *bytes) { return *bytes = link->bytes + 1, SUCCESS; }
static int text_of(struct link *link, void *text) {
    memcpy(text, link->text ? link->text : "", link->bytes + 1);
    return SUCCESS;
}
API int nvJitLinkGetLinkedCubinSize(struct link *link, size_t *bytes) { return size_of(link, bytes); }
API int nvJitLinkGetLinkedCubin(struct link *link, void *text) { return text_of(link, text); }
API int nvJitLinkGetLinkedPtxSize(struct link *link, size_t *bytes) { return size_of(link, bytes); }
API int nvJitLinkGetLinkedPtx(struct link *link, char *text) { return text_of(link, text); }

static int nothing(size_t *bytes) { return *bytes = 1, SUCCESS; }
API int nvJitLinkGetErrorLogSize(struct link *link, size_t *bytes) { return (void)link, nothing(bytes); }
API int nvJitLinkGetInfoLogSize(struct link *link, size_t *bytes) { return (void)link, nothing(bytes); }
API int nvJitLinkGetErrorLog(struct link *link, char *log) { return (void)link, *log = 0, SUCCESS; }
API int nvJitLinkGetInfoLog(struct link *link, char *log) { return (void)link, *log = 0, SUCCESS; }
