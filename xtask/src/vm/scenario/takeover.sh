# One server after the other takes over, under a mounted file system on the device of nbd-client: the kernel has two connections, and sees neither end.
# The servers differ in their cache and in who serves connections.

writer() {
    local file=0
    while [ ! -e /run/enough ]; do
        dd if=/dev/urandom of=/mnt/file$file bs=64K count=4 conv=fsync status=none || touch /run/failed
        (cd /mnt && sha256sum file$file) >>/run/sums
        file=$((file + 1))
    done
}
written() { [ "$(wc -l </run/sums)" -ge "$1" ]; }
more() { within 60 written $(($(wc -l </run/sums) + $1)); }
all_there() { (cd /mnt && sha256sum --quiet -c /run/sums); }

modules nbd ext4
"$URAID" create --level 5 $(disks 4)
serve $(disks 4)
attach /dev/nbd0 -unix "$SOCKET" -C 2
mkfs.ext4 -q /dev/nbd0
mount /dev/nbd0 /mnt
: >/run/sums
writer &
WRITER=$!
more 3
for options in "" "--cache writethrough" "--connection-threads 1" "--cache none" ""; do
    say "takeover by a server with '$options'"
    before=$SERVER
    serve --takeover $options $(disks 4)
    wait "$before" || fail "the server before ended with $?"
    more 3
done
touch /run/enough
wait "$WRITER"
[ ! -e /run/failed ] || fail "a write failed"
umount /mnt
say "$(wc -l </run/sums) files"
fsck.ext4 -fn /dev/nbd0
mount /dev/nbd0 /mnt
all_there
umount /mnt
detach /dev/nbd0
scrub
unserve
