"""A fake Kubernetes API server with EndpointSlices, which can do what a real one cannot be made to do.

It serves list and watch of ``discovery.k8s.io/v1`` in one namespace on 127.0.0.1, with versions, label selectors,
pages and bookmarks, and checks the bearer token. A test changes slices by ``put`` and ``delete``, and has it fail:

* ``compact``: what came before is forgotten, so watches from there are answered by 410
* ``fail_watches``: an ERROR event ends the live watches
* ``cut``: the next event breaks off in the middle of its line
* ``end_watches``: they end well, as after their timeout
* ``send``: any event, such as an old version or the same one again
* ``hold_lists`` and ``release_lists``: a list takes as long as the test wants
* ``token``: what a request needs from now on
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from dragoman.testkit.model_server.http1 import BadRequestError, HttpConnection, HttpRequest

__all__ = ["FakeKubernetesApi", "endpoint", "endpoint_slice"]

_EXPIRED = {
    "kind": "Status",
    "status": "Failure",
    "reason": "Expired",
    "code": 410,
    "message": "too old resource version",
}


def endpoint(
    address: str,
    pod: str,
    *,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
    uid: str = "",
) -> dict[str, Any]:
    """Return an endpoint of a slice.

    Args:
        address: the IP address.
        pod: the name of its pod.
        ready: its condition; ``None`` leaves it out, as for the others.
        serving: its condition.
        terminating: its condition.
        uid: of the pod; empty for one made from the name.
    """
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    return {
        "addresses": [address],
        "conditions": {name: value for name, value in conditions.items() if value is not None},
        "targetRef": {"kind": "Pod", "name": pod, "uid": uid or f"uid-{pod}"},
    }


def endpoint_slice(
    name: str,
    service: str,
    endpoints: Sequence[Mapping[str, Any]],
    *,
    port: int = 7801,
    family: str = "IPv4",
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a slice of a Service, without what the API server adds.

    Args:
        name: its name.
        service: the name of the Service.
        endpoints: what ``endpoint`` returns.
        port: the port ``grpc`` of all of them.
        family: IPv4, IPv6 or FQDN.
        labels: those of the Service.
    """
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {**(labels or {}), "kubernetes.io/service-name": service}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "grpc", "port": port, "protocol": "TCP"}],
    }


class _Watch:
    """One live watch."""

    def __init__(self, selector: str) -> None:
        self.selector = selector
        self.lines: asyncio.Queue[tuple[bytes, bool] | None] = asyncio.Queue()
        """What to send, and whether to break off after that; ``None`` for a good end."""


class _Slices:
    """The slices of one namespace, and the watches of them."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._slices: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._version = 1
        self._oldest = 1
        self._watches: list[_Watch] = []
        self._cuts_next = False

    @property
    def version(self) -> int:
        """The newest version."""
        return self._version

    @property
    def live_watches(self) -> int:
        """How many watches there are now."""
        return len(self._watches)

    def put(self, one: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace a slice; return it with its new version."""
        name = one["metadata"]["name"]
        known = self._slices.get(name)
        self._version += 1
        uid = known["metadata"]["uid"] if known else f"slice-{self._version}"
        metadata = {
            **one["metadata"],
            "namespace": self.namespace,
            "uid": uid,
            "resourceVersion": str(self._version),
        }
        stored = self._slices[name] = {**one, "metadata": metadata}
        self._record("MODIFIED" if known else "ADDED", stored)
        return stored

    def delete(self, name: str) -> None:
        """Delete a slice."""
        gone = self._slices.pop(name)
        self._version += 1
        self._record("DELETED", {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}})

    def compact(self) -> None:
        """Forget what came before: a watch from an earlier version is answered by 410."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()

    def bookmark(self) -> None:
        """Send a bookmark with the newest version to all watches."""
        metadata = {"resourceVersion": str(self._version), "creationTimestamp": None}
        self.send("BOOKMARK", {"kind": "EndpointSlice", "metadata": metadata})

    def send(self, kind: str, value: Mapping[str, Any]) -> None:
        """Send an event to all watches, whatever it is."""
        self.send_line(json.dumps({"type": kind, "object": value}, ensure_ascii=False).encode() + b"\n")

    def send_line(self, line: bytes) -> None:
        """Send bytes to all watches."""
        for watch in self._watches:
            self._put(watch, line)

    def fail_watches(self, code: int = 410, message: str = "too old resource version") -> None:
        """End all watches by an ERROR event."""
        self.send("ERROR", {"kind": "Status", "status": "Failure", "code": code, "message": message})
        self.end_watches()

    def end_watches(self) -> None:
        """End all watches well."""
        for watch in self._watches:
            watch.lines.put_nowait(None)

    def cut(self) -> None:
        """Have the next event break off in the middle of its line, and its connection with it."""
        self._cuts_next = True

    def _record(self, kind: str, value: dict[str, Any]) -> None:
        self._history.append((self._version, kind, value))
        line = _line(kind, value)
        for watch in self._watches:
            if _matches(value, watch.selector):
                self._put(watch, line)

    def _put(self, watch: _Watch, line: bytes) -> None:
        if self._cuts_next:
            self._cuts_next = False
            watch.lines.put_nowait((line[: len(line) // 2], True))
        else:
            watch.lines.put_nowait((line, False))


class FakeKubernetesApi(_Slices):
    """Serves EndpointSlices; an asynchronous context manager.

    Args:
        namespace: the one that is served.
        token: the bearer token that is valid.
        tls: for https; ``None`` for http.
        page: how many items a list has at most, whatever the request says; 0 for as many as that.
    """

    def __init__(
        self, namespace: str = "agents", token: str = "t1", tls: ssl.SSLContext | None = None, page: int = 0
    ) -> None:
        super().__init__(namespace)
        self.requests: list[HttpRequest] = []
        """All requests, in the order in which they came."""
        self.statuses: list[int] = []
        """How they were answered."""
        self.token = token
        """The bearer token that is valid; a test may replace it."""
        self._tls = tls
        self._page = page
        self._may_list = asyncio.Event()
        self._may_list.set()
        self._changed = asyncio.Condition()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Base address; valid while serving."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    @property
    def watched_from(self) -> int:
        """The version from which the newest watch was asked for; 0 if there was none."""
        versions = [int(one.query.get("resourceVersion", "0")) for one in self.requests if "watch" in one.query]
        return versions[-1] if versions else 0

    def count(self, kind: str) -> int:
        """Return how many requests of a kind, ``list`` or ``watch``, have come."""
        return sum(("watch" in request.query) == (kind == "watch") for request in self.requests)

    async def __aenter__(self) -> Self:
        """Start serving, at the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving, and break every connection; the slices are kept."""
        assert self._server is not None
        self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def hold_lists(self) -> None:
        """Keep lists waiting until ``release_lists``."""
        self._may_list.clear()

    def release_lists(self) -> None:
        """Answer the lists that wait, and further ones."""
        self._may_list.set()

    async def until(self, reached: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until a condition holds, which is looked at when a request has come or a watch has ended.

        Raises:
            TimeoutError: it did not within ``timeout_s`` seconds.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(reached)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = HttpConnection(reader, writer)
        try:
            while (request := await connection.request()) is not None:
                self.requests.append(request)
                await self._notify()
                await self._answer(request, connection)
        except (ConnectionError, BadRequestError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, request: HttpRequest, connection: HttpConnection) -> None:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        if request.headers.get("authorization") != f"Bearer {self.token}":
            await self._send(connection, 401, {"kind": "Status", "code": 401, "message": "Unauthorized"})
        elif request.path != path or request.method != "GET":
            message = f'endpointslices.discovery.k8s.io is forbidden: {request.method} "{request.path}"'
            await self._send(connection, 403, {"kind": "Status", "code": 403, "message": message})
        elif "watch" in request.query:
            await self._serve_watch(request, connection)
        else:
            await self._may_list.wait()
            await self._send(connection, 200, self._listed(request.query))

    async def _send(self, connection: HttpConnection, status: int, value: Mapping[str, Any]) -> None:
        self.statuses.append(status)
        await connection.send_json(status, value, {})

    def _listed(self, query: Mapping[str, str]) -> dict[str, Any]:
        items = [one for _, one in sorted(self._slices.items()) if _matches(one, query.get("labelSelector", ""))]
        first = int(query.get("continue", "0"))
        limit = self._page or int(query.get("limit", "0")) or len(items) or 1
        metadata: dict[str, Any] = {"resourceVersion": str(self._version)}
        if first + limit < len(items):
            metadata["continue"] = str(first + limit)
        return {"kind": "EndpointSliceList", "metadata": metadata, "items": items[first : first + limit]}

    async def _serve_watch(self, request: HttpRequest, connection: HttpConnection) -> None:
        since, selector = int(request.query.get("resourceVersion", "0")), request.query.get("labelSelector", "")
        if since < self._oldest:
            await self._send(connection, 410, _EXPIRED)
            return
        watch = _Watch(selector)
        for version, kind, value in self._history:
            if version > since and _matches(value, selector):
                self._put(watch, _line(kind, value))
        self.statuses.append(200)
        await connection.begin(200, {"content-type": "application/json"})
        self._watches.append(watch)
        try:
            await self._notify()
            while (item := await watch.lines.get()) is not None:
                line, breaks_off = item
                await connection.write(line)
                if breaks_off:
                    raise ConnectionError("cut, as the test asked")
            await connection.end()
        finally:
            self._watches.remove(watch)
            await self._notify()


def _line(kind: str, value: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": value}, ensure_ascii=False).encode() + b"\n"


def _matches(value: Mapping[str, Any], selector: str) -> bool:
    """Return whether an object has the labels of a selector, of which ``name=value`` and ``name`` are known."""
    labels = value["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        name, has_value, label = part.partition("=")
        if labels.get(name) != label if has_value else name not in labels:
            return False
    return True
