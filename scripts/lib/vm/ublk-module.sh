# shellcheck shell=bash
# Builds ublk_drv for a kernel that Debian ships without it (6.1, bookworm), from the kernel's own source package.
# Sourced by scripts/vm.

# build_ublk_module SUITE DIRECTORY RELEASE: writes ublk_drv.ko into the modules of the release. Needs private_apt_open SUITE.
build_ublk_module() {
	local name=$1 kernel=$2 release=$3 series work headers
	# 6.1.0-50-amd64 is built from linux-source-6.1.
	series=$(cut -d. -f1,2 <<<"$release")
	# Not below the repository: kbuild cannot cope with a space in a path.
	work=$(mktemp -d)
	mkdir -p "$work/unpacked" "$work/module"
	say "$release comes without ublk_drv: building it"
	need_tools gcc=gcc make=make xz=xz-utils
	private_packages_fetch "$name" "linux-source-$series" "linux-headers-$release" \
		"linux-headers-${release%-amd64}-common" "linux-kbuild-$series"
	private_packages_unpack "$name" "$work/unpacked"
	tar -xJf "$work/unpacked/usr/src/linux-source-$series.tar.xz" -C "$work/module" --strip-components=3 \
		"linux-source-$series/drivers/block/ublk_drv.c"
	printf 'obj-m := ublk_drv.o\n' >"$work/module/Makefile"
	# The Makefile of the headers includes a Makefile of the "common" headers by the path of an installed package.
	headers=$work/unpacked/usr/src/linux-headers-$release
	sed -i "s|/usr/src/|$work/unpacked/usr/src/|" "$headers/Makefile"
	make -C "$headers" M="$work/module" CC=gcc modules >"$work/log" 2>&1 ||
		die "could not build ublk_drv for $release: $(tail -n 10 "$work/log")"
	install -D -m 644 "$work/module/ublk_drv.ko" "$kernel/lib/modules/$release/updates/ublk_drv.ko"
	rm -rf "$work"
}
