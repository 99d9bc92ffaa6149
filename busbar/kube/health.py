"""The checks that a cluster works, beyond having what was applied; they ask its API."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from pydantic import Field

from busbar.config import Cluster
from busbar.exits import Failed
from busbar.finding import STACK, Finding, Fix
from busbar.kube.client import Api, ApiError, JsonObject, RestApi
from busbar.kube.nodes import NODES
from busbar.kube.wait import Clock, Deadline, ProgressCallback, SystemClock, TimedOut, lasting, wait_until
from busbar.models import StrictModel
from busbar.names import VALIDATION_NAMESPACE
from busbar.text import listed

POLL_SECONDS = 2
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
# Each renews its Lease every 2 s, and another server takes it over after 15 s.
RENEWED_WITHIN = timedelta(minutes=1)
ENDPOINTS = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
# The API server gives up a request after this time, also while it waits for a webhook.
_DRY_RUN = "dryRun=All&timeout=10s"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_WEBHOOK_KINDS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
# kubernetes/apiserver pkg/admission/plugin/webhook/errors/statuserror.go; a refusal has another text.
_FAILED = "failed calling webhook"
_NAMED = 4


def problem(what: str, fix: Fix | str, host: str = "cluster") -> Finding:
    """Find something that only the site can repair, by default not of one host."""
    return Finding((host,), what, fix, kind="site")


def await_health(kubeconfig: str, cluster: Cluster, clock: Clock | None = None) -> list[Finding]:
    """The problems that last. Raises as `lasting`, and ValueError for an unusable kubeconfig."""
    api = RestApi(kubeconfig)
    return lasting(lambda: problems(api, cluster), clock or SystemClock())


def problems(api: Api, cluster: Cluster) -> list[Finding]:
    """Return what the cluster cannot do; all questions are asked at once. Raises ApiError."""
    questions: list[Callable[[], Iterator[Finding]]] = [
        lambda: _controllers(api),
        lambda: _pod_networks(api, cluster.k3s.cluster_cidr),
    ]
    if cluster.validation.enabled:
        questions.append(lambda: _admission(api, cluster.validation.image))
    if "coredns" not in cluster.k3s.disable:
        questions.append(lambda: _dns(api))
    with ThreadPoolExecutor(len(questions)) as pool:
        return [each for found in pool.map(lambda ask: [*ask()], questions) for each in found]


def _controllers(api: Api) -> Iterator[Finding]:
    """Find a controller manager or scheduler that does not run on any server, though all API servers do."""
    made, refusal = _try(api, LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"})
    if refusal:
        yield refusal
        return
    # The clock of the API server.
    now = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    leases = {each["metadata"]["name"]: each.get("spec") or {} for each in api.list(LEASES)}
    for name in CONTROLLERS:
        renewed = leases.get(name, {}).get("renewTime")
        if renewed is None or now - datetime.fromisoformat(renewed) > RENEWED_WITHIN:
            since = f"has not renewed its Lease since {renewed}" if renewed else "has no Lease"
            what = f"{name} {since}: no server runs it"
            yield problem(what, f"journalctl -u k3s on each server says why it ends; look for {name}")


def _pod_networks(api: Api, cluster_cidr: str) -> Iterator[Finding]:
    parts = {each["metadata"]["name"]: (each.get("spec") or {}).get("podCIDR") for each in api.list(NODES)}
    wrong = [name for name, part in parts.items() if part and outside([part], cluster_cidr)]
    if wrong:
        named = listed([f"{name} {parts[name]}" for name in wrong], _NAMED)
        fix = Fix("write back the value of k3s.cluster_cidr that contains them, then", ("up", STACK))
        yield problem(f"pod networks of Nodes are outside k3s.cluster_cidr {cluster_cidr}: {named}", fix)


def outside(networks: Iterable[str], whole: str) -> list[str]:
    """Return the networks that are not within the whole one."""
    around = ipaddress.ip_network(whole)
    parts = {each: ipaddress.ip_network(each) for each in networks}
    return [
        text
        for text, part in parts.items()
        if not (part.network_address in around and part.broadcast_address in around)
    ]


def _dns(api: Api) -> Iterator[Finding]:
    slices = api.list(ENDPOINTS, labelSelector="kubernetes.io/service-name=kube-dns")
    endpoints = [endpoint for each in slices for endpoint in each.get("endpoints") or []]
    if not any((each.get("conditions") or {}).get("ready") for each in endpoints):
        what = "CoreDNS has no ready pod, so pods resolve no names"
        yield problem(what, "kubectl -n kube-system describe pods -l k8s-app=kube-dns says why")


def _admission(api: Api, image: str) -> Iterator[Finding]:
    container = {"name": "verify", "image": image, "command": ["true"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"restartPolicy": "Never", "containers": [container]}}
    _, refusal = _try(api, f"/api/v1/namespaces/{VALIDATION_NAMESPACE}/pods", pod)
    if refusal:
        yield refusal


def _try(api: Api, path: str, body: JsonObject) -> tuple[JsonObject, Finding | None]:
    """Have the API admit an object without creating it: the object, or why it is refused."""
    metadata = {"name": "busbar-verify"}
    kind, namespace = body["kind"], path.split("/namespaces/")[1].split("/")[0]
    try:
        return api.create(f"{path}?{_DRY_RUN}", {**body, "metadata": metadata}), None
    except ApiError as error:
        if error.status is None:
            raise
        what = f"a {kind} in namespace {namespace} is not admitted: {error.reason}"
        fix: Fix | str = f"change the policy or quota that the answer names, or exempt {namespace} from it"
        if error.not_found:
            fix = Fix(command=("up", STACK, "--converge", "cluster"), when=", which makes the namespace anew")
        elif silent := _silent_webhooks(api, error):
            fix = f"repair what serves {listed(silent, _NAMED)}, or delete it (kubectl delete KIND NAME)"
        return {}, problem(what, fix)


def _silent_webhooks(api: Api, error: ApiError) -> list[str]:
    """The configurations of the webhook that did not answer; of all where the API server ended the wait."""
    found = []
    for kind in _WEBHOOK_KINDS if error.status == 504 or _FAILED in error.reason else ():
        for each in api.list(f"{_WEBHOOKS}/{kind.lower()}s"):
            names = [webhook["name"] for webhook in each.get("webhooks") or []]
            if error.status == 504 or any(f'{_FAILED} "{name}"' in error.reason for name in names):
                found.append(f"{kind} {each['metadata']['name']}")
    return found


class EndpointSpec(StrictModel):
    """The JSON that `busbar wait api` reads on stdin."""

    setting: str = Field(description="The key of its address, for the error message.")
    fix: str = Field(description="What to check where it is not responding.")
    deadline_seconds: float = Field(gt=0)


def await_endpoint(api: Api, spec: EndpointSpec, clock: Clock, progress: ProgressCallback) -> None:
    """Return when /readyz answers 200 with a certificate of the cluster's CA. Raises Failed."""
    deadline = Deadline(clock, spec.deadline_seconds)

    def ask() -> None:
        for _ in api.stream("/readyz"):
            pass

    try:
        # Any answer may change: a load balancer that knows no server yet answers for itself.
        wait_until(ask, deadline, poll_seconds=POLL_SECONDS, progress=progress, retry_on=lambda _: True)
    except TimedOut as error:
        raise Failed(f"{spec.setting}: {error}. Fix: {spec.fix}; then retry") from None
