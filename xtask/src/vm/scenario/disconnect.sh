# The device is taken away under load: the server goes on, what was synced is there, the file system's journal mends the rest.

without_clients() { control status | grep -q "no client\|0 clients"; }

modules nbd ext4
"$URAID" create --level 10 $(disks 4)
serve $(disks 4)
attach /dev/nbd0 -unix "$SOCKET" -C 4
mkfs.ext4 -q /dev/nbd0
for round in 1 2 3; do
    say "round $round"
    mount /dev/nbd0 /mnt
    dd if=/dev/urandom of=/mnt/kept$round bs=256K count=8 conv=fsync status=none
    (cd /mnt && sha256sum kept$round) >>/run/sums
    sync -f /mnt
    (trap - ERR; dd if=/dev/zero of=/mnt/load bs=64K count=4096 oflag=direct status=none 2>/dev/null || true) &
    LOAD=$!
    within 30 test -s /mnt/load
    nbd-client -d /dev/nbd0
    wait $LOAD
    umount -l /mnt
    kill -0 "$SERVER" || fail "the server ended"
    within 30 has_no_size /dev/nbd0
    within 30 without_clients
    attach /dev/nbd0 -unix "$SOCKET" -C 4
    fsck.ext4 -p /dev/nbd0 || [ $? -eq 1 ]
    fsck.ext4 -fn /dev/nbd0
    mount /dev/nbd0 /mnt
    (cd /mnt && sha256sum --quiet -c /run/sums)
    umount /mnt
done
detach /dev/nbd0
scrub
unserve
