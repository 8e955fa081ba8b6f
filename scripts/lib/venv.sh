# Programs of Python packages, each set in a virtual environment of its own. Sourced, never run. Needs common.sh.
# shellcheck shell=bash

# need_venv FOLDER PACKAGE==VERSION…: installs the packages in FOLDER, unless these versions are there. Several scripts may ask at once.
need_venv() {
	local folder=$1 packages=("${@:2}") lock
	mkdir -p "$(dirname "$folder")"
	exec {lock}>"$folder.lock"
	flock "$lock"
	if [ "$(cat "$folder/version" 2>/dev/null)" != "${packages[*]}" ]; then
		need_packages python3=python3
		# A module of its own package, and no command.
		if ! python3 -c 'import ensurepip' 2>/dev/null; then
			[ "$(id -u)" -eq 0 ] || die "missing: run as root: apt-get install -y python3-venv"
			apt-get update -q >/dev/null
			DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-venv >/dev/null
		fi
		say "installing ${packages[*]}"
		rm -rf "$folder"
		python3 -m venv "$folder"
		"$folder/bin/pip" install -q --disable-pip-version-check "${packages[@]}" >&2
		printf '%s\n' "${packages[*]}" >"$folder/version"
	fi
	exec {lock}>&-
}
