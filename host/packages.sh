#!/usr/bin/env bash
# Packages of the operating system, by apt.

package_installed() {
  dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

# package_install NAME: installs it unless it is there.
package_install() {
  package_installed "$1" || apt_install "$1"
}

# install_package NAME: records whether busbar installed it, so that removal purges nothing else.
install_package() {
  package_installed "$1" || touch "$STATE_DIR/$1.installed"
  package_install "$1"
}

# package_version NAME: empty if it is not installed.
package_version() {
  dpkg-query -W -f '${Version}' "$1" 2>/dev/null || true
}

# package_purge NAME: removes it with its configuration; fails if that is not possible.
package_purge() {
  apt_change 480 purge -y "$1"
}

# Waits for an apt that already runs (unattended-upgrades). DPkg::Lock::Timeout does not cover the lock of the
# package lists, which apt-daily holds at the first boot: see apt_update.
APT_UPDATE_DEADLINE=300
APT_ARCHIVES=/var/cache/apt/archives
# Another apt would not wait for the lock of the archives. The lock is the same for all scripts of a host.
APT_LOCK=/run/busbar.lock.packages
APT_OPTIONS=(-q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Acquire::http::Timeout=20
  -o Dpkg::Options::=--force-confold)

# apt_update: the package lists; repeated while another apt holds their lock.
apt_update() {
  local deadline=$((SECONDS + APT_UPDATE_DEADLINE)) log
  until log=$(timeout 180 apt-get "${APT_OPTIONS[@]}" update 2>&1 7>&- 9>&-); do
    if [[ $log != *"/var/lib/apt/lists/lock"* ]] || ((SECONDS >= deadline)); then
      printf '%s\n' "$log" >&2
      note "apt-get update failed; trying with the existing package lists"
      return 0
    fi
    sleep 2
  done
}

apt_install() {
  exec 7>"$APT_LOCK"
  flock 7
  # Without the network, if prepare.sh has downloaded the first one.
  if ! { compgen -G "$APT_ARCHIVES/${1}_*.deb" && apt_run 480 install -y --no-install-recommends --no-download "$@"; } >/dev/null; then
    apt_update
    apt_change 480 install -y --no-install-recommends "$@" ||
      die "apt-get install $* failed" "repair what apt's lines with E: name above (apt-get update; apt-get install $*), and retry"
  fi
  exec 7>&-
}

# package_download NAME: downloads it unless it is there, so that package_install needs no network.
package_download() {
  ! package_installed "$1" || return 0
  exec 7>"$APT_LOCK"
  flock 7
  apt_update
  apt_run 480 install -y --no-install-recommends --download-only "$1" >&2 ||
    die "the download of package $1 failed" "repair what apt's lines with E: name above (apt-get update; apt-get install --download-only $1)"
  exec 7>&-
}

# apt_change SECONDS ARGUMENTS...: what it prints is kept until it has ended: a dpkg that writes to a connection which broke
# ends halfway, and apt then refuses everything until that is finished.
apt_change() {
  local log
  log=$(apt_run "$@") && return
  if [[ $log == *"dpkg was interrupted"* ]]; then
    note "dpkg was interrupted on this host; finishing that first: dpkg --configure -a"
    log=$(DEBIAN_FRONTEND=noninteractive timeout 300 dpkg --force-confold --configure -a 2>&1 7>&- 9>&-) &&
      log=$(apt_run "$@") && return
  fi
  printf '%s\n' "$log" >&2
  return 1
}

apt_run() {
  local seconds=$1
  shift
  DEBIAN_FRONTEND=noninteractive timeout "$seconds" apt-get "${APT_OPTIONS[@]}" "$@" 2>&1 7>&- 9>&-
}
