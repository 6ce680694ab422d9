"""A proxy that serves a worker below a prefix, as those before real clusters do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx


@contextmanager
def below(prefix: str, url: str) -> Iterator[str]:
    """Yield where the worker's pages are then; the header `Host` is handed on as it comes."""

    class Handler(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = self.path.removeprefix(prefix)
            headers = [each for each in self.headers.items() if each[0].lower() != "connection"]
            reply = httpx.request(self.command, url + path, headers=headers, content=body)
            self.send_response(reply.status_code)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.content)

        do_GET = do_POST = _forward  # noqa: N815  # As the base class asks for them.

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
