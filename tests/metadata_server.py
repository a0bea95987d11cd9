"""A stand-in for the metadata server of Google Cloud, which describes the slice of a TPU VM."""

import contextlib
import http.server
import threading
from collections.abc import Iterator


class MetadataServer(http.server.ThreadingHTTPServer):
    """Serves `attributes` of a machine after `failures` failed requests; `requests` lists the requested names."""

    def __init__(self, attributes: dict[str, str], failures: int = 0):
        super().__init__(('127.0.0.1', 0), _Handler)
        self.attributes, self.failures, self.requests = attributes, failures, []

    @property
    def address(self) -> str:
        return f'127.0.0.1:{self.server_port}'


class _Handler(http.server.BaseHTTPRequestHandler):
    server: MetadataServer

    def do_GET(self) -> None:
        folder, _, name = self.path.rpartition('/')
        assert folder == '/computeMetadata/v1/instance/attributes' and self.headers['Metadata-Flavor'] == 'Google'
        self.server.requests.append(name)
        if self.server.failures:
            self.server.failures -= 1
            self.send_error(503)
        elif name not in self.server.attributes:
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.attributes[name].encode())

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def serve(attributes: dict[str, str], failures: int = 0) -> Iterator[MetadataServer]:
    """Runs a server within the context."""
    with MetadataServer(attributes, failures) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
