"""A Kubernetes API server in miniature: enough of its manners to drive the plugin without a cluster.

True to the real one: paths, discovery, status objects, dry runs, resource versions, watches, field managers
with conflicts, finalizers. Not: validation, defaulting, controllers (a test plays those by `change`).
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

Object = dict[str, Any]
CHANGE_SECONDS = 60
KINDS = {
    "/api/v1": [
        ("Namespace", "namespaces", False),
        ("ConfigMap", "configmaps", True),
        ("Pod", "pods", True),
        ("Secret", "secrets", True),
    ],
    "/apis/apps/v1": [("Deployment", "deployments", True)],
    "/apis/batch/v1": [("Job", "jobs", True)],
}


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status = {"kind": "Status", "code": code, "reason": reason, "message": message}
        self.status["details"] = {"kind": kind}
        self.code = code


class ToyApiServer:
    """Objects by path; `requests` records (method, path, query) of everything but discovery."""

    def __init__(self) -> None:
        self.kinds = {base: list(found) for base, found in KINDS.items()}
        self.objects: dict[str, Object] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._version = 0
        self._changed = threading.Condition()
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        for name in ("default", "lab"):
            self.put(
                f"/api/v1/namespaces/{name}",
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
            )

    @property
    def kubeconfig(self) -> str:
        """A kubeconfig for this server, as text."""
        return json.dumps(
            {
                "current-context": "toy",
                "contexts": [{"name": "toy", "context": {"cluster": "toy", "user": "toy"}}],
                "clusters": [{"name": "toy", "cluster": {"server": self.url}}],
                "users": [{"name": "toy", "user": {"token": "t"}}],
            },
            indent=1,
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, path: str, obj: Object) -> Object:
        """Store an object as the newest version."""
        with self._changed:
            self._version += 1
            found = obj.setdefault("metadata", {})
            found.setdefault("uid", f"uid-{self._version}")
            found["resourceVersion"] = str(self._version)
            self.objects[path] = obj
            self._changed.notify_all()
            return copy.deepcopy(obj)

    def change(self, path: str, edit: Callable[[Object], None]) -> None:
        """Play a controller: edit the stored object, as soon as there is one."""
        with self._changed:
            assert self._changed.wait_for(lambda: path in self.objects, CHANGE_SECONDS), f"no {path}"
            obj = copy.deepcopy(self.objects[path])
            edit(obj)
            self.put(path, obj)

    def remove(self, path: str) -> None:
        """Play the garbage collector."""
        with self._changed:
            del self.objects[path]
            self._changed.notify_all()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do `action` after a while, from another thread."""
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        timer.start()

    # -- one request ---------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Object:
        if path == "/version":
            return {"major": "1", "minor": "35"}
        if path in self.kinds:
            found = self.kinds[path]
            return {"resources": [{"name": n, "kind": k, "namespaced": s} for k, n, s in found]}
        if path.startswith("/apis/") and path.count("/") == 3:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        self.requests.append((method, path, query))
        if method == "POST":
            return self._create(path, query, body)
        if method == "GET" and path.endswith("/secrets"):
            return {"items": self._secrets(path, query)}
        if method == "PATCH" and isinstance(body, dict) and path not in self.objects:
            return self._create(path.rpartition("/")[0], query, body, "Apply")
        if path not in self.objects:
            kind = path.split("/")[-2]
            raise Refused(404, "NotFound", f'{kind} "{path.split("/")[-1]}" not found', kind)
        if method == "GET":
            return copy.deepcopy(self.objects[path])
        if method == "DELETE":
            if self.objects[path]["metadata"].get("finalizers"):
                self.change(path, lambda obj: obj["metadata"].update(deletionTimestamp="now"))
            else:
                for inside in [each for each in self.objects if each.startswith(f"{path}/")]:
                    self.remove(inside)
                self.remove(path)
            return {"kind": "Status", "status": "Success"}
        if method == "PUT":
            return self.put(path, body)
        return self._patch(path, query, body)

    def _secrets(self, path: str, query: dict[str, str]) -> list[Object]:
        asked = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
        found = [copy.deepcopy(obj) for each, obj in self.objects.items() if each.startswith(f"{path}/")]
        return [obj for obj in found if asked.items() <= obj["metadata"].get("labels", {}).items()]

    def _create(self, path: str, query: dict[str, str], body: Object, how: str = "Update") -> Object:
        place = f"{path}/{body['metadata']['name']}"
        parts = path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-1] else None
        if namespace and f"/api/v1/namespaces/{namespace}" not in self.objects:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found', "namespaces")
        if place in self.objects:
            name = body["metadata"]["name"]
            raise Refused(409, "AlreadyExists", f'{parts[-1]} "{name}" already exists', parts[-1])
        made = copy.deepcopy(body)
        made["metadata"]["managedFields"] = [_owner(query.get("fieldManager", "helm"), how, body)]
        made["metadata"]["generation"] = 1
        if query.get("dryRun"):
            return {**made, "metadata": {**made["metadata"], "uid": "trial"}}
        return self.put(place, made)

    def _patch(self, path: str, query: dict[str, str], body: Any) -> Object:
        obj = copy.deepcopy(self.objects[path])
        if isinstance(body, list):  # a JSON patch
            for step in body:
                *parents, last = step["path"].strip("/").split("/")
                target = obj
                for key in parents:
                    target = target[key]
                target[last] = step["value"]
            return self.put(path, obj)
        manager, owners = query["fieldManager"], obj["metadata"].setdefault("managedFields", [])
        mine = next((i for i in owners if i["manager"] == manager and i["operation"] == "Apply"), None)
        wanted = _fields(body)
        others = set().union(*(_leaves(i["fieldsV1"]) for i in owners if i is not mine))
        clashes = sorted(leaf for leaf in _leaves(wanted) & others if _at(obj, leaf) != _at(body, leaf))
        if clashes and query.get("force") != "true":
            raise Refused(409, "Conflict", f"Apply failed with 1 conflict: {clashes[0]}")
        for leaf in _leaves(mine["fieldsV1"]) - _leaves(wanted) - others if mine else ():
            _drop(obj, leaf)
        _lay(obj, body)
        kept = [i for i in owners if i is not mine]
        obj["metadata"]["managedFields"] = [*kept, _owner(manager, "Apply", body)] if wanted else kept
        if query.get("dryRun"):
            return obj
        return self.put(path, obj)

    def watch(self, path: str, query: dict[str, str], send: Callable[[Object], None]) -> None:
        place = f"{path}/{query['fieldSelector'].removeprefix('metadata.name=')}"
        seen = query.get("resourceVersion", "")
        end = time.monotonic() + float(query["timeoutSeconds"])
        while (left := end - time.monotonic()) > 0:
            with self._changed:
                obj = copy.deepcopy(self.objects.get(place))
                if obj and obj["metadata"]["resourceVersion"] == seen:
                    self._changed.wait(left)
                    continue
            if obj is None:
                send({"type": "DELETED", "object": {"metadata": {}}})
                return
            seen = obj["metadata"]["resourceVersion"]
            send({"type": "MODIFIED", "object": obj})


class _Handler(BaseHTTPRequestHandler):
    api: ToyApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _handle(self) -> None:
        url = urlparse(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        if query.get("watch"):
            self._watch(url.path, query)
            return
        try:
            code, answer = 200, self.api.answer(self.command, url.path, query, body)
        except Refused as error:
            code, answer = error.code, error.status
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, path: str, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

        def send(event: Object) -> None:
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()

        try:
            self.api.watch(path, query, send)
        except (BrokenPipeError, ConnectionResetError):
            return

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def log_message(self, *words: Any) -> None:
        """Stay quiet."""


_IDENTITY = ("apiVersion", "kind")


def _fields(obj: Any, top: bool = True) -> Object:
    if not isinstance(obj, dict):
        return {}
    hidden = _IDENTITY if top else ()
    found = {f"f:{key}": _fields(value, False) for key, value in obj.items() if key not in hidden}
    if top:
        for key in ("f:name", "f:namespace"):
            found.get("f:metadata", {}).pop(key, None)
        if not found.get("f:metadata"):
            found.pop("f:metadata", None)
    return found


def _owner(manager: str, operation: str, obj: Object) -> Object:
    return {"manager": manager, "operation": operation, "fieldsV1": _fields(obj)}


def _leaves(fields: Object, path: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in fields.items():
        here = f"{path}/{key.removeprefix('f:')}"
        found |= _leaves(value, here) if value else {here}
    return found


def _at(obj: Any, leaf: str) -> Any:
    for key in leaf.strip("/").split("/"):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _drop(obj: Any, leaf: str) -> None:
    *parents, last = leaf.strip("/").split("/")
    for key in parents:
        obj = obj.get(key, {})
    obj.pop(last, None)


def _lay(into: Object, wanted: Object) -> None:
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _lay(into[key], value)
        else:
            into[key] = copy.deepcopy(value)
