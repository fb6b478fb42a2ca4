"""A small HTTP server with ranges, and with the faults a download meets."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Served:
    """What the server sends, and how.

    `breaks` are the numbers of bytes after which the next connections are cut, in order.
    """

    content: bytes
    etag: str | None = '"one"'
    ranges: bool = True
    status: int = 200
    sized: bool = True  # whether it tells the length
    breaks: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)  # the Range of every request
    url: str = ""


@contextmanager
def serving(served: Served) -> Iterator[Served]:
    """The server, at `served.url`, on this machine alone."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            served.asked.append(asked)
            if served.status != 200:
                self.send_error(served.status)
                return
            same = self.headers.get("If-Range") in {None, served.etag}
            start, total = 0, len(served.content)
            if asked is not None and served.ranges and same:
                found = re.fullmatch(r"bytes=(\d+)-", asked)
                assert found is not None
                start = int(found[1])
                if start >= total:
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            else:
                self.send_response(200)
            if served.sized:
                self.send_header("Content-Length", str(total - start))
            if served.etag is not None:
                self.send_header("ETag", served.etag)
            self.end_headers()
            sent = served.breaks.pop(0) if served.breaks else total
            self.wfile.write(served.content[start : start + sent])

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/data.csv"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
