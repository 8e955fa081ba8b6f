# Checks of the CSI driver about devices that are formatted, or must not be. Sourced by scripts/lib/csi/guest, never run. Needs calls.sh.
# shellcheck shell=bash

# ends_of DEVICE: a checksum of the parts of a device which every format writes.
ends_of() {
	{
		head -c $((4 * MIB)) "$1"
		tail -c "$MIB" "$1"
	} | sha256sum
}

# untouched ID FORM: staging is refused, and the device has the bytes from before.
untouched() {
	local before device
	device=$(device_of "$1")
	before=$(ends_of "$device")
	refused FailedPrecondition Node/NodeStageVolume "$(stage_request "$1" "$2")"
	[ "$(ends_of "$device")" = "$before" ]
	not mountpoint -q "$(staging_of "$1")"
}

# A program has written and not synced, and has the device open: the daemon has nothing of it yet.
unsynced_data() {
	local id device
	id=$(volume unsynced ext4 $((400 * MIB)))
	device=$(device_of "$id")
	head -c 4096 /dev/urandom >"$WORK/data"
	exec 9<>"$device"
	cat "$WORK/data" >&9
	refused FailedPrecondition Node/NodeStageVolume "$(stage_request "$id" ext4)"
	cmp -n 4096 "$WORK/data" "$device"
	exec 9>&-
	delete_volume "$id"
}

# A device to which nothing was ever written is not read before its first format, whatever its size.
first_format() {
	local id device sectors
	id=$(volume first-format ext4 $((64 * 1024 * MIB)))
	stage "$id" ext4
	device=$(device_of "$id")
	# Sectors of 512 bytes.
	read -r _ _ sectors _ <"/sys/block/${device#/dev/}/stat"
	say "$sectors sectors were read"
	[ "$sectors" -lt $((1024 * MIB / 512)) ]
	leave "$id"
	delete_volume "$id"
}

foreign_signatures() {
	local id device
	id=$(volume foreign ext4 $((400 * MIB)))
	device=$(device_of "$id")
	mkfs.xfs -q -f "$device"
	untouched "$id" ext4
	mkfs.btrfs -q -f "$device"
	untouched "$id" ext4
	untouched "$id" xfs
	wipefs -qa "$device"
	mkfs.ext4 -q -F "$device"
	untouched "$id" xfs
	wipefs -qa "$device"
	blkdiscard "$device"
	mkswap "$device"
	untouched "$id" ext4
	wipefs -qa "$device"
	blkdiscard "$device"
	# A partition table.
	printf 'label: gpt\nsize=10MiB\n' | sfdisk -q --no-reread --no-tell-kernel "$device"
	untouched "$id" ext4
	delete_volume "$id"
}

raw_data() {
	local id device
	id=$(volume data ext4 $((100 * MIB)))
	device=$(device_of "$id")
	printf 'nobody knows this format' | dd of="$device" bs=1 seek=5000 conv=notrunc,fsync status=none
	untouched "$id" ext4
	blkdiscard "$device"
	# At the end.
	printf 'x' | dd of="$device" bs=1 seek=$((100 * MIB - 1)) conv=notrunc,fsync status=none
	untouched "$id" ext4
	blkdiscard "$device"
	# In the middle.
	printf 'x' | dd of="$device" bs=1 seek=$((50 * MIB)) conv=notrunc,fsync status=none
	untouched "$id" ext4
	blkdiscard "$device"
	use "$id" ext4
	leave "$id"
	delete_volume "$id"
}

broken_ext4() {
	local id device
	id=$(volume broken ext4 $((100 * MIB)))
	use "$id" ext4
	mkdir "$(target_of "$id")/folder"
	echo x >"$(target_of "$id")/folder/file"
	leave "$id"
	device=$(device_of "$id")
	# The inode of the root directory, and a mark that the file system was not unmounted well.
	debugfs -w -R 'clri <2>' "$device"
	debugfs -w -R 'ssv state 0' "$device"
	sync "$device"
	refused Internal Node/NodeStageVolume "$(stage_request "$id" ext4)"
	not mountpoint -q "$(staging_of "$id")"
	delete_volume "$id"
}

one_form() {
	local id
	id=$(volume one-form block $((100 * MIB)))
	use "$id" block
	refused FailedPrecondition Node/NodeStageVolume "$(stage_request "$id" ext4)"
	leave "$id"
	stage "$id" ext4
	refused FailedPrecondition Node/NodePublishVolume "$(publish_request "$id" block)"
	leave "$id"
	delete_volume "$id"
}

# with_stub PROGRAM TEXT COMMAND…: the command with a driver for which PROGRAM is the script TEXT; then the driver as before.
with_stub() {
	local status=0 path=$PATH
	mkdir -p "$WORK/stubs"
	printf '#!/bin/bash\n%s\n' "$2" >"$WORK/stubs/$1"
	chmod +x "$WORK/stubs/$1"
	stop_driver
	PATH=$WORK/stubs:$PATH start_driver
	"${@:3}" || status=$?
	rm "$WORK/stubs/$1"
	PATH=$path
	stop_driver
	start_driver
	return $status
}

# impatient_stage ID FORM: a caller that does not wait.
impatient_stage() {
	not "$GRPCURL" -max-time 4 -plaintext -unix -authority localhost -protoset "$SHARED/csi.protoset" -d "$(stage_request "$1" "$2")" "$CSI_SOCKET" csi.v1.Node/NodeStageVolume
}

ends_in_good_order() {
	local id
	id=$(volume good-order ext4 $((100 * MIB)))
	with_stub mkfs.ext4 "sleep 8; $(command -v mkfs.ext4) \"\$@\" && touch '$WORK/formatted'" impatient_stage "$id" ext4
	[ -e "$WORK/formatted" ]
	use "$id" ext4
	leave "$id"
	delete_volume "$id"
}

half_xfs() {
	local id device
	id=$(volume half-xfs xfs $((400 * MIB)))
	device=$(device_of "$id")
	mkfs.xfs -q -f "$device"
	printf '\1' | dd of="$device" bs=1 seek=126 conv=notrunc,fsync status=none
	untouched "$id" xfs
	blkdiscard "$device"
	use "$id" xfs
	leave "$id"
	delete_volume "$id"
}

grows_later() {
	local id copy
	id=$(volume grows-later ext4 $((400 * MIB)))
	use "$id" ext4
	leave "$id"
	copy=$(volume grows-later-copy ext4 $((700 * MIB)) "$(from_volume "$id")")
	with_stub resize2fs "exit 1" refused Internal Node/NodeStageVolume "$(stage_request "$copy" ext4)"
	use "$copy" ext4
	[ "$(df --output=size -B1 "$(target_of "$copy")" | tail -n 1)" -gt $((500 * MIB)) ]
	leave "$copy"
	delete_volume "$copy"
	delete_volume "$id"
}
