"""The metadata service of one machine, as IMDSv2 has it: a token by PUT, then
documents with the token. Run inside the host's network namespace:

    python3 metadata_server.py FOLDER [ADDRESS [PORT]]

Documents are files below FOLDER, a folder is the list of its names; what is not
there is a 404. What was asked is appended to FOLDER/asked."""

import http.server
import pathlib
import sys

FOLDER = pathlib.Path(sys.argv[1])
TOKEN = "token-of-this-machine"


class Metadata(http.server.BaseHTTPRequestHandler):
    def answer(self, status, text=""):
        with open(FOLDER / "asked", "a") as asked:
            asked.write(f"{self.command} {self.path} {status}\n")
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        is_token = self.path == "/latest/api/token" and lifetime
        self.answer(200 if is_token else 400, TOKEN if is_token else "")

    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            return self.answer(401)
        document = FOLDER / self.path.strip("/")
        if document.is_dir() and self.path.endswith("/"):
            return self.answer(200, "\n".join(sorted(one.name for one in document.iterdir())))
        if not document.is_file():
            return self.answer(404)
        return self.answer(200, document.read_text())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    address = sys.argv[2] if len(sys.argv) > 2 else "169.254.169.254"
    port = int(sys.argv[3]) if len(sys.argv) > 3 else 80
    http.server.ThreadingHTTPServer((address, port), Metadata).serve_forever()
