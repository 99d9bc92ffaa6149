#!/usr/bin/env bash
# What all host scripts share. Only functions: nothing runs until the last line of the script behind it.
#
# A script gets values as environment variables, and on the first line of stdin a flat JSON object whose
# values are base64 (secrets, contents of files). It prints one JSON line of facts on stdout; problems go to
# stderr with what to do about them. By hand:
#   sudo NODE_NAME=worker-1 VERB=install ... bash host/k3s-agent.sh <<<'{"config":"...base64..."}'

# shellcheck disable=SC2034 # read by the scripts behind it
BUSBAR_LIB=1
# shellcheck disable=SC2034
STATE_DIR=/var/lib/busbar
LOCK_FILE=/run/busbar.lock
LOCK_DEADLINE=300

# begin: the frame of every script: strict mode, root, the payload, and one busbar at a time on this host.
begin() {
  set -euo pipefail
  umask 022
  export LC_ALL=C PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  : "${NODE_NAME:=$(hostname)}" "${VERB:=install}"
  [[ $(id -u) == 0 ]] || die "not root" "run it as root or under sudo"
  # Set by the launcher that read it; by hand it is still on stdin.
  [[ -n ${PAYLOAD+set} ]] || IFS= read -r PAYLOAD || PAYLOAD='{}'
  trap 'unforeseen "$?" "$LINENO" "$BASH_COMMAND"' ERR
  set -E
}

# one_at_a_time: a former run that was cut off may still be at work; wait for it instead of racing it.
one_at_a_time() {
  exec 9>"$LOCK_FILE"
  flock -w "$LOCK_DEADLINE" 9 ||
    die "another busbar step still runs on this host after ${LOCK_DEADLINE} s" \
      "look with: fuser -v $LOCK_FILE; end it or wait, then run again"
}

# A subshell that has said why it ended.
SAID_WHY=86

# die WHAT CURE: the end, with a sentence that names the host.
die() {
  trap - ERR
  printf 'busbar: %s: %s. To do: %s\n' "${NODE_NAME:-$(hostname)}" "$1" "$2" >&2
  exit "$((BASH_SUBSHELL > 0 ? SAID_WHY : 1))"
}

# unforeseen STATUS LINE COMMAND: a command failed where no failure was expected.
unforeseen() {
  trap - ERR
  [[ $1 != "$SAID_WHY" ]] || exit "$((BASH_SUBSHELL > 0 ? SAID_WHY : 1))"
  die "line $2 of ${BUSBAR_SCRIPT:-$0} failed (status $1): ${3%%$'\n'*}" \
    "see the lines above; the step may be run again"
}

note() {
  printf 'busbar: %s: %s\n' "${NODE_NAME:-$(hostname)}" "$1" >&2
}

# payload NAME: the value on stdout; nothing where the name is not there.
payload() {
  local encoded
  encoded=$(sed -n 's/.*"'"$1"'":"\([A-Za-z0-9+/=]*\)".*/\1/p' <<<"$PAYLOAD")
  [[ -z $encoded ]] || base64 -d <<<"$encoded"
}

# json TEXT: as a JSON string, with its quotes.
json() {
  local text=$1
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  printf '"%s"' "${text//[$'\001'-$'\037']/}"
}

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

# poll SECONDS COMMAND...: until the command succeeds; fails at the deadline.
poll() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.5
  done
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
