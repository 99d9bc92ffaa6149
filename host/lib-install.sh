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

# record_applied FILE...: notes the checksums of what was applied, for verify.sh; missing files are left out.
record_applied() {
  local path
  for path; do [[ ! -e $path ]] || sha256sum "$path"; done | write_file "$STATE_DIR/applied.sha256" 0600
}

# Files that prepare.sh has downloaded, by sha256. An agent that reboots before its turn must not start with a newer binary.
DOWNLOADS_DIR=$STATE_DIR/downloads

# fetch URL SHA256 PATH: PATH is written only if the checksum matches. A download that broke off is continued.
fetch() {
  local url=$1 wanted=$2 path=$3 partial got
  if has_sha256 "$path" "$wanted"; then return 0; fi
  mkdir -p "$(dirname "$path")"
  # In the same folder (so that the rename is atomic), under a name that K3s does not read as an image.
  partial=$(dirname "$path")/.busbar-download.${wanted:0:16}
  lock_download "$wanted"
  [[ ! -e $DOWNLOADS_DIR/$wanted ]] || mv -f "$DOWNLOADS_DIR/$wanted" "$partial"
  has_sha256 "$partial" "$wanted" || download "$url" "$partial"
  exec 8>&-
  got=$(sha256_of "$partial")
  if [[ $got != "$wanted" ]]; then
    rm -f "$partial"
    die "checksum mismatch: $url has sha256 $got, expected $wanted; nothing was installed" \
      "if the file was changed on purpose, update k3s.sha256 or k3s.checksums_file; otherwise do not trust the mirror"
  fi
  chmod 0644 "$partial"
  mv -f "$partial" "$path"
}

# prefetch URL SHA256 PATH: downloads what `fetch` will need, unless it is there. Half of the space stays free, for pods.
prefetch() {
  local url=$1 wanted=$2 path=$3 file=$DOWNLOADS_DIR/$2
  install -d -m 0700 "$STATE_DIR" "$DOWNLOADS_DIR"
  lock_download "$wanted"
  if ! has_sha256 "$path" "$wanted" && ! has_sha256 "$file" "$wanted"; then
    (($(content_length "$url") < $(df --output=avail -B1 "$DOWNLOADS_DIR" | tail -n 1) / 2)) ||
      die "$url is larger than half of the free space of $DOWNLOADS_DIR" "free space there: df -h $DOWNLOADS_DIR"
    download "$url" "$file"
  fi
  exec 8>&-
}

# lock_download SHA256: waits for another script that downloads this file on this host; `exec 8>&-` releases the lock.
lock_download() {
  exec 8>"$LOCK_FILE.${1:0:16}"
  flock 8
}

# has_sha256 PATH SHA256
has_sha256() {
  [[ -f $1 && $(sha256_of "$1") == "$2" ]]
}

# A download of N bytes may take DOWNLOAD_SECONDS + N / DOWNLOAD_BYTES_PER_SECOND; one that stalls ends after 30 s.
DOWNLOAD_SECONDS=600
DOWNLOAD_BYTES_PER_SECOND=10000000

# download URL FILE: continues where FILE ends, as long as more arrives.
download() {
  local url=$1 file=$2 deadline before status why
  deadline=$((SECONDS + DOWNLOAD_SECONDS + $(content_length "$url") / DOWNLOAD_BYTES_PER_SECOND))
  while :; do
    before=$(size_of "$file") status=0
    why=$(curl -fsSL --connect-timeout 10 --retry 5 --retry-delay 2 --retry-connrefused --retry-max-time 180 \
      --speed-limit 10000 --speed-time 30 --max-time $((deadline - SECONDS)) -C - -o "$file" "$url" 2>&1) || status=$?
    ((status != 0)) || return 0
    ((SECONDS < deadline)) || break
    case $status in
      # The server cannot continue a download, or the file has another length now.
      22 | 33 | 36) ((before > 0)) || break; rm -f "$file" ;;
      *) (($(size_of "$file") > before)) || break ;;
    esac
  done
  die "download of $url failed: ${why##*$'\n'}" \
    "check that this host reaches it (curl -I $url), or set k3s.base_url or k3s.images to a mirror it reaches"
}

# content_length URL: its size in bytes, 0 if the server does not tell it.
content_length() {
  { curl -fsSIL --connect-timeout 10 --max-time 30 "$1" 2>/dev/null || true; } |
    awk 'tolower($1) == "content-length:" { size = $2 + 0 } END { printf "%.0f", size }'
}

size_of() {
  stat -c %s "$1" 2>/dev/null || echo 0
}

# stop_unit UNIT: stops and disables it; a unit that does not exist is not an error. systemd kills after 90 s what does not
# end; until then the unit is "deactivating", and its processes still write.
stop_unit() {
  timeout 120 systemctl disable --now "$1" >/dev/null 2>&1 || true
  is_stopped "$1" || die "$1 did not stop" "see: systemctl status $1; journalctl -u $1"
}

# is_stopped UNIT: whether no process of it runs any more, or yet.
is_stopped() {
  [[ $(systemctl is-active "$1" 2>/dev/null || true) == @(inactive|failed|unknown) ]]
}
