"""A local S3 server (moto) that can inject faults into its answers."""

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import fsspec
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Fault = Callable[[str, str], str | None]  # (method, path) of a request -> a fault of `ObjectServer`, or None

_BUSY = b'<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
_DENIED = b'<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'


class _Quiet(WSGIRequestHandler):
    def log(self, *_):
        pass


class ObjectServer:
    """The server; `requests` lists the (method, path) of each request, and `fault` chooses the fault of a request.

    A fault is 'refuse' (status 503), 'deny' (status 403), 'cut' (only half of the body is sent) or 'spoil' (one byte of
    the body is changed, and the answer has no checksum).
    """

    def __init__(self):
        self._app = DomainDispatcherApplication(create_backend_app)
        self.fault: Fault = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._seals = 0  # of checkpoints, written since the start

    def __call__(self, environ, start_response):
        method, path = environ['REQUEST_METHOD'], environ['PATH_INFO']
        with self._lock:
            self.requests.append((method, path))
            fault = self.fault(method, path)
        if fault in ('refuse', 'deny'):
            environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
            start_response('503 Slow Down' if fault == 'refuse' else '403 Forbidden', [('Connection', 'close')])
            return [] if method == 'HEAD' else [_BUSY if fault == 'refuse' else _DENIED]
        answer = []
        body = b''.join(self._app(environ, lambda *about: answer.append(about)))
        status, headers = answer[0][:2]
        self._seals += method == 'PUT' and path.endswith('/seal.json')
        if fault == 'spoil':
            headers = [row for row in headers if not row[0].lower().startswith('x-amz-checksum')]
        start_response(status, headers)
        if fault == 'cut':
            return [body[: len(body) // 2]]  # Content-Length is that of the whole body
        return [bytes([body[0] ^ 1]) + body[1:] if fault == 'spoil' else body]

    @contextlib.contextmanager
    def failing(self, fault: str, method: str, path: str, count: int = 1, after: int = 0) -> Iterator[list[str]]:
        """Lets `count` requests fail after the first `after` ones; yields the paths of the failed requests.

        These requests have this method, and their paths match the regular expression `path`.
        """
        seen, failed = [], []

        def decide(request_method: str, request_path: str) -> str | None:
            if request_method != method or not re.search(path, request_path):
                return None
            seen.append(request_path)
            if not after < len(seen) <= after + count:
                return None
            failed.append(request_path)
            return fault

        self.fault = decide
        try:
            yield failed
        finally:
            self.fault = lambda method, path: None

    @property
    def system(self) -> fsspec.AbstractFileSystem:
        """A separate client, with which a test inspects the bucket."""
        return fsspec.filesystem('s3', use_listings_cache=False)

    def clear(self) -> None:
        """Empties the bucket and the list of requests."""
        for path in self.system.find('bucket'):
            self.system.rm_file(path)
        self.requests.clear()

    def put(self, files: dict[str, bytes]) -> None:
        """Writes objects, {name: bytes}, into the bucket."""
        for name, data in files.items():
            self.system.pipe_file(f'bucket/{name}', data)

    def put_behind(self, files: dict[str, bytes]) -> None:
        """Writes objects as `put` does, but may be called from `fault`, which blocks requests."""
        (account,) = s3_backends
        for name, data in files.items():
            s3_backends[account]['aws'].put_object('bucket', name, data)

    def contents(self, path: str) -> dict[str, bytes]:
        """Returns {path: content} of the objects below BUCKET/PATH."""
        return self.system.cat(self.system.find(path))

    def wait_for_step(self, path: str, step: int, *processes: subprocess.Popen) -> int:
        """Waits for a complete checkpoint of `step` or later below BUCKET/PATH; returns the newest step.

        The wait fails if one of `processes` ends.
        """
        deadline, newest, count, listed = time.monotonic() + 300, -1, -1, 0.0
        while newest < step:
            # A listing takes more processor time than a step, so list only after a new seal, or after a second.
            if self._seals != count or time.monotonic() > listed + 1:
                count, listed = self._seals, time.monotonic()
                seals = (name.split('/') for name in self.names(path) if name.endswith('/seal.json'))
                newest = max((int(parts[1]) for parts in seals), default=-1)
            assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
            time.sleep(0.05)
        return newest

    def names(self, path: str) -> dict[str, int]:
        """Returns {name: size in bytes} of the objects below BUCKET/PATH."""
        found = self.system.find(path, detail=True)
        return {name.removeprefix(path).strip('/'): facts['size'] for name, facts in sorted(found.items())}


@contextlib.contextmanager
def started() -> Iterator[ObjectServer]:
    """Serves the bucket `bucket`; environment variables point this process and its child processes to it."""
    server = ObjectServer()
    http = make_server('127.0.0.1', 0, server, threaded=True, request_handler=_Quiet)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    variables = {
        'AWS_ENDPOINT_URL': f'http://127.0.0.1:{http.server_port}',
        'AWS_ACCESS_KEY_ID': 'test',
        'AWS_SECRET_ACCESS_KEY': 'test',
        'AWS_DEFAULT_REGION': 'us-east-1',
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    server.system.mkdir('bucket')
    try:
        yield server
    finally:
        http.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
