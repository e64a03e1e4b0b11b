#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs scale_sim and prints the tables of docs/congestion-control.md.

usage: bench/scale_table.py [--small] [--jobs N] [PATH_TO_SCALE_SIM]

All in virtual time: the same build prints the same numbers on every machine. --small takes an eighth of
the nodes, for a look; the whole takes some minutes on two cores.
"""
import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

CCS = ["swift", "timely", "eqds"]
POLICIES = ["recycle", "pow2", "rr"]


class Runs:
    """Runs that are under way or done, each once, by their flags."""

    def __init__(self, program, jobs):
        self.program = program
        self.pool = ThreadPoolExecutor(jobs)
        self.started = {}

    def _run(self, flags):
        done = subprocess.run([self.program, "--json", *flags], capture_output=True, text=True)
        if done.returncode not in (0, 1) or not done.stdout:
            sys.exit(f"{self.program} {' '.join(flags)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start(self, *flags):
        if flags not in self.started:
            self.started[flags] = self.pool.submit(self._run, flags)
        return self.started[flags]


def result(future):
    r = future.result()
    if r["done"] < r["messages"]:
        r["ratio"] = None
    return r


def ratio(future):
    r = result(future)
    return f"{r['ratio']:.3f}" if r["ratio"] else f"{r['messages'] - r['done']} not done"


def worst_us(futures):
    """The worst of several seeds."""
    return f"{max(result(f)['max_us'] for f in futures):.0f}"


def table(title, head, rows):
    """Rows are started in full before the first result is waited for."""
    rows = list(rows)
    print(f"{title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" + "---:|" * (len(head) - 1))
    for cells in rows:
        print("| " + " | ".join(c() if callable(c) else c for c in cells) + " |")
    print(flush=True)


def later(function, *arguments):
    return lambda: function(*arguments)


def permutation(runs, nodes):
    rows = []
    for cc in CCS:
        cells = [f"`{cc}`"]
        for paths in ("32", "64", "128", "256"):
            future = runs.start("--nodes", nodes, "--cc", cc, "--paths", paths)
            cells.append(later(lambda f: f"{ratio(f)} ({result(f)['max_us']:.0f} us)", future))
        rows.append(cells)
    table(f"Permutation of {nodes} nodes, 2,000,000 bytes each, chunks of 4 KiB: worst completion to ideal.",
          ["", "32 paths", "64", "128", "256"], rows)


def paths_and_policies(runs):
    rows = []
    for policy in POLICIES:
        cells = [f"`{policy}`"]
        for paths in ("1", "4", "8", "16", "32", "64", "128", "256"):
            cells.append(later(ratio, runs.start("--nodes", "128", "--policy", policy, "--paths", paths)))
        rows.append(cells)
    table("The same with 128 nodes and `swift`, by policy and paths.",
          ["", "1 path", "4", "8", "16", "32", "64", "128", "256"], rows)


def chunks(runs):
    rows = []
    for cc in CCS:
        cells = [f"`{cc}`"]
        for chunk in ("4", "8", "16", "32", "64"):
            cells.append(later(ratio, runs.start("--nodes", "128", "--cc", cc, "--paths", "128", "--chunk", chunk)))
        rows.append(cells)
    table("The same with 128 nodes and 128 paths, by size of chunk.",
          ["", "4 KiB", "8", "16", "32", "64"], rows)


def incast(runs, cases):
    rows = []
    for senders, size in cases:
        for cc in CCS:
            f = runs.start("--traffic", "incast", "--nodes", str(senders + 1), "--size", str(size), "--cc", cc,
                           "--limit", "400000")
            rows.append([f"{senders} senders of {size:,} bytes, `{cc}`",
                         later(lambda f: f"{result(f)['mean_us']:,.0f}", f),
                         later(lambda f: f"{result(f)['max_us']:,.0f}", f),
                         later(lambda f: f"{result(f)['ideal_us']:,.0f}", f), later(ratio, f),
                         later(lambda f: f"{result(f)['retransmissions']:,}", f)])
    table("Incast: completion in us, worst to ideal, and packets retransmitted.",
          ["", "mean", "max", "ideal", "ratio", "retransmitted"], rows)


def failures(runs):
    rows = []
    for kind in ("degraded", "dead"):
        for cc in CCS:
            cells = [f"4 uplinks {kind}, `{cc}`"]
            for policy in POLICIES:
                futures = [runs.start("--nodes", "128", f"--{kind}", "4", "--cc", cc, "--policy", policy, "--seed",
                                      str(seed)) for seed in range(1, 6)]
                cells.append(later(worst_us, futures))
            rows.append(cells)
    table("Permutation of 128 nodes, 32 paths, four racks with a bad uplink: worst completion in us of five seeds. Ideal is "
          "209 us with degraded links and 226 us with dead ones.", ["", *(f"`{p}`" for p in POLICIES)], rows)


def full_networks(runs):
    rows = []
    for cc in CCS:
        rows.append([f"`{cc}`",
                     later(ratio, runs.start("--nodes", "128", "--oversubscription", "4", "--cc", cc)),
                     later(ratio, runs.start("--nodes", "64", "--traffic", "alltoall", "--size", "100000", "--cc", cc))])
    table("Worst completion to ideal where the network, or every link of it, is full.",
          ["", "permutation of 128, core 4:1 oversubscribed", "all to all of 64, 100,000 bytes"], rows)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="128 nodes instead of 1,024")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once (2)")
    parser.add_argument("program", nargs="?", default=os.path.join(here, "..", "build", "bench", "scale_sim"))
    arguments = parser.parse_args()
    runs = Runs(arguments.program, arguments.jobs)
    permutation(runs, "128" if arguments.small else "1024")
    paths_and_policies(runs)
    chunks(runs)
    incast(runs, [(127, 2000000)] if arguments.small else [(127, 2000000), (1023, 100000)])
    failures(runs)
    full_networks(runs)


if __name__ == "__main__":
    main()
