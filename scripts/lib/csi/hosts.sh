# Checks of the CSI driver about hosts and daemons that come and go. Sourced by scripts/lib/csi/guest, never run. Needs calls.sh.
# shellcheck shell=bash

elsewhere() {
	local at='{"segments": {"topology.glidefs.io/host": "host-2"}}'
	refused ResourceExhausted Controller/CreateVolume "{\"name\": \"elsewhere\", \"volume_capabilities\": [$(capability ext4)], \"accessibility_requirements\": {\"requisite\": [$at]}}"
	rpc Controller/GetCapacity "{\"accessible_topology\": $at}" | jq -e '(.availableCapacity // "0") == "0"'
	rpc Controller/GetCapacity '{}' | jq -e '.availableCapacity | tonumber > 0'
}

daemon_away() {
	local id
	id=$(volume away ext4 $((100 * MIB)))
	use "$id" ext4
	mv "$WORK/glidefs.sock" "$WORK/away.sock"
	refused Unavailable Controller/ListVolumes '{}'
	refused Unavailable Controller/CreateVolume "{\"name\": \"unreachable\", \"volume_capabilities\": [$(capability ext4)]}"
	mv "$WORK/away.sock" "$WORK/glidefs.sock"
	echo here >"$(target_of "$id")/data"
	leave "$id"
	delete_volume "$id"
}

nothing_is_left() {
	glidefs export list --json | jq -e 'length == 0'
	not grep ublk /proc/mounts
}

# second_host: another daemon with the same store, and a driver for each of the two.
second_host() {
	local host socket
	mkdir -p "$WORK/b/cache"
	cat >"$WORK/b/glidefs.toml" <<-TOML
		[cache]
		dir = "$WORK/b/cache"
		size = "$(((2 * $(nproc) + 3) * 64))MiB"
		clean_size = "64MiB"
		[api]
		listen = "none"
		socket = "$WORK/b/glidefs.sock"
		[store]
		url = "file://$WORK/store"
	TOML
	setsid "$GLIDEFS" run --config "$WORK/b/glidefs.toml" >>"$WORK/daemon.log" 2>&1 &
	echo $! >"$WORK/b/pids"
	until GLIDEFS_SOCKET=$WORK/b/glidefs.sock "$GLIDEFS" status --json | jq -e .ready; do sleep 0.2; done
	for host in a b; do
		socket=$WORK/glidefs.sock
		[ $host = a ] || socket=$WORK/b/glidefs.sock
		setsid "$GLIDEFS" csi --socket "$socket" --endpoint "unix://$WORK/$host.sock" --node-id "host-$host" --shared-store prod >>"$WORK/csi.log" 2>&1 &
		echo $! >>"$WORK/b/pids"
		until on "$host" rpc Identity/Probe '{}'; do sleep 0.2; done
	done
}

# on HOST COMMAND…: calls of the driver of this host.
on() {
	# shellcheck disable=SC2034 # rpc reads it
	local CSI_SOCKET=$WORK/$1.sock
	"${@:2}"
}

two_hosts() {
	local id pid snap
	second_host
	id=$(on a volume moving ext4 $((100 * MIB)))
	on a use "$id" ext4
	echo from a >"$(target_of "$id")/data"
	# Host a has the volume.
	mkdir -p "$WORK/elsewhere"
	on b refused FailedPrecondition Node/NodeStageVolume "{\"volume_id\": \"$id\", \"staging_target_path\": \"$WORK/elsewhere\", \"volume_capability\": $(capability ext4)}"
	on a leave "$id"
	on b use "$id" ext4
	[ "$(cat "$(target_of "$id")/data")" = "from a" ]
	# Host a does not know what b has written since.
	on a refused FailedPrecondition Controller/CreateVolume "{\"name\": \"stale\", \"volume_capabilities\": [$(capability ext4)] $(from_volume "$id")}"
	# A repeated call takes nothing from a pod, and no second volume gets the name.
	on a refused FailedPrecondition Controller/DeleteVolume "{\"volume_id\": \"$id\"}"
	[ "$(on b volume moving ext4 $((100 * MIB)))" = "$id" ]
	on b refused AlreadyExists Controller/CreateVolume "{\"name\": \"moving\", \"volume_capabilities\": [$(capability ext4)] $(from_volume "$id")}"
	snap=$(on b snapshot "$id" of-b)
	on a refused FailedPrecondition Controller/DeleteSnapshot "{\"snapshot_id\": \"$snap\"}"
	on b rpc Controller/DeleteSnapshot "{\"snapshot_id\": \"$snap\"}"
	echo from b >>"$(target_of "$id")/data"
	on a refused FailedPrecondition Node/NodeStageVolume "{\"volume_id\": \"$id\", \"staging_target_path\": \"$WORK/elsewhere\", \"volume_capability\": $(capability ext4)}"
	on b leave "$id"
	on a use "$id" ext4
	[ "$(cat "$(target_of "$id")/data")" = "from a
from b" ]
	on a leave "$id"
	on b delete_volume "$id"
	on a delete_volume "$id"
	while read -r pid; do kill -TERM "$pid"; done <"$WORK/b/pids"
	glidefs export list --json | jq -e 'any(.[]; .name == "csi-moving") | not'
}
