"""What the providers would answer on a site where everything works."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pulumi.runtime import mocks

from busbar.collect.spec import settings_of
from busbar.judge.archive import Record
from busbar.manifests.mpijob import nodes_of
from busbar.outputs.contract import summarize
from busbar.preflight.facts import HostRecord, pack
from tests.program.harness import COMMAND, LOCAL, RELEASE, Run, run_program
from tests.support.verdicts import passing

TOKEN = "MOCK-TOKEN"
CA_PEM = "-----BEGIN CERTIFICATE-----\nMOCK\n-----END CERTIFICATE-----\n"
CLIENT_KEY = "MOCK-CLIENT-KEY"
KUBECONFIG = f"""\
apiVersion: v1
kind: Config
clusters:
- name: default
  cluster: {{server: "https://127.0.0.1:6443", certificate-authority-data: TU9DSw==}}
users: [{{name: default, user: {{client-key-data: {CLIENT_KEY}}}}}]
contexts: [{{name: default, context: {{cluster: default, user: default}}}}]
current-context: default
"""
SERVER_FACTS = {"ca_pem": CA_PEM, "ca_sha256": "c" * 64, "version": "v1.35.6+k3s1", "ready": True}

Verdicts = Callable[[str], Mapping[str, Any] | str]
"""From the name of a collecting Command to the verdict that it prints (or to any other text)."""

# By its name, which is a digest of the job.
_JOBS: dict[str, Mapping[str, Any]] = {}


def healthy(
    cluster: Mapping[str, Any],
    verdict: Verdicts = lambda _: passing(),
    instead: Mapping[str, Mapping[str, Any] | Exception] | None = None,
    machines: Mapping[str, str] | None = None,
) -> Callable[[mocks.MockResourceArgs], Mapping[str, Any]]:
    """The answers of a site with the hosts of `cluster`, where every step succeeds.

    `instead`: by the name of a resource what it answers instead, or how it fails. `machines`: host -> digest
    of its machine-id, where that is not the usual one.
    """
    facts = {
        name: HostRecord("fingerprint", (machines or {}).get(name, f"machine-{name}"), _facts(role))
        for role, group in (("lb", "load_balancers"), ("server", "servers"), ("worker", "workers"))
        for name in (host["name"] for host in cluster["hosts"][group])
    }

    def answer(args: mocks.MockResourceArgs) -> Mapping[str, Any]:
        if found := (instead or {}).get(args.name):
            if isinstance(found, Exception):
                raise found
            return found
        if args.typ == "random:index/randomPassword:RandomPassword":
            return {"result": f"{TOKEN}-{args.name}"}
        if args.typ == RELEASE:
            return {"status": {"version": args.inputs.get("version", "0.1.0"), "status": "deployed"}}
        if args.typ == COMMAND:
            return {
                "stdout": json.dumps({"kubeconfig": KUBECONFIG})
                if "kubeconfig" in args.name
                else json.dumps(SERVER_FACTS),
                "stderr": "",
            }
        if args.typ.endswith(":MPIJob"):
            # The mocks have floats for all numbers.
            _JOBS[args.inputs["metadata"]["name"]] = json.loads(json.dumps(args.inputs), parse_float=_number)
        if args.typ == LOCAL:
            return {"stdout": _local(args), "stderr": ""}
        return {}

    def _local(args: mocks.MockResourceArgs) -> str:
        command = args.inputs.get("create", "")
        if "preflight" in command:
            return pack(facts)
        if "collect" in command:
            found = verdict(args.name)
            if isinstance(found, str):
                return found
            record = _record(json.loads(args.inputs["stdin"]))
            return json.dumps(summarize(found, config_map=f"jobs/{args.name}", record=record))
        return json.dumps({"resource": "mock", "nodes": {}})

    return answer


def _number(text: str) -> float:
    return int(float(text)) if float(text).is_integer() else float(text)


def _record(spec: Mapping[str, Any]) -> Record:
    job, expectation = _JOBS[spec["job"]], spec["expectation"]
    return Record(
        job_uid="u-1",
        pool=job["metadata"]["labels"]["busbar/pool"],
        kind="update",
        folder=spec["folder"],
        nodes=nodes_of(job),
        measured_at=None,
        settings=dict(settings_of(job, expectation, iterations=20, warmup=5)),
        expectation=expectation,
        complete=True,
    )


def _facts(role: str) -> dict[str, Any]:
    worker = {"gpus": 8, "rails": 8, "gpu_model": "H100", "rail_pci": ["0000:1b:00.0"], "other_pci": []}
    return worker if role == "worker" else {}


def performed(cluster: Mapping[str, Any], **options: Any) -> Run:
    """An update of a site where every step succeeds, which ends well."""
    done = run_program(cluster, healthy(cluster), **options)
    assert done.error is None
    return done
