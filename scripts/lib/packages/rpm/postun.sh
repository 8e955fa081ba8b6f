# shellcheck shell=sh
systemctl daemon-reload || :
if [ "$1" -eq 0 ] && [ -n "$(ls -A /var/lib/glidefs 2>/dev/null)" ]; then
	echo "glidefs: /var/lib/glidefs was left: it may have data of exports that is nowhere else. Delete it when nobody needs them"
fi
