# What every scenario's script begins with, after its variables:
#   URAID    the program that is tried
#   MODULES  the directory with the kernel's modules
# Members are /dev/vda, /dev/vdb, ...; files that shall reach the host go to /run/vm.
set -eEuo pipefail
trap 'fail "line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND"' ERR
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
SOCKET=/run/uraid.sock
CONTROL=/run/uraid.ctl

say() { echo "== $(cut -d' ' -f1 /proc/uptime) s: $*"; }

# The scenario's end. The host believes nothing else.
pass() { end pass; }
fail() {
    trap - ERR
    say "FAILED: $*"
    [ ! -f /run/serve.log ] || tail -n 50 /run/serve.log
    dmesg | tail -n 30
    end "fail: $*"
}
end() {
    echo "$1" >/run/vm/verdict
    sync -f /run/vm/verdict
    echo o >/proc/sysrq-trigger
    read -r -t 60 </dev/ttyS0
}

# Runs a command until it succeeds, for at most so many seconds.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || fail "not within the time allowed: $*"
        sleep 0.1
    done
}

modules() { modprobe --all "$@"; }

# The first so many disks.
disks() { local letters=(a b c d e f g h i j k l m n o p q r s t u v w x y z) slot; for ((slot = 0; slot < $1; slot++)); do echo "/dev/vd${letters[slot]}"; done; }

# Serves members in the background and waits until it is ready: serve MEMBER... [OPTION...]
serve() { serve_at --socket "$SOCKET" "$@"; }
serve_at() {
    : >/run/serve.log
    "$URAID" serve --export scene --control "$CONTROL" "$@" >>/run/serve.log 2>&1 &
    SERVER=$!
    within 60 ready
}
ready() {
    kill -0 "$SERVER" || fail "the server ended"
    grep -q '^nbd' /run/serve.log
}
# Asks the server something: control COMMAND [OPTION...]
control() {
    local command=$1
    shift
    "$URAID" "$command" --socket "$CONTROL" "$@"
}
# Stops the server, which must end well.
unserve() {
    control stop
    wait "$SERVER"
}
# Compares what the members hold; they must agree.
scrub() {
    "$URAID" scrub start --socket "$CONTROL"
    control wait
    "$URAID" scrub status --socket "$CONTROL" | tee /run/scrub
    grep -q 'nothing wrong' /run/scrub || fail "the scrub found something"
}

# Writes files to /mnt, each durably, until there is /run/enough; a write that fails is the scenario's end. Their sums are in /run/sums: more COUNT
# waits for so many more, and all_there compares.
writer() {
    local file=0
    while [ ! -e /run/enough ]; do
        dd if=/dev/urandom of=/mnt/file$file bs=64K count=4 conv=fsync status=none
        (cd /mnt && sha256sum file$file) >>/run/sums
        file=$((file + 1))
    done
}
written() { [ "$(wc -l </run/sums)" -ge "$1" ]; }
more() { within 60 written $(($(wc -l </run/sums) + $1)); }
all_there() { (cd /mnt && sha256sum --quiet -c /run/sums); }

# describe DISK...: sets OFFSET and SIZE of their data areas, in bytes.
describe() {
    local found
    found=$("$URAID" examine --json "$@" | grep -oE '"data_(offset|size)": *[0-9]+' | sort -u)
    OFFSET=$(echo "$found" | sed -n 's/.*offset": *//p')
    SIZE=$(echo "$found" | sed -n 's/.*size": *//p')
    [[ $OFFSET =~ ^[0-9]+$ && $SIZE =~ ^[0-9]+$ ]] || fail "members differ: $found"
}
# Makes /dev/md0 of the data areas of an array that is not served: give_to_md "MDADM OPTIONS" DISK...
give_to_md() {
    local theirs=$1 disk
    shift
    describe "$@"
    for disk in "$@"; do dd if="$disk" of="/run/head${disk##*/}" bs=64K count=$((OFFSET / 65536)) status=none; done
    mdadm --create /dev/md0 --quiet --run --assume-clean --metadata=1.2 --data-offset=$((OFFSET >> 10))K --size=$((SIZE >> 10))K \
        --raid-devices=$# $theirs "$@"
}
# Ends that. What uraid knows of the array lies before the data, where md had its own notes.
take_from_md() {
    local disk
    mdadm --stop --quiet /dev/md0
    within 20 test ! -e /sys/block/md0/md/array_state -o ! -b /dev/md0
    for disk in "$@"; do dd if="/run/head${disk##*/}" of="$disk" bs=64K conv=notrunc,fsync status=none; done
}

# Attaches the export to a device: attach DEVICE OPTION...
attach() {
    local device=$1
    shift
    nbd-client "$@" -N scene -b 512 "$device"
    within 20 has_size "$device"
}
has_size() { [ "$(blockdev --getsize64 "$1")" -gt 0 ]; }
has_no_size() { [ "$(cat "/sys/block/${1#/dev/}/size")" -eq 0 ]; }
detach() {
    nbd-client -d "$1"
    within 20 has_no_size "$1"
}

# The kernel's own requests for modules, too, find them as if its package were installed.
release=$(uname -r)
mkdir -p /lib/modules
[ -e "/lib/modules/$release" ] || ln -s "$MODULES/$release" "/lib/modules/$release"
mkdir -p /run/lock
ln -s /proc/self/fd /dev/fd
busybox ip link set lo up

# Arrays of Linux md.
# What is on /dev/md0 gets into it, and into /run/expected: content from the pool, from block $1 on.
fill() {
    local bytes
    bytes=$(blockdev --getsize64 /dev/md0)
    dd if=/run/pool of=/run/expected bs=64K iflag=skip_bytes,count_bytes skip=$(($1 * 4096)) count="$bytes" status=none
    dd if=/run/expected of=/dev/md0 bs=1M oflag=direct status=none
    blockdev --flushbufs /dev/md0
}
# Stops it, and has what it wrote on its disks.
stop() {
    within 30 mdadm --stop --quiet /dev/md0
    within 20 test ! -e /sys/block/md0/md/array_state -o ! -b /dev/md0
    blockdev --flushbufs $(disks 6)
}
# All disks but these: without COUNT SLOT...
without() {
    local count=$1 slot left=()
    shift
    local all=($(disks "$count"))
    for slot in "${!all[@]}"; do [[ " $* " == *" $slot "* ]] || left+=("${all[slot]}"); done
    # In another order than that of slots.
    printf '%s\n' "${left[@]}" | tac
}
