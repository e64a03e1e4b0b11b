#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL send/recv between two GPUs of this machine, through PyTorch, as a peer of p2p_bench.

Two processes, one GPU each, or one for both. Per size: half round trips, one message at a time, each waited for by the host;
then throughput, as messages that follow each other on a stream, and as groups of messages, of which the better
counts. Contents of one message are compared first. Prints one JSON object. Which transport NCCL takes is up to
its environment variables, which the caller sets.
"""
import argparse
import json
import os
import socket
import statistics
import time

SIZES = "256,4096,65536,262144,1048576,4194304,16777216,67108864"
GROUP_BYTES = 8 << 20  # messages of a group, about what p2p_bench has outstanding
GROUP_MAX = 64


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def one_way(dist, rank, buffers):
    """One message, or a group of them, from rank 0 to rank 1, queued."""
    if len(buffers) == 1:
        if rank == 0:
            dist.send(buffers[0], 1)
        else:
            dist.recv(buffers[0], 0)
        return
    operation = dist.isend if rank == 0 else dist.irecv
    for request in dist.batch_isend_irecv([dist.P2POp(operation, b, 1 - rank) for b in buffers]):
        request.wait()


def throughput(torch, dist, rank, size, group, seconds):
    """Bytes per second; None: the number of rounds is agreed by a first, short run."""
    buffers = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(group)]
    rounds = 4
    while True:
        dist.barrier()
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(rounds):
            one_way(dist, rank, buffers)
        torch.cuda.synchronize()
        elapsed = torch.tensor([time.monotonic() - start], device="cuda")
        dist.broadcast(elapsed, 0)  # both go by rank 0's clock, so that both do the same rounds
        elapsed = elapsed.item()
        if elapsed >= seconds or rounds >= 1 << 20:
            return rounds * group * size / elapsed
        rounds = max(rounds * 2, int(rounds * seconds / max(elapsed, 1e-6) * 1.1) + 1)


def half_round_trip_us(torch, dist, rank, size, seconds):
    buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
    samples, warmup, until = [], 5, None
    while True:
        start = time.monotonic()
        if rank == 0:
            dist.send(buffer, 1)
            dist.recv(buffer, 1)
        else:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)
        torch.cuda.synchronize()
        now = time.monotonic()
        if warmup > 0:
            warmup -= 1
            until = now + seconds
        else:
            samples.append((now - start) / 2)
        # every 16 round trips both agree whether to go on
        if len(samples) % 16 == 0 and samples:
            go_on = torch.tensor([int(now < until)], device="cuda")
            dist.broadcast(go_on, 0)
            if not go_on.item():
                return statistics.median(samples) * 1e6


def contents_arrive(torch, dist, rank, size):
    expected = (torch.arange(size, device="cuda") % 251).to(torch.uint8)
    buffer = expected.clone() if rank == 0 else torch.zeros(size, dtype=torch.uint8, device="cuda")
    one_way(dist, rank, [buffer])
    torch.cuda.synchronize()
    return bool(torch.equal(buffer, expected))


def run(rank, arguments, port):
    import torch
    import torch.distributed as dist

    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    if len(set(arguments.gpus)) == 1:
        os.environ["NCCL_HOSTID"] = f"host{rank}"  # NCCL takes two ranks of one GPU only from two hosts
    torch.cuda.set_device(arguments.gpus[rank])
    dist.init_process_group("nccl", rank=rank, world_size=2)
    results = []
    for size in arguments.sizes:
        verified = contents_arrive(torch, dist, rank, size)
        group = max(1, min(GROUP_MAX, GROUP_BYTES // size))
        latency = half_round_trip_us(torch, dist, rank, size, arguments.seconds / 4)
        rates = [throughput(torch, dist, rank, size, count, arguments.seconds) for count in sorted({1, group})]
        results.append({"size_bytes": size, "gbytes_per_s": max(rates) / 1e9, "lat_us_p50": latency})
        if not verified:
            raise SystemExit(f"rank {rank}: wrong data at {size} bytes")
    if rank == 0:
        version = ".".join(str(part) for part in torch.cuda.nccl.version())
        report = {"tool": "nccl", "version": version, "torch": torch.__version__, "results": results}
        with open(arguments.output, "w", encoding="ascii") as file:
            json.dump(report, file)
    dist.destroy_process_group()


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=numbers, default=numbers(SIZES), help="bytes, comma-separated")
    parser.add_argument("--seconds", type=float, default=0.3, help="of throughput per size")
    parser.add_argument("--gpus", type=numbers, default=[0, 1], help="of the sender and the receiver")
    parser.add_argument("--output", default="/dev/stdout", help="where the JSON goes")
    arguments = parser.parse_args()
    import torch.multiprocessing

    torch.multiprocessing.spawn(run, args=(arguments, free_port()), nprocs=2)


if __name__ == "__main__":
    main()
