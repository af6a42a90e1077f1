"""The fake driver's own functions, for code that `fake_cuda.run` runs."""

import ctypes

_library = ctypes.CDLL("libcuda.so.1")
if not hasattr(_library, "fake_cuda_count"):
    raise ImportError("libcuda.so.1 is not the fake one")
_library.fake_cuda_count.argtypes = [ctypes.c_char_p]
_library.fake_cuda_count.restype = ctypes.c_long
_library.fake_cuda_fail.argtypes = [ctypes.c_char_p, ctypes.c_long]
_library.fake_cuda_seed.argtypes = [ctypes.c_uint64]
_library.fake_cuda_seed.restype = None
_library.fake_cuda_reset_counts.restype = None
_library.fake_cuda_revive.restype = None
for _set in (_library.fake_cuda_eager, _library.fake_cuda_queue, _library.fake_cuda_patience):
    _set.argtypes, _set.restype = [ctypes.c_long], None
_library.fake_cuda_backing.argtypes = [ctypes.c_void_p]
_library.fake_cuda_backing.restype = ctypes.c_void_p


def count(what: str) -> int:
    """A counter, see README.md."""
    found = _library.fake_cuda_count(what.encode())
    if found < 0:
        raise ValueError(f"the fake driver does not count {what!r}")
    return found


def fail(what: str, n: int) -> None:
    """Let the `n`-th call of this kind from now fail; 0 takes it back."""
    if _library.fake_cuda_fail(what.encode(), n):
        raise ValueError(f"the fake driver has no fault {what!r}")


def revive() -> None:
    """Reset the context: what ruined it is forgotten, and memory, streams, events and executable graphs are gone."""
    _library.fake_cuda_revive()


def eager(host_ns: int) -> None:
    """Let each call that enqueues take the host so long, and the device execute at once what it can; 0: no longer."""
    _library.fake_cuda_eager(host_ns)


def queue(length: int) -> None:
    """Let a stream hold so many entries at most; 0: any number."""
    _library.fake_cuda_queue(length)


def patience(ms: int) -> None:
    """Have a synchronisation wait so long for another thread to write the value that a stream waits for."""
    _library.fake_cuda_patience(ms)


def seed(n: int) -> None:
    """Start the scheduler's random numbers again."""
    _library.fake_cuda_seed(n)


def reset_counts() -> None:
    """Set the counters of calls to 0; those of live things stay."""
    _library.fake_cuda_reset_counts()


def report() -> str:
    """What a kernel did wrong first, in words, or why PTX could not be translated; then it is forgotten."""
    text = ctypes.create_string_buffer(1024)
    _library.fake_cuda_report(text, ctypes.c_size_t(len(text)))
    return text.value.decode()


def host(address: int, size: int) -> ctypes.Array[ctypes.c_uint8]:
    """The bytes behind an address of device or pinned memory as they are now, with no synchronisation."""
    found = _library.fake_cuda_backing(address)
    if not found:
        raise ValueError(f"{address:#x} is not in memory that is allocated")
    return (ctypes.c_uint8 * size).from_address(found)
