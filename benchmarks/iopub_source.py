"""A kernel's IOPub socket without the kernel: publishes signed stream messages as fast as it can.

Run as a process of its own: prints its port, waits for a subscriber, sends, says so, and ends when told to.
"""

import sys

import zmq

from himalia.jupyter.wire import Wire

KEY = b"bench"
TEXT = "epoch 12: loss 0.4711, accuracy 0.8128, 31.4 s left of this one\n"
REQUEST_ID = "0b9c6d1e-5f0a-4b39-8f0e-0d2a9d3f7c11"


def main(count: int) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.sndhwm = 0
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    wire = Wire(KEY)
    parent, _ = wire.encode("execute_request", {}, msg_id=REQUEST_ID)
    content = {"name": "stdout", "text": TEXT}
    messages = [[b"stream", *wire.encode("stream", content, parent=parent)[1]] for _ in range(count)]
    print(port, flush=True)
    socket.recv()
    for frames in messages:
        socket.send_multipart(frames)
    print("sent", flush=True)
    sys.stdin.readline()
    socket.close(linger=0)
    context.term()


if __name__ == "__main__":
    main(int(sys.argv[1]))
