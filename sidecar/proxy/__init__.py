"""The data plane: bytes first, then a look at them.

`proxy` listens and makes an `Exchange` (`relay`) a request. `front` is the client's side on aiohttp's
parser, with every response byte ours; `upstream` is one engine connection on llhttp, `pool` keeps the
idle ones; `heads` says which header fields pass; `errors` is what the sidecar itself answers.
"""

from sidecar.proxy.pool import Upstream
from sidecar.proxy.proxy import Proxy, RequestStart
from sidecar.proxy.watch import Observer

__all__ = ["Observer", "Proxy", "RequestStart", "Upstream"]
