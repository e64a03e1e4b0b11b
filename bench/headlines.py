#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the short forms of the table in docs/performance.md, which bench/compare.sh has printed, or of what it prints.

    bench/headlines.py --picture docs/performance.md >docs/performance.svg
    bench/headlines.py --table docs/performance.md      # the rows of README.md
    bench/headlines.py --summary docs/performance.md    # UDP, TCP and the peers of TCP, side by side
"""
import math
import re
import sys

OURS = "p2p_bench"
TOOLS = {  # as the table calls them: (label, colour)
    OURS: ("libuccl-engine", "#c2410c"),
    "UCX over TCP": ("UCX over TCP", "#1d4ed8"),
    "OpenMPI over TCP": ("OpenMPI over TCP", "#15803d"),
    "libfabric udp;ofi_rxd": ("libfabric over UDP", "#7c3aed"),
    "iperf3 (TCP stream)": ("iperf3, one TCP stream", "#64748b"),
    "raw UDP ceiling": ("UDP without a protocol", "#94a3b8"),
}
NETWORKS = {"loopback": "loopback", "lossy": "MTU 1500, 1% of packets lost"}  # of the picture
ROWS = [  # of README.md: what, network, message, column
    ("messages of 256 B", "loopback", "256 B", "rate"),
    ("half a round trip of 8 B, spinning", "loopback", "8 B half round trip, spinning", "median"),
    ("messages of 4 KiB", "loopback", "4 KiB", "median"),
    ("messages of 1 MiB", "loopback", "1 MiB", "median"),
    ("1 MiB, packets of 1500 bytes", "segmented", "1 MiB", "median"),
    ("1 MiB, 1% of packets lost", "lossy", "1 MiB", "median"),
]
PEERS = [OURS, "UCX over TCP", "OpenMPI over TCP", "libfabric udp;ofi_rxd"]
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


LABELS = {"veth, offloads on": "veth", "segmented": "MTU 1500 segmented", "veth, MTU 9000 segmented": "MTU 9000 segmented",
          "lossy": "MTU 1500, 1% lost"}


def network_of(text):
    return "lossy" if "1%" in text else "segmented" if re.search("MTU 1500 .*segmented", text) else text


def read_table(text):
    """{(network, message, tool): {"median": ..., "rate": ...}}"""
    rows = {}
    section = text.split("\n## The table\n")[-1].split("\n## ")[0]
    for line in section.split("\n"):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) >= 7 and cells[3].endswith((" GB/s", " us")):
            rows[network_of(cells[0]), cells[1], cells[2]] = {"median": cells[3], "rate": cells[5] + " M/s", "ratios": cells[6]}
    if not rows:
        sys.exit("headlines.py: no table")
    return rows, re.search(r"Machine: (.*?)\. (\d{4}-\d\d-\d\d)", " ".join(section.split()))


def print_table(rows):
    print("| | " + " | ".join(TOOLS[tool][0] for tool in PEERS) + " |")
    print("|---|" + "---:|" * len(PEERS))
    for what, network, message, column in ROWS:
        print(f"| {what} | " + " | ".join(rows[network, message, tool][column] for tool in PEERS) + " |")


def print_summary(rows):
    print("| network | message | UDP | TCP | `auto` | / better | raw TCP | TCP / raw | UCX | TCP / UCX | one buffer | / UCX |")
    print("|---|---|" + "---:|" * 10)
    for network, message in dict.fromkeys(key[:2] for key in rows):
        less_is_better = "round trip" in message

        def value(tool):
            row = rows.get((network, message, tool))
            return row and float(row["median"].split()[0])

        def shown(rate):
            return "-" if not rate else f"{rate:.1f} us" if less_is_better else f"{rate:.3f}" if rate < 0.1 else f"{rate:.2f}"

        def ratio(a, b):
            if not a or not b:
                return "-"
            times = b / a if less_is_better else a / b
            return f"{times:.1f}x" if times >= 10 else f"{times:.2f}x"

        udp, tcp, one, raw, ucx = map(value, ("p2p_bench, UDP", "p2p_bench, TCP", "p2p_bench, TCP, one buffer", "raw TCP ceiling",
                                              "UCX over TCP"))
        better = re.match(r"[\d.]+x", rows[network, message, OURS]["ratios"])
        print("| " + " | ".join([
            LABELS.get(network, network), message.replace("half round trip, ", ""), shown(udp), shown(tcp),
            shown(value(OURS)), better[0] if better else "-", shown(raw), ratio(tcp, raw), shown(ucx), ratio(tcp, ucx),
            shown(one), ratio(one, ucx)]) + " |")


# ---- the picture ----------------------------------------------------------------------------------------

WIDTH, HEIGHT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 900, 400, 50, 345, 255
SIZES = [256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 100 << 20]
LEAST, MOST = 0.03, 16  # GB/s


def size_text(size):
    unit = "MiB" if size >= 1 << 20 else "KiB" if size >= 1 << 10 else "B"
    return f"{size // UNITS[unit]} {unit}"


def curve(rows, network, tool):
    points = []
    for size in SIZES:
        row = rows.get((network, size_text(size), tool))
        if row and row["median"].endswith(" GB/s"):
            points.append((size, float(row["median"].split()[0])))
    return points


def print_picture(rows, machine):
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="sans-serif" font-size="12">', f"<title>Throughput over message size. {machine[1]}, {machine[2]}</title>",
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for panel, (network, title) in enumerate(NETWORKS.items()):
        left = 60 + panel * (PLOT_WIDTH + 75)
        span = math.log(SIZES[-1] / SIZES[0])

        def x_of(size):
            return left + PLOT_WIDTH * math.log(size / SIZES[0]) / span

        def y_of(rate):
            return TOP + PLOT_HEIGHT * (1 - math.log(rate / LEAST) / math.log(MOST / LEAST))

        out.append(f'<text x="{left}" y="{TOP - 14}" font-size="14" font-weight="bold">GB/s, {title}</text>')
        for rate in (0.03, 0.1, 0.3, 1, 3, 10):
            out.append(f'<path d="M{left} {y_of(rate):.1f}h{PLOT_WIDTH}" stroke="#e2e8f0"/>'
                       f'<text x="{left - 6}" y="{y_of(rate) + 4:.1f}" text-anchor="end">{rate:g}</text>')
        for size in SIZES:
            out.append(f'<text x="{x_of(size):.1f}" y="{TOP + PLOT_HEIGHT + 18}" text-anchor="middle">{size_text(size)}</text>')
        for tool, (_, colour) in reversed(TOOLS.items()):
            points = curve(rows, network, tool)
            width = 3 if tool == OURS else 1.5
            if len(points) > 1:
                line = " ".join(f"{x_of(size):.1f},{y_of(rate):.1f}" for size, rate in points)
                out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
            out += [f'<circle cx="{x_of(size):.1f}" cy="{y_of(rate):.1f}" r="{width + 1}" fill="{colour}"/>' for size, rate in points]
    for i, (label, colour) in enumerate(TOOLS.values()):
        x, y = 60 + 260 * (i % 3), TOP + PLOT_HEIGHT + 44 + 20 * (i // 3)
        out.append(f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="3"/><text x="{x + 25}" y="{y}">{label}</text>')
    out.append(f'<text x="60" y="{HEIGHT - 10}" fill="#475569">{machine[1]}, {machine[2]}. Medians of 5 rounds; more is better.</text>')
    print("\n".join([*out, "</svg>"]))


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("--table", "--picture", "--summary"):
        sys.exit(__doc__)
    with open(sys.argv[2]) as file:
        rows, machine = read_table(file.read())
    if sys.argv[1] == "--table":
        print_table(rows)
    elif sys.argv[1] == "--summary":
        print_summary(rows)
    else:
        print_picture(rows, machine)


main()
