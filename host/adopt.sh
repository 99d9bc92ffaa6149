#!/usr/bin/env bash
# Reports what busbar has installed on this host, for a stack whose state was lost (`busbar adopt`); changes nothing.
#
# Values: NODE_NAME, FILES (paths, separated by blanks, of further files to report; those that are missing are left out).
# Facts, secret: {"node","version","files":{PATH:BASE64},"parts":[{"owner","install_id","sums":[SHA256],"files":{PATH:BASE64}}]}
#   version: that of K3s, empty without it; parts: one per owner mark, with the files that were applied and their present contents.
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib nfs-lib owner

K3S=/usr/local/bin/k3s
# A binary is told by its checksum only.
LARGEST_BYTES=1048576

main() {
  local folder parts="" version=""
  begin
  [[ ! -x $K3S ]] || version=$("$K3S" --version | awk 'NR == 1 { print $3 }')
  for folder in "$STATE_DIR" "$NFS_STATE_DIR"; do
    [[ ! -s $folder/owner ]] || parts+="${parts:+,}$(STATE_DIR=$folder part)"
  done
  # shellcheck disable=SC2086 # a list of words
  printf '{"node":%s,"version":%s,"files":{%s},"parts":[%s]}\n' "$(json "$NODE_NAME")" "$(json "$version")" \
    "$(contents ${FILES:-})" "$parts"
}

part() {
  local sum path sums="" paths=()
  while read -r sum path; do
    sums+="${sums:+,}$(json "$sum")"
    paths+=("$path")
  done < <(cat "$STATE_DIR/applied.sha256" 2>/dev/null || true)
  printf '{"owner":%s,"install_id":%s,"sums":[%s],"files":{%s}}' "$(json "$(owner_field owner)")" \
    "$(json "$(owner_field install_id)")" "$sums" "$(contents "${paths[@]}")"
}

# contents PATH...: members of a JSON object.
contents() {
  local path comma=""
  for path; do
    [[ -f $path && $(stat -c %s "$path") -le $LARGEST_BYTES ]] || continue
    printf '%s%s:"%s"' "$comma" "$(json "$path")" "$(base64 -w 0 "$path")"
    comma=,
  done
}

main
