# Whole files read over the kernel's client: nothing stays connected or mounted, and the disks are blank again.
modules nbd ext4
"$URAID" bench retrieval --members $(disks 3) --chunks 64K --files 40 --processes 2 --time 1s --rounds 1 --out /run/lab
grep -q '"way": "nbd"' /run/lab/results.json || fail "another way than the kernel's client was taken"
grep -q 'its NBD client' /run/lab/report.md || fail "the report does not say how the arrays were attached"
for device in /sys/block/nbd*; do
    [ ! -e "$device/pid" ] || fail "$device is still connected"
done
! grep -q uraid-bench /proc/mounts || fail "a file system is still mounted"
for disk in $(disks 3); do
    cmp -n 1048576 "$disk" /dev/zero || fail "$disk is not blank"
done
