#!/usr/bin/env bash
# Measures the paths of a host's rails with ib_write_bw of perftest: a rail in loopback, and to the same rail of a partner. A rail
# is HCA/PORT, or HCA/PORT/GID_INDEX.
#
# Without ib_write_bw on the host it runs that of IMAGE, an image that K3s has, in a container of K3s's containerd.
#
# VERB=look: facts {"hcas" (host/preflight-hardware.sh),"links" (host/preflight-health.sh)}.
# VERB=loopback: RAILS; facts {"paths"}: each rail with the memory of the host, then with that of the nearest GPU.
# VERB=serve: RAILS; waits for the clients of all rails. Facts {"paths":[]}.
# VERB=connect: RAILS, ADDRESS; facts {"paths"}: each rail to the server there.
# "paths": [{"rail","memory","gpu","gbps","why"}]; "gbps" is null where there is no result, and "why" has the reason.
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib preflight-hardware preflight-health

PROGRAM=ib_write_bw
# The first rail has this TCP port, the next one the next.
FIRST_PORT=18600
BYTES=8388608
RUN_SECONDS=3
# The longest time of one run; no server outlives it by more than the runs before its own.
MOST_SECONDS=20
CONNECT_SECONDS=10
CONTAINERS=busbar-paths-
IN_IMAGE=()

main() {
  begin_verb look loopback serve connect
  [[ $VERB != look ]] || {
    printf '{"hcas":%s,"links":[%s]}\n' "$(hcas)" "$(pcie_links)"
    return
  }
  # busbar passes words.
  read -ra RAILS <<<"$RAILS"
  FOLDER=$(mktemp -d)
  trap 'end_servers; remove_containers; rm -rf "$FOLDER"' EXIT
  # Without it SIGTERM ends some bashes before their trap of EXIT.
  trap 'exit 143' TERM
  [[ -n $(type -P "$PROGRAM" || true) ]] || use_image
  "paths_$VERB"
}

# use_image: later runs are in containers of IMAGE. They see the host's network and all devices, and by NVIDIA's runtime its driver.
use_image() {
  local image runtime none="perftest is not installed on this host"
  [[ -n ${IMAGE:-} ]] || die "$none" "install the package perftest of this system"
  # containerd has the registry in the name, and no tag before a digest.
  image=$(sed -E 's/:[^:@/]+@/@/' <<<"$IMAGE")
  image=$("$K3S" ctr images ls -q | grep -xF -e "$image" -e "docker.io/$image" -e "docker.io/library/$image" | head -n 1 || true)
  [[ -n $image ]] || die "$none, and K3s has not pulled $IMAGE" "install perftest, or pull the image there: k3s crictl pull $IMAGE"
  runtime=$(PATH=/usr/local/nvidia/toolkit:$PATH type -P nvidia-container-runtime || true)
  IN_IMAGE=("$K3S" ctr run --rm --net-host --privileged --env NVIDIA_VISIBLE_DEVICES=all ${runtime:+--runc-binary "$runtime"} "$image")
  remove_containers
  # perftest ends with 1 after its version.
  "${IN_IMAGE[@]}" "${CONTAINERS}look" "$PROGRAM" --version >"$FOLDER/look" 2>&1 || true
  grep -q "^Version" "$FOLDER/look" ||
    die "$none, and $IMAGE does not run it: $(reason "$FOLDER/look")" "install perftest on the host (docs/localise.md)"
}

# remove_containers: those of this run, and of one that was killed.
remove_containers() {
  local name
  [[ ${#IN_IMAGE[@]} != 0 ]] || return 0
  for name in $("$K3S" ctr containers ls -q | grep "^$CONTAINERS" || true); do
    "$K3S" ctr tasks rm --force "$name" >/dev/null 2>&1 || true
    "$K3S" ctr containers rm "$name" >/dev/null 2>&1 || true
  done
}

paths_loopback() {
  local number gpu list=""
  readarray -t GPUS < <(timeout "$NVIDIA_SMI_SECONDS" nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null || true)
  for number in "${!RAILS[@]}"; do
    list+=",$(loopback "$number" host "")"
    gpu=$(nearest_gpu "$number")
    if [[ -n $gpu ]]; then
      list+=",$(loopback "$number" gpu "$gpu")"
    else
      list+=",$(path "$number" gpu "" "" "nvidia-smi shows no GPU")"
    fi
  done
  printf '{"paths":[%s]}\n' "${list#,}"
}

# loopback NUMBER MEMORY GPU: one run, server and client on the same HCA.
loopback() {
  local options=()
  # perftest refuses the other order (linux-rdma/perftest#336).
  [[ -z $3 ]] || options+=("--use_cuda_bus_id=$3")
  [[ -z $3 || -d $MODULES/nvidia_peermem || -d $MODULES/nv_peer_mem ]] || options+=(--use_cuda_dmabuf)
  start_server "$1" "$MOST_SECONDS" "${options[@]}"
  connect "$1" "$2" "$3" 127.0.0.1 "${options[@]}"
  end_servers
}

paths_serve() {
  local number
  for number in "${!RAILS[@]}"; do
    start_server "$number" "$((CONNECT_SECONDS + ${#RAILS[@]} * MOST_SECONDS))"
  done
  wait
  printf '{"paths":[]}\n'
}

paths_connect() {
  local number list=""
  for number in "${!RAILS[@]}"; do
    # shellcheck disable=SC2153 # a value
    list+=",$(connect "$number" partner "" "$ADDRESS")"
  done
  printf '{"paths":[%s]}\n' "${list#,}"
}

# words NUMBER END SECONDS: the command of a rail's server or client, on the CPUs beside its HCA, with its deadline.
words() {
  local hca port gid cpus
  IFS=/ read -r hca port gid <<<"${RAILS[$1]}"
  cpus=$(cat "$INFINIBAND/$hca/device/local_cpulist" 2>/dev/null || true)
  WORDS=("$PROGRAM" -d "$hca" -i "$port" -p "$((FIRST_PORT + $1))" -s "$BYTES" -F -D "$RUN_SECONDS" --report_gbits)
  [[ -z $gid ]] || WORDS+=(-x "$gid")
  [[ -z $cpus ]] || WORDS=(taskset -c "$cpus" "${WORDS[@]}")
  # Lines that were printed before a timeout are not lost.
  WORDS=(timeout -k 2 "$3" stdbuf -oL "${WORDS[@]}")
  [[ ${#IN_IMAGE[@]} == 0 ]] || WORDS=("${IN_IMAGE[@]}" "$CONTAINERS$BASHPID-$2-$1" "${WORDS[@]}")
}

# start_server NUMBER SECONDS OPTION...
start_server() {
  local number=$1
  words "$number" server "$2"
  shift 2
  "${WORDS[@]}" "$@" >"$FOLDER/server.$number" 2>&1 &
}

end_servers() {
  local pids
  pids=$(jobs -p)
  # shellcheck disable=SC2086 # words
  [[ -z $pids ]] || kill $pids 2>/dev/null || true
  wait
}

# connect NUMBER MEMORY GPU ADDRESS OPTION...: the client's result as JSON. Its server may start later.
connect() {
  local number=$1 memory=$2 gpu=$3 address=$4 code deadline=$((SECONDS + CONNECT_SECONDS)) gbps why="" said="$FOLDER/client"
  shift 4
  words "$number" client "$MOST_SECONDS"
  while :; do
    code=0
    "${WORDS[@]}" "$@" "$address" >"$said" 2>&1 || code=$?
    grep -q "Couldn't connect to" "$said" || break
    # A server of this host that has ended says why.
    if [[ -e $FOLDER/server.$number && -z $(jobs -r) ]] || ((SECONDS >= deadline)); then break; fi
    sleep 0.2
  done
  gbps=$(awk -v bytes="$BYTES" '$1 == bytes && NF >= 5 { print $4 }' "$said" | tail -n 1)
  # The client then met another program.
  if grep -qs "Couldn't listen to" "$FOLDER/server.$number"; then
    gbps="" why=$(reason "$FOLDER/server.$number")
  elif [[ $code == 124 || $code == 137 ]]; then
    gbps="" why="timed out after $MOST_SECONDS s"
    # perftest prints this title once both ends have met.
    [[ $memory != partner ]] || grep -q "BW Test" "$said" || why="Couldn't connect to $address:$((FIRST_PORT + number)): $why"
  elif [[ $code != 0 || -z $gbps ]]; then
    gbps="" why=$(reason "$FOLDER/server.$number" "$said")
  fi
  path "$number" "$memory" "$gpu" "$gbps" "$why"
}

# reason FILE...: the line that says why perftest has no result; its usage follows some of them.
reason() {
  local known="Invalid Command or flag|Unsupported memory type|Failed to load CUDA|DMA-BUF is not supported|Couldn't allocate MR"
  known+="|Couldn't listen to port|Couldn't connect to"
  { grep -hsE -m 1 "$known" "$@" || grep -hsvE '^[ -]*$' "$@" | tail -n 1 || echo "no result, and no reason"; } |
    head -n 1 | sed 's/^ *//'
}

# path NUMBER MEMORY GPU GBPS WHY: "rail" is the name that preflight gives it.
path() {
  local hca port
  IFS=/ read -r hca port _ <<<"${RAILS[$1]}"
  [[ $port == 1 ]] || hca+=:$port
  printf '{"rail":%s,"memory":"%s","gpu":%s,"gbps":%s,"why":%s}' "$(json "$hca")" "$2" "$(json "$3")" "${4:-null}" "$(json "$5")"
}

# nearest_gpu NUMBER: the PCI address of the GPU that shares most bridges with the HCA of a rail. Of several that share as many,
# and where the kernel does not show them, each rail takes another one.
nearest_gpu() {
  local gpu address mine common most=-1 found=()
  mine=$(readlink -f "$INFINIBAND/${RAILS[$1]%%/*}/device" || true)
  for gpu in "${GPUS[@]}"; do
    # nvidia-smi prints a domain of eight digits and capital letters.
    address=${gpu,,}
    [[ ${#address} != 16 ]] || address=${address:4}
    common=$(awk -v one="$mine" -v other="$(readlink -f "$PCI/$address" || true)" 'BEGIN {
      count = split(one, a, "/"); split(other, b, "/")
      for (i = 1; i <= count && a[i] == b[i]; i++) shared++
      print shared + 0 }')
    ((common <= most)) || found=() most=$common
    ((common < most)) || found+=("$address")
  done
  [[ ${#found[@]} == 0 ]] || printf '%s' "${found[$(($1 % ${#found[@]}))]}"
}

main
