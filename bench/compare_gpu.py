#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""p2p_bench from one GPU to another over UDP on loopback, next to (a) the same with host memory and (b) NCCL
send/recv between the same GPUs, restricted to its socket transport. A machine that has one GPU uses it for both sides.

In every round each of them runs once, and the table shows medians over the rounds: only ratios of runs that
alternate count. Start it through bench/compare_gpu.sh, which builds p2p_bench.
"""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = "256,4K,64K,256K,1M,4M,16M,64M"
NCCL = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
LIMIT_S = 240  # of one run
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


class Failed(Exception):
    pass


def size_list(text):
    sizes = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)([KMG]?)", part.strip())
        if not found or int(found[1]) == 0:
            raise argparse.ArgumentTypeError(f"not a size: {part}")
        sizes.append(int(found[1]) << UNITS[found[2]])
    return sizes


def text_of(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def output_of(command, env=None):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **(env or {})},
                              check=False)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"{command[0]}: no end after {LIMIT_S} s") from e
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Failed(f"{os.path.basename(command[0])} ended with {done.returncode}: {lines[-1] if lines else 'no word'}")
    return done.stdout


def p2p_bench(options, *where):
    sizes = ",".join(str(size) for size in options.sizes)
    command = [options.p2p_bench, "--local", "--json", f"--sizes={sizes}", f"--seconds={options.seconds}", *where]
    return json.loads(output_of(command, {"UCCL_SOCKET_IFNAME": "lo"}))["results"]


def nccl(options):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        output_of([sys.executable, f"{HERE}/peer_nccl.py", f"--sizes={','.join(map(str, options.sizes))}",
                   f"--seconds={options.seconds}", f"--gpus={options.gpus}", f"--output={report.name}"], NCCL)
        with open(report.name, encoding="ascii") as file:
            return json.load(file)["results"]


def row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def cell(value, unit):
    if value is None:
        return "-"
    return f"{value:.2f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def ratio(better, worse):
    return "-" if better is None or worse is None else f"{better / worse:.2f}x"


def print_tables(sizes, medians):
    """`medians[tool][size]` is a pair of GB/s and microseconds, or missing."""
    for which, (title, unit) in enumerate((("Throughput", "GB/s"), ("Half round trip, p50", "us"))):
        print(f"\n{title}:\n")
        row(["message", "GPU to GPU", "(a) host to host", "(b) NCCL over sockets", "of (a)", "of (b)"])
        row(["---"] + ["---:"] * 5)
        for size in sizes:
            gpu, host, peer = (medians[tool].get(size, (None, None))[which] for tool in ("gpu", "host", "nccl"))
            pairs = ((gpu, host), (gpu, peer)) if which == 0 else ((host, gpu), (peer, gpu))
            row([text_of(size), cell(gpu, unit), cell(host, unit), cell(peer, unit)] + [ratio(*p) for p in pairs])


def gpu_names():
    try:
        return output_of(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).strip().splitlines()
    except (Failed, OSError):
        return []


def machine(gpus):
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    gpu = f"{len(gpus)} x {gpus[0]}" if gpus else "unknown GPUs"
    return f"{model}, {os.cpu_count()} cores, {gpu}, Linux {platform.release()}"


def main():
    parser = argparse.ArgumentParser(prog="compare_gpu.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--p2p-bench", default=os.environ.get("P2P_BENCH"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=float, default=0.3, help="of throughput per size (default 0.3)")
    parser.add_argument("--sizes", type=size_list, default=size_list(SIZES), help=f"default {SIZES}")
    parser.add_argument("--gpus", help="of the sender and the receiver (default 0,1; 0,0 where there is only one)")
    options = parser.parse_args()
    gpus = gpu_names()
    options.gpus = options.gpus or ("0,0" if len(gpus) == 1 else "0,1")
    sender, receiver = options.gpus.split(",")
    tools = {
        "gpu": lambda: p2p_bench(options, f"--sender-device=cuda:{sender}", f"--receiver-device=cuda:{receiver}"),
        "host": lambda: p2p_bench(options),
        "nccl": lambda: nccl(options),
    }
    samples = {tool: {size: [] for size in options.sizes} for tool in tools}
    failures = {}
    for number in range(options.rounds):
        for tool, run in tools.items():
            if tool in failures:
                continue
            print(f"round {number + 1} of {options.rounds}: {tool}", file=sys.stderr)
            try:
                for result in run():
                    samples[tool][result["size_bytes"]].append((result["gbytes_per_s"], result["lat_us_p50"]))
            except Failed as e:
                failures[tool] = str(e)
    medians = {tool: {size: tuple(statistics.median(column) for column in zip(*rows))
                      for size, rows in by_size.items() if rows} for tool, by_size in samples.items()}
    print(f"Machine: {machine(gpus)}; GPUs {options.gpus}. {time.strftime('%Y-%m-%d')}. Medians of {options.rounds} alternating rounds of "
          f"{options.seconds:g} s. x: above 1 is better than that tool.")
    print_tables(options.sizes, medians)
    for tool, why in failures.items():
        print(f"\n{tool} failed: {why}")
    sys.exit(1 if "gpu" in failures or "host" in failures else 0)


if __name__ == "__main__":
    main()
