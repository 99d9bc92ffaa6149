"""`busbar up` that is killed again and again on new hosts, and what a destroy leaves on them.

The last file of these drills: nothing is installed afterwards. BUSBAR_DRILL_SEED repeats the random numbers
of an earlier run.
"""

import base64
import os
import random
import re

import pytest

from lab.hosts import nspawn
from stacks.slurm.lab import topology
from stacks.slurm.lab.hosts import boot
from stacks.slurm.tests.lab.conftest import CONTROLLER, HOSTS, SLURM, Site
from tests.support import host_state
from tests.support.host_state import State
from tests.support.lab import Lab
from tests.support.own_stack import RunningUpdate

pytestmark = pytest.mark.drill

KILLS = 8
# A whole one takes a minute.
EARLIEST, LATEST = 5.0, 30.0
# Homes and data stay: what users and jobs wrote, the database, logs. dpkg and systemd note what they did.
_STAYS = (
    r"(file|content) /(home|root|mnt|srv)(/.*)?"
    r"|(file|content) /var/(lib/mysql|log)(/.*)?"
    r"|(file|content) /var/lib/(dpkg|apt|systemd|ucf|pam)(/.*)?"
    # Users are compared by name; that of the database owns its data.
    r"|(file|content) /etc/(passwd|group|shadow|gshadow|subuid|subgid)-?"
    r"|(file|content) /etc/ld.so.cache|file /var/backups.*"
    # The login that MariaDB made for the data that stay; man pages that the host never had; the lab's boot.
    r"|(file|content) /etc/mysql(/debian\.cnf)?|file /etc/alternatives/[mn]?awk\.1\.gz"
    r"|service busbar-lab-apt\.service"
    r"|sysctl .*"
)


DATA_OWNER = {CONTROLLER: {"mysql"}}


def _users(lab: Lab, host: str) -> set[str]:
    return {*lab.ssh(host, "cut -d: -f1 /etc/passwd /etc/group").split()}


def _state(lab: Lab, host: str) -> State:
    encoded = base64.b64encode(host_state.SCRIPT.encode()).decode()
    # Nothing here sets a packet filter.
    return host_state.parse(lab.ssh(host, f"echo {encoded} | base64 -d | bash"), absent={"rule"})


def _boot_new_hosts() -> None:
    """Hosts of these names on which nothing was ever installed."""
    for host in topology.HOSTS:
        nspawn.stop(nspawn.folder(host))
    boot()


def test_the_ninth_update_completes_eight_killed_ones_and_a_destroy_leaves_data_only(made: Lab) -> None:
    site = Site(made)
    code, text = site.busbar("destroy", "dev", "--yes")
    assert code == 0, text
    _boot_new_hosts()
    before = {host: _state(made, host) for host in HOSTS}
    users = {host: _users(made, host) for host in HOSTS}
    seed = int(os.environ.get("BUSBAR_DRILL_SEED") or random.SystemRandom().randrange(10**6))
    print(f"BUSBAR_DRILL_SEED={seed}")
    chance = random.Random(seed)
    for number in range(1, KILLS + 1):
        seconds = chance.uniform(EARLIEST, LATEST)
        update = RunningUpdate(SLURM, made.environment, made.temporary)
        ended = update.ended_within(seconds)
        update.kill()
        print(f"update {number}: {'ended by itself before' if ended else 'killed after'} {seconds:.1f} s")
    code, text = site.busbar("up", "dev", "--yes", "--skip-preview")
    assert code == 0, text
    assert made.outputs(SLURM)["slurm_nccl_passed"] is True
    assert site.all_idle()
    code, text = site.busbar("destroy", "dev", "--yes")
    assert code == 0, text
    wrong = []
    for host in HOSTS:
        found, _ = host_state.differences(before[host], _state(made, host))
        wrong += [f"{host}: {line}" for line in found if not re.match(f"(?:{_STAYS}):", line)]
        added = _users(made, host) ^ users[host]
        wrong += [f"{host}: user {name}" for name in sorted(added - DATA_OWNER.get(host, set()))]
    assert not wrong, "\n".join(wrong)
