"""HTTP over any `EngineHandle`, in the protocols of OpenAI and Anthropic.

`create_app` makes a raw ASGI application over an engine and a text model. `serve` runs it on
uvicorn. The package depends on the contract, the text package, pydantic and uvicorn, never on
torch.
"""

from openinfer_frontend._app import FrontendApp, create_app
from openinfer_frontend._config import FrontendConfig
from openinfer_frontend._provider import EngineProvider, EngineState, FixedEngine
from openinfer_frontend.errors import (
    ApiError,
    ClientGone,
    CounterLayoutError,
    FrontendError,
    ListenError,
    TlsError,
)
from openinfer_frontend.http._server import bind, new_event_loop, serve
from openinfer_frontend.http._signals import SAME_SIGNAL_S
from openinfer_frontend.http._tls import Tls
from openinfer_frontend.metrics._counters import CounterPages

__all__ = [
    # the application
    "create_app",
    "FrontendApp",
    "FrontendConfig",
    "CounterPages",
    # its engine
    "EngineProvider",
    "EngineState",
    "FixedEngine",
    # serving
    "bind",
    "serve",
    "new_event_loop",
    "SAME_SIGNAL_S",
    "Tls",
    # errors
    "FrontendError",
    "ApiError",
    "ClientGone",
    "CounterLayoutError",
    "ListenError",
    "TlsError",
]
