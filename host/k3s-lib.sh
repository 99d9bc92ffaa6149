#!/usr/bin/env bash
# What servers and agents share: binary, image archives, unit, and a restart only where something changed.

K3S=/usr/local/bin/k3s
K3S_CONFIG_DIR=/etc/rancher/k3s
K3S_DATA_DIR=/var/lib/rancher/k3s
# Crashes, and refusals of the token (K3s asks again for ever), after which waiting on would be pointless.
K3S_CRASHES=3
K3S_REFUSALS=8

# k3s_download: binary and image archives, checked, before anything on the host changes.
k3s_download() {
  local arch url sha256
  case $(uname -m) in
    x86_64) arch=AMD64 ;;
    aarch64) arch=ARM64 ;;
    *) die "K3s has no build for $(uname -m)" "use a host with an x86-64 or arm64 processor" ;;
  esac
  url=URL_$arch sha256=SHA256_$arch
  [[ -n ${!url:-} && -n ${!sha256:-} ]] ||
    die "no checksum of K3s $VERSION is configured for ${arch,,}" "set k3s.sha256.${arch,,} or k3s.checksums_file"
  K3S_SHA256=${!sha256}
  k3s_is_installed || fetch "${!url}" "$K3S_SHA256" "$STATE_DIR/k3s"
  local line sum
  while read -r line; do
    [[ -n $line ]] || continue
    sum=${line%% *} url=${line#* }
    k3s_image "$sum" "$url"
  done <<<"${IMAGES:-}"
}

k3s_image() {
  local sum=$1 url=$2 name
  name=$(basename "${url%%\?*}")
  fetch "$url" "$sum" "$K3S_DATA_DIR/agent/images/${name//%2B/+}"
}

# k3s_remember: what lies in the data folder before K3s comes (site's own drop-ins) survives its removal.
k3s_remember() {
  [[ ! -e $STATE_DIR/preexisting ]] || return 0
  mkdir -p "$STATE_DIR"
  chmod 0700 "$STATE_DIR"
  if [[ -d $K3S_DATA_DIR ]]; then
    (cd "$K3S_DATA_DIR" && find . -type f) | place "$STATE_DIR/preexisting" 0600
  else
    place "$STATE_DIR/preexisting" 0600 </dev/null
  fi
}

k3s_is_installed() {
  [[ -f $K3S && $(sha256_of "$K3S") == "$K3S_SHA256" ]]
}

# k3s_install_binary: copied beside and renamed, so that a running K3s keeps its file.
k3s_install_binary() {
  k3s_is_installed || place "$K3S" 0755 <"$STATE_DIR/k3s"
  rm -f "$STATE_DIR/k3s"
}

# k3s_config: config.yaml from the payload and the lines given as arguments (what only the host knows).
k3s_config() {
  local line
  install -d -m 0755 "$K3S_CONFIG_DIR"
  {
    echo "# Written by busbar; changes made here are overwritten. Own settings go to config.yaml.d/."
    payload config
    for line; do [[ -z $line ]] || printf '%s\n' "$line"; done
  } | place "$K3S_CONFIG_DIR/config.yaml" 0600
  if [[ -n $(payload registries) ]]; then
    payload registries | place "$K3S_CONFIG_DIR/registries.yaml" 0600
  else
    rm -f "$K3S_CONFIG_DIR/registries.yaml"
  fi
}

# k3s_config_list KEY: the items of a list in config.yaml (as busbar writes it), one a line.
k3s_config_list() {
  payload config | sed -n "/^$1:/,/^[^-]/s/^- *['\"]\{0,1\}\([^'\"]*\)['\"]\{0,1\}\$/\1/p"
}

# k3s_node_ip: the line for config.yaml that ties K3s to the configured address, where this host has it.
k3s_node_ip() {
  # Not `grep -q`: it ends early, and the broken pipe would count as a failure.
  if payload config | grep '^node-ip:' >/dev/null; then
    return 0
  elif ip -o addr show | awk '{ print $4 }' | grep -E "^${NODE_ADDRESS//./\\.}/" >/dev/null; then
    printf 'node-ip: "%s"' "$NODE_ADDRESS"
  fi
}

# k3s_unit NAME COMMAND: the unit as K3s's own installer writes it (k3s-io/k3s install.sh).
k3s_unit() {
  local name=$1 command=$2
  place "/etc/systemd/system/$name.service" 0644 <<EOF
# Written by busbar; own settings go to $name.service.d/.
[Unit]
Description=Lightweight Kubernetes ($command)
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
ExecStart=$K3S $command
EOF
}

# k3s_memlock UNIT: RDMA pins memory; the default of 8 MiB ends in ENOMEM from ibv_reg_mr. Pods inherit it.
k3s_memlock() {
  place "/etc/systemd/system/$1.service.d/10-busbar-memlock.conf" 0644 <<'EOF'
[Service]
LimitMEMLOCK=infinity
EOF
}

# k3s_sysctl: what the kubelet wants; it sets it itself, this keeps it over a reboot.
k3s_sysctl() {
  place /etc/sysctl.d/90-busbar-kubelet.conf 0644 <<'EOF'
vm.panic_on_oom = 0
vm.overcommit_memory = 1
kernel.panic = 10
kernel.panic_on_oops = 1
EOF
  sysctl -q -p /etc/sysctl.d/90-busbar-kubelet.conf >&2 ||
    note "some kernel settings of /etc/sysctl.d/90-busbar-kubelet.conf were refused (a container?)"
}

# k3s_wanted UNIT: one hash over everything that needs a restart when it changes.
k3s_wanted() {
  {
    echo "$K3S_SHA256" "${IMAGES:-}"
    find "/etc/systemd/system/$1.service" "/etc/systemd/system/$1.service.d" "$K3S_CONFIG_DIR" -type f \
      ! -name k3s.yaml -print0 2>/dev/null | sort -z | xargs -0 sha256sum
  } | sha256sum | cut -d' ' -f1
}

# k3s_start UNIT: restart where what it runs with is not what it should run with. Type=notify with
# TimeoutStartSec=0 would block for ever on a join target that is down, so nobody waits for systemctl here.
k3s_start() {
  local unit=$1
  K3S_WANTED=$(k3s_wanted "$unit")
  K3S_SINCE=$(date +%s)
  # Crashes of former days do not count.
  K3S_CRASHED_BEFORE=$(systemctl show -p NRestarts --value "$unit")
  systemctl daemon-reload
  systemctl enable -q "$unit" 2>/dev/null || die "$unit cannot be enabled" "look with: systemctl status $unit"
  if [[ -f $STATE_DIR/$unit.sha256 && $(<"$STATE_DIR/$unit.sha256") == "$K3S_WANTED" ]] &&
    systemctl is-active --quiet "$unit"; then
    return 0
  fi
  rm -f "$STATE_DIR/$unit.sha256"
  systemctl reset-failed "$unit" 2>/dev/null || true
  systemctl --no-block restart "$unit"
  K3S_CRASHED_BEFORE=0
}

# k3s_await UNIT SECONDS WHAT COMMAND...: until the command succeeds; ends early when the unit keeps dying.
k3s_await() {
  local unit=$1 seconds=$2 what=$3 deadline=$((SECONDS + $2)) crashes=0 turns=0
  shift 3
  until systemctl is-active --quiet "$unit" && "$@"; do
    crashes=$(($(systemctl show -p NRestarts --value "$unit") - K3S_CRASHED_BEFORE))
    if systemctl is-failed --quiet "$unit" || ((crashes >= K3S_CRASHES)); then
      k3s_journal "$unit"
      die "$unit ended $((crashes > 0 ? crashes : 1)) times instead of running" \
        "its last words are above; set right what they name and run again"
    fi
    # Reading the journal is dear on a busy host: every tenth time.
    if ((++turns % 10 == 0 && $(k3s_refusals "$unit") >= K3S_REFUSALS)); then
      k3s_journal "$unit"
      die "the cluster refuses the token of this host" \
        "was the cluster made by another stack? Remove K3s here and on the servers, or restore the stack's state"
    fi
    if ((SECONDS >= deadline)); then
      k3s_journal "$unit"
      die "$what: not so after $seconds s" "the last words of $unit are above; look with: journalctl -u $unit"
    fi
    sleep 0.5
  done
}

# k3s_settled UNIT: from now on this is what runs; a run that was cut off before here restarts once more.
k3s_settled() {
  printf '%s\n' "$K3S_WANTED" | place "$STATE_DIR/$1.sha256" 0600
}

# k3s_log UNIT LINES: what it has written since this run began.
k3s_log() {
  journalctl -u "$1" --since "@$K3S_SINCE" -n "$2" --no-pager -o cat 2>/dev/null || true
}

k3s_refusals() {
  k3s_log "$1" 40 | awk '/401 Unauthorized|not authorized/ { count++ } END { print count + 0 }'
}

# k3s_journal UNIT: its last complaints and its last words, without tokens.
k3s_journal() {
  local secrets
  secrets=$(payload config | sed -n 's/^\(agent-\)\{0,1\}token: *//p; s/^etcd-s3-\(access\|secret\)-key: *//p')
  echo "--- $1, the last complaints and the last lines:" >&2
  {
    k3s_log "$1" 2000 | { grep -E 'level=(fatal|error|panic)|^(panic|fatal|Error):' || true; } | tail -n 8
    k3s_log "$1" 8
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

# k3s_conditions KUBECONFIG: " Type=Status Type=Status ... " of this host's Node, empty where there is none.
k3s_conditions() {
  timeout 10 "$K3S" kubectl --kubeconfig "$1" get node "$NODE_NAME" \
    -o 'jsonpath={range .status.conditions[*]} {.type}={.status} {end}' 2>/dev/null || true
}

# k3s_node_has KUBECONFIG CONDITION...: whether the Node has all of them.
k3s_node_has() {
  local found condition
  found=$(k3s_conditions "$1")
  shift
  for condition; do [[ $found == *" $condition "* ]] || return 1; done
}

k3s_version() {
  "$K3S" --version | awk 'NR == 1 { print $3 }'
}
