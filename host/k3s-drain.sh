#!/usr/bin/env bash
# Prepares and ends the restart of an agent that runs: it waits for jobs (pools.NAME.running_jobs), the worker is
# drained (pools.NAME.drain) and uncordoned afterwards, and stays Ready for a while (pools.NAME.pause_seconds).
#
# With the rights of the kubelet, which may cordon its own Node and evict the pods bound to it, and no others
# (kubernetes/kubernetes plugin/pkg/auth/authorizer/node and plugin/pkg/admission/noderestriction). The API refuses an
# eviction that a disruption budget does not allow. `kubectl drain` needs more rights: it reads DaemonSets.
#
# Pods of DaemonSets and static pods stay, and so do pods that nothing starts again elsewhere: those of jobs (Job, MPIJob)
# and those without a controller. They keep running while the agent restarts.
#
# Values: RUNNING_JOBS (keep, wait, refuse), JOBS_SECONDS (of wait), DRAIN (never, upgrade, always), DRAIN_SECONDS,
#   PAUSE_SECONDS.

# The note of an update on a Node, and the program that the API records for its cordon (busbar/kube/nodes.py).
CORDONED=busbar/cordoned
MANAGER=busbar
# Prints UNSCHEDULABLE|PROGRAM|NOTE OF AN UPDATE|OTHER NOTES.
CORDON_STATE='{.spec.unschedulable}|{.metadata.managedFields[?(@.fieldsV1.f:spec.f:unschedulable)].manager}'
CORDON_STATE+='|{.metadata.annotations.busbar/cordoned}|{.metadata.annotations.busbar/quarantine}{.metadata.annotations.busbar/drained}'

# prepare_restart: returns when this agent may restart. A Node that is not Ready is unavailable already: nothing there can
# be drained.
prepare_restart() {
  poll 20 k3s_node_is_ready "$KUBELET_KUBECONFIG" || return 0
  # An update that was interrupted has left it cordoned.
  poll 60 uncordon || die "uncordoning Node $NODE_NAME failed" "retry, or run: kubectl uncordon $NODE_NAME"
  [[ $RUNNING_JOBS == keep ]] || await_jobs
  # Without an answer on the version of the kubelet the worker is drained.
  if [[ $DRAIN == always || ($DRAIN == upgrade && $(kubelet_version) != "$VERSION") ]]; then drain_node; fi
  IS_PREPARED=true
}

# await_jobs: without an answer of the API a job may run.
await_jobs() {
  local running looks=0 deadline=$((SECONDS + JOBS_SECONDS))
  while running=$(running_jobs) || running="unknown, the API is not responding"; [[ -n $running ]]; do
    [[ $RUNNING_JOBS == wait ]] ||
      die "jobs are running here: $running; the agent was not restarted" \
        "retry when they have ended, or set running_jobs of this worker's pool"
    ((SECONDS < deadline)) || die "jobs are still running here after $JOBS_SECONDS s: $running" "retry when they have ended"
    # A connection that broke ends the script at the next note.
    ((looks++ % 10)) || note "waiting for jobs to end: $running"
    sleep 3
  done
}

# running_jobs: NAMESPACE/NAME of the pods of jobs of any kind (Job, MPIJob) on this Node.
running_jobs() {
  as_kubelet get pods -A --field-selector "spec.nodeName=$NODE_NAME,status.phase=Running" \
    -o 'jsonpath={range .items[*]}{.metadata.ownerReferences[0].kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}' |
    awk '$1 ~ /Job$/ { print $2 }' | paste -sd ' '
}

# pause_after_restart: the next agents restart when this Node has been Ready for PAUSE_SECONDS.
pause_after_restart() {
  local since=$SECONDS
  [[ -n ${IS_PREPARED:-} ]] || return 0
  while ((SECONDS < since + PAUSE_SECONDS)); do
    poll 60 k3s_is_back "$UNIT" "$KUBELET_KUBECONFIG" ||
      die "Node $NODE_NAME is no longer Ready, $((SECONDS - since)) s after its restart" "see: journalctl -u $UNIT"
    sleep 3
  done
}

# as_kubelet ARGUMENTS...: kubectl with the rights of the kubelet.
as_kubelet() {
  timeout 30 "$K3S" kubectl --kubeconfig "$KUBELET_KUBECONFIG" "$@"
}

# kubelet_version: of the kubelet that runs; empty without an answer.
kubelet_version() {
  as_kubelet get node "$NODE_NAME" -o 'jsonpath={.status.nodeInfo.kubeletVersion}' || true
}

# drain_node: returns when all pods that can start elsewhere have gone. Otherwise the Node is uncordoned, and
# the error names the pods and the budgets.
drain_node() {
  local deadline=$((SECONDS + DRAIN_SECONDS)) pods left noted=-30
  poll 60 cordon || die "cordoning Node $NODE_NAME failed; the agent was not restarted" \
    "kubectl says why above; if no server answers: journalctl -u k3s -n 50 --no-pager on each server; then retry"
  while :; do
    if pods=$(pods_to_evict); then
      [[ -n $pods ]] || return 0
      left=$(evict_all <<<"$pods")
    else
      left="unknown, the API is not responding"
    fi
    if ((SECONDS >= deadline)); then
      poll 60 uncordon || note "uncordoning Node $NODE_NAME failed: kubectl uncordon $NODE_NAME"
      die "drain timed out after $DRAIN_SECONDS s: $left; the agent was not restarted" \
        "let the budget allow an eviction (more replicas, free nodes), or set drain: never for this worker's pool; then retry"
    fi
    # A connection that broke ends the script at the next note.
    if ((SECONDS >= noted + 30)); then
      note "draining; remaining pods: $left"
      noted=$SECONDS
    fi
    sleep 3
  done
}

# cordon: with a note; a Node that is cordoned already stays as it is.
cordon() {
  local state note
  state=$(as_kubelet get node "$NODE_NAME" -o 'jsonpath={.spec.unschedulable}') || return 1
  note="{\"why\":\"restart of K3s\",\"by\":\"an update\",\"since\":\"$(date -u +%FT%T+00:00)\",\"cordoned\":true}"
  [[ $state == true ]] || patch_node "$(json "$note")" true
}

# uncordon: removes the note of an update, of this run or of one that was interrupted. The cordon ends with it, unless it is
# also one of another note, or somebody else has set it since.
uncordon() {
  local held='"cordoned":true' found unschedulable manager note others
  found=$(as_kubelet get node "$NODE_NAME" -o "jsonpath=$CORDON_STATE") || return 1
  IFS='|' read -r unschedulable manager note others <<<"$found"
  [[ -n $note ]] || return 0
  if [[ $note == *"$held"* && $others != *"$held"* && $manager == @(|"$MANAGER"|ancient-changes) ]]; then unschedulable=null; fi
  patch_node null "${unschedulable:-null}"
}

# patch_node NOTE UNSCHEDULABLE: both at once, so that an interrupted run leaves no cordon without its note.
patch_node() {
  as_kubelet patch node "$NODE_NAME" --field-manager "$MANAGER" --type merge \
    -p '{"metadata":{"annotations":{"'"$CORDONED"'":'"$1"'}},"spec":{"unschedulable":'"$2"'}}' >&2
}

# pods_to_evict: lines NAMESPACE/NAME, of those that end already with " ending".
pods_to_evict() {
  local found
  found=$(as_kubelet get pods -A --field-selector "spec.nodeName=$NODE_NAME,status.phase!=Succeeded,status.phase!=Failed" \
    -o 'jsonpath={range .items[*]}{.metadata.ownerReferences[0].kind}|{.metadata.namespace}/{.metadata.name}|{.metadata.deletionTimestamp}{"\n"}{end}') ||
    return 1
  awk -F'|' '$1 != "" && $1 !~ /^(DaemonSet|Node)$|Job$/ { print $2 ($3 == "" ? "" : " ending") }' <<<"$found"
}

# evict_all: asks for the eviction of the pods on stdin; prints them with what keeps each, in one line.
evict_all() {
  local pod ending why text=""
  while read -r pod ending; do
    why=${ending:-$(evict "$pod")}
    text+="${text:+; }$pod (${why:-ending})"
  done
  printf '%s' "$text"
}

# evict NAMESPACE/NAME: prints why the API refuses; nothing if the pod ends, or is gone.
evict() {
  local answer
  # The name of the budget is in the body of the answer only, which kubectl prints from this level of its log on.
  answer=$(printf '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"namespace":"%s","name":"%s"}}' "${1%/*}" "${1#*/}" |
    as_kubelet -v=8 create --raw "/api/v1/namespaces/${1%/*}/pods/${1#*/}/eviction" -f - 2>&1) && return
  [[ $answer != *"(NotFound)"* ]] || return 0
  { grep -o 'The disruption budget [^"\\]*' <<<"$answer" || tail -n 1 <<<"$answer"; } | head -n 1
}
