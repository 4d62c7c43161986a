# Linux md makes arrays of every level, layout and version, whole, degraded and half rebuilt; `uraid serve --md` reads
# each from its members.


# Blank disks: parity of zeros is right.
blank() { local disk; for disk in "$@"; do blkdiscard --force --zeroout "$disk"; done; }
create() {
    mdadm --create /dev/md0 --run "$@" </dev/null >/run/made 2>&1 || { cat /run/made; fail "$NAME: mdadm --create $*"; }
}
# Reads an array through uraid: reads WORDS... ; the words are options and members.
reads() {
    rm -f /run/found
    "$URAID" serve --md --run 'nbdcopy "$uri" /run/found' "$@" 2>/run/warnings || { cat /run/warnings; fail "$NAME: uraid serve --md $*"; }
    cmp /run/found /run/expected || fail "$NAME: another content by $*"
}
# refuses WORDS MEMBER...: what is said has these words.
refuses() {
    local words=$1
    shift
    ! "$URAID" serve --md --run true "$@" 2>/run/warnings || fail "$NAME: was to be refused"
    grep -q -- "$words" /run/warnings || { cat /run/warnings; fail "$NAME: nothing is said of: $words"; }
}
# says WORDS MEMBER...
says() {
    local words=$1
    shift
    "$URAID" import "$@" >/run/said
    grep -q -- "$words" /run/said || { cat /run/said; fail "$NAME: nothing is said of: $words"; }
}

# try NAME DISKS "MDADM OPTIONS" "SLOTS THAT ARE LOST"...
try() {
    NAME=$1
    local count=$2 options=$3 lost uuid
    shift 3
    say "$NAME"
    local all=($(disks "$count"))
    blank "${all[@]}"
    create --assume-clean $options --raid-devices="$count" "${all[@]}"
    fill $((RANDOM % 500))
    uuid=$(mdadm --detail /dev/md0 | sed -n 's/ *UUID : //p' | cut -d' ' -f1)
    stop
    says "uuid $uuid" "${all[@]}"
    reads "${all[@]}"
    for lost in "$@"; do reads $(without "$count" $lost); done
    mdadm --zero-superblock "${all[@]}"
}

modules raid0 raid1 raid10 raid456
head -c 60M /dev/urandom >/run/pool
# The host's file system is not cached, and the program starts often.
cp "$URAID" /run/program
URAID=/run/program

# Chunks of 64 KiB, members of 3 MiB.
common="--chunk=64 --size=3M --bitmap=none"
if modprobe linear 2>/dev/null || modprobe md-linear 2>/dev/null; then
    try "linear" 3 "--level=linear"
    try "linear, 0.90" 2 "--level=linear --metadata=0.90"
else
    say "this kernel has no linear arrays"
fi
try "RAID 0" 3 "--level=0 --chunk=64 --metadata=1.1"
try "RAID 0, chunk no power of two" 3 "--level=0 --chunk=12"
for version in 0.90 1.0 1.1 1.2; do
    try "RAID 1, $version" 3 "--level=1 --size=3M --bitmap=none --metadata=$version" 0 "1 2"
    try "RAID 4, $version" 4 "--level=4 $common --metadata=$version" 0 3
    try "RAID 5, $version" 4 "--level=5 $common --metadata=$version" 0 3
    try "RAID 6, $version" 5 "--level=6 $common --metadata=$version" 2 "0 3"
    try "RAID 10, $version" 5 "--level=10 $common --metadata=$version" 1 "0 3"
done
for layout in left-asymmetric right-asymmetric left-symmetric right-symmetric parity-first parity-last; do
    try "RAID 5 $layout" 5 "--level=5 $common --layout=$layout" 0 2 4
done
for layout in left-asymmetric right-asymmetric left-symmetric right-symmetric parity-first parity-last ddf-zero-restart \
    ddf-N-restart ddf-N-continue left-asymmetric-6 right-asymmetric-6 left-symmetric-6 right-symmetric-6 parity-first-6; do
    try "RAID 6 $layout" 6 "--level=6 $common --layout=$layout" 3 "0 1" "2 5"
done
for layout in n2 n3 f2 f3 o2 o3; do
    try "RAID 10 $layout of 5" 5 "--level=10 $common --layout=$layout" 0 4
    try "RAID 10 $layout of 4" 4 "--level=10 $common --layout=$layout" 2
done

# Layouts that mdadm does not offer, and the kernel has: as if somebody had made them so.
relayout() {
    local layout=$1 disk
    shift
    for disk in "$@"; do
        perl -e '
            my ($disk, $layout) = @ARGV;
            open my $file, "+<:raw", $disk or die; seek $file, 4096, 0; read $file, my $block, 4096;
            substr($block, 76, 4) = pack "V", $layout;
            substr($block, 216, 4) = pack "V", 0;
            my ($devices, $sum) = (unpack("V", substr $block, 220, 4), 0);
            $sum += $_ for unpack "V*", substr $block, 0, 256 + int(2 * $devices / 4) * 4;
            $sum += unpack "v", substr $block, 256 + 2 * $devices - 2, 2 if $devices % 2;
            substr($block, 216, 4) = pack "V", (($sum & 0xffffffff) + ($sum >> 32)) & 0xffffffff;
            seek $file, 4096, 0; print $file $block; close $file or die;' "$disk" "$layout"
    done
    blockdev --flushbufs "$@"
}
odd() {
    NAME="RAID 10 $1 of $2"
    local all=($(disks "$2")) layout=$1 lost
    shift 2
    say "$NAME"
    blank "${all[@]}"
    create --assume-clean --level=10 $common --layout=n2 --raid-devices=${#all[@]} "${all[@]}"
    stop
    relayout $((layout)) "${all[@]}"
    mdadm --assemble --quiet /dev/md0 "${all[@]}"
    fill 7
    stop
    reads "${all[@]}"
    for lost in "$@"; do reads $(without ${#all[@]} $lost); done
    mdadm --zero-superblock "${all[@]}"
}
odd 0x00202 4 "0 1" "2 3" "0 1 2"
odd 0x00202 5 "1" "0 2"
odd 0x10202 4 "0 1" "2 3"
odd 0x20201 5 0 3 # far=2 in sets as of Linux 3.9
odd 0x40201 5 1 4 # far=2 in sets
odd 0x40201 6 "0 2 4"
odd 0x50201 6 "1 3 5"
odd 0x40202 6 "0 1" "2 5"

# Members of different sizes are partitions; uraid gets whole disks. The last one has an MBR with logical partitions.
all=($(disks 4))
# gpt DISK MIB: a GPT with a partition of so many MiB.
gpt() {
    perl -e '
        my ($disk, $mib) = @ARGV;
        sub crc {
            my $crc = 0xffffffff;
            for my $byte (unpack "C*", shift) {
                $crc ^= $byte;
                $crc = $crc >> 1 ^ ($crc & 1 ? 0xedb88320 : 0) for 1 .. 8;
            }
            return $crc ^ 0xffffffff;
        }
        open my $file, "+<:raw", $disk or die; seek $file, 0, 2; my $last = tell($file) / 512 - 1;
        my $entry = pack "H32 a16 Q< Q< Q< x72", "0fc63daf8483477293d8e2d2f5e94d01", "0123456789abcdef", 2048, 2047 + $mib * 2048, 0;
        my $entries = $entry . "\0" x (127 * 128);
        for ([1, $last, 2], [$last, 1, $last - 32]) {
            my ($own, $other, $table) = @$_;
            my $header = pack "a8 V V x4 x4 Q< Q< Q< Q< a16 Q< V V V", "EFI PART", 0x10000, 92, $own, $other, 34, $last - 33,
                "fedcba9876543210", $table, 128, 128, crc($entries);
            substr($header, 16, 4) = pack "V", crc($header);
            seek $file, $own * 512, 0; print $file $header;
            seek $file, $table * 512, 0; print $file $entries;
        }
        seek $file, 446, 0; print $file pack("C x3 C x3 V V x48 v", 0, 0xee, 1, $last, 0xaa55); close $file or die;' "$1" "$2"
}
# mbr DISK MIB: an MBR with a logical partition of so many MiB.
mbr() {
    perl -e '
        my ($disk, $mib) = @ARGV;
        open my $file, "+<:raw", $disk or die;
        seek $file, 446, 0; print $file pack("x4 C x3 V V x4 C x3 V V x32 v", 0x83, 2048, 2048, 5, 4096, 10 * 2048, 0xaa55);
        seek $file, 4096 * 512 + 446, 0; print $file pack("x4 C x3 V V x48 v", 0xfd, 2048, $mib * 2048, 0xaa55); close $file or die;' "$1" "$2"
}
partition() {
    gpt "${all[0]}" 5
    gpt "${all[1]}" 7
    gpt "${all[2]}" 7
    mbr "${all[3]}" 8
    local disk
    for disk in "${all[@]}"; do blockdev --rereadpt "$disk"; done
}
blank "${all[@]}"
partition
parts=(/dev/vda1 /dev/vdb1 /dev/vdc1 /dev/vdd5)
for part in "${parts[@]}"; do within 20 test -b "$part"; done
for layout in original alternate; do
    NAME="RAID 0 of unequal members, $layout"
    say "$NAME"
    create --assume-clean --level=0 --chunk=64 --layout=$layout --raid-devices=4 "${parts[@]}"
    fill 99
    stop
    says "RAID 0 of 4 members, $layout" "${all[@]}"
    reads "${all[@]}"
    reads "${parts[@]}"
    mdadm --zero-superblock "${parts[@]}"
done
NAME="RAID 5 of partitions, 0.90"
say "$NAME"
blank "${parts[@]}"
create --assume-clean --level=5 $common --metadata=0.90 --raid-devices=4 "${parts[@]}"
fill 9
stop
reads "${all[@]}"
reads "${all[@]:1}"
mdadm --zero-superblock "${parts[@]}"
blank "${all[@]}"
for disk in "${all[@]}"; do blockdev --rereadpt "$disk"; done

# A member that the array goes on without.
NAME="a stale member"
say "$NAME"
blank "${all[@]}"
create --assume-clean --level=5 $common --raid-devices=4 "${all[@]}"
fill 1
mdadm --fail --quiet /dev/md0 /dev/vdb
fill 300
stop
says "/dev/vdb: .*events behind: left out\|/dev/vdb: marked as failed by the others: left out" "${all[@]}"
reads "${all[@]}"
refuses "too many members are missing" /dev/vda /dev/vdb /dev/vdd
mdadm --assemble --quiet --run /dev/md0 /dev/vda /dev/vdc /dev/vdd

NAME="a member that is being rebuilt"
say "$NAME"
! grep -q read-auto /sys/block/md0/md/array_state || mdadm --readwrite /dev/md0
mdadm --zero-superblock /dev/vdb
echo 4096 >/sys/block/md0/md/sync_max
mdadm --add --quiet /dev/md0 /dev/vdb
within 30 grep -q '^4096 ' /sys/block/md0/md/sync_completed
stop
says "/dev/vdb: being rebuilt, up to sector 4096" "${all[@]}"
reads "${all[@]}"

NAME="bad blocks"
say "$NAME"
blank "${all[@]}"
create --assume-clean --level=5 $common --raid-devices=4 "${all[@]}"
fill 77
offset=$(cat /sys/block/md0/md/dev-vdc/offset)
echo "$((offset + 1000)) 16" >/sys/block/md0/md/dev-vdc/bad_blocks
# The list gets on record with the next change of the array's state.
dd if=/run/expected of=/dev/md0 bs=4K count=1 oflag=direct status=none
stop
dd if=/run/pool of=/dev/vdc bs=512 seek=$((offset + 1000)) count=16 oflag=direct status=none
says "/dev/vdc: active, 1 range of bad blocks" "${all[@]}"
reads "${all[@]}"
# md sees it that way, too.
mdadm --assemble --quiet --readonly /dev/md0 "${all[@]}"
cmp /dev/md0 /run/expected || fail "md itself reads something else"
stop
! "$URAID" serve --md --run 'nbdcopy "$uri" /run/found' /dev/vdb /dev/vdc /dev/vdd 2>/run/warnings ||
    fail "content that nobody has was made up"

NAME="the power fails"
say "$NAME"
blank "${all[@]}"
create --assume-clean --level=5 $common --raid-devices=4 "${all[@]}"
echo 600 >/sys/block/md0/md/safe_mode_delay
fill 11
for slot in 0 1 2 3; do dd if="${all[slot]}" of=/run/image$slot bs=1M iflag=direct status=none; done
stop
images=(/run/image0 /run/image1 /run/image2 /run/image3)
says "not stopped cleanly" "${images[@]}"
reads "${images[@]}"
refuses "--force" "${images[@]:1}"
reads --force "${images[@]:1}"

NAME="bitmap"
say "$NAME"
blank "${all[@]}"
create --assume-clean --level=5 --chunk=64 --size=3M --bitmap=internal --raid-devices=4 "${all[@]}"
fill 12
stop
says "write-intent bitmap" "${all[@]}"
reads "${all[@]:1}"

NAME="log of partial parity"
say "$NAME"
blank "${all[@]}"
create --assume-clean --level=5 --chunk=64 --size=3M --consistency-policy=ppl --raid-devices=4 "${all[@]}"
fill 13
stop
says "PPL" "${all[@]}"
reads "${all[@]:1}"

NAME="write journal"
say "$NAME"
blank $(disks 6)
create --level=5 --chunk=64 --size=3M --write-journal=/dev/vde --raid-devices=4 "${all[@]}"
within 60 grep -q idle /sys/block/md0/md/sync_action
stop
says "/dev/vde: a write journal: left out" "${all[@]}" /dev/vde
refuses "write journal" "${all[@]}" /dev/vde
