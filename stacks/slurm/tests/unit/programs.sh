# Programs that the Slurm scripts call, for the host of tests/unit/hosts/recorded.py: what they change is in its record.
# shellcheck shell=bash disable=SC2154 # functions and variables of tests/unit/hosts/stand_in.sh

has_user() {
  [[ $1 == root ]] || grep -qxF "$1" "$STATE/users" 2>/dev/null
}

more-id() { if [[ ${2:-root} == root ]]; then echo 0; else has_user "$2"; fi; }
more-useradd() { record useradd "$@" && echo "${*: -1}" >>"$STATE/users" && echo "${*: -1}:x:$2:$2::$6:$8" >>"$STATE/passwd"; }
more-getent() { if [[ $1 == passwd ]]; then grep "^$2:" "$STATE/passwd"; else real getent "$@"; fi; }
more-userdel() { record userdel "$@" && real sed -i "/^$1\$/d" "$STATE/users"; }
more-runuser() { record "runuser $2: ${*: -1}" && HOME=$ROOT/run/home/$2 "${@:4}"; }

# As another user than root, which a test may not be.
more-install() {
  local path
  record install "$@"
  for path; do [[ $path != "$ROOT"/* ]] || mkdir -p "$path"; done
}
more-stat() { real stat "$@" | if [[ $* == *%U* ]]; then sed 's/ .*/ slurm/'; else cat; fi; }

# The package of slurmctld, slurmd and others makes the user slurm, and brings a library.
more-apt-get() {
  local package=${*: -1}
  if [[ $* == "-s purge "* ]]; then
    printf 'Purg %s [1]\n' "${@:3}"
    state dependents
    [[ $(state dependents) != E:* ]] || return 100
    return
  elif [[ $* == *" purge "* ]]; then
    record apt-get "${@:10}"
    shift 11
    for package; do real rm -f "$STATE/version.$package" "$STATE/active.$package"; done
    return
  fi
  # It is in the way of mysql-server.
  if [[ $package == mariadb-server && -e $STATE/version.mysql-server ]]; then
    [[ $* != *" --no-remove "* ]] || { echo "E: Packages need to be removed but remove is disabled." >&2 && return 100; }
    real rm "$STATE/version.mysql-server"
  fi
  apt-get "$@"
  [[ $* == *" install "* ]] || return 0
  real rm -rf "$ROOT/etc/$package"
  echo 24.11.5 >"$STATE/version.$package"
  [[ $package != slurm* ]] || { echo 1 >"$STATE/version.libslurm" && { has_user slurm || echo slurm >>"$STATE/users"; }; }
  # One that is masked does not start at once.
  [[ ! -e $STATE/masked.$package ]] || real rm -f "$STATE/active.$package"
}
more-dpkg-query() {
  local file
  if [[ $* != *Status-Status* ]]; then dpkg-query "$@"; return; fi
  for file in "$STATE"/version.*; do [[ ! -e $file ]] || echo "${file#*/version.} installed"; done
}

# The configuration that slurmctld has read.
read_conf() { real cp "$ROOT/etc/slurm/slurm.conf" "$STATE/read" 2>/dev/null || true; }
accepted() { ! grep -qs -e MaxJobCuont -e refused "$ROOT"/etc/slurm/*.conf; }

more-systemctl() {
  case $* in
    "mask "*) : >"$STATE/masked.${*: -1}" ;;
    "unmask "*) real rm -f "$STATE/masked.${*: -1}" ;;
    *"start slurmctld")
      if ! accepted; then
        record systemctl "$@"
        real rm -f "$STATE/active.slurmctld"
        return 1
      fi
      read_conf
      ;;
    *"start slurmd") registered ;;
  esac
  systemctl "$@"
}

# No command of Slurm works with a slurm.conf that it cannot read. slurmctld takes no file with "refused" in it.
readable() {
  ! grep -qs MaxJobCuont "${SLURM_CONF:-$ROOT/etc/slurm/slurm.conf}" || {
    echo "scontrol: error: _parse_next_key: Parsing error at unrecognized key: MaxJobCuont" >&2
    return 1
  }
}

# Like Slurm 24.11: an update by root is known by its time, another reason takes the place of the one before, and a reason stays
# after the drain.
node_updated() {
  local name=$1 file=$STATE/slurm.$1 change state reason
  state=$(node_state "$name") reason=$(sed -n 2p "$file" 2>/dev/null || true)
  for change; do
    case $change in
      state=drain) state=${state%+DRAIN}+DRAIN ;;
      state=undrain) state=${state%+DRAIN} ;;
      state=down) state=DOWN+DRAIN ;;
      state=resume) state=IDLE ;;
      reason=*)
        echo >>"$STATE/clock"
        reason="${change#reason=} [root@$(wc -l <"$STATE/clock")]"
        ;;
    esac
  done
  printf '%s\n%s\n' "$state" "$reason" >"$file"
}
# A registration ends DOWN, whoever has set it (ReturnToService=2).
registered() {
  local file
  for file in "$STATE"/slurm.*; do [[ ! -e $file ]] || real sed -i '1s/^DOWN[*]*/IDLE/' "$file"; done
}
more-sinfo() { sed -n '2s/ \[[^[]*$//p' "$STATE/slurm.$4" 2>/dev/null || true; }
node_state() { head -n 1 "$STATE/slurm.$1" 2>/dev/null || echo IDLE; }

more-scontrol() {
  local name
  readable || return
  case $* in
    ping) [[ ! -e $STATE/active.slurmctld && ! -e $STATE/active.slurmd && ! -e $STATE/active.sackd ]] || echo "Slurmctld(primary) at ctl is UP" ;;
    "show hostnames "*) ;;
    reconfigure) record scontrol "$@" && read_conf && accepted && registered ;;
    "--oneliner show partition") state partitions ;;
    "--oneliner show reservation") state reservations ;;
    "--oneliner show node")
      for name in $(sed -n 's/^NodeName=\([^ ]*\) .*/\1/p' "$ROOT/etc/slurm/slurm.conf"); do more-scontrol --oneliner show node "$name"; echo; done
      ;;
    "--oneliner show node "*)
      if [[ -e $STATE/node.$4 && ! -e $STATE/slurm.$4 ]]; then state "node.$4"; else more-scontrol show node "$4" | tr -s '\n ' ' '; fi
      ;;
    "show node "*)
      if [[ -e $ROOT/etc/slurm/slurm.conf ]] && ! grep -q "^NodeName=$3 " "$ROOT/etc/slurm/slurm.conf"; then echo "Node $3 not found" && return 1; fi
      printf 'NodeName=%s CPUTot=1 Gres=gpu:8\n   State=%s ThreadsPerCore=1\n   \n' "$3" "$(node_state "$3")"
      sed -n '2s/^./   Reason=&/p' "$STATE/slurm.$3" 2>/dev/null || true
      ;;
    *)
      record scontrol "$@"
      [[ $* != "update nodename="* ]] || node_updated "${2#nodename=}" "${@:3}"
      ;;
  esac
}
more-pgrep() { state steps; }
more-srun() { state mpi; }
more-squeue() { if [[ $* != *" -t "* ]]; then state jobs; fi; }
more-mariadb() { if [[ $* == -BN ]]; then state databases; else record "mariadb: $(paste -sd ' ')"; fi; }
more-ss() { [[ ! -e $STATE/active.slurmdbd ]] || echo LISTEN; }
