# One life between two power cuts of a RAID 5 of 3 that becomes an RM2 of 7 under a busy ext4. Linux md reads the RAID 5 before it begins. Variables:
#   ROUND  1 makes the array and begins the reshape; in the last the reshape ends
# /run/vm/synced has a line "FILE SKIP COUNT" for each file that must be there: COUNT blocks of 4 KiB of /run/vm/pool, after SKIP blocks.

old=($(disks 3))
all=($(disks 7))
added=("${all[@]:3}")

# old_files DIRECTORY COMMAND: for files that are never written again.
old_files() {
    local file
    for file in $(seq 24); do "$2" "$1/old$file" $((file * 30)) $((file * 10)); done
}
put() { dd if=/run/pool of="$1" bs=4k skip="$2" count="$3" status=none; }
check() {
    [ "$(stat -c %s "$1")" = $(($3 * 4096)) ] || fail "$1 was synced and is not whole"
    cmp <(dd if=/run/pool bs=4k skip="$2" count="$3" status=none) "$1" || fail "$1 was synced and is not right"
}
check_file_system() {
    fsck.ext4 -fn /dev/nbd0 >/run/fsck || { cat /run/fsck; fail "the file system is damaged"; }
}
begin() {
    "$URAID" create --level 5 --chunk 16K "${old[@]}" >/dev/null
    serve "${old[@]}"
    attach /dev/nbd0 -unix "$SOCKET"
    mkfs.ext4 -q /dev/nbd0
    mount /dev/nbd0 /mnt
    old_files /mnt put
    umount /mnt
    detach /dev/nbd0
    # md knows of no blank regions.
    control wait >/dev/null
    unserve
    give_to_md "--level=5 --bitmap=none --layout=left-symmetric --chunk=16" "${old[@]}"
    mount -o ro /dev/md0 /mnt
    old_files /mnt check
    umount /mnt
    take_from_md "${old[@]}"
    say "md has read it"
    "$URAID" reshape --begin --level rm2 --rm2-m 3 ${added[@]/#/--add } "${old[@]}"
}
load() {
    local file=0 skip count
    while [ ! -e /run/enough ]; do
        skip=$((RANDOM % 900)) count=$((RANDOM % 60 + 1))
        dd if=/run/pool of="/mnt/f$((++file))" bs=4k skip=$skip count=$count conv=fsync status=none
        if [ "$ROUND" != last ]; then echo "f$file $skip $count" >/dev/ttyS1; else rm -f "/mnt/f$((file - 100))"; fi
    done
}

modules nbd ext4 raid456
cp /run/vm/pool /run/pool
if [ "$ROUND" = 1 ]; then begin; fi
serve --reshape-limit 256K "${all[@]}"
grep -i recover /run/serve.log || true
attach /dev/nbd0 -unix "$SOCKET" -C 2
# The journal mends what was under way; then nothing is left to mend.
mount /dev/nbd0 /mnt
old_files /mnt check
if [ "$ROUND" != 1 ]; then
    while read -r name skip count; do check "/mnt/$name" "$skip" "$count"; done </run/vm/synced
    umount /mnt
    check_file_system
    mount /dev/nbd0 /mnt
    rm -f /mnt/f*
    control status | grep -q reshap || fail "the reshape was over before the power was cut"
fi
load &
LOAD=$!
if [ "$ROUND" != last ]; then
    say "ready for the cut"
    wait
fi
control status
control set --reshape-limit none
control wait
touch /run/enough
wait $LOAD
control status | tee /run/status
grep -q 'RM2' /run/status || fail "the reshape has not ended"
old_files /mnt check
umount /mnt
check_file_system
detach /dev/nbd0
scrub
unserve

say "without two members"
serve --degraded "${all[@]:0:1}" "${all[@]:2:3}" "${all[@]:6:1}"
attach /dev/nbd0 -unix "$SOCKET"
check_file_system
mount -o ro /dev/nbd0 /mnt
old_files /mnt check
umount /mnt
detach /dev/nbd0
unserve
