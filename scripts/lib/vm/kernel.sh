# shellcheck shell=bash
# Fetches Debian's kernels and unpacks kernel and modules, for a fast boot. Sourced by scripts/vm.
#
# target/vm/kernels/NAME holds, complete or not at all:
#   release             the kernel's own name, e.g. 6.12.1+deb13-amd64
#   kernel              the kernel image, unpacked: unpacking under emulation is slow
#   initramfs           stage 1 with busybox and the modules that stage 1 loads
#   lib/modules/RELEASE the modules, unpacked, with depmod's index
#   package             the version of the Debian package
# Nothing is installed on the machine, and the machine's apt configuration is left alone: the lists and archives are private.

# shellcheck disable=SC2034 # read by scripts/vm
KERNEL_NAMES=(trixie-backports trixie bookworm)
# The general kernel. The smaller "cloud" kernel has no 9p, and in bookworm no ublk either.
KERNEL_META_PACKAGE=linux-image-amd64

# Loaded by stage 1, in this order, each after its dependencies. The root needs the first four; every VM offers the others, which
# load faster from memory than from the root.
STAGE1_MODULES=(virtio_pci 9pnet_virtio 9p overlay virtio_blk virtio_net ublk_drv)
# Up to Linux 6.14 the limit holds for all devices, not only unprivileged ones, and is 64 unless set.
STAGE1_UBLK_PARAMETERS="ublks_max=20000"
# Drivers of hardware that no VM has: without these, unpacking and indexing are short.
UNWANTED_MODULES=(sound drivers/gpu drivers/media drivers/net/wireless drivers/net/ethernet drivers/iio
	drivers/infiniband drivers/staging drivers/usb drivers/hid drivers/hwmon drivers/input drivers/bluetooth
	drivers/isdn drivers/comedi drivers/accel drivers/video drivers/platform net/bluetooth net/wireless net/mac80211)

kernel_dir() {
	printf '%s/kernels/%s' "$VM_HOME" "$1"
}

# A stamp of the two files that an initramfs is made from: with another stamp the initramfs is made anew.
stage1_stamp() {
	cat "$VM_LIB/guest-stage1" "$VM_LIB/kernel.sh" | sha256sum | cut -d' ' -f1
}

# fetch_kernel SUITE DIRECTORY: downloads and unpacks the packages of the suite's current kernel. The meta package names the
# current version; newer kernels come in several packages of that version.
fetch_kernel() {
	local name=$1 into=$2 packages
	packages=$(private_apt "$name" apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
		--no-breaks --no-replaces --no-enhances "$KERNEL_META_PACKAGE" |
		grep -E '^linux-(image|binary|modules|base)-[0-9]' | sort -u) ||
		die "$name has no $KERNEL_META_PACKAGE"
	# shellcheck disable=SC2086 # one word a package
	private_packages_fetch "$name" $packages
	private_packages_unpack "$name" "$into"
	private_apt "$name" apt-cache show --no-all-versions "$KERNEL_META_PACKAGE" |
		sed -n 's/^Version: //p' >"$into/package"
}

# unpack_kernel IMAGE FILE: writes the ELF kernel inside a bzImage. QEMU can enter an ELF kernel directly (PVH), so the guest spends
# no time on unpacking. The offsets are from the x86 boot protocol (setup_sects, payload_offset, payload_length). The payload ends
# in 4 bytes with the unpacked size, which the unpackers do not expect. Fails where the image has no kernel with a PVH entry.
unpack_kernel() {
	local image=$1 into=$2 setup_sectors offset length magic unpack
	setup_sectors=$(od -An -tu1 -j $((0x1f1)) -N1 "$image")
	offset=$(od -An -tu4 -j $((0x248)) -N4 "$image")
	length=$(od -An -tu4 -j $((0x24c)) -N4 "$image")
	offset=$(((setup_sectors + 1) * 512 + offset))
	magic=$(od -An -tx1 -j "$offset" -N4 "$image" | tr -d ' ')
	case $magic in
	28b52ffd) unpack=zstd ;;
	02214c18) unpack=lz4 ;;
	fd377a58) unpack=xz ;;
	1f8b*) unpack=gzip ;;
	*) return 1 ;;
	esac
	need_tools "$unpack=${unpack/%xz/xz-utils}"
	tail -c +$((offset + 1)) "$image" | head -c $((length - 4)) | "$unpack" -dc >"$into"
	# The note that announces the PVH entry point: type 18, name "Xen".
	LC_ALL=C grep -qaP '\x04\x00\x00\x00.\x00\x00\x00\x12\x00\x00\x00Xen\x00' "$into"
}

# unpack_modules DIRECTORY RELEASE: prunes and unpacks the modules: decompression under emulation is slow.
unpack_modules() {
	local modules=$1/lib/modules/$2 dir
	for dir in "${UNWANTED_MODULES[@]}"; do
		rm -rf "$modules/kernel/$dir"
	done
	find "$modules" -name '*.ko.xz' -print0 | xargs -0 -r -n 64 -P "$(nproc)" xz -d
	find "$modules" -name '*.ko.zst' -print0 | xargs -0 -r -n 64 zstd -q --rm -d
}

# Prints the path of a statically linked busybox: of the machine, or unpacked from the package busybox-static. The package is not
# installed, because of its conflict with the package busybox.
static_busybox() {
	local candidate unpacked=$VM_HOME/tools/busybox
	for candidate in "$unpacked/bin/busybox" "$unpacked/usr/bin/busybox" /bin/busybox; do
		if [[ -x $candidate ]] && ! LC_ALL=C ldd "$candidate" >/dev/null 2>&1; then
			printf '%s\n' "$candidate"
			return
		fi
	done
	mkdir -p "$unpacked"
	(
		cd "$unpacked"
		if ! apt-get -q download busybox-static >apt.log 2>&1; then
			machine_apt update || true
			retry apt-get -q download busybox-static >apt.log 2>&1
		fi
	) || die "could not fetch busybox; once this works, retry: apt-get download busybox-static"
	dpkg -x "$unpacked"/busybox-static_*.deb "$unpacked"
	rm -f "$unpacked"/busybox-static_*.deb
	if [[ -x $unpacked/usr/bin/busybox ]]; then
		printf '%s\n' "$unpacked/usr/bin/busybox"
	else
		printf '%s\n' "$unpacked/bin/busybox"
	fi
}

build_initramfs() {
	local kernel=$1 release tree module file parameters busybox
	local -A seen=()
	release=$(<"$kernel/release")
	busybox=$(static_busybox)
	tree=$kernel/initramfs.tree
	rm -rf "$tree"
	mkdir -p "$tree"/{bin,dev,proc,sys,modules,lower,upper,root}
	install -m 755 "$busybox" "$tree/bin/busybox"
	install -m 755 "$VM_LIB/guest-stage1" "$tree/init"
	for module in "${STAGE1_MODULES[@]}"; do
		while read -r file; do
			if [[ -z $file || -n ${seen[$file]:-} ]]; then
				continue
			fi
			seen[$file]=yes
			parameters=
			if [[ $module == ublk_drv && $file == */ublk_drv.ko ]]; then
				parameters=$STAGE1_UBLK_PARAMETERS
			fi
			cp "$file" "$tree/modules/"
			printf '%s %s\n' "${file##*/}" "$parameters" >>"$tree/modules/order"
		done < <(modprobe -d "$kernel" -S "$release" --show-depends "$module" | sed -n 's/^insmod \(.*\.ko\).*/\1/p')
	done
	(cd "$tree" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$kernel/initramfs.new"
	rm -rf "$tree"
	stage1_stamp >"$kernel/stamp"
	mv "$kernel/initramfs.new" "$kernel/initramfs"
}

build_kernel() {
	local name=$1 new image release
	new=$(kernel_dir "$name").new
	rm -rf "$new"
	mkdir -p "$new/unpacked" "$new/lib/modules"
	private_apt_open "$name"
	fetch_kernel "$name" "$new/unpacked"
	mv "$new/unpacked/package" "$new/package"
	# Older packages put the modules below /lib, newer packages below /usr/lib.
	mv "$new"/unpacked/{usr/,}lib/modules/* "$new/lib/modules/" 2>/dev/null || true
	image=$(find "$new" -name 'vmlinuz*' -type f | head -n 1)
	release=$(ls "$new/lib/modules")
	printf '%s\n' "$release" >"$new/release"
	if ! unpack_kernel "$image" "$new/kernel"; then
		cp "$image" "$new/kernel"
	fi
	rm -rf "$new/unpacked"
	say "unpacking the modules of $release"
	unpack_modules "$new" "$release"
	if [[ -z $(find "$new/lib/modules" -name ublk_drv.ko) ]]; then
		build_ublk_module "$name" "$new" "$release"
	fi
	private_apt_close "$name"
	depmod -b "$new" "$release"
	build_initramfs "$new"
	rm -rf "$(kernel_dir "$name")"
	mv "$new" "$(kernel_dir "$name")"
}

# prepare_kernel SUITE: makes a kernel ready; does only the missing steps. One process at a time: VMs may start together.
prepare_kernel() {
	local name=$1 kernel
	kernel=$(kernel_dir "$name")
	mkdir -p "$VM_HOME/kernels"
	if [[ $OPT_UPDATE == no && -e $kernel/initramfs && $(<"$kernel/stamp") == "$(stage1_stamp)" ]]; then
		return
	fi
	need_tools depmod=kmod xz=xz-utils dpkg=dpkg sha256sum=coreutils
	exec {kernel_lock}>"$kernel.lock"
	flock "$kernel_lock"
	if [[ $OPT_UPDATE == yes || ! -e $kernel/initramfs ]]; then
		build_kernel "$name"
	elif [[ $(<"$kernel/stamp") != "$(stage1_stamp)" ]]; then
		build_initramfs "$kernel"
	fi
	exec {kernel_lock}>&-
}
