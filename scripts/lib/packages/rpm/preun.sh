# shellcheck shell=sh
# Not at an upgrade: the daemon serves until the next one takes over. A failure ends the removal.
if [ "$1" -eq 0 ]; then
	/usr/libexec/glidefs/service retire || exit 1
fi
