#!/usr/bin/env bash
# Places of the NFS server, and checks of its folder. Preflight reports what the installation refuses.

NFS_EXPORTS=/etc/exports.d/busbar.exports
# shellcheck disable=SC2034 # read by nfs-server.sh
NFS_CONFIG=/etc/nfs.conf.d/busbar.conf
# Apart from the host's own state: a load balancer or a server may also be the NFS server.
NFS_STATE_DIR=/var/lib/busbar-nfs
# shellcheck disable=SC2034
NFS_UNIT=nfs-server
# Files of the system, beside ours.
EXPORTS=/etc/exports
EXPORTS_DIR=/etc/exports.d
SYSTEM_ROOT=/

# nearest_folder PATH: the folder itself, or the nearest one above it that exists.
nearest_folder() {
  local path=$1
  until [[ -d $path ]]; do path=$(dirname "$path"); done
  printf '%s' "$path"
}

# foreign_exports FOLDER: "FILE: FOLDER" for each export of the folder, or of one above it, that busbar did not write.
foreign_exports() {
  local file path
  for file in "$EXPORTS" "$EXPORTS_DIR"/*.exports; do
    [[ -r $file && $file != "$NFS_EXPORTS" ]] || continue
    while read -r path _ || [[ -n $path ]]; do
      path=${path//\"/}
      [[ $path == /* && $1/ == "${path%/}"/* ]] || continue
      printf '%s: %s\n' "$file" "$path"
    done <"$file"
  done
}

# folder_kind FOLDER: missing, folder, link (it or a folder above it is a symbolic link) or other.
folder_kind() {
  if [[ $(readlink -m "$1") != "$1" ]]; then
    printf 'link'
  elif [[ -d $1 ]]; then
    printf 'folder'
  elif [[ -e $1 ]]; then
    printf 'other'
  else
    printf 'missing'
  fi
}

# on_system_disk FOLDER: whether it is, or would be made, on the file system of the operating system.
on_system_disk() {
  [[ $(stat -c %d "$(nearest_folder "$1")") == $(stat -c %d "$SYSTEM_ROOT") ]]
}

# nfsd's anonymous user (exports(5)).
NFS_NOBODY=65534

# writable_by_nobody FOLDER: a missing one will be.
writable_by_nobody() {
  local mode
  [[ -d $1 ]] || return 0
  mode=$(stat -c '0%a' "$1")
  ((mode & 2)) || { [[ $(stat -c %u "$1") == "$NFS_NOBODY" ]] && ((mode & 0200)); }
}

# nfs_folder FOLDER: {"kind","foreign_exports","system_disk","free_bytes","writable","managed"}
nfs_folder() {
  local folder=$1 free
  free=$(df -B1 --output=avail "$(nearest_folder "$folder")" | tail -n 1)
  printf '{"kind":"%s","foreign_exports":[%s]' "$(folder_kind "$folder")" "$(foreign_exports "$folder" | json_list)"
  printf ',"system_disk":%s,"free_bytes":%s' "$(truth on_system_disk "$folder")" "${free// /}"
  printf ',"writable":%s,"managed":%s}' "$(truth writable_by_nobody "$folder")" "$(truth test -s "$NFS_STATE_DIR/owner")"
}

# nfs_client SERVER: {"installed","source"}: whether this host can mount NFS, and from which address, if any, it reaches it.
nfs_client() {
  local address="" source=""
  [[ -z $1 ]] || address=$({ getent ahosts "$1" || true; } | awk 'NR == 1 { print $1 }')
  [[ -z $address ]] || source=$({ ip -o route get "$address" 2>/dev/null || true; } |
    awk '{ for (i = 1; i < NF; i++) if ($i == "src") print $(i + 1) }')
  printf '{"installed":%s,"source":%s}' "$(command -v mount.nfs >/dev/null && echo true || echo false)" "$(json "$source")"
}
