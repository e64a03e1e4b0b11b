# SPDX-License-Identifier: Apache-2.0
"""Processes that take all of every core that they get: measurements on a busy machine."""
import contextlib
import os
import subprocess
import sys

HELP = "beside a process per core that takes all it gets"


@contextlib.contextmanager
def hogs(wanted):
    """One per core while the block runs, if they are wanted."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() if wanted else 0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
