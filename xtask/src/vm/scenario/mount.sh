# Every file system over the kernel's client: made, mounted, worked in, unmounted, and clean for its own checker.

# A program of sixteen files: unpacked, built by two jobs, run.
make_sources() {
    mkdir -p /run/sources/program
    local unit
    {
        echo 'int total(void);'
        for unit in $(seq 16); do echo "int part$unit(int);"; done
        echo 'int total(void) { int sum = 0;'
        for unit in $(seq 16); do echo "sum += part$unit(1);"; done
        echo 'return sum; }'
    } >/run/sources/program/total.c
    for unit in $(seq 16); do echo "int part$unit(int n) { return n * $unit; }" >"/run/sources/program/part$unit.c"; done
    echo '#include <stdio.h>
    int total(void); int main(void) { printf("%d\n", total()); return 0; }' >/run/sources/program/main.c
    printf 'program: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\t$(CC) -o $@ $^\n' >/run/sources/program/Makefile
    tar -C /run/sources -cf /run/program.tar program
}

work_in() {
    local directory=$1
    tar -C "$directory" -xf /run/program.tar
    make --quiet -j2 -C "$directory/program"
    [ "$("$directory/program/program")" = 136 ] || fail "the program built in $directory is wrong"
    dd if=/dev/urandom of="$directory/noise" bs=1M count=24 conv=fsync status=none
    (cd "$directory" && find . -type f -exec sha256sum {} + | sort -k2) >/run/sums
}

# try FILESYSTEM MAKE CHECK CONNECTION...
try() {
    local filesystem=$1 make=$2 check=$3
    shift 3
    say "$filesystem over $*"
    attach /dev/nbd0 "$@"
    $make /dev/nbd0
    mount -t "$filesystem" /dev/nbd0 /mnt
    work_in /mnt
    umount /mnt
    detach /dev/nbd0

    say "$filesystem once more"
    attach /dev/nbd0 "$@"
    $check /dev/nbd0
    mount -t "$filesystem" /dev/nbd0 /mnt
    (cd /mnt && sha256sum --quiet -c /run/sums)
    umount /mnt
    detach /dev/nbd0
}

modules nbd ext4 xfs btrfs
make_sources
"$URAID" create --level 5 $(disks 4)
serve $(disks 4)
try ext4 'mkfs.ext4 -q' 'fsck.ext4 -fn' -unix "$SOCKET" -C 4
unserve
serve_at --listen 127.0.0.1:10809 $(disks 4)
try xfs 'mkfs.xfs -qf' 'xfs_repair -n' 127.0.0.1 10809 -C 4
unserve
serve $(disks 4)
try btrfs 'mkfs.btrfs -qf' 'btrfs check -q' -unix "$SOCKET"
scrub
unserve
