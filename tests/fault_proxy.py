"""A proxy of our own between a client and a server, that can be told to fail.

Requests pass byte for byte, so signatures stay right. Faults are told with
inject(kind, times, match, ...); each is used up by the requests that match it:

    delay      seconds=    the answer comes later
    before                 the connection is reset, nothing is passed on
    after                  passed on, then reset: the answer is lost
    status     status= body= headers=   answered here, nothing is passed on
    truncate               half of the body comes, then the end
    flip                   one byte of the body is another
    stale                  the answer to the same request before this one

`seen` keeps every request: method, path, headers, length of the body. With
`tls=(certificate, key)` the client's side is https.
"""

import contextlib
import http.client
import socket
import ssl
import struct
import threading
import time

SLOW_DOWN = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message>"
    b"<RequestId>f1</RequestId></Error>"
)
INTERNAL = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>InternalError</Code>"
    b"<Message>We encountered an internal error. Please try again.</Message>"
    b"<RequestId>f2</RequestId></Error>"
)


class Request:
    def __init__(self, method, path, headers, body):
        self.method = method
        self.path = path
        self.headers = headers  # names in lower case
        self.length = len(body)
        self.start = body[:4096]  # of the body


class FaultProxy:
    def __init__(self, port, host="127.0.0.1", tls=None, listen="127.0.0.1"):
        self.upstream = (host, port)
        self.seen = []
        self.faults = []
        self.answers = {}
        self.lock = threading.Lock()
        self.chaos = None  # a function of the request: a fault or None
        self.gate = None  # called with each request before it is passed on
        self.context = None
        if tls:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*tls)
        self.listener = socket.create_server((listen, 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{listen}:{self.port}"
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # shutdown wakes the thread that accepts; close alone does not.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)

    def inject(self, kind, times=1, match=lambda request: True, **detail):
        with self.lock:
            self.faults.append({"kind": kind, "times": times, "match": match, **detail})

    def clear(self):
        with self.lock:
            self.faults.clear()
            self.seen.clear()
        self.chaos = None
        self.gate = None

    def count(self, method, text=""):
        return sum(r.method == method and text in r.path for r in self.seen)

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=[connection], daemon=True).start()

    def pick(self, request):
        with self.lock:
            self.seen.append(request)
            for fault in self.faults:
                if fault["times"] > 0 and fault["match"](request):
                    fault["times"] -= 1
                    return fault
        return self.chaos(request) if self.chaos else None

    def serve(self, connection):
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            if self.context:
                connection = self.context.wrap_socket(connection, server_side=True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = connection.makefile("rb")
            while self.one(connection, reader):
                pass
        connection.close()

    def one(self, connection, reader):
        """One request and its answer; whether the connection goes on."""
        line = reader.readline(65536)
        if not line:
            return False
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers = []
        while (text := reader.readline(65536).strip()) != b"":
            name, _, value = text.decode("latin-1").partition(":")
            headers.append((name, value.strip()))
        names = {name.lower(): value for name, value in headers}
        body = reader.read(int(names.get("content-length", 0)))
        request = Request(method, path, names, body)
        fault = self.pick(request) or {"kind": None}
        kind = fault["kind"]
        if self.gate:
            self.gate(request)
        if kind == "before":
            return self.reset(connection)
        if kind == "delay":
            time.sleep(fault["seconds"])
        if kind == "status":
            answer = fault["status"], fault.get("headers", []), fault.get("body", b"")
            self.send(connection, method, *answer)
            return True
        if kind == "stale" and (method, path, body) in self.answers:
            answer = self.answers[method, path, body]
        else:
            answer = self.pass_on(method, path, headers, body)
            if len(body) < 65536:
                self.answers[method, path, body] = answer
        if kind == "after":
            return self.reset(connection)
        status, headers, content = answer
        if kind == "flip" and content:
            middle = len(content) // 2
            flipped = bytes([content[middle] ^ 1])
            content = content[:middle] + flipped + content[middle + 1 :]
        cut = len(content) // 2 if kind == "truncate" and content else None
        self.send(connection, method, status, headers, content, cut)
        return cut is None

    def pass_on(self, method, path, headers, body):
        upstream = http.client.HTTPConnection(*self.upstream, timeout=60)
        try:
            upstream.putrequest(
                method, path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in headers:
                if name.lower() != "connection":
                    upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            content = answer.read()
            kept = [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in ("connection", "transfer-encoding")
            ]
            return answer.status, kept, content
        finally:
            upstream.close()

    def send(self, connection, method, status, headers, content, cut=None):
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, 'X')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if not any(name.lower() == "content-length" for name, _ in headers):
            lines.append(f"Content-Length: {len(content)}")
        head = "\r\n".join(lines) + "\r\n\r\n"
        body = b"" if method == "HEAD" else content[:cut]
        connection.sendall(head.encode("latin-1") + body)

    def reset(self, connection):
        """Not a polite end: the peer sees a reset."""
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        return False
