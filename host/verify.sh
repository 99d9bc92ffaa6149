#!/usr/bin/env bash
# Reports what differs on this host from what the last update applied; changes nothing.
#
# Values: NODE_NAME, ROLE (lb, server, worker, nfs), CLUSTER (true: also report Nodes and Helm releases, on a server),
#   NFS (true: also the NFS server).
# Facts: {"node","epoch","drift":[TEXT...],"nodes","releases"}; epoch: this host's clock; nodes: lines
#   "NAME|READY|CORDONED|LABELS|TAINTS" (CORDONED by k3s-drain.sh), releases: lines "NAMESPACE|NAME|REVISION|STATUS", both
#   null where the API was not asked or did not answer.
# By hand: sudo ROLE=worker bash host/verify.sh </dev/null
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib k3s-api nfs-lib; do
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

main() {
  begin
  DRIFT=""
  local nodes=null releases=null
  : "${ROLE:=worker}"
  [[ $ROLE == nfs ]] || verify_part
  if [[ ${NFS:-} == true ]]; then
    ROLE=nfs STATE_DIR=$NFS_STATE_DIR verify_part
  fi
  if [[ ${CLUSTER:-} == true ]] && systemctl is-active --quiet k3s; then
    nodes=$(cluster_nodes) || nodes=null
    releases=$(helm_releases) || releases=null
  fi
  printf '{"node":%s,"epoch":%s,"drift":[%s],"nodes":%s,"releases":%s}\n' "$(json "$NODE_NAME")" "$(date +%s)" "$DRIFT" \
    "$nodes" "$releases"
}

drift() {
  DRIFT+="${DRIFT:+,}$(json "$1")"
}

verify_part() {
  if [[ ! -s $STATE_DIR/owner ]]; then
    drift "nothing of busbar is installed ($STATE_DIR/owner is missing)"
  else
    verify_units
    verify_files
  fi
}

verify_units() {
  local unit units=()
  case $ROLE in
    lb)
      units=(haproxy)
      ! grep -qs keepalived "$STATE_DIR/applied.sha256" || units+=(keepalived)
      ;;
    server) units=(k3s) ;;
    worker) units=(k3s-agent) ;;
    nfs) units=("$NFS_UNIT") ;;
  esac
  for unit in "${units[@]}"; do
    systemctl is-active --quiet "$unit" || drift "$unit does not run ($(systemctl is-active "$unit" || true))"
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

cluster_nodes() {
  local lines
  lines=$(api 30 get nodes -o 'jsonpath={range .items[*]}{.metadata.name}|{.status.conditions[?(@.type=="Ready")].status}|{.metadata.annotations.busbar/cordoned}|{.metadata.labels}|{.spec.taints}{"\n"}{end}') || return 1
  printf '%s' "$lines" | json_of
}

helm_releases() {
  local lines
  lines=$(api 30 get secrets -A -l owner=helm -o 'jsonpath={range .items[*]}{.metadata.namespace}|{.metadata.labels.name}|{.metadata.labels.version}|{.metadata.labels.status}{"\n"}{end}') || return 1
  printf '%s' "$lines" | json_of
}

# json_of: stdin as a JSON string. `json` takes minutes for the labels of hundreds of Nodes.
json_of() {
  printf '"'
  sed -z 's/[\\"]/\\&/g; s/\t/\\t/g; s/\n/\\n/g' | tr -d '\000-\037'
  printf '"'
}

main
