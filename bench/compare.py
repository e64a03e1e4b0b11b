#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs p2p_bench and its peers in turn and prints one Markdown table.

Runs on a shared machine drift by tens of percent, so only ratios of runs that alternate count: in
every round each tool runs once, and the table shows medians over the rounds. TCP peers use cubic.
The raw ceiling (raw_udp) is the best of a few datagram sizes and ways to send, found beforehand for
each case. CPU is that of both sides; system calls are counted by perf in separate runs, as the
difference between a long and a short one, so that starting up does not count.

Start it through bench/compare.sh, which builds what it needs.
"""
import argparse
import itertools
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import cores
import hogs

HERE = os.path.dirname(os.path.abspath(__file__))
NETNS = os.path.join(HERE, "..", "tests", "net", "netns.sh")
K, M = 1 << 10, 1 << 20
ALL_SIZES = [256, 4 * K, 64 * K, M, 16 * M, 100 * M]
SEGMENTED_SIZES = [64 * K, M, 16 * M]
NETWORKS = {  # name: (what it is, sizes, latency too)
    "lo": ("loopback", ALL_SIZES, True),
    "veth": ("veth, offloads on", ALL_SIZES, True),
    "seg1500": ("veth, MTU 1500 segmented", SEGMENTED_SIZES, False),
    "seg9000": ("veth, MTU 9000 segmented", SEGMENTED_SIZES, False),
    "loss1": ("MTU 1500, 1% lost each way", SEGMENTED_SIZES, False),
}


class Failed(Exception):
    pass


def window_of(size):
    """Messages outstanding; about 16 MiB, within what the tools take."""
    return max(4, min(256, 16 * M // size))


def text_of(size):
    for unit, name in ((M, "MiB"), (K, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


class Network:
    """Where the two sides run, and the address of the server."""

    def __init__(self, name):
        self.name, self.faults = name, []
        self.server, self.client, self.address, self.device = [], [], "127.0.0.1", "lo"
        if name == "lo":
            return
        a, b = f"uccl-a-{os.getpid()}", f"uccl-b-{os.getpid()}"
        self.ns = (a, b)
        mtu = "9000" if name == "seg9000" else "1500"
        extra = [] if name == "veth" else ["segmented"]
        run = subprocess.run([NETNS, "up", a, b, mtu, *extra], capture_output=True, text=True)
        if run.returncode != 0:
            self.close()
            raise Failed("namespaces: " + run.stderr.strip().replace("\n", "; "))
        self.server, self.client = ["ip", "netns", "exec", a], ["ip", "netns", "exec", b]
        self.address, self.device = "10.77.0.1", "veth0"
        self.await_carrier()

    def lose(self, percent, build):
        """Single UDP datagrams and TCP segments, at both ends."""
        for ns in self.ns:
            tool = subprocess.Popen([f"{build}/tests/xdp_loss", f"{build}/tests/xdp_loss.bpf.o", ns,
                                     "veth0", str(percent), "tcp"], stdout=subprocess.PIPE, text=True)
            self.faults.append(tool)
            if tool.stdout.readline().strip() != "ready":
                raise Failed("xdp_loss does not start (clang, libbpf-dev, native XDP on veth)")
        self.await_carrier() # attaching takes the link down for a moment

    def await_carrier(self):
        """The kernel tells of a carrier up to a second late; UCX reaches nobody without."""
        until = time.monotonic() + 5
        while time.monotonic() < until and not all(
                " UP " in subprocess.run(["ip", "-n", ns, "-br", "link", "show", "veth0"], capture_output=True,
                                         text=True).stdout for ns in self.ns):
            time.sleep(0.05)

    def close(self):
        for tool in self.faults:
            tool.send_signal(signal.SIGTERM)
            tool.wait()
        if self.name != "lo":
            subprocess.run([NETNS, "down", *self.ns], check=False)


class Pair:
    """Runs a server and a client and gives the client's output and what both used."""

    next_port = 13000
    pin = False # the server on one core, the client on another
    cores = None # how far these are from each other, where that is asked for

    def __init__(self, network):
        self.network = network

    @classmethod
    def port(cls):
        cls.next_port += 1
        return cls.next_port

    @staticmethod
    def bound(pid, port):
        for table in ("tcp", "tcp6", "udp", "udp6"):
            try:
                with open(f"/proc/{pid}/net/{table}") as f:
                    for line in f:
                        fields = line.split()
                        # 0A: listening; 07: a bound datagram socket
                        if fields[1].endswith(f":{port:04X}") and fields[3] in ("0A", "07"):
                            return True
            except OSError:
                pass
        return False

    def run(self, server, client, port, env=None, limit=60, count=None):
        """(output of the client, CPU seconds of both). `count`: a list that gets the system calls."""
        environment = {**os.environ, **(env or {})}
        counts = []

        def start(prefix, command):
            if count is not None:
                file = tempfile.NamedTemporaryFile(mode="r", suffix=".perf")
                counts.append(file)
                command = ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-o", file.name, *command]
            out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
            process = subprocess.Popen([*prefix, *command], env=environment, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=err, start_new_session=True)
            return process, out, err

        def end(process, seconds):
            until = time.monotonic() + seconds
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    return process.returncode, usage.ru_utime + usage.ru_stime
                if time.monotonic() > until:
                    os.killpg(process.pid, signal.SIGKILL)
                    _, _, usage = os.wait4(process.pid, 0)
                    process.returncode = -9
                    return None, usage.ru_utime + usage.ru_stime
                time.sleep(0.005)

        def on_core(core):
            return ["taskset", "-c", str(core)] if self.pin else []

        listening, out_s, err_s = start([*self.network.server, *on_core(0)], server)
        until = time.monotonic() + 10
        while not self.bound(listening.pid, port) and time.monotonic() < until:
            if listening.poll() is not None:
                err_s.seek(0)
                raise Failed(f"server ended: {err_s.read().strip()[-200:]}")
            time.sleep(0.01)
        caller, out_c, err_c = start([*self.network.client, *on_core(os.cpu_count() - 1)], client)
        client_code, client_cpu = end(caller, limit)
        server_code, server_cpu = end(listening, 10 if client_code == 0 else 0)
        out_c.seek(0)
        output = out_c.read()
        if client_code != 0:
            err_c.seek(0)
            why = "too slow" if client_code is None else (err_c.read().strip() or output.strip())[-200:]
            raise Failed(f"client: {why}")
        for file in counts:
            found = re.search(r"^(\d+),,raw_syscalls", file.read(), re.MULTILINE)
            file.close()
            if not found:
                raise Failed("perf counted nothing")
            count.append(int(found[1]))
        return output, client_cpu + server_cpu


def values(output):
    """The name=value pairs of a line."""
    found = {k: float(v) for k, v in re.findall(r"(\w+)=([-\d.]+)", output)}
    if not found:
        raise Failed(f"no numbers in: {output.strip()[-200:]}")
    return found


# ---- the tools: bandwidth(size) and latency(block) give {gbytes_per_s, msgs_per_s, cpu_s_per_gib} or
# ---- {lat_us_p50}; calls(size, amount) moves about `amount` bytes and gives (system calls, bytes)


class Tool:
    package = ""

    def __init__(self, options, network):
        self.build, self.seconds, self.network = options.build, options.seconds, network
        self.pair = Pair(network)

    def missing(self):
        return False

    def prepare(self, size):
        """Before the rounds of one size."""

    def latency(self, block):
        return None

    def calls(self, size, amount):
        return None


class Uccl(Tool):
    """With the default parameters, but cubic, as the TCP peers."""

    name, package = "p2p_bench", "what README.md names"
    op, backend = "send", "auto"
    spin = {"UCCL_SPIN_US": "100000"}

    def missing(self):
        return not os.path.exists(f"{self.build}/bench/p2p_bench")

    def run(self, env, *flags):
        port = self.pair.port()
        tool = f"{self.build}/bench/p2p_bench"
        output, _ = self.pair.run([tool, "--server", f"--oobport={port}"],
                                  [tool, f"--serverip={self.network.address}", f"--oobport={port}", "--json",
                                   f"--seconds={self.seconds}", *flags], port,
                                  {**(env or {}), "UCCL_BACKEND": self.backend, "UCCL_TCP_CC": "cubic"})
        return json.loads(output)["results"][0]

    def bandwidth(self, size):
        r = self.run(None, f"--sizes={size}", f"--window={window_of(size)}", f"--op={self.op}")
        if not r["verified"]:
            raise Failed("contents not verified")
        return {"gbytes_per_s": r["gbps"] / 8, "msgs_per_s": r["msgs_per_s"],
                "cpu_s_per_gib": r["cpu_s_per_gib"]}

    def latency(self, block):
        r = self.run({"UCCL_SPIN_US": "0"} if block else self.spin, "--sizes=8", "--window=4", f"--op={self.op}")
        return {"lat_us_p50": r["lat_us_p50"]}

    def calls(self, size, amount):
        if self.backend != Uccl.backend:
            return None
        # transport_test has no ping-pong phase whose calls would count
        port, counted, window = self.pair.port(), [], window_of(size)
        iterations = max(4, amount // size // window)
        tool = f"{self.build}/bench/transport_test"
        self.pair.run([tool, "--server=true", f"--oobport={port}"],
                      [tool, f"--serverip={self.network.address}", f"--oobport={port}", "--perftype=tpt",
                       f"--msize={size}", "--nmsg=1", f"--nreq={window}",
                       f"--iterations={iterations * window}"], port, count=counted)
        return sum(counted), iterations * window * size


class UcclWrite(Uccl):
    name, op = "p2p_bench --op=write", "write"


class UcclRead(Uccl):
    name, op = "p2p_bench --op=read", "read"


class UcclUdp(Uccl):
    name, backend = "p2p_bench, UDP", "udp"


class UcclTcp(Uccl):
    name, backend = "p2p_bench, TCP", "tcp"


class UcclTcpOne(UcclTcp):
    """With one buffer on each side, as UCX's test and iperf3 have it."""

    name = "p2p_bench, TCP, one buffer"

    def run(self, env, *flags):
        return super().run(env, "--buffers=1", *flags)

    def latency(self, block):
        return None


class Raw(Tool):
    name = "raw UDP ceiling"

    def missing(self):
        return not os.path.exists(f"{self.build}/peers/raw_udp")

    def run(self, seconds, *flags, count=None):
        port = self.pair.port()
        tool = f"{self.build}/peers/raw_udp"
        output, _ = self.pair.run([tool, "--listen", str(port), "--host", self.network.address],
                                  [tool, "--connect", self.network.address, "--port", str(port),
                                   "--seconds", str(seconds), *flags], port, count=count)
        return values(output)

    def flags(self, size):
        return ["--size", str(size), "--window", str(window_of(size)), *self.best[size]]

    def prepare(self, size):
        self.best = getattr(self, "best", {})
        datagrams = {"lo": (8972, 32500, 65000), "seg9000": (8972,)}.get(self.network.name, (1472,))
        found = []
        for datagram, way, window, batch in itertools.product(
                datagrams, ([], ["--assemble"]), ("256", "512", "1024"), ("2", "16")):
            if datagram != datagrams[0] and size + 64 <= datagrams[0]:
                continue # the message fills no larger datagram
            extra = ["--datagram", str(datagram), "--window-kb", window, "--batch", batch, *way]
            try:
                r = self.run(0.15, "--size", str(size), "--window", str(window_of(size)), *extra)
                found.append((r["gbytes_per_s"], extra))
            except Failed:
                pass # this window overflows the buffer
        if not found:
            raise Failed("no setting works")
        self.best[size] = max(found)[1]

    def bandwidth(self, size):
        return self.run(self.seconds, *self.flags(size))

    def latency(self, block):
        return self.run(self.seconds, "--latency", *(["--block"] if block else []))

    def calls(self, size, amount):
        counted = []
        rate = self.run(0.2, *self.flags(size))["gbytes_per_s"] * 1e9
        seconds = max(0.05, amount / rate)
        r = self.run(seconds, *self.flags(size), count=counted)
        return sum(counted), r["gbytes_per_s"] * 1e9 * seconds


class Cubic(Tool):
    """Peers over TCP, run with cubic."""

    def env(self):
        return {"LD_PRELOAD": os.path.abspath(f"{self.build}/peers/tcp_cubic.so"), "TCP_CONGESTION_NAME": "cubic"}


class RawTcp(Cubic):
    name = "raw TCP ceiling"
    one_buffer = False # on each side: it stays in the cache

    def missing(self):
        return not os.path.exists(f"{self.build}/peers/raw_tcp")

    def run(self, *flags):
        port = self.pair.port()
        tool = f"{self.build}/peers/raw_tcp"
        output, _ = self.pair.run([tool, "--listen", str(port), "--host", self.network.address],
                                  [tool, "--connect", self.network.address, "--port", str(port),
                                   "--seconds", str(self.seconds), *flags], port, self.env())
        return values(output)

    def bandwidth(self, size):
        return self.run("--size", str(size), "--window", str(1 if self.one_buffer else window_of(size)))

    def latency(self, block):
        return self.run("--latency", *(["--block"] if block else []))


class RawTcpWarm(RawTcp):
    """With one buffer on each side, as UCX's own test and iperf3 have."""

    name, one_buffer = "raw TCP, one buffer", True

    def latency(self, block):
        return None


class Ucx(Cubic):
    name, package = "UCX over TCP", "ucx-utils"
    bandwidth_test, latency_test = "tag_bw", "tag_lat"
    outstanding = False # the test itself keeps as many outstanding as it likes
    # The test never writes the buffer that it sends from: as UCX allocates it, that is the kernel's one page of zeros,
    # over and over. malloc() fills it, and takes huge pages as UCX does.
    memory = {"UCX_ALLOC_PRIO": "heap", "GLIBC_TUNABLES": "glibc.malloc.perturb=165:glibc.malloc.hugetlb=1"}

    def missing(self):
        return not shutil.which("ucx_perftest")

    def run(self, test, size, iterations, count=None):
        port = self.pair.port()
        env = {**self.env(), **self.memory, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": self.network.device,
               "UCX_LOG_LEVEL": "error"}
        common = ["ucx_perftest", "-p", str(port), "-t", test, "-s", str(size), "-n", str(iterations),
                  "-w", "10", "-f", *(["-O", str(window_of(size))] if self.outstanding else [])]
        start = time.monotonic()
        output, cpu = self.pair.run(common, [*common, self.network.address], port, env, count=count)
        row = re.findall(r"^ *\d+((?: +[\d.]+){7}) *$", output, re.MULTILINE)
        if not row:
            raise Failed(f"no numbers in: {output.strip()[-200:]}")
        return [float(x) for x in row[-1].split()], cpu, time.monotonic() - start

    def prepare(self, size):
        # as many messages as fill the time; and the CPU time of starting up
        self.count = getattr(self, "count", {})
        _, self.start_cpu, _ = self.run(self.bandwidth_test, size, 1)
        iterations = 20
        while True:
            r, _, _ = self.run(self.bandwidth_test, size, iterations)
            took = iterations / max(r[6], 1)
            if took > self.seconds / 8:
                break
            iterations *= 8
        self.count[size] = max(20, int(r[6] * self.seconds))

    def bandwidth(self, size):
        n = self.count[size]
        r, cpu, _ = self.run(self.bandwidth_test, size, n)
        # columns: overhead (3), MB/s average and overall (in MiB), messages/s average and overall
        return {"gbytes_per_s": r[6] * size / 1e9, "msgs_per_s": r[6],
                "cpu_s_per_gib": max(0, cpu - self.start_cpu) / (n * size / (1 << 30))}

    def latency(self, block):
        if block or not self.latency_test:
            return None
        r, _, _ = self.run(self.latency_test, 8, int(self.seconds * 100000))
        return {"lat_us_p50": r[0]}

    def calls(self, size, amount):
        counted = []
        n = max(10, amount // size)
        self.run(self.bandwidth_test, size, n, count=counted)
        return sum(counted), n * size


class UcxPut(Ucx):
    name, outstanding = "UCX over TCP, put", True
    bandwidth_test, latency_test = "ucp_put_bw", "ucp_put_lat"


class UcxGet(Ucx):
    name, outstanding = "UCX over TCP, get", True
    bandwidth_test, latency_test = "ucp_get", None


class Iperf(Cubic):
    name, package = "iperf3 (TCP stream)", "iperf3"

    def missing(self):
        return not shutil.which("iperf3")

    def run(self, size, *amount, count=None):
        port = self.pair.port()
        output, cpu = self.pair.run(
            ["iperf3", "-s", "-1", "-p", str(port)],
            ["iperf3", "-c", self.network.address, "-p", str(port), "-l", str(min(size, M)), "-J", *amount],
            port, self.env(), count=count)
        r = json.loads(output)["end"]["sum_received"]
        return r["bits_per_second"] / 8e9, r["bytes"], cpu

    def bandwidth(self, size):
        if size < 64 * K or size > M: # a stream has no messages: other sizes say nothing new
            return None
        rate, moved, cpu = self.run(size, "-t", str(max(1, round(self.seconds))))
        return {"gbytes_per_s": rate, "msgs_per_s": rate * 1e9 / size, "cpu_s_per_gib": cpu / (moved / (1 << 30))}

    def calls(self, size, amount):
        if size < 64 * K or size > M:
            return None
        counted = []
        _, moved, _ = self.run(size, "-n", str(amount), count=counted)
        return sum(counted), moved


class Mpi(Cubic):
    name, package = "OpenMPI over TCP", "openmpi-bin libopenmpi-dev"

    def missing(self):
        return not shutil.which("mpirun") or not os.path.exists(f"{self.build}/peers/peer_mpi")

    def run(self, size, window):
        # one core for each rank; over two "hosts" Open MPI would give both the same one
        flags = ["-np", "2", "--bind-to", "core" if self.network.name == "lo" and os.cpu_count() > 1 else "none",
                 "--oversubscribe", "--mca", "mpi_yield_when_idle", "0", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
                 "--mca", "btl_tcp_if_include", self.network.device]
        prefix, agent = [], None
        if self.network.name != "lo":
            # the second rank starts through an agent that enters the other namespace, under another
            # host name so that the two count as two hosts
            agent = tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False)
            agent.write("#!/bin/bash\nshift\nexec ip netns exec " + self.network.ns[1] +
                        " unshare --uts bash -c 'hostname uccl-b; eval \"$*\"' agent \"$@\"\n")
            agent.close()
            os.chmod(agent.name, 0o755)
            flags += ["--host", "10.77.0.1:1,10.77.0.2:1", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent.name,
                      "--mca", "oob_tcp_if_include", self.network.device]
            prefix = self.network.server
        env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        for name, value in self.env().items():
            flags += ["-x", f"{name}={value}"]
        command = [*prefix, "mpirun", *flags, os.path.abspath(f"{self.build}/peers/peer_mpi"), str(size),
                   str(window), str(self.seconds)]
        try:
            run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60 + 4 * self.seconds)
        except subprocess.TimeoutExpired:
            raise Failed("too slow") from None
        finally:
            if agent:
                os.unlink(agent.name)
        if run.returncode != 0:
            raise Failed(run.stderr.strip()[-200:])
        return values(run.stdout)

    def bandwidth(self, size):
        return self.run(size, window_of(size))

    def latency(self, block):
        return None if block else self.run(8, 0)


class Ofi(Tool):
    name, package = "libfabric udp;ofi_rxd", "libfabric-dev"

    def missing(self):
        return not os.path.exists(f"{self.build}/peers/peer_ofi")

    def run(self, size, window):
        port = self.pair.port()
        rest = [self.network.address, str(port), str(size), str(window), str(self.seconds)]
        tool = f"{self.build}/peers/peer_ofi"
        output, _ = self.pair.run([tool, *rest], [tool, "-c", *rest], port, limit=40)
        return values(output)

    def bandwidth(self, size):
        return self.run(size, window_of(size))

    def latency(self, block):
        return None if block else self.run(8, 0)


# ---- rounds and the table ----


def measure(tools, action, rounds, what):
    """{tool: [results]}; a tool that fails twice is left out and its reason kept."""
    results, reasons = {t: [] for t in tools}, {}
    for number in range(rounds):
        # alternate the order, so that no tool always follows the same one
        for tool in tools if number % 2 == 0 else list(reversed(tools)):
            if len(reasons.get(tool, [])) >= 2:
                continue
            progress(f"{what}: round {number + 1}/{rounds}, {tool.name}")
            try:
                r = Pair.cores.measured(lambda: action(tool)) if Pair.cores else action(tool)
                if r is not None:
                    results[tool].append(r)
            except (Failed, ValueError, KeyError, OSError) as e:
                reasons.setdefault(tool, []).append(str(e).replace("\n", " ").replace("|", "/"))
    progress("")
    return results, reasons


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def median(results, key):
    found = [r[key] for r in results if key in r]
    return statistics.median(found) if found else None


def spread(results, key):
    found = [r[key] for r in results if key in r]
    if len(found) < 2:
        return ""
    digits = 3 if max(found) < 1 else 2
    return f"{min(found):.{digits}f}-{max(found):.{digits}f}"


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def count_calls(tool, size):
    """System calls of both sides per MiB, or None."""
    amount = {256: 16 * M, 4 * K: 64 * M, 64 * K: 256 * M}.get(size, 512 * M)
    try:
        short, long = tool.calls(size, amount), tool.calls(size, 3 * amount)
        per_mib = (long[0] - short[0]) / ((long[1] - short[1]) / M)
        return per_mib if per_mib > 0 else None  # a side that spins polls more than it moves
    except (Failed, TypeError, ZeroDivisionError, KeyError, OSError):
        return None


def row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def ratio_of(ours, theirs, better_is_less):
    """Above 1: ours is better."""
    return (theirs / ours if better_is_less else ours / theirs) if ours and theirs else None


def of_the_better(tools, results, key, better_is_less):
    """p2p_bench against the better of both ways that it may choose, as the median over the rounds."""
    ways = {tool.backend: [r[key] for r in results[tool] if key in r] for tool in tools
            if type(tool) in (Uccl, UcclUdp, UcclTcp)}
    if len(ways) < 3:
        return None
    better = min if better_is_less else max
    rounds = [ratio_of(ours, better(udp, tcp), better_is_less)
              for ours, udp, tcp in zip(ways["auto"], ways["udp"], ways["tcp"])]
    return statistics.median(rounds) if rounds else None


def print_rows(label, case, tools, results, reasons, key, better_is_less, calls):
    first = tools[0] if tools and isinstance(tools[0], Uccl) else None
    best = of_the_better(tools, results, key, better_is_less)
    ours = median(results[first], key) if first else None
    for tool in tools:
        mine = results[tool]
        if not mine:
            if tool in reasons:
                row([label, case, tool.name, f"failed: {reasons[tool][-1][:120]}", "", "", "", "", ""])
            continue
        value = median(mine, key)
        ratio = ratio_of(ours, value, better_is_less)
        ratios = "" if ratio is None or tool is first else number(ratio) + "x"
        if tool is first and best:
            ratios = f"{number(best)}x the better"
        rate = median(mine, "msgs_per_s")
        row([label, case, tool.name,
             number(value, 3 if not better_is_less and value < 1 else 2) + (" us" if better_is_less else " GB/s"),
             spread(mine, key), number(rate / 1e6, 3) if rate else "-",
             ratios,
             number(median(mine, "cpu_s_per_gib"), 3), number(calls.get(tool), 1)])


# what is measured together; the first is what the others are compared with
GROUPS = {
    "send": (Uccl, UcclUdp, UcclTcp, UcclTcpOne, Raw, RawTcp, RawTcpWarm, Ucx, Iperf, Mpi, Ofi),
    "write": (UcclWrite, Uccl, UcxPut),
    "read": (UcclRead, Uccl, UcxGet),
}
CASES = {"send": "", "write": " written", "read": " read"}


def compare_group(network, label, sizes, latency, group, options):
    tools = []
    for kind in GROUPS[group]:
        tool = kind(options, network)
        default = isinstance(tool, Uccl) and tool.backend == Uccl.backend
        if options.tools and not default and not any(t in tool.name.lower() for t in options.tools):
            continue
        if kind is Raw and network.name == "loss1":
            continue # it does not repair
        if tool.missing():
            row([label, "all", tool.name, f"missing: apt-get install {tool.package}", "", "", "", "", ""])
        else:
            tools.append(tool)
    for size in sizes:
        ready, unready = [], {}
        for tool in tools:
            progress(f"{label}, {text_of(size)}: preparing {tool.name}")
            try:
                tool.prepare(size)
                ready.append(tool)
            except Failed as e:
                unready[tool] = [str(e).replace("\n", " ").replace("|", "/")]
        case = text_of(size) + CASES[group]
        results, reasons = measure(ready, lambda tool: tool.bandwidth(size), options.rounds, f"{label}, {case}")
        results.update({t: [] for t in unready})
        calls = {}
        if group == "send" and shutil.which("perf") and network.name in ("lo", "veth") and not options.no_calls:
            calls = {t: count_calls(t, size) for t in ready if results[t]}
        print_rows(label, case, tools, results, {**reasons, **unready}, "gbytes_per_s", False, calls)
    for block in (False, True) if latency and not options.no_latency else ():
        name = {"send": "8 B half round trip, ", "write": "8 B written and answered, half, ",
                "read": "8 B read, "}[group] + ("sleeping" if block else "spinning")
        if group != "send" and block:
            continue # who waits for a signal polls
        compared = [tool for tool in tools if group != "read" or type(tool) is not Uccl]
        results, reasons = measure(compared, lambda tool: tool.latency(block), options.rounds, f"{label}, {name}")
        print_rows(label, name, compared, results, reasons, "lat_us_p50", True, {})


def compare(network_name, options):
    label, sizes, latency = NETWORKS[network_name]
    if options.sizes:
        sizes = [s for s in options.sizes]
    try:
        network = Network(network_name)
    except Failed as e:
        row([label, "", "", str(e), "", "", "", "", ""])
        return
    try:
        if network_name == "loss1":
            network.lose(1, options.build)
        for group in options.ops:
            if group != "send" and network_name not in ("lo", "veth"):
                continue
            compare_group(network, label, sizes, latency, group, options)
    except Failed as e:
        row([label, "", "", str(e), "", "", "", "", ""])
    finally:
        network.close()


def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"


def size_list(text):
    sizes = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)([KMG]?)", part.strip())
        if not found or int(found[1]) == 0:
            raise argparse.ArgumentTypeError(f"not a size: {part}")
        sizes.append(int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]])
    return sizes


def list_of(what, known):
    """The parser of a list of these names."""

    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no such {what}: {name} (there are {', '.join(known)})")
        return names

    return parse


def main():
    parser = argparse.ArgumentParser(prog="compare.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build-bench", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 0.3 s, loopback and veth, fewer sizes")
    parser.add_argument("--rounds", type=int, help="rounds (default 5)")
    parser.add_argument("--seconds", type=float, help="per measurement (default 1)")
    parser.add_argument("--networks", type=list_of("network", NETWORKS),
                        help="of " + ",".join(NETWORKS) + " (default all)")
    parser.add_argument("--sizes", type=size_list, help="message sizes, such as 256,4K,1M (default by network)")
    parser.add_argument("--tools", type=lambda s: s.lower().split(","),
                        help="peers whose name contains one of these, such as ucx,raw (default all)")
    parser.add_argument("--ops", type=list_of("operation", GROUPS), default=list(GROUPS),
                        help="of " + ",".join(GROUPS) + " (default all; write and read on loopback and veth alone)")
    parser.add_argument("--pin", action="store_true",
                        help="server on the first core, client on the last, for all tools (MPI binds its ranks itself)")
    parser.add_argument("--near", type=int, metavar="NS", help=cores.HELP)
    parser.add_argument("--hogs", action="store_true", help=hogs.HELP)
    parser.add_argument("--no-latency", action="store_true")
    parser.add_argument("--no-calls", action="store_true", help="do not count system calls")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (0.3 if options.quick else 1.0)
    options.networks = options.networks or (["lo", "veth"] if options.quick else list(NETWORKS))
    if options.quick:
        options.sizes = options.sizes or [256, 64 * K, M, 16 * M]
        options.no_calls = True
    if options.near and not options.pin:
        parser.error("--near needs --pin")
    Pair.pin = options.pin
    Pair.cores = cores.Cores(options.build, options.near) if options.near else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    print(f"Machine: {machine()}. {time.strftime('%Y-%m-%d')}. Medians of {options.rounds} alternating rounds of "
          f"{options.seconds:g} s{', sides pinned to a core each' if options.pin else ''}"
          f"{', beside a busy process per core' if options.hogs else ''}. x: p2p_bench against that tool, above 1 is better.\n")
    row(["network", "message", "tool", "median", "min-max", "M messages/s", "p2p_bench is", "CPU s/GiB, both sides",
         "system calls/MiB"])
    row(["---"] * 3 + ["---:"] * 6)
    with hogs.hogs(options.hogs):
        for name in options.networks:
            compare(name, options)
    if Pair.cores:
        print(f"\n{Pair.cores}")


main()
