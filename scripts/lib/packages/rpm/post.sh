# shellcheck shell=sh
systemd-tmpfiles --create glidefs.conf || :
systemctl daemon-reload || :
udevadm control --reload || :
modprobe --quiet ublk_drv || :
if [ "$1" -eq 1 ]; then
	systemctl preset glidefs.service || :
	echo "glidefs: set [cache] dir and size in /etc/glidefs/glidefs.toml, then: systemctl enable --now glidefs"
fi
/usr/libexec/glidefs/service installed
