# An S3 server for a script that needs one. Sourced, never run. Needs REPOSITORY and die.
# shellcheck shell=bash

# s3_server: has AWS_… and BUCKET name an S3 server, exported: the one that they name already, or else one that is started here
# and ends with the script.
s3_server() {
	local line
	[ -z "${BUCKET:-}" ] || return 0
	coproc S3_SERVER { "$REPOSITORY/scripts/lib/s3-server"; }
	while read -r line <&"${S3_SERVER[0]}" && [ "$line" != ready ]; do
		export "${line?}"
	done
	[ -n "${BUCKET:-}" ] || die "the S3 server did not start"
}
