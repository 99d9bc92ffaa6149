#!/usr/bin/env bash
# Functions of the scripts that change a host: files, downloads, units.

# write_file PATH MODE: atomically writes stdin to PATH.
write_file() {
  local path=$1 mode=$2 temporary
  mkdir -p "$(dirname "$path")"
  temporary=$(mktemp "$path.XXXXXX")
  if ! cat >"$temporary" || ! chmod "$mode" "$temporary"; then
    rm -f "$temporary"
    die "writing $path failed" "check the free space: df -h $(dirname "$path")"
  fi
  if cmp -s "$temporary" "$path" && [[ $(stat -c %a "$path") == "$(stat -c %a "$temporary")" ]]; then
    rm -f "$temporary"
  else
    mv -f "$temporary" "$path"
  fi
}

sha256_of() {
  sha256sum "$1" | cut -d' ' -f1
}

# fetch URL SHA256 PATH: downloads a file; PATH is written only if the checksum matches.
fetch() {
  local url=$1 wanted=$2 path=$3 temporary got
  if [[ -f $path && $(sha256_of "$path") == "$wanted" ]]; then
    return 0
  fi
  mkdir -p "$(dirname "$path")"
  # In the same folder (so that the rename is atomic), under a name that K3s does not read as an image.
  temporary=$(mktemp "$(dirname "$path")/.busbar-download.XXXXXX")
  if ! curl -fsSL --connect-timeout 10 --retry 5 --retry-delay 2 --retry-connrefused --retry-max-time 180 \
    --speed-limit 10000 --speed-time 30 --max-time 600 -o "$temporary" "$url" 2>"$temporary.err"; then
    local why
    why=$(tail -n 1 "$temporary.err")
    rm -f "$temporary" "$temporary.err"
    die "download of $url failed: $why" \
      "check that this host reaches it (curl -I $url), or set k3s.base_url or k3s.images to a mirror it reaches"
  fi
  rm -f "$temporary.err"
  got=$(sha256_of "$temporary")
  if [[ $got != "$wanted" ]]; then
    rm -f "$temporary"
    die "checksum mismatch: $url has sha256 $got, expected $wanted; nothing was installed" \
      "if the file was changed on purpose, update k3s.sha256 or k3s.checksums_file; otherwise do not trust the mirror"
  fi
  chmod 0644 "$temporary"
  mv -f "$temporary" "$path"
}

# stop_unit UNIT: stops and disables it; a unit that does not exist is not an error.
stop_unit() {
  timeout 90 systemctl disable --now "$1" >/dev/null 2>&1 || true
  ! systemctl is-active --quiet "$1" ||
    die "$1 did not stop" "see: systemctl status $1; journalctl -u $1"
}
