"""What a removal must restore on a host: files, packages, units, network, packet filter, sysctls."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

# Rows "KIND<tab>NAME<tab>VALUE". Files are told by mode, owner and content, below /usr by their size.
SCRIPT = r"""
export LC_ALL=C
set -f
persistent="/boot /etc /home /opt /root /srv /usr /var"
# What the operating system itself writes all the time; further below, what it starts when it is asked.
changing="-path /var/cache -o -path /var/log/journal -o -path /var/log/?tmp -o -path /var/log/lastlog"
changing="$changing -o -path /var/lib/systemd -o -path /var/tmp"
find $persistent \( $changing \) -prune -o -type f -path '/usr/*' -printf 'file\t%p\t%m %U:%G %s bytes\n' \
  -o -type l -printf 'file\t%p\t-> %l\n' -o -printf 'file\t%p\t%y %m %U:%G\n'
find $persistent \( $changing -o -path /usr \) -prune -o -type f -print0 | xargs -0 -r sha256sum |
  sed -E 's/^\\?([0-9a-f]{64})  (.*)$/content\t\2\t\1/'
dpkg-query -W -f 'package\t${Package}\t${Version} ${db:Status-Abbrev}\n'
listed="--no-legend --no-pager --plain"
systemctl list-unit-files $listed | awk '$2 != "transient" { print "unit\t" $1 "\t" $2 }'
systemctl list-units --type=service --state=running,failed $listed |
  awk '$1 !~ /^(user@|systemd-(timedate|hostname|locale)d[.])/ { print "service\t" $1 "\t" $4 }'
awk '$2 !~ "^/run/(user|credentials)/" { print "mount\t" $2 "\t" $1 " " $3 }' /proc/self/mounts
ip -o link show | awk -F ': ' '{ sub(/@.*/, "", $2); print "interface\t" $2 "\t" }'
ip -o addr show | awk '{ print "address\t" $2 " " $4 "\t" }'
ip route show table main | awk '{ print "route\t" $0 "\t" }'
for save in iptables-save ip6tables-save; do
  $save | awk -v save=$save '/^\*/ { table = save " " $1 }
    /^-/ || (/^:/ && $2 == "-") { print "rule\t" table " " (/^:/ ? $1 : $0) "\t" }
    /^:/ && $2 != "-" && $2 != "ACCEPT" { print "rule\t" table " " $1 "\t" $2 }'
done
sysctl -a 2>/dev/null | sed -nE 's/^([^ ]+) = (.*)$/sysctl\t\1\t\2/p'
"""
KINDS = frozenset(
    "file content package unit service mount interface address route rule sysctl".split()  # noqa: SIM905
)
State = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Tolerated:
    """Differences of one kind whose names match `names` as a whole, and why they may be there."""

    kinds: str
    names: str
    why: str

    def covers(self, kind: str, name: str) -> bool:
        """Whether it is one of these."""
        return bool(re.fullmatch(self.kinds, kind) and re.fullmatch(self.names, name))


TOLERATED = (
    Tolerated(
        "file|content",
        r"/etc/rancher(/node(/password)?)?",
        "with it this machine may join again while a Node of its name exists (docs/hosts.md)",
    ),
    Tolerated(
        "sysctl",
        r"vm\.(overcommit_memory|panic_on_oom)|kernel\.(panic|panic_on_oops|keys\.root_max(bytes|keys))"
        r"|net\.(nf_conntrack_max|netfilter\..*|bridge\..*)|net\.ipv4\.(ip_forward|vs\..*)"
        r"|net\.ipv[46]\.conf\.[^.]+\.(forwarding|route_localnet|accept_redirects|send_redirects)",
        "in the running kernel, until the next reboot: others may rely on them by then",
    ),
    Tolerated(
        "sysctl",
        r"fs\.(aio-nr|dentry-state|file-nr|inode-nr|inode-state|quota\..*)"
        r"|kernel\.(ns_last_pid|pty\.nr|random\..*|sched_domain\..*)",
        "the kernel counts or draws it",
    ),
    Tolerated(
        "file|content",
        r"/var/lib/haproxy/dev/log",
        "the unit of Debian's haproxy package makes this mount point at every start (BindReadOnlyPaths)",
    ),
    Tolerated(
        "route",
        r".* proto 77 ?",
        "of the lab's replacement of K3s, which has plain routes; those of VXLAN go with its interface",
    ),
)


def parse(text: str, absent: Set[str] = frozenset()) -> State:
    """What SCRIPT printed: (kind, name) -> value.

    Raises ValueError if a kind is missing; a host may have nothing of those in `absent`.
    """
    found: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        kind, name, value = line.split("\t", 2)
        key = kind, name
        # Mounts on one folder lie over each other, and each of them counts.
        found[key] = f"{found[key]}, {value}" if key in found else value
    if missing := KINDS - absent - {kind for kind, _ in found}:
        raise ValueError(f"the host reported nothing of these kinds: {', '.join(sorted(missing))}")
    return found


def differences(before: State, after: State) -> tuple[list[str], list[str]]:
    """What differs, as lines: what has no reason to differ, and what is tolerated, with the reason."""

    def shown(value: str | None) -> str:
        return "absent" if value is None else value or "present"

    wrong, tolerated = [], []
    for kind, name in sorted(before.keys() | after.keys()):
        was, is_now = before.get((kind, name)), after.get((kind, name))
        if was == is_now:
            continue
        line = f"{kind} {name}: {shown(was)} -> {shown(is_now)}"
        reason = next((each.why for each in TOLERATED if each.covers(kind, name)), None)
        if reason is None:
            wrong.append(line)
        else:
            tolerated.append(f"{line} ({reason})")
    return wrong, tolerated
