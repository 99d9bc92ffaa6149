#!/usr/bin/env bash
# The steps of `busbar restore`: etcd's data on all servers become those of a snapshot. One step per run, in this order
# (busbar/operations/restore.py); each may be repeated, and so may all of them.
#   VERB=list   the snapshots that are here, and what would keep this server from a restore; changes nothing
#   VERB=check  whether SNAPSHOT is whole, of this cluster, and fits on the disk; changes nothing
#   VERB=stop   K3s stops, and does not start at boot; RESTORING marks the server until it starts again
#   VERB=reset  on one server: etcd gets the data of SNAPSHOT, with this server as the only member
#   VERB=start  K3s starts: Ready and a voter; with RESET=true after a reset
#   VERB=join   on the other servers: etcd's old data are moved aside; the server joins one of SERVERS
#   VERB=agent  on workers: the agent restarts, pods keep running
#   VERB=nodes  waits until NODES are Ready
#
# Values: NODE_NAME, INSTALL_ID (hosts of another cluster are left alone), SNAPSHOT (path of a file; the name of an object with
#   S3=true), S3 (true, false), RESUMED (true: an earlier restore was not finished, so that the data here may be neither old nor
#   new), SERVERS (URLs of the servers that run already), NODES (names; of list: all configured servers).
# Facts: list {"node","install_id","restoring","s3","problem","snapshots","stored"}: snapshots are {"name","path","bytes",
#   "time"}, stored those in the bucket, null if K3s does not run; check {"node","bytes"}; reset {"node","reset","kept",
#   "reason"}; join {"node","kept"}; nodes {"node","waiting"}; else {"node"}.
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner k3s-api k3s-lib k3s-etcd k3s-rotation

UNIT=k3s
RESET_UNIT=busbar-k3s-reset
STEP_FILE=/run/busbar-restore.step
RESET_SECONDS=600
AGENT_DEADLINE=180
NODES_DEADLINE=240
DB=$K3S_DATA_DIR/server/db
RESTORING=$STATE_DIR/restoring
# Bytes of the disk per byte of the snapshot: the new data and their log; an archive is unpacked first.
SPACE_FACTOR=2
SPACE_FACTOR_ZIP=12

main() {
  begin_verb list check nodes stop reset start join agent
  # From the payload the functions of k3s-lib.sh know the configuration, and what of it is not to be shown.
  # shellcheck disable=SC2034 # read by payload
  PAYLOAD="{\"config\":\"$({ base64 -w 0 "$K3S_CONFIG_DIR/config.yaml" 2>/dev/null || true; })\"}"
  if [[ $VERB != @(list|check|nodes) ]]; then
    refuse_other_cluster
    end_earlier_step
    acquire_lock
  fi
  "${VERB}_here"
}

# end_earlier_step: a step whose connection broke goes on, for minutes if it waits for a server that this restore stops.
end_earlier_step() {
  local group
  group=$(cat "$STEP_FILE" 2>/dev/null || true)
  if [[ -n $group ]] && is_a_step "$group"; then
    note "stopping a step of an earlier restore that is still running"
    kill -TERM -- "-$group" 2>/dev/null || true
    poll 30 fails is_a_step "$group" || die "a step of an earlier restore did not stop" "kill -KILL -- -$group on this host"
  fi
  ps -o pgid= -p $$ | tr -d ' ' >"$STEP_FILE"
}

# is_a_step GROUP: whether this group of processes is a run of this script (busbar/hosts/scripts.py: BUSBAR_SCRIPT).
is_a_step() {
  grep -sz '^BUSBAR_SCRIPT=k3s-restore-' "/proc/$1/environ" >/dev/null
}

# setting KEY: of config.yaml and its drop-ins; the last one wins, as in K3s.
setting() {
  { cat "$K3S_CONFIG_DIR/config.yaml" "$K3S_CONFIG_DIR"/config.yaml.d/*.yaml 2>/dev/null || true; } |
    config_value "$1" | tail -n 1
}

token_password() {
  setting token | sed 's/.*://'
}

list_here() {
  local file list="" s3 stored=null
  while IFS= read -r file; do
    list+="${list:+,}{\"name\":$(json "$(basename "$file")"),\"path\":$(json "$file"),\"bytes\":$(size_of "$file")"
    list+=",\"time\":\"$(date -u -r "$file" +%Y-%m-%dT%H:%M:%SZ)\"}"
  done < <(snapshot_files)
  s3=$(truth test "$(setting etcd-s3)" = true)
  if [[ $s3 == true ]] && systemctl is-active --quiet "$UNIT"; then stored=$(stored_snapshots) || stored=null; fi
  printf '{"node":%s,"install_id":%s,"restoring":%s,"s3":%s,"problem":%s,"snapshots":[%s],"stored":%s}\n' \
    "$(json "$NODE_NAME")" "$(json "$(owner_field install_id)")" "$(truth test -e "$RESTORING")" "$s3" "$(json "$(problem)")" \
    "$list" "$stored"
}

# snapshot_files: those in the folder of K3s, and SNAPSHOT if it is the path of a file elsewhere.
snapshot_files() {
  local folder
  folder=$(setting etcd-snapshot-dir)
  {
    find -H "${folder:-$DB/snapshots}" -maxdepth 1 -type f ! -name '*.part' ! -name '*.tmp' 2>/dev/null || true
    [[ ${SNAPSHOT:-} != /* || ! -f $SNAPSHOT ]] || printf '%s\n' "$SNAPSHOT"
  } | sort -u
}

# stored_snapshots: the objects in the bucket, from a running K3s (columns Name, Location, Size, Created).
stored_snapshots() {
  local lines
  lines=$(timeout 60 "$K3S" etcd-snapshot ls 2>/dev/null) || return 1
  awk 'BEGIN { printf "[" }
    $2 ~ /^s3:\/\// { printf "%s{\"name\":\"%s\",\"path\":\"%s\",\"bytes\":%d,\"time\":\"%s\"}", comma, $1, $2, $3, $4; comma = "," }
    END { printf "]" }' <<<"$lines"
}

# problem: what keeps this server from a restore; nothing if it can take part.
problem() {
  local digest others
  others=$({ etcd_nodes || true; } | awk -v names=" ${NODES,,} " '$2 == "True" && !index(names, " " $1 " ") { print $1 }' | paste -sd ' ')
  if [[ $(owner_field role) != server ]]; then
    printf 'is not marked as a server of busbar (%s/owner)' "$STATE_DIR"
  elif [[ ! -x $K3S || ! -f $K3S_CONFIG_DIR/config.yaml ]]; then
    printf 'has no K3s (%s, %s/config.yaml)' "$K3S" "$K3S_CONFIG_DIR"
  elif grep -F " $(readlink -m "$DB")/etcd " "$MOUNTS" >/dev/null; then
    printf '%s/etcd is a mount point: it cannot be moved aside' "$DB"
  elif [[ -n $others ]]; then
    printf 'runs in one etcd with %s, which would keep its data as a second cluster: list it in hosts.servers too, or remove it by an update first' "$others"
  else
    # The install_id is the digest of the first token; the token may have been rotated since.
    digest=$(cat "$STATE_DIR/token-in-etcd" 2>/dev/null || owner_field install_id)
    [[ -n $(token_password) && (-z $digest || $(token_digest "$(token_password)") == "$digest") ]] ||
      printf 'the token in %s/config.yaml is not the one that this cluster was made with' "$K3S_CONFIG_DIR"
  fi
}

check_here() {
  local bytes needed available factor=$SPACE_FACTOR
  [[ -s $SNAPSHOT ]] || die "$SNAPSHOT does not exist or is empty; no changes made" "busbar snapshots STACK lists them"
  bytes=$(size_of "$SNAPSHOT")
  if [[ $SNAPSHOT == *.zip ]]; then
    factor=$SPACE_FACTOR_ZIP
    note "$SNAPSHOT is an archive: not verified; K3s verifies it when it unpacks it"
  else
    check_content "$bytes"
  fi
  needed=$((factor * bytes))
  available=$(df -B1 --output=avail "$K3S_DATA_DIR" | tail -n 1)
  ((available >= needed)) ||
    die "the disk of $DB has $available bytes free, a restore needs $needed; no changes made" "free some space there, not by old data of a restore that has not finished; those of earlier ones: ls -d $DB/etcd-*"
  printf '{"node":%s,"bytes":%s}\n' "$(json "$NODE_NAME")" "$bytes"
}

# check_content BYTES: etcd ends a snapshot with its sha256 (etcdutl snapshot `hasChecksum`). K3s keeps the certificates
# of the cluster under a key that it derives from the token (k3s-io/k3s pkg/cluster/encrypt.go `storageKey`).
check_content() {
  local got wanted keys own
  got=$(head -c -32 "$SNAPSHOT" | sha256sum | cut -d' ' -f1)
  wanted=$(tail -c 32 "$SNAPSHOT" | od -An -v -tx1 | tr -d ' \n')
  [[ $(($1 % 512)) == 32 && $got == "$wanted" ]] ||
    die "$SNAPSHOT is damaged or not a snapshot of etcd: its sha256 is $got, expected $wanted; no changes made" \
      "use another one: busbar snapshots STACK"
  own=/bootstrap/$(token_password | tr -d '\n' | sha256sum | cut -c1-12)
  keys=$(bootstrap_keys)
  [[ $(tail -n 1 <<<"$keys") == "$own" ]] ||
    die "$SNAPSHOT was made with another token than this cluster's (keys: ${keys//$'\n'/ }, expected $own); no changes made" \
      "use a snapshot of this cluster. A snapshot from before a rotation of the server token needs the earlier token: docs/hosts.md, Rotation"
}

# bootstrap_keys: those in SNAPSHOT, the one that was written last at the end. After a rotation the file also holds the
# earlier key, in pages that are not used any more; so that of the highest revision counts. After the key an entry has the
# revisions of its creation and of its last change (etcd api/mvccpb/kv.proto: fields 2 and 3); a deletion has none.
bootstrap_keys() {
  local offset key
  { LC_ALL=C grep -aboE '/bootstrap/[0-9a-f]{12}' "$SNAPSHOT" || true; } | while IFS=: read -r offset key; do
    printf '%s %s\n' "$(tail -c "+$((offset + ${#key} + 1))" "$SNAPSHOT" | head -c 22 | od -An -v -tu1 | tr -d '\n' | awk '
      function number(    factor, value) {
        for (factor = 1; $at >= 128 && at < NF; factor *= 128) value += ($(at++) - 128) * factor
        return value + $(at++) * factor
      }
      { at = 2; if ($1 == 16) { number(); if ($at == 24) { at++; revision = number() } } }
      END { printf "%.0f", revision }')" "$key"
  done | sort -n | awk '{ last[$2] = NR; key[NR] = $2 } END { for (n = 1; n <= NR; n++) if (last[key[n]] == n) print key[n] }'
}

stop_here() {
  touch "$RESTORING"
  # A restore whose connection broke has left it: this one may reset another server.
  timeout 120 systemctl stop "$RESET_UNIT" 2>/dev/null || true
  timeout 120 systemctl disable --now "$UNIT" >&2 || true
  is_stopped "$UNIT" || die "$UNIT did not stop" "see: systemctl status $UNIT; journalctl -u $UNIT"
  ! systemctl is-active --quiet "$RESET_UNIT" ||
    die "$RESET_UNIT, of an earlier restore, did not stop" "see: systemctl status $RESET_UNIT; journalctl -u $RESET_UNIT"
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

# reset_here: if K3s fails, the old data are put back (unless RESUMED), and the facts say so. K3s refuses a reset with `server` in its
# configuration, and with etcd-s3 there it takes SNAPSHOT for the name of an object: arguments come last and win.
reset_here() {
  local before kept reason=""
  refuse_running
  timeout 120 systemctl stop "$RESET_UNIT" 2>/dev/null || true
  install -d -m 0700 "$DB/etcd"
  before=$(old_data)
  K3S_SINCE=$(date +%s)
  if ! run_reset; then
    reason="k3s server --cluster-reset failed"
  elif [[ ! -e $DB/reset-flag || ! -d $DB/etcd/member ]]; then
    reason="k3s server --cluster-reset exited 0 without a restored etcd"
  fi
  kept=$(comm -13 <(printf '%s\n' "$before") <(old_data) | tail -n 1)
  if [[ -n $reason ]]; then
    UNIT=$RESET_UNIT k3s_journal
    if [[ -n $kept && ${RESUMED:-} != true ]]; then
      rm -rf "$DB/etcd"
      mv "$kept" "$DB/etcd"
    fi
    rm -f "$DB/reset-flag"
    kept=""
  fi
  printf '{"node":%s,"reset":%s,"kept":%s,"reason":%s}\n' "$(json "$NODE_NAME")" \
    "$(truth test -z "$reason")" "$(json "$kept")" "$(json "$reason")"
}

# run_reset: as a unit with the environment of K3s's own (S3 may be behind the proxy), so that it outlives a connection that breaks.
run_reset() {
  local environment
  mapfile -t environment < <(sed -n 's/^Environment=/--setenv=/p' "$K3S_UNITS/$UNIT.service.d/$K3S_PROXY_DROP_IN" 2>/dev/null)
  systemctl reset-failed "$RESET_UNIT" 2>/dev/null || true
  systemd-run --quiet --wait --collect --unit="$RESET_UNIT" --property=RuntimeMaxSec="$RESET_SECONDS" \
    --property=EnvironmentFile=-/etc/default/k3s --property=EnvironmentFile=-/etc/sysconfig/k3s \
    --property=LimitNOFILE=1048576 "${environment[@]}" \
    "$K3S" server --cluster-reset "--cluster-reset-restore-path=$SNAPSHOT" "--etcd-s3=${S3:-false}" --server= >&2
}

# old_data: the folders that K3s moved aside at resets (pkg/etcd/etcd.go `Restore`).
old_data() {
  find -H "$DB" -maxdepth 1 -name 'etcd-old-*' 2>/dev/null | sort
}

refuse_running() {
  is_stopped "$UNIT" || die "$UNIT is running here; no changes made" "run the same command again: it stops all servers first"
}

# start_here: after a reset etcd may have another agent token than the configuration.
start_here() {
  [[ ${RESET:-} != true ]] || forget_passwords
  start_and_await
  [[ ${RESET:-} != true ]] || save_passwords "$(token_password)"
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

start_and_await() {
  rm -f "$RESTORING"
  # shellcheck disable=SC2034 # read by k3s_await
  K3S_SINCE=$(date +%s) K3S_CRASHED_BEFORE=0
  systemctl enable -q "$UNIT" 2>/dev/null || die "systemctl enable $UNIT failed" "see: systemctl status $UNIT"
  systemctl reset-failed "$UNIT" 2>/dev/null || true
  systemctl --no-block start "$UNIT"
  k3s_await_server
}

join_here() {
  local kept=""
  refuse_running
  if [[ -d $DB/etcd ]]; then
    kept=$DB/etcd-before-restore-$(date -u +%Y%m%dT%H%M%SZ)
    mv "$DB/etcd" "$kept"
  fi
  # A server that joins anew takes these from etcd, which may be older than its own files.
  rm -f "$DB/reset-flag" "$K3S_DATA_DIR/server/cred/"{passwd,encryption-config.json,encryption-state.json}
  follow_restored
  start_and_await
  printf '{"node":%s,"kept":%s}\n' "$(json "$NODE_NAME")" "$(json "$kept")"
}

# follow_restored: without data the membership line of config.yaml takes effect again. One that would make a second
# cluster, or names a server that does not run yet, is changed to the first of SERVERS; the next update that changes this
# server's configuration restarts it for that.
follow_restored() {
  local file=$K3S_CONFIG_DIR/config.yaml line url
  line=$(grep -E '^(cluster-init|server):' "$file" || true)
  for url in $SERVERS; do
    [[ $line != "server: \"$url\"" ]] || return 0
  done
  url=${SERVERS%% *}
  {
    grep -vE '^(cluster-init|server):' "$file"
    printf 'server: "%s"\n' "$url"
  } | write_file "$file" 0600
  if [[ -f $STATE_DIR/applied.sha256 ]]; then
    { grep -vF "  $file" "$STATE_DIR/applied.sha256" || true; sha256sum "$file"; } | write_file "$STATE_DIR/applied.sha256" 0600
  fi
}

# agent_here: etcd's revisions start again at the snapshot's; a kubelet that keeps its watches would miss changes
# (kubernetes.io, Operating etcd clusters, Restoring an etcd cluster).
agent_here() {
  UNIT=k3s-agent
  if ! systemctl is-active --quiet "$UNIT"; then
    note "$UNIT is not running here; not restarted"
  else
    k3s_restart
    k3s_await "$AGENT_DEADLINE" "the restart of $UNIT" true
  fi
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

# nodes_here: what the snapshot says of a Node is old: one that lives renews its lease every 10 s.
nodes_here() {
  local deadline=$((SECONDS + NODES_DEADLINE)) first waiting list="" name
  first=$(leases) || die "the Kubernetes API on this server is not responding" "see: systemctl status $UNIT"
  until waiting=$(waiting_nodes "$first") && [[ -z $waiting ]]; do
    ((SECONDS < deadline)) || break
    sleep 2
  done
  for name in ${waiting:-}; do list+="${list:+,}$(json "$name")"; done
  printf '{"node":%s,"waiting":[%s]}\n' "$(json "$NODE_NAME")" "$list"
}

leases() {
  api 30 -n kube-node-lease get leases -o 'jsonpath={range .items[*]}{.metadata.name} {.spec.renewTime}{"\n"}{end}'
}

# waiting_nodes LEASES: those of NODES that are not Ready, or have an old lease; all without an answer of the API.
waiting_nodes() {
  local now ready
  if now=$(leases) &&
    ready=$(node_states 30); then
    awk 'FILENAME == ARGV[1] { first[$1] = $2; next }
      FILENAME == ARGV[2] { now[$1] = $2; next }
      FILENAME == ARGV[3] { ready[$1] = $2; next }
      { if (ready[$1] != "True" || now[$1] == "" || now[$1] == first[$1]) print $1 }' \
      <(printf '%s\n' "$1") <(printf '%s\n' "$now") <(printf '%s\n' "$ready") <(tr ' ' '\n' <<<"$NODES")
  else
    tr ' ' '\n' <<<"$NODES"
  fi
}

main
