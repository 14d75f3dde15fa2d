"""An S3 server (moto) on a port of this machine's own loopback, or of another address, for object_store_test.py; run by the Python of
.deps/object_store.

    python object_store_server.py DIRECTORY [ADDRESS]     # writes the port to DIRECTORY/port

While DIRECTORY/NAME.hold has a line "PUT shard-00001", the first half of what such a request for NAME in the bucket carries is moved,
DIRECTORY/NAME.held appears, and nothing more of it happens until the file is gone; then the request fails, as one whose connection broke.
"""
import sys
import time
from pathlib import Path

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Gate:
    def __init__(self, app, directory):
        self.app, self.directory = app, directory

    def hold_of(self, environ):
        """The file that says that this request is to be held; None: there is none."""
        name = (environ["PATH_INFO"].split("/") + ["", ""])[2]
        hold = self.directory / f"{name}.hold"
        try:
            method, part = hold.read_text().split()
        except (OSError, ValueError):
            return None
        return hold if environ["REQUEST_METHOD"] == method and part in environ["PATH_INFO"] else None

    @staticmethod
    def wait(hold):
        hold.with_suffix(".held").touch()
        while hold.exists():
            time.sleep(0.02)

    def __call__(self, environ, start_response):
        hold = self.hold_of(environ)
        if hold is None:
            return self.app(environ, start_response)
        if environ["REQUEST_METHOD"] == "PUT":
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]) // 2)
            self.wait(hold)
            start_response("503 Service Unavailable", [])
            return []
        return self.half(self.app(environ, start_response), hold)

    def half(self, parts, hold):
        body = b"".join(parts)
        yield body[:len(body) // 2]
        self.wait(hold)


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *unused):
        pass


def main(directory, address="127.0.0.1"):
    app = Gate(DomainDispatcherApplication(create_backend_app), directory)
    server = make_server(address, 0, app, threaded=True, request_handler=Quiet)
    (directory / "port.new").write_text(str(server.port))
    (directory / "port.new").rename(directory / "port")
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
