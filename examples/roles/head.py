"""Hands out numbers to be squared and prints the sum: a tiny scheduler."""

import os
import socketserver

workers = int(os.environ["WORLD_SIZE"]) - 1
tasks = list(range(1, 11))
total = 0


class Worker(socketserver.StreamRequestHandler):
    def handle(self):
        global total, workers
        while tasks:
            self.wfile.write(b"%d\n" % tasks.pop())
            total += int(self.rfile.readline())
        workers -= 1


with socketserver.TCPServer(("", int(os.environ["MASTER_PORT"])), Worker) as server:
    while workers > 0:
        server.handle_request()
print("sum of squares:", total)
