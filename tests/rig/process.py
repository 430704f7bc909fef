"""The server's own process: `python process.py PROGRAM ARGUMENTS...`, with a pipe as its standard input.

PROGRAM is either a `clickhouse` binary or a `libchdb.so`, whose C function `chdb_query_cmdline` takes the arguments
of `clickhouse local`. The process, and with it the server, ends when its standard input is closed. So the server
never outlives who started it, not even after a SIGKILL. (Linux has PR_SET_PDEATHSIG for that, but it fires as soon
as the *thread* that started the server ends, and macOS has nothing like it.)
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

LIBRARY_SUFFIXES = (".so", ".dylib")


def main(program: str, *arguments: str) -> int:
    """Run the program with the arguments until it ends, and return its exit code."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    run = run_library if program.endswith(LIBRARY_SUFFIXES) else run_binary
    return run(program, arguments)


def end_with_parent() -> None:
    """Wait for the end of standard input, then kill the whole process group: this process and a binary it runs."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def run_library(library: str, arguments: Sequence[str]) -> int:
    """Call `chdb_query_cmdline`, which comes back only when the server could not start, and print why."""
    chdb = ctypes.CDLL(library)
    chdb.chdb_query_cmdline.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
    chdb.chdb_query_cmdline.restype = ctypes.c_void_p
    chdb.chdb_result_error.argtypes = (ctypes.c_void_p,)
    chdb.chdb_result_error.restype = ctypes.c_char_p
    argv = [b"clickhouse", *map(os.fsencode, arguments), None]
    result = chdb.chdb_query_cmdline(len(argv) - 1, (ctypes.c_char_p * len(argv))(*argv))
    sys.stderr.write((chdb.chdb_result_error(result) or b"").decode(errors="replace"))
    return 1


def run_binary(binary: str, arguments: Sequence[str]) -> int:
    """Run a binary that gets the group's SIGTERM by itself: stay until it has closed its files."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    return subprocess.call([binary, *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
