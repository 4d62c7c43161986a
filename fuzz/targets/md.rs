//! Any bytes in superblocks and partition tables of Linux md's members: they are refused, or make an array of which
//! everything is read, or refused, without a panic and twice alike.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::Input;
use uraid_fuzz::md::Recipe;
use uraid_layout::Bytes;
use uraid_md::geometry::ZoneOrder;
use uraid_md::{Assembly, Options, Source, assemble, partitions, scan};

/// The most that is read of an array.
const READ_MAX: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let recipe = Recipe::new(&mut input);
    let options = Options {
        trust_parity: input.byte() % 2 == 0,
        zone_order: input.pick(&[None, Some(ZoneOrder::Original), Some(ZoneOrder::Alternate)]),
    };
    let mut devices: Vec<Vec<u8>> = (0..recipe.members).map(|slot| recipe.member(slot)).collect();
    let at = recipe.place();
    let alike = input.byte() % 2 == 0;
    let changes = input.0;
    for device in &mut devices {
        // The same changes to all of them make another array.
        let mut own = Input(changes);
        let of_device = if alike { &mut own } else { &mut input };
        of_device.change(&mut device[at..at + 512]);
        if of_device.byte() % 8 != 7 {
            recipe.seal(device);
        }
        of_device.change(&mut device[446..514]);
        let kept = device.len() - usize::from(of_device.byte() / 200) * 4096;
        device.truncate(kept);
    }
    let left = usize::from(input.byte()) % (devices.len() + 1);
    for device in &devices {
        for partition in partitions(device).into_iter().flatten() {
            assert!(partition.start.0 + partition.size.0 <= device.len() as u64, "partitions are on their disk");
        }
    }
    let sources: Vec<Arc<dyn Source>> =
        devices.into_iter().skip(left % 4).map(|device| Arc::new(device) as Arc<dyn Source>).collect();
    let found = || sources.iter().flat_map(|source| scan("device", source).found).collect::<Vec<_>>();
    for (one, other) in assemble(found(), &options).iter().zip(&assemble(found(), &options)) {
        assert_eq!(one.members, other.members, "members are judged by what they say");
        assert_eq!(content(one), content(other), "content is what is there");
    }
});

/// What can be read of an array, from its start.
fn content(assembly: &Assembly) -> Option<Vec<u8>> {
    let array = assembly.array.as_ref().ok()?;
    let mut bytes = vec![0; READ_MAX.min(usize::try_from(array.capacity().0).unwrap_or(READ_MAX))];
    array.read(Bytes(0), &mut bytes).ok()?;
    let mut end = [0; 1];
    let _ = array.read(Bytes(array.capacity().0.saturating_sub(1)), &mut end);
    Some(bytes)
}
