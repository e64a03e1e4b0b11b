#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL's collectives between two GPUs of this machine, which NCCL takes for two hosts: over (a) its sockets, (b) its sockets with
four threads of four sockets each, and (c) the plugin with several numbers of engine threads per process.

Per protocol of NCCL, a pair of processes for each of these is started and stays; per operation and size they run one after the
other, and the table shows medians over the rounds, since only runs that alternate can be compared. Contents are integers,
checked in every round. The ceiling is p2p_bench both ways between host memory, in the same call. Start it through
bench/compare_nccl.sh, which builds what is needed.
"""
import argparse
import contextlib
import itertools
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import hogs
from compare_gpu import Failed, gpu_names, machine, output_of, row, size_list, text_of

HERE = os.path.dirname(os.path.abspath(__file__))
OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-recv")
PROTOCOLS = ("default", "LL", "Simple")
SIZES = "8,1K,64K,256K,1M,4M,16M,64M,256M"
QUICK = {"operations": "all-reduce,send-recv", "protocols": "default", "sizes": "8,64K,1M,16M,256M", "rounds": 3}
# bus bandwidth of two ranks: what crosses the network, in one direction, of the bytes of the operation
BUS = {"all-reduce": 1.0, "all-gather": 0.5, "reduce-scatter": 0.5, "all-to-all": 0.5, "broadcast": 1.0, "send-recv": 1.0}
TIMES_UP_TO = 64 << 10  # bytes: up to here a time is shown, beyond a rate
LARGE_BYTES = 16 << 20
START_LIMIT_S, ANSWER_LIMIT_S, END_LIMIT_S = 150, 60, 15
LEAST_S = 20  # what a protocol is given at least
TRAIN_STEPS = 20
EVIDENCE = re.compile(r"Using network \S+|via NET/\S+|NET/Plugin: .*|Loaded net plugin .*")


# ---- what is compared -----------------------------------------------------------------------


def contenders(options):
    """{name: environment}, in the order of the columns."""
    sockets = {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none"}
    found = {
        "sockets": sockets,
        "tuned": {**sockets, "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
    }
    if options.shm:
        found["SHM"] = {"NCCL_HOSTID": "one", "NCCL_P2P_DISABLE": "1", "NCCL_NET_PLUGIN": "none"}
    plugins = {"uccl": options.plugin, **({"before": options.before} if options.before else {})}
    for count, (name, plugin), also in itertools.product(options.threads, plugins.items(), [None, *options.also]):
        found[" ".join([name, *([str(count)] if count else []), *(["=".join(also)] if also else [])])] = {
            "NCCL_NET": "uccl", "NCCL_NET_PLUGIN": plugin, "UCCL_BACKEND": "udp",
            **({"UCCL_NUM_ENGINES": str(count)} if count else {}), **dict(options.set), **dict([also] if also else []),
            # what loses datagrams knows this driver's system call
            **({"UCCL_UDP_IO": "mmsg", "LD_PRELOAD": options.lose, "LOSE": str(options.loss / 100)} if options.loss else {}),
        }
    return found


class Pair:
    """Two ranks, one GPU each. Commands go to both; the answer that counts is the slower one's."""

    def __init__(self, options, name, settings, protocol, folder):
        self.name, self.folder, self.processes, self.pending = name, folder, [], {}
        os.makedirs(folder)
        for rank, gpu in enumerate(options.gpus):
            interface = options.interface
            environment = {
                **os.environ, "NCCL_HOSTID": f"host{rank}", "NCCL_NVLS_ENABLE": "0", "NCCL_IB_DISABLE": "1",
                "NCCL_SOCKET_IFNAME": f"={interface}", "UCCL_SOCKET_IFNAME": f"={interface}",
                "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": f"{folder}/nccl.{rank}",
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "GLOO_SOCKET_IFNAME": interface, **settings,
            }
            if protocol != "default":
                environment["NCCL_PROTO"] = protocol
            command = [*options.prefixes[rank], sys.executable, f"{HERE}/peer_collectives.py", f"--rank={rank}", f"--gpu={gpu}",
                       f"--store={folder}/store"] + (["--dry"] if options.dry else [])
            with open(f"{folder}/stderr.{rank}", "wb") as log:
                self.processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                       stderr=log, start_new_session=True))
        self.pending = {process: b"" for process in self.processes}

    def tell(self, command):
        line = (json.dumps(command) + "\n").encode()
        for process in self.processes:
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except OSError as e:
                raise Failed(f"{self.name}: a rank has ended: {self.last_words()}") from e

    def answers(self, limit_s):
        until, lines = time.monotonic() + limit_s, {}
        while True:
            for process, data in self.pending.items():
                if process not in lines and b"\n" in data:
                    line, self.pending[process] = data.split(b"\n", 1)
                    lines[process] = json.loads(line)
            waiting = {process.stdout: process for process in self.processes if process not in lines}
            if not waiting:
                break
            ready = select.select(list(waiting), [], [], max(0, until - time.monotonic()))[0]
            if not ready:
                raise Failed(f"{self.name}: no answer after {limit_s} s: {self.last_words()}")
            for stream in ready:
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    raise Failed(f"{self.name}: a rank has ended: {self.last_words()}")
                self.pending[waiting[stream]] += data
        return [lines[process] for process in self.processes]

    def ask(self, command, limit_s=ANSWER_LIMIT_S):
        self.tell(command)
        return self.answers(limit_s)

    def last_words(self):
        """How ranks ended, and the last lines that each wrote."""
        words = []
        for rank, process in enumerate(self.processes):
            status = process.poll()
            if status is None:  # its end may be a moment behind that of its pipe
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.2)
            if status:
                words.append(f"rank {rank} was ended by {signal.Signals(-status).name}" if status < 0
                             else f"rank {rank} ended with status {status}")
            for name in (f"nccl.{rank}", f"stderr.{rank}"):
                try:
                    with open(f"{self.folder}/{name}", encoding="utf-8", errors="replace") as file:
                        words += [f"{name}: {line}" for line in file.read().splitlines()
                                  if name.startswith("stderr") or "WARN" in line][-4:]
                except OSError:
                    pass
        return " | ".join(words) or "without a word"

    def evidence(self):
        """What NCCL says of the network it took."""
        found = {}
        for rank in range(len(self.processes)):
            try:
                with open(f"{self.folder}/nccl.{rank}", encoding="utf-8", errors="replace") as file:
                    for line in file:
                        match = EVIDENCE.search(line)
                        if match:
                            found[match[0].strip()] = True
            except OSError:
                pass
        return list(found)

    def end(self):
        """Ends both; a pair that has failed is not asked. Returns whether both left by themselves."""
        ended = True
        for process in self.processes:
            try:
                process.stdin.write(b'{"do": "end"}\n')
                process.stdin.close()
            except OSError:
                pass
        until = time.monotonic() + END_LIMIT_S
        for process in self.processes:
            try:
                ended = process.wait(max(0.1, until - time.monotonic())) == 0 and ended
            except subprocess.TimeoutExpired:
                ended = False
                self.kill()
        return ended

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


# ---- measuring ------------------------------------------------------------------------------


class Report:
    """All that is found out; written as JSON in the end, also after a failure."""

    def __init__(self, options):
        self.samples = {}  # (protocol, operation, size) -> contender -> seconds of one, in each round
        self.failures, self.wrong, self.evidence, self.ceiling, self.training = {}, [], {}, {}, {}
        self.versions = {}
        self.options = options

    def median(self, key, name):
        samples = self.samples.get(key, {}).get(name)
        return statistics.median(samples) if samples else None

    def json(self):
        rows = []
        for (protocol, operation, size), by_name in self.samples.items():
            for name, samples in by_name.items():
                median = statistics.median(samples)
                rows.append({"protocol": protocol, "operation": operation, "size_bytes": size, "network": name,
                             "seconds": median, "bus_gbytes_per_s": size * BUS[operation] / median / 1e9, "samples": samples})
        return {"tool": "compare_nccl", "machine": machine(gpu_names()), "interface": self.options.interface,
                "loss_percent": self.options.loss, "versions": self.versions, "results": rows, "ceiling_gbytes_per_s": self.ceiling,
                "networks": self.evidence, "training": self.training, "wrong": self.wrong, "failures": self.failures}


def measure(pair, operation, size, seconds, seed, known):
    """Checks one operation, then times it: (seconds of one, elements that were wrong)."""
    # large ones are slow and vary little
    few, warmup = (1, 1) if size >= LARGE_BYTES else (3, 2)
    command = {"operation": operation, "size": size, "warmup": warmup}
    wrong = sum(answer["wrong"] for answer in pair.ask({"do": "check", "seed": seed, **command}))
    if known is None:
        first = max(answer["seconds"] for answer in pair.ask({"do": "time", "iterations": few, **command}))
        known = first / few
    iterations = max(few, min(20000, int(seconds / known)))
    took = max(answer["seconds"] for answer in pair.ask({"do": "time", "iterations": iterations, **command}))
    return took / iterations, wrong


def measure_protocol(options, protocol, report, until, folder):
    pairs = {}
    try:
        for name, settings in contenders(options).items():
            if name not in report.failures:
                pairs[name] = Pair(options, name, settings, protocol, f"{folder}/{protocol}-{name.replace(' ', '-')}")
        for pair in pairs.values():  # all start at the same time, which takes seconds
            pair.tell({"do": "hello"})
            pair.tell({"do": "check", "operation": "all-reduce", "size": 1 << 20, "seed": 0})

        def drop(name, e):
            report.failures[name] = f"{protocol}: {e}"
            print(f"compare_nccl: {e}", file=sys.stderr)
            pairs.pop(name).kill()

        for name in list(pairs):
            try:
                report.versions = pairs[name].answers(START_LIMIT_S)[0]
                if sum(answer["wrong"] for answer in pairs[name].answers(START_LIMIT_S)):
                    report.wrong.append(f"{protocol} {name}: at the start")
            except Failed as e:
                drop(name, e)
        for number in range(options.rounds):
            print(f"{protocol}: round {number + 1} of {options.rounds}, {max(0, until - time.monotonic()):.0f} s left",
                  file=sys.stderr)
            for operation in options.operations:
                for size in options.sizes:
                    key = protocol, operation, size
                    names = list(pairs)
                    for name in names[number % max(1, len(names)):] + names[:number % max(1, len(names))]:
                        if time.monotonic() > until:
                            return
                        try:
                            took, wrong = measure(pairs[name], operation, size, options.seconds, number,
                                                  report.median(key, name))
                        except Failed as e:
                            drop(name, e)
                            continue
                        report.samples.setdefault(key, {}).setdefault(name, []).append(took)
                        if wrong:
                            report.wrong.append(f"{protocol} {name}: {operation} of {text_of(size)}, {wrong} elements")
    finally:
        for name, pair in pairs.items():
            for line in pair.evidence():
                report.evidence.setdefault(name, {})[line] = True
            if not pair.end():
                report.failures.setdefault(name, f"{protocol}: a rank did not end by itself: {pair.last_words()}")
            pair.kill()


def measure_training(options, report, folder):
    """Are the losses of each step over the plugin those over sockets?"""
    for name, settings in contenders(options).items():
        if name in report.failures or name == "tuned":
            continue
        pair = Pair(options, name, settings, "default", f"{folder}/ddp-{name.replace(' ', '-')}")
        try:
            pair.tell({"do": "hello"})
            pair.answers(START_LIMIT_S)
            report.training[name] = pair.ask({"do": "train", "steps": TRAIN_STEPS}, START_LIMIT_S)
            pair.end()
        except Failed as e:
            report.failures[name] = f"training: {e}"
        finally:
            pair.kill()


def measure_ceiling(options, report):
    """Half of what p2p_bench moves both ways, which is what one direction has while both are used."""
    if not options.p2p_bench:
        return
    sizes = [size for size in options.sizes if size >= 1 << 20][:3] or [1 << 20]
    for count in options.threads:
        settings = {"UCCL_SOCKET_IFNAME": f"={options.interface}", "UCCL_BACKEND": "udp", **dict(options.set)}
        if count:
            settings["UCCL_NUM_ENGINES"] = str(count)
        try:
            found = json.loads(output_of([options.p2p_bench, "--local", "--bi", "--json", f"--sizes={','.join(map(str, sizes))}",
                                          f"--seconds={options.seconds * 3}"], settings))
            report.ceiling[str(count)] = {row["size_bytes"]: row["gbytes_per_s"] / 2 for row in found["results"]}
        except (Failed, OSError) as e:
            report.failures["p2p_bench"] = str(e)


# ---- the table ------------------------------------------------------------------------------


def shown(seconds, operation, size):
    if seconds is None:
        return "-"
    if size <= TIMES_UP_TO:
        return f"{seconds * 1e6:.0f} us"
    return f"{size * BUS[operation] / seconds / 1e9:.2f} GB/s"


def print_tables(options, report):
    names = list(contenders(options))
    ours = [name for name in names if name.startswith("uccl")]
    best_ceiling = max((rate for by_size in report.ceiling.values() for rate in by_size.values()), default=None)
    for protocol in options.protocols:
        print(f"\nNCCL_PROTO {protocol}, bus bandwidth or time of one; x: above 1 is faster\n")
        row(["operation", "bytes", *names, "best of ours / sockets", "/ tuned", "/ ceiling", "rounds"])
        row(["---", "---:"] + ["---:"] * (len(names) + 4))
        for operation in options.operations:
            for size in options.sizes:
                key = protocol, operation, size
                medians = {name: report.median(key, name) for name in names}
                best = min((medians[name] for name in ours if medians[name] is not None), default=None)
                ratios = [f"{medians[name] / best:.2f}x" if best and medians.get(name) else "-"
                          for name in ("sockets", "tuned")]
                of_ceiling = "-"
                if best and best_ceiling and size >= 1 << 20:
                    of_ceiling = f"{size * BUS[operation] / best / 1e9 / best_ceiling:.2f}"
                rounds = [len(samples) for samples in report.samples.get(key, {}).values()]
                row([operation, text_of(size), *(shown(medians[name], operation, size) for name in names), *ratios, of_ceiling,
                     str(min(rounds, default=0))])
    if report.ceiling:
        print("\nCeiling, half of two-way host to host (p2p_bench --local --bi): " + "; ".join(
            f"{count} threads " + ", ".join(f"{text_of(size)} {rate:.2f} GB/s" for size, rate in by_size.items())
            for count, by_size in report.ceiling.items()))


def print_training(report):
    """Returns whether all trainings are equal."""
    trainings = {name: json.dumps([answer["losses"] for answer in answers] + [answer["parameters"] for answer in answers])
                 for name, answers in report.training.items()}
    if not trainings:
        return True
    equal = len(set(trainings.values())) == 1 and "sockets" in trainings and len(trainings) > 1
    print(f"\nTraining of {TRAIN_STEPS} steps over {', '.join(trainings)}: "
          + ("losses of every step and parameters equal bit for bit" if equal else "NOT EQUAL, or over one alone"))
    return equal


# ---- arguments ------------------------------------------------------------------------------


def names_of(allowed):
    def parse(text):
        parts = text.split(",")
        for part in parts:
            if part not in allowed:
                raise argparse.ArgumentTypeError(f"{part} is none of {', '.join(allowed)}")
        return parts
    return parse


def setting(text):
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"not NAME=VALUE: {text}")
    return name, value


def arguments():
    parser = argparse.ArgumentParser(prog="compare_nccl.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="a few cells: " + ", ".join(f"{name} {value}" for name, value in QUICK.items()))
    parser.add_argument("--minutes", type=float, default=9, help="for all of it; what does not fit is left out (default 9)")
    parser.add_argument("--rounds", type=int, help="at most (default 5)")
    parser.add_argument("--seconds", type=float, default=0.1, help="of each cell in each round (default 0.1)")
    parser.add_argument("--sizes", type=size_list, help=f"default {SIZES}")
    parser.add_argument("--operations", type=names_of(OPERATIONS), help=f"of {','.join(OPERATIONS)} (default: all)")
    parser.add_argument("--protocols", type=names_of(PROTOCOLS), help=f"of {','.join(PROTOCOLS)} (default: all)")
    parser.add_argument("--threads", type=lambda text: [int(part) for part in text.split(",")], default=[4, 8, 12],
                        help="engine threads per process; 0: as many as the engine takes by itself (default 4,8,12)")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="a variable for the plugin")
    parser.add_argument("--also", type=setting, action="append", default=[], metavar="NAME=VALUE",
                        help="also the plugin with this variable, in columns of its own")
    parser.add_argument("--before", metavar="FILE", help="also another build of the plugin, in columns of its own")
    parser.add_argument("--shm", action="store_true", help="also NCCL's shared memory, as on one host")
    parser.add_argument("--interface", default="lo", help="network interface of all (default lo)")
    parser.add_argument("--netns", metavar="A,B", help="network namespaces of the two ranks (tests/net/netns.sh up A B); then "
                        "--interface is in both, and there is no ceiling")
    parser.add_argument("--gpus", default="0,1", help="of the two ranks (default 0,1); on one GPU, 0,0, start MPS: "
                        "nvidia-cuda-mps-control -d")
    parser.add_argument("--loss", type=float, default=0, metavar="PERCENT", help="of the plugin's datagrams, lost when they are sent")
    parser.add_argument("--ddp", action="store_true", help="also a short training, compared step for step")
    parser.add_argument("--hogs", action="store_true", help=hogs.HELP)
    parser.add_argument("--output", default="compare_nccl.json", help="JSON with all samples (default compare_nccl.json)")
    parser.add_argument("--logs", help="folder to keep NCCL's logs in")
    parser.add_argument("--dry", action="store_true", help="no GPU, no NCCL: made-up times")
    options = parser.parse_args()
    options.plugin, options.p2p_bench = os.environ.get("NCCL_PLUGIN_FILE", ""), os.environ.get("P2P_BENCH", "")
    options.lose = os.environ.get("LOSE_FILE", "")
    for name, default, parse in (("operations", ",".join(OPERATIONS), names_of(OPERATIONS)), ("sizes", SIZES, size_list),
                                 ("protocols", ",".join(PROTOCOLS), names_of(PROTOCOLS)), ("rounds", 5, int)):
        if getattr(options, name) is None:
            setattr(options, name, parse(QUICK[name] if options.quick else default))
    options.gpus = options.gpus.split(",")
    if len(options.gpus) != 2:
        parser.error("--gpus wants two")
    if any(size % 8 for size in options.sizes):
        parser.error("sizes must be multiples of 8 bytes: two ranks with int32 each")
    options.prefixes = [[], []]
    if options.netns:
        options.prefixes = [["ip", "netns", "exec", name] for name in options.netns.split(",")]
        options.p2p_bench = ""
    if not options.dry and not os.path.isfile(options.plugin):
        parser.error("NCCL_PLUGIN_FILE does not name the plugin")
    if options.loss and not options.dry and not os.path.isfile(options.lose):
        parser.error("LOSE_FILE does not name what loses datagrams")
    return options


def main():
    options = arguments()
    until = time.monotonic() + options.minutes * 60
    report = Report(options)
    folder = options.logs or tempfile.mkdtemp(prefix="compare_nccl.")
    try:
        with hogs.hogs(options.hogs):
            measure_ceiling(options, report)
            if options.ddp:
                measure_training(options, report, folder)
            for number, protocol in enumerate(options.protocols):
                now = time.monotonic()
                share = (until - now) / (len(options.protocols) - number)
                if share < LEAST_S and not options.dry:
                    report.failures[protocol] = "no time was left"
                    continue
                measure_protocol(options, protocol, report, now + share - END_LIMIT_S / 2, folder)
    finally:
        if not options.logs:
            shutil.rmtree(folder, ignore_errors=True)
        with open(options.output, "w", encoding="ascii") as file:
            json.dump(report.json(), file, indent=1)
    versions = report.versions
    print(f"Machine: {machine(gpu_names())}; interface {options.interface}; NCCL {versions.get('nccl')}, "
          f"PyTorch {versions.get('torch')}. {time.strftime('%Y-%m-%d')}. Medians of alternating rounds of {options.seconds:g} s"
          + (f", {options.loss:g}% of the plugin's datagrams lost" if options.loss else "")
          + (", beside a busy process per core" if options.hogs else "") + ".")
    print_tables(options, report)
    equal = print_training(report)
    for name, lines in report.evidence.items():
        print(f"\n{name}: " + "; ".join(lines))
    for what in report.wrong:
        print(f"\nWRONG DATA: {what}")
    for name, why in report.failures.items():
        print(f"\n{name} failed: {why}")
    sys.exit(1 if report.failures or report.wrong or not equal else 0)


if __name__ == "__main__":
    main()
