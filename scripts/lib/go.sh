# Programs of Go modules, in target/tools. Sourced, never run. Needs common.sh.
# shellcheck shell=bash

GO_TOOLS=$REPOSITORY/target/tools/bin

# need_go: a Go that fetches the toolchain a module asks for, which Go does since 1.21.
need_go() {
	local version
	need_packages go=golang-go
	version=$(go env GOVERSION)
	printf 'go1.21\n%s\n' "$version" | sort -V -C ||
		die "$version is too old: install Go 1.21 or later, from this Debian's backports (apt-get install -t CODENAME-backports golang-go) or https://go.dev/dl"
}

# have_go_tool NAME VERSION: whether this version is there.
have_go_tool() { [ -x "$GO_TOOLS/$1" ] && [ "$(cat "$GO_TOOLS/$1.version" 2>/dev/null)" = "$2" ]; }

# need_go_tool NAME PACKAGE VERSION: installs a program of a Go module, unless this version is there.
need_go_tool() {
	! have_go_tool "$1" "$3" || return 0
	need_go
	say "installing $1 $3"
	mkdir -p "$GO_TOOLS"
	GOTOOLCHAIN=auto GOFLAGS=-modcacherw GOBIN=$GO_TOOLS go install "$2@$3"
	printf '%s\n' "$3" >"$GO_TOOLS/$1.version"
}
