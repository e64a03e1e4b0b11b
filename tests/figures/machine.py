#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What uccl_info shows of a machine that is made up, where all is known.

usage: machine.py BUILD_DIRECTORY     (in mount and network namespaces of its own)

Interfaces are veth devices; speeds and NUMA nodes are files on a file system that covers /sys/class/net; GPUs
are those of the stand-in for CUDA (tests/mem); the PCI tree is told to hwloc as XML, and distances follow from the
same tree by the definitions of include/uccl/engine.h. Verbs ports are told to uccl_info by ports.c.
"""
import ctypes.util
import json
import os
import re
import subprocess
import sys
import tempfile

BUILD = os.path.abspath(sys.argv[1])
UNKNOWN = None

# interface: (speed as /sys has it, Mbit/s), (NUMA node as /sys has it, node), MTU
INTERFACES = {
    "pix0": (("200000\n", 200000), ("0\n", 0), 9000),
    "pix1": (("400000\n", 400000), ("0\n", 0), 4200),
    "pxb0": (("1000\n", 1000), ("0\n", 0), 1500),
    "slot0": (("-1\n", UNKNOWN), ("1\n", 1), 1400),
    "node0": (("4294967295\n", UNKNOWN), ("-1\n", UNKNOWN), 2000),
    "far0": (("200000\n", 200000), (None, UNKNOWN), 3000),
    "slow0": (("10\n", 10), ("\n", UNKNOWN), 1501),
    "none0": ((None, UNKNOWN), (None, UNKNOWN), 1502),
}
PAIRS = [("pix0", "pix1"), ("pxb0", "slot0"), ("node0", "far0"), ("slow0", "none0")]

# a node: (kind, name or index, inner); the stand-in's GPU i has bus i / 2 * 32 + 4 + i % 2
TREE = ("machine", 0, [
    ("socket", 0, [
        ("host bridge", 0, [
            ("switch", 0, [("gpu", 0, []), ("gpu", 1, []), ("nic", "pix0", []), ("nic", "pix1", []),
                           ("switch", 1, [("nic", "pxb0", []), ("gpu", 2, [])])]),
            ("nic", "slot0", []),
        ]),
        ("host bridge", 1, [("nic", "node0", []), ("gpu", 3, [])]),
    ]),
    ("socket", 1, [
        ("host bridge", 2, [("nic", "far0", []), ("gpu", 4, [])]),
        ("host bridge", 3, [("nic", "slow0", []), ("gpu", 5, [])]),
    ]),
])
GPUS = 7  # one more than the tree has
# nearest of those that are at least half as fast as the fastest; GPUs 0 and 1 share two that are as near
NEAREST = [{"pix0", "pix1"}] * 4 + [{"far0"}, {"far0"}, {None}]


def paths(node, above=()):
    """(kind, name) of each leaf: the nodes above it."""
    kind, name, inner = node
    if kind in ("gpu", "nic"):
        return {(kind, name): above}
    found = {}
    for child in inner:
        found.update(paths(child, above + ((kind, name),)))
    return found


PATHS = paths(TREE)


def distance(gpu, nic):
    if ("gpu", gpu) not in PATHS or ("nic", nic) not in PATHS:
        return "unknown"
    a, b = PATHS["gpu", gpu], PATHS["nic", nic]
    common = [x for x, y in zip(a, b) if x == y]
    where = common[-1][0]
    if where == "switch":
        return "PIX" if len(a) == len(b) == len(common) else "PXB"
    return {"host bridge": "PHB", "socket": "NODE", "machine": "SYS"}[where]


def gpu_node(gpu):
    return PATHS["gpu", gpu][1][1] if ("gpu", gpu) in PATHS else UNKNOWN


# ---- the machine for hwloc -------------------------------------------------------------------------------------

class Xml:
    def __init__(self):
        self.ids, self.busses = 0, 0x80

    def number(self):
        self.ids += 1
        return self.ids

    def bus(self):
        self.busses += 1
        return self.busses

    def bridge(self, inner):
        return (f'<object type="Bridge" gp_index="{self.number()}" bridge_type="1-1" depth="1" '
                f'bridge_pci="0000:[00-ff]" pci_busid="0000:{self.bus():02x}:00.0" '
                f'pci_type="0604 [1000:c030] [0000:0000] b0" pci_link_speed="0">{inner}</object>')

    def device(self, bus, kind, inner=""):
        return (f'<object type="PCIDev" gp_index="{self.number()}" pci_busid="0000:{bus:02x}:00.0" '
                f'pci_type="{kind} [10de:2330] [0000:0000] a1" pci_link_speed="0">{inner}</object>')

    def normal(self, kind, index, bits, inner, more=""):
        names = ("cpuset", "complete_cpuset", "nodeset", "complete_nodeset")
        sets = " ".join(f'{name}="0x{bits:x}"' for name in names)
        return f'<object type="{kind}" os_index="{index}" {sets} gp_index="{self.number()}"{more}>{inner}</object>'

    def make(self, node):
        kind, name, inner = node
        made = [self.make(child) for child in inner]
        if kind == "gpu":
            return self.device(name // 2 * 32 + 4 + name % 2, "0302")
        if kind == "nic":
            interface = f'<object type="OSDev" gp_index="{self.number()}" name="{name}" osdev_type="2"/>'
            return self.device(self.bus(), "0200", interface)
        ports = "".join(map(self.bridge, made))  # root ports, or a switch's downstream ports
        if kind == "switch":
            return self.bridge(ports)
        if kind == "host bridge":
            return (f'<object type="Bridge" gp_index="{self.number()}" bridge_type="0-1" depth="0" '
                    f'bridge_pci="0000:[00-ff]">{ports}</object>')
        if kind == "socket":
            bits = 1 << name
            return self.normal("Package", name, bits, self.normal("NUMANode", name, bits, "", ' local_memory="1"') +
                               self.normal("PU", name, bits, "") + "".join(made))
        return self.normal("Machine", 0, 3, "".join(made), ' allowed_cpuset="0x3" allowed_nodeset="0x3"')


def write_xml(path):
    text = ('<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">' +
            Xml().make(TREE) + "</topology>")
    with open(path, "w") as f:
        f.write(text.replace("><", ">\n<"))  # hwloc without its plugins reads such lines alone


# ---- verbs ports -----------------------------------------------------------------------------------------------

PORT_FIELDS = ("device port active mtu lid speed_mbps numa_node ud uc rc max_message max_queue_pairs max_work_requests "
               "max_completions max_shared_receives clock_khz usable gid_index").split()
PORTS = [
    dict(zip(PORT_FIELDS, ("mlx5_0", 1, 1, 4096, 0, 400000, 3, 1, 1, 1, 1 << 30, 1001, 1002, 1003, 1004, 1000000, 1, 5))),
    dict(zip(PORT_FIELDS, ("mlx5_1", 2, 0, 1024, 17, 2500, -1, 1, 0, 1, 1 << 20, 11, 12, 13, 14, 156250, 0, 3))),
    dict(zip(PORT_FIELDS, ("rxe0", 1, 1, 512, 0, 0, 0, 1, 1, 0, 65536, 21, 22, 23, 24, 0, 1, -1))),
]


def check_ports_text(text):
    for port in PORTS:
        state = "active" if port["active"] else "not active"
        begin = f"  {port['device']} port {port['port']}: RoCE, {state}, MTU {port['mtu']}"
        if port["lid"]:
            begin += f", LID {port['lid']}"
        if port["speed_mbps"]:
            begin += ", " + {400000: "400", 2500: "2.5"}[port["speed_mbps"]] + " Gbit/s"
        if port["numa_node"] >= 0:
            begin += f", NUMA node {port['numa_node']}"
        kinds = "".join(" " + kind.upper() for kind in ("ud", "uc", "rc") if port[kind])
        lines = text.split(begin + "\n", 1)[1].split("\n")
        assert lines[0].strip() == (
            f"makes{kinds} queue pairs: {port['max_queue_pairs']} at most, of {port['max_work_requests']} work "
            f"requests; completion queues of {port['max_completions']}, shared receive queues of "
            f"{port['max_shared_receives']}, messages of {port['max_message']} bytes"), lines[0]
        clock = {1000000: "1000", 156250: "156.25"}.get(port["clock_khz"])
        assert lines[1].strip() == (f"completions are timed by the NIC, whose clock runs at {clock} MHz" if clock else
                                    "completions are timed by the engine: they bear no time stamps"), lines[1]
        for line, (index, address, kind) in zip(lines[2:4], ((3, "fe80::1", "RoCE v1"), (5, "192.0.2.7", "RoCE v2"))):
            chosen = "  <- chosen (the best)" if index == port["gid_index"] else ""
            assert line.strip() == f"GID {index}: {address}, {kind}{chosen}", line
        assert lines[4].strip().startswith("usable: data would go by UC" if port["usable"] else "not usable"), lines[4]


def check_ports_json(ports):
    assert len(ports) == len(PORTS)
    for got, port in zip(ports, PORTS):
        for name in PORT_FIELDS:
            truth = port[name] != 0 if name in ("active", "ud", "uc", "rc", "usable") else port[name]
            assert got[name] == truth, (name, got[name], truth)
        assert got["gids"] == [{"index": 3, "type": "RoCE v1", "address": "fe80::1"},
                               {"index": 5, "type": "RoCE v2", "address": "192.0.2.7"}], got


# ---- what is shown ---------------------------------------------------------------------------------------------

def speed_text(mbps):
    if mbps is UNKNOWN:
        return "speed unknown"
    return f"{mbps} Mbit/s" if mbps < 1000 else f"{mbps / 1000:g} Gbit/s"


def check_devices_text(text):
    for i, (name, ((_, mbps), (_, node), mtu)) in enumerate(INTERFACES.items()):
        line = re.search(rf"^  \d+: {name} \(udp\), (.*)$", text, re.M).group(1)
        expected = f"10.9.{i}.1, MTU {mtu}, {speed_text(mbps)}, 1 engine thread"
        assert line == expected + ("" if node is UNKNOWN else f", NUMA node {node}"), (line, expected)
    line = re.search(r"^  \d+: lo \(udp\), (.*)$", text, re.M).group(1)
    assert line == "127.0.0.1, MTU 65536, speed unknown, 1 engine thread, loopback", line


def check_matrix(text):
    block = text[text.index("\n" + " " * 10):].strip("\n").split("\n\n")[0].split("\n")
    columns = block[0].split()
    assert columns[0] == "NUMA" and columns[-1] == "nearest"
    names = columns[1:-1]
    assert sorted(names) == sorted(list(INTERFACES) + ["lo"]), names
    assert len(block) == 1 + GPUS
    taken = []
    for gpu, line in enumerate(block[1:]):
        words = line.split()
        assert words[0] == f"cuda:{gpu}"
        assert words[1] == ("?" if gpu_node(gpu) is UNKNOWN else str(gpu_node(gpu))), line
        for name, word in zip(names, words[2:-1]):
            assert word == distance(gpu, name), f"cuda:{gpu} to {name}: {word} is shown, {distance(gpu, name)} is true"
        assert (None if words[-1] == "unknown" else words[-1]) in NEAREST[gpu], line
        taken.append(words[-1])
    assert taken[0] != taken[1], "GPUs on one switch share its NICs"


def check_json(report):
    devices = {device["name"]: device for device in report["devices"]}
    assert sorted(devices) == sorted(list(INTERFACES) + ["lo"])
    for i, (name, ((_, mbps), (_, node), mtu)) in enumerate(INTERFACES.items()):
        device = devices[name]
        assert device["speed_mbps"] == (0 if mbps is UNKNOWN else mbps), device
        assert device["numa_node"] == (-1 if node is UNKNOWN else node), device
        assert device["mtu"] == mtu and device["address"] == f"10.9.{i}.1" and device["engines"] == 1, device
        assert device["loopback"] is False
    assert devices["lo"]["loopback"] is True and devices["lo"]["mtu"] == 65536
    assert len(report["gpus"]) == GPUS
    for i, gpu in enumerate(report["gpus"]):
        assert gpu["name"] == f"cuda:{i}" and gpu["pci"] == f"0000:{i // 2 * 32 + 4 + i % 2:02X}:00.0", gpu
        assert gpu["numa_node"] == (-1 if gpu_node(i) is UNKNOWN else gpu_node(i)), gpu
        for name in devices:
            assert gpu["distances"][name] == distance(i, name), (i, name, gpu["distances"][name], distance(i, name))
        assert gpu["nearest"] in NEAREST[i], gpu
    check_ports_json(report["verbs"]["ports"])
    usable = {name: runtime["usable"] for name, runtime in report["gpu_runtimes"].items()}
    assert usable == {"cuda": True, "hip": ctypes.util.find_library("amdhip64") is not None}, usable
    assert report["error"] is None


def check_uses(report):
    """Where the NIC that is nearest to a GPU is none of the two in use, another one is used."""
    used = {gpu["uses"] for gpu in report["gpus"][:2]}
    assert len(used) == 2, used
    for gpu in report["gpus"][4:6]:
        assert gpu["nearest"] == "far0" and gpu["uses"] in used, gpu


def check_counters(text, report):
    """Names and meanings as they are declared."""
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "engine", "defs", "counters.def")) as f:
        declared = re.findall(r'^COUNTER\((\w+), "(.*)"\)$', f.read(), re.M)
    assert len(declared) > 20
    assert [(row["name"], row["doc"]) for row in report["counters"]] == declared
    rows = [tuple(line.split(None, 1)) for line in text.splitlines()[1:]]
    assert rows == declared


# ---- making it -------------------------------------------------------------------------------------------------

def system(*words):
    subprocess.run(words, check=True)


def make_interfaces():
    system("ip", "link", "set", "lo", "up")
    for a, b in PAIRS:
        system("ip", "link", "add", a, "type", "veth", "peer", "name", b)
    for i, (name, (_, _, mtu)) in enumerate(INTERFACES.items()):
        system("ip", "link", "set", name, "mtu", str(mtu), "up")
        system("ip", "addr", "add", f"10.9.{i}.1/24", "dev", name)
    system("mount", "-t", "tmpfs", "none", "/sys/class/net")
    for name, ((speed, _), (node, _), _) in INTERFACES.items():
        os.makedirs(f"/sys/class/net/{name}/device")
        for file, text in (("speed", speed), ("device/numa_node", node)):
            if text is not None:
                with open(f"/sys/class/net/{name}/{file}", "w") as f:
                    f.write(text)


def main():
    make_interfaces()
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(BUILD, "tests", "mem", "libfake-cuda.so"), os.path.join(folder, "libcuda.so.1"))
        write_xml(os.path.join(folder, "machine.xml"))
        with open(os.path.join(folder, "ports"), "w") as f:
            for port in PORTS:
                f.write(" ".join(str(port[name]) for name in PORT_FIELDS) + "\n")
        env = {**os.environ, "LD_LIBRARY_PATH": folder, "HWLOC_XMLFILE": os.path.join(folder, "machine.xml"),
               "FAKE_GPU_DEVICES": str(GPUS), "PORTS": os.path.join(folder, "ports"), "UCCL_NUM_ENGINES": "1",
               "UCCL_BACKEND": "udp"}

        def info(flag, **settings):
            done = subprocess.run([os.path.join(BUILD, "tests", "played_uccl_info"), flag], env={**env, **settings},
                                  text=True, timeout=60, stdout=subprocess.PIPE)
            print(done.stdout)
            assert done.returncode == 0, done.returncode
            return done.stdout

        topology, report = info("--topology"), json.loads(info("--json"))
        for text in (info("--devices"), topology):
            check_devices_text(text)
            check_ports_text(text)
        check_matrix(topology)
        check_json(report)
        check_uses(json.loads(info("--json", UCCL_MAX_NICS="2")))
        check_counters(info("--counters"), report)


main()
