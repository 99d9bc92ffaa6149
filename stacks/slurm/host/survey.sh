#!/usr/bin/env bash
# Preflight's report of a host for Slurm, beside that of every host: one JSON object on stdout. It runs
# inside host/preflight.sh, whose functions it has (payload `also`); changes nothing.
#
# Values: SLURM_PACKAGES (os, or a folder with .deb files), CONTAINERS (empty, or another such folder), HOME_PATH, USERS (NAME:UID, separated by spaces),
# PROGRAMS (what a compute host measures with, separated by spaces), which find_program (busbar/manifests/nccl-lib.sh) looks for.

slurm_version_available() {
  local file
  if [[ $SLURM_PACKAGES == os ]]; then
    LC_ALL=C apt-cache policy slurm-client 2>/dev/null | awk '$1 == "Candidate:" { print $2 }'
    return
  fi
  for file in "$SLURM_PACKAGES"/slurm-smd-client_*.deb; do
    [[ ! -e $file ]] || dpkg-deb -f "$file" Version
  done | sort -V | tail -n 1
}

# missing_debs: of enroot and pyxis, what the folder has no file of.
missing_debs() {
  local name missing=""
  for name in enroot nvslurm-plugin-pyxis; do
    [[ -z $CONTAINERS || -n $(compgen -G "$CONTAINERS/$name*.deb") ]] || missing+="${missing:+ and }$name*.deb"
  done
  printf '%s' "$missing"
}

# missing_programs: those of PROGRAMS that the job of the measurement would not find.
missing_programs() {
  local name missing=""
  for name in $PROGRAMS; do find_program "$name" >/dev/null 2>&1 || missing+="${missing:+ and }$name"; done
  printf '%s' "$missing"
}

# slurm_foreign: a Slurm that was configured here by others; empty where there is none, or busbar's.
slurm_foreign() {
  local file
  [[ $(owner_field role) != Slurm* ]] || return 0
  for file in /etc/slurm/slurm{,dbd}.conf /etc/slurm-llnl/slurm{,dbd}.conf /etc/slurm/slurm.key; do
    [[ ! -s $file ]] || { printf '%s' "$file"; return; }
  done
}

# cpu_shape: "SOCKETS CORES THREADS" of what lscpu lists as online.
cpu_shape() {
  { lscpu -p=SOCKET,CORE 2>/dev/null || true; } | awk -F, '
    /^#/ { next }
    { threads++; if (!seen[$0]++) cores++; if (!socket[$1]++) sockets++ }
    END { if (!cores || cores % sockets || threads % cores) print "0 0 0"; else print sockets, cores / sockets, threads / cores }'
}

gpu_minors() {
  local file
  for file in /dev/nvidia[0-9]*; do
    [[ ! -c $file || ! ${file#/dev/nvidia} =~ ^[0-9]+$ ]] || printf '%s\n' "${file#/dev/nvidia}"
  done | sort -n | paste -sd, -
}

# users: of each of USERS the uid that it has here, and who has its uid.
users() {
  local user list=""
  for user in $USERS; do
    list+="${list:+,}$(json "${user%:*}"):[$(json "$(id -u "${user%:*}" 2>/dev/null || true)")"
    list+=",$(json "$(getent passwd "${user#*:}" | cut -d: -f1 || true)")]"
  done
  printf '%s' "$list"
}

# slurm_cluster: the name that slurmctld has written beside its state, newer ones with an id (NAME|ID). With another one it ends.
slurm_cluster() {
  { head -n 1 /var/lib/slurm/slurmctld/clustername 2>/dev/null || true; } | cut -d '|' -f 1
}

slurm_report() {
  local sockets cores threads ids version
  read -r sockets cores threads < <(cpu_shape)
  ids=$(id -u slurm 2>/dev/null || true):$(id -g slurm 2>/dev/null || true)
  version=$(dpkg-query -W -f '${Version}' slurm-client 2>/dev/null || dpkg-query -W -f '${Version}' slurm-smd-client 2>/dev/null || true)
  printf '{"hostname":%s,"slurm_ids":%s,"available":%s,"installed":%s' "$(json "$(hostname -s)")" "$(json "$ids")" \
    "$(json "$(slurm_version_available)")" "$(json "$version")"
  printf ',"foreign":%s,"role":%s,"cluster":%s' "$(json "$(slurm_foreign)")" "$(json "$(owner_field role)")" "$(json "$(slurm_cluster)")"
  printf ',"sockets":%s,"cores":%s,"threads":%s,"gpu_minors":[%s]' "$sockets" "$cores" "$threads" "$(gpu_minors)"
  printf ',"users":{%s},"missing_debs":%s,"missing_programs":%s,"pmix":%s' "$(users)" "$(json "$(missing_debs)")" \
    "$(json "$(missing_programs)")" "$(grep -c 'libpmix\.so' <<<"$(ldconfig -p 2>/dev/null || true)" || true)"
  printf ',"home":%s}' "$(json "$(findmnt -n -o FSTYPE,SOURCE -T "$HOME_PATH" 2>/dev/null | tail -n 1 | tr -s ' ' || true)")"
}

slurm_report
