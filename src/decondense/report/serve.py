"""Serve the page on loopback to follow runs while they train: it asks every few seconds how far they are, and is
rendered again when a result or a snapshot is new or has changed."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from ..records import find
from .page import collect, render, to_json
from .runs import now
from .section import Places

PATTERNS = ("result.json", "snapshots/step-*.json")


def stamp(places: Places) -> str:
    """Return a hash that changes when a result or a snapshot in or below the places does, or when a run begins."""
    digest = hashlib.sha256()
    for place in map(Path, places):
        files = [place] if place.is_file() else [f for pattern in PATTERNS for f in place.rglob(pattern)]
        for file in sorted(files):
            try:
                state = file.stat()
            except OSError:  # deleted meanwhile
                continue
            digest.update(f"{file}\0{state.st_mtime_ns}\0{state.st_size}\n".encode())
        for file in sorted(place.rglob("progress.json")):  # only that it exists: its content is served by /now
            digest.update(f"{file}\n".encode())
    return digest.hexdigest()[:16]


def server(places: Places, *, port: int = 0, title: str | None = None) -> ThreadingHTTPServer:
    """Return a server on 127.0.0.1; `port` 0 takes a free port. It serves the page and the runs' state, no files."""
    for _ in find(places):  # refuse a place that does not exist at once
        pass
    rendered: dict[str, bytes] = {}
    lock = Lock()

    def page() -> bytes:
        with lock:
            current = stamp(places)
            if current not in rendered:
                content = collect(places, running=True)
                rendered.clear()
                rendered[current] = render(content, title=title, live=current).encode("utf-8")
            return rendered[current]

    def state() -> bytes:
        return to_json({"stamp": stamp(places), "runs": now(places)}).encode("utf-8")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            routes = {"/": (page, "text/html"), "/now": (state, "application/json")}
            # Another name in Host: a page elsewhere whose name was pointed at this address (DNS rebinding).
            if (self.headers.get("Host") or "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
                self.send_error(403)
            elif self.path not in routes:
                self.send_error(404)
            else:
                make_body, kind = routes[self.path]
                body = make_body()
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
