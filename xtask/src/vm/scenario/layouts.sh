# Linux md reads what was written through uraid, and finds all parity right; then the other way round. RM2, which md does not know, is left in
# /run/vm/NAME for the host to judge: the members, and `expected`.

# fill DEVICE FIRST [BYTES]: content from the pool on, then pieces of all sizes over it; /run/expected is what must be there then.
fill() {
    local device=$1 first=$2 bytes=${3:-$(blockdev --getsize64 "$1")} piece skip seek count
    local blocks=$((bytes / 4096))
    rm -f /run/expected
    dd if=/run/pool of=/run/expected bs=4k skip="$first" count=$blocks conv=notrunc status=none
    dd if=/run/expected of="$device" bs=1M oflag=direct status=none
    for piece in $(seq 8); do
        skip=$((RANDOM % 10000)) count=$((RANDOM % 24 + 1)) seek=$((RANDOM % (blocks - 24)))
        dd if=/run/pool of=/run/expected bs=4k skip=$skip seek=$seek count=$count conv=notrunc status=none
        dd if=/run/pool of="$device" bs=4k skip=$skip seek=$seek count=$count oflag=direct status=none
    done
    blockdev --flushbufs "$device"
}
holds() { cmp -n "$(stat -c %s /run/expected)" "$1" /run/expected || fail "$2: $1 holds something else"; }

# judge NAME DISKS "URAID OPTIONS" "MDADM OPTIONS"
judge() {
    local name=$1 count=$2 ours=$3 theirs=$4 disk
    local all=($(disks "$count"))
    say "$name: written through uraid"
    "$URAID" create --force $ours "${all[@]}" >/dev/null
    serve "${all[@]}"
    attach /dev/nbd0 -unix "$SOCKET"
    fill /dev/nbd0 0
    local size
    size=$(blockdev --getsize64 /dev/nbd0)
    detach /dev/nbd0
    # md knows of no blank regions.
    control wait >/dev/null
    unserve

    say "$name: read through md"
    give_to_md "$theirs" "${all[@]}"
    # RAID 0 takes no size: it uses what uraid keeps for itself behind the data, too.
    local has
    has=$(blockdev --getsize64 /dev/md0)
    [ "$has" = "$size" ] || [[ $ours == *"--level 0 "* && $has -gt $size ]] || fail "$name: md has $has bytes, uraid $size"
    holds /dev/md0 "$name"
    md_check
    say "$name: written through md"
    fill /dev/md0 500 "$size"
    take_from_md "${all[@]}"

    say "$name: read through uraid"
    serve "${all[@]}"
    attach /dev/nbd0 -unix "$SOCKET"
    holds /dev/nbd0 "$name"
    detach /dev/nbd0
    [[ $ours == *"--level 0 "* ]] || scrub
    unserve
}
md_check() {
    local action=/sys/block/md0/md/sync_action
    [ -e $action ] || return 0
    ! grep -q read-auto /sys/block/md0/md/array_state || mdadm --readwrite /dev/md0
    echo check >$action
    within 60 grep -q idle $action
    [ "$(cat /sys/block/md0/md/mismatch_cnt)" = 0 ] || fail "md finds $(cat /sys/block/md0/md/mismatch_cnt) sectors that do not agree"
}

# leave NAME DISKS URAID OPTIONS...
leave() {
    local name=$1 count=$2 disk
    local all=($(disks "$count"))
    shift 2
    say "$name: written through uraid"
    "$URAID" create --force "$@" "${all[@]}" >/dev/null
    serve "${all[@]}"
    attach /dev/nbd0 -unix "$SOCKET"
    fill /dev/nbd0 0
    detach /dev/nbd0
    control wait >/dev/null
    unserve
    mkdir "/run/vm/$name"
    "$URAID" examine --json "${all[@]}" >"/run/vm/$name/examined"
    cp /run/expected "/run/vm/$name/expected"
    for disk in "${!all[@]}"; do dd if="${all[disk]}" of="/run/vm/$name/member$disk" bs=1M status=none; done
}

modules nbd raid0 raid1 raid10 raid456
cp /run/vm/pool /run/pool
judge "RAID 0 of 4" 4 "--level 0 --chunk 64K" "--level=0 --chunk=64"
judge "RAID 0 of 3, chunk no power of two" 3 "--level 0 --chunk 12K" "--level=0 --chunk=12"
judge "RAID 1 of 3" 3 "--level 1" "--level=1 --bitmap=none"
judge "RAID 10 of 4" 4 "--level 10 --chunk 64K" "--level=10 --bitmap=none --layout=n2 --chunk=64"
judge "RAID 10 of 5, 3 copies" 5 "--level 10 --copies 3 --chunk 16K" "--level=10 --bitmap=none --layout=n3 --chunk=16"
judge "RAID 5 left-symmetric" 5 "--level 5 --layout left-symmetric --chunk 64K" "--level=5 --bitmap=none --layout=left-symmetric --chunk=64"
judge "RAID 5 left-asymmetric" 4 "--level 5 --layout left-asymmetric --chunk 16K" "--level=5 --bitmap=none --layout=left-asymmetric --chunk=16"
judge "RAID 5 right-symmetric" 5 "--level 5 --layout right-symmetric --chunk 4K" "--level=5 --bitmap=none --layout=right-symmetric --chunk=4"
judge "RAID 5 right-asymmetric" 3 "--level 5 --layout right-asymmetric --chunk 256K" "--level=5 --bitmap=none --layout=right-asymmetric --chunk=256"
judge "RAID 6 left-symmetric" 5 "--level 6 --layout left-symmetric --chunk 64K" "--level=6 --bitmap=none --layout=left-symmetric --chunk=64"
judge "RAID 6 left-asymmetric" 4 "--level 6 --layout left-asymmetric --chunk 16K" "--level=6 --bitmap=none --layout=left-asymmetric --chunk=16"
judge "RAID 6 right-symmetric" 5 "--level 6 --layout right-symmetric --chunk 4K" "--level=6 --bitmap=none --layout=right-symmetric --chunk=4"
judge "RAID 6 right-asymmetric" 5 "--level 6 --layout right-asymmetric --chunk 64K" "--level=6 --bitmap=none --layout=right-asymmetric --chunk=64"
