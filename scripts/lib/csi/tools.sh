# The tools of scripts/csi-test, in target/tools: the suite of the CSI project, a client for gRPC, and the schemas of Kubernetes. Sourced,
# never run. Needs common.sh and go.sh.
# shellcheck shell=bash

# Versions with which the tests pass.
CSI_SANITY_VERSION=v5.6.0
GRPCURL_VERSION=v1.9.4
KUBERNETES_VALIDATE_VERSION=1.37.0
# shellcheck disable=SC2034 # scripts/lib/csi/guest reads these two
CSI_SANITY=$GO_TOOLS/csi-sanity
# shellcheck disable=SC2034
GRPCURL=$GO_TOOLS/grpcurl
SCHEMAS=$REPOSITORY/target/tools/kubernetes-validate

need_csi_tools() {
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
