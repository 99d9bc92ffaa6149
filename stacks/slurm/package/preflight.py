"""Preflight of Slurm's hosts: the core's queries and hardware checks, and the checks for Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from busbar.finding import STACK, Finding, Fix, error, of_host, warning
from busbar.hosts import nfs, scripts
from busbar.hosts.inventory import Host, Login, host_of
from busbar.hosts.remote import Hosts
from busbar.manifests import shell
from busbar.manifests.launcher import PROGRAM_FOLDERS
from busbar.manifests.names import digest
from busbar.preflight import spec as core
from busbar.preflight.cross_checks import duplicate_machine_ids, pool_mismatches, pools_of, port_mismatches
from busbar.preflight.facts import HostRecord, with_warnings
from busbar.preflight.hardware_checks import check_hardware
from busbar.preflight.health_checks import check_health
from busbar.preflight.host_checks import check_clock, check_system, host_facts
from busbar.preflight.nfs_checks import check_client, check_server
from busbar.preflight.report import Report
from busbar.preflight.spec import Answer, HostRequirements, query, requirements_key
from busbar.preflight.survey import Outcome, is_gone, left_out, query_all
from busbar.text import listed
from stacks.slurm.package.config import SYSTEM_UIDS, Slurm
from stacks.slurm.package.render import CONTROLLER_PORT

SURVEY = "slurm/survey"
# Looks for programs as the job of the measurement does.
_FIND = shell.script({"PROGRAM_FOLDERS": PROGRAM_FOLDERS, "PROGRAM_FIX": "install it"}, "nccl-lib")
PORTS = {"slurmctld": (CONTROLLER_PORT,), "slurmdbd": (6819,), "slurmd": (6818,)}
# The first release with auth/slurm and the command sackd (Slurm's RELEASE_NOTES of 23.11).
OLDEST = (23, 11)
# Largest distance between daemons, in releases (Slurm's upgrade guide).
RELEASES_APART = 3
MIN_FREE_BYTES = 1e9
# File systems that no two hosts can mount from one disk.
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs")
# The uid:gid in Debian's and Ubuntu's packages (debian/slurm-wlm-basic-plugins.preinst).
PACKAGE_IDS = "64030:64030"


# No host is asked again for these.
_OF_NO_HOST = ("controller", "cancel_jobs")


class Spec(core.Spec):
    """The stdin of `busbar slurm preflight`: hosts and hardware as for the core, and values for Slurm."""

    cluster: str
    """The name of the cluster."""
    controller: str
    """Name of the controller's host."""
    accounting: bool
    packages: str
    """`os`, or a folder with .deb files; `containers`: empty, or a folder with those of enroot and pyxis."""
    containers: str
    home_path: str
    home_shared: bool
    users: dict[str, int]
    create_users: bool
    programs: tuple[str, ...]
    """The programs of nccl-tests that compute hosts must have."""
    cancel_jobs: bool = False
    """Whether a controller without the state may end all jobs."""

    def role_of(self, host: Host) -> str:
        front = "controller" if host.name == self.controller else "login"
        return "compute" if host.role == "worker" else front

    def fingerprint(self, host: Host) -> str:
        own = [
            self.model_dump(include={*Spec.model_fields} - {*core.Spec.model_fields, *_OF_NO_HOST}),
            [scripts.part(SURVEY), host.name == self.controller, self.nfs and self.nfs.address],
        ]
        return digest({"core": super().fingerprint(host), "own": own})[:12]

    def values(self, host: Host) -> dict[str, str]:
        values = {**super().values(host), "SLURM_PACKAGES": self.packages, "HOME_PATH": self.home_path}
        values["CONTAINERS"] = self.containers
        values["PROGRAMS"] = " ".join(self.programs) if host.role == "worker" else ""
        values["USERS"] = " ".join(f"{name}:{uid}" for name, uid in self.users.items())
        if self.nfs and host.name != self.nfs.host:
            values["NFS_SERVER"] = self.nfs.address
        if host.name == self.controller:
            values["NAMES"] = " ".join(each.name for each in self.hosts)
        return values

    def daemons(self, host: Host) -> tuple[str, ...]:
        """The daemons that listen on this host."""
        if host.role == "worker":
            return ("slurmd",)
        accounting = ("slurmdbd",) if self.accounting else ()
        return ("slurmctld", *accounting) if host.name == self.controller else ()


def hosts_of(slurm: Slurm) -> tuple[Host, ...]:
    """The controller, the login and the compute hosts, in the core's roles of front and worker."""
    ssh = slurm.ssh
    listed = [
        *(("lb", host, None) for host in slurm.fronts),
        *(("worker", host, slurm.pool_of(host)) for host in slurm.hosts.compute),
    ]
    return tuple(host_of(host, role, ssh, pool) for role, host, pool in listed)


def spec_of(slurm: Slurm, login: Login | None = None) -> Spec:
    """The spec without install_id."""
    required = {"lb": HostRequirements(min_disk_gb=1)}
    for name, pool in slurm.pools.items():
        required[requirements_key("worker", name)] = HostRequirements(
            **pool.required,
            min_disk_gb=1,
            transport=slurm.validation_of(name).required_transport,
            **core.table_indexes(pool.link_layer, slurm.validation_of(name).env),
        )
    export, clients = home_export(slurm)
    # A job with a PATH of its own may find other programs.
    on_host = slurm.validation.enabled and not (slurm.validation.image or "PATH" in slurm.validation.env)
    # The export need not be writable for nobody, because homes are made as root.
    export_needs = core.nfs_requirements(export, clients) if export else None
    return Spec(
        login=login or Login(),
        hosts=hosts_of(slurm),
        requirements=required,
        nfs=export_needs and export_needs.model_copy(update={"squash": "none"}),
        quarantined=tuple(slurm.quarantine),
        cluster=slurm.name,
        controller=slurm.hosts.controller.name,
        accounting=slurm.accounting.enabled,
        packages=slurm.packages,
        containers=slurm.container_packages or "",
        home_path=slurm.home.folder,
        home_shared=slurm.home.shared,
        users={name: user.uid for name, user in slurm.users.accounts.items()},
        create_users=slurm.users.create,
        cancel_jobs=slurm.removal.cancel_jobs,
        programs=tuple(f"{each}_perf" for each in slurm.validation.collectives) if on_host else (),
    )


def home_export(slurm: Slurm) -> tuple[nfs.Export | None, tuple[Host, ...]]:
    """The export of the homes, and the hosts that mount it; none without home.nfs."""
    server = next((host for host in hosts_of(slurm) if host.name == slurm.home_host), None)
    if server is None or slurm.home.nfs is None:
        return None, ()
    return nfs.Export(server, slurm.home.nfs), tuple(host for host in hosts_of(slurm) if host != server)


async def survey(spec: Spec, previous: Mapping[str, HostRecord], *, is_installed: bool = False) -> Outcome:
    """Query every host whose requirements have changed since `previous`, in parallel; nothing is changed.

    A compute host that passed before, or of a cluster that `is_installed`, and is not responding now is a
    warning. With a controller that must be queried, which may be another machine, every host is. Raises
    ValueError if the SSH key or the ssh-agent cannot be used.
    """
    known = {name: each.fingerprint for name, each in previous.items()}
    moves = bool(previous) and known.get(spec.controller) != next(
        spec.fingerprint(host) for host in spec.hosts if host.name == spec.controller
    )
    records = {
        host.name: previous[host.name]
        for host in spec.hosts
        if not moves and host.name in previous and previous[host.name].fingerprint == spec.fingerprint(host)
    }
    hosts = [host for host in spec.hosts if host.name not in records]

    async def ask(on: Hosts, host: Host) -> Answer | Finding:
        return await query(on, host, spec.values(host), also=_FIND + scripts.part(SURVEY))

    answers = await query_all(spec.login, hosts, ask) if hosts else {}
    findings: list[Finding] = []
    for host in hosts:
        answer = answers[host.name]
        if isinstance(answer, Finding):
            before, held = previous.get(host.name), host.name in spec.quarantined
            if (held or is_gone(host, answer)) and (before or is_installed):
                answer = left_out(answer, "measurement" if is_installed else "update")
            if before and answer.kind == "warning":
                # It is asked again the next time.
                records[host.name] = replace(before, fingerprint="")
            findings.append(answer)
            continue
        report = answer.report
        findings += of_host(host.name, check(spec, host, report, answer.clock))
        records[host.name] = HostRecord(spec.fingerprint(host), report.machine, facts_of(spec, host, report))
    findings += check_across(spec, records)
    if moves:
        reports = {name: each.report for name, each in answers.items() if isinstance(each, Answer)}
        findings += _other_controller(spec, reports, [*previous])
    records = with_warnings(records, findings)
    failed = {finding.host for finding in findings if finding.kind == "error"}
    return Outcome(findings, {name: each for name, each in records.items() if name not in failed}, len(hosts))


def facts_of(spec: Spec, host: Host, report: Report) -> dict[str, Any]:
    """The facts to store of a host: the core's and those for Slurm. None changes on its own.

    Expected values are left out, so that equal hosts have equal facts (busbar.preflight.facts).
    """
    also = report.also
    kept = host_facts(spec.requirements_of(host), report)
    kept |= {"slurm": version_text(spec, report), "cgroup": report.cgroup, "slurm_ids": also["slurm_ids"]}
    if also["hostname"] != host.name:
        kept["hostname"] = also["hostname"]
    if spec.packages != "os":
        kept["pmix"] = bool(also["pmix"])
    if spec.home_shared:
        kept["home"] = also["home"]
    if host.role == "worker":
        kept |= {key: also[key] for key in ("sockets", "cores", "threads", "gpu_minors")}
        kept |= {"cpus": report.cpus, "memory_bytes": report.memory_bytes // 2**28 * 2**28}
    return kept


def version_text(spec: Spec, report: Report) -> str:
    """The version after the update: an installed one of the operating system is not changed."""
    installed, available = str(report.also["installed"]), str(report.also["available"])
    return installed or available if spec.packages == "os" else available


def release(text: str) -> tuple[int, int] | None:
    """The release in a version: (24, 11) for `24.11.5-4+deb13u1`; None if the text is not a version."""
    found = re.match(r"(?:\d+:)?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def check(spec: Spec, host: Host, report: Report, clock: tuple[float, float]) -> Iterator[Finding]:
    """The findings of one host; those about the hardware of a host in quarantine are warnings."""
    yield from check_system(report)
    yield from check_clock(report, clock)
    yield from _resources(report)
    yield from _owners(spec, report)
    yield from _name(spec, host, report)
    yield from _ports(spec, host, report)
    yield from _version(spec, report)
    yield from _users(spec, report)
    if spec.nfs and host.name == spec.nfs.host:
        yield from check_server(spec.nfs, report, "home.nfs")
    elif spec.nfs:
        yield from check_client(spec.nfs, host, report)
    if report.unresolved:
        yield warning(
            f"cannot resolve {', '.join(report.unresolved)}: slurmctld waits for the name of the host that a "
            "job comes from",
            "enter all hosts in DNS, or in /etc/hosts of this one",
        )
    if host.role == "worker":
        required = spec.requirements_of(host)
        for each in [
            *check_hardware(required, report),
            *check_health(required, report),
            *_devices(required, report),
            *_programs(report),
        ]:
            quarantined = host.name in spec.quarantined
            yield warning(f"{each.what} (in quarantine)", each.fix) if quarantined else each


def _resources(report: Report) -> Iterator[Finding]:
    if not report.tmp_is_writable:
        yield error(
            "/tmp has no room for a file of 1 MB, and the scripts of busbar need one there", "see df -h /tmp"
        )
    for disk in report.disks:
        if disk.free_bytes < MIN_FREE_BYTES:
            yield error(
                f"{disk.free_bytes / 1e9:.1f} GB free on {disk.path}, expected 1 GB", "free some space"
            )


def _owners(spec: Spec, report: Report) -> Iterator[Finding]:
    """Refuse hosts of another scheduler: two schedulers would assign the same GPUs twice."""
    active = {"k3s", "k3s-agent", "rke2-server", "rke2-agent", "kubelet"} & {
        *report.active_units,
        *report.managed,
    }
    role, owner = str(report.also["role"]), report.owner
    if active or report.k3s_data:
        yield error(
            f"is a node of a Kubernetes cluster ({', '.join(sorted(active)) or 'K3s has run here'}), which "
            "gives out the same GPUs",
            "use another host, or remove it there first",
        )
    elif owner.owner and not role.startswith("Slurm"):
        yield error(
            f"is a {role} of another cluster ({owner.owner})", "use another host, or remove it there first"
        )
    elif owner.install_id and spec.install_id is not None and owner.install_id != spec.install_id:
        yield error(f"belongs to another cluster ({owner.owner})", "remove it there first")
    if foreign := report.also["foreign"]:
        yield error(
            f"has a Slurm that busbar did not install: {foreign}",
            "remove that Slurm, or move the file away if nothing uses it",
        )


def _name(spec: Spec, host: Host, report: Report) -> Iterator[Finding]:
    """Refuse another name than that of the state folder (slurmctld's src/slurmctld/controller.c)."""
    first = str(report.also["cluster"])
    if host.name == spec.controller and first not in ("", spec.cluster):
        yield error(
            f"name cannot be changed: slurmctld's state is of cluster {first}, the file says {spec.cluster}",
            Fix(
                f"write back name: {first}; for a cluster with another name, make it anew after",
                ("destroy", STACK),
            ),
        )


def _other_controller(spec: Spec, reports: Mapping[str, Report], before: Sequence[str]) -> Iterator[Finding]:
    """Refuse a controller without the state of the cluster that other hosts are in: all jobs would be lost.

    One that has only another name has its state; another machine may have its name.
    """
    new, names = reports.get(spec.controller), {host.name for host in spec.hosts}
    installed = [name for name, each in reports.items() if str(each.also["role"]).startswith("Slurm")]
    if new and not new.also["cluster"] and installed and not spec.cancel_jobs:
        former = listed([name for name in before if name not in names])
        what = (
            f"cannot become the controller: the state of slurmctld, with all jobs, is on "
            f"{former or 'its former machine'}, and {listed(installed)} would leave it"
        )
        fix = Fix(
            f"write back {former or 'its former address'}; or stop slurmctld there and copy "
            "/var/lib/slurm/slurmctld to this host, with owners as numbers (with accounting also slurmdbd "
            "and mariadb, and /var/lib/mysql); where that machine is lost, and all jobs with it, "
            "removal.cancel_jobs: true",
            ("up", STACK),
            when="; then",
        )
        yield Finding((spec.controller,), what, fix)


def _ports(spec: Spec, host: Host, report: Report) -> Iterator[Finding]:
    wanted = {port: daemon for daemon in spec.daemons(host) for port in PORTS[daemon]}
    for listener in report.listening:
        daemon = wanted.get(listener.port)
        # ss truncates a process's name to 15 characters, and slurmctld's thread begins with slurm too.
        if daemon and not listener.process.startswith("slurm"):
            yield error(
                f"TCP port {listener.port} of {daemon} is in use by {listener.process}",
                f"stop {listener.process}",
            )


def _version(spec: Spec, report: Report) -> Iterator[Finding]:
    text = version_text(spec, report)
    found = release(text)
    if found is None and spec.packages == "os":
        # Images that have never run apt-get update have no package lists. The installation runs it.
        yield warning("has no Slurm in its package lists yet, so its version is not known", "apt-get update")
    elif found is None:
        yield error(f"has no slurm-smd-client_*.deb in {spec.packages}", "put SchedMD's .deb files there")
    elif found < OLDEST:
        yield error(
            f"Slurm {text} of {report.os} {report.os_version} is too old: auth/slurm and sackd came with "
            f"{OLDEST[0]}.{OLDEST[1]}",
            "use Debian 13 or Ubuntu 24.04, or set packages to a folder with SchedMD's .deb files",
        )
    if spec.packages != "os" and report.also["slurm_ids"] == ":":
        yield error(
            "has no user slurm, which SchedMD's packages expect",
            "useradd --system slurm, with the same uid on all hosts",
        )
    if missing := report.also["missing_debs"]:
        yield error(f"has no {missing} in {spec.containers}", "put the .deb files of enroot and pyxis there")


def _users(spec: Spec, report: Report) -> Iterator[Finding]:
    """Check the uids of users: Slurm starts a job under the uid that its submitter had."""
    for name, uid in spec.users.items():
        found, owner = report.also["users"][name]
        if found and found != str(uid):
            fix = (
                f"set users.accounts.{name}.uid: {found}, or usermod -u {uid} {name} while nothing of it runs"
            )
            if any(int(found) in uids for uids in SYSTEM_UIDS):
                fix = f"rename it in users.accounts: {name} is an account of the operating system"
            yield error(f"uid of {name} is {found}, expected {uid}", fix)
        elif not found and owner:
            yield error(f"uid {uid} of {name} belongs to {owner}", "give one of them another uid")
        elif not found and not spec.create_users:
            yield error(f"has no user {name}", f"create it with uid {uid}, or set users.create: true")


def _devices(required: HostRequirements, report: Report) -> Iterator[Finding]:
    found = len(report.also["gpu_minors"])
    if found < required.gpus:
        yield error(
            f"{found} device files /dev/nvidia*, expected {required.gpus}: Slurm gives out these files",
            "nvidia-smi as root makes them; at boot: systemctl enable --now nvidia-persistenced",
        )


def _programs(report: Report) -> Iterator[Finding]:
    if missing := report.also["missing_programs"]:
        yield error(
            f"has no {missing} of nccl-tests on PATH or in {', '.join(PROGRAM_FOLDERS)}",
            "install nccl-tests there, set validation.image, or measure nothing (validation.enabled: false)",
        )


def check_across(spec: Spec, records: Mapping[str, HostRecord]) -> Iterator[Finding]:
    """Compare the hosts: machines listed twice, equal users and homes, compatible versions."""
    yield from duplicate_machine_ids(spec, records)
    # A host that is left out has no fingerprint: its facts may answer other questions.
    found = {host.name: records[host.name] for host in spec.hosts if host.name in records}
    known = {name: record.facts for name, record in found.items() if record.fingerprint}
    yield from pool_mismatches(spec, {name: records[name] for name in known})
    yield from port_mismatches(pools_of(spec, known), known)
    ids = {
        name: found["slurm_ids"] if found["slurm_ids"] != ":" else PACKAGE_IDS
        for name, found in known.items()
    }
    yield from _unequal(
        ids,
        "uid:gid of slurm is",
        "stop Slurm there, usermod -u and groupmod -g, chown -R slurm: /var/lib/slurm /var/log/slurm; "
        "or remove the user where Slurm was never installed",
    )
    if spec.home_shared:
        homes = {name: found["home"] or "nothing" for name, found in known.items()}
        fix = f"mount the same file system at {spec.home_path} on every host, or set home.shared: false"
        yield from _unequal(homes, f"{spec.home_path} is on", fix)
        home, *others = {*homes.values()} or {""}
        # Hosts of one image have disks of one name. A bind mount, as in containers, may be of a shared one.
        if len(homes) > 1 and not others and home.partition(" ")[0] in LOCAL and "[" not in home:
            what = f"{spec.home_path} is on {home} on every host, which is a disk of each host"
            yield Finding((spec.controller,), what, fix)
    yield from _same_hostnames(known)
    if ours := known.get(spec.controller):
        yield from _versions_apart(spec, known, release(str(ours["slurm"])))


def _unequal(values: Mapping[str, str], what: str, fix: str) -> Iterator[Finding]:
    first = next(iter(values), "")
    for name, value in values.items():
        if value != values[first]:
            yield Finding((name,), f"{what} {value}, on {first} {values[first]}", fix)


def _same_hostnames(known: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for name, found in known.items():
        hostname = found.get("hostname", name)
        if (first := seen.setdefault(hostname, name)) != name:
            what = f"has the host name {hostname}, as {first}, and slurmd is known by it"
            yield Finding((name,), what, "hostnamectl set-hostname NAME")


def _versions_apart(
    spec: Spec, known: Mapping[str, Mapping[str, Any]], controller: tuple[int, int] | None
) -> Iterator[Finding]:
    """Find daemons that are newer than the controller, or too far behind it."""
    for name, found in known.items():
        own = release(str(found["slurm"]))
        if own is None or controller is None or name == spec.controller:
            continue
        if own > controller:
            what = f"Slurm {found['slurm']} is newer than the controller's {known[spec.controller]['slurm']}"
            yield Finding((name,), what, "upgrade the controller first")
        elif _number(controller) - _number(own) > RELEASES_APART:
            what = f"Slurm {found['slurm']} is more than {RELEASES_APART} releases behind the controller's"
            yield Finding((name,), what, "upgrade this host, or the controller in smaller steps")


def _number(found: tuple[int, int]) -> int:
    """Sequence number of a release. There are two per year: .05 and .11 since 24.05; 23.11 before them."""
    return 2 * found[0] + (found[1] >= 8)
