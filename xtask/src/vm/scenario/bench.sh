# RAID 5 of the same disks through the same client: md with a bitmap and with a partial parity log (which closes the
# write hole), exported by nbdkit, and uraid, as it comes and with a connection thread. Taken in turn; /run/vm/results
# gets a line "SERVER WORKLOAD BYTES_PER_SECOND" for each run. Variable: ROUNDS.

all=($(disks 4))
span=64m

# measure SERVER: every workload once. The time that it takes to make what was written durable counts.
measure() {
    local server=$1 name options
    while read -r name options; do
        fio --name="$name" --filename=/dev/nbd0 --direct=1 --ioengine=libaio --size=$span --end_fsync=1 --randrepeat=1 --allow_file_create=0 \
            --output-format=terse --terse-version=3 $options >/run/fio.log || { cat /run/fio.log; fail "fio on $server"; }
        # Fields 7 and 48: KiB a second read and written.
        awk -F';' -v server="$server" -v name="$name" '{ print server, name, ($7 + $48) * 1024 }' /run/fio.log | tee -a /run/vm/results
    done <<'END'
write-1m --rw=write --bs=1m --iodepth=4
read-1m --rw=read --bs=1m --iodepth=4
randwrite-4k --rw=randwrite --bs=4k --iodepth=16 --io_size=16m
randread-4k --rw=randread --bs=4k --iodepth=16 --io_size=16m
END
}

# with_uraid NAME [OPTION...]: as NAME, served with these options.
with_uraid() {
    local name=$1
    shift
    "$URAID" create --force --level 5 --chunk 64K "${all[@]}" >/dev/null
    serve "$@" "${all[@]}"
    # md's parity is right before it is measured, too.
    control wait >/dev/null
    attach /dev/nbd0 -unix "$SOCKET" -C 2
    measure "$name"
    detach /dev/nbd0
    unserve
}

# with_md NAME OPTION: as NAME, with this option for what an unclean stop leaves.
with_md() {
    local name=$1
    mdadm --create /dev/md0 --quiet --run --assume-clean "$2" --level=5 --chunk=64 --raid-devices=4 "${all[@]}" </dev/null
    # Parity of what assume-clean took over has to be right before it is updated.
    echo repair >/sys/block/md0/md/sync_action
    within 120 grep -q idle /sys/block/md0/md/sync_action
    nbdkit --foreground --exit-with-parent --unix /run/nbdkit.sock --export scene file /dev/md0 2>/run/nbdkit.log &
    local server=$!
    within 20 test -S /run/nbdkit.sock
    attach /dev/nbd0 -unix /run/nbdkit.sock -C 2
    measure "$name"
    detach /dev/nbd0
    kill $server
    wait $server || true
    rm -f /run/nbdkit.sock
    mdadm --stop --quiet /dev/md0
    mdadm --zero-superblock "${all[@]}"
}

modules nbd raid456
: >/run/vm/results
for round in $(seq "$ROUNDS"); do
    say "round $round"
    with_md md --bitmap=internal
    with_md md-ppl --consistency-policy=ppl
    with_uraid uraid
    with_uraid uraid-thread --connection-threads 1
done
