# The server goes and comes back. Of nbd-client's device what was under way fails, and it is attached again when nothing is mounted (-persist of
# nbd-client 3.24 ends, too: it takes the end of the connection for its user's wish).
# qemu-nbd holds requests back meanwhile: a mounted file system only waits. As it does not know what a killed server had not flushed, the server
# must not keep writes back in memory then.

modules nbd ext4
"$URAID" create --level 5 $(disks 4)
serve $(disks 4)

say "nbd-client"
attach /dev/nbd0 -unix "$SOCKET" -C 2
mkfs.ext4 -q /dev/nbd0
mount /dev/nbd0 /mnt
dd if=/dev/urandom of=/mnt/before bs=1M count=8 conv=fsync status=none
(cd /mnt && sha256sum before) >/run/sums
umount /mnt
for how in TERM KILL; do
    kill -s "$how" "$SERVER"
    wait "$SERVER" || [ "$how" = KILL ]
    detach /dev/nbd0
    serve $(disks 4)
    attach /dev/nbd0 -unix "$SOCKET" -C 2
    fsck.ext4 -fn /dev/nbd0
    mount /dev/nbd0 /mnt
    all_there
    umount /mnt
done
detach /dev/nbd0
unserve

say "qemu-nbd with reconnect-delay"
serve --cache writethrough $(disks 4)
qemu-nbd --connect /dev/nbd1 --fork --cache none --image-opts \
    "driver=nbd,server.type=unix,server.path=$SOCKET,export=scene,reconnect-delay=60"
within 20 has_size /dev/nbd1
mount /dev/nbd1 /mnt
writer &
WRITER=$!
more 5
for how in TERM KILL TERM; do
    say "the server gets SIG$how"
    kill -s "$how" "$SERVER"
    wait "$SERVER" || [ "$how" = KILL ]
    serve --cache writethrough $(disks 4)
    more 5
done
touch /run/enough
wait "$WRITER"
umount /mnt
say "$(wc -l </run/sums) files"
fsck.ext4 -fn /dev/nbd1
mount /dev/nbd1 /mnt
all_there
umount /mnt
qemu-nbd --disconnect /dev/nbd1
scrub
unserve
