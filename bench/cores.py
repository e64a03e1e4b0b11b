# SPDX-License-Identifier: Apache-2.0
"""How far the cores of both sides are from each other while they are measured.

A hypervisor moves the cores of a virtual machine, and for seconds or minutes a cache line may take six times as long
from one to the other. All that crosses is two to three times slower then: only rounds of one state are comparable.
"""
import os
import subprocess
import time

HELP = ("measure only while a cache line takes at most NS ns from one core to the other and back (see bench/cores.py); "
        "what was measured otherwise is measured again; needs --pin")
LIMIT_S = 300


class Cores:
    def __init__(self, build, near_ns):
        self.probe, self.near_ns = f"{build}/peers/cores_apart", near_ns
        self.seen, self.repeated = [], 0

    def apart_ns(self):
        return int(subprocess.run([self.probe, "0", str(os.cpu_count() - 1)], check=True, capture_output=True).stdout)

    def measured(self, action):
        """The result of an action that ran while the cores were near."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            before = self.apart_ns()
            if before > self.near_ns:
                time.sleep(0.2)
                continue
            result = action()
            after = self.apart_ns()
            if after <= self.near_ns:
                self.seen += [before, after]
                return result
            self.repeated += 1
        raise TimeoutError(f"the cores were not within {self.near_ns} ns of each other for {LIMIT_S} s")

    def __str__(self):
        if not self.seen:
            return "Cores: nothing was measured."
        return (f"Cores: a cache line took {min(self.seen)} to {max(self.seen)} ns from one to the other and back, "
                f"before and after what counts; {self.repeated} measurements were repeated.")
