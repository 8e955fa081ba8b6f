# The checks of scripts/bad-input on the cache directory: each structure damaged on its own, a newer format, a full disk.
# Sourced, never run; needs common.sh, daemon.sh and the checks of bad-input.
# shellcheck shell=bash

# flip FILE OFFSET: inverts one byte. A second flip restores the byte.
flip() {
	local byte
	byte=$(od -An -tu1 -j "$2" -N 1 "$1")
	# shellcheck disable=SC2059
	printf "\\x$(printf %02x $((byte ^ 255)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# superblock_of_version FILE VERSION: changes the version, and makes the checksum right.
superblock_of_version() {
	python3 - "$1" "$2" <<-'PYTHON'
		import struct, sys
		def crc32c(data):
		    crc = 0xFFFFFFFF
		    for byte in data:
		        crc ^= byte
		        for _ in range(8):
		            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
		    return crc ^ 0xFFFFFFFF
		with open(sys.argv[1], "r+b") as file:
		    block = bytearray(file.read())
		    struct.pack_into("<H", block, 8, int(sys.argv[2]))
		    struct.pack_into("<I", block, 44, crc32c(block[:44]))
		    file.seek(0)
		    file.write(block)
	PYTHON
}

# block LETTER: 4 KiB of text for grep to find.
block() { head -c 4096 < <(yes "marked block $1 of the damage test"); }
# put LETTER MIB: writes the block of LETTER at MIB of the device, with a FLUSH.
put() { block "$1" | dd of="$DEVICE" bs=4096 seek=$(($2 * 256)) oflag=direct conv=notrunc,fsync iflag=fullblock status=none; }
# same LETTER MIB: the block at MIB of the device is the block of LETTER.
same() { dd if="$DEVICE" bs=4096 skip=$(($2 * 256)) count=1 iflag=direct status=none | cmp - <(block "$1"); }
all_same() { same A 0 && same B 1 && same C 2; }
starts_refused() { timeout 60 "$GLIDEFS" run --config "$WORK/glidefs.toml"; }
at_least_one() { awk -v value="$(metric "$1")" 'BEGIN { exit !(value >= 1) }'; }

# damaged_cache: a superblock that is damaged or of a newer format is refused; a damaged header or footer of a segment costs nothing;
# a damaged data frame fails only the reads that need the frame.
damaged_cache() {
	local meta="$WORK/cache/cache.meta" place segment data last footer
	put A 0
	put B 1
	put C 2
	stop_daemon KILL
	place=$(grep -abo -m 1 'marked block A' "$WORK"/cache/segments/*.seg | tail -n 1)
	IFS=: read -r segment data _ <<<"$place"

	superblock_of_version "$meta" 9
	refuses "a cache of a newer format" 'format 9.*newer' starts_refused
	superblock_of_version "$meta" 1
	flip "$meta" 20
	refuses "a damaged superblock" 'cache.meta is damaged' starts_refused
	flip "$meta" 20
	flip "$segment" 40
	start_daemon
	holds "a damaged segment header costs nothing" all_same
	stop_daemon TERM

	last=$(($(stat -c %s "$segment") - 4096))
	footer=$(od -An -tu4 -j $((last + 12)) -N 4 "$segment")
	flip "$segment" $((footer * 4096 + 60))
	# A start with the checkpoint of the index reads no footer.
	rm "$WORK/cache/index.ckpt"
	start_daemon
	holds "a damaged footer costs nothing" all_same
	holds "a damaged footer is counted" at_least_one glidefs_cache_bad_footers_total
	stop_daemon TERM

	flip "$segment" "$data"
	start_daemon
	refuses "a damaged data frame" 'input/output error' same A 0
	holds "only the reads that need the frame fail" same B 1
	holds "a damaged data frame is counted" at_least_one glidefs_cache_corrupt_frames_total
	holds "a damaged data frame is logged" grep -E "$(basename "$segment").*checksum|checksum.*$(basename "$segment")" "$WORK/daemon.log"
	flip "$segment" "$data"
	holds "a restored frame is read again" all_same
}

# full_disk: only writes wait for room.
full_disk() {
	local free writer waited=0
	free=$(($(stat -f -c '%a * %S' "$WORK")))
	fallocate -l $((free - (200 << 20))) "$WORK/ballast"
	DEVICE_LARGE=$(create large 1GiB)
	fio --name=large --filename="$DEVICE_LARGE" --direct=1 --ioengine=io_uring --rw=write --bs=128k --iodepth=8 --size=400m \
		--verify=crc32c --verify_fatal=1 --output-format=terse >"$WORK/large.out" 2>&1 &
	writer=$!
	until grep -q 'No space left on device' "$WORK/daemon.log" || [ $waited -ge 120 ]; do
		sleep 0.5
		waited=$((waited + 1))
	done
	holds "a full disk is logged, and what to do about it" grep -E 'free space on the disk of cache.dir' "$WORK/daemon.log"
	sleep 2
	holds "writes wait for a full disk" kill -0 $writer
	holds "reads do not wait for a full disk" all_same
	rm "$WORK/ballast"
	holds "writes go on when there is room" wait $writer
}
