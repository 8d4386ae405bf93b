"""Squares what the head sends, until it sends no more."""

import os
import socket
import time

place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
while True:
    try:
        connection = socket.create_connection(place)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)  # the head is not up yet
with connection, connection.makefile("rw") as stream:
    for line in stream:
        stream.write(f"{int(line) ** 2}\n")
        stream.flush()
