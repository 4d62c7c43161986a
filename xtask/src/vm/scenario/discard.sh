# blkdiscard and fstrim reach the members and give their space back; what was discarded reads as zeros, what was not is there.

allocated() { echo $(($(stat --format=%b /run/members/* | paste -sd+))); }

modules nbd ext4
mkdir /run/members
"$URAID" create --level 5 --size 128M /run/members/{a,b,c,d}
serve /run/members/{a,b,c,d}
attach /dev/nbd0 -unix "$SOCKET" -C 2
[ "$(cat /sys/block/nbd0/queue/discard_max_bytes)" -gt 0 ] || fail "the device takes no discards"

say "blkdiscard"
dd if=/dev/urandom of=/run/content bs=1M count=64 status=none
dd if=/run/content of=/dev/nbd0 bs=1M oflag=direct status=none
full=$(allocated)
# Whole stripes: 192 KiB of data each.
blkdiscard --offset $((9 << 20)) --length $((48 << 20)) /dev/nbd0
blockdev --flushbufs /dev/nbd0
dd if=/dev/zero of=/run/content bs=1M seek=9 count=48 conv=notrunc status=none
dd if=/dev/nbd0 bs=1M count=64 iflag=direct status=none | cmp - /run/content || fail "the discard changed something else"
left=$(allocated)
say "512-byte blocks: $full before, $left after"
# 48 MiB of data and their parity are 131072 blocks.
((full - left >= 131072)) || fail "the members kept the space"
scrub

say "fstrim"
mkfs.ext4 -q /dev/nbd0
mount /dev/nbd0 /mnt
dd if=/dev/urandom of=/mnt/large bs=1M count=128 conv=fsync status=none
dd if=/dev/urandom of=/mnt/kept bs=1M count=8 conv=fsync status=none
sha256sum /mnt/kept >/run/sum
full=$(allocated)
rm /mnt/large
sync
fstrim -v /mnt
left=$(allocated)
say "512-byte blocks: $full before, $left after"
((full - left >= 300000)) || fail "the members kept the space"
sha256sum -c /run/sum
umount /mnt
fsck.ext4 -fn /dev/nbd0
scrub
detach /dev/nbd0
unserve
