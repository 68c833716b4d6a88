"""The page on loopback, which follows runs while they train: it asks every few seconds, and is made anew when a result
or a snapshot has come or changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from .page import Report, collect, render

__all__ = ["server", "stamp"]

Places = Sequence[str | os.PathLike[str]]
PATTERNS = ("result.json", "snapshots/step-*.json")


def stamp(places: Places) -> str:
    """Another whenever a result or a snapshot in or below the places is another."""
    digest = hashlib.sha256()
    for place in map(Path, places):
        files = [place] if place.is_file() else [f for pattern in PATTERNS for f in place.rglob(pattern)]
        for file in sorted(files):
            try:
                state = file.stat()
            except OSError:  # it went while we looked
                continue
            digest.update(f"{file}\0{state.st_mtime_ns}\0{state.st_size}\n".encode())
    return digest.hexdigest()[:16]


def server(places: Places, *, port: int = 0, title: str | None = None) -> ThreadingHTTPServer:
    """Listens on 127.0.0.1 alone; `port` 0 takes a free one. Serves the page and its stamp, and no file."""
    made: dict[str, bytes] = {}
    lock = Lock()

    def page() -> bytes:
        with lock:
            now = stamp(places)
            if now not in made:
                try:
                    content = collect(places, running=True)
                except ValueError:  # no result yet
                    content = Report([], [])
                made.clear()
                made[now] = render(content, title=title, live=now).encode("utf-8")
            return made[now]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {"/": (page, "text/html"), "/stamp": (lambda: stamp(places).encode(), "text/plain")}
            # another name in Host is a page elsewhere that had its name point here
            if (self.headers.get("Host") or "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
                self.send_error(403)
            elif self.path not in known:
                self.send_error(404)
            else:
                make, kind = known[self.path]
                body = make()
                self.send_response(200)
                for name, value in {
                    "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)),
                    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
                }.items():  # fmt: skip
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
