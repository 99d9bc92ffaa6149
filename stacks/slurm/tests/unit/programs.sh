# Programs that the Slurm scripts call, for the host of tests/unit/hosts/recorded.py: what they change is in its record.
# shellcheck shell=bash disable=SC2154 # functions and variables of tests/unit/hosts/stand_in.sh

has_user() {
  [[ $1 == root ]] || grep -qxF "$1" "$STATE/users" 2>/dev/null
}

more-id() { if [[ ${2:-root} == root ]]; then echo 0; else has_user "$2"; fi; }
more-useradd() { record useradd "$@" && echo "${*: -1}" >>"$STATE/users"; }
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
  if [[ $* == *" purge "* ]]; then
    record apt-get "${@:10}"
    shift 11
    for package; do real rm -f "$STATE/version.$package" "$STATE/active.$package"; done
    return
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

more-systemctl() {
  case $* in
    "mask "*) : >"$STATE/masked.${*: -1}" ;;
    "unmask "*) real rm -f "$STATE/masked.${*: -1}" ;;
  esac
  systemctl "$@"
}

more-scontrol() {
  case $* in
    ping) [[ ! -e $STATE/active.slurmctld && ! -e $STATE/active.slurmd && ! -e $STATE/active.sackd ]] || echo "Slurmctld(primary) at ctl is UP" ;;
    *"show node"*) state "node.$4" ;;
    *) record scontrol "$@" ;;
  esac
}
more-squeue() { if [[ $* == *"-t running,completing,suspended "* ]]; then state jobs; fi; }
more-mariadb() { record "mariadb: $(paste -sd ' ')"; }
more-ss() { [[ ! -e $STATE/active.slurmdbd ]] || echo LISTEN; }
