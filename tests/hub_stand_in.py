"""A stand-in for the Hugging Face hub with the part of its HTTP API that pulls and pushes a model."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator

SHA = '1' * 40
TOKEN = 'hf_token'
READ_TOKEN = 'hf_read'


class Hub:
    """The state of the server.

    Attributes:
      files: {repository: {file name: content}}.
      private: Whether each repository was created as private.
      requests: 'METHOD /path' of each request.
      gated: Repositories that refuse access.
      full: Whether uploads are refused.
      address: The URL.
    """

    def __init__(self):
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.requests: list[str] = []
        self.gated: set[str] = set()
        self.full = False
        self.address = ''


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def do_POST(self):
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        path = self.path.partition('?')[0]
        self.hub.requests.append(f'{self.command} {path}')
        if path == '/api/whoami-v2':
            roles = {f'Bearer {TOKEN}': 'write', f'Bearer {READ_TOKEN}': 'read'}
            if role := roles.get(self.headers.get('Authorization', '')):
                user = {'name': 'me', 'orgs': [{'name': 'us'}], 'auth': {'accessToken': {'role': role}}}
                self._json(user)
            else:
                self._json({}, 401)
        elif path == '/api/repos/create':
            request = json.loads(body)
            name = f'{request.get("organization") or "me"}/{request["name"]}'
            self.hub.files.setdefault(name, {})
            self.hub.private[name] = request.get('private') or request.get('visibility') == 'private'
            self._json({'url': f'{self.hub.address}/{name}', 'name': name, 'id': name})
        elif path == '/api/validate-yaml':
            self._json({'errors': [], 'warnings': []})
        elif match := re.fullmatch(r'/api/models/([^/]+/[^/]+)(/.*)?', path):
            self._model(match.group(1), match.group(2) or '', body)
        elif match := re.fullmatch(r'/([^/]+/[^/]+)/resolve/[^/]+/(.+)', path):
            self._file(match.group(1), match.group(2))
        else:
            self._json({}, 404)

    def _model(self, name: str, rest: str, body: bytes) -> None:
        hub = self.hub
        if hub.full and rest.startswith('/preupload/'):
            self._json({'error': 'the quota is used up'}, 403)
        elif name in hub.gated:
            self._json({}, 403, {'X-Error-Code': 'GatedRepo'})
        elif name not in hub.files:
            self._json({}, 404, {'X-Error-Code': 'RepoNotFound'})
        elif rest.startswith('/revision/') and rest.split('/')[2] not in ('main', SHA):
            self._json({}, 404, {'X-Error-Code': 'RevisionNotFound'})
        elif rest.startswith('/preupload/'):
            files = [
                {'path': file['path'], 'uploadMode': 'regular', 'shouldIgnore': False}
                for file in json.loads(body)['files']
            ]
            self._json({'files': files})
        elif rest.startswith('/commit/'):
            for line in map(json.loads, body.splitlines()):
                if line['key'] == 'deletedFile':
                    del hub.files[name][line['value']['path']]
                if line['key'] == 'file':
                    hub.files[name][line['value']['path']] = base64.b64decode(line['value']['content'])
            self._json({'success': True, 'commitOid': SHA, 'commitUrl': f'{hub.address}/{name}/commit/{SHA}'})
        elif rest.startswith('/tree/'):
            tree = [
                {'type': 'file', 'path': file, 'size': len(x), 'oid': _tag(x)} for file, x in hub.files[name].items()
            ]
            self._json(tree)
        else:
            siblings = [{'rfilename': file} for file in hub.files[name]]
            config = json.loads(hub.files[name].get('config.json', b'{}'))
            facts = {'config': {'model_type': config['model_type']}} if 'model_type' in config else {}
            facts |= {'id': name, 'modelId': name, 'sha': SHA, 'private': False, 'siblings': siblings, 'tags': []}
            self._json(facts)

    def _file(self, name: str, file: str) -> None:
        data = self.hub.files.get(name, {}).get(file)
        if data is None:
            self._json({}, 404, {'X-Error-Code': 'EntryNotFound'})
            return
        self.send_response(200)
        for header, value in (('ETag', f'"{_tag(data)}"'), ('X-Repo-Commit', SHA), ('Content-Length', str(len(data)))):
            self.send_header(header, value)
        self.end_headers()
        if self.command == 'GET':
            self.wfile.write(data)

    def _json(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for header, text in {'Content-Type': 'application/json', **(headers or {})}.items():
            self.send_header(header, text)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(data)


def _tag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """Serves a hub on a local port."""
    hub = Hub()
    handler = type('Handler', (_Handler,), {'hub': hub})
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        hub.address = f'http://127.0.0.1:{server.server_address[1]}'
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield hub
        server.shutdown()
