#!/usr/bin/env bash
# The snapshots of etcd on a server, and whether one can be restored; changes nothing. Part of k3s-restore.sh.

DB=$K3S_DATA_DIR/server/db
RESTORING=$STATE_DIR/restoring
# Bytes of the disk per byte of the snapshot: the new data and their log; an archive is unpacked first.
SPACE_FACTOR=2
SPACE_FACTOR_ZIP=12

# setting KEY: of config.yaml and its drop-ins; the last one wins, as in K3s.
setting() {
  { cat "$K3S_CONFIG_DIR/config.yaml" "$K3S_CONFIG_DIR"/config.yaml.d/*.yaml 2>/dev/null || true; } |
    config_value "$1" | tail -n 1
}

token_password() {
  setting token | sed 's/.*://'
}

snapshot_dir() {
  local folder
  folder=$(setting etcd-snapshot-dir)
  printf '%s' "${folder:-$DB/snapshots}"
}

list_here() {
  local file list="" s3 stored=null running=true
  ! is_stopped "$UNIT" || running=false
  while IFS= read -r file; do
    list+="${list:+,}{\"name\":$(json "$(basename "$file")"),\"path\":$(json "$file"),\"bytes\":$(size_of "$file")"
    list+=",\"time\":\"$(date -u -r "$file" +%Y-%m-%dT%H:%M:%SZ)\"}"
  done < <(snapshot_files)
  s3=$(truth test "$(setting etcd-s3)" = true)
  if [[ $s3 == true ]] && systemctl is-active --quiet "$UNIT"; then stored=$(stored_snapshots) || stored=null; fi
  printf '{"node":%s,"install_id":%s,"running":%s,"restoring":%s,"s3":%s,"problem":%s,"snapshots":[%s],"stored":%s}\n' \
    "$(json "$NODE_NAME")" "$(json "$(owner_field install_id)")" "$running" "$(truth test -e "$RESTORING")" "$s3" "$(json "$(problem)")" \
    "$list" "$stored"
}

# snapshot_files: those in the folder of K3s, and SNAPSHOT if it is the path of a file elsewhere.
snapshot_files() {
  {
    find "$(snapshot_dir)" -maxdepth 1 -type f ! -name '*.part' ! -name '*.tmp' 2>/dev/null || true
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
  local digest
  if [[ $(owner_field role) != server ]]; then
    printf 'is not marked as a server of busbar (%s/owner)' "$STATE_DIR"
  elif [[ ! -x $K3S || ! -f $K3S_CONFIG_DIR/config.yaml ]]; then
    printf 'has no K3s (%s, %s/config.yaml)' "$K3S" "$K3S_CONFIG_DIR"
  elif grep -F " $DB/etcd " "$MOUNTS" >/dev/null; then
    printf '%s/etcd is a mount point: it cannot be moved aside' "$DB"
  else
    # The install_id is the digest of the first token; the token may have been rotated since.
    digest=$(cat "$STATE_DIR/token-in-etcd" 2>/dev/null || owner_field install_id)
    [[ -n $(token_password) && (-z $digest || $(token_digest "$(token_password)") == "$digest") ]] ||
      printf 'the token in %s/config.yaml is not the one that this cluster was made with' "$K3S_CONFIG_DIR"
  fi
}

check_here() {
  local bytes needed available factor=$SPACE_FACTOR
  [[ -s $SNAPSHOT ]] || die "$SNAPSHOT does not exist or is empty; no changes made" "run busbar snapshots for a list"
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
    die "the disk of $DB has $available bytes free, a restore needs $needed; no changes made" "delete old data (ls -d $DB/etcd-*)"
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
      "use another one: busbar snapshots"
  own=/bootstrap/$(token_password | tr -d '\n' | sha256sum | cut -c1-12)
  keys=$(bootstrap_keys)
  [[ $(tail -n 1 <<<"$keys") == "$own" ]] ||
    die "$SNAPSHOT was made with another token than this cluster's (keys: ${keys//$'\n'/ }, expected $own); no changes made" \
      "use a snapshot of this cluster. A snapshot from before a rotation of the server token needs the earlier token: docs/hosts.md"
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
