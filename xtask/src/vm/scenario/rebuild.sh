# A member fails under a busy file system and is rebuilt onto a new disk, while the file system stays busy.

modules nbd xfs
"$URAID" create --level 5 $(disks 4)
serve $(disks 4)
attach /dev/nbd0 -unix "$SOCKET" -C 4
mkfs.xfs -qf /dev/nbd0
mount /dev/nbd0 /mnt
load() {
    local round=0
    while [ ! -e /run/enough ]; do
        fio --name=busy --directory=/mnt --rw=randrw --bs=4k-64k --bs_unaligned=0 --size=8m --nrfiles=8 --ioengine=psync --fsync=32 \
            --verify=crc32c --verify_fatal=1 --do_verify=1 >/run/fio.log || { cat /run/fio.log; fail "the load saw an error"; }
        round=$((round + 1))
        echo $round >/run/rounds
    done
}
rounds() { [ "$(cat /run/rounds)" -ge "$1" ]; }
more() { within 120 rounds $(($(cat /run/rounds) + $1)); }

echo 0 >/run/rounds
load &
LOAD=$!
more 1

say "member 1 fails"
control fail 1
more 1
control status | tee /run/status
grep -q degraded /run/status
say "a new disk takes its place"
control add /dev/vde
control wait
control status | tee /run/status
grep -q whole /run/status
more 1
touch /run/enough
wait $LOAD
umount /mnt
xfs_repair -n /dev/nbd0
detach /dev/nbd0
scrub
unserve

say "without another member"
serve --degraded /dev/vd{b..d} /dev/vde
attach /dev/nbd0 -unix "$SOCKET"
xfs_repair -n /dev/nbd0
detach /dev/nbd0
unserve
