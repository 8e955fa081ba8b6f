# The tools of scripts/csi-test, in target/tools: the suite of the CSI project, a client for gRPC, and the schemas of Kubernetes. Sourced,
# never run. Needs common.sh and go.sh, and need_schemas venv.sh.
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

need_schemas() { need_venv "$SCHEMAS" "kubernetes-validate==$KUBERNETES_VALIDATE_VERSION"; }
