# The checks of scripts/bad-input on a store that somebody else can write into: a forged manifest costs its volume and no other.
# Sourced, never run; needs common.sh, daemon.sh and the checks of bad-input.
# shellcheck shell=bash

# forge STORE NAME CUT [PACKS [MIB]]: creates the manifest after the newest one of volume NAME: a volume with every write up to number CUT,
# and PACKS packs that are zero in every second sector. Each index has the most entries there may be: 40 MiB in memory, some hundred bytes in
# the store. With MIB the manifest says that an index has MIB MiB.
forge() {
	python3 - "$@" <<-'PYTHON'
		import os, struct, subprocess, sys

		store, name, cut = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
		packs, mib = (int(argument) for argument in (sys.argv[4:] + ["0", "0"])[:2])

		def sealed(content):
		    return content + subprocess.run(["b3sum", "--raw"], input=content, stdout=subprocess.PIPE, check=True).stdout

		def frame(parts):
		    """A zstd frame of PARTS: bytes as they are, or (byte, count) for a byte that is repeated."""
		    blocks = []
		    for part in parts:
		        if isinstance(part, bytes):
		            blocks.append((0, len(part), part))
		        else:
		            byte, count = part
		            blocks += [(1, min(count - at, 1 << 17), bytes([byte])) for at in range(0, count, 1 << 17)]
		    length = sum(count for _, count, _ in blocks)
		    last = len(blocks) - 1
		    heads = [struct.pack("<I", count << 3 | kind << 1 | (at == last))[:3] for at, (kind, count, _) in enumerate(blocks)]
		    body = b"".join(head + content for head, (_, _, content) in zip(heads, blocks))
		    return length, struct.pack("<IBI", 0xFD2FB528, 0xA0, length) + body

		with open(f"{store}/names/{sys.argv[2]}", "rb") as file:
		    volume = file.read()[12:28]
		folder = f"{store}/volumes/{volume.hex()}/manifests"
		number = max(int(entry) for entry in os.listdir(folder) if entry.isdigit()) + 1
		# Gaps, lengths, codecs.
		entries = 1 << 20
		plain, columns = frame([(0, 1), (1, entries - 1), (1, entries), (0, entries)])
		index = sealed(b"GLIDEIDX" + struct.pack("<HHII", 1, 0, entries, plain) + columns)
		stored = mib << 20 or len(index)
		os.makedirs(f"{store}/volumes/{volume.hex()}/packs", exist_ok=True)
		listed = b""
		for pack in (os.urandom(16) for _ in range(packs)):
		    with open(f"{store}/volumes/{volume.hex()}/packs/{pack.hex()}", "xb") as file:
		        file.write(bytes(48) + index)
		        file.truncate(48 + stored + 176)
		    listed += volume + pack + index[-32:-16]
		    listed += struct.pack("<5Q3IB", 48 + stored + 176, 48, 0, 2 * entries - 2, 0, stored, plain, entries, 0)
		body = volume + b"forged".ljust(16) + bytes(24) + struct.pack("<5Q", number, 99, 1 << 17, cut, 0)
		body += struct.pack("<3IB", 0, packs, 0, 0) + bytes([len(name)]) + name + listed
		length, body = frame([body])
		manifest = sealed(b"GLIDEMAN" + struct.pack("<HHI", 1, 0, length) + body)
		with open(f"{folder}/{number:020}", "xb") as file:
		    file.write(manifest)
	PYTHON
}

# on HOST ARGUMENT…: the command line, connected to the daemon of HOST.
on() { GLIDEFS_SOCKET="$WORK/$1/glidefs.sock" "$GLIDEFS" "${@:2}"; }

# host HOST: starts the daemon of HOST, which has a cache of its own and shares the store.
host() {
	local waited=0
	mkdir -p "$WORK/$1/cache" "$WORK/store"
	cat >"$WORK/$1/glidefs.toml" <<-TOML
		[cache]
		dir = "$WORK/$1/cache"
		size = "1GiB"
		clean_size = "64MiB"
		[api]
		listen = "none"
		socket = "$WORK/$1/glidefs.sock"
		[control]
		# Before Linux 7.0 the start of a device ends when the kernel has looked for partitions, by a READ of 24 indexes.
		command_timeout = "2min"
		[store]
		url = "file://$WORK/store"
	TOML
	setsid "$GLIDEFS" run --config "$WORK/$1/glidefs.toml" >>"$WORK/daemon.log" 2>&1 &
	HOSTS[$1]=$!
	until on "$1" status >/dev/null 2>&1; do
		kill -0 "${HOSTS[$1]}" 2>/dev/null || die "the daemon of host $1 did not start"
		sleep 0.2
		waited=$((waited + 1))
		[ $waited -lt 300 ] || die "the daemon of host $1 was not ready after a minute"
	done
}

# device HOST NAME: the path of the device of export NAME.
device() { on "$1" export show "$2" --json | jq -re .device; }
# marked HOST NAME: writes a block to export NAME and reads the block again.
marked() {
	local device
	device=$(device "$1" "$2") || return
	block A | dd of="$device" bs=4096 oflag=direct conv=notrunc,fsync iflag=fullblock status=none &&
		dd if="$device" bs=4096 count=1 iflag=direct status=none | cmp - <(block A)
}

# peak HOST: the most memory that the daemon of HOST has had, KiB.
peak() { awk '/^VmHWM/ { print $2 }' "/proc/${HOSTS[$1]}/status"; }

# forged_manifest: a manifest with the last of all numbers as its cut is refused by a host that takes the volume over and by the host
# that has the volume, and other exports of both hosts are served.
forged_manifest() {
	local name
	declare -A HOSTS
	host first
	host second
	for name in forged huge long moves stays; do
		holds "an export in the store" on first export create "$name" --size 64MiB
		holds "it takes writes" marked first "$name"
		holds "it is written back" on first export flush "$name"
	done
	forge "$WORK/store" forged 18446744073709551615
	refuses "a forged manifest, by a host that takes the export over" 'manifests/.*is damaged' on second export open forged --take-over
	forge "$WORK/store" huge 1 8 256
	refuses "a manifest with indexes of 256 MiB" 'manifests/.*is damaged' on second export open huge --take-over
	forge "$WORK/store" long 1 24
	holds "a volume with 24 indexes of 40 MiB is taken over" on second export open long --take-over
	holds "a READ looks at all of them" dd if="$(device second long)" bs=4096 count=1 iflag=direct of=/dev/null status=none
	# Indexes that are kept and on their way take 240 MiB at most, and a merge 200 MiB.
	holds "in 700 MiB of memory" [ "$(peak second)" -lt 716800 ]
	holds "another export is taken over" on second export open moves --take-over
	holds "the other export takes writes" marked second moves
	holds "the host of the forged manifest serves its other exports" marked first stays
	holds "and writes them back" on first export flush stays
	kill -KILL "${HOSTS[first]}"
	wait "${HOSTS[first]}" 2>/dev/null || true
	host first
	holds "so it does after a crash" marked first stays
	for name in "${!HOSTS[@]}"; do
		holds "the daemon of host $name has not ended" kill -0 "${HOSTS[$name]}"
		on "$name" export list --json | jq -r '.[].name' | GLIDEFS_SOCKET="$WORK/$name/glidefs.sock" xargs -rn 1 timeout 60 "$GLIDEFS" export delete >/dev/null 2>&1 || true
		kill -TERM "${HOSTS[$name]}"
		wait "${HOSTS[$name]}" 2>/dev/null || true
	done
}
