# Linux md makes arrays; `uraid convert` makes them its own where they are, and gives them back; what md wrote is there,
# without members, too.

# Reads an array of uraid: reads WORDS... ; the words are options and members.
reads() {
    rm -f /run/found
    "$URAID" serve --run 'nbdcopy "$uri" /run/found' "$@" 2>/run/warnings || { cat /run/warnings; fail "$NAME: uraid serve $*"; }
    cmp /run/found /run/expected || fail "$NAME: another content by $*"
}
sums() { cat "$@" | sha256sum; }

# try NAME DISKS "MDADM OPTIONS" "SLOTS THAT ARE LOST"...
try() {
    NAME=$1
    local count=$2 options=$3 lost before
    shift 3
    say "$NAME"
    local all=($(disks "$count"))
    local disk
    for disk in "${all[@]}"; do blkdiscard --force --zeroout "$disk"; done
    mdadm --create /dev/md0 --run --assume-clean $options --raid-devices="$count" "${all[@]}" </dev/null >/run/made 2>&1 ||
        { cat /run/made; fail "$NAME: mdadm --create"; }
    fill $((RANDOM % 500))
    ! "$URAID" convert --from-md --rehearse "${all[@]}" >/run/said 2>&1 || fail "$NAME: disks in use were taken"
    stop
    before=$(sums "${all[@]}")
    "$URAID" convert --from-md --rehearse $(without "$count") >/run/said
    grep -q "agree in all of" /run/said || { cat /run/said; fail "$NAME: the rehearsal"; }
    rm -f /run/undo
    "$URAID" convert --from-md --undo-file /run/undo $(without "$count") >/run/said
    ! mdadm --examine "${all[0]}" >/run/said 2>&1 || { cat /run/said; fail "$NAME: md takes the disk for its own"; }
    "$URAID" convert --undo /run/undo
    blockdev --flushbufs "${all[@]}"
    [ "$(sums "${all[@]}")" = "$before" ] || fail "$NAME: the disks are not as they were"
    mdadm --assemble --quiet /dev/md0 "${all[@]}"
    cmp /dev/md0 /run/expected || fail "$NAME: md reads something else"
    stop
    rm -f /run/undo
    "$URAID" convert --from-md --undo-file /run/undo "${all[@]}" >/run/said
    reads "${all[@]}"
    for lost in "$@"; do reads --degraded --read-only $(without "$count" $lost); done
    dd if=/run/pool of=/run/expected bs=64K iflag=count_bytes count="$(stat -c %s /run/expected)" status=none
    "$URAID" serve --run 'nbdcopy --flush /run/expected "$uri"' "${all[@]}"
    for lost in "$@"; do reads --degraded --read-only $(without "$count" $lost); done
    ! "$URAID" convert --undo /run/undo 2>/run/said || fail "$NAME: a used array was given back"
    "$URAID" wipe --force "${all[@]}" >/run/said
}

modules raid0 raid1 raid10 raid456
head -c 60M /dev/urandom >/run/pool
# The host's file system is not cached, and the program starts often.
cp "$URAID" /run/program
URAID=/run/program

common="--chunk=64 --size=3M --bitmap=none"
try "RAID 0" 3 "--level=0 --chunk=64 --size=3M"
for version in 1.1 1.2; do
    try "RAID 1, $version" 3 "--level=1 --size=3M --bitmap=none --metadata=$version" 0 "1 2"
    try "RAID 10, $version" 4 "--level=10 $common --metadata=$version" 1 "0 3"
done
try "RAID 10 of 5" 5 "--level=10 $common --layout=n2" 2
for layout in left-asymmetric right-asymmetric left-symmetric right-symmetric; do
    try "RAID 5 $layout" 5 "--level=5 $common --layout=$layout" 0 3
    try "RAID 6 $layout" 6 "--level=6 $common --layout=$layout" 3 "0 1" "2 5"
done
try "RAID 5 with a bitmap" 4 "--level=5 --chunk=64 --size=3M --bitmap=internal" 2
