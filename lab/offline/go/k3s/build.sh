#!/usr/bin/env bash
# Builds the replacement of K3s:  build.sh OUT [VERSION]
# The version is linked into every component, so that kubelet and apiserver report that of `k3s --version`.
set -euo pipefail

out=${1:?usage: build.sh OUT [VERSION]}
version=${2:-v1.35.0+lab1}
[[ $out == /* ]] || out=$PWD/$out
cd "$(dirname "${BASH_SOURCE[0]}")"

minor=${version#v1.}
minor=${minor%%.*}
grep -q "k8s.io/kubernetes v1\.$minor\." go.mod || {
  echo "build.sh: $version: go.mod does not have Kubernetes 1.$minor" >&2
  exit 64
}
flags=(-s -w)
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  flags+=(-X "$package.gitVersion=$version" -X "$package.gitMajor=1" -X "$package.gitMinor=$minor"
    -X "$package.gitTreeState=clean" -X "$package.gitCommit=replacement")
done
export CGO_ENABLED=0
exec nice go build -buildvcs=false -trimpath -ldflags "${flags[*]}" -o "$out" .
