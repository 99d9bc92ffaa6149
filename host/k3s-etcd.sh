#!/usr/bin/env bash
# Asks etcd on this server for its state and members. K3s has it answer HTTP on port 2382 of 127.0.0.1, or of ::1 with IPv6.

ETCD_TLS=/var/lib/rancher/k3s/server/tls/etcd
ETCD_URL=https://localhost:2382
# For the other servers to answer, one of which may just have restarted.
QUORUM_DEADLINE=120

etcd_curl() {
  curl -sS --noproxy '*' --max-time 5 --cacert "$ETCD_TLS/server-ca.crt" --cert "$ETCD_TLS/client.crt" \
    --key "$ETCD_TLS/client.key" "$@" 2>/dev/null
}

# etcd_serves: whether etcd here has a leader and reads through it.
etcd_serves() {
  [[ $(etcd_curl "$ETCD_URL/health") == *'"health":"true"'* ]]
}

# is_voter: whether etcd here serves, and votes. The Node's condition EtcdIsVoter stays True over a restart.
is_voter() {
  local status
  etcd_serves && status=$(etcd_curl -d '{}' "$ETCD_URL/v3/maintenance/status") || return 1
  [[ $status == *'"leader":"'* && $status != *'"isLearner":true'* ]]
}

# voters: lines "NAME ADDRESS", those of etcd's members that vote; the address is empty where one has never started.
voters() {
  local members
  members=$(etcd_curl -d '{}' "$ETCD_URL/v3/cluster/member/list") || return 1
  printf '%s\n' "${members//'{"ID"'/$'\n{"ID"'}" |
    awk '/^\{"ID"/ && !/"isLearner":true/ {
      name = address = ""
      if (match($0, /"name":"[^"]*"/)) name = substr($0, RSTART + 8, RLENGTH - 9)
      if (match($0, /"clientURLs":\["https:\/\/[^"]*:[0-9]+"/)) {
        address = substr($0, RSTART + 23, RLENGTH - 24)
        sub(/:[0-9]+$/, "", address)
      }
      print name, address
    }'
}

# keep_quorum: returns when K3s may stop here without taking the quorum from etcd: when enough of the other voters answer.
# With two voters both are needed whatever is done: there the other one is enough. A K3s that is not up holds nothing.
keep_quorum() {
  local deadline=$((SECONDS + QUORUM_DEADLINE))
  systemctl is-active --quiet k3s || return 0
  # Twice: a server that crashes repeatedly answers for a moment each time.
  until others_are_enough && sleep 3 && others_are_enough; do
    ((SECONDS < deadline)) ||
      die "k3s was not restarted: etcd would lose its quorum. $QUORUM_PROBLEM" \
        "repair K3s there first (journalctl -u k3s; after an interrupted rotation: docs/hosts.md, Rotation), then retry"
    sleep 2
  done
}

# others_are_enough: sets QUORUM_PROBLEM if not.
others_are_enough() {
  local list name address all=0 up=0 needed silent=""
  QUORUM_PROBLEM="etcd on this server is not responding, though k3s runs"
  list=$(voters) && [[ -n $list ]] || return 1
  while read -r name address; do
    ((++all))
    # K3s names a member after its Node, with 8 digits.
    [[ $name != "$NODE_NAME"-???????? ]] || continue
    if [[ -n $address ]] && server_answers "$address"; then ((++up)); else silent+=" ${name:-$address}"; fi
  done <<<"$list"
  needed=$((all / 2 + 1))
  ((needed < all)) || needed=$((all - 1))
  QUORUM_PROBLEM="Of $all voters the others that answer are $up, $needed are needed; silent:$silent"
  ((up >= needed))
}

# server_answers ADDRESS: its API is ready, and with it etcd there: K3s's API server asks the etcd of its own host only.
server_answers() {
  [[ $(curl -sS --noproxy '*' --max-time 5 --cacert "${ETCD_TLS%/etcd}/server-ca.crt" "https://$1:6443/readyz" 2>/dev/null) == ok ]]
}

# k3s_await_server: until this server is back: its kubelet by its own word, its vote by etcd's.
k3s_await_server() {
  k3s_await "$(k3s_ready_seconds 420)" "Node $NODE_NAME Ready and a voter in etcd" server_is_back
  note_ignored_flags
}

# note_ignored_flags: a server ignores an unknown key of config.yaml, and says so in its log only.
note_ignored_flags() {
  local line
  while read -r line; do
    note "K3s: $line"
  done < <({ k3s_log 5000 | grep -o 'Unknown flag .* skipping' || true; } | sort -u)
}

server_is_back() {
  k3s_is_back && is_voter
}
