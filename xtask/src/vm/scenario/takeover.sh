# One server after the other takes over, under a mounted file system on the device of nbd-client: the kernel has two connections, and sees neither end.
# The servers differ in their cache and in who serves connections.

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
umount /mnt
say "$(wc -l </run/sums) files"
fsck.ext4 -fn /dev/nbd0
mount /dev/nbd0 /mnt
all_there
umount /mnt
detach /dev/nbd0
scrub
unserve
