#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The library and its tools over stand-ins for CUDA's driver and the HIP runtime (fake_gpu.h): the real code of
# every kind of memory, on memory that faults when the CPU touches it, with failures of the runtime.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 41 37

GPU_MESSAGES=$BUILD/tests/mem/gpu_messages
UCCL_INFO=$BUILD/bench/uccl_info
export UCCL_SOCKET_IFNAME=lo FAKE_GPU_DEVICES=3

# stand_in NAME LIBRARY: a folder that has it under its own name alone
stand_in() {
    mkdir -p "$WORK/$1"
    ln -s "$BUILD/tests/mem/libfake-$1.so" "$WORK/$1/$2"
}
stand_in cuda libcuda.so.1
stand_in cuda-old libcuda.so.1
stand_in hip5 libamdhip64.so.5
stand_in hip6 libamdhip64.so.6
ln -s "$BUILD/tests/mem/libfake-hip6.so" "$WORK/hip6/libhsa-runtime64.so.1"

# with NAME COMMAND...: one that finds the stand-in
with() {
    local library=$1
    shift
    env LD_LIBRARY_PATH="$WORK/$library" "$@"
}

# ends_with STATUS(|STATUS) SECONDS PATTERN COMMAND...
ends_with() {
    local status=$1 limit=$2 pattern=$3
    shift 3
    start ended "$@"
    ended "$PID" "$limit" || return 1
    [[ "$STATUS" =~ ^($status)$ ]] || { echo "status $STATUS" && return 1; }
    said ended "$pattern"
}

# ---- the stand-ins themselves ---------------------------------------------------------------

check "the CPU faults on the stand-in's memory" ends_with '139|134' 10 '' with cuda "$GPU_MESSAGES" cuda 0 1 touch

# ---- messages -------------------------------------------------------------------------------

check "CUDA" with cuda timeout 200 "$GPU_MESSAGES" cuda 0 1 2
check "ROCm 5" with hip5 timeout 200 "$GPU_MESSAGES" hip 0 1 2
check "ROCm 6" with hip6 timeout 200 "$GPU_MESSAGES" hip 1 0 2
if [ "$SHORT" = 0 ]; then
    check "CUDA, copies end at once" with cuda env FAKE_GPU_LATE=0 timeout 200 "$GPU_MESSAGES" cuda 0 1 2
    check "CUDA, copies end late" with cuda env FAKE_GPU_LATE=20 timeout 200 "$GPU_MESSAGES" cuda 0 1 2
    check "CUDA, io_uring" with cuda env UCCL_UDP_IO=uring timeout 200 "$GPU_MESSAGES" cuda 0 1 2
    check "CUDA, three engine threads" with cuda env UCCL_NUM_ENGINES=3 timeout 200 "$GPU_MESSAGES" cuda 1 0 2
fi
check "CUDA, one GPU for both" with cuda timeout 200 "$GPU_MESSAGES" cuda 0 0 2

# ---- dma-bufs -------------------------------------------------------------------------------

# exports PATTERN STAND-IN KIND OUTCOME [VARIABLE=VALUE...]
exports() {
    local pattern=$1 library=$2 kind=$3 outcome=$4
    shift 4
    ends_with 0 10 "$pattern" with "$library" env "$@" "$BUILD/tests/mem/gpu_export" "$kind" "$outcome"
}
check "dma-buf: CUDA" exports 'exported 3145728 bytes, at 0 ' cuda cuda exported
check "dma-buf: CUDA refuses" exports 'refused: the driver exports no dma-buf: .*801' cuda cuda refused \
    FAKE_GPU_FAIL=cuMemGetHandleForAddressRange:801:1
check "dma-buf: ROCm" exports 'exported .* at 4096 ' hip6 hip exported
check "dma-buf: ROCm refuses" exports 'refused: the runtime exports no dma-buf: status 0x1001' hip6 hip refused \
    FAKE_GPU_FAIL=hsa_amd_portable_export_dmabuf:4097:1
check "managed memory: CUDA" exports 'exported' cuda cuda exported FAKE_GPU_MANAGED=1
check "managed memory: ROCm" exports 'exported' hip6 hip exported FAKE_GPU_MANAGED=1
check "dma-buf: ROCm 5.0" exports 'refused: .*ROCm 5.6' hip5 hip refused

# ---- tools ----------------------------------------------------------------------------------

export LD_LIBRARY_PATH=$WORK/cuda
tools() {
    SERVER_FLAGS=("$1")
    shift
    pair 127.0.0.1 "$@" --perftype=basic
}
check "transport_test, both sides on GPUs" tools --gpu=1 --gpu=0 --iterations=100 --msize=300001
check "transport_test, GPU to host" tools --gpu=cpu --gpu=cuda:0 --iterations=100 --bi
check "transport_test, host to GPU, flushed" tools --gpu=cuda:2 --iterations=100 --nflow=3 --flush --msize=5000
SERVER_FLAGS=()
check "p2p_bench, every message" timeout 60 "$P2P_BENCH" --local --verify --bi --seconds=0.2 --sizes=256,64K,1M \
    --sender-device=cuda:0 --receiver-device=cuda:1
# report CLIENT SERVER FLAG...: it says so
report() {
    timeout 60 "$P2P_BENCH" --local --json --seconds=0.1 --sizes=64K "${@:3}" >"$WORK/report.json" &&
        python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))
assert [r["sender_device"], r["receiver_device"]] == sys.argv[2:] and r["results"][0]["verified"], r' "$WORK/report.json" "$1" "$2"
}
reports() {
    report cuda:1 cuda:1 --device=cuda:1 --pinned && report cuda:0 cuda:1 --receiver-device=cuda:1 --sender-device=cuda:0
}
check "p2p_bench says where messages lie" reports
check "no such GPU here" ends_with 1 10 'no GPU cuda:7, only 3' "$P2P_BENCH" --local --sizes=64K --device=cuda:7
check "no such GPU at the server" ends_with 1 10 'refuses.*no such GPU' \
    "$P2P_BENCH" --local --sizes=64K --receiver-device=cuda:7

# ---- what uccl_info says --------------------------------------------------------------------

# info PATTERN [VARIABLE=VALUE...]: it ends well, and says so
info() {
    local pattern=$1
    shift
    ends_with 0 20 "$pattern" env "$@" "$UCCL_INFO"
}
check "uccl_info: GPUs" info 'cuda:2: Fake GPU 2, PCI 0000:24:00.0'
check "uccl_info: ROCm" info 'hip:0: Fake GPU 0' LD_LIBRARY_PATH="$WORK/hip5"
check "uccl_info: no GPU" info 'GPUs: none' FAKE_GPU_DEVICES=0
check "uccl_info: no driver" info 'cuda: .*libcuda.so.1' LD_LIBRARY_PATH=
check "uccl_info: a driver that does not start" info 'cuda: .*12.4.*driver mismatch' FAKE_GPU_FAIL=cuInit:803:1
check "uccl_info: a driver without a function that is needed" \
    info 'cuda: .*too old.*cuThreadExchangeStreamCaptureMode' LD_LIBRARY_PATH="$WORK/cuda-old"
check "host memory is as well off with a driver that does not start" \
    env FAKE_GPU_FAIL='*:803:1' timeout 60 "$P2P_BENCH" --local --sizes=64K,1M --seconds=0.1

# switch BUS NIC: a switch of two GPUs at `BUS` + 4 and + 5, and an interface at + 6
eight_gpus() {
    python3 - >"$WORK/machine.xml" <<'EOF'
def bridge(kind, depth, pci, inner):
    busid = f' pci_busid="{pci[0]}" pci_type="0604 [1000:c030] [0000:0000] b0" pci_link_speed="0"' if pci[0] else ""
    return (f'<object type="Bridge" gp_index="{next_id()}" bridge_type="{kind}" depth="{depth}" '
            f'bridge_pci="0000:[{pci[1]:02x}-{pci[2]:02x}]"{busid}>{inner}</object>')

def next_id(counter=[0]):
    counter[0] += 1
    return counter[0]

def device(bus, pci_class, inner=""):
    return (f'<object type="PCIDev" gp_index="{next_id()}" pci_busid="0000:{bus:02x}:00.0" '
            f'pci_type="{pci_class} [10de:2330] [0000:0000] a1" pci_link_speed="0">{inner}</object>')

def switch(base, interface):
    nic = f'<object type="OSDev" gp_index="{next_id()}" name="{interface}" osdev_type="2"/>'
    leaves = [device(base + 4, "0302"), device(base + 5, "0302"), device(base + 6, "0200", nic)]
    ports = "".join(bridge("1-1", 3, (f"0000:{base + 2:02x}:{i:02x}.0", base + 4 + i, base + 4 + i), leaf)
                    for i, leaf in enumerate(leaves))
    up = bridge("1-1", 2, (f"0000:{base + 1:02x}:00.0", base + 2, base + 0x1f), ports)
    root = bridge("1-1", 1, (f"0000:{base:02x}:01.0", base + 1, base + 0x1f), up)
    return bridge("0-1", 0, (None, base, base + 0x1f), root)

def normal(kind, index, bits, inner, more=""):
    sets = " ".join(f'{name}="0x{bits:x}"' for name in ("cpuset", "complete_cpuset", "nodeset", "complete_nodeset"))
    return f'<object type="{kind}" os_index="{index}" {sets} gp_index="{next_id()}"{more}>{inner}</object>'

names = ["lo", "other0", "other1", "other2"]
sockets = "".join(normal("Package", s, 1 << s, normal("NUMANode", s, 1 << s, "", ' local_memory="1"') +
                         normal("PU", s, 1 << s, "") + "".join(switch((2 * s + i) * 0x20, names[2 * s + i]) for i in (0, 1)))
                  for s in (0, 1))
text = ('<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">' +
        normal("Machine", 0, 3, sockets, ' allowed_cpuset="0x3" allowed_nodeset="0x3"') + "</topology>")
print(text.replace("><", ">\n<")) # hwloc without its plugins reads such lines alone
EOF
    env HWLOC_XMLFILE="$WORK/machine.xml" FAKE_GPU_DEVICES=8 "$UCCL_INFO" --topology >"$WORK/topology.log" || return 1
    said topology '^cuda:0 +0 +PIX +lo$' && said topology '^cuda:1 +0 +PIX +lo$' &&
        said topology '^cuda:3 +0 +NODE +lo$' && said topology '^cuda:7 +1 +SYS +lo$'
}
check "uccl_info --topology, eight GPUs" eight_gpus
flat() {
    env HWLOC_SYNTHETIC='pu:2' "$UCCL_INFO" --topology >"$WORK/flat.log" || return 1
    said flat '^cuda:0 +\? +unknown +unknown$'
}
check "uccl_info --topology, a machine that shows no devices" flat

# ---- failures -------------------------------------------------------------------------------

# what the other side makes of it is up to the order of things; that it ends is not
export UCCL_DEAD_PEER_MS=2000

# fails PATTERN FAILURE: transport_test between GPUs ends in an error that says so, not by a signal, soon
fails() {
    local pattern=$1
    CLIENT_ENV=(FAKE_GPU_FAIL="$2")
    SERVER_FLAGS=(--gpu=1)
    start_pair 127.0.0.1 --gpu=0 --iterations=100000 --perftype=tpt || return 1
    ended "$CLIENT_PID" 40 || return 1
    [ "$STATUS" = 1 ] || { echo "client: status $STATUS" && return 1; }
    ended "$SERVER_PID" 40 || return 1
    [ "$STATUS" = 1 ] || { echo "server: status $STATUS" && return 1; }
    CLIENT_ENV=() SERVER_FLAGS=()
    said client "$pattern"
}
check "the driver is not what it seems: attributes fail" fails 'not supported' cuPointerGetAttributes:1:1
check "no page-locked memory to be had" fails 'UCCL_(ENOMEM|EIO)' cuMemHostRegister_v2:2:1
check "no stream to be had" fails 'UCCL_(ENOMEM|EIO|ENOTSUP)' cuStreamCreate:2:1
check "copies are refused" fails 'UCCL_EIO' cuMemcpyDtoHAsync_v2:1:1
check "copies are refused after some" fails 'CUDA device 0: cannot queue a copy' cuMemcpyDtoHAsync_v2:719:50
check "the device is lost in the middle" fails 'CUDA device 0: a copy failed' cuEventQuery:719:500

# ---- a bad network --------------------------------------------------------------------------

# relayed RELAY_FLAGS FLAG...: transport_test between GPUs, both directions, over a relay with these faults
relayed() {
    local flags relay result=0
    read -ra flags <<<"$1"
    shift
    start relay "$RELAY" "${flags[@]}" "$NS_A" "$NS_B"
    relay=$PID
    until_true 10 grep -q ready "$WORK/relay.log" || return 1
    pair 10.78.0.1 --perftype=basic --bi --gpu=0 "$@" || result=1
    kill -TERM "$relay"
    ended "$relay" 10 || result=1
    cat "$WORK/relay.log"
    return "$result"
}
unset UCCL_DEAD_PEER_MS
if [ -c /dev/net/tun ] && ip netns add "uccl-probe-$$" 2>/dev/null; then
    ip netns del "uccl-probe-$$"
    unset UCCL_SOCKET_IFNAME
    SERVER_FLAGS=(--gpu=1)
    two_namespaces tun 1500
    check "loss, 1 MiB" relayed '--loss 2' --msize=1M --nreq=4 --iterations=20
    check "loss, small messages" relayed '--loss 2' --msize=3000 --nreq=8 --iterations=200
    check "loss, duplicates and reordering" relayed '--loss 1 --dup 2 --jitter-us 300 --reorder 5' \
        --msize=300001 --nreq=4 --iterations=20
else
    skip "loss" "not allowed to make network namespaces, or no TUN devices" 3
fi
finish
