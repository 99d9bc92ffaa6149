#!/usr/bin/env bash
# Reports what is on a host as one JSON line; changes nothing. busbar/preflight checks the report.
#
# Values: NODE_NAME, NODE_ADDRESS, ROLE (lb, server, worker, nfs), NFS_FOLDER (of the NFS server), NFS_SERVER (its
#   address, on hosts that mount from it), NAMES (host names that must be resolved here, separated by spaces), PROXY (HOST/PORT of the proxy),
#   SHARED_ADDRESS (of the hosts that share one).
# Payload, in an update: deliver_as, deliver (name and text of the script that runs here next; kept until a reboot); of a
#   capability: also (a script that prints what else it needs to know, as a JSON object).
# By hand: sudo ROLE=worker bash host/preflight.sh </dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib owner k3s-api k3s-lib preflight-hardware preflight-health nfs-lib

# Commands of the other scripts that an image may lack. The removal of K3s clears rules with iptables of the host.
TOOLS=(awk base64 cmp curl flock grep ip journalctl ps sed sha256sum ss sysctl systemctl tar timeout)
# Units that show what a host is already used for.
UNITS=(k3s k3s-agent rke2-server rke2-agent kubelet haproxy keepalived ufw firewalld)
DATA_DIR=/var/lib/rancher
UFW_CONFIG=/etc/ufw/ufw.conf
TMP=/tmp
# Files from which a login without a terminal gets its environment.
LOGIN_FILES=(/etc/environment /etc/security/pam_env.conf /etc/ssh/sshd_config ~/.ssh/environment ~/.bashrc)

main() {
  begin
  # Without iproute2 or systemd the report is whole and names the tools; its parts from them are empty.
  type -P ip >/dev/null || ip() { :; }
  type -P ss >/dev/null || ss() { :; }
  type -P systemctl >/dev/null || systemctl() { return 1; }
  local tmp
  tmp=$(truth tmp_is_writable)
  [[ $tmp == false ]] || keep_script
  local hardware="" also
  if [[ ${ROLE:=worker} == worker ]]; then
    hardware=",\"gpus\":$(gpus),\"fabric_manager\":$(fabric_manager),\"gdr\":$(gdr),\"hcas\":$(hcas),\"rdma_is_shared\":$(truth rdma_is_shared)"
    hardware+=",\"health\":$(health),\"fabric\":[$(fabric | json_list)]"
    hardware+=",\"virtual_machine\":$(json "$(virtual_machine)"),$(between_devices)"
  fi
  [[ $ROLE != worker && -z ${NFS_SERVER:-} ]] || hardware+=",\"nfs_client\":$(nfs_client "${NFS_SERVER:-}")"
  if [[ $ROLE == server ]] && has_data; then hardware+=",\"first_values\":$(first_values)"; fi
  [[ -z ${NFS_FOLDER:-} ]] || hardware+=",\"nfs_folder\":$(nfs_folder "$NFS_FOLDER")"
  also=$(payload also)
  [[ -z $also ]] || hardware+=",\"also\":$(eval "$also")"
  hardware=$(system),$(resources),$(network),$(software)$hardware
  # The time last, right before it is sent; by bash, as date of Ubuntu 26.04 (uutils) may know no %3N.
  printf '{"schema_version":5,%s,"tmp_is_writable":%s,"epoch":%s}\n' "$hardware" "$tmp" "$EPOCHREALTIME"
}

# tmp_is_writable: bash keeps long here-documents in files there; without it no script of busbar runs.
tmp_is_writable() {
  local file status=0
  file=$(mktemp "$TMP/busbar.XXXXXX" 2>/dev/null) || return 1
  head -c 1000000 /dev/zero 2>/dev/null >"$file" || status=1
  rm -f "$file"
  return "$status"
}

# keep_script: only root may write there, and a file with that name is whole.
keep_script() {
  local name
  name=$(payload deliver_as)
  [[ -n $name ]] || return 0
  (
    umask 077
    mkdir -p "$DELIVERED_DIR"
    payload deliver >"$DELIVERED_DIR/.$name.$$"
    mv -f "$DELIVERED_DIR/.$name.$$" "$DELIVERED_DIR/$name"
  )
}

system() {
  printf '"os":%s,"os_version":%s' "$(json "$(. /etc/os-release && echo "${ID:-}")")" \
    "$(json "$(. /etc/os-release && echo "${VERSION_ID:-}")")"
  printf ',"arch":%s,"kernel":%s' "$(json "$(uname -m)")" "$(json "$(uname -r)")"
  printf ',"hostname":%s,"machine":%s' "$(json "$(hostname)")" "$(json "$(machine)")"
  printf ',"systemd":%s' "$(truth test -d /run/systemd/system)"
  printf ',"clock_synchronised":%s' "$(json "$(timedatectl show -p NTPSynchronized --value 2>/dev/null || true)")"
}

resources() {
  printf '"cpus":%s,"memory_bytes":%s' "$(nproc)" \
    "$(($(awk '$1 == "MemTotal:" { print $2 }' /proc/meminfo) * 1024))"
  printf ',"disks":[%s]' "$(disks)"
  printf ',"cgroup":%s' "$(json "$([[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]] && echo v2 || echo v1)")"
  printf ',"cgroup_v1_allowed":%s' "$(truth cgroup_v1_allowed)"
  printf ',"memlock":%s' "$(json "$(memlock)")"
}

# disks: {"path","free_bytes"} per file system below K3s's folders; the first is the one with the container images.
disks() {
  local folder
  for folder in k3s/agent/containerd k3s/agent/images k3s/server/db ""; do
    df -B1 --output=avail,target "$(nearest_folder "$DATA_DIR/$folder")" | tail -n 1
  done | awk '!seen[$2]++ { printf "%s{\"path\":\"%s\",\"free_bytes\":%s}", comma, $2, $1; comma = "," }'
}

# A site on cgroup v1 allows it in a drop-in of the kubelet; only the top level of the YAML matters.
cgroup_v1_allowed() {
  cat "$DATA_DIR"/k3s/agent/etc/kubelet.conf.d/*.conf 2>/dev/null |
    grep -E '^"?failCgroupV1"?: *false *$' >/dev/null
}

# memlock: the limit of a unit with LimitMEMLOCK=infinity: "unlimited", or bytes if systemd may not raise it
# (bit 24 of its capabilities is CAP_SYS_RESOURCE).
memlock() {
  local hard capabilities
  hard=$(awk '/^Max locked memory/ { print $5 }' /proc/1/limits)
  capabilities=$(awk '/^CapEff:/ { print $2 }' /proc/1/status)
  if (((16#$capabilities >> 24) & 1)); then hard=unlimited; fi
  printf '%s' "$hard"
}

network() {
  local default
  default=$(ip route show default; ip -6 route show default 2>/dev/null || true)
  printf '"default_route":%s,"addresses":[%s]' "$(truth test -n "$default")" "$(addresses | json_list)"
  printf ',"listening":[%s],"interfaces":[%s]' "$(listening)" "$(interfaces | json_list)"
  printf ',"routes":[%s],"unresolved":[%s]' "$(routes | json_list)" "$(unresolved | json_list)"
  printf ',"shared_networks":[%s]' "$(shared_networks | json_list)"
  printf ',"has_node_address":%s,%s' "$(truth has_node_address)" "$(flannel_address)"
  if [[ -n ${PROXY:-} ]]; then
    printf ',"proxy_answers":%s' "$(truth is_open 10 "$PROXY")"
  else
    login_proxy
  fi
  [[ -z ${SHARED_ADDRESS:-} ]] || printf ',"shared_answers":%s' "$(truth shared_answers)"
}

addresses() {
  ip -o addr show scope global | awk '{ split($4, part, "/"); print part[1] }'
}

interfaces() {
  ip -o link show | awk -F ': ' '{ sub(/@.*/, "", $2); print $2 }'
}

# routes: the destinations of the main routing tables, without those of the default route.
routes() {
  { ip -o route show; ip -o -6 route show 2>/dev/null || true; } | awk '
    { to = $1 ~ /^[a-z]+$/ && $1 != "default" ? $2 : $1 }
    to != "default" && to !~ /^fe80:/ && !seen[to]++ { print to }'
}

# shared_networks: "NETWORK INTERFACE INTERFACE..." of interfaces in one IPv4 network without routing rules of their own.
shared_networks() {
  { ip rule show; ip -o -4 route show; } | awk '
    $2 == "from" { ruled[$3]; next }
    / proto kernel / && !/ linkdown/ {
      for (i = 2; i < NF; i++) { if ($i == "dev") dev = $(i + 1); if ($i == "src") address = $(i + 1) }
      if (!(address in ruled) && !seen[$1, dev]++) { count[$1]++; text[$1] = text[$1] " " dev }
    }
    END { for (to in count) if (count[to] > 1) print to text[to] }'
}

# unresolved: those of NAMES that have no address here; none behind a proxy, which resolves them.
unresolved() {
  local name
  [[ -z ${https_proxy:-}${HTTPS_PROXY:-}${http_proxy:-} ]] || return 0
  for name in ${NAMES:-}; do
    timeout 12 getent ahosts "$name" >/dev/null || echo "$name"
  done
}

# is_open SECONDS HOST/PORT: whether the port is open from here.
is_open() {
  # shellcheck disable=SC2016 # for the inner bash
  timeout "$1" bash -c ': <"/dev/tcp/$0"' "$2" 2>/dev/null
}

# login_proxy: the proxy that the environment of the login names, by which the scripts download, and the file with it.
login_proxy() {
  local url=${https_proxy:-${HTTPS_PROXY:-${http_proxy:-}}} address file
  [[ -n $url ]] || return 0
  address=${url#*://} address=${address##*@} address=${address%%/*}
  # curl takes port 1080 where none is given.
  [[ $address =~ :[0-9]+$ ]] || address+=:1080
  file=$({ grep -lsF -- "${address%:1080}" "${LOGIN_FILES[@]}" || true; } | head -n 1)
  printf ',"login_proxy":{"address":%s,"file":%s,"answers":%s}' "$(json "$address")" "$(json "$file")" \
    "$(truth is_open 10 "$(tr -d '[]' <<<"${address%:*}")/${address##*:}")"
}

# shared_answers: succeeds if a machine answers at the address; it may be a host that shares it.
shared_answers() {
  is_open 2 "$SHARED_ADDRESS/6443" || is_open 2 "$SHARED_ADDRESS/22"
}

# flannel_address: the address of the node, and the one that flannel takes: the first of that interface
# (flannel-io/flannel pkg/ip/iface.go). Both empty where the site sets them itself.
flannel_address() {
  local found="" interface address first=""
  [[ -z ${NODE_ADDRESS:-} ]] || address_is_configured || found=$(local_address "$NODE_ADDRESS")
  interface=${found% *} address=${found#* }
  if [[ -n $found && $interface != lo ]]; then
    first=$(ip -o "$([[ $address == *:* ]] && echo -6 || echo -4)" addr show dev "$interface" | awk '
      { split($4, part, "/") } part[1] !~ /^(169\.254\.|fe80:)/ && !found++ { print part[1] }')
  fi
  printf '"node_address":%s,"flannel_address":%s' "$(json "$address")" "$(json "$first")"
}

# Whether a network interface has the configured address, or the site sets node-ip itself.
has_node_address() {
  [[ -z ${NODE_ADDRESS:-} || -n $(local_address "$NODE_ADDRESS") ]] || address_is_configured
}

# listening: {"port","process"} per TCP port in use on an address other than loopback.
listening() {
  ss -Hltnp | awk '
    { at = match($4, /:[0-9]+$/); port = substr($4, at + 1); where = substr($4, 1, at - 1) }
    where ~ /^127\./ || where == "[::1]" || seen[port]++ { next }
    {
      name = "?"
      if (match($0, /\(\("[^"]+"/)) name = substr($0, RSTART + 3, RLENGTH - 4)
      printf "%s{\"port\":%s,\"process\":\"%s\"}", comma, port, name; comma = ","
    }'
}

# managed UNIT: whether busbar installed it, even if the installation or the removal was interrupted.
managed() {
  grep -qs '^# Written by busbar' "$K3S_UNITS/$1.service" "/etc/$1/$1.cfg" "/etc/$1/$1.conf" ||
    [[ ! -e $K3S_UNITS/$1.service && $(owner_field role):$1 == @(server:k3s|worker:k3s-agent) ]]
}

# server_name: the name in etcd of a K3s server with data.
server_name() {
  ! has_data || config_value node-name <"$K3S_CONFIG_DIR/config.yaml"
}

# unit_is_active UNIT: ufw's unit is active on every Ubuntu; its configuration says whether the firewall is on.
unit_is_active() {
  systemctl is-active --quiet "$1.service" || return 1
  [[ $1 != ufw ]] || grep -qsi '^ENABLED=yes' "$UFW_CONFIG"
}

software() {
  local tool unit missing="" active="" managed=""
  [[ ${ROLE:=worker} == lb || $ROLE == nfs ]] || TOOLS+=(iptables)
  for tool in "${TOOLS[@]}"; do
    type -P "$tool" >/dev/null || missing+="${missing:+,}\"$tool\""
  done
  for unit in "${UNITS[@]}"; do
    ! unit_is_active "$unit" || active+="${active:+,}\"$unit\""
    ! managed "$unit" || managed+="${managed:+,}\"$unit\""
  done
  printf '"missing_tools":[%s],"active_units":[%s],"managed":[%s]' "$missing" "$active" "$managed"
  [[ $ROLE != nfs ]] || STATE_DIR=$NFS_STATE_DIR
  printf ',"owner":{"owner":%s,"install_id":%s}' "$(json "$(owner_field owner)")" "$(json "$(owner_field install_id)")"
  printf ',"server_name":%s,"rotated":{%s}' "$(json "$(server_name)")" "$(rotated)"
  printf ',"k3s_data":%s,"k3s_version":%s,"etcd_members":[%s]' "$(truth has_k3s_data)" "$(json "$(our_k3s_version)")" "$(etcd_members)"
}

# rotated: "KIND":NUMBER of the rotations that were done here (k3s-rotation.sh).
rotated() {
  { grep -E '^(certificates|server_token|agent_token) [0-9]+$' "$STATE_DIR/rotated" 2>/dev/null || true; } |
    awk '{ printf "%s\"%s\":%s", comma, $1, $2; comma = "," }'
}

# our_k3s_version: of the K3s that busbar installed here; empty without one.
our_k3s_version() {
  if managed k3s || managed k3s-agent; then k3s_version 2>/dev/null || true; fi
}

# etcd_members: {"name","ready"} per member of etcd, on a server of a running cluster.
etcd_members() {
  [[ $ROLE == server ]] && systemctl is-active --quiet k3s || return 0
  { etcd_nodes || true; } |
    awk 'NF { printf "%s{\"name\":\"%s\",\"ready\":%s}", comma, $1, $2 == "True" ? "true" : "false"; comma = "," }'
}

# first_values: what the cluster was made with: the note of this server (k3s-server.sh), and objects of the cluster,
# which are empty where its API does not answer.
first_values() {
  local nodes="" services="" dns=""
  # Where the API does not answer the first question, it is not asked again.
  if systemctl is-active --quiet k3s &&
    nodes=$(api 15 get nodes -o "jsonpath={range .items[*]}{.metadata.name}|{.spec.podCIDR}|{.metadata.annotations.etcd\.k3s\.cattle\.io/node-address}{\"\n\"}{end}" 2>/dev/null); then
    # Kubernetes before 1.33 has none.
    services=$(api 15 get servicecidr kubernetes -o "jsonpath={.spec.cidrs[0]}" 2>/dev/null || true)
    dns=$(api 15 -n kube-system get service kube-dns -o "jsonpath={.spec.clusterIP}" 2>/dev/null || true)
  fi
  printf '{"note":%s,"service_cidr":%s,"cluster_dns":%s' "$(cat "$STATE_DIR/first-values" 2>/dev/null || echo '{}')" \
    "$(json "$services")" "$(json "$dns")"
  awk -F '|' '
    $2 != "" { networks = networks comma "\"" $2 "\""; comma = "," }
    $3 != "" { members = members sep "\"" $1 "\":\"" $3 "\""; sep = "," }
    END { printf ",\"pod_networks\":[%s],\"etcd_addresses\":{%s}}", networks, members }' <<<"$nodes"
}

main
