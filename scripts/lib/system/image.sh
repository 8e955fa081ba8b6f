# shellcheck shell=bash
# The disk image of scripts/system-test: Debian 13 with unchanged systemd, udev, journald and Prometheus.
# Sourced by scripts/system-test, after lib/vm/kernel.sh and common.sh.
#
# target/vm/images/system.ext4 is the pristine image, complete or not there at all; every run works on a copy.
# Kernel and modules come from lib/vm/kernel.sh and are not in the image, so a new kernel needs no new image.

IMAGE_HOME=$VM_HOME/images
IMAGE=$IMAGE_HOME/system.ext4
IMAGE_SUITE=trixie
IMAGE_SIZE=3G
# The variant minbase adds apt and gpgv, which stay unused: nothing is installed in the guest.
IMAGE_PACKAGES=systemd,systemd-sysv,udev,dbus,kmod,util-linux,mount,procps,fio,jq,curl,ca-certificates,xfsprogs,e2fsprogs,prometheus,python3
# Timers, consoles and daemons that no check needs, and two emulated processors are few.
IMAGE_MASKED=(apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
	fstrim.timer systemd-networkd.service systemd-timesyncd.service systemd-resolved.service getty@.service
	serial-getty@.service getty-static.service console-getty.service prometheus-node-exporter.service
	systemd-firstboot.service systemd-pcrphase.service systemd-hwdb-update.service ldconfig.service
	systemd-logind.service systemd-update-utmp.service xfs_scrub_all.timer modprobe@configfs.service
	modprobe@efi_pstore.service modprobe@fuse.service modprobe@drm.service modprobe@loop.service modprobe@dm_mod.service
	systemd-binfmt.service proc-sys-fs-binfmt_misc.automount dev-hugepages.mount dev-mqueue.mount
	sys-kernel-debug.mount sys-kernel-tracing.mount)

# A stamp of the files that the image is made from: with another stamp the image is made anew.
image_stamp() { cat "$REPOSITORY/scripts/lib/system/image.sh" "$REPOSITORY"/scripts/lib/system/root/* | sha256sum | cut -d' ' -f1; }

# configure_image ROOT: sets all that a first boot would ask or generate, and installs the files of the test.
configure_image() {
	local root=$1 files=$REPOSITORY/scripts/lib/system/root unit
	echo glidefs-system >"$root/etc/hostname"
	echo '127.0.0.1 localhost glidefs-system' >"$root/etc/hosts"
	echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
	touch "$root/etc/.updated" "$root/var/.updated"
	for unit in "${IMAGE_MASKED[@]}"; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
	# Persistent, as the checks also read the journal of the boot before the power cut.
	mkdir -p "$root/var/log/journal" "$root/host" "$root/mnt/fs"
	install -m 644 "$files/fstab" "$root/etc/fstab"
	install -m 644 "$files/prometheus.yml" "$root/etc/prometheus/prometheus.yml"
	install -m 644 "$files/system-test.service" "$root/etc/systemd/system/system-test.service"
	ln -sf ../system-test.service "$root/etc/systemd/system/multi-user.target.wants/system-test.service"
}

build_image() {
	local work=$IMAGE_HOME/build mirror
	need_packages mmdebstrap=mmdebstrap mke2fs=e2fsprogs
	[ -e "$DEBIAN_KEYRING" ] || die "missing: run as root: apt-get install -y debian-archive-keyring"
	mirror=$(debian_mirror)
	[ -n "$mirror" ] || die "this machine's apt sources name no Debian mirror; set GLIDEFS_VM_MIRROR to the address of one"
	rm -rf "$work" "$IMAGE_HOME/new.ext4"
	mkdir -p "$work"
	mmdebstrap --quiet --variant=minbase --include="$IMAGE_PACKAGES" --keyring="$DEBIAN_KEYRING" \
		--aptopt='Acquire::Retries "5"' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		"$IMAGE_SUITE" "$work/root" "$mirror" >"$IMAGE_HOME/build.log" 2>&1 || {
		tail -n 20 "$IMAGE_HOME/build.log" >&2
		die "mmdebstrap could not make the image; its log is $IMAGE_HOME/build.log"
	}
	configure_image "$work/root"
	mke2fs -q -t ext4 -L root -E lazy_itable_init=1 -d "$work/root" "$IMAGE_HOME/new.ext4" "$IMAGE_SIZE"
	rm -rf "$work"
	image_stamp >"$IMAGE_HOME/stamp"
	mv "$IMAGE_HOME/new.ext4" "$IMAGE"
}

# Makes the image ready: builds a new one only if there is none with the right stamp.
prepare_image() {
	mkdir -p "$IMAGE_HOME"
	exec {image_lock}>"$IMAGE_HOME/lock"
	flock "$image_lock"
	if [ ! -e "$IMAGE" ] || [ "$(cat "$IMAGE_HOME/stamp" 2>/dev/null)" != "$(image_stamp)" ]; then
		step "building the disk image (Debian $IMAGE_SUITE, about a minute)"
		build_image
	fi
	exec {image_lock}>&-
}
