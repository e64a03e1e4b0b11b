#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One of two ranks that do what they are told: NCCL's operations through PyTorch, one GPU each.

Commands come as JSON, one a line, on standard input; each is answered by a line on standard output. Both ranks are given
the same commands. compare_nccl.py starts the ranks and sets the environment that NCCL reads. With --dry nothing of PyTorch
is used, and times are made up: it tries what drives the ranks on a machine without GPUs.
"""
import argparse
import hashlib
import json
import os
import sys
import time

RANKS = 2
WORD = 4  # bytes of an element, int32


class Operation:
    """One operation at one size: its buffers, one run, and how much of what came is wrong."""

    def __init__(self, torch, dist, rank, kind, size):
        self.torch, self.dist, self.rank, self.kind = torch, dist, rank, kind
        self.words = size // WORD
        self.share = self.words // RANKS
        self.source = self.pattern(rank, 0, self.share if kind == "all-gather" else self.words)
        self.target = self.source
        if kind in ("all-gather", "all-to-all"):
            self.target = torch.zeros(self.words, dtype=torch.int32, device="cuda")
        elif kind == "reduce-scatter":
            self.target = torch.zeros(self.share, dtype=torch.int32, device="cuda")

    def pattern(self, rank, seed, words):
        numbers = self.torch.arange(words, dtype=self.torch.int32, device="cuda")
        return numbers * 40503 + (rank * 1000003 + seed * 7919) & 0xFFFFFF

    def run(self):
        dist = self.dist
        if self.kind == "all-reduce":
            dist.all_reduce(self.target)
        elif self.kind == "all-gather":
            dist.all_gather_into_tensor(self.target, self.source)
        elif self.kind == "reduce-scatter":
            dist.reduce_scatter_tensor(self.target, self.source)
        elif self.kind == "all-to-all":
            dist.all_to_all_single(self.target, self.source)
        elif self.kind == "broadcast":
            dist.broadcast(self.target, 0)
        elif self.kind == "send-recv":
            # as a group: a lone send would make NCCL build a communicator of its own
            action = dist.isend if self.rank == 0 else dist.irecv
            for request in dist.batch_isend_irecv([dist.P2POp(action, self.target, 1 - self.rank)]):
                request.wait()
        else:
            raise ValueError(f"no such operation: {self.kind}")

    def expected(self, seed):
        torch, share = self.torch, self.share
        mine = slice(self.rank * share, (self.rank + 1) * share)
        if self.kind == "all-gather":
            return torch.cat([self.pattern(rank, seed, share) for rank in range(RANKS)])
        whole = [self.pattern(rank, seed, self.words) for rank in range(RANKS)]
        if self.kind == "all-reduce":
            return sum(whole)
        if self.kind == "reduce-scatter":
            return sum(whole)[mine]
        if self.kind == "all-to-all":
            return torch.cat([part[mine] for part in whole])
        return whole[0]

    def wrong(self, seed):
        """Elements that are not as they should be after one run with contents of `seed`."""
        self.source.copy_(self.pattern(self.rank, seed, self.source.numel()))
        if self.target is not self.source:
            self.target.fill_(-1)
        self.run()
        self.torch.cuda.synchronize()
        return int((self.target != self.expected(seed)).sum().item())

    def seconds(self, iterations, warmup):
        for _ in range(warmup):
            self.run()
        self.torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(iterations):
            self.run()
        self.torch.cuda.synchronize()
        return time.monotonic() - start


def train(torch, dist, rank, steps):
    """A short training in data parallel. Losses and a digest of the parameters in the end: with two ranks no order of
    additions matters, so they are equal bit for bit whatever carries them."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    width = 2048
    model = torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
                                torch.nn.Linear(width, 10)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(64, 256, generator=generator).cuda()
        classes = torch.randint(0, 10, (64,), generator=generator).cuda()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), classes)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()).hex())
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return {"losses": losses, "parameters": digest.hexdigest()}


class Rank:
    """What the commands do, on a GPU."""

    def __init__(self, arguments):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank, self.kept = torch, dist, arguments.rank, None
        torch.cuda.set_device(arguments.gpu)
        dist.init_process_group("nccl", init_method=f"file://{arguments.store}", rank=arguments.rank, world_size=RANKS)

    def operation(self, command):
        key = command["operation"], command["size"]
        if self.kept is None or self.kept[0] != key:
            self.kept = None
            self.torch.cuda.empty_cache()
            self.kept = key, Operation(self.torch, self.dist, self.rank, *key)
        return self.kept[1]

    def answer(self, command):
        if command["do"] == "check":
            return {"wrong": self.operation(command).wrong(command["seed"])}
        if command["do"] == "time":
            return {"seconds": self.operation(command).seconds(command["iterations"], command["warmup"])}
        if command["do"] == "train":
            return train(self.torch, self.dist, self.rank, command["steps"])
        return {"torch": self.torch.__version__, "nccl": ".".join(map(str, self.torch.cuda.nccl.version())),
                "gpu": self.torch.cuda.get_device_name()}

    def end(self):
        self.dist.destroy_process_group()


class DryRank:
    """The same answers, made up."""

    def __init__(self, arguments):
        self.slowness = 1.0 / max(1, int(os.environ.get("UCCL_NUM_ENGINES", "1")))

    def answer(self, command):
        if command["do"] == "check":
            return {"wrong": 0}
        if command["do"] == "time":
            return {"seconds": command["iterations"] * (30e-6 + command["size"] / 3e9 * self.slowness)}
        if command["do"] == "train":
            return {"losses": [(1.0 / (step + 1)).hex() for step in range(command["steps"])], "parameters": "dry"}
        return {"torch": "none", "nccl": "none", "gpu": "none"}

    def end(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--gpu", type=int, required=True)
    parser.add_argument("--store", required=True, help="file through which the ranks find each other")
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    # answers alone go to standard output, whatever libraries print there
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    rank = (DryRank if arguments.dry else Rank)(arguments)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "end":
            break
        print(json.dumps(rank.answer(command)), file=answers, flush=True)
    rank.end()
    print(json.dumps({"ended": True}), file=answers, flush=True)


if __name__ == "__main__":
    main()
