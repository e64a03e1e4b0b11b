#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints how many kHz this x86 processor's time stamp counter has, which is also that of a guest under emulation."""
import ctypes
import mmap
import time

READ = b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3"  # rdtsc; shl $32, %rdx; or %rdx, %rax; ret

page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(READ)
counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))


def sample():
    """A time and the counter at that time: of many looks the one between which the least time passed."""
    looks = [(time.monotonic_ns(), counter(), time.monotonic_ns()) for _ in range(200)]
    before, ticks, after = min(looks, key=lambda look: look[2] - look[0])
    return (before + after) // 2, ticks


began_ns, began = sample()
time.sleep(0.3)
ended_ns, ended = sample()
print(round((ended - began) * 1e6 / (ended_ns - began_ns)))
