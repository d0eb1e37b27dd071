#!/usr/bin/env bash
# Builds a release into a folder, which is emptied first:
#
#   packaging/release.sh VERSION TIME FOLDER ARCH...
#
# VERSION is what "berth version" prints. TIME, in seconds since 1970, is the time of all files,
# so that each build of a commit is the same. ARCH is amd64 or arm64, as Go and Debian name
# them.
set -euo pipefail
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?VERSION is empty} out=$(realpath -m "$3")
export SOURCE_DATE_EPOCH=$2 LC_ALL=C TZ=UTC
shift 3

# The version of the packages sorts as releases follow each other: v1.2.3-rc.1 is 1.2.3~rc.1,
# and the fourth commit after v1.2.3 is 1.2.3+4.gCOMMIT. Without a tag it begins with the time.
case $version in
v[0-9]*) PACKAGE_VERSION=$(sed -E 's/^v//; s/-([0-9]+)-g([0-9a-f]{7,})/+\1.g\2/; s/-/~/g' <<<"$version") ;;
*) PACKAGE_VERSION=0.0.0~$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$version ;;
esac
export PACKAGE_VERSION

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# tool runs a tool of packaging/tools in a folder below $work, where Go finds the copy of its
# go.mod. Its own build is the same everywhere, too, since the SBOM has its hash.
cp packaging/tools/go.* "$work"
tool() { GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 go tool "$@"; }

# compile ARCH builds the binary for an architecture. The tag leaves out urfave/cli's generator of man
# pages, a quarter of a megabyte that berth does not call.
compile() {
  GOFLAGS="" GOEXPERIMENT="" CGO_ENABLED=0 GOOS=linux GOARCH=$1 GOAMD64=v1 GOARM64=v8.0 go build -trimpath -buildvcs=false -tags urfave_cli_no_docs \
    -ldflags "-s -w -X main.release=$version" -o "$work/bin/$1" ./cmd/berth
}

# What the binary itself writes is the same for all architectures.
host=$(go env GOHOSTARCH)
compile "$host"
mkdir -p "$work/files/man" "$work/files/completions"
"$work/bin/$host" man "$work/files/man"
gzip -9n "$work"/files/man/*
for shell in bash:berth.bash zsh:_berth fish:berth.fish; do
  "$work/bin/$host" completion "${shell%:*}" >"$work/files/completions/${shell#*:}"
done
cp -r packaging/systemd packaging/berth.yaml packaging/sysusers.conf packaging/tmpfiles.conf LICENSE README.md "$work/files"

rm -rf "$out"
mkdir -p "$out"
for ARCH in "$@"; do
  export ARCH
  [ "$ARCH" = "$host" ] || compile "$ARCH"
  name=berth_${version}_linux_$ARCH
  cp -r "$work/files" "$work/$name"
  cp "$work/bin/$ARCH" "$work/$name/berth"
  chmod -R u=rwX,go=rX "$work/$name"
  find "$work/$name" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
  tar -C "$work" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$name" |
    gzip -n >"$out/$name.tar.gz"

  cp -rp packaging/scripts packaging/nfpm.yaml "$work/$name"
  (
    cd "$work/$name"
    tool nfpm package -f nfpm.yaml -p deb -t "$out/"
    tool nfpm package -f nfpm.yaml -p rpm -t "$out/"
    tool cyclonedx-gomod bin -json -noserial -notimestamp -std -version "$version" -output "$out/$name.cdx.json" berth
  )
done
(cd "$out" && sha256sum -- *) >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" "$out"
