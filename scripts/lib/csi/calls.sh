# Calls of the CSI driver from a shell, for scripts/lib/csi/guest. Sourced, never run. Needs common.sh, daemon.sh and tools.sh.
# shellcheck shell=bash

CSI_SOCKET=

# start_driver [OPTION…]: starts the driver and waits until the driver answers. The process is in a file, as checks are shells of their own.
start_driver() {
	local pid tries=300
	setsid "$GLIDEFS" csi --socket "$WORK/glidefs.sock" --endpoint "unix://$CSI_SOCKET" --node-id host-1 "$@" >>"$WORK/csi.log" 2>&1 &
	pid=$!
	echo $pid >"$WORK/csi.pid"
	until rpc Identity/Probe '{}' >/dev/null 2>&1; do
		is_running $pid || die "the driver did not start: $(tail -n 3 "$WORK/csi.log")"
		[ $((tries -= 1)) -gt 0 ] || die "the driver does not answer: $(tail -n 3 "$WORK/csi.log")"
		sleep 0.2
	done
	# The one that answers is the one that was started.
	is_running $pid
}

# is_running PID: whether the process runs; one that nobody has waited for does not.
is_running() { [ -e "/proc/$1" ] && ! grep -q '^State:.*Z' "/proc/$1/status"; }

# stop_driver [SIGNAL]: ends the driver, by default in good order.
stop_driver() {
	local pid
	pid=$(cat "$WORK/csi.pid")
	kill "-${1:-TERM}" "$pid"
	while is_running "$pid" 2>/dev/null; do sleep 0.1; done
}

# kill_driver: kill -9, and a new driver.
kill_driver() {
	stop_driver KILL
	start_driver
}

# not COMMAND…: fails if the command succeeds. A line that begins with `!` never ends a check.
not() { ! "$@"; }

# rpc SERVICE/METHOD JSON: a call; prints the answer. Of a refusal the code is on standard error.
rpc() {
	"$GRPCURL" -plaintext -unix -authority localhost -protoset "$SHARED/csi.protoset" -d "$2" \
		"$CSI_SOCKET" "csi.v1.$1"
}

# refused CODE SERVICE/METHOD JSON: a call that has to fail with CODE.
refused() {
	local said
	if said=$(rpc "$2" "$3" 2>&1); then
		say "$2 was to fail with $1, and gave: $said"
		return 1
	fi
	say "$2: $said"
	grep -q "Code: $1" <<<"$said"
}

# capability ext4|xfs|block [MODE]: a volume capability as JSON.
capability() {
	local type
	case $1 in
	block) type='"block": {}' ;;
	*) type="\"mount\": {\"fs_type\": \"$1\"}" ;;
	esac
	printf '{"access_mode": {"mode": "%s"}, %s}' "${2:-SINGLE_NODE_WRITER}" "$type"
}

# volume NAME FORM BYTES [MORE-JSON]: makes a volume and prints the id.
volume() {
	rpc Controller/CreateVolume "{\"name\": \"$1\", \"capacity_range\": {\"required_bytes\": $3}, \"volume_capabilities\": [$(capability "$2")] ${4:-}}" |
		jq -re .volume.volumeId
}

delete_volume() { rpc Controller/DeleteVolume "{\"volume_id\": \"$1\"}"; }

staging_of() { printf '%s/staged-%s' "$WORK" "$1"; }
target_of() { printf '%s/pods/%s' "$WORK" "$1"; }

# stage ID FORM, publish ID FORM [MORE-JSON], unpublish ID, unstage ID; the requests of the first two are functions of their own, for calls that
# have to fail.
stage_request() {
	mkdir -p "$(staging_of "$1")"
	printf '{"volume_id": "%s", "staging_target_path": "%s", "volume_capability": %s}' "$1" "$(staging_of "$1")" "$(capability "$2")"
}
stage() { rpc Node/NodeStageVolume "$(stage_request "$@")"; }
publish_request() {
	printf '{"volume_id": "%s", "staging_target_path": "%s", "target_path": "%s", "volume_capability": %s %s}' \
		"$1" "$(staging_of "$1")" "$(target_of "$1")" "$(capability "$2")" "${3:-}"
}
publish() { rpc Node/NodePublishVolume "$(publish_request "$@")"; }
unpublish() { rpc Node/NodeUnpublishVolume "{\"volume_id\": \"$1\", \"target_path\": \"$(target_of "$1")\"}"; }
unstage() { rpc Node/NodeUnstageVolume "{\"volume_id\": \"$1\", \"staging_target_path\": \"$(staging_of "$1")\"}"; }

# use ID FORM, leave ID: stage and publish; the reverse.
use() {
	stage "$1" "$2"
	publish "$1" "$2"
}
leave() {
	unpublish "$1"
	unstage "$1"
}

# snapshot ID NAME: makes a snapshot and prints its id.
snapshot() {
	rpc Controller/CreateSnapshot "{\"source_volume_id\": \"$1\", \"name\": \"$2\"}" | jq -re .snapshot.snapshotId
}

# from_snapshot ID, from_volume ID: the end of a request for a volume.
from_snapshot() { printf ', "volume_content_source": {"snapshot": {"snapshot_id": "%s"}}' "$1"; }
from_volume() { printf ', "volume_content_source": {"volume": {"volume_id": "%s"}}' "$1"; }
