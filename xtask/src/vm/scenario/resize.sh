# Members are enlarged, the array grows, and a file system that is mounted again grows while files are written.

modules nbd ext4 xfs
mkdir /run/members
"$URAID" create --level 5 --size 160M /run/members/{a,b,c,d}
for filesystem in ext4 xfs; do
    say "$filesystem"
    serve /run/members/{a,b,c,d}
    attach /dev/nbd0 -unix "$SOCKET"
    "mkfs.$filesystem" -q "$([ $filesystem = xfs ] && echo -f || echo -F)" /dev/nbd0
    mount /dev/nbd0 /mnt
    dd if=/dev/urandom of=/mnt/file bs=1M count=16 conv=fsync status=none
    sha256sum /mnt/file >/run/sum
    umount /mnt
    before=$(blockdev --getsize64 /dev/nbd0)
    detach /dev/nbd0
    unserve

    truncate -s +64M /run/members/{a,b,c,d}
    "$URAID" grow /run/members/{a,b,c,d}
    serve /run/members/{a,b,c,d}
    attach /dev/nbd0 -unix "$SOCKET"
    after=$(blockdev --getsize64 /dev/nbd0)
    say "$before bytes were, $after are"
    # Three members' worth of 64 MiB, but for what is kept beside the data.
    ((after - before >= 180 << 20)) || fail "the array did not grow"
    mount /dev/nbd0 /mnt
    dd if=/dev/urandom of=/mnt/meanwhile bs=64K count=512 conv=fsync status=none &
    if [ $filesystem = ext4 ]; then resize2fs /dev/nbd0; else xfs_growfs /mnt >/run/grow.log; fi
    wait $!
    [ "$(stat --file-system --format=%b /mnt)" -gt $((before / 4096)) ] || fail "the file system did not grow"
    sha256sum /mnt/meanwhile >>/run/sum
    dd if=/dev/urandom of=/mnt/more bs=1M count=32 conv=fsync status=none
    sha256sum /mnt/more >>/run/sum
    sync
    echo 3 >/proc/sys/vm/drop_caches
    sha256sum -c /run/sum
    umount /mnt
    if [ $filesystem = ext4 ]; then fsck.ext4 -fn /dev/nbd0; else xfs_repair -n /dev/nbd0; fi
    detach /dev/nbd0
    scrub
    unserve
done
