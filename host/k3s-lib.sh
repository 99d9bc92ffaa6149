#!/usr/bin/env bash
# Functions of servers and agents: binary, image archives, unit, and a restart only if something changed.
#
# Of the script: UNIT, and KUBECONFIG_FILE with the rights for its Node (k3s-api.sh).

K3S_AUTH_CONFIG=$K3S_CONFIG_DIR/auth-config.yaml
KUBELET_DIR=/var/lib/kubelet
MOUNTS=/proc/self/mounts
K3S_UNITS=/etc/systemd/system
K3S_PROXY_DROP_IN=20-busbar-proxy.conf
# Kubelet, container runtime and the operators' containers make these elsewhere, and nobody removes them.
K3S_MADE=(/usr/local/nvidia/toolkit /var/run/cdi /var/log/pods /var/log/containers /var/lib/cni /usr/libexec/kubernetes
  /etc/kubernetes/node-feature-discovery)
# Crashes, and authentication failures (K3s retries indefinitely), after which the wait ends.
K3S_MAX_CRASHES=3
K3S_MAX_AUTH_FAILURES=8

# k3s_refuse_conflicts UNIT: a host is a server or a worker, never both; a K3s of others, or upgraded by others, stays.
k3s_refuse_conflicts() {
  local other found
  ! systemctl is-active --quiet "$1" ||
    die "$1 already runs on this host" "list the host once; or take it out of hosts, busbar up STACK, and list it anew; a K3s of others: $1-uninstall.sh, which deletes its data"
  for other in rke2-server rke2-agent kubelet; do
    ! systemctl is-active --quiet "$other" ||
      die "this host belongs to another Kubernetes cluster: $other is active" "use another host; or take it out of that cluster, then systemctl disable --now $other"
  done
  [[ -s $STATE_DIR/applied.sha256 && ! -e $K3S_UNITS/$UNIT.service ]] ||
    grep -qs '^# Written by busbar' "$K3S_UNITS/$UNIT.service" || ! has_k3s_data ||
    die "this host has a K3s that busbar did not install; no changes made" \
      "one of this cluster that was upgraded by hand: rm $K3S_UNITS/$UNIT.service, and retry; else use another host; or remove it with k3s-uninstall.sh or k3s-agent-uninstall.sh, which delete its data, and retry"
  found=$([[ ! -e $K3S_UNITS/$UNIT.service && ! -s $STATE_DIR/applied.sha256 ]] || k3s_version 2>/dev/null || true)
  [[ $(printf '%s\n' "${found%.*}" "${VERSION%.*}" | sort -V | tail -n 1) == "${VERSION%.*}" ]] ||
    die "runs K3s $found, which is newer than k3s.version $VERSION; no changes made" \
      "set k3s.version to $found or later: a minor version cannot be downgraded"
}

# has_k3s_data: whether a K3s has run here, or somebody else has configured one. Empty folders may be mount points that the site has prepared.
has_k3s_data() {
  local file
  for file in "$K3S_DATA_DIR"/{server/db/etcd/member,server/db/state.db,server/token,agent/kubelet.kubeconfig} \
    "$K3S_CONFIG_DIR/config.yaml" "$K3S_UNITS"/k3s{,-agent}.service; do
    [[ ! -e $file ]] || grep -qs '^# Written by busbar' "$file" || return 0
  done
  return 1
}

# k3s_download: fetches binary and image archives before anything else on the host changes.
k3s_download() {
  k3s_each_download fetch
  # With this file K3s imports an archive only if it has changed, instead of all at every start
  # (k3s-io/docs installation/airgap.md, conditional image imports).
  [[ -z ${IMAGES:-} || -e $K3S_DATA_DIR/agent/images/.cache.json ]] || touch "$K3S_DATA_DIR/agent/images/.cache.json"
  rm -rf "$DOWNLOADS_DIR"
}

# k3s_each_download COMMAND: COMMAND URL SHA256 PATH for the binary, unless it is installed, and for each image archive.
k3s_each_download() {
  local arch url sha256 line name folder=$K3S_DATA_DIR/agent/images
  case $(uname -m) in
    x86_64) arch=AMD64 ;;
    aarch64) arch=ARM64 ;;
    *) die "processor is $(uname -m), expected x86_64 or aarch64" "use another host: K3s has no build for it" ;;
  esac
  url=URL_$arch sha256=SHA256_$arch
  [[ -n ${!url:-} && -n ${!sha256:-} ]] ||
    die "no checksum of K3s $VERSION for ${arch,,} is configured" "set k3s.sha256.${arch,,} or k3s.checksums_file"
  K3S_SHA256=${!sha256}
  k3s_is_installed || "$1" "${!url}" "$K3S_SHA256" "$STATE_DIR/k3s"
  while read -r line; do
    [[ -n $line ]] || continue
    url=${line#* } sha256=${line%% *} name=$(basename "${url%%\?*}")
    name=${name//%2B/+}
    # Another archive that the site has put there under this name stays.
    ! grep -qsxF "./agent/images/$name" "$STATE_DIR/preexisting" || has_sha256 "$folder/$name" "$sha256" || name=${sha256:0:16}-$name
    "$1" "$url" "$sha256" "$folder/$name"
  done <<<"${IMAGES:-}"
}

# The wait for a Node grows with the image archives: K3s imports them before it starts the kubelet.
K3S_IMPORT_BYTES_PER_SECOND=20000000

# k3s_ready_seconds SECONDS: the time until a Node is Ready, with the import of the archives on this host.
k3s_ready_seconds() {
  local bytes
  bytes=$({ du -sb "$K3S_DATA_DIR/agent/images" 2>/dev/null || true; } | cut -f 1)
  printf '%s' "$(($1 + ${bytes:-0} / K3S_IMPORT_BYTES_PER_SECOND))"
}

# record_preexisting_files: files from before K3s (the site's drop-ins, its binary) survive its removal.
record_preexisting_files() {
  local path
  [[ ! -e $STATE_DIR/preexisting ]] || return 0
  install -d -m 0700 "$STATE_DIR"
  for path in "${K3S_MADE[@]}"; do
    [[ -e $path ]] || printf '%s\n' "$path"
  done | write_file "$STATE_DIR/absent" 0600
  for path in "$K3S" "$K3S_AUTH_CONFIG"; do
    [[ ! -e $path || -e $K3S_UNITS/$UNIT.service ]] || cp -a "$path" "$STATE_DIR/${path##*/}.original"
  done
  # Disks of the site below the folders of K3s: removal empties them and leaves them mounted.
  { mounts_below "$K3S_DATA_DIR"; mounts_below "$KUBELET_DIR"; } | write_file "$STATE_DIR/mounts" 0600
  files_below "$KUBELET_DIR" | write_file "$STATE_DIR/preexisting-kubelet" 0600
  files_below "$K3S_DATA_DIR" | write_file "$STATE_DIR/preexisting" 0600
}

# files_below FOLDER: files and links, if the folder is there.
files_below() {
  [[ ! -d $1 ]] || find "$1/" ! -type d -printf './%P\n'
}

# mounts_below DIRECTORY: what is mounted below it, not on it; outermost first. The directory may be a link to a larger disk.
mounts_below() {
  awk -v prefix="$(readlink -m "$1")/" 'index($2, prefix) == 1 { print $2 }' "$MOUNTS" | sort -u
}

k3s_is_installed() {
  [[ -f $K3S && $(sha256_of "$K3S") == "$K3S_SHA256" ]]
}

# k3s_config LINE...: config.yaml from the payload, and the lines that depend on this host.
k3s_config() {
  local line
  install -d -m 0755 "$K3S_CONFIG_DIR"
  {
    echo "# Written by busbar; changes are overwritten. Put your settings in config.yaml.d/."
    payload config
    for line; do [[ -z $line ]] || printf '%s\n' "$line"; done
  } | write_file "$K3S_CONFIG_DIR/config.yaml" 0600
  if [[ -n $(payload registries) ]]; then
    [[ -s $STATE_DIR/registries.written || ! -e $K3S_CONFIG_DIR/registries.yaml ]] ||
      cp -a "$K3S_CONFIG_DIR/registries.yaml" "$STATE_DIR/registries.yaml.original"
    echo yes | write_file "$STATE_DIR/registries.written" 0600
    payload registries | write_file "$K3S_CONFIG_DIR/registries.yaml" 0600
  elif [[ -s $STATE_DIR/registries.written ]]; then
    restore_original "$K3S_CONFIG_DIR/registries.yaml"
    rm -f "$STATE_DIR/registries.written"
  fi
}

# restore_original FILE: as it was before busbar wrote it.
restore_original() {
  local original=$STATE_DIR/${1##*/}.original
  rm -f "$1"
  [[ ! -e $original && ! -L $original ]] || cp -a "$original" "$1"
}

# config_value KEY: its value in the config.yaml on stdin; of a list the items, one per line.
config_value() {
  awk -v key="$1:" '
    /^[^ -]/ { is_key = index($0, key) == 1; sub(/^[^:]*:/, "") }
    is_key {
      sub(/^-/, "")
      gsub(/^ *["\047]?|["\047]? *$/, "")
      if ($0 != "") print
    }'
}

# desired_value KEY: as `config_value`, in the configuration that is to be applied.
desired_value() {
  payload config | config_value "$1"
}

# has_data: whether this server has data of its cluster.
has_data() {
  [[ -d $K3S_DATA_DIR/server/db/etcd/member && -f $K3S_CONFIG_DIR/config.yaml ]]
}

# k3s_node_address: the lines node-ip and flannel-iface of config.yaml, for the configured address of this host.
# Without flannel-iface K3s's flannel takes the interface of the default route (k3s-io/k3s#12056).
k3s_node_address() {
  local keys found interface address
  keys=$(payload config | sed -n 's/^\(node-ip\|flannel-iface\):.*/\1/p')
  found=$(local_address "$NODE_ADDRESS")
  if [[ -z $found ]]; then
    [[ $keys == *node-ip* ]] || address_is_configured ||
      die "none of the network interfaces has the address $NODE_ADDRESS" \
        "list the host by one that it has (ip -br address), or set node-ip in /etc/rancher/k3s/config.yaml.d/"
    return 0
  fi
  interface=${found% *} address=${found#* }
  [[ $keys == *node-ip* ]] || printf 'node-ip: "%s"\n' "$address"
  # An address on the loopback interface is announced by a routing daemon; VXLAN cannot be bound to it.
  [[ $keys == *flannel-iface* || $interface == lo ]] || printf 'flannel-iface: "%s"\n' "$interface"
}

# k3s_unit COMMAND: the unit, as in k3s-io/k3s install.sh.
k3s_unit() {
  write_file "/etc/systemd/system/$UNIT.service" 0644 <<EOF
# Written by busbar; changes are overwritten. Put your settings in $UNIT.service.d/.
[Unit]
Description=Lightweight Kubernetes ($1)
Documentation=https://k3s.io
Wants=network-online.target
After=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type=notify
EnvironmentFile=-/etc/default/%N
EnvironmentFile=-/etc/sysconfig/%N
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=$K3S $1
EOF
}

# k3s_write_files COMMAND LINE...: everything that the unit reads; its lines of config.yaml depend on this host.
k3s_write_files() {
  # A running K3s keeps its own file: this one is renamed over it.
  k3s_is_installed || write_file "$K3S" 0755 <"$STATE_DIR/k3s"
  rm -f "$STATE_DIR/k3s"
  k3s_config "${@:2}"
  k3s_unit "$1"
  k3s_proxy
  # RDMA locks memory; with the default of 8 MiB ibv_reg_mr fails with ENOMEM. Pods inherit it.
  write_file "/etc/systemd/system/$UNIT.service.d/10-busbar-memlock.conf" 0644 <<'EOF'
[Service]
LimitMEMLOCK=infinity
EOF
  # The settings of the kubelet, kept over a reboot.
  write_file /etc/sysctl.d/90-busbar-kubelet.conf 0644 <<'EOF'
vm.panic_on_oom = 0
vm.overcommit_memory = 1
kernel.panic = 10
kernel.panic_on_oops = 1
EOF
  sysctl -q -p /etc/sysctl.d/90-busbar-kubelet.conf >&2 ||
    note "some kernel settings of /etc/sysctl.d/90-busbar-kubelet.conf were refused (is the host a container?)"
}

# k3s_proxy: the proxy of the configuration, for K3s and its containerd.
k3s_proxy() {
  local file=$K3S_UNITS/$UNIT.service.d/$K3S_PROXY_DROP_IN
  if [[ -n $(payload proxy) ]]; then
    payload proxy | write_file "$file" 0644
  else
    rm -f "$file"
  fi
}

# k3s_settings: the files with settings, also the site's and links to them, each ended by NUL; without config.yaml.
k3s_settings() {
  find -L "/etc/systemd/system/$UNIT.service" "/etc/systemd/system/$UNIT.service.d" "$K3S_CONFIG_DIR" -type f \
    ! -name k3s.yaml ! -path "$K3S_CONFIG_DIR/config.yaml" -print0 2>/dev/null | sort -z
}

# desired_state_hash: one hash of everything whose change needs a restart. K3s reads labels and taints only when a
# Node registers; changed ones are set through the API. Issuers of tokens are loaded without one.
desired_state_hash() {
  local auth
  auth=$({ cat "$K3S_AUTH_CONFIG" 2>/dev/null || true; } | k3s_without_jwt | sha256sum | cut -d' ' -f1)
  {
    echo "$K3S_SHA256" "${IMAGES:-}"
    k3s_settings | xargs -0 sha256sum | sed "s|^.*\(  $K3S_AUTH_CONFIG\)\$|$auth\1|"
    awk '/^node-(label|taint):/ { skip = 1; next } !(skip && /^[- ]/) { skip = 0; print }' "$K3S_CONFIG_DIR/config.yaml"
  } | sha256sum | cut -d' ' -f1
}

# k3s_without_jwt: an AuthenticationConfiguration without the issuers, which busbar writes last.
k3s_without_jwt() {
  sed '/^jwt:$/,$d'
}

# k3s_is_current: whether it runs with the desired state.
k3s_is_current() {
  K3S_DESIRED_HASH=$(desired_state_hash)
  [[ -f $STATE_DIR/$UNIT.sha256 && $(<"$STATE_DIR/$UNIT.sha256") == "$K3S_DESIRED_HASH" ]] && systemctl is-active --quiet "$UNIT"
}

# k3s_start: restarts it if the applied hash differs from the desired one. Does not wait: with Type=notify
# and TimeoutStartSec=0 systemctl would block indefinitely on a join target that is down.
k3s_start() {
  K3S_SINCE=$(date +%s)
  # Earlier crashes do not count.
  K3S_CRASHED_BEFORE=$(systemctl show -p NRestarts --value "$UNIT")
  systemctl daemon-reload
  systemctl enable -q "$UNIT" 2>/dev/null || die "systemctl enable $UNIT failed" "see: systemctl status $UNIT"
  if k3s_is_current; then return 0; fi
  rm -f "$STATE_DIR/$UNIT.sha256"
  k3s_restart
}

# k3s_restart: asks for a restart; k3s_await waits for its end.
k3s_restart() {
  [[ $UNIT != k3s ]] || keep_quorum
  K3S_SINCE=$(date +%s)
  K3S_INVOCATION=$(systemctl show -p InvocationID --value "$UNIT")
  systemctl reset-failed "$UNIT" 2>/dev/null || true
  systemctl --no-block restart "$UNIT"
  K3S_CRASHED_BEFORE=0
}

# k3s_await SECONDS WHAT COMMAND...: waits until the command succeeds; ends early if the unit keeps crashing.
# A busy systemd begins later with the restart: until then the unit is active, and its Node Ready, as before.
k3s_await() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1)) crashes=0 turns=0
  shift 2
  until [[ $(systemctl show -p InvocationID --value "$UNIT") != "${K3S_INVOCATION:-none}" ]] &&
    systemctl is-active --quiet "$UNIT" && "$@"; do
    crashes=$(($(systemctl show -p NRestarts --value "$UNIT") - K3S_CRASHED_BEFORE))
    if systemctl is-failed --quiet "$UNIT" || ((crashes >= K3S_MAX_CRASHES)); then
      k3s_journal
      k3s_die_if_refused
      k3s_die_of_etcd
      die "$UNIT crashed $((crashes > 0 ? crashes : 1)) times" \
        "repair what the last line with level=fatal or panic names, above or in: journalctl -u $UNIT -n 50 --no-pager; then retry"
    fi
    # Reading the journal is expensive on a busy host: every tenth time.
    if ((++turns % 10 == 0)); then k3s_die_if_refused; fi
    if ((turns % 10 == 0 && $(k3s_auth_failures) >= K3S_MAX_AUTH_FAILURES)); then
      k3s_journal
      die "the cluster refuses the token of this host" \
        "if this stack has lost its state: docs/sites.md, A lost state file; if another stack made the cluster, correct the addresses of the servers"
    fi
    if ((SECONDS >= deadline)); then
      k3s_journal
      die "$what: timed out after $seconds s" \
        "look above for what it repeats, such as a server or a registry that does not answer; more: journalctl -u $UNIT -n 50 --no-pager"
    fi
    sleep 0.5
  done
}

# restart_after_drift: K3s may run with files that were changed since they were applied, or without its Node,
# which a kubelet makes at its start only: then it restarts. Sets K3S_NODE_IS_DELETED.
restart_after_drift() {
  local node
  if [[ -s $STATE_DIR/applied.sha256 ]] && ! grep -v '/etc/keepalived/' "$STATE_DIR/applied.sha256" | sha256sum --check --status 2>/dev/null; then
    note "files were changed since the last update: restarting $UNIT with the configured files"
    rm -f "$STATE_DIR/$UNIT.sha256"
  fi
  if node=$(api 10 get node "$NODE_NAME" --ignore-not-found -o name 2>/dev/null) && [[ -z $node ]]; then
    note "Node $NODE_NAME was deleted: restarting $UNIT, which makes it again"
    # shellcheck disable=SC2034 # read by k3s-agent.sh
    K3S_NODE_IS_DELETED=true
    rm -f "$STATE_DIR/$UNIT.sha256"
  fi
}

# record_applied_hash: the desired state runs now; a run that broke off earlier restarts the unit again.
record_applied_hash() {
  printf '%s\n' "$K3S_DESIRED_HASH" | write_file "$STATE_DIR/$UNIT.sha256" 0600
  local settings
  mapfile -d '' -t settings < <(k3s_settings)
  record_applied "$K3S" "$K3S_CONFIG_DIR/config.yaml" /etc/sysctl.d/90-busbar-kubelet.conf "${settings[@]}" ${VIRTUAL_IP:+"$KEEPALIVED"}
  private_files | xargs -r -d '\n' chmod 0600
}

# k3s_log LINES: the last lines of its log since this run began.
k3s_log() {
  # With --since journalctl's own -n takes the first lines (systemd 252).
  { journalctl -u "$UNIT" --since "@$K3S_SINCE" --no-pager -o cat 2>/dev/null || true; } | tail -n "$1"
}

# k3s_auth_failures: those of this host; answers of a server to strangers ("Sending HTTP/1.1 401 ...") are not.
k3s_auth_failures() {
  k3s_log 40 | awk '/Sending HTTP/ { next } /401 Unauthorized|not authorized/ { count++ } END { print count + 0 }'
}

# k3s_die_if_refused: K3s retries indefinitely, or crashes, where another machine has this host's name
# (pkg/agent/config/config.go and pkg/etcd/etcd.go in k3s-io/k3s).
k3s_die_if_refused() {
  local log why=""
  log=$(k3s_log 200)
  [[ $log != *"Node password rejected"* ]] ||
    why="the cluster refuses this machine: a Node $NODE_NAME exists that another machine joined as (node password)"
  [[ $log != *"duplicate node name found"* ]] ||
    why="etcd refuses this machine: it has a member $NODE_NAME of another machine (duplicate node name)"
  [[ -z $why ]] || die "$why" \
    "if that machine is gone: busbar up STACK --converge $NODE_NAME, or k3s kubectl delete node $NODE_NAME on another server and retry. Otherwise rename this host"
}

# k3s_die_of_etcd: why a server does not start with what is in etcd, or join (pkg/cluster/bootstrap.go in k3s-io/k3s).
k3s_die_of_etcd() {
  case $(k3s_log 2000) in
    *"encrypted with different token"*)
      die "the data in etcd are encrypted with another server token than the configured one" \
        "if a rotation was interrupted: retry, and see docs/hosts.md, Rotation; else bring back the state with the other token: docs/sites.md, A lost state file"
      ;;
    *"newer than datastore and could cause a cluster outage"*)
      die "files of K3s are newer here than in etcd" \
        "move the files that the log above names away: K3s then writes them from etcd; then retry"
      ;;
    *"critical configuration value mismatch"*)
      die "keys that all servers share differ between this one and the running ones; K3s names them in the lines with 'mismatch' above" \
        "write back their former values until this server has joined; then change them in an update of their own"
      ;;
  esac
}

# k3s_journal: its last errors and its last lines, without tokens.
k3s_journal() {
  local secrets
  secrets=$(payload config | sed -n 's/^\(agent-\)\{0,1\}token: *\(.*:\)\{0,1\}//p; s/^etcd-s3-\(access\|secret\)-key: *//p')
  echo "--- $UNIT: last errors and last lines of the log:" >&2
  {
    # Kubernetes' own parts write klog lines (E1121 14:03:02.123456 ...), K3s writes level=...
    k3s_log 2000 | { grep -E 'level=(fatal|error|panic)|^(panic|fatal|Error):|^[EF][0-9]{4} ' || true; } | tail -n 8
    k3s_log 8
  } | awk -v secrets="$secrets" '
      BEGIN { count = split(secrets, list, "\n") }
      {
        for (i = 1; i <= count; i++)
          while (list[i] != "" && (at = index($0, list[i])))
            $0 = substr($0, 1, at - 1) "[secret]" substr($0, at + length(list[i]))
        gsub(/K10[0-9a-f]+::[^ "]+/, "[token]")
        print "  " substr($0, 1, 400)
      }' >&2 || true
}

# k3s_node: "READY|HEARTBEAT|VERSION" of this host's Node, as its kubelet last wrote it; empty if there is none.
k3s_node() {
  local ready='.status.conditions[?(@.type=="Ready")]'
  api 10 get node "$NODE_NAME" \
    -o "jsonpath={$ready.status}|{$ready.lastHeartbeatTime}|{.status.nodeInfo.kubeletVersion}" 2>/dev/null || true
}

k3s_node_is_ready() {
  [[ $(k3s_node) == True\|* ]]
}

# k3s_is_back: whether the kubelet that this start of the unit runs has said that it is Ready. A Node stays
# Ready for 40 to 50 s after its kubelet has ended, and servers report READY=1 to systemd before the kubelet starts.
k3s_is_back() {
  local ready heartbeat found age
  IFS='|' read -r ready heartbeat found <<<"$(k3s_node)"
  [[ $ready == True && $found == "$(k3s_version)" ]] || return 1
  age=$(ps -o etimes= -p "$(systemctl show -p MainPID --value "$UNIT")") || return 1
  (($(date -d "${heartbeat:-1970-01-01}" +%s) > $(date +%s) - age))
}

# k3s_record_machine: notes on the Node which machine it is; k3s-nodes.sh compares it with preflight's.
k3s_record_machine() {
  poll 60 api 30 annotate node "$NODE_NAME" "busbar/machine=$(machine)" --overwrite >/dev/null || {
    k3s_journal
    die "setting the annotation busbar/machine on Node $NODE_NAME failed" \
      "kubectl says why above; if no server answers: journalctl -u k3s -n 50 --no-pager on each server"
  }
}

k3s_version() {
  "$K3S" --version | awk 'NR == 1 { print $3 }'
}

# k3s_subcommand SECONDS ARGUMENTS...: K3s names each key of config.yaml that a subcommand does not know, some 20 lines.
k3s_subcommand() {
  local seconds=$1
  shift
  timeout "$seconds" "$K3S" "$@" 2>&1 | { grep -v 'Unknown flag .* skipping' || true; } >&2
}
