#!/usr/bin/env bash
# Measures the paths of a host's rails with ib_write_bw of perftest: in loopback, and to the same rail of a partner.
#
# Without ib_write_bw on the host it runs that of IMAGE, an image that K3s has, in a container of K3s's containerd.
#
# RUNS: words HCA/PORT/GID_INDEX/GPU. Without a GID index perftest chooses one; without a GPU it takes the host's memory.
# VERB=look: facts {"hcas" (host/preflight-hardware.sh),"links" (host/preflight-health.sh),"devices":{HCA or GPU: its folder}}.
# VERB=loopback: each run with a server on the same HCA. Facts {"runs"}.
# VERB=serve: waits for the clients of all runs. VERB=connect: ADDRESS; each run with the server there. Facts {"runs"}.
# "runs": [{"status","server","client"}] of each client: its exit code, and what both ends on this host have printed.
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib preflight-hardware preflight-health

PROGRAM=ib_write_bw
# The first run has this TCP port, the next one the next.
FIRST_PORT=18600
BYTES=8388608
RUN_SECONDS=3
# The longest time of one run.
MOST_SECONDS=20
CONNECT_SECONDS=10
CONTAINER=busbar-paths

main() {
  begin_verb look loopback serve connect
  # Without it SIGTERM ends some bashes before their trap of EXIT.
  trap 'exit 143' TERM
  if [[ $VERB == look ]]; then
    printf '{"hcas":%s,"links":[%s],"devices":{%s}}\n' "$(hcas)" "$(pcie_links)" "$(devices)"
  elif [[ -n $(type -P "$PROGRAM" || true) ]]; then
    measure
  else
    measure_in_image
  fi
}

# devices: the folders of HCAs and GPUs in sysfs, whose paths show the bridges that they share.
devices() {
  local device list=""
  for device in "$INFINIBAND"/*; do
    list+=",$(json "${device##*/}"):$(json "$(readlink -m "$device/device")")"
  done
  for device in $(timeout "$NVIDIA_SMI_SECONDS" nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null || true); do
    # nvidia-smi prints a domain of eight digits and capital letters.
    device=${device,,}
    [[ ${#device} != 16 ]] || device=${device:4}
    list+=",$(json "$device"):$(json "$(readlink -m "$PCI/$device")")"
  done
  printf '%s' "${list#,}"
}

# measure: the facts of the verb.
measure() {
  local number
  read -ra PLAN <<<"$RUNS"
  FOLDER=$(mktemp -d)
  trap 'end_servers; rm -rf "$FOLDER"' EXIT
  printf '{"runs":['
  for number in "${!PLAN[@]}"; do
    [[ $VERB == connect ]] || start_server "$number"
    [[ $VERB == serve ]] || connect "$number"
    [[ $VERB != loopback ]] || end_servers
  done
  wait
  printf ']}\n'
}

# measure_in_image: `measure` in a container of IMAGE. It sees the host's network and devices, and by NVIDIA's runtime its driver.
measure_in_image() {
  local image runtime program none="perftest is not installed on this host"
  [[ -n ${IMAGE:-} ]] || die "$none" "install the package perftest of this system"
  # containerd has the registry in the name, and no tag before a digest.
  image=$(sed -E 's/:[^:@/]+@/@/' <<<"$IMAGE")
  image=$("$K3S" ctr images ls -q | grep -xF -e "$image" -e "docker.io/$image" -e "docker.io/library/$image" | head -n 1 || true)
  [[ -n $image ]] || die "$none, and K3s has not pulled $IMAGE" "install perftest, or pull the image there: k3s crictl pull $IMAGE"
  runtime=$(PATH=/usr/local/nvidia/toolkit:$PATH type -P nvidia-container-runtime || true)
  program=$(declare -p PROGRAM FIRST_PORT BYTES {RUN,MOST,CONNECT}_SECONDS INFINIBAND MODULES; declare -f)
  ERRORS=$(mktemp)
  trap 'remove_container; rm -f "$ERRORS"' EXIT
  remove_container
  "$K3S" ctr run --rm --net-host --privileged ${runtime:+--runc-binary "$runtime"} --env NVIDIA_VISIBLE_DEVICES=all \
    --env VERB="$VERB" --env RUNS="$RUNS" --env ADDRESS="${ADDRESS:-}" "$image" "$CONTAINER" \
    bash -c "set -euo pipefail; $program; type $PROGRAM >/dev/null; measure" 2>"$ERRORS" ||
    die "$none, and $IMAGE does not run it: $(tail -n 1 "$ERRORS")" "install perftest on the host (docs/localise.md)"
}

# remove_container: that of this run, or of one that was killed.
remove_container() {
  "$K3S" ctr tasks rm --force "$CONTAINER" >/dev/null 2>&1 || true
  "$K3S" ctr containers rm "$CONTAINER" >/dev/null 2>&1 || true
}

# words NUMBER SECONDS: the command of a run's server or client, on the CPUs beside its HCA, with its deadline.
words() {
  local hca port gid gpu cpus
  IFS=/ read -r hca port gid gpu <<<"${PLAN[$1]}"
  cpus=$(cat "$INFINIBAND/$hca/device/local_cpulist" 2>/dev/null || true)
  WORDS=("$PROGRAM" -d "$hca" -i "$port" -p "$((FIRST_PORT + $1))" -s "$BYTES" -F -D "$RUN_SECONDS" --report_gbits)
  [[ -z $gid ]] || WORDS+=(-x "$gid")
  # perftest refuses the other order (linux-rdma/perftest#336).
  [[ -z $gpu ]] || WORDS+=("--use_cuda_bus_id=$gpu")
  [[ -z $gpu || -d $MODULES/nvidia_peermem || -d $MODULES/nv_peer_mem ]] || WORDS+=(--use_cuda_dmabuf)
  [[ -z $cpus ]] || WORDS=(taskset -c "$cpus" "${WORDS[@]}")
  # Lines that were printed before a timeout are not lost.
  WORDS=(timeout -k 2 "$2" stdbuf -oL "${WORDS[@]}")
}

# start_server NUMBER: the server of a run, which may wait for all runs before its own.
start_server() {
  words "$1" "$((CONNECT_SECONDS + ${#PLAN[@]} * MOST_SECONDS))"
  "${WORDS[@]}" >"$FOLDER/server.$1" 2>&1 &
}

end_servers() {
  # shellcheck disable=SC2046 # words
  kill $(jobs -p) 2>/dev/null || true
  wait
}

# connect NUMBER: the client of a run, and its result as JSON. Its server may start later.
connect() {
  local status deadline=$((SECONDS + CONNECT_SECONDS)) client="$FOLDER/client" server="$FOLDER/server.$1"
  words "$1" "$MOST_SECONDS"
  while :; do
    status=0
    "${WORDS[@]}" "${ADDRESS:-127.0.0.1}" >"$client" 2>&1 || status=$?
    grep -q "Couldn't connect to" "$client" || break
    # A server of this host that has ended says why.
    if [[ -e $server && -z $(jobs -r) ]] || ((SECONDS >= deadline)); then break; fi
    sleep 0.2
  done
  [[ $1 == 0 ]] || printf ','
  printf '{"status":%s,"server":%s,"client":%s}' "$status" "$(sysfs "$server")" "$(sysfs "$client")"
}

main
