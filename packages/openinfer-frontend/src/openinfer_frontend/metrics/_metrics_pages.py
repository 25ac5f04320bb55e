"""Rendering of `/metrics` in a thread, shared by simultaneous readers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._polling import Polling
from openinfer_frontend.metrics._metrics import MetricsSnapshot

_MAX_MEDIA_TYPES = 4
"""Maximum number of pages in progress at once; they differ in media type."""


class MetricsPages:
    """Renders pages in one thread, one after another; belongs to its event loop."""

    def __init__(self, polling: Polling) -> None:
        """Prepares the thread, which starts with the first page; polling pauses while it works."""
        self._polling = polling
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="openinfer-metrics")
        self._begun: dict[str, asyncio.Future[tuple[bytes, str]]] = {}

    async def get(self, accept: str, take: Callable[[], MetricsSnapshot]) -> tuple[bytes, str]:
        """Returns a page and its media type; a page in progress is shared.

        Args:
            accept: the reader's header.
            take: takes the snapshot; not called if the page is already in progress.

        Raises:
            ApiError: 503, if too many different media types are asked for at once.
        """
        page = self._begun.get(accept)
        if page is None:
            if len(self._begun) >= _MAX_MEDIA_TYPES:
                raise ApiError.unavailable(
                    "too many media types of this page are asked for at once"
                )
            loop = asyncio.get_running_loop()
            page = loop.run_in_executor(self._pool, partial(_render, take(), accept))
            self._begun[accept] = page
            page.add_done_callback(lambda _: self._begun.pop(accept))
        with self._polling.paused():
            return await asyncio.shield(page)  # other readers may wait for the page

    def close(self) -> None:
        """Stops the thread once its page is done."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _render(snapshot: MetricsSnapshot, accept: str) -> tuple[bytes, str]:
    # The import takes 30 ms, and only servers that are scraped need it.
    from openinfer_frontend.metrics._exposition import render

    return render(snapshot, accept)
