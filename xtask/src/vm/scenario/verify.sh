# Direct I/O that checks itself, through the kernel, on an array that survives two failures: whole, then without two members.

verify() {
    fio --name="$1" --filename=/dev/nbd0 --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 --allow_file_create=0 \
        --randrepeat=1 --norandommap=0 "${@:2}" >/run/fio.log || { cat /run/fio.log; fail "fio found something wrong in $1"; }
}
small=(--rw=randwrite --bs=4k --iodepth=16 --size=24m --offset=0)
mixed=(--rw=randwrite --bsrange=512-128k --bs_unaligned=0 --iodepth=8 --size=48m --offset=64m)
large=(--rw=write --bs=1m --iodepth=4 --size=96m --offset=128m)

modules nbd
"$URAID" create --level rm2 --rm2-m 3 $(disks 7)
serve $(disks 7)
attach /dev/nbd0 -unix "$SOCKET" -C 4
for load in small mixed large; do
    say "$load writes"
    declare -n options=$load
    verify "$load" "${options[@]}"
done
detach /dev/nbd0
unserve

say "without two members"
serve --degraded $(disks 7 | sed '2d;5d')
attach /dev/nbd0 -unix "$SOCKET"
for load in small mixed large; do
    declare -n options=$load
    verify "$load" "${options[@]}" --verify_only
done
verify small "${small[@]}"
detach /dev/nbd0
unserve
