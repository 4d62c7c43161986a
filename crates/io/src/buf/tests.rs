use super::*;

const KIB: u64 = 1024;

fn pool(budget_kib: u64) -> Pool {
    Pool::new(Bytes(budget_kib * KIB))
}

#[test]
fn every_class_covers_its_lengths_and_wastes_at_most_a_fifth() {
    let mut before = Class { index: 0, bytes: PAGE_BYTES };
    for pages in 1..=5000_usize {
        let class = Class::of(pages * PAGE_BYTES).unwrap();
        assert!(class.bytes >= pages * PAGE_BYTES);
        assert!(class.bytes - pages * PAGE_BYTES <= class.bytes / 5, "{pages} pages");
        assert!(class == before || (class.index == before.index + 1 && class.bytes > before.bytes), "{pages} pages");
        assert_eq!(Class::of(class.bytes), Some(class), "a class is its own class");
        before = class;
    }
    assert_eq!(Class::of(0).unwrap().bytes, PAGE_BYTES);
    assert_eq!(Class::of(usize::MAX), None);
    assert_eq!(Class::of(isize::MAX as usize), None);
}

#[test]
fn buffers_are_page_aligned_and_first_seen_as_zeros() {
    let pool = pool(1024);
    for len in [1, 511, 4096, 4097, 70_000] {
        let buf = pool.try_alloc(Bytes(len)).unwrap();
        assert_eq!(buf.as_ref().as_ptr() as usize % PAGE_BYTES, 0);
        assert_eq!(buf.as_ref(), vec![0; usize::try_from(len).unwrap()]);
    }
}

#[test]
fn budget_is_refused_beyond_and_given_again_after_a_drop() {
    let pool = pool(12);
    let first = pool.try_alloc(Bytes(8 * KIB)).unwrap();
    assert_eq!(pool.in_use(), Bytes(8 * KIB));
    assert!(pool.try_alloc(Bytes(5 * KIB)).is_none());
    let second = pool.try_alloc(Bytes(1)).unwrap();
    assert!(pool.try_alloc(Bytes(1)).is_none());
    drop(first);
    assert_eq!(pool.in_use(), Bytes(4 * KIB));
    assert!(pool.try_alloc(Bytes(5 * KIB)).is_some());
    drop(second);
    assert_eq!(pool.in_use(), Bytes(0));
    assert!(pool.fits(Bytes(12 * KIB)) && !pool.fits(Bytes(12 * KIB + 1)) && !pool.fits(Bytes(u64::MAX)));
    assert!(pool.try_alloc(Bytes(u64::MAX)).is_none());
}

/// More than the address space of a process, and less than what a pointer can say.
#[test]
fn memory_that_the_system_does_not_have_is_refused() {
    let beyond = Bytes(1 << 50);
    assert!(Buf::try_zeroed(beyond).is_none());
    assert!(Buf::try_zeroed(Bytes(u64::MAX)).is_none());
    let pool = Pool::new(Bytes(1 << 51));
    assert!(pool.fits(beyond) && pool.try_alloc(beyond).is_none());
    assert_eq!(pool.in_use(), Bytes(0), "what was refused does not count");
    assert_eq!(pool.try_alloc(Bytes(KIB)).unwrap().as_ref(), [0; 1024]);
    assert_eq!(Buf::try_zeroed(Bytes(70_000)).unwrap().as_ref(), [0; 70_000]);
}

#[test]
fn freed_memory_is_used_again_and_kept_memory_stays_within_the_budget() {
    let pool = pool(64);
    let mut buf = pool.try_alloc(Bytes(16 * KIB)).unwrap();
    buf.as_mut().fill(7);
    let address = buf.as_ref().as_ptr() as usize;
    assert_eq!(pool.kept(), Bytes(48 * KIB), "neighbours were mapped with it, as far as the budget goes");
    drop(buf);
    assert_eq!(pool.kept(), Bytes(64 * KIB));
    let buf = pool.try_alloc(Bytes(13 * KIB)).unwrap();
    assert_eq!(buf.as_ref().as_ptr() as usize, address);
    assert_eq!(pool.kept(), Bytes(48 * KIB));
    drop(buf);
    let all = pool.try_alloc(Bytes(64 * KIB)).unwrap();
    assert_eq!((pool.in_use(), pool.kept()), (Bytes(64 * KIB), Bytes(0)), "other classes made room");
    drop(all);
}

#[test]
fn memory_returns_when_buffer_and_leases_are_gone_in_any_order() {
    let pool = pool(64);
    let buf = pool.try_alloc(Bytes(4 * KIB)).unwrap();
    let lease = buf.lease_read(0..512);
    drop(buf);
    assert_eq!(pool.in_use(), Bytes(4 * KIB));
    drop(lease);
    assert_eq!(pool.in_use(), Bytes(0));

    let buf = pool.try_alloc(Bytes(4 * KIB)).unwrap();
    drop(buf.lease_read(0..512));
    assert_eq!(pool.in_use(), Bytes(4 * KIB));
    drop(buf);
    assert_eq!(pool.in_use(), Bytes(0));
}

#[test]
fn leases_outlive_the_pool() {
    let pool = pool(64);
    let mut buf = pool.try_alloc(Bytes(4 * KIB)).unwrap();
    let mut lease = buf.lease_write(0..4);
    drop(pool);
    lease.copy_from(b"abcd");
    drop(lease);
    assert_eq!(buf.bytes(0..4), b"abcd");
}

#[test]
fn leases_carry_bytes_both_ways() {
    let mut buf = Buf::zeroed(Bytes(8 * KIB));
    buf.bytes_mut(0..4).copy_from_slice(b"abcd");
    let mut seen = [0; 2];
    buf.lease_read(1..3).copy_to(&mut seen);
    assert_eq!(&seen, b"bc");
    buf.lease_write(4..6).copy_from(b"xy");
    assert_eq!(buf.bytes(0..8), b"abcdxy\0\0");
}

#[test]
fn bytes_beside_leases_stay_within_reach() {
    let mut buf = Buf::zeroed(Bytes(8 * KIB));
    let filling = buf.lease_write(0..4096);
    let sending = buf.lease_read(4096..5000);
    assert_eq!(buf.bytes(4096..5000).len(), 904, "a lease to read leaves the bytes readable");
    buf.bytes_mut(5000..8192).fill(1);
    {
        let (target, sources) = buf.disjoint(5000..5100, [4096..4196, 4196..4296]);
        assert_eq!((target.len(), sources.len()), (100, 2));
    }
    drop((filling, sending));
    buf.as_mut().fill(2);
}

#[test]
#[should_panic(expected = "filling the bytes that are read")]
fn bytes_being_filled_are_not_read() {
    let mut buf = Buf::zeroed(Bytes(4 * KIB));
    let _lease = buf.lease_write(512..1024);
    let _ = buf.bytes(1023..1025);
}

#[test]
#[should_panic(expected = "using the bytes that are changed")]
fn bytes_being_sent_are_not_changed() {
    let mut buf = Buf::zeroed(Bytes(4 * KIB));
    let _lease = buf.lease_read(512..1024);
    let _ = buf.bytes_mut(0..513);
}

#[test]
#[should_panic(expected = "does not overlap the target")]
fn a_target_is_not_its_own_operand() {
    let _ = Buf::zeroed(Bytes(4 * KIB)).disjoint(0..512, [512..1024, 511..513]);
}

#[test]
#[should_panic(expected = "is inside")]
fn a_class_is_not_readable_beyond_the_length() {
    let _ = Buf::zeroed(Bytes(100)).bytes(0..101);
}

#[test]
#[should_panic(expected = "taken for writing")]
fn a_lease_to_read_is_not_filled() {
    Buf::zeroed(Bytes(4 * KIB)).lease_read(0..1).copy_from(b"x");
}

#[test]
fn a_buffer_that_was_given_up_counts_against_nothing_and_does_not_come_back() {
    let pool = Pool::new(Bytes(64 << 10));
    let mut buf = pool.try_alloc(Bytes(64 << 10)).expect("all of it");
    let mut lease = buf.lease_write(0..512);
    assert!(buf.is_lent() && buf.is_being_filled() && pool.try_alloc(Bytes(4096)).is_none());
    buf.disown();
    assert_eq!((pool.in_use(), pool.kept()), (Bytes(0), Bytes(0)));
    let other = pool.try_alloc(Bytes(64 << 10)).expect("all of it, again");
    // What comes late comes into memory that nobody else has.
    lease.copy_from(&[1; 512]);
    drop(lease);
    assert_eq!(pool.in_use(), Bytes(64 << 10));
    assert!(other.as_ref().iter().all(|&byte| byte == 0));
    drop(other);
    assert_eq!((pool.in_use(), pool.kept()), (Bytes(0), Bytes(64 << 10)));
}

#[test]
fn a_parcel_takes_memory_from_one_threads_pool_to_anothers() {
    let here = Pool::new(Bytes(64 << 10));
    let mut buf = here.try_alloc(Bytes(5000)).expect("there is room");
    buf.as_mut().fill(7);
    let parcel = buf.into_parcel();
    assert_eq!((here.in_use(), parcel.len()), (Bytes(0), 5000));
    let back = std::thread::spawn(move || {
        let there = Pool::new(Bytes(8 * KIB));
        let buf = there.adopt(parcel);
        assert!(buf.as_ref().iter().all(|&byte| byte == 7) && there.owns(&buf));
        assert_eq!(there.in_use(), Bytes(8 * KIB));
        drop(buf);
        assert_eq!((there.in_use(), there.kept()), (Bytes(0), Bytes(8 * KIB)));
        assert!(there.spare(Bytes(4 * KIB)).is_none(), "it has another size");
        let spare = there.spare(Bytes(6000)).expect("it was kept");
        assert_eq!(there.kept(), Bytes(0));
        spare
    });
    let buf = here.adopt(back.join().unwrap());
    assert_eq!((here.in_use(), buf.len()), (Bytes(8 * KIB), 6000));
}

#[test]
fn a_parcel_for_which_a_pool_has_no_room_is_freed_at_its_end() {
    let pool = Pool::new(Bytes(8 * KIB));
    let own = pool.try_alloc(Bytes(4 * KIB)).expect("there is room");
    assert!(pool.has_room(Bytes(4 * KIB)) && !pool.has_room(Bytes(8 * KIB)));
    let foreign = pool.adopt(Buf::zeroed(Bytes(8 * KIB)).into_parcel());
    assert!(!pool.owns(&foreign));
    drop(foreign);
    assert_eq!((pool.in_use(), pool.kept()), (Bytes(4 * KIB), Bytes(0)));
    drop(own);
    // What is kept makes room.
    let foreign = pool.adopt(Buf::zeroed(Bytes(8 * KIB)).into_parcel());
    assert!(pool.owns(&foreign));
    assert_eq!((pool.in_use(), pool.kept()), (Bytes(8 * KIB), Bytes(0)));
}

#[test]
#[should_panic(expected = "one share")]
fn memory_that_a_device_may_use_is_not_sent_away() {
    let buf = Buf::zeroed(Bytes(4 * KIB));
    let _lease = buf.lease_read(0..512);
    let _ = buf.into_parcel();
}
