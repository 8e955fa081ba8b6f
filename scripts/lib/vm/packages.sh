# shellcheck shell=bash
# Debian packages of other suites than the machine's own, downloaded and unpacked but not installed. Sourced by
# scripts/vm.
#
# The machine's apt configuration is left alone: lists, sources and archives are private, below target/vm/kernels.
# Signatures are checked against Debian's keyring. The mirror is the one the machine itself uses.

DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# debian_mirror: prints the mirror of the machine's own sources, without "security". Where the lists were never fetched, apt does
# not know the publisher of a source; then a path that ends in /debian decides.
debian_mirror() {
	local mirror=${GLIDEFS_VM_MIRROR:-}
	# shellcheck disable=SC2016 # apt replaces these names, not the shell
	if [[ -z $mirror ]]; then
		mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)' 'Created-By: Packages' |
			awk '!seen && $2 == "Debian" && $1 !~ /security/ { print $1; seen = 1 }')
	fi
	# shellcheck disable=SC2016
	if [[ -z $mirror ]]; then
		mirror=$(apt-get indextargets --no-release-info --format '$(REPO_URI)' 'Created-By: Packages' |
			awk '!seen && $1 ~ /\/debian\/?$/ { print $1; seen = 1 }')
	fi
	printf '%s\n' "$mirror"
}

private_apt_dir() {
	printf '%s/kernels/%s.apt' "$VM_HOME" "$1"
}

# private_apt SUITE TOOL ARGUMENT…: runs a tool of apt on the private lists of the suite.
private_apt() {
	local tool=$2 dir
	dir=$(private_apt_dir "$1")
	shift 2
	"$tool" -q -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
		-o Dir::State::Lists="$dir/lists" -o Dir::State::Status=/dev/null -o Dir::Cache="$dir/cache" \
		-o Acquire::Languages=none -o Acquire::Retries=5 -o APT::Sandbox::User="$(id -un)" \
		-o APT::Architecture=amd64 -o APT::Architectures=amd64 "$@"
}

# Error-Mode=any: by default apt only warns when an update cannot reach the mirror.
private_apt_update() {
	private_apt "$1" apt-get -o APT::Update::Error-Mode=any update >"$(private_apt_dir "$1")/log" 2>&1
}

# private_apt_open SUITE: fetches the package lists of a suite.
private_apt_open() {
	local name=$1 dir mirror
	dir=$(private_apt_dir "$name")
	rm -rf "$dir"
	mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/packages"
	if [[ ! -e $DEBIAN_KEYRING ]]; then
		install_packages debian-archive-keyring
	fi
	mirror=$(debian_mirror)
	if [[ -z $mirror ]]; then
		die "this machine's apt sources name no Debian mirror; set GLIDEFS_VM_MIRROR to the address of one"
	fi
	printf 'deb [signed-by=%s target=Packages] %s %s main\n' "$DEBIAN_KEYRING" "$mirror" "$name" >"$dir/sources.list"
	say "looking up the current kernel of $name"
	retry private_apt_update "$name" ||
		die "apt could not read $name (do the keys in $DEBIAN_KEYRING cover it?): $(tail -n 5 "$dir/log")"
}

private_apt_close() {
	rm -rf "$(private_apt_dir "$1")"
}

private_apt_download() {
	local name=$1 dir
	dir=$(private_apt_dir "$name")
	shift
	(cd "$dir/packages" && private_apt "$name" apt-get download "$@") >"$dir/log" 2>&1
}

# private_packages_fetch SUITE PACKAGE…: downloads packages.
private_packages_fetch() {
	local dir
	dir=$(private_apt_dir "$1")
	say "downloading ${*:2}"
	retry private_apt_download "$@" || die "download failed: $(tail -n 5 "$dir/log")"
}

# private_packages_unpack SUITE DIRECTORY: unpacks the downloaded packages, and removes the archives.
private_packages_unpack() {
	local archive
	for archive in "$(private_apt_dir "$1")"/packages/*.deb; do
		dpkg -x "$archive" "$2"
		rm "$archive"
	done
}
