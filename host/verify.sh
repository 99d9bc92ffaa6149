#!/usr/bin/env bash
# Reports what differs on this host from what the last update applied; changes nothing.
#
# Values: NODE_NAME, ROLE (lb, server, worker, nfs, units), NFS (true: also the NFS server), UNITS (of the role units),
#   DNS_SERVER, DNS_NAME (a server or worker asks CoreDNS for this name), INSTALL_ID (of the cluster, if it is known).
# Facts: {"node","epoch","drift":[TEXT...],"missing","stopped":[UNIT...],"others":[OWNER...],"dns"}; epoch: this host's clock;
#   missing: the role is not installed; others: what other clusters have installed here; dns: why CoreDNS does not answer,
#   or empty.
# By hand: sudo ROLE=worker bash host/verify.sh </dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib owner nfs-lib

UNIT_DIRS=(/etc/systemd/system /run/systemd/system)
# busbar's own, while a server leaves etcd or certificates are rotated.
TEMPORARY='90-busbar-*.conf'

main() {
  begin
  DRIFT="" OTHERS="" STOPPED="" MISSING=false
  : "${ROLE:=worker}"
  [[ $ROLE == nfs ]] || verify_part
  if [[ ${NFS:-} == true ]]; then
    ROLE=nfs STATE_DIR=$NFS_STATE_DIR verify_part
  fi
  printf '{"node":%s,"epoch":%s,"drift":[%s],"missing":%s,"stopped":[%s],"others":[%s],"dns":%s}\n' "$(json "$NODE_NAME")" \
    "$(date +%s)" "$DRIFT" "$MISSING" "$STOPPED" "$OTHERS" "$(json "$([[ -z ${DNS_SERVER:-} || ! -s $STATE_DIR/owner ]] || dns_error)")"
}

# dns_error: asks for the A record of DNS_NAME by TCP, as no host needs to have a program for it (RFC 1035, section 4).
dns_error() {
  local label query bytes=()
  printf -v query '\\x00\\x%02x\\x12\\x34\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00' "$((${#DNS_NAME} + 18))"
  for label in ${DNS_NAME//./ }; do
    query+=$(printf '\\x%02x%s' "${#label}" "$label")
  done
  # shellcheck disable=SC2016 # for the inner bash
  read -ra bytes < <({ timeout 4 bash -c 'exec 3<>"/dev/tcp/$0/53" && printf "$1" >&3 && head -c 14 <&3' \
    "$DNS_SERVER" "$query\x00\x00\x01\x00\x01" 2>/dev/null || true; } | od -An -tx1) || true
  if ((${#bytes[@]} < 14)); then
    printf 'CoreDNS (%s) does not answer this host' "$DNS_SERVER"
  elif ((0x${bytes[5]} % 16 != 0 || 0x${bytes[9]} == 0)); then
    printf 'CoreDNS (%s) has no address for %s (response code %s)' "$DNS_SERVER" "$DNS_NAME" "$((0x${bytes[5]} % 16))"
  fi
}

drift() {
  DRIFT+="${DRIFT:+,}$(json "$1")"
}

verify_part() {
  if [[ ! -s $STATE_DIR/owner ]]; then
    [[ $ROLE == nfs ]] || MISSING=true
    drift "nothing of busbar is installed ($STATE_DIR/owner is missing)"
  elif [[ -n ${INSTALL_ID:-} && -n $(owner_field install_id) && $(owner_field install_id) != "$INSTALL_ID" ]]; then
    OTHERS+="${OTHERS:+,}$(json "$(owner_field owner)")"
  else
    verify_units
    verify_files
    case $ROLE in
      server)
        verify_k3s k3s
        # K3s runs on, and its Node is Ready for some 40 s more (k3s-io/k3s pkg/etcd/etcd.go).
        [[ ! -e $K3S_DATA_DIR/server/db/etcd/tombstone ]] || drift "etcd has removed this server"
        ;;
      worker) verify_k3s k3s-agent ;;
    esac
  fi
}

# shellcheck disable=SC2153 # UNITS is a value
verify_units() {
  local unit units=()
  case $ROLE in
    lb) units=(haproxy) ;;
    server) units=(k3s) ;;
    worker) units=(k3s-agent) ;;
    nfs) units=("$NFS_UNIT") ;;
    units) read -ra units <<<"$UNITS" ;;
  esac
  ! grep -qs /etc/keepalived/ "$STATE_DIR/applied.sha256" || units+=(keepalived)
  for unit in "${units[@]}"; do
    if ! systemctl is-active --quiet "$unit"; then
      STOPPED+="${STOPPED:+,}$(json "$unit")"
      drift "$unit is not running ($(systemctl is-active "$unit" || true))"
    fi
    systemctl is-enabled --quiet "$unit" || drift "$unit does not start at boot"
  done
}

# verify_files: those that the last update wrote, by the checksums that it left.
verify_files() {
  local sum path
  if [[ ! -s $STATE_DIR/applied.sha256 ]]; then
    drift "there is no record of what was applied ($STATE_DIR/applied.sha256)"
    return
  fi
  while read -r sum path; do
    if [[ ! -e $path ]]; then
      drift "$path is missing"
    elif [[ $(sha256sum "$path" | cut -d' ' -f1) != "$sum" ]]; then
      drift "$path was changed"
    fi
  done <"$STATE_DIR/applied.sha256"
}

# verify_k3s UNIT: settings of K3s and of its unit that the last update did not find, and modes of files with secrets.
# LimitMEMLOCK: a drop-in for all services (service.d/) sets it too.
verify_k3s() {
  local path limit
  limit=$(systemctl show -P LimitMEMLOCK "$1")
  [[ $limit == infinity ]] || drift "LimitMEMLOCK of $1 is $limit, expected infinity (see: systemctl cat $1)"
  while IFS= read -r path; do
    grep -qsF "  $path" "$STATE_DIR/applied.sha256" || drift "$path was added"
  done < <(find -L "$K3S_CONFIG_DIR" "${UNIT_DIRS[@]/%//$1.service.d}" -type f ! -name k3s.yaml ! -name "$TEMPORARY" 2>/dev/null | sort)
  while IFS= read -r path; do
    [[ -z $(find "$path" -perm /077) ]] || drift "$path can be read by others (mode $(stat -c %a "$path"), expected 600)"
  done < <(private_files)
}

main
