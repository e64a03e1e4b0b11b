#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two NIXL agents with the backend UCCL, each a process: a write, a read, and notifications. See docs/nixl.md.

usage: NIXL_PLUGIN_DIR=FOLDER nixl_pair.py [MIB]
"""
import multiprocessing
import sys
import time

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = int(sys.argv[1] if len(sys.argv) > 1 else 1) << 20
LIMIT_S = 20


def contents(seed):
    return (np.arange(SIZE, dtype=np.uint64) * 7 + seed).astype(np.uint8)


def open_agent(name, buffer):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCCL"]))
    registered = agent.register_memory([(buffer.ctypes.data, SIZE, 0, "")], "DRAM")
    return agent, registered


def next_notification(agent, peer):
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        messages = agent.get_new_notifs().get(peer, [])
        if messages:
            return messages[0].decode()
        time.sleep(0.001)
    sys.exit(f"no notification of the {peer} within {LIMIT_S} s")


def say(name, what, right=True):
    print(f"{name}: {what}", flush=True)
    if not right:
        sys.exit(1)


def target(pipe):
    buffer = np.zeros(SIZE, np.uint8)
    agent, registered = open_agent("target", buffer)
    pipe.send((agent.get_agent_metadata(), buffer.ctypes.data))
    agent.add_remote_agent(pipe.recv())
    say("target", f"notification '{next_notification(agent, 'initiator')}'")
    right = bool((buffer == contents(1)).all())
    say("target", f"{SIZE} bytes were written, right: {right}", right)
    buffer[:] = contents(2)
    pipe.send("to be read")
    say("target", f"notification '{next_notification(agent, 'initiator')}'")
    agent.send_notif("initiator", b"thank you")
    pipe.recv()
    agent.deregister_memory(registered)


def initiator(pipe):
    buffer = contents(1)
    agent, registered = open_agent("initiator", buffer)
    metadata, remote = pipe.recv()
    pipe.send(agent.get_agent_metadata())
    agent.add_remote_agent(metadata)

    def transfer(operation, notification):
        here = agent.get_xfer_descs([(buffer.ctypes.data, SIZE, 0)], "DRAM")
        there = agent.get_xfer_descs([(remote, SIZE, 0)], "DRAM")
        handle = agent.initialize_xfer(operation, here, there, "target", notification)
        state, until = agent.transfer(handle), time.monotonic() + LIMIT_S
        while state == "PROC" and time.monotonic() < until:
            state = agent.check_xfer_state(handle)
        say("initiator", f"{operation} {state}", state == "DONE")
        agent.release_xfer_handle(handle)

    transfer("WRITE", b"written")
    pipe.recv()
    transfer("READ", b"read")
    right = bool((buffer == contents(2)).all())
    say("initiator", f"{SIZE} bytes were read, right: {right}", right)
    say("initiator", f"notification '{next_notification(agent, 'target')}'")
    pipe.send("end")
    agent.remove_remote_agent("target")
    agent.deregister_memory(registered)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    processes = [context.Process(target=side, args=(end,)) for side, end in zip((target, initiator), ends)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(3 * LIMIT_S)
    sys.exit(any(process.exitcode != 0 for process in processes))
