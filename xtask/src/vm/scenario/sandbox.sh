# A server of root's becomes nobody, in a sandbox of which this kernel has all parts: what it serves, what it can't open.

mount -t tmpfs tmpfs /mnt
mkdir -m 755 /mnt/members /mnt/elsewhere
truncate -s 64M /mnt/members/spare /mnt/elsewhere/new
chown nobody /mnt/members/spare /mnt/elsewhere/new
"$URAID" create --level 5 $(disks 3)

say "the server is nobody"
serve --sandbox on --user nobody --connection-threads 2 $(disks 3)
for status in /proc/$SERVER/task/*/status; do
    grep -q '^Seccomp:[[:space:]]*2$' "$status" || fail "a thread has no filter: $(cat "$status")"
    # Workers of io_uring keep the identity that they were born with, and use that of each request.
    grep -q '^Name:[[:space:]]*iou-' "$status" || grep -q '^CapPrm:[[:space:]]*0*$' "$status" || fail "$(cat "$status")"
done
[ "$(stat -c %U "$SOCKET" "$CONTROL" | sort -u)" = nobody ] || fail "the sockets are not nobody's"
modules nbd ext4
attach /dev/nbd0 -unix "$SOCKET" -C 3
mkfs.ext4 -q /dev/nbd0
mkdir /run/mounted
mount /dev/nbd0 /run/mounted
dd if=/dev/urandom of=/run/content bs=1M count=32 status=none
cp /run/content /run/mounted/content
umount /run/mounted
detach /dev/nbd0

say "what it was not started with is closed, whoever owns it"
control fail 1
if control add /mnt/elsewhere/new 2>/run/refused; then fail "the sandbox has a hole"; fi
cat /run/refused
grep -q -e --allow-path /run/refused || fail "it does not say why"
unserve

say "the same with the directory, and with a spare"
serve --degraded --sandbox on --user nobody --allow-path /mnt/elsewhere --spare /mnt/members/spare /dev/vda /dev/vdc
within 60 control wait
control fail 0
control add /mnt/elsewhere/new
control wait
scrub
attach /dev/nbd0 -unix "$SOCKET"
fsck.ext4 -fn /dev/nbd0
mount -o ro /dev/nbd0 /run/mounted
cmp /run/content /run/mounted/content
umount /run/mounted
detach /dev/nbd0
unserve
