"""Wait until the Kubernetes API answers at an address with no load balancer of busbar behind it."""

from __future__ import annotations

from pydantic import Field

from busbar.exits import Failed
from busbar.kube.client import Api
from busbar.kube.wait import Clock, Deadline, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel

POLL_SECONDS = 2.0


class EndpointSpec(StrictModel):
    """The JSON that `busbar wait api` reads on stdin."""

    setting: str = Field(description="The key of its address, for the error message.")
    fix: str = Field(description="What to check where it is not responding.")
    deadline_seconds: float = Field(gt=0)


class NotReachable(Failed):
    """The API did not respond at the endpoint; the text has the last reason and what to do."""


def wait(api: Api, spec: EndpointSpec, clock: Clock, progress: ProgressCallback) -> None:
    """Return when /readyz answers 200 with a certificate of the cluster's CA. Raises NotReachable."""
    deadline = Deadline(clock, spec.deadline_seconds)

    def ask() -> None:
        for _ in api.stream("/readyz"):
            pass

    try:
        # Any answer may change: a load balancer that knows no server yet answers for itself.
        wait_until(ask, deadline, poll_seconds=POLL_SECONDS, progress=progress, retry_on=lambda _: True)
    except TimedOut as error:
        raise NotReachable(f"{spec.setting}: {error}. Fix: {spec.fix}; then retry") from None
