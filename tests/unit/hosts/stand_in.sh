#!/usr/bin/env bash
# Stands in for the programs that a host script calls, under their names (recorded.py): keeps what changes something in
# $ROOT/record, in order, and answers questions from the files in $ROOT/state. The files that a script writes are real.
# A command that matches a line of $ROOT/state/fails fails (60: as curl says that a certificate does not match).
set -euo pipefail

STATE=$ROOT/state
K3S_DATA=$ROOT/var/lib/rancher/k3s

record() {
  printf '%s\n' "${*//"$ROOT"/}" >>"$ROOT/record"
}

# The program itself, behind this one in PATH.
real() {
  local name=$1
  shift
  PATH=/usr/sbin:/usr/bin:/sbin:/bin command "$name" "$@"
}

state() {
  cat "$STATE/$1" 2>/dev/null || true
}

# What K3s writes at its start.
k3s_starts() {
  local drop_in=$ROOT/run/systemd/system/$1.service.d/90-busbar-rotate.conf before
  if [[ -e $drop_in ]]; then
    before=$(sed -n "s/^ExecStartPre=.*-c '\(.*\)'$/\1/p" "$drop_in")
    bash -c "$before" || true
  fi
  if [[ $1 == k3s ]]; then
    mkdir -p "$K3S_DATA"/server/{db/etcd/member,tls,cred}
    echo "the CA" >"$K3S_DATA/server/tls/server-ca.crt"
    echo "K10$(printf 'c%.0s' {1..64})::server:secret" >"$K3S_DATA/server/token"
    echo tokens >"$K3S_DATA/server/cred/passwd"
    echo admin >"$ROOT/etc/rancher/k3s/k3s.yaml"
    sed -n '/^tls-san:/,/^[^-]/s/^- //p' "$ROOT/etc/rancher/k3s/config.yaml" >"$STATE/certified.next"
    # A running API keeps its certificate until it is renewed.
    if [[ ! -e $STATE/certified || -e $STATE/renewed ]]; then real mv "$STATE/certified.next" "$STATE/certified"; fi
  fi
  real rm -f "$STATE/log"
  mkdir -p "$K3S_DATA/agent"
  echo kubelet >"$K3S_DATA/agent/kubelet.kubeconfig"
  "$ROOT/usr/local/bin/k3s" --version | awk '{ print $3 }' >"$STATE/kubelet"
  : >"$STATE/active.$1"
  echo "start $(state invocation)1" >"$STATE/invocation"
}

systemctl() {
  local unit=${*: -1}
  case $* in
    "show -p InvocationID "*) state invocation ;;
    "show -p NRestarts "*) echo 0 ;;
    "show -p MainPID "*) echo 4711 ;;
    "is-active --quiet "*) [[ -e $STATE/active.$unit ]] ;;
    "is-active "*) if [[ -e $STATE/active.$unit ]]; then echo active; else echo inactive && return 3; fi ;;
    "is-enabled "*) [[ -e $STATE/version.$unit ]] ;;
    "is-failed "*) return 1 ;;
    *)
      record systemctl "$@"
      case $* in
        *" k3s" | *" k3s-agent") if [[ $* == *"start "* ]]; then k3s_starts "$unit"; fi ;;&
        "reload-or-restart "* | "start "*) : >"$STATE/active.$unit" ;;
        "disable --now "* | "stop "*) real rm -f "$STATE/active.$unit" ;;
      esac
      ;;
  esac
}

k3s() { # VERSION ARGUMENTS...
  local version=$1 via=""
  shift
  case $* in
    --version) echo "k3s version $version (abcdef)" ;;
    "kubectl "*)
      shift 3
      if [[ $1 == --server ]]; then via=$2 && shift 2; fi
      case $* in
        *"|{.status.nodeInfo.kubeletVersion}")
          record "is the Node Ready?"
          echo "True|$(date -u +%FT%TZ)|$(state kubelet)"
          ;;
        *".status.nodeInfo.kubeletVersion}") state kubelet ;;
        *"{.metadata.name}|"*) state "own node" ;;
        "get node "*" --ignore-not-found -o name") if [[ ! -e $STATE/deleted ]]; then echo "node/$3"; fi ;;
        *"annotations.busbar/cordoned}"*) state cordoned ;;
        *"{.spec.podCIDR}") echo 10.42.1.0/24 ;;
        *"{.metadata.annotations.etcd"*) state left ;;
        *"{.metadata.labels.node-role"*) echo true ;;
        "get pods "*) state pods ;;
        "get pv "*) state claims ;;
        "get nodes -l node-role"*) state servers ;;
        "-n kube-system get lease "*) state lease ;;
        "get --raw /metrics") state metrics ;;
        "get --raw /readyz") grep -qxF "$via" "$STATE/api" ;;
        get*) echo "unexpected: kubectl $*" >&2 && return 1 ;;
        *)
          record "kubectl ${via:+--server $via }$*"
          case $* in
            *"annotate node "*etcd*) echo "$3" >"$STATE/left" ;;
          esac
          ;;
      esac
      ;;
    *)
      record k3s "$@"
      case $* in
        "certificate rotate") : >"$STATE/renewed" ;;
      esac
      ;;
  esac
}

curl() {
  local url=${*: -1} file
  case $url in
    # K3s has etcd listen on the loopback address of the cluster's family alone.
    *127.0.0.1:2382/*) if grep -qs '^service-cidr:.*::' "$ROOT/etc/rancher/k3s/config.yaml"; then return 7; fi ;;&
    *:2382/health) echo '{"health":"true"}' ;;
    *:2382/*/status) record "does this server vote?" && echo '{"leader":"1"}' ;;
    *:2382/*/list) record "who votes?" && state members ;;
    *:8443/*) record "is ${url%/readyz} healthy?" && echo -n 200 ;;
    *:6443/readyz) record "is ${url%:6443/readyz} ready?" && echo -n ok ;;
    *:6443/v1-k3s/token)
      record "PUT token: $(sed -n 's/^user = "\(.*\)"/\1/p; s/.*newToken[^:]*:[\\"]*\([^\\"]*\).*/\1/p' | paste -sd ' ')"
      echo -n 200
      ;;
    *:6443/ping)
      url=${url#https://} url=${url%%:*}
      if [[ $* == *--connect-to* ]]; then
        if ! grep -qxF "$url" "$STATE/certified"; then return 60; fi
      elif grep -qxF "$url" "$STATE/peers"; then
        echo -n pong
      else
        return 7
      fi
      ;;
    *)
      file=$STATE/mirror/${url##*/}
      if [[ $* == -*I* ]]; then
        echo "content-length: $(stat -c %s "$file")"
      else
        record "download $url"
        while [[ $1 != -o ]]; do shift; done
        real cp "$file" "$2"
      fi
      ;;
  esac
}

# A package brings its unit, which runs, and a configuration.
apt-get() {
  local package=${*: -1}
  record apt-get "${@:10}"
  case $* in
    *" install "*)
      mkdir -p "$ROOT/etc/$package"
      echo "of the package" >"$ROOT/etc/$package/$package.cfg"
      : >"$STATE/active.$package"
      echo 2.8 >"$STATE/version.$package"
      ;;
    *" purge "*) real rm -f "$STATE/version.$package" "$ROOT/etc/$package/$package.cfg" ;;
  esac
}

dpkg-query() {
  local package=${*: -1}
  [[ -e $STATE/version.$package ]] || return 1
  if [[ $* == *Version* ]]; then echo -n "$(state "version.$package")"; else echo "install ok installed"; fi
}

# Files: those that a script makes on the way are left out.
changes() {
  local verb=$1 path
  shift
  for path; do
    if [[ -e $path && $path != *.new-?????? && $path != */.busbar-download.* ]]; then record "$verb $path"; fi
  done
}

name=${0##*/}
while IFS= read -r pattern; do
  # shellcheck disable=SC2053 # a pattern
  if [[ "$name $*" == $pattern ]]; then exit 60; fi
done <"$STATE/fails"
# shellcheck source=/dev/null
source "$STATE/more.sh"
if declare -F "more-$name" >/dev/null; then
  "more-$name" "$@"
  exit
fi
case $name in
  id) echo 0 ;;
  sleep)
    echo >>"$STATE/sleeps"
    # A condition that never comes true.
    (($(wc -l <"$STATE/sleeps") < 200)) || kill -KILL "$PPID"
    real sleep 0.05
    ;;
  ps) if [[ $1 == -e ]]; then state processes; else echo 10; fi ;;
  ip) case $* in "-o addr show" | "-o link show" | "netns list") state "ip ${*: -2}" ;; "netns pids"*) state "ip $*" ;; "-o -4 addr"*) state bridge ;; *) record ip "$@" ;; esac ;;
  journalctl) state log ;;
  haproxy | keepalived) record "$name checks ${*: -1}" && grep -q good "${*: -1}" ;;
  exportfs) if [[ $1 == -s ]]; then state exports; else record exportfs "$@"; fi ;;
  iptables-save | ip6tables-save) state rules ;;
  iptables-restore | ip6tables-restore) record "$name: $(paste -sd '|')" ;;
  umount) record umount "$@" && real sed -i "\\| ${*: -1} |d" "$ROOT/proc/self/mounts" ;;
  sysctl) record sysctl "$@" ;;
  chown) record chown "$@" ;;
  mktemp) real mktemp "${1%.XXXXXX}.new-XXXXXX" ;;
  mv) real mv "$@" && changes write "${*: -1}" ;;
  cp) real cp "$@" && changes write "${*: -1}" ;;
  touch) real touch "$@" && changes touch "$@" ;;
  chmod) real chmod "$@" && changes "chmod $1" "${@:2}" ;;
  rm | rmdir) changes "$name" "$@" && real "$name" "$@" ;;
  k3s | systemctl | curl | apt-get | dpkg-query) "$name" "$@" ;;
esac
