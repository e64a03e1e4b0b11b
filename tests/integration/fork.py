#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Python program that uses the library through ctypes, and forks: by multiprocessing and by os.fork().

usage: fork.py LIBRARY

A server process, forked before any engine was opened, echoes what comes. Its client forks children which do what Python programs
do: use what they have inherited, close it when they exit, open engines of their own. The client's connection works on.
"""
import atexit
import ctypes
import multiprocessing
import os
import sys
import threading

EFORKED = -15
HANDLE_BYTES = 4096  # more than enough
LIMIT_S = 30

lib = ctypes.CDLL(sys.argv[1])
lib.uccl_strerror.restype = ctypes.c_char_p


def ok(result, what):
    if result != 0:
        raise RuntimeError(f"{what}: {lib.uccl_strerror(result).decode()}")


def expect(what, result, expected):
    if result != expected:
        print(f"{what} is {result}, not {expected}", file=sys.stderr, flush=True)
        os._exit(1)


def open_engine():
    engine = ctypes.c_void_p()
    ok(lib.uccl_open(None, ctypes.byref(engine)), "uccl_open")
    return engine


def listen(engine):
    listener, handle = ctypes.c_void_p(), ctypes.create_string_buffer(HANDLE_BYTES)
    ok(lib.uccl_listen(engine, -1, ctypes.c_uint16(0), handle, ctypes.byref(listener)), "uccl_listen")
    return listener, handle


def accept(listener):
    conn = ctypes.c_void_p()
    ok(lib.uccl_accept(listener, 10000, ctypes.byref(conn)), "uccl_accept")
    return conn


def connect(engine, handle):
    conn = ctypes.c_void_p()
    ok(lib.uccl_connect(engine, handle, 10000, ctypes.byref(conn)), "uccl_connect")
    return conn


in_use = {}  # buffers of requests, which Python must not free


def post(call, conn, buffer):
    request = ctypes.c_void_p()
    ok(call(conn, buffer, ctypes.c_size_t(len(buffer)), None, ctypes.byref(request)), "post")
    in_use[request.value] = buffer
    return request


def wait(request):
    size = ctypes.c_size_t()
    ok(lib.uccl_wait(request, 10000, ctypes.byref(size)), "uccl_wait")
    del in_use[request.value]
    return size.value


def serve(pipe):
    engine = open_engine()
    listener, handle = listen(engine)
    pipe.send_bytes(handle.raw)
    conn = accept(listener)
    while True:
        buffer = ctypes.create_string_buffer(1 << 16)
        size = wait(post(lib.uccl_recv_async, conn, buffer))
        if size == 0:
            break
        wait(post(lib.uccl_send_async, conn, ctypes.create_string_buffer(buffer.raw[:size], size)))
    ok(lib.uccl_close(engine), "uccl_close")


def echo(conn, text):
    sent, back = ctypes.create_string_buffer(text, len(text)), ctypes.create_string_buffer(1 << 16)
    recv = post(lib.uccl_recv_async, conn, back)
    wait(post(lib.uccl_send_async, conn, sent))
    size = wait(recv)
    if back.raw[:size] != text:
        raise RuntimeError("other bytes came back")


def use(engine, conn, request):
    """What a child gets of inherited objects."""
    buffer, new, done = ctypes.create_string_buffer(8), ctypes.c_void_p(), ctypes.c_int()
    expect("send", lib.uccl_send_async(conn, buffer, ctypes.c_size_t(8), None, ctypes.byref(new)), EFORKED)
    expect("test", lib.uccl_test(request, ctypes.byref(done), None), EFORKED)
    expect("wait", lib.uccl_wait(request, -1, None), EFORKED)
    expect("conn_close", lib.uccl_conn_close(conn), EFORKED)
    expect("event_fd", lib.uccl_event_fd(engine), EFORKED)


def use_and_close(engine, conn, request):
    use(engine, conn, request)
    expect("close", lib.uccl_close(engine), 0)


def close_at_exit(engine, conn, request):
    atexit.register(lib.uccl_close, engine)


def open_own(engine, conn, request):
    own = open_engine()
    listener, handle = listen(own)
    ends = {}
    thread = threading.Thread(target=lambda: ends.update(accepted=accept(listener)))
    thread.start()
    client = connect(own, handle)
    thread.join()
    back = ctypes.create_string_buffer(5)
    recv = post(lib.uccl_recv_async, ends["accepted"], back)
    wait(post(lib.uccl_send_async, client, ctypes.create_string_buffer(b"alone", 5)))
    expect("size", wait(recv), 5)
    expect("bytes", int(back.raw == b"alone"), 1)
    use(engine, conn, request)
    expect("close", lib.uccl_close(own), 0)
    expect("close", lib.uccl_close(engine), 0)


def by_multiprocessing(run, *objects):
    child = multiprocessing.Process(target=run, args=objects)
    child.start()
    child.join(LIMIT_S)
    if child.exitcode is None:
        child.kill()
        raise RuntimeError("a child hangs")
    return child.exitcode


def by_fork(run, *objects):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(LIMIT_S)
        run(*objects)
        sys.exit(0)  # with what atexit has
    return os.waitpid(child, 0)[1]


def main():
    multiprocessing.set_start_method("fork")
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,))
    server.start()
    handle = ctypes.create_string_buffer(here.recv_bytes(), HANDLE_BYTES)
    engine = open_engine()
    conn = connect(engine, handle)
    echo(conn, b"before")
    for make in by_multiprocessing, by_fork:
        for run in use, use_and_close, close_at_exit, open_own:
            buffer = ctypes.create_string_buffer(1 << 16)
            request = post(lib.uccl_recv_async, conn, buffer)  # pending at the fork
            if make(run, engine, conn, request) != 0:
                raise RuntimeError(f"{make.__name__}({run.__name__}) has failed")
            text = f"{make.__name__} {run.__name__}".encode()
            wait(post(lib.uccl_send_async, conn, ctypes.create_string_buffer(text, len(text))))
            size = wait(request)
            if buffer.raw[:size] != text:
                raise RuntimeError("other bytes came back")
            for i in range(1, 20):
                echo(conn, bytes([i]) * (i * 1000))
            print(f"{text.decode()}: ok", flush=True)
    wait(post(lib.uccl_send_async, conn, ctypes.create_string_buffer(b"", 0)))
    server.join(LIMIT_S)
    ok(lib.uccl_close(engine), "uccl_close")
    if server.exitcode != 0:
        raise RuntimeError("the server has failed")


main()
