"""Places, names and limits of the host scripts that other tests replace by their own."""

from __future__ import annotations

import pytest

from busbar.preflight.query import SCRIPT_SECONDS
from tests.unit.hosts.bash import output

K3S = """
K3S=/usr/local/bin/k3s
K3S_CONFIG_DIR=/etc/rancher/k3s
K3S_AUTH_CONFIG=/etc/rancher/k3s/auth-config.yaml
K3S_DATA_DIR=/var/lib/rancher/k3s
KUBELET_DIR=/var/lib/kubelet
MOUNTS=/proc/self/mounts
K3S_UNITS=/etc/systemd/system
K3S_MADE=/usr/local/nvidia/toolkit /var/run/cdi /var/log/pods /var/log/containers /var/lib/cni \
/usr/libexec/kubernetes /etc/kubernetes/node-feature-discovery
K3S_MAX_CRASHES=3
K3S_MAX_AUTH_FAILURES=8
K3S_IMPORT_BYTES_PER_SECOND=20000000
DOWNLOAD_SECONDS=600
DOWNLOAD_BYTES_PER_SECOND=10000000
"""
FIXED = {
    "haproxy": """
STATE_DIR=/var/lib/busbar
DELIVERED_DIR=/run/busbar
LOCK_FILE=/run/busbar.lock
KUBECACHEDIR=/run/busbar-kubectl
LOCK_DEADLINE=300
CONFIG=/etc/haproxy/haproxy.cfg
HEALTH_DEADLINE=90
KEEPALIVED=/etc/keepalived/keepalived.conf
VIRTUAL_IP_DEADLINE=30
APT_UPDATE_DEADLINE=300
APT_OPTIONS=-q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Acquire::http::Timeout=20 \
-o Dpkg::Options::=--force-confold
""",
    "k3s-agent": f"""{K3S}
UNIT=k3s-agent
READY_DEADLINE=420
KUBELET_KUBECONFIG=/var/lib/rancher/k3s/agent/kubelet.kubeconfig
CORDONED=busbar/cordoned
ROTATION_KINDS=certificates server_token agent_token
""",
    "k3s-server": f"""{K3S}
UNIT=k3s
KUBECONFIG_FILE=/etc/rancher/k3s/k3s.yaml
PEER_DEADLINE=60
ISSUERS_DEADLINE=150
MEMBER_DEADLINE=90
QUORUM_DEADLINE=120
TEARDOWN=/run/busbar-teardown
TEARDOWN_MINUTES=60
LEAVING=/run/systemd/system/k3s.service.d/90-busbar-leaving.conf
""",
    "k3s-nodes": """
NOT_READY_DEADLINE=120
START_DEADLINE=60
TAINTS=busbar-taints
CONFIGURED=busbar-nodes
ETCD_DATA=/var/lib/rancher/k3s/server/db/etcd
TOKEN_FILE=/var/lib/rancher/k3s/server/token
""",
    "k3s-key": """
HASHES_DEADLINE=180
REENCRYPT_DEADLINE=3600
REENCRYPT_TRIES=3
""",
    "k3s-restore": """
DB=/var/lib/rancher/k3s/server/db
RESTORING=/var/lib/busbar/restoring
STEP_FILE=/run/busbar-restore.step
RESET_UNIT=busbar-k3s-reset
RESET_SECONDS=600
AGENT_DEADLINE=180
NODES_DEADLINE=240
SPACE_FACTOR=2
SPACE_FACTOR_ZIP=12
""",
    "kubeconfig": """
KUBECONFIG_FILE=/etc/rancher/k3s/k3s.yaml
MIN_VALID_DAYS=110
RENEWAL_DEADLINE=300
""",
    "nfs-server": """
NFS_EXPORTS=/etc/exports.d/busbar.exports
NFS_CONFIG=/etc/nfs.conf.d/busbar.conf
NFS_STATE_DIR=/var/lib/busbar-nfs
NFS_UNIT=nfs-server
NFS_NOBODY=65534
EXPORTS=/etc/exports
EXPORTS_DIR=/etc/exports.d
SYSTEM_ROOT=/
PACKAGE=nfs-kernel-server
CLIENTS=/proc/fs/nfsd/clients
LEASE_DEADLINE=120
""",
    "preflight": """
TOOLS=awk base64 cmp curl flock grep ip journalctl ps sed sha256sum sysctl systemctl tar timeout
UNITS=k3s k3s-agent rke2-server rke2-agent kubelet docker containerd haproxy keepalived ufw firewalld
DATA_DIR=/var/lib/rancher
K3S_CONFIG=/etc/rancher/k3s/config.yaml
UFW_CONFIG=/etc/ufw/ufw.conf
TMP=/tmp
NVIDIA_SMI_SECONDS=60
QOS_SECONDS=2
HEALTH_SECONDS=20
XID_LINES=100
INFINIBAND=/sys/class/infiniband
PCI=/sys/bus/pci/devices
MODULES=/sys/module
COUNTERS=link_downed link_error_recovery local_link_integrity_errors excessive_buffer_overrun_errors \
symbol_error port_rcv_errors port_xmit_discards
""",
    "verify": """
K3S_CONFIG_DIR=/etc/rancher/k3s
K3S_DATA_DIR=/var/lib/rancher/k3s
UNIT_DIRS=/etc/systemd/system /run/systemd/system
TEMPORARY=90-busbar-*.conf
""",
}
SHOW = 'set -f; for name; do declare -n value=$name; echo "$name=${value[*]}"; unset -n value; done'


@pytest.mark.parametrize(("script", "values"), FIXED.items())
def test_a_script_has_the_places_and_limits_that_hosts_and_callers_count_on(script: str, values: str) -> None:
    names = [line.partition("=")[0] for line in values.split("\n") if line]
    assert output(script, SHOW, *names).split("\n")[:-1] == [line for line in values.split("\n") if line]


def test_preflight_is_waited_for_as_long_as_its_programs_may_take() -> None:
    assert int(output("preflight", "echo $((NVIDIA_SMI_SECONDS + 3 * HEALTH_SECONDS))")) < SCRIPT_SECONDS
