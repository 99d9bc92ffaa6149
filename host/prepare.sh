#!/usr/bin/env bash
# Downloads what the installation of this host needs, and changes nothing else. The installation waits for a download that
# still runs, checks the files and moves them to their places (fetch in lib-install.sh). Safe to run beside it, and again.
#
# Values: NODE_NAME; of K3s VERSION, URL_AMD64, SHA256_AMD64 (or ARM64), IMAGES (lines "sha256 url"); PACKAGES. Both may be left out.
# Facts: {"node"}
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install k3s-lib packages

main() {
  local package
  begin
  [[ -z ${VERSION:-} ]] || k3s_each_download prefetch
  for package in ${PACKAGES:-}; do package_download "$package"; done
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

main
