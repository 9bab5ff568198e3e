"""What the C allocator does with the memory of received messages."""

import ctypes
import functools
import os

# glibc's numbers of its settings (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Freed memory at the end of a heap that the process keeps: some messages of the usual sizes.
_KEEP = 64 << 20
# Larger pieces come from the system each time, and go back at once. The largest that glibc takes.
_LARGE = 32 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Lets the process keep up to 64 MiB of freed memory per heap for the next messages; true where that was set.

    gRPC takes memory of megabytes for each message. By default glibc gives it back to the system when it is freed and takes it again for the next
    one, which costs a page fault for each 4 KiB: a third of a consumer's processor time. Set once, when the first loader opens a stream, and not
    where the environment sets glibc's allocator or ``FOREBAY_TUNE_MALLOC=0`` forbids it. Other allocators and systems are left alone.
    """
    if os.environ.get("FOREBAY_TUNE_MALLOC") == "0" or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    if any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")):
        return False
    try:
        library = ctypes.CDLL(None)
        # Others have a `mallopt` too, with other numbers.
        mallopt = library.mallopt if hasattr(library, "gnu_get_libc_version") else None
    except (AttributeError, OSError, TypeError):
        return False
    if mallopt is None:
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    # Setting one of them stops glibc from adjusting the other by itself, so both are set.
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP))
