#!/usr/bin/env bash
# What scripts that change a host share: files, downloads, units, packages.

# place PATH MODE: stdin becomes the content of a file, at once and never half.
place() {
  local path=$1 mode=$2 temporary
  mkdir -p "$(dirname "$path")"
  temporary=$(mktemp "$path.XXXXXX")
  if ! cat >"$temporary" || ! chmod "$mode" "$temporary"; then
    rm -f "$temporary"
    die "$path could not be written" "look at the free space: df -h $(dirname "$path")"
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

# fetch URL SHA256 PATH: the file at PATH has that checksum afterwards; nothing is there before it has.
fetch() {
  local url=$1 wanted=$2 path=$3 temporary got
  if [[ -f $path && $(sha256_of "$path") == "$wanted" ]]; then
    return 0
  fi
  mkdir -p "$(dirname "$path")"
  # Beside its destination (so that the rename is atomic), under a name that K3s does not read as an image.
  temporary=$(mktemp "$(dirname "$path")/.busbar-download.XXXXXX")
  if ! curl -fsSL --connect-timeout 10 --retry 5 --retry-delay 2 --retry-connrefused --retry-max-time 180 \
    --speed-limit 10000 --speed-time 30 --max-time 600 -o "$temporary" "$url" 2>"$temporary.err"; then
    local why
    why=$(tail -n 1 "$temporary.err")
    rm -f "$temporary" "$temporary.err"
    die "$url could not be fetched: $why" \
      "check that this host reaches it (curl -I $url), or set k3s.base_url or k3s.images to a mirror it reaches"
  fi
  rm -f "$temporary.err"
  got=$(sha256_of "$temporary")
  if [[ $got != "$wanted" ]]; then
    rm -f "$temporary"
    die "checksum mismatch: $url has sha256 $got, expected $wanted; nothing was installed" \
      "if the release was changed on purpose, update k3s.sha256 or k3s.checksums_file; else distrust the mirror"
  fi
  chmod 0644 "$temporary"
  mv -f "$temporary" "$path"
}

# stop_unit UNIT: stopped and disabled, also where it never was.
stop_unit() {
  timeout 90 systemctl disable --now "$1" >/dev/null 2>&1 || true
  ! systemctl is-active --quiet "$1" ||
    die "$1 does not stop" "look with: systemctl status $1; journalctl -u $1"
}

# apt_install PACKAGE...: those that are missing, waiting for an apt that already runs (unattended-upgrades).
apt_install() {
  local missing=() package
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local options=(-o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 -o Acquire::http::Timeout=20 -q)
  timeout 180 apt-get "${options[@]}" update >&2 ||
    note "apt-get update failed; trying with the package lists that are there"
  DEBIAN_FRONTEND=noninteractive timeout 300 apt-get "${options[@]}" install -y --no-install-recommends \
    "${missing[@]}" >&2 9>&- ||
    die "apt-get could not install ${missing[*]}" \
      "install them by hand (or put them into the image of the host), then run again"
}
