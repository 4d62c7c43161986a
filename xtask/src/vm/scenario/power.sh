# One life between two power cuts: arrays of all levels, and one with log devices, are brought back, every file that was
# synced before the cut is there, and files are written and synced until the next cut. Variables:
#   ROUND  1 makes the arrays
#   LOST   disks that are blank instead of what they were, as " 3 17 "
#   WAIT   yes: the next files wait until what was lost is rebuilt
# /run/vm/synced has a line "LEVEL FILE SKIP COUNT" for each file that must be there: COUNT blocks of 4 KiB of /run/vm/pool, after SKIP blocks.

all=($(disks 23))
declare -A members=([raid0]="0 1" [raid1]="2 3" [raid10]="4 5 6 7" [raid5]="8 9 10 11" [rm2]="12 13 14 15 16 17" [logged]="18 19 20")
# Log devices.
declare -A logs=([logged]="21 22")
declare -A shape=([raid0]="--level 0" [raid1]="--level 1" [raid10]="--level 10" [raid5]="--level 5 --chunk 16K" [rm2]="--level rm2 --rm2-m 3 --chunk 16K" [logged]="--level 5 --chunk 16K")
levels=(raid0 raid1 raid10 raid5 rm2 logged)

lost() { [[ $LOST == *" $1 "* ]]; }
lost_any() { local slot; for slot in ${members[$1]}; do ! lost "$slot" || return 0; done; return 1; }
paths() { for slot in ${members[$1]}; do echo "${all[$slot]}"; done; }
log_paths() { for slot in ${logs[$1]:-}; do echo "${all[$slot]}"; done; }
present() { for slot in ${members[$1]}; do lost "$slot" || echo "${all[$slot]}"; done; }

bring_back() {
    local level=$1 device=/dev/nbd$2 directory=/mnt/$1 name skip count
    SOCKET=/run/$level.sock CONTROL=/run/$level.ctl
    mkdir -p "$directory"
    if [ "$ROUND" = 1 ]; then
        "$URAID" create ${shape[$level]} $(log_paths "$level" | sed 's/^/--log-device /') $(paths "$level") >/dev/null
        serve $(paths "$level") $(log_paths "$level")
        attach "$device" -unix "$SOCKET" -C 2
        mkfs.ext4 -q "$device"
        mount "$device" "$directory"
        return
    fi
    serve --degraded $(present "$level") $(log_paths "$level")
    grep -i recover /run/serve.log || true
    attach "$device" -unix "$SOCKET" -C 2
    # The journal mends what was under way; then nothing is left to mend.
    mount "$device" "$directory"
    while read -r name skip count; do
        [ "$(stat -c %s "$directory/$name")" = $((count * 4096)) ] || fail "$level: $name was synced and is not whole"
        cmp <(dd if=/run/pool bs=4k skip="$skip" count="$count" status=none) "$directory/$name" || fail "$level: $name was synced and is not right"
    done < <(sed -n "s/^$level //p" /run/vm/synced)
    umount "$directory"
    fsck.ext4 -fn "$device" >/run/fsck || { cat /run/fsck; fail "$level: the file system is damaged"; }
    heal "$level" "$device"
    mount "$device" "$directory"
    rm -f "$directory"/f*
    for slot in ${members[$level]}; do
        ! lost "$slot" || control add "${all[$slot]}"
    done
}

# Of whole stripes that were being written the log has sums: without a member, nobody knows some of them any more. No
# file that was synced, and nothing that the file system needs, is there, so zeros do as well.
heal() {
    local level=$1 device=$2 lost range
    lost=$("$URAID" status --json --socket "$CONTROL" | tr -d ' \n' | grep -oE '"lost":\{[^}]*\}' || true)
    [ -n "$lost" ] || return 0
    lost_any "$level" || fail "$level: all members are there, and content is lost: $lost"
    say "$level: never flushed, and lost with its member: $lost"
    for range in $(echo "$lost" | grep -oE '\[[0-9]+,[0-9]+\]' | tr -d '[]'); do
        dd if=/dev/zero of="$device" bs=512 seek="${range%,*}" count=$((${range#*,} - ${range%,*})) oflag=direct conv=fsync status=none
    done
    healed+=" $level "
}

load() {
    local level=$1 file=0 skip count
    while :; do
        skip=$((RANDOM % 900)) count=$((RANDOM % 60 + 1))
        dd if=/run/pool of="/mnt/$level/f$((++file))" bs=4k skip=$skip count=$count conv=fsync status=none
        echo "$level f$file $skip $count" >/dev/ttyS1
    done
}

modules nbd ext4
cp /run/vm/pool /run/pool
number=0 healed=
for level in "${levels[@]}"; do
    bring_back "$level" $number
    number=$((number + 1))
done
for level in "${levels[@]}"; do
    CONTROL=/run/$level.ctl
    [ "$WAIT" != yes ] || control wait
    # Parity that was being written beside what was lost is not there either.
    if [[ $healed == *" $level "* ]] && [ "$WAIT" = yes ]; then
        "$URAID" scrub start --repair --socket "$CONTROL"
        control wait
    fi
    if [ "$ROUND" != 1 ] && [ "$WAIT" = yes ] && [ "$level" != raid0 ]; then scrub; fi
done
if [ "$ROUND" != last ]; then
    for level in "${levels[@]}"; do load "$level" & done
    say "ready for the cut"
    wait
fi
for level in "${levels[@]}"; do umount "/mnt/$level"; done
