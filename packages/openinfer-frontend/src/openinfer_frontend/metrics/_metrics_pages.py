"""Pages of `/metrics`: anybody may ask for them, and all who ask at once get the same."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._polling import Polling
from openinfer_frontend.metrics._metrics import MetricsSnapshot

_MAX_FORMS = 4
"""Pages made or waited for at once, by what their readers accept."""


class MetricsPages:
    """Renders in one thread, one page after another; belongs to its app's event loop."""

    def __init__(self, polling: Polling) -> None:
        """Starts no thread before somebody asks; the loop rests while it works."""
        self._polling = polling
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="openinfer-metrics")
        self._begun: dict[str, asyncio.Future[tuple[bytes, str]]] = {}

    async def get(self, accept: str, take: Callable[[], MetricsSnapshot]) -> tuple[bytes, str]:
        """A page and its media type; one that was begun already is shared.

        Args:
            accept: the reader's header.
            take: what the page says; not called for one that was begun.

        Raises:
            ApiError: 503, if pages of too many forms are asked for at once.
        """
        page = self._begun.get(accept)
        if page is None:
            if len(self._begun) >= _MAX_FORMS:
                raise ApiError.unavailable("too many forms of this page are asked for at once")
            loop = asyncio.get_running_loop()
            page = loop.run_in_executor(self._pool, partial(_render, take(), accept))
            self._begun[accept] = page
            page.add_done_callback(lambda _: self._begun.pop(accept))
        with self._polling.paused():
            return await asyncio.shield(page)  # others may want it still

    def close(self) -> None:
        """Ends the thread once its page is done."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _render(snapshot: MetricsSnapshot, accept: str) -> tuple[bytes, str]:
    # What it stands on takes 30 ms to import: for a thread, and for who is asked at all.
    from openinfer_frontend.metrics._exposition import render

    return render(snapshot, accept)
