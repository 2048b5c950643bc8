"""A Prometheus that scrapes once a second and throws the page away."""

import gzip
import http.client
import threading
from typing import Self

INTERVAL_SECONDS = 1.0


class Scraper:
    """Scrapes in a thread while the `with` block runs, after one page whose histograms are counted."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.scrapes = 0
        self.page_bytes = 0
        self.histograms = 0

    def __enter__(self) -> Self:
        page = self._get()
        self.page_bytes = len(page)
        lines = gzip.decompress(page).splitlines()
        self.histograms = sum(b'le="+Inf"' in line for line in lines)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self._get()
            self.scrapes += 1

    def _get(self) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            return connection.getresponse().read()
        finally:
            connection.close()
