# The tools of scripts/csi-test, in target/tools: the suite of the CSI project, a client for gRPC, and the schemas of Kubernetes. Sourced,
# never run. Needs common.sh.
# shellcheck shell=bash

# Versions with which the tests pass.
CSI_SANITY_VERSION=v5.6.0
GRPCURL_VERSION=v1.9.4
KUBERNETES_VALIDATE_VERSION=1.37.0
GO_TOOLS=$REPOSITORY/target/tools/bin
# shellcheck disable=SC2034 # scripts/lib/csi/guest reads these two
CSI_SANITY=$GO_TOOLS/csi-sanity
# shellcheck disable=SC2034
GRPCURL=$GO_TOOLS/grpcurl
SCHEMAS=$REPOSITORY/target/tools/kubernetes-validate

# need_go: a Go that fetches the toolchain a module asks for, which Go does since 1.21.
need_go() {
	local version
	need_packages go=golang-go
	version=$(go env GOVERSION)
	printf 'go1.21\n%s\n' "$version" | sort -V -C ||
		die "$version is too old: install Go 1.21 or later, from this Debian's backports (apt-get install -t CODENAME-backports golang-go) or https://go.dev/dl"
}

# need_go_tool NAME PACKAGE VERSION: installs a program of a Go module, unless this version is there.
need_go_tool() {
	local at=$GO_TOOLS/$1
	[ "$(cat "$at.version" 2>/dev/null)" != "$3" ] || [ ! -x "$at" ] || return 0
	need_go
	say "installing $1 $3"
	GOTOOLCHAIN=auto GOFLAGS=-modcacherw GOBIN=$GO_TOOLS go install "$2@$3"
	printf '%s\n' "$3" >"$at.version"
}

need_csi_tools() {
	mkdir -p "$GO_TOOLS"
	need_go_tool csi-sanity github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity $CSI_SANITY_VERSION
	need_go_tool grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl $GRPCURL_VERSION
}

need_schemas() {
	[ "$(cat "$SCHEMAS/version" 2>/dev/null)" != $KUBERNETES_VALIDATE_VERSION ] || return 0
	need_packages python3=python3
	if ! python3 -c 'import ensurepip' 2>/dev/null; then
		[ "$(id -u)" -eq 0 ] || die "missing: run as root: apt-get install -y python3-venv"
		apt-get update -q >/dev/null
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-venv >/dev/null
	fi
	say "installing kubernetes-validate $KUBERNETES_VALIDATE_VERSION"
	rm -rf "$SCHEMAS"
	python3 -m venv "$SCHEMAS"
	"$SCHEMAS/bin/pip" install -q --disable-pip-version-check "kubernetes-validate==$KUBERNETES_VALIDATE_VERSION" >&2
	echo $KUBERNETES_VALIDATE_VERSION >"$SCHEMAS/version"
}
