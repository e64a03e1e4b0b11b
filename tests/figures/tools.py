#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Figures of transport_test and p2p_bench against figures that are known.

usage: tools.py BUILD_DIRECTORY CASE...    (or --list)

The tools are linked with played.c: a script made here says how long each message takes, what it costs, and what
the peer reports. What a tool has to print follows from that by the definitions of docs/tools.md, and is computed
here, in fractions; what it prints may differ by half of its last digit. Warm-ups and phases that are not reported
have figures of their own, far from the others.
"""
import csv
import io
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from fractions import Fraction

GIB = 1 << 30
TRANSPORT_TEST, P2P_BENCH = 1, 2
TOOL_VERSION = 4
HELLO, JOIN, WELCOME, REFUSE, READY, PHASE, RESULT, END = range(1, 9)
FLUSHED, IN_USE = 100, 101  # of played.c
OTHER_TOOL, OTHER_VERSION, BAD_SETTING, BUSY, NO_DEVICE = range(1, 6)
BASIC, LAT, TPT, BI, TYPE_WRITE, TYPE_READ, TYPE_NOTIFY = range(7)
STREAM, PING = 1, 2
SEND, WRITE, READ = range(3)
US, MS, S = 1000, 1000 ** 2, 1000 ** 3


class Message:
    """One of the tool's or of the peer's: takes `ns` once it is its turn, costs CPU time and retransmissions."""

    def __init__(self, ns, retransmits=0, cpu_ns=0):
        self.ns, self.retransmits, self.cpu_ns = ns, retransmits, cpu_ns


def total(messages, what):
    return sum(getattr(message, what) for message in messages)


class Script:
    def __init__(self, tool):
        self.lines = [f"tool {tool} {TOOL_VERSION}"]
        self.sent = {}  # messages per connection so far

    def mail(self, conn, kind, *fields):
        self.lines.append(" ".join(map(str, ("mail", conn, kind) + fields)))

    def depart(self, conn, messages):
        """Returns the number of the first."""
        first = self.sent.get(conn, 0)
        self.sent[conn] = first + len(messages)
        self.lines += [f"depart {conn} {m.ns} {m.retransmits} {m.cpu_ns}" for m in messages]
        return first

    def arrive(self, conn, size, messages, after=None, contents=None):
        """`after` of message i: what the tool has to have sent. `contents`: (channel, number)."""
        for i, m in enumerate(messages):
            channel, number = contents(i) if contents else (-1, 0)
            self.lines.append(f"arrive {conn} {m.ns} {size} {-1 if after is None else after(i)} {m.retransmits} "
                              f"{m.cpu_ns} {channel} {number}")


class Run:
    """stdout, stderr and status of a tool, and what it told its peer: (connection, kind, fields)."""

    def __init__(self, program, arguments, env=None, **scripts):
        with tempfile.TemporaryDirectory() as folder:
            begin = os.path.join(folder, "play")
            for role, script in scripts.items():
                with open(f"{begin}.{role}", "w") as f:
                    f.write("\n".join(script.lines) + "\n")
            done = subprocess.run([os.path.join(BUILD, "tests", "played_" + program)] + arguments, text=True,
                                  timeout=60, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env={**os.environ, "PLAYED": begin, **(env or {})})
            self.status, self.stdout, self.stderr, self.said = done.returncode, done.stdout, done.stderr, {}
            for role in scripts:
                with open(f"{begin}.{role}.said") as f:
                    words = [tuple(map(int, line.split())) for line in f]
                self.said[role] = [(word[0], word[1], word[2:]) for word in words]
        print(self.stdout, self.stderr, f"status {self.status}", sep="")

    def matches(self, pattern):
        """The groups of each line that matches whole; every blank of the pattern stands for some."""
        found = [re.fullmatch(pattern.replace(" ", " +"), line) for line in self.stdout.splitlines()]
        return [match.groups() for match in found if match]

    def match(self, pattern):
        """Of the only one."""
        found = self.matches(pattern)
        assert len(found) == 1, f"{len(found)} lines match {pattern}"
        return found[0]

    def told(self, role, kind):
        """Fields of what it told of that kind."""
        return [fields for _, told, fields in self.said[role] if told == kind]


def shown(text, truth, slack=0):
    """`text` is `truth`, rounded as it is written; `slack` as a fraction where the truth is not exact."""
    digits = len(text.partition(".")[2])
    bound = Fraction(1, 2 * 10 ** digits) + abs(Fraction(truth)) * (Fraction(slack) + Fraction(1, 10 ** 12))
    assert abs(Fraction(text) - Fraction(truth)) <= bound, f"{text} is shown, {float(truth)} is true"


def close(value, truth, slack=0):
    """A number of a program, of which nine digits are written."""
    bound = abs(Fraction(truth)) * (Fraction(slack) + Fraction(1, 10 ** 8))
    assert abs(Fraction(value) - Fraction(truth)) <= bound, f"{value} is reported, {float(truth)} is true"


def percentile(samples, percent):
    """Nearest rank: the smallest sample that at least `percent` of them do not exceed."""
    rank = max(1, math.ceil(Fraction(str(percent)) * len(samples) / 100))
    return sorted(samples)[rank - 1]


def shuffled(items, seed=1):
    items = list(items)
    random.Random(seed).shuffle(items)
    return items


RATE = r"([\d.]+) Gbps \| ([\d.]+) GB/s \|"


def rate_shown(gbps, gbytes, size, ns, slack=0):
    """10^9 bits, and 10^9 bytes, a second."""
    shown(gbps, Fraction(8 * size, ns), slack)
    shown(gbytes, Fraction(size, ns), slack)


# ---- transport_test --------------------------------------------------------------------------------------------

def settings(kind, iterations, size, warmup=0, nflow=1, nmsg=1, nreq=1, bi=0):
    """Of HELLO, as the client would have them."""
    return [77, kind, warmup, nflow, nmsg, nreq, size, iterations, 0, bi]


def result(cpu_ns, retransmits, wrong=0):
    return [wrong, 0, 0, 0, 0, 0, cpu_ns, retransmits]


SUMMARY = (r" total : %s (\d+) messages/s \| (\d+) messages, ([\d.]+) GiB in ([\d.]+) s")
COSTS = (r" retransmissions: (\d+) here, (\d+) at the peer \| CPU: ([\d.]+) s/GiB here, ([\d.]+) s/GiB at the peer")


def costs_shown(run, role, own, other, size):
    here, there, cpu_here, cpu_there = run.match(rf"\[{role}\]" + COSTS)
    assert (int(here), int(there)) == (own[1], other[1]), (here, there, own, other)
    shown(cpu_here, Fraction(own[0] * GIB, size * S))
    shown(cpu_there, Fraction(other[0] * GIB, size * S))


def seconds_of(ends):
    """What lines of seconds cover, of messages that end at these times: [(first, end, nanoseconds)]."""
    lines, first, begin_ns = [], 0, 0
    for i, end_ns in enumerate(ends):
        if end_ns - begin_ns >= S:
            lines.append((first, i + 1, end_ns - begin_ns))
            first, begin_ns = i + 1, end_ns
    return lines


def ends_of(messages):
    ends, now_ns = [], 0
    for message in messages:
        now_ns += message.ns
        ends.append(now_ns)
    return ends


WARM = [Message(3 * MS, 5, 400000) for _ in range(10)]
PEER = result(cpu_ns=760 * MS, retransmits=4321)
MANY = [Message((7 + i // 60 * 9) * MS + i, i // 9 % 3, 4000 * (i % 11)) for i in range(300)]  # slower by the second


def check_tpt(run, role, size):
    """A direction, of messages as of MANY."""
    lines = run.matches(rf"\[{role}\] (\d+) s : " + RATE + r" (\d+) messages/s \| retransmissions (\d+)")
    expected = seconds_of(ends_of(MANY))
    assert len(lines) == len(expected) >= 5, lines
    for number, ((first, end, ns), line) in enumerate(zip(expected, lines), 1):
        assert int(line[0]) == number
        rate_shown(line[1], line[2], (end - first) * size, ns)
        shown(line[3], Fraction((end - first) * S, ns))
        assert int(line[4]) == total(MANY[:end], "retransmits"), line
    elapsed_ns = total(MANY, "ns")
    gbps, gbytes, rate, messages, gib, seconds = run.match(rf"\[{role}\]" + SUMMARY % RATE)
    rate_shown(gbps, gbytes, len(MANY) * size, elapsed_ns)
    shown(rate, Fraction(len(MANY) * S, elapsed_ns))
    assert int(messages) == len(MANY)
    shown(gib, Fraction(len(MANY) * size, GIB))
    shown(seconds, Fraction(elapsed_ns, S))
    own = (total(MANY, "cpu_ns"), total(MANY, "retransmits"))
    costs_shown(run, role, own, (PEER[6], PEER[7]), len(MANY) * size)
    assert run.told(role.lower(), RESULT) == [tuple(result(*own) + [0] * 6)], run.said
    assert run.status == 0


def case_tpt_client():
    size = 3000001
    script = Script(TRANSPORT_TEST)
    for kind in (WELCOME, READY, READY):
        script.mail(0, kind)
    script.mail(0, RESULT, *PEER)
    script.depart(0, WARM + MANY)
    run = Run("transport_test", ["--serverip=x", "--perftype=tpt", f"--msize={size}", f"--iterations={len(MANY)}",
                                 f"--warmup={len(WARM)}", "--nreq=4"], client=script)
    assert run.told("client", HELLO)[0][1:10] == tuple(settings(TPT, len(MANY), size, len(WARM), nreq=4)[1:])
    check_tpt(run, "Client", size)


def case_nics():
    """Of several NICs in use: what each has carried, and what became of it."""
    size = 4096
    script = Script(TRANSPORT_TEST)
    for kind in (WELCOME, READY):
        script.mail(0, kind)
    script.mail(0, RESULT, *PEER)
    script.depart(0, MANY)
    nics = ["eth0 1 11 1717986918 22 805306368 0 0 1", "eth1 0 33 44444 55 66666 7 8 1",
            "eth2 1 12 53687091 13 5368709120 3 2 0", "eth3 1 14 0 15 16 4 4 1"]
    run = Run("transport_test", ["--serverip=x", "--perftype=tpt", f"--msize={size}", f"--iterations={len(MANY)}",
                                 "--warmup=false"], env={"PLAYED_NICS": ";".join(nics), "PLAYED_MOVES": "41"}, client=script)
    lines = run.matches(r"\[Client\] (eth\d): ([\d.]+) GiB sent, ([\d.]+) received(.*)")
    used = [nic.split() for nic in nics if nic.split()[1] == "1"]
    assert [line[0] for line in lines] == [nic[0] for nic in used], lines
    for (_, sent, received, rest), nic in zip(lines, used):
        shown(sent, Fraction(int(nic[3]), GIB))
        shown(received, Fraction(int(nic[5]), GIB))
        told = f", lost {nic[6]} times, back {nic[7]} times" if nic[6] != "0" else ""
        assert rest == told + ("" if nic[8] == "1" else ", down"), (rest, nic)
    assert run.match(r"\[Client\] chunks moved to another NIC: (\d+)") == ("41",)
    assert run.status == 0


def case_tpt_server():
    size = 2000003
    script = Script(TRANSPORT_TEST)
    script.mail(0, HELLO, *settings(TPT, len(MANY), size, len(WARM), nreq=3))
    for kind in (READY, READY):
        script.mail(0, kind)
    script.mail(0, RESULT, *PEER)
    script.arrive(0, size, WARM + MANY)
    check_tpt(Run("transport_test", ["--server"], server=script), "Server", size)


def case_tpt_both_ways():
    """Sends and receives of unlike speed; several messages of a request."""
    size, sends = 1500000, [Message(5 * MS, 1, 8000) for _ in range(600)]
    receives = [Message(11 * MS, 2, 4000) for _ in range(600)]
    script = Script(TRANSPORT_TEST)
    for kind in (WELCOME, READY):
        script.mail(0, kind)
    script.mail(0, RESULT, *PEER)
    script.depart(0, sends)
    script.arrive(0, size, receives)
    run = Run("transport_test", ["--serverip=x", "--perftype=bi", f"--msize={size}", "--iterations=200", "--nmsg=3",
                                 "--nreq=2", "--warmup=0"], client=script)
    lines = run.matches(rf"\[Client\] (\d+) s : sent {RATE} received {RATE} (\d+) messages/s "
                        r"\| retransmissions (\d+)")
    assert len(lines) == 6, lines
    some = Fraction(3, 90)  # a second may have one request more or less
    for number, found in enumerate(lines, 1):
        sending = 1 if number < 3 else 0 if number > 4 else None  # 3 s in all
        assert int(found[0]) == number
        if sending is not None:
            rate_shown(found[1], found[2], sending * size, 5 * MS, some)
            shown(found[5], sending * Fraction(S, 5 * MS) + Fraction(S, 11 * MS), some)
        rate_shown(found[3], found[4], size, 11 * MS, some)
        sent, received = min(600, number * 200), Fraction(number * S, 11 * MS)
        shown(found[6], sent + 2 * received, some)
    elapsed_ns = total(receives, "ns")
    found = run.match(r"\[Client\]" + SUMMARY % ("sent " + RATE + " received " + RATE))
    rate_shown(found[0], found[1], 600 * size, elapsed_ns)
    rate_shown(found[2], found[3], 600 * size, elapsed_ns)
    shown(found[4], Fraction(1200 * S, elapsed_ns))
    assert int(found[5]) == 1200
    shown(found[6], Fraction(1200 * size, GIB))
    shown(found[7], Fraction(elapsed_ns, S))
    costs_shown(run, "Client", (600 * 12000, 600 * 3), (PEER[6], PEER[7]), 1200 * size)


LATENCY = (r" half round trip of (\d+) x (\S+ \S+), (\d+) samples, in us: min ([\d.]+) p50 ([\d.]+) p90 ([\d.]+) "
           r"p99 ([\d.]+) p99\.9 ([\d.]+) max ([\d.]+)")


def latency_shown(run, role, nmsg, size, samples):
    found = run.match(rf"\[{role}\]" + LATENCY)
    assert found[:3] == (str(nmsg), size, str(len(samples))), found
    for text, percent in zip(found[3:], (0, 50, 90, 99, 99.9, 100)):
        shown(text, Fraction(percentile(samples, percent), US))


def case_lat_client():
    """Connections in turn, two messages each way; of numbers of samples at which ranks are easily missed."""
    for count in (1, 2, 3, 10, 99, 100, 101, 1000, 1001, 5000):
        script = Script(TRANSPORT_TEST)
        script.mail(0, WELCOME)
        for kind in (READY, READY):
            script.mail(0, kind)
        script.mail(0, RESULT, *PEER)
        halves = shuffled([(i * i % 9973 + 13) * 100 for i in range(count)], count)
        warm, nflow = 6, 2
        trips = [7777777] * warm + halves
        for flow in range(nflow):
            mine = trips[flow:warm:nflow] + trips[warm + flow::nflow]
            messages = [Message(ns) for half in mine for ns in (2 * half - half // 3, half // 3)]
            script.depart(flow, [Message(ns) for half in mine for ns in (2 * half, 5 * US)])  # their ends do not count
            script.arrive(flow, 8, messages, after=lambda i: i | 1)
        run = Run("transport_test", ["--serverip=x", "--perftype=lat", f"--iterations={count}", f"--warmup={warm}",
                                     f"--nflow={nflow}", "--nmsg=2"], client=script)
        latency_shown(run, "Client", 2, "8.0 B", halves)
        assert run.status == 0


def case_lat_both_ways():
    """Either side, which asks and answers: its half is half of two one-way trips and what lies between."""
    halves = shuffled([(i + 40) * 700 for i in range(500)])
    for role in ("client", "server"):
        script = Script(TRANSPORT_TEST)
        if role == "server":
            script.mail(0, HELLO, *settings(LAT, len(halves), 65536, 4, bi=1))
        else:
            script.mail(0, WELCOME)
        for kind in (READY, READY):
            script.mail(0, kind)
        script.mail(0, RESULT, *PEER)
        messages = [Message(ns) for half in [5 * MS] * 4 + halves for ns in (2 * half - half // 5, half // 5)]
        script.depart(0, [Message(m.ns + US) for m in messages])
        script.arrive(0, 65536, messages, after=lambda i: i)
        run = Run("transport_test", ["--server"] if role == "server" else
                  ["--serverip=x", "--perftype=lat", "--bi", "--msize=64K", "--iterations=500", "--warmup=4"],
                  **{role: script})
        latency_shown(run, role.capitalize(), 1, "64.0 KB", halves)


def case_lat_server():
    """Prints no latency, and tells the client its retransmissions and CPU time."""
    count, warm = 50, 3
    script = Script(TRANSPORT_TEST)
    script.mail(0, HELLO, *settings(LAT, count, 8, warm))
    for kind in (READY, READY):
        script.mail(0, kind)
    script.mail(0, RESULT, *PEER)
    messages = [Message(900, 100, 40000)] * warm + [Message(1000 + i, i % 2, 4000) for i in range(count)]
    script.depart(0, [Message(10, 70, 80000)] * warm + [Message(10, 3, 8000)] * count)
    script.arrive(0, 8, messages, after=lambda i: i - 1)
    run = Run("transport_test", ["--server"], server=script)
    assert run.told("server", RESULT) == [tuple(result(count * 12000, count // 2 + 3 * count) + [0] * 6)], run.said
    assert run.status == 0 and "half round trip" not in run.stdout


def case_lat_limit():
    """A sample holds 4.29 s at most, of which the user is told."""
    script = Script(TRANSPORT_TEST)
    for kind in (WELCOME, READY):
        script.mail(0, kind)
    script.mail(0, RESULT, *PEER)
    script.arrive(0, 8, [Message(2 * ns) for ns in (4 * S, 5 * S, 4294967295, 6 * S)], after=lambda i: i)
    run = Run("transport_test", ["--serverip=x", "--perftype=lat", "--iterations=4", "--warmup=0"], client=script)
    latency_shown(run, "Client", 1, "8.0 B", [4 * S] + [2 ** 32 - 1] * 3)
    assert run.stderr.count("a half round trip took 5.00 s") == 1 and run.stderr.count("warning") == 1, run.stderr


def case_basic_wrong():
    """How many messages were wrong, on both sides, and which was the first."""
    size, count = 4096, 12
    wrong = {4, 5, 9}
    script = Script(TRANSPORT_TEST)
    script.mail(0, HELLO, *settings(BASIC, count, size, nreq=2))
    script.mail(0, READY)
    script.mail(0, RESULT, *result(5, 6, wrong=2))
    script.arrive(0, size, [Message(MS) for _ in range(count)], contents=lambda i: (0, i + (i in wrong)))
    run = Run("transport_test", ["--server"], server=script)
    assert "[Server] FAILED: 3 messages with wrong data here, 2 at the peer\n" in run.stderr
    told = run.told("server", RESULT)[0]
    assert told[:4] == (3, 0, 4, 0), told  # all, connection and side, the first message, its first word
    assert run.status == 1
    gbps, gbytes, rate, messages, gib, seconds = run.match(r"\[Server\]" + SUMMARY % RATE)
    rate_shown(gbps, gbytes, count * size, count * MS)
    assert (rate, messages, seconds) == ("1000", "12", "0.012")


def case_basic_wrong_first():
    """Wrong data that the peer alone has seen; of several connections, the first one's is told."""
    script = Script(TRANSPORT_TEST)
    script.mail(0, WELCOME)
    script.mail(0, READY)
    script.mail(0, RESULT, *result(5, 6, wrong=2))
    run = Run("transport_test", ["--serverip=x", "--iterations=3", "--msize=64"], client=script)
    assert run.status == 1 and "[Client] FAILED: 0 messages with wrong data here, 2 at the peer\n" in run.stderr
    script = Script(TRANSPORT_TEST)
    script.mail(0, HELLO, *settings(BASIC, 4, 4096, nflow=3))
    for conn in (1, 2):
        script.mail(conn, JOIN, 77, conn)
    script.mail(0, READY)
    script.mail(0, RESULT, *result(5, 6))
    for conn, wrong in enumerate((9, 2, 1)):  # none of the first connection's
        script.arrive(conn, 4096, [Message(MS) for _ in range(4)], contents=lambda i: (2 * conn, i + (i == wrong)))
    run = Run("transport_test", ["--server"], server=script)
    assert run.status == 1 and run.told("server", RESULT)[0][:4] == (2, 2, 2, 0), run.said


def case_contents():
    """Contents of a message are those of no other: of one that is swapped, or of the other direction, or without its end."""
    size = 4099
    others = {"another message": lambda i: (0, i ^ 1), "the other direction": lambda i: (1, i),
              "another connection": lambda i: (2, i), "another piece": lambda i: (1 << 16, i)}
    for what, contents in others.items():
        script = Script(TRANSPORT_TEST)
        script.mail(0, HELLO, *settings(BASIC, 4, size))
        script.mail(0, READY)
        script.mail(0, RESULT, *result(5, 6))
        script.arrive(0, size, [Message(MS) for _ in range(4)], contents=contents)
        run = Run("transport_test", ["--server"], server=script)
        assert run.status == 1 and run.told("server", RESULT)[0][0] == 4, what
    for cut in (1, 2, 3):  # bytes that do not come; the buffer is left as it was
        script = Script(TRANSPORT_TEST)
        script.mail(0, HELLO, *settings(BASIC, 1, size))
        script.mail(0, READY)
        script.mail(0, RESULT, *result(5, 6))
        script.arrive(0, size, [Message(MS)], contents=lambda i: (0, 0))
        run = Run("transport_test", ["--server"], env={"PLAYED_CUT": str(cut)}, server=script)
        assert run.told("server", RESULT)[0][:4] == (1, 0, 0, 4096), run.said


def case_one_sided_wrong():
    """The target of writes in pieces, and of notifications: which piece of which message was wrong."""
    size, count, wrong = 1000, 12, {4, 5, 9}
    piece = 1024 + 64  # and from one piece to the next, and from one slot to the next after two pieces
    for kind, nmsg, first in ((TYPE_WRITE, 2, 1 << 16), (TYPE_NOTIFY, 1, 0)):
        script = Script(TRANSPORT_TEST)
        script.mail(0, HELLO, *settings(kind, count, size, nreq=2, nmsg=nmsg))
        script.mail(0, READY)
        script.mail(0, RESULT, *result(5, 6, wrong=2))
        for i in range(count):
            if kind == TYPE_NOTIFY:
                script.lines.append(f"told 0 {MS} -1 -1 {size} 0 {i + (i in wrong)} 0")
                continue
            slot = i % 2 * 2 * piece
            script.lines.append(f"told 0 0 {i - 2 if i > 1 else -1} {slot} {size} 0 {i} {(1 << 64) - 1}")
            script.lines.append(f"told 0 {MS} -1 {slot + piece} {size} {1 << 16} {i + (i in wrong)} {i}")
        run = Run("transport_test", ["--server"], server=script)
        assert "[Server] FAILED: 3 messages with wrong data here, 2 at the peer\n" in run.stderr
        assert run.told("server", RESULT)[0][:4] == (3, first, 4, 0), run.said
        assert ("sent by the client, piece 1, offset 0:" in run.stderr) == (first != 0)
        assert run.status == 1
        gbps, gbytes, rate, messages, _, seconds = run.match(r"\[Server\]" + SUMMARY % RATE)
        rate_shown(gbps, gbytes, count * size * nmsg, count * MS)
        assert (rate, messages, seconds) == (str(1000 * nmsg), str(12 * nmsg), "0.012")


def case_one_sided_gaps():
    """A byte behind a piece that was written changes as well."""
    size, piece = 1000, 1024 + 64
    script = Script(TRANSPORT_TEST)
    script.mail(0, HELLO, *settings(TYPE_WRITE, 2, size, nreq=2, nmsg=2))
    script.mail(0, READY)
    script.mail(0, RESULT, *result(5, 6))
    for i in range(2):
        script.lines.append(f"told 0 0 -1 {i * 2 * piece} {size} 0 {i} {(1 << 64) - 1}")
        script.lines.append(f"told 0 0 -1 {i * 2 * piece + piece} {size + i} {1 << 16} {i} {i}")
    run = Run("transport_test", ["--server"], server=script)
    assert run.status == 1 and run.told("server", RESULT)[0][:4] == (1, 1 << 16, 1, size), run.said


def one_sided_shown(run, role, messages, size, nmsg):
    """The summary of operations, each of `nmsg` pieces of `size` bytes."""
    ns, count = total(messages, "ns"), len(messages) * nmsg
    gbps, gbytes, rate, told, gib, seconds = run.match(rf"\[{role}\]" + SUMMARY % RATE)
    rate_shown(gbps, gbytes, count * size, ns)
    shown(rate, Fraction(count * S, ns))
    assert int(told) == count
    shown(gib, Fraction(count * size, GIB))
    shown(seconds, Fraction(ns, S))
    assert run.status == 0


def case_one_sided_client():
    """Writes, reads and notifications: warm-ups do not count, and pieces are messages."""
    warm, window = WARM[:7], 4
    for name, size, nmsg in (("write", 1000003, 1), ("write", 70000, 3), ("read", 2000, 1), ("read", 3000001, 2),
                             ("notify", 300, 1)):
        script = Script(TRANSPORT_TEST)
        script.mail(0, WELCOME)
        for _ in range(2 if name == "notify" else 3):  # where the server's memory is, and each phase
            script.mail(0, READY)
        script.mail(0, RESULT, *PEER)
        script.depart(0, warm + MANY)
        # the target has so many buffers at first in each phase; it frees one when the message there has ended
        for begin, count in ((0, len(warm)), (len(warm), len(MANY))) if name != "notify" else ():
            script.lines += [f"freed 0 {begin + i} {begin + i + window}" for i in range(count - window)]
        run = Run("transport_test", ["--serverip=x", f"--perftype={name}", f"--msize={size}", f"--nmsg={nmsg}",
                                     f"--iterations={len(MANY)}", f"--warmup={len(warm)}", f"--nreq={window}"],
                  client=script)
        one_sided_shown(run, "Client", MANY, size, nmsg)
        own = (total(MANY, "cpu_ns"), total(MANY, "retransmits"))
        costs_shown(run, "Client", own, (PEER[6], PEER[7]), len(MANY) * size * nmsg)
        assert run.told("client", RESULT) == [tuple(result(*own) + [0] * 6)], run.said


def case_one_sided_server():
    """The target, to which time passes until it is told of each message."""
    size, window = 1000, 2
    for kind in (TYPE_WRITE, TYPE_READ, TYPE_NOTIFY):
        messages = [Message((3 + i % 7) * MS + i) for i in range(40)]
        script = Script(TRANSPORT_TEST)
        script.mail(0, HELLO, *settings(kind, len(messages), size, nreq=window))
        script.mail(0, READY)
        script.mail(0, RESULT, *PEER)
        for i, message in enumerate(messages):
            after = max(-1, i - window)  # it has told that there is a buffer, but for those that are there at first
            if kind == TYPE_NOTIFY:
                script.lines.append(f"told 0 {message.ns} -1 -1 {size} 0 {i} 0")
            elif kind == TYPE_READ:
                script.lines.append(f"told 0 {message.ns} {after} 0 0 0 0 {i}")
            else:
                script.lines.append(f"told 0 {message.ns} {after} {i % window * 1024} {size} 0 {i} {i}")
        run = Run("transport_test", ["--server"], server=script)
        one_sided_shown(run, "Server", messages, size, 1)
        costs_shown(run, "Server", (0, 0), (PEER[6], PEER[7]), len(messages) * size)


def case_flush():
    """Each received message, if it was asked for."""
    for flush in (0, 1):
        script = Script(TRANSPORT_TEST)
        script.mail(0, HELLO, *settings(TPT, 9, 300, nmsg=2)[:8], flush, 0)
        script.mail(0, READY)
        script.mail(0, RESULT, *PEER)
        script.arrive(0, 300, [Message(MS) for _ in range(18)])
        run = Run("transport_test", ["--server"], server=script)
        assert run.status == 0 and run.told("server", FLUSHED) == [(300,)] * 18 * flush, run.said


def case_refused():
    """Clients that cannot be served: the server says so, to them and on stderr."""
    good = settings(TPT, 2, 300)
    wild = settings(TPT, 2, 300, nmsg=4096, nreq=5)  # each in its range
    endless = settings(LAT, 10 ** 9, 300)
    for first, reason, text in (((TRANSPORT_TEST, TOOL_VERSION + 1, HELLO, good), OTHER_VERSION, "another version of the tool"),
                                ((TRANSPORT_TEST, TOOL_VERSION - 1, HELLO, good), OTHER_VERSION, "another version of the tool"),
                                ((P2P_BENCH, TOOL_VERSION, HELLO, good), OTHER_TOOL, "not the same tool"),
                                ((TRANSPORT_TEST, TOOL_VERSION, JOIN, good), BUSY, "the server has another client"),
                                ((TRANSPORT_TEST, TOOL_VERSION, READY, good), OTHER_TOOL, "not the same tool"),
                                ((TRANSPORT_TEST, TOOL_VERSION, HELLO, [77, 9] + good[2:]), BAD_SETTING, "out of the range"),
                                ((TRANSPORT_TEST, TOOL_VERSION, HELLO, wild), BAD_SETTING, "out of the range"),
                                ((TRANSPORT_TEST, TOOL_VERSION, HELLO, endless), BAD_SETTING, "out of the range")):
        tool, version, kind, fields = first
        script = Script(TRANSPORT_TEST)
        script.lines = [f"tool {tool} {version}"]
        script.mail(0, kind, *fields)
        run = Run("transport_test", ["--server"], server=script)
        assert run.status == 1 and [told[0] for told in run.told("server", REFUSE)] == [reason], (run.said, first)
        assert "refused the client 192.0.2.1:9: " in run.stderr and text in run.stderr


def case_strangers_join():
    """Connections that are none of the client's are told that the server is busy; those of the client's count."""
    script = Script(TRANSPORT_TEST)
    script.mail(0, HELLO, *settings(TPT, 3, 300, nflow=2))
    strangers = ((JOIN, 78, 1), (JOIN, 77, 0), (JOIN, 77, 2), (JOIN, 77, 1 << 32), (HELLO, 77, 1))
    for conn, words in enumerate(strangers, 1):
        script.mail(conn, *words)
    joined = len(strangers) + 1
    script.mail(joined, JOIN, 77, 1)
    script.mail(0, READY)
    script.mail(0, RESULT, *PEER)
    for conn in (0, joined):
        script.arrive(conn, 300, [Message(MS) for _ in range(3)])
    run = Run("transport_test", ["--server"], server=script)
    assert [conn for conn, kind, _ in run.said["server"] if kind == REFUSE] == list(range(1, joined)), run.said
    assert all(fields[0] == BUSY for fields in run.told("server", REFUSE)) and run.status == 0


def case_governs():
    """Settings of the server's that the client's differ from are told, with both values."""
    script = Script(TRANSPORT_TEST)
    script.mail(0, HELLO, *settings(TPT, 3, 300, nreq=2))
    script.mail(0, READY)
    script.mail(0, RESULT, *PEER)
    script.arrive(0, 300, [Message(MS) for _ in range(3)])
    run = Run("transport_test", ["--server", "--nreq=5", "--msize=300", "--iterations=7"], server=script)
    assert run.matches(r"\[Server\] the client's --(\w+) governs: (\d+) \(here: (\d+)\)") == \
        [("nreq", "2", "5"), ("iterations", "3", "7")]


def case_units():
    """K, M and G are powers of 1024; as many messages as are allowed may be outstanding."""
    for text, size in (("3K", 3 << 10), ("2M", 2 << 20), ("1g", 1 << 30), ("5m", 5 << 20), ("77", 77)):
        script = Script(TRANSPORT_TEST)
        script.mail(0, REFUSE, BUSY)
        run = Run("transport_test", ["--serverip=x", "--perftype=tpt", f"--msize={text}", "--nreq=4096", "--nmsg=4"],
                  client=script)
        assert run.told("client", HELLO)[0][5:7] == (4096, size), run.said
        assert run.status == 1 and "the server refuses: the server has another client" in run.stderr


# ---- p2p_bench -------------------------------------------------------------------------------------------------

COLUMNS = ("size_bytes window pieces gbps gbytes_per_s gbps_sent gbps_received msgs_per_s lat_us_p50 lat_us_p99 lat_samples "
           "retransmits cpu_s_per_gib cpu_s_per_gib_client cpu_s_per_gib_server messages elapsed_s verified").split()
WINDOW, WARMUP, PING_MAX = 4, 5, 10000
LATE = 5 * US  # after the answer a question ends, which is no part of a round trip


class Size:
    """One size of a sweep: the messages of its throughput phase, and its round trips."""

    def __init__(self, size, count, seed, back=0, pings=None):
        self.size, self.window = size, WINDOW
        self.sends = [Message((seed * 37 + i % 5) * 20 * US, i % 2, 4000 * (seed + i % 3)) for i in range(count)]
        self.receives = [Message((seed * 41 + i % 3) * 30 * US, i % 3, 4000 * (i % 2)) for i in range(back)]
        pings = min(count, PING_MAX) if pings is None else pings
        self.halves = shuffled([(i * seed + 900) * 50 for i in range(pings)], seed)
        self.server_ns = total(self.receives, "ns") + 777777 if back else 999 * MS + seed
        self.server_cpu_ns, self.server_retransmits = 31 * MS * seed, 100 + seed

    def warm_pings(self):
        return 50 if self.size <= 65536 else 2

    def play(self, script):
        """What the client meets, over connection 0, and what the server says, over connection 1."""
        empty, warm = [Message(0)] * WINDOW, [Message(MS, 900, 4000000)] * WARMUP
        back = bool(self.receives)
        decoy = [1, 2, 3, 4, 5 * S, 6666, 0]

        script.depart(0, warm + empty)
        if back:
            script.arrive(0, self.size, warm)
            script.arrive(0, 0, empty)
        script.mail(1, READY)
        script.mail(1, RESULT, *decoy)

        halves = [3 * MS] * self.warm_pings() + self.halves
        first = script.depart(0, [Message(2 * half + LATE, 40, 4000000) for half in halves] + [Message(0)])
        script.arrive(0, self.size, [Message(2 * half, 30) for half in halves], after=lambda i: first + i)
        script.mail(1, READY)
        script.mail(1, RESULT, *decoy)

        script.depart(0, self.sends + empty)
        if back:
            script.arrive(0, self.size, self.receives)
            script.arrive(0, 0, empty)
        script.mail(1, READY)
        script.mail(1, RESULT, len(self.receives), len(self.receives) * self.size, len(self.sends) * self.size,
                    self.server_ns, self.server_cpu_ns, self.server_retransmits, 0)

    def truth(self):
        ns, size = total(self.sends, "ns"), self.size
        sent, back = len(self.sends), len(self.receives)
        gib = Fraction((sent + back) * size, GIB)
        both = self.sends + self.receives
        row = {"size_bytes": size, "window": self.window, "pieces": 1,
               "gbps_sent": Fraction(8 * sent * size, ns), "gbps_received": Fraction(8 * back * size, self.server_ns),
               "msgs_per_s": Fraction(sent * S, ns) + Fraction(back * S, self.server_ns),
               "lat_us_p50": Fraction(percentile(self.halves, 50), US),
               "lat_us_p99": Fraction(percentile(self.halves, 99), US), "lat_samples": len(self.halves),
               "retransmits": total(both, "retransmits") + self.server_retransmits,
               "cpu_s_per_gib_client": Fraction(total(both, "cpu_ns"), S) / gib,
               "cpu_s_per_gib_server": Fraction(self.server_cpu_ns, S) / gib,
               "messages": sent + back, "elapsed_s": Fraction(ns, S), "verified": False}
        row["gbps"] = row["gbps_sent"] + row["gbps_received"]
        row["gbytes_per_s"] = row["gbps"] / 8
        row["cpu_s_per_gib"] = row["cpu_s_per_gib_client"] + row["cpu_s_per_gib_server"]
        assert sorted(row) == sorted(COLUMNS)
        return row


def client_script(sizes, wrong=0):
    script = Script(P2P_BENCH)
    script.mail(0, WELCOME)
    for size in sizes:
        size.play(script)
    script.mail(1, END, wrong)
    return script


def sweep(sizes, *flags, **more):
    names = ",".join(str(size.size) for size in sizes)
    return Run("p2p_bench", ["--serverip=x", f"--sizes={names}", f"--warmup={WARMUP}", f"--window={WINDOW}",
                             "--verify=false", "--seconds=600", *flags], client=client_script(sizes), **more)


INEXACT = ("gbps", "gbytes_per_s", "gbps_sent", "msgs_per_s", "elapsed_s")  # both ways: a millisecond more


def row_true(row, size, slack=0):
    truth = size.truth()
    assert list(row) == COLUMNS, list(row)
    for name in COLUMNS:
        if name == "verified":
            assert row[name] in (truth[name], str(truth[name]).lower()), row
        elif isinstance(truth[name], int):
            assert int(row[name]) == truth[name], f"{name}: {row[name]} is reported, {truth[name]} is true"
        else:
            close(row[name], truth[name], slack if name in INEXACT else 0)


def size_text(size):
    units = ["B", "KB", "MB", "GB"]
    while size >= 1024 and len(units) > 1:
        size, units = Fraction(size, 1024), units[1:]
    return f"{float(size):.1f} {units[0]}"


def line_true(run, size, both=False, slack=0):
    truth = size.truth()
    found = run.match(rf"\[Client\] {re.escape(size_text(size.size)).replace(chr(92), '')} : " + RATE +
                      r" p50 ([\d.]+) us, p99 ([\d.]+) us \| ([\d.]+)( [KM]|) msg/s \| retransmissions (\d+) "
                      r"\| CPU ([\d.]+) \+ ([\d.]+) s/GiB \(client \+ server\)" +
                      (r" \| sent ([\d.]+), received ([\d.]+) Gbps" if both else ""))
    shown(found[0], truth["gbps"], slack)
    shown(found[1], truth["gbytes_per_s"], slack)
    shown(found[2], truth["lat_us_p50"])
    shown(found[3], truth["lat_us_p99"])
    shown(found[4], truth["msgs_per_s"] / {"": 1, " K": 1000, " M": 1000000}[re.sub(" +", " ", found[5])], slack)
    assert int(found[6]) == truth["retransmits"]
    shown(found[7], truth["cpu_s_per_gib_client"])
    shown(found[8], truth["cpu_s_per_gib_server"])
    if both:
        shown(found[9], truth["gbps_sent"], slack)
        shown(found[10], truth["gbps_received"])


def a_sweep():
    """Slow and fast ones, so that rates are shown with and without K and M."""
    sizes = [Size(100, 101, 40), Size(1000, 2000, 1), Size(65536, 300, 3), Size(1536 * 1024, 150, 2)]
    sizes[1].sends = [Message(400, i % 2, 4000) for i in range(2000)]
    sizes[2].sends = [Message(30 * US, i % 2, 4000) for i in range(300)]
    return sizes


def each_count(sizes):
    """--iterations is for all sizes: one sweep per number of messages."""
    return [[size] for size in sizes]


def case_p2p_text():
    for sizes in each_count(a_sweep()):
        run = sweep(sizes, f"--iterations={len(sizes[0].sends)}")
        line_true(run, sizes[0])
        assert run.status == 0


def case_p2p_json():
    for sizes in each_count(a_sweep()):
        report = json.loads(sweep(sizes, f"--iterations={len(sizes[0].sends)}", "--seconds=3", "--json").stdout)
        rows = report.pop("results")
        assert report == {"tool": "p2p_bench", "version": "1.2.3", "build": "played=yes", "local": False, "op": "send", "bi": False,
                          "seconds": 3, "iterations": len(sizes[0].sends), "verify": "none", "sender_device": "cpu",
                          "receiver_device": "cpu"}, report
        assert len(rows) == 1
        row_true(rows[0], sizes[0])


def case_p2p_csv():
    sizes = [Size(100, 200, 9), Size(70000, 200, 3), Size(2000000, 200, 2)]
    run = sweep(sizes, "--iterations=200", "--csv")
    rows = list(csv.DictReader(io.StringIO(run.stdout)))
    assert len(rows) == len(sizes)
    for row, size in zip(rows, sizes):
        row_true(row, size)


def case_p2p_both_ways():
    """The server's rate is that of its own clock; all else is the sum of both."""
    sizes = [Size(4096, 1500, 11, back=700), Size(1000000, 1500, 13, back=900)]
    slack = Fraction(1, 100)
    rows = json.loads(sweep(sizes, "--iterations=1500", "--bi", "--json").stdout)["results"]
    for row, size in zip(rows, sizes):
        row_true(row, size, slack)
    run = sweep(sizes, "--iterations=1500", "--bi")
    for size in sizes:
        line_true(run, size, both=True, slack=slack)


def case_p2p_by_time():
    """Two seconds: from the first post to the last completion, and not what was asked for."""
    seconds, size = 2, Size(100000, 3000, 2, pings=2000)
    ends = ends_of(size.sends)
    reached = next(i for i, end_ns in enumerate(ends) if end_ns >= seconds * S)
    size.sends = size.sends[:reached + WINDOW]  # what was outstanding then ends as well
    trips, now_ns = 0, 2 * (2 * 3 * MS + LATE)  # a quarter of the time, warm-ups included
    while now_ns - LATE < seconds * S // 4:
        now_ns += 2 * size.halves[trips] + LATE
        trips += 1
    size.halves = size.halves[:trips]
    assert 100 < trips < 2000 and total(size.sends, "ns") > seconds * S
    rows = json.loads(sweep([size], f"--seconds={seconds}", "--json").stdout)["results"]
    row_true(rows[0], size)


def case_p2p_windows():
    """The window that is reported is the one that was used."""
    for bytes_, window in ((1, 256), (32768, 256), (65536, 128), (1 << 20, 8), (10 << 20, 4)):
        global WINDOW
        before, WINDOW = WINDOW, window
        try:
            size = Size(bytes_, 20, 3)
            run = Run("p2p_bench", ["--serverip=x", f"--sizes={bytes_}", "--iterations=20", "--seconds=600",
                                    "--verify=false", "--json", f"--warmup={WARMUP}"], client=client_script([size]))
            row_true(json.loads(run.stdout)["results"][0], size)
            phases = run.told("client", PHASE)
            assert [fields[3] for fields in phases] == [window, 2, window], phases
        finally:
            WINDOW = before


def case_p2p_local():
    """The server is a process of its own, with a script of its own."""
    size = Size(8000, 100, 5)
    server = Script(P2P_BENCH)
    server.mail(0, HELLO, 77, 1 << 20, 0, SEND)
    server.mail(1, JOIN, 77, 1)
    server.mail(1, END, 0)
    run = Run("p2p_bench", ["--local", "--sizes=8000", "--iterations=100", f"--warmup={WARMUP}", f"--window={WINDOW}",
                            "--seconds=600", "--verify=false", "--json"], client=client_script([size]), server=server)
    report = json.loads(run.stdout)
    assert report["local"] is True and run.status == 0
    row_true(report["results"][0], size)
    assert run.told("server", END)


def case_p2p_server():
    """Its lines, and what it reports to the client."""
    for back in (0, 1):
        size, window = 200000, 3
        decoys, warm = [Message(MS, 50, 4000000)] * 6, [Message(0)] * window
        receives = [Message(2 * MS + i, i % 2, 8000) for i in range(500)]
        sends = [Message(3 * MS, 1, 4000) for _ in range(400 * back)]
        pings = [Message(90000, 7, 4000) for _ in range(20)]
        script = Script(P2P_BENCH)
        script.mail(0, HELLO, 77, 1 << 24, 0, SEND)
        script.mail(1, JOIN, 77, 1)
        script.mail(1, PHASE, STREAM, 1, size, window, 6, 0, 0, back, SEND, 1)
        script.mail(1, PHASE, PING, 2, size, 2, 20, 0, 0, back, SEND, 1)
        script.mail(1, PHASE, STREAM, 3, size, window, 400, 0, 0, back, SEND, 1)
        script.mail(1, END, 0)
        script.arrive(0, size, decoys)
        script.arrive(0, 0, warm)
        if back:
            script.depart(0, decoys + warm)
        first = script.depart(0, [Message(10, 70)] * 20)
        script.arrive(0, size, pings, after=lambda i: first + i - 1 if i else -1)
        script.arrive(0, 0, [Message(100)], after=lambda i: first + 19)
        script.depart(0, sends)
        script.arrive(0, size, receives)
        script.arrive(0, 0, warm)
        run = Run("p2p_bench", ["--server"], server=script)
        ns = total(sends if back else receives, "ns")
        own_ns, own = total(receives + sends, "cpu_ns"), total(receives + sends, "retransmits")
        told = run.told("server", RESULT)
        assert len(told) == 3
        slack = Fraction(1, 500) if back else 0
        assert told[2][:3] == (len(sends), len(sends) * size, len(receives) * size), told
        close(told[2][3], ns, slack)
        assert told[2][4:7] == (own_ns, own, 0), (told, own_ns, own)
        found = run.match(rf"\[Server\] {size_text(size)} : received " + RATE + (" sent " + RATE if back else "") +
                          r" retransmissions (\d+) \| CPU ([\d.]+) s/GiB")
        rate_shown(found[0], found[1], len(receives) * size, ns, slack)
        if back:
            rate_shown(found[2], found[3], len(sends) * size, ns, slack)
        assert int(found[-2]) == own
        shown(found[-1], Fraction(own_ns * GIB, (len(receives) + len(sends)) * size * S))
        assert run.status == 0


def one_sided(op, size):
    """What the client of --op meets: no message of the server's, but signals behind its writes."""
    script = Script(P2P_BENCH)
    script.mail(0, WELCOME)
    for _ in range(3):
        script.mail(1, READY)  # what the server exports
    decoy = [1, 2, 3, 4, 5 * S, 6666, 0]
    script.depart(0, [Message(MS, 900, 4000000)] * WARMUP)
    script.mail(1, READY)
    script.mail(1, RESULT, *decoy)

    halves = [3 * MS] * size.warm_pings() + size.halves
    script.mail(1, READY)
    if op == "write":
        first = script.depart(0, [Message(2 * half + LATE, 40, 4000000) for half in halves] + [Message(0)])
        for i, half in enumerate(halves):
            script.lines.append(f"signal 0 {2 * half} {first + i} {(2 << 40) + i + 1}")
        script.mail(1, READY, 0)  # it has written as well
    else:
        script.depart(0, [Message(half, 40, 4000000) for half in halves])
    script.mail(1, RESULT, *decoy)

    script.depart(0, size.sends)
    script.mail(1, READY)
    script.mail(1, RESULT, 0, 0, len(size.sends) * size.size, size.server_ns, size.server_cpu_ns,
                size.server_retransmits, 0)
    script.mail(1, END, 0)
    return script


def one_sided_row(op, size, *flags):
    run = Run("p2p_bench", ["--serverip=x", f"--sizes={size.size}", f"--warmup={WARMUP}", f"--window={WINDOW}",
                            "--json", "--verify=false", "--seconds=600", f"--iterations={len(size.sends)}",
                            f"--op={op}", *flags], client=one_sided(op, size))
    assert run.status == 0
    report = json.loads(run.stdout)
    row, = report["results"]
    number = {"write": WRITE, "read": READ}[op]
    assert report["op"] == op
    assert [fields[8:10] for fields in run.told("client", PHASE)] == [(number, row["pieces"])] * 3
    return row


def case_p2p_write():
    """Half round trips last until the server's signal; a message in pieces is one message."""
    for count, flags in ((1, ()), (7, ("--pieces=7",))):
        for size in (Size(100, 300, 7), Size(1 << 20, 200, 3)):
            row = one_sided_row("write", size, *flags)
            assert row["pieces"] == count
            row_true({**row, "pieces": 1}, size)
    assert one_sided_row("write", Size(100, 50, 2), "--pieces=1000")["pieces"] == 100


def case_p2p_read():
    """The time of a read is not halved, and its bytes are received."""
    for size in (Size(100, 300, 7), Size(1 << 20, 200, 3)):
        row = one_sided_row("read", size)
        row["gbps_sent"], row["gbps_received"] = row["gbps_received"], row["gbps_sent"]
        row_true(row, size)


def case_p2p_wrong():
    """Wrong contents at the server alone: the row says so, and how many, and the sweep ends."""
    for wrong in (1, 3):
        size = Size(4096, 30, 2)
        script = Script(P2P_BENCH)
        script.mail(0, WELCOME)
        script.depart(0, [Message(MS)] * WINDOW + [Message(0)] * WINDOW)
        script.mail(1, READY)
        script.mail(1, RESULT, 0, 0, WINDOW * 4096, 5, 0, 0, wrong, 0, 1 << 40, 8, 1, 2)
        size.play(script)
        script.mail(1, END, wrong)
        run = Run("p2p_bench", ["--serverip=x", "--sizes=4096,8192", f"--warmup={WARMUP}", f"--window={WINDOW}",
                                "--iterations=30", "--seconds=600", "--json"], client=script)
        rows = json.loads(run.stdout)["results"]
        assert len(rows) == 1 and run.status == 1
        row_true(rows[0], size)
        assert f"[Client] FAILED: {wrong} messages with wrong data on both sides\n" in run.stderr
        assert "message 0 sent by the client, offset 8: expected 0x0000000000000001, got 0x0000000000000002" in run.stderr


def case_p2p_verified():
    """`verified`: of the first window, whose time is not reported."""
    size = Size(4096, 30, 2)
    script = Script(P2P_BENCH)
    script.mail(0, WELCOME)
    script.depart(0, [Message(7 * MS, 11, 4000)] * WINDOW + [Message(0)] * WINDOW)
    script.mail(1, READY)
    script.mail(1, RESULT, 0, 0, WINDOW * 4096, 5, 9 * S, 77, 0)
    size.play(script)
    script.mail(1, END, 0)
    run = Run("p2p_bench", ["--serverip=x", "--sizes=4096", f"--warmup={WARMUP}", f"--window={WINDOW}",
                            "--iterations=30", "--seconds=600", "--json"], client=script)
    row = json.loads(run.stdout)["results"][0]
    assert row.pop("verified") is True and run.status == 0
    row_true({**row, "verified": False}, size)


def case_p2p_what_is_verified():
    """The first window of each size, or all of every phase, or nothing."""
    for flags, checks in ((["--verify"], [1, 1, 1, 1]), ([], [1, 0, 0, 0]), (["--verify=false"], [0, 0, 0])):
        size = Size(4096, 30, 2)
        script = Script(P2P_BENCH)
        script.mail(0, WELCOME)
        if checks[0]:
            script.depart(0, [Message(MS)] * WINDOW + [Message(0)] * WINDOW)
            script.mail(1, READY)
            script.mail(1, RESULT, 0, 0, WINDOW * 4096, 5, 9 * S, 77, 0)
        size.play(script)
        script.mail(1, END, 0)
        run = Run("p2p_bench", ["--serverip=x", "--sizes=4096", f"--warmup={WARMUP}", f"--window={WINDOW}",
                                "--iterations=30", "--seconds=600", "--json"] + flags, client=script)
        phases = run.told("client", PHASE)
        assert [phase[6] for phase in phases] == checks, phases
        assert phases[-3][4] == WARMUP and phases[-1][4] == 30, phases


def case_p2p_server_fails():
    """Wrong data that the client alone has seen: the server says so, ends with 1, and --local with it."""
    server = Script(P2P_BENCH)
    server.mail(0, HELLO, 77, 1 << 20, 0, SEND)
    server.mail(1, JOIN, 77, 1)
    server.mail(1, END, 2)
    run = Run("p2p_bench", ["--server"], server=server)
    assert run.status == 1 and "[Server] FAILED: 2 messages with wrong data on both sides\n" in run.stderr
    size = Size(8000, 20, 5)
    run = Run("p2p_bench", ["--local", "--sizes=8000", "--iterations=20", f"--warmup={WARMUP}", f"--window={WINDOW}",
                            "--seconds=600", "--verify=false", "--json"], client=client_script([size]), server=server)
    assert run.status == 1 and "error: the server process ended with status 1" in run.stderr
    row_true(json.loads(run.stdout)["results"][0], size)


def case_p2p_keeps_nothing():
    """What a server has allocated in the end does not grow with the phases that it has served."""
    in_use = set()
    for phases in (2, 9):
        script = Script(P2P_BENCH)
        script.mail(0, HELLO, 77, 1 << 20, 0, READ)
        script.mail(1, JOIN, 77, 1)
        for _ in range(3):
            script.mail(1, READY)
        for phase in range(1, phases + 1):
            script.mail(1, PHASE, STREAM, phase, 300, 4, 4, 0, 1, 0, READ, 1)
            script.mail(1, READY, 4)
            freed = 4 * (phase - 1)  # it has told so often that a buffer is free
            script.lines += [f"told 0 {MS} {freed - 1} 0 0 0 0 {(phase << 40) + i}" for i in range(4)]
        script.mail(1, END, 0)
        run = Run("p2p_bench", ["--server"], env={"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}, server=script)
        assert run.status == 0 and len(run.told("server", RESULT)) == phases, run.said
        in_use.update(run.told("server", IN_USE))
    assert len(in_use) == 1, in_use


def case_p2p_plot():
    """gnuplot is played: which columns does it draw against which axis, under which title, and are they true?"""
    sizes = [Size(1000, 100, 3), Size(65536, 100, 7), Size(3 << 20, 100, 20)]
    with tempfile.TemporaryDirectory() as folder:
        gnuplot, svg, kept = (os.path.join(folder, name) for name in ("gnuplot", "plot.svg", "kept"))
        with open(gnuplot, "w") as f:
            f.write("#!/bin/bash\ncat >\"$KEPT\"\n"
                    "printf '<svg>\\n</svg>\\n' >\"$(sed -n \"s/^set output '\\(.*\\)'$/\\1/p\" \"$KEPT\")\"\n")
        os.chmod(gnuplot, 0o755)
        run = sweep(sizes, "--iterations=100", f"--plot={svg}",
                    env={"PATH": folder + ":" + os.environ["PATH"], "KEPT": kept})
        assert run.status == 0 and os.path.exists(svg)
        with open(kept) as f:
            script = f.read()
    print(script)
    block = re.search(r"\$rows << (\w+)\n(.*?)\n\1\n", script, re.S).group(2).splitlines()
    rows = [re.fullmatch(r'(\d+) "([^"]*)" (\S+) (\S+) (\S+)', line).groups() for line in block]
    drawn = {}
    for using, how in re.findall(r"\$rows using (\S+) ([^,\n]*)", script):
        drawn[re.search(r"title '([^']*)'", how).group(1)] = (using.split(":"), "x1y2" in how)
    assert "ylabel 'throughput (GB/s)'" in script and "y2label 'half round trip (us)'" in script
    for title, name, second in (("throughput", "gbytes_per_s", False), ("p50", "lat_us_p50", True),
                                ("p99", "lat_us_p99", True)):
        columns, on_second = drawn.pop(title)
        assert on_second == second, title
        assert len(rows) == len(sizes)
        for row, size in zip(rows, sizes):
            assert int(row[int(columns[0]) - 1]) == size.size
            value, truth = Fraction(row[int(columns[1]) - 1]), size.truth()[name]
            assert abs(value - truth) <= truth / 10 ** 5, f"{title} of {size.size}: {float(value)} for {float(truth)}"
            if len(columns) > 2:
                assert row[int(re.fullmatch(r"xtic\((\d)\)", columns[2]).group(1)) - 1] == size_text(size.size)
    assert not drawn, drawn


CASES = {name[5:]: case for name, case in sorted(globals().items()) if name.startswith("case_")}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(CASES))
        sys.exit()
    BUILD = sys.argv[1]
    for chosen in sys.argv[2:]:
        CASES[chosen]()
