# Checks of the CSI driver that csi-sanity does not have. Sourced by scripts/lib/csi/guest, never run. Needs calls.sh.
# shellcheck shell=bash

MIB=$((1024 * 1024))

own_cases() {
	step "checks of our own"
	check "data survives unstage, stage, and a kill -9 of the driver (ext4)" survives ext4
	check "data survives unstage, stage, and a kill -9 of the driver (xfs)" survives xfs
	check "data of a raw device survives as well" survives_raw
	check "calls to a driver that was killed in their middle can be repeated" killed_meanwhile
	check "an expansion makes a mounted ext4 larger" grows ext4 Controller
	check "an expansion makes a mounted xfs larger" grows xfs Controller
	check "the node expands by itself (ext4)" grows ext4 Node
	check "the node expands by itself (xfs)" grows xfs Node
	check "an expansion makes a raw device larger" grows_raw
	check "a volume from a snapshot has the bytes of the snapshot, in a larger file system (ext4)" copies ext4
	check "a volume from a snapshot has the bytes of the snapshot, in a larger file system (xfs)" copies xfs
	check "a copy and its source are mounted at the same time" both_mounted
	check "a name that began with another content is refused" other_content
	check "a new volume is not read before its first format" first_format
	check "a device with a foreign signature is never formatted" foreign_signatures
	check "a device with data and without a signature is never formatted" raw_data
	check "a device with data that its writer has not synced is never formatted" unsynced_data
	check "an ext4 with errors that are not safely repaired is not mounted" broken_ext4
	check "a file system that stopped after an error is published to nobody, and checked when it is staged (ext4)" stopped ext4
	check "a file system that stopped after an error is published to nobody, and staged anew (xfs)" stopped xfs
	check "a read-only publication cannot be written to" read_only
	check "a raw device is not handed out as read-only" no_read_only_device
	check "exports that the driver did not make are neither listed nor deleted" not_ours
	check "a volume with snapshots stays until these are deleted" with_snapshots
	check "parameters reach the export, and unknown ones are refused" parameters
	check "limits are changed while a volume is in use" modified
	check "a volume in use is not deleted" in_use
	check "a raw device that is published or open is not deleted" in_use_raw
	check "a raw device and its file system are not in use at the same time" one_form
	check "a format goes on when its caller is gone and the driver is told to end" ends_in_good_order
	check "an interrupted format of xfs is refused with the remedy" half_xfs
	check "a growth that failed is made up for by the repeated call" grows_later
	check "a publication for one pod is repeated beside a folder that kubelet has mounted" subpath
	check "an API of another host is refused" remote_api
	check "a driver is ready only when its daemon is there" probe
	check "bytes and inodes of a volume are told" statistics
	check "listings in pages have each volume once" pages
	check "a volume for another host is refused" elsewhere
	check "a volume moves between two hosts that share a store, and is never on both" two_hosts
	check "the driver waits for a daemon that is away, and goes on" daemon_away
}

device_of() { glidefs export show "$1" --json | jq -r .device; }

survives() {
	local id sum
	id=$(volume "survives-$1" "$1" $((400 * MIB)))
	use "$id" "$1"
	head -c $((3 * MIB)) /dev/urandom >"$(target_of "$id")/data"
	sum=$(sha256sum <"$(target_of "$id")/data")
	kill_driver
	# Repeated calls find everything as it was.
	use "$id" "$1"
	leave "$id"
	leave "$id"
	[ ! -e "$(target_of "$id")" ]
	not grep -q "$(device_of "$id") " /proc/mounts
	use "$id" "$1"
	[ "$(sha256sum <"$(target_of "$id")/data")" = "$sum" ]
	[ "$(findmnt -no FSTYPE "$(target_of "$id")")" = "$1" ]
	leave "$id"
	delete_volume "$id"
	delete_volume "$id"
}

survives_raw() {
	local id
	id=$(volume survives-raw block $((100 * MIB)))
	use "$id" block
	[ -b "$(target_of "$id")" ]
	head -c $((3 * MIB)) /dev/urandom >"$WORK/data"
	dd if="$WORK/data" of="$(target_of "$id")" bs=1M oflag=direct conv=notrunc status=none
	kill_driver
	use "$id" block
	leave "$id"
	[ ! -e "$(target_of "$id")" ]
	use "$id" block
	cmp -n $((3 * MIB)) "$WORK/data" "$(target_of "$id")"
	leave "$id"
	delete_volume "$id"
}

# Each of these calls is cut at another moment: the driver is killed, the calls are made again.
killed_meanwhile() {
	local round calls id
	for round in 1 3 5; do
		(
			id=$(volume "killed-$round" ext4 $((200 * MIB)))
			use "$id" ext4
			leave "$id"
		) >/dev/null 2>&1 &
		calls=$!
		sleep "0.$round"
		kill_driver
		wait $calls || true
		id=$(volume "killed-$round" ext4 $((200 * MIB)))
		# A format that was cut may leave a part of a file system: never formatted over, so the volume is made again.
		if ! (stage "$id" ext4 && publish "$id" ext4); then
			leave "$id"
			delete_volume "$id"
			id=$(volume "killed-$round" ext4 $((200 * MIB)))
			use "$id" ext4
		fi
		echo "round $round" >"$(target_of "$id")/data"
		leave "$id"
		delete_volume "$id"
	done
}

grows() {
	local id before after range
	id=$(volume "grows-$1-$2" "$1" $((400 * MIB)))
	use "$id" "$1"
	echo content >"$(target_of "$id")/data"
	before=$(df --output=size -B1 "$(target_of "$id")" | tail -n 1)
	range="\"capacity_range\": {\"required_bytes\": $((800 * MIB))}"
	if [ "$2" = Controller ]; then
		rpc Controller/ControllerExpandVolume "{\"volume_id\": \"$id\", $range, \"volume_capability\": $(capability "$1")}" |
			jq -e ".nodeExpansionRequired and .capacityBytes == \"$((800 * MIB))\""
	fi
	rpc Node/NodeExpandVolume "{\"volume_id\": \"$id\", \"volume_path\": \"$(target_of "$id")\", $range}"
	after=$(df --output=size -B1 "$(target_of "$id")" | tail -n 1)
	[ "$before" -lt $((420 * MIB)) ]
	[ "$after" -gt $((600 * MIB)) ]
	# Again, and smaller, changes nothing.
	rpc Node/NodeExpandVolume "{\"volume_id\": \"$id\", \"volume_path\": \"$(target_of "$id")\", $range}"
	[ "$(cat "$(target_of "$id")/data")" = content ]
	leave "$id"
	delete_volume "$id"
}

grows_raw() {
	local id
	id=$(volume grows-raw block $((100 * MIB)))
	use "$id" block
	rpc Controller/ControllerExpandVolume "{\"volume_id\": \"$id\", \"capacity_range\": {\"required_bytes\": $((300 * MIB))}, \"volume_capability\": $(capability block)}" |
		jq -e '.nodeExpansionRequired | not'
	[ "$(blockdev --getsize64 "$(target_of "$id")")" -eq $((300 * MIB)) ]
	leave "$id"
	delete_volume "$id"
}

copies() {
	local id snap copy sum
	id=$(volume "origin-$1" "$1" $((400 * MIB)))
	use "$id" "$1"
	head -c $((4 * MIB)) /dev/urandom >"$(target_of "$id")/data"
	sum=$(sha256sum <"$(target_of "$id")/data")
	# No sync: a snapshot has everything that was written before.
	snap=$(snapshot "$id" "kept-$1")
	[ "$(snapshot "$id" "kept-$1")" = "$snap" ]
	[ "$(rpc Controller/CreateSnapshot "{\"source_volume_id\": \"$id\", \"name\": \"kept-$1\"}" | jq -re .snapshot.sizeBytes)" = $((400 * MIB)) ]
	echo later >"$(target_of "$id")/later"
	copy=$(volume "copy-$1" "$1" $((700 * MIB)) "$(from_snapshot "$snap")")
	[ "$(volume "copy-$1" "$1" $((700 * MIB)) "$(from_snapshot "$snap")")" = "$copy" ]
	use "$copy" "$1"
	[ "$(sha256sum <"$(target_of "$copy")/data")" = "$sum" ]
	[ ! -e "$(target_of "$copy")/later" ]
	[ "$(df --output=size -B1 "$(target_of "$copy")" | tail -n 1)" -gt $((500 * MIB)) ]
	# The copy outlives snapshot and origin.
	leave "$id"
	rpc Controller/DeleteSnapshot "{\"snapshot_id\": \"$snap\"}"
	delete_volume "$id"
	[ "$(sha256sum <"$(target_of "$copy")/data")" = "$sum" ]
	leave "$copy"
	delete_volume "$copy"
}

both_mounted() {
	local fs id copy
	for fs in ext4 xfs; do
		id=$(volume "twin-$fs" $fs $((400 * MIB)))
		use "$id" $fs
		echo twin >"$(target_of "$id")/data"
		copy=$(volume "twin-copy-$fs" $fs $((400 * MIB)) "$(from_volume "$id")")
		use "$copy" $fs
		[ "$(cat "$(target_of "$copy")/data")" = twin ]
		echo other >"$(target_of "$copy")/data"
		[ "$(cat "$(target_of "$id")/data")" = twin ]
		leave "$copy"
		leave "$id"
		delete_volume "$copy"
		delete_volume "$id"
	done
}

other_content() {
	local id snap
	id=$(volume content ext4 $((100 * MIB)))
	snap=$(snapshot "$id" content)
	refused AlreadyExists Controller/CreateVolume "{\"name\": \"content\", \"volume_capabilities\": [$(capability ext4)] $(from_snapshot "$snap")}"
	refused AlreadyExists Controller/CreateVolume "{\"name\": \"content\", \"volume_capabilities\": [$(capability ext4)] $(from_volume "$id")}"
	rpc Controller/DeleteSnapshot "{\"snapshot_id\": \"$snap\"}"
	delete_volume "$id"
}

# stopped FORM: the file system is shut down, as by an error of its device.
stopped() {
	local id
	id=$(volume "stopped-$1" "$1" $((400 * MIB)))
	use "$id" "$1"
	echo kept >"$(target_of "$id")/file"
	sync -f "$(target_of "$id")/file"
	xfs_io -x -c shutdown "$(staging_of "$id")"
	refused FailedPrecondition Node/NodeStageVolume "$(stage_request "$id" "$1")"
	unpublish "$id"
	refused FailedPrecondition Node/NodePublishVolume "$(publish_request "$id" "$1")"
	use "$id" "$1"
	[ "$(cat "$(target_of "$id")/file")" = kept ]
	touch "$(target_of "$id")/other"
	leave "$id"
	delete_volume "$id"
}

read_only() {
	local id
	id=$(volume read-only ext4 $((100 * MIB)))
	stage "$id" ext4
	publish "$id" ext4 ', "readonly": true'
	publish "$id" ext4 ', "readonly": true'
	not touch "$(target_of "$id")/file"
	refused AlreadyExists Node/NodePublishVolume "$(publish_request "$id" ext4)"
	leave "$id"
	delete_volume "$id"
}

no_read_only_device() {
	local id
	id=$(volume read-only-raw block $((100 * MIB)))
	stage "$id" block
	refused InvalidArgument Node/NodePublishVolume "$(publish_request "$id" block ', "readonly": true')"
	unstage "$id"
	delete_volume "$id"
}

not_ours() {
	glidefs export create vm-1 --size 16MiB >/dev/null
	refused FailedPrecondition Controller/DeleteVolume '{"volume_id": "vm-1"}'
	glidefs export show vm-1 >/dev/null
	rpc Controller/ListVolumes '{}' | jq -e '[.entries[]?.volume.volumeId] | index("vm-1") | not'
	glidefs snapshot create vm-1 before >/dev/null
	refused FailedPrecondition Controller/DeleteSnapshot '{"snapshot_id": "vm-1@before"}'
	rpc Controller/ListSnapshots '{}' | jq -e '.entries | not'
	# A volume that an operator has made can be used all the same.
	use vm-1 ext4
	leave vm-1
	glidefs export delete vm-1 >/dev/null
}

with_snapshots() {
	local id snap
	id=$(volume with-snapshots ext4 $((100 * MIB)))
	snap=$(snapshot "$id" with-snapshots)
	refused FailedPrecondition Controller/DeleteVolume "{\"volume_id\": \"$id\"}"
	rpc Controller/DeleteSnapshot "{\"snapshot_id\": \"$snap\"}"
	rpc Controller/DeleteSnapshot "{\"snapshot_id\": \"$snap\"}"
	delete_volume "$id"
}

parameters() {
	local id
	id=$(volume parameters ext4 $((100 * MIB)) ', "parameters": {"durability": "store", "weight": "300", "csi.storage.k8s.io/pvc/name": "data"}')
	glidefs export show "$id" --json | jq -e '.durability == "store" and .weight == 300'
	refused AlreadyExists Controller/CreateVolume "{\"name\": \"parameters\", \"volume_capabilities\": [$(capability ext4)], \"capacity_range\": {\"required_bytes\": $((100 * MIB))}}"
	refused InvalidArgument Controller/CreateVolume "{\"name\": \"mistyped\", \"volume_capabilities\": [$(capability ext4)], \"parameters\": {\"durabilty\": \"store\"}}"
	refused InvalidArgument Controller/CreateVolume "{\"name\": \"shared\", \"volume_capabilities\": [$(capability ext4 MULTI_NODE_MULTI_WRITER)]}"
	delete_volume "$id"
}

modified() {
	local id
	id=$(volume modified ext4 $((100 * MIB)))
	use "$id" ext4
	rpc Controller/ControllerModifyVolume "{\"volume_id\": \"$id\", \"mutable_parameters\": {\"writeIops\": \"500\", \"weight\": \"50\"}}"
	glidefs export show "$id" --json | jq -e '.limits.write_iops == 500 and .weight == 50'
	rpc Controller/ControllerModifyVolume "{\"volume_id\": \"$id\", \"mutable_parameters\": {\"writeIops\": \"none\"}}"
	glidefs export show "$id" --json | jq -e '(.limits.write_iops // "none") == "none" and .weight == 50'
	leave "$id"
	delete_volume "$id"
}

in_use() {
	local id
	id=$(volume in-use ext4 $((100 * MIB)))
	use "$id" ext4
	refused FailedPrecondition Controller/DeleteVolume "{\"volume_id\": \"$id\"}"
	echo still >"$(target_of "$id")/data"
	leave "$id"
	delete_volume "$id"
}

in_use_raw() {
	local id status=0
	id=$(volume in-use-raw block $((100 * MIB)))
	use "$id" block
	printf 'mine' | dd of="$(target_of "$id")" bs=4 conv=notrunc,fsync status=none
	refused FailedPrecondition Controller/DeleteVolume "{\"volume_id\": \"$id\"}"
	[ -b "$(target_of "$id")" ]
	[ "$(head -c 4 "$(target_of "$id")")" = mine ]
	leave "$id"
	# Open, and nowhere mounted.
	exec 9<"$(device_of "$id")"
	refused FailedPrecondition Controller/DeleteVolume "{\"volume_id\": \"$id\"}" || status=1
	exec 9<&-
	[ $status -eq 0 ]
	delete_volume "$id"
}

subpath() {
	local id request
	id=$(volume subpath ext4 $((100 * MIB)))
	stage "$id" ext4
	request="{\"volume_id\": \"$id\", \"staging_target_path\": \"$(staging_of "$id")\", \"target_path\": \"$(target_of "$id")\", \"volume_capability\": $(capability ext4 SINGLE_NODE_SINGLE_WRITER)}"
	rpc Node/NodePublishVolume "$request"
	mkdir -p "$(target_of "$id")/folder" "$WORK/subpath"
	mount --bind "$(target_of "$id")/folder" "$WORK/subpath"
	rpc Node/NodePublishVolume "$request"
	refused FailedPrecondition Node/NodePublishVolume "${request/pods/others}"
	umount "$WORK/subpath"
	leave "$id"
	delete_volume "$id"
}

remote_api() {
	not "$GLIDEFS" csi --api http://192.0.2.1:9470 --endpoint "unix://$WORK/remote.sock" --node-id host-9
	[ ! -e "$WORK/remote.sock" ]
}

probe() {
	rpc Identity/Probe '{}' | jq -e .ready
	mv "$WORK/glidefs.sock" "$WORK/away.sock"
	rpc Identity/Probe '{}' | jq -e '.ready | not'
	mv "$WORK/away.sock" "$WORK/glidefs.sock"
}

statistics() {
	local id
	id=$(volume statistics ext4 $((200 * MIB)))
	use "$id" ext4
	rpc Node/NodeGetVolumeStats "{\"volume_id\": \"$id\", \"volume_path\": \"$(target_of "$id")\"}" |
		jq -e '[.usage[].unit] == ["BYTES", "INODES"] and (.usage[0].total | tonumber) > 100000000 and (.usage[1].total | tonumber) > 1000'
	leave "$id"
	delete_volume "$id"
	id=$(volume statistics-raw block $((200 * MIB)))
	use "$id" block
	rpc Node/NodeGetVolumeStats "{\"volume_id\": \"$id\", \"volume_path\": \"$(target_of "$id")\"}" |
		jq -e ".usage == [{\"total\": \"$((200 * MIB))\", \"unit\": \"BYTES\"}]"
	leave "$id"
	delete_volume "$id"
}

pages() {
	local number token='' answer seen=()
	for number in 1 2 3 4 5; do volume "page-$number" block $((16 * MIB)) >/dev/null; done
	while :; do
		# Volumes of a check that failed do not count.
		answer=$(rpc Controller/ListVolumes "{\"max_entries\": 2, \"starting_token\": \"$token\"}")
		mapfile -t -O ${#seen[@]} seen < <(jq -r '.entries[].volume.volumeId | select(startswith("csi-page-"))' <<<"$answer")
		token=$(jq -r '.nextToken // ""' <<<"$answer")
		[ -n "$token" ] || break
	done
	[ "${seen[*]}" = "csi-page-1 csi-page-2 csi-page-3 csi-page-4 csi-page-5" ]
	for number in 1 2 3 4 5; do delete_volume "csi-page-$number"; done
}
